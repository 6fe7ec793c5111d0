"""What a listing tells of a session, from the first and last 64 KB of its transcript.

Rules:

- A gigabyte is never parsed to list it. What is not in a window is unknown, but for what the folder of the session notes
  beside it: a title that the user gave last, and that the session is archived.
- Titles, tags and the last prompt are taken from rows of their type by the TypeScript SDK; one that was glued to a torn row
  counts, one inside another row does not. The Python SDK takes any `customTitle` that it sees, and tags only from lines
  that begin as it writes them; it knows no notes.
- A session that tells nothing of itself is not listed, nor is one that begins as a sidechain.

The first prompt of a session: what the user asked, not what a program put in the user's mouth.

Rules: tool results, meta rows and compact summaries are passed over, then texts that the skip rule names; a slash command
counts only if nothing else is there. What is found is one line, cut at 200 characters.

Finding takes time in proportion to the text, whatever tags it is full of: an end that is missing is looked for once.

The two SDKs differ in the skip rule (any lower-case tag at the start, or an old list of tags), in shell input, which the
TypeScript SDK shows as `! ls`, in pasted text, which it unwraps, in what is a space, and in how long an emoji is.

What the folder of a session notes of it beside its transcript: a title, and that it is archived.

Rules: a note that is broken or of another shape is none. A title is one line of at most 200 characters. A session counts as
archived until its user says something in it again; whatever programs write does not bring it back.

The TypeScript SDK reads both notes and writes one of them; the Python SDK knows neither.

The two ends of a transcript and the notes beside it: all that a listing reads of a session, however large it is.

Finding transcripts below a projects folder, as the SDKs look for them.

Rules:

- A directory is looked for under its slug. Of a long path older releases made the hash in another way, so that folders which
  begin like it count as well, if a session in them was begun in that directory; the Python SDK takes the first of them.
- Worktrees of a directory come from the caller: this layer runs no `git`. They count if there are two or more.
- A folder or file that vanishes or cannot be read is passed over, and told to whoever asks for problems.

It looks at names, and into sessions only for long paths; which of several transcripts answers is the readers' choice.
"""

from __future__ import annotations

import posixpath
import re
import stat
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sessile.agents.claude.paths import (
    LONGEST_SLUG,
    TRANSCRIPT,
    agent_of,
    hyphenated,
    long_prefix,
    projects_dir,
    python_sdk_slug,
    session_of,
    slug,
)
from sessile.agents.claude.rows import (
    AI_TITLE,
    ASSISTANT,
    ATTACHMENT,
    CONTINUED_IN,
    CUSTOM_TITLE,
    RELOCATED,
    TAG,
    USER,
    View,
    first_text,
    first_told,
    last_text,
    last_told,
    last_told_by,
    line_with,
    lines_of,
    mapping_of,
    parsed,
    text_of,
    type_of,
)
from sessile.core.text import parse_timestamp, utf16_cut, utf16_length, without_surrogates
from sessile.errors import NotFound, SessileError, storage_failures
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile

# --- first prompt

LONGEST = 200

_INTERRUPTED = r"\[Request interrupted by user[^\]]*\]"
_SKIPPED = re.compile(rf"<[a-z][A-Za-z0-9_-]*[\s>]|{_INTERRUPTED}")
_SKIPPED_BY_PYTHON = re.compile(
    rf"<local-command-stdout>|<session-start-hook>|<tick>|<goal>|{_INTERRUPTED}"
    r"|\s*<ide_opened_file>.*</ide_opened_file>\s*\Z|\s*<ide_selection>.*</ide_selection>\s*\Z",
    re.DOTALL,
)
_COMMAND = "command-name"
_SHELL = "bash-input"
_LINE_ENDS = re.compile("[\n\r\u2028\u2029]")
_PASTED = re.compile(r'\n{0,2}<pasted_content id="([0-9a-f]{4})">\n')
_PASTED_END = re.compile(r'\n</pasted_content id="([0-9a-f]{4})">')
_SPACES = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript trims."""
_PASSED_OVER = (
    b'"tool_result"',
    b'"isMeta":true',
    b'"isMeta": true',
)
_SUMMARIES = (b'"isCompactSummary":true', b'"isCompactSummary": true')
_BESIDE_TEXT = (("image", "Image"), ("document", "Document"))


def first_prompt(head: bytes, view: View = "ts") -> str | None:
    """The first prompt in the beginning of a transcript, or None; the last line may be cut."""
    if view == "python-sdk":
        return _first_in_python(head)
    command = ""
    for line in _possible(head, _SUMMARIES):
        said = _said_in(parsed(line))
        if said.prompt is not None:
            return said.prompt
        command = command or said.command
    return command or None


def is_prompt(row: Any) -> bool:
    """Whether the user says something in a row, in the sense of the TypeScript SDK."""
    return _said_in(row).prompt is not None


def without_words(head: bytes) -> str | None:
    """What the TypeScript SDK calls a session that begins with a picture or a document, and has no words at all."""
    for line in _possible(head, ()):
        for kind, name in _BESIDE_TEXT:
            if f'"type":"{kind}"' in line or f'"type": "{kind}"' in line:
                return name
    return None


def trimmed(text: str) -> str:
    """The text without what JavaScript calls space at its ends."""
    return text.strip(_SPACES)


class _Said(NamedTuple):
    prompt: str | None
    command: str


def _said_in(row: Any) -> _Said:
    """The first prompt in a row, and the first slash command before it."""
    command = ""
    for said in _texts_of(row):
        one = trimmed(_unwrapped(said).replace("\n", " "))
        slash, shell = _slash_command(one), _inside(one, _SHELL)
        if slash is not None:
            command = command or slash
        elif shell is not None:
            return _Said(f"! {trimmed(shell)}", command)
        elif one and not _SKIPPED.match(one):
            short = utf16_length(one) <= LONGEST
            cut = one if short else trimmed(without_surrogates(utf16_cut(one, LONGEST))) + "…"
            return _Said(cut, command)
    return _Said(None, command)


def _first_in_python(head: bytes) -> str | None:
    command = ""
    for line in _possible(head, _SUMMARIES):
        row = parsed(line, "python-sdk")
        content = mapping_of(row, "message").get("content") if type_of(row) == USER else None
        for said in _texts_in(content):
            one = said.replace("\n", " ").strip()
            slash = _inside(one, _COMMAND)
            if slash is not None:
                command = command or slash
            elif one and not _SKIPPED_BY_PYTHON.match(one):
                return one if len(one) <= LONGEST else one[:LONGEST].rstrip() + "…"
    return command or None


def _unwrapped(text: str) -> str:
    """The text with what was pasted into it, without the tags around that."""
    ends: dict[str, list[int]] = {}
    for end in _PASTED_END.finditer(text):
        ends.setdefault(end[1], []).append(end.start())
    pieces: list[str] = []
    told = at = 0
    while ends and (begin := _PASTED.search(text, at)):
        places = ends.get(begin[1], [])
        place = bisect_left(places, begin.end() - 1)  # the line break of one tag may be that of the other
        at = begin.end() - 1
        if place < len(places):
            pieces += (text[told : begin.start()], text[begin.end() : places[place]])
            told = at = _behind_end(text, places[place])
    return "".join((*pieces, text[told:]))


def _behind_end(text: str, end: int) -> int:
    """Where a text goes on behind an end tag and the line breaks that belong to it."""
    at = text.index(">", end) + 1
    return at + 2 if text.startswith("\n\n", at) else at + text.startswith("\n", at)


def _inside(text: str, tag: str) -> str | None:
    """What stands in the first element of a name."""
    _, begin, rest = text.partition(f"<{tag}>")
    inside, end, _ = rest.partition(f"</{tag}>")
    return inside if begin and end else None


def _slash_command(text: str) -> str | None:
    """The name of the first slash command, which stands on one line."""
    if _COMMAND not in text:  # in most prompts there is none
        return None
    lines = (_inside(line, _COMMAND) for line in _LINE_ENDS.split(text))
    return next((name for name in lines if name is not None), None)


def _possible(head: bytes, passed_over: tuple[bytes, ...]) -> Iterator[str]:
    """The lines that may be prompts, judged by a glance: parsing them all takes long."""
    for line in lines_of(head):
        if b'"type":"user"' not in line and b'"type": "user"' not in line:
            continue
        if not any(mark in line for mark in (*_PASSED_OVER, *passed_over)):
            yield line.decode("utf-8", "replace")


def _texts_of(row: Any) -> Iterator[str]:
    """What a row of the user says, each text for itself."""
    if type_of(row) != USER or row.get("isMeta") is True or row.get("isCompactSummary") is True:
        return
    content = mapping_of(row, "message").get("content")
    if isinstance(content, list) and any(type_of(block) == "tool_result" for block in content):
        return
    yield from _texts_in(content)


def _texts_in(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            said = text_of(block, "text") if isinstance(block, Mapping) and type_of(block) == "text" else None
            if said is not None:
                yield said


# --- notes

TITLE_NOTE = "custom-title.json"
ARCHIVE_NOTE = "archived.json"
LONGEST_NOTE = 4096  # bytes; a larger one is none of theirs

_LONGEST_TITLE = 200
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})  # control and format characters, ends of lines and paragraphs


class Archived(NamedTuple):
    """Whether a session was archived or taken back, and when."""

    archived: bool
    at: int  # milliseconds since 1970


class Notes(NamedTuple):
    """What the folder of a session says."""

    title: str | None = None
    archived: Archived | None = None


NO_NOTES = Notes()


def notes_of(title: bytes | None, archived: bytes | None) -> Notes:
    """The notes in two files, either of which may be missing."""
    named = text_of(_value(title), "customTitle")
    said = _value(archived)
    when = parse_timestamp(text_of(said, "at"))
    flag = said.get("archived") if isinstance(said, dict) else None
    return Notes(
        title=None if named is None else _one_line(named) or None,
        archived=Archived(flag, when) if isinstance(flag, bool) and when is not None else None,
    )


def is_archived(notes: Notes, head: str, tail: str) -> bool | None:
    """Whether the session still is archived; None if nobody has said anything."""
    said = notes.archived
    if said is None or not said.archived:
        return said and said.archived
    windows = (tail,) if head == tail else (tail, head)
    return not any(moment > said.at for window in windows for moment in _prompted(window))


def _value(note: bytes | None) -> Any:
    return None if note is None else parsed(note.decode("utf-8", "replace"))


def _one_line(title: str) -> str:
    seen = "".join("\n" if unicodedata.category(char) in _UNSEEN else char for char in trimmed(title))
    return trimmed(re.sub(r"\n+", " ", seen)[:_LONGEST_TITLE])


def _prompted(window: str) -> Iterator[int]:
    """When the user said something, as far as a window tells."""
    for line in window.split("\n"):
        if '"tool_result"' in line or ('"user"' not in line and '"queued_command"' not in line):
            continue
        row = parsed(line)
        moment = parse_timestamp(text_of(row, "timestamp"))
        queued = mapping_of(row, "attachment") if type_of(row) == ATTACHMENT else {}
        said = {"type": USER, "message": {"content": queued.get("prompt")}} if queued else row
        told_by = text_of(mapping_of(queued or row, "origin"), "kind")
        if moment is not None and told_by in (None, "human") and is_prompt(said):
            yield moment


# --- lite

WINDOW = 65_536  # bytes at each end; both SDKs look no further

_PROGRAMS = frozenset({"sdk-cli", "sdk-ts", "sdk-py"})
_DAEMONS = frozenset({"daemon", "daemon-worker"})


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session of a listing; what its windows do not tell is None."""

    session_id: str
    summary: str
    last_modified: int  # milliseconds since 1970
    file_size: int
    custom_title: str | None = None
    first_prompt: str | None = None
    git_branch: str | None = None
    cwd: str | None = None
    tag: str | None = None
    created_at: int | None = None
    is_programmatic: bool = False  # begun by an SDK or a daemon; the terminal's own list leaves it out
    archived: bool | None = None  # None if nobody has said so
    begun_in: str | None = None  # the working directory that its rows tell, for those who list by directory
    continued_in: str | None = None  # the id of the session in which it goes on


@dataclass(frozen=True, slots=True)
class LiteFile:
    """The two ends of a transcript, and what the file system says of it."""

    head: bytes
    tail: bytes
    modified_ns: int
    size: int


def session_info(
    session_id: str, file: LiteFile, project_path: str | None = None, view: View = "ts", notes: Notes = NO_NOTES
) -> SessionInfo | None:
    """What a listing tells of a session, or None if it is not listed."""
    if begins_as_sidechain(file.head):
        return None
    head = file.head.decode("utf-8", "replace")
    tail = head if file.tail == file.head else file.tail.decode("utf-8", "replace")
    if view == "python-sdk":
        return _as_python_tells(session_id, file, head, tail, project_path)
    title = title_of(file.head, file.tail, notes.title)
    prompt = first_prompt(file.head)
    summary = title or last_told(tail, "lastPrompt") or last_told(tail, "summary") or prompt or without_words(file.head)
    if not summary:
        return None
    moved_to = last_told(tail, "relocatedCwd", RELOCATED)
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=(file.modified_ns + 500_000) // 1_000_000,  # as JavaScript rounds
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch") or first_text(head, "gitBranch") or None,
        cwd=moved_to or first_text(head, "cwd") or project_path or None,
        tag=last_told(tail, "tag", TAG, glued=True) or None,
        created_at=parse_timestamp(first_text(head, "timestamp")),
        is_programmatic=_is_programmatic(head, tail),
        archived=is_archived(notes, head, tail),
        begun_in=first_told(head, "cwd") if moved_to is None else moved_to,
        continued_in=_continued_in(tail),
    )


def begun_in(file: LiteFile) -> str | None:
    """The working directory of a session as its rows tell it, the last one if it was moved."""
    moved_to = last_told(file.tail.decode("utf-8", "replace"), "relocatedCwd", RELOCATED)
    return first_told(file.head.decode("utf-8", "replace"), "cwd") if moved_to is None else moved_to


def begins_as_sidechain(head: bytes) -> bool:
    """Whether the first row is one of a sub-agent; no listing shows such a session."""
    end = head.find(b"\n")
    first_line = head if end < 0 else head[:end]
    return b'"isSidechain":true' in first_line or b'"isSidechain": true' in first_line


def title_of(head: bytes, tail: bytes, noted: str | None = None) -> str | None:
    """The title that the user gave, else the one that was made up; a newer one first."""
    newest = last_told_by(tail, CUSTOM_TITLE, "customTitle")
    windows = (tail,) if tail == head else (tail, head)
    return (
        newest
        or (noted if newest is None else None)
        or (last_told_by(head, CUSTOM_TITLE, "customTitle") if tail != head else None)
        or next(filter(None, (last_told_by(window, AI_TITLE, "aiTitle") for window in windows)), None)
    )


def _continued_in(tail: str) -> str | None:
    """The session in which this one goes on, unless something was said here since."""
    mark = f'"type":"{CONTINUED_IN}"'
    if mark not in tail:
        return None
    for line in reversed(tail.split("\n")):
        if mark in line or '"type":"user"' in line or '"type":"assistant"' in line:
            row = parsed(line)
            if type_of(row) == CONTINUED_IN:
                return text_of(row, "continuedInSessionId")
            if is_prompt(row) or _is_answer(row):
                return None
    return None


def _is_answer(row: object) -> bool:
    failed = isinstance(row, Mapping) and row.get("isApiErrorMessage") is True
    return type_of(row) == ASSISTANT and not failed and text_of(mapping_of(row, "message"), "stop_reason") is not None


def _is_programmatic(head: str, tail: str) -> bool:
    entry = first_text(head, "entrypoint")
    if (last_text(tail, "entrypoint") if entry is None else entry) in _PROGRAMS:
        return True
    return first_text(line_with(head, '"parentUuid":') or head, "sessionKind") in _DAEMONS


# -- the Python SDK


def _as_python_tells(
    session_id: str, file: LiteFile, head: str, tail: str, project_path: str | None
) -> SessionInfo | None:
    windows = [(window, key) for key in ("customTitle", "aiTitle") for window in (tail, head)]
    titles = (last_text(window, key, "python-sdk") for window, key in windows)
    title = next((found for found in titles if found), None)
    prompt = first_prompt(file.head, "python-sdk")
    told = (last_text(tail, key, "python-sdk") for key in ("lastPrompt", "summary"))
    summary = title or next((found for found in told if found), None) or prompt
    if not summary:
        return None
    tags = (line for line in reversed(tail.split("\n")) if line.startswith('{"type":"tag"'))
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=_modified_in_python(file.modified_ns),
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch", "python-sdk") or first_text(head, "gitBranch") or None,
        cwd=first_text(head, "cwd") or project_path or None,
        tag=last_text(next(tags, ""), "tag", "python-sdk") or None,
        created_at=_created_in_python(first_text(head, "timestamp")),
    )


def _modified_in_python(nanoseconds: int) -> int:
    """When the file was written, by way of the floating point seconds that Python tells."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return int((seconds + 1e-9 * rest) * 1000)


def _created_in_python(timestamp: str | None) -> int | None:
    """When the first row was written; it counts in floating point, and may lose a millisecond."""
    exact = parse_timestamp(timestamp)
    if exact is None or timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    return exact if moment.tzinfo is None else int(moment.timestamp() * 1000)


# --- ends

_CHAIN = b'"parentUuid":'  # what a file holds in which something was said


def read_ends(fs: Filesystem, path: str) -> LiteFile | None:
    """The two ends of a file, or None if it is empty or gone."""
    try:
        file = RawFile(fs, path)
    except SessileError as error:
        if isinstance(error, NotFound) or isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    with file:
        head = file.peek(0, WINDOW)
        tail = file.peek(file.size - WINDOW, WINDOW) if file.size > WINDOW else head
        return LiteFile(head, tail, file.stat.st_mtime_ns, file.size) if head else None


def read_notes(fs: Filesystem, transcript: str) -> Notes:
    """What the folder of a session notes; most sessions have none."""
    folder = transcript.removesuffix(TRANSCRIPT)
    try:
        fs.lstat(folder)
    except OSError:
        return NO_NOTES
    return notes_of(_note(fs, f"{folder}/{TITLE_NOTE}"), _note(fs, f"{folder}/{ARCHIVE_NOTE}"))


def has_conversation(fs: Filesystem, path: str) -> bool:
    """Whether something was said in a transcript; of a large one it is taken for granted."""
    try:
        ends = read_ends(fs, path)
    except SessileError:
        return False  # nobody can go on in it
    return ends is not None and (_CHAIN in ends.head or ends.size > WINDOW)


def holds_session_of(fs: Filesystem, folder: str, directory: str) -> bool:
    """Whether a project folder has a session that was begun in a directory, up to what a slug tells of it."""
    for name in fs.names(folder):
        if session_of(name) is None and not name.endswith(TRANSCRIPT):
            continue
        try:
            ends = read_ends(fs, posixpath.join(folder, name))
        except SessileError:
            continue  # it tells nothing
        begun = None if ends is None else begun_in(ends)
        if begun is not None and hyphenated(begun) == hyphenated(directory):
            return True
    return False


def _note(fs: Filesystem, path: str) -> bytes | None:
    """A note, as far as it is one: whatever cannot be read says nothing, as in the SDK."""
    try:
        with RawFile(fs, path) as file:
            return file.peek(0, file.size) if file.size <= LONGEST_NOTE else None
    except SessileError:
        return None


# --- places

Worktrees = Callable[[str], Sequence[str]]
"""The paths of all git worktrees of the repository around a directory; none outside of one."""

Problems = list[SessileError]


class Folder(NamedTuple):
    """A project folder, the directory that it was found for, if it was, and the worktrees around that, if it has several."""

    path: str
    directory: str | None = None
    worktrees: tuple[str, ...] = ()


class Places:
    """The project folders and transcripts below a config home."""

    def __init__(self, fs: Filesystem, config_home: str, worktrees: Worktrees, problems: Problems | None) -> None:
        self._fs = fs
        self._projects = projects_dir(config_home)
        self._worktrees = worktrees
        self._problems: Problems = [] if problems is None else problems

    def all_folders(self) -> list[Folder]:
        """Every project folder, by name."""
        names = self.names(self._projects)
        return [Folder(posixpath.join(self._projects, name)) for name in names if self._is_folder(name)]

    def folders_of(self, directory: str, view: View) -> list[Folder]:
        """The project folders of a directory: one, or of a long path also those whose names were hashed in another way."""
        name = self._slug(directory, view)
        found = [name] if self._is_folder(name) else []
        prefix = long_prefix(name)
        if prefix is not None and (view == "ts" or not found):
            found += [other for other in self._alike(prefix, directory, view) if other != name]
        if view == "python-sdk":
            del found[1:]
        return [Folder(posixpath.join(self._projects, each), directory) for each in found]

    def _alike(self, prefix: str, directory: str, view: View) -> Iterator[str]:
        """The folders whose names begin like that of a long path; the Python SDK does not look whether they belong to it."""
        for name in self.names(self._projects):
            if (
                name.startswith(prefix)
                and self._is_folder(name)
                and (view == "python-sdk" or self._is_of(name, directory))
            ):
                yield name

    def _is_of(self, name: str, directory: str) -> bool:
        try:
            return holds_session_of(self._fs, posixpath.join(self._projects, name), directory)
        except OSError:
            return False

    def folders_to_list(self, directory: str, include_worktrees: bool, view: View) -> list[Folder]:
        """The project folder of a directory and those of its worktrees, each once."""
        found = self.folders_of(directory, view)
        worktrees = self._worktrees(directory) if include_worktrees else ()
        if len(worktrees) <= 1:
            return found
        own = tuple(worktrees)
        found = [folder._replace(worktrees=(directory, *own)) for folder in found]
        known = {folder.path for folder in found}
        slugs = sorted(((self._slug(tree, view), tree) for tree in own), key=lambda named: len(named[0]), reverse=True)
        for folder in self.all_folders():
            if folder.path not in known:
                name = posixpath.basename(folder.path)
                of = next((tree for slugged, tree in slugs if self._is_worktree(name, slugged, tree, view)), None)
                found += [] if of is None else [Folder(folder.path, of, (directory, *own))]
        return found

    def _slug(self, directory: str, view: View) -> str:
        return slug(directory) if view == "ts" else python_sdk_slug(directory)

    def _is_worktree(self, name: str, slugged: str, worktree: str, view: View) -> bool:
        """Whether a project folder is that of a worktree; names of long paths need not have the same hash."""
        if name == slugged:
            return True
        if (
            view == "python-sdk"
        ):  # which compares the whole slug, so that only one of just the longest length may differ
            return len(slugged) >= LONGEST_SLUG and name.startswith(f"{slugged}-")
        prefix = long_prefix(slugged)
        return prefix is not None and name.startswith(prefix) and self._is_of(name, worktree)

    def folders_to_search(self, directory: str | None, view: View) -> Iterator[Folder]:
        """The project folders in which a session may be, in the order in which they are looked at."""
        if directory is None:
            yield from self.all_folders()
            return
        for place in (directory, *(other for other in self._worktrees(directory) if other != directory)):
            yield from self.folders_of(place, view)

    def transcripts(self, folder: Folder) -> Iterator[tuple[str, str]]:
        """The id and path of each session in a project folder."""
        for name in self.names(folder.path):
            session_id = session_of(name)
            if session_id is not None:
                yield session_id, posixpath.join(folder.path, name)

    def agents(self, folder: str, view: View) -> Iterator[tuple[str, str]]:
        """The id and path of each sub-agent below a folder; names and sub-folders of a folder in one order.

        The TypeScript SDK knows no links here.
        """
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            agent_id = agent_of(posixpath.basename(path)) if path != folder else None
            if agent_id is not None and not self._is_directory(path):
                if view == "python-sdk" or self._is_file(path):
                    yield agent_id, path
            elif path == folder or self._is_directory(path):
                waiting.extend(posixpath.join(path, name) for name in reversed(self.names(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it cannot be read."""
        try:
            with storage_failures(folder, "list the sessions"):
                return self._fs.names(folder)
        except SessileError as error:
            if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                self._problems.append(error)
            return []

    def _is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(self._mode(path))

    def _is_file(self, path: str) -> bool:
        return stat.S_ISREG(self._mode(path))

    def _mode(self, path: str) -> int:
        try:
            return self._fs.lstat(path).st_mode
        except OSError:
            return 0  # whatever cannot be looked at is none of what is asked for

    def _is_folder(self, name: str) -> bool:
        """Whether a name in the projects folder is a folder, or a link to one."""
        path = posixpath.join(self._projects, name)
        try:
            mode = self._fs.lstat(path).st_mode
            return stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and bool(self._fs.names(path)))
        except OSError:
            return False
