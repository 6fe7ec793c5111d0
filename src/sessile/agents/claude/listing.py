"""List sessions from the first and last 64 KB of their transcripts, as the SDKs do.

Rules:

- No file is read as a whole. What is not in one of the windows is unknown, except for the notes in the session's
  folder: a title that the user gave last, and whether the session is archived.
- The TypeScript SDK takes titles, tags and the last prompt from rows of their type, also after a torn row on the same
  line but not inside another row. The Python SDK takes any `customTitle`, and tags only from lines that start as it
  writes them; it does not read notes.
- A session without a title, prompt or summary is not listed, nor is one that starts as a sidechain.

The first prompt is what the user typed: tool results, meta rows, compact summaries and texts that the skip rule names
are passed over, and a slash command counts only if there is nothing else. It is one line of at most 200 characters. The
SDKs differ in the skip rule (any lower-case tag at the start, or a fixed list of tags), in shell input (TypeScript
shows `! ls`), in pasted text (TypeScript unwraps it), in what is whitespace, and in the length of an emoji. The search
is linear in the text.

A note that is broken or of another shape is ignored. A session is archived until its user sends a prompt again; rows
that programs write do not bring it back.

A working directory is looked up by its slug. Older releases hashed long paths in another way, so for a long path
folders with the same prefix count too, if a session in them started in that directory; the Python SDK takes the first
of them. Worktrees come from the caller, and count if there are at least two. A folder or file that cannot be read is
skipped and added to `problems`.
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
    first_member,
    first_text,
    last_member,
    last_member_of_type,
    last_text,
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

WINDOW = 65_536  # bytes at each end; both SDKs read no more

_PROGRAMS = frozenset({"sdk-cli", "sdk-ts", "sdk-py"})
_DAEMONS = frozenset({"daemon", "daemon-worker"})


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session of a listing; values that are not in its windows are None."""

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
    is_programmatic: bool = False  # started by an SDK or a daemon; the terminal's own list leaves it out
    archived: bool | None = None  # None if unknown
    begun_in: str | None = None  # the working directory in its rows, for listing by directory
    continued_in: str | None = None  # the id of the session that continues this one


@dataclass(frozen=True, slots=True)
class LiteFile:
    """The two ends of a transcript, and its size and time."""

    head: bytes
    tail: bytes
    modified_ns: int
    size: int


class Archived(NamedTuple):
    """Whether a session was archived or unarchived, and when."""

    archived: bool
    at: int  # milliseconds since 1970


class Notes(NamedTuple):
    """The notes in the folder of a session."""

    title: str | None = None
    archived: Archived | None = None


NO_NOTES = Notes()


def session_info(
    session_id: str, file: LiteFile, project_path: str | None = None, view: View = "ts", notes: Notes = NO_NOTES
) -> SessionInfo | None:
    """Return what a listing shows of a session, or None if it is not listed."""
    if starts_as_sidechain(file.head):
        return None
    head = file.head.decode("utf-8", "replace")
    tail = head if file.tail == file.head else file.tail.decode("utf-8", "replace")
    if view == "python-sdk":
        return _python_sdk_info(session_id, file, head, tail, project_path)
    title = title_of(file.head, file.tail, notes.title)
    prompt = first_prompt(file.head)
    summary = (
        title
        or last_member(tail, "lastPrompt")
        or last_member(tail, "summary")
        or prompt
        or attachment_label(file.head)
    )
    if not summary:
        return None
    moved_to = last_member(tail, "relocatedCwd", RELOCATED)
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=(file.modified_ns + 500_000) // 1_000_000,  # as JavaScript rounds
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch") or first_text(head, "gitBranch") or None,
        cwd=moved_to or first_text(head, "cwd") or project_path or None,
        tag=last_member(tail, "tag", TAG, glued=True) or None,
        created_at=parse_timestamp(first_text(head, "timestamp")),
        is_programmatic=_is_programmatic(head, tail),
        archived=is_archived(notes, head, tail),
        begun_in=first_member(head, "cwd") if moved_to is None else moved_to,
        continued_in=_continued_in(tail),
    )


def begun_in(file: LiteFile) -> str | None:
    """Return the working directory in a session's rows, the last one if it was moved."""
    moved_to = last_member(file.tail.decode("utf-8", "replace"), "relocatedCwd", RELOCATED)
    return first_member(file.head.decode("utf-8", "replace"), "cwd") if moved_to is None else moved_to


def starts_as_sidechain(head: bytes) -> bool:
    """Return whether the first row is one of a sub-agent; such a session is not listed."""
    end = head.find(b"\n")
    first_line = head if end < 0 else head[:end]
    return b'"isSidechain":true' in first_line or b'"isSidechain": true' in first_line


def title_of(head: bytes, tail: bytes, noted: str | None = None) -> str | None:
    """Return the newest title that the user gave, else the newest generated one."""
    newest = last_member_of_type(tail, CUSTOM_TITLE, "customTitle")
    windows = (tail,) if tail == head else (tail, head)
    return (
        newest
        or (noted if newest is None else None)
        or (last_member_of_type(head, CUSTOM_TITLE, "customTitle") if tail != head else None)
        or next(filter(None, (last_member_of_type(window, AI_TITLE, "aiTitle") for window in windows)), None)
    )


def _continued_in(tail: str) -> str | None:
    """Return the session that continues this one, unless the conversation went on here since."""
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


def _python_sdk_info(
    session_id: str, file: LiteFile, head: str, tail: str, project_path: str | None
) -> SessionInfo | None:
    windows = [(window, key) for key in ("customTitle", "aiTitle") for window in (tail, head)]
    titles = (last_text(window, key, "python-sdk") for window, key in windows)
    title = next((found for found in titles if found), None)
    prompt = first_prompt(file.head, "python-sdk")
    texts = (last_text(tail, key, "python-sdk") for key in ("lastPrompt", "summary"))
    summary = title or next((found for found in texts if found), None) or prompt
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
    """Return the file's time as the Python SDK computes it, from floating point seconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return int((seconds + 1e-9 * rest) * 1000)


def _created_in_python(timestamp: str | None) -> int | None:
    """Return the time of the first row; the Python SDK may lose a millisecond to floating point."""
    exact = parse_timestamp(timestamp)
    if exact is None or timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    return exact if moment.tzinfo is None else int(moment.timestamp() * 1000)


# -- the first prompt

LONGEST = 200  # characters of a prompt

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
"""The characters that JavaScript trims."""
_PASSED_OVER = (
    b'"tool_result"',
    b'"isMeta":true',
    b'"isMeta": true',
)
_SUMMARIES = (b'"isCompactSummary":true', b'"isCompactSummary": true')
_BESIDE_TEXT = (("image", "Image"), ("document", "Document"))


def first_prompt(head: bytes, view: View = "ts") -> str | None:
    """Return the first prompt in the start of a transcript, or None; the last line may be incomplete."""
    if view == "python-sdk":
        return _first_in_python(head)
    command = ""
    for line in _possible(head, _SUMMARIES):
        found = _prompt_in(parsed(line))
        if found.prompt is not None:
            return found.prompt
        command = command or found.command
    return command or None


def is_prompt(row: Any) -> bool:
    """Return whether a row is a prompt of the user, as the TypeScript SDK defines it."""
    return _prompt_in(row).prompt is not None


def attachment_label(head: bytes) -> str | None:
    """Return the TypeScript SDK's name for a session that starts with an image or document and has no text."""
    for line in _possible(head, ()):
        for kind, name in _BESIDE_TEXT:
            if f'"type":"{kind}"' in line or f'"type": "{kind}"' in line:
                return name
    return None


def trimmed(text: str) -> str:
    """Return the text without the characters that JavaScript trims at its ends."""
    return text.strip(_SPACES)


class _Prompt(NamedTuple):
    prompt: str | None
    command: str


def _prompt_in(row: Any) -> _Prompt:
    """Return the first prompt in a row, and the first slash command before it."""
    command = ""
    for text in _texts_of(row):
        one = trimmed(_unwrapped(text).replace("\n", " "))
        slash, shell = _slash_command(one), _inside(one, _SHELL)
        if slash is not None:
            command = command or slash
        elif shell is not None:
            return _Prompt(f"! {trimmed(shell)}", command)
        elif one and not _SKIPPED.match(one):
            short = utf16_length(one) <= LONGEST
            cut = one if short else trimmed(without_surrogates(utf16_cut(one, LONGEST))) + "…"
            return _Prompt(cut, command)
    return _Prompt(None, command)


def _first_in_python(head: bytes) -> str | None:
    command = ""
    for line in _possible(head, _SUMMARIES):
        row = parsed(line, "python-sdk")
        content = mapping_of(row, "message").get("content") if type_of(row) == USER else None
        for text in _texts_in(content):
            one = text.replace("\n", " ").strip()
            slash = _inside(one, _COMMAND)
            if slash is not None:
                command = command or slash
            elif one and not _SKIPPED_BY_PYTHON.match(one):
                return one if len(one) <= LONGEST else one[:LONGEST].rstrip() + "…"
    return command or None


def _unwrapped(text: str) -> str:
    """Return the text without the tags around pasted parts."""
    ends: dict[str, list[int]] = {}
    for end in _PASTED_END.finditer(text):
        ends.setdefault(end[1], []).append(end.start())
    pieces: list[str] = []
    copied = at = 0
    while ends and (begin := _PASTED.search(text, at)):
        places = ends.get(begin[1], [])
        place = bisect_left(places, begin.end() - 1)  # the two tags may share a line break
        at = begin.end() - 1
        if place < len(places):
            pieces += (text[copied : begin.start()], text[begin.end() : places[place]])
            copied = at = _after_end(text, places[place])
    return "".join((*pieces, text[copied:]))


def _after_end(text: str, end: int) -> int:
    """Return the offset after an end tag and the line breaks that belong to it."""
    at = text.index(">", end) + 1
    return at + 2 if text.startswith("\n\n", at) else at + text.startswith("\n", at)


def _inside(text: str, tag: str) -> str | None:
    """Return the content of the first element with this name."""
    _, begin, rest = text.partition(f"<{tag}>")
    inside, end, _ = rest.partition(f"</{tag}>")
    return inside if begin and end else None


def _slash_command(text: str) -> str | None:
    """Return the name of the first slash command, which must be on one line."""
    if _COMMAND not in text:  # most prompts have none
        return None
    lines = (_inside(line, _COMMAND) for line in _LINE_ENDS.split(text))
    return next((name for name in lines if name is not None), None)


def _possible(head: bytes, passed_over: tuple[bytes, ...]) -> Iterator[str]:
    """Yield the lines that may be prompts, without parsing them."""
    for line in lines_of(head):
        if b'"type":"user"' not in line and b'"type": "user"' not in line:
            continue
        if not any(mark in line for mark in (*_PASSED_OVER, *passed_over)):
            yield line.decode("utf-8", "replace")


def _texts_of(row: Any) -> Iterator[str]:
    """Yield the texts of a user row."""
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
            text = text_of(block, "text") if isinstance(block, Mapping) and type_of(block) == "text" else None
            if text is not None:
                yield text


# -- notes beside the transcript

TITLE_NOTE = "custom-title.json"
ARCHIVE_NOTE = "archived.json"
LONGEST_NOTE = 4096  # bytes; a larger file is not a note of Claude Code

_LONGEST_TITLE = 200
_INVISIBLE = frozenset({"Cc", "Cf", "Zl", "Zp"})  # control and format characters, line and paragraph separators


def notes_of(title: bytes | None, archived: bytes | None) -> Notes:
    """Return the notes in two files, either of which may be missing."""
    custom_title = text_of(_value(title), "customTitle")
    note = _value(archived)
    when = parse_timestamp(text_of(note, "at"))
    flag = note.get("archived") if isinstance(note, dict) else None
    return Notes(
        title=None if custom_title is None else _one_line(custom_title) or None,
        archived=Archived(flag, when) if isinstance(flag, bool) and when is not None else None,
    )


def is_archived(notes: Notes, head: str, tail: str) -> bool | None:
    """Return whether the session is still archived; None if there is no note."""
    note = notes.archived
    if note is None or not note.archived:
        return note and note.archived
    windows = (tail,) if head == tail else (tail, head)
    return not any(moment > note.at for window in windows for moment in _prompted(window))


def _value(note: bytes | None) -> Any:
    return None if note is None else parsed(note.decode("utf-8", "replace"))


def _one_line(title: str) -> str:
    lines = "".join("\n" if unicodedata.category(char) in _INVISIBLE else char for char in trimmed(title))
    return trimmed(re.sub(r"\n+", " ", lines)[:_LONGEST_TITLE])


def _prompted(window: str) -> Iterator[int]:
    """Yield the times of the prompts in a window."""
    for line in window.split("\n"):
        if '"tool_result"' in line or ('"user"' not in line and '"queued_command"' not in line):
            continue
        row = parsed(line)
        moment = parse_timestamp(text_of(row, "timestamp"))
        queued = mapping_of(row, "attachment") if type_of(row) == ATTACHMENT else {}
        prompt = {"type": USER, "message": {"content": queued.get("prompt")}} if queued else row
        origin = text_of(mapping_of(queued or row, "origin"), "kind")
        if moment is not None and origin in (None, "human") and is_prompt(prompt):
            yield moment


# -- reading the ends of a file

_CHAIN = b'"parentUuid":'  # every file with a conversation contains this


def read_ends(fs: Filesystem, path: str) -> LiteFile | None:
    """Return the two ends of a file, or None if it is empty or missing."""
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
    """Return the notes in the folder of a session; most sessions have none."""
    folder = transcript.removesuffix(TRANSCRIPT)
    try:
        fs.lstat(folder)
    except OSError:
        return NO_NOTES
    return notes_of(_note(fs, f"{folder}/{TITLE_NOTE}"), _note(fs, f"{folder}/{ARCHIVE_NOTE}"))


def has_conversation(fs: Filesystem, path: str) -> bool:
    """Return whether a transcript holds a conversation; a large one is assumed to."""
    try:
        ends = read_ends(fs, path)
    except SessileError:
        return False
    return ends is not None and (_CHAIN in ends.head or ends.size > WINDOW)


def holds_session_of(fs: Filesystem, folder: str, directory: str) -> bool:
    """Return whether a project folder has a session that started in a directory (compared as slugs)."""
    for name in fs.names(folder):
        if session_of(name) is None and not name.endswith(TRANSCRIPT):
            continue
        try:
            ends = read_ends(fs, posixpath.join(folder, name))
        except SessileError:
            continue
        begun = None if ends is None else begun_in(ends)
        if begun is not None and hyphenated(begun) == hyphenated(directory):
            return True
    return False


def _note(fs: Filesystem, path: str) -> bytes | None:
    """Return the bytes of a note, or None if it cannot be read, as in the SDK."""
    try:
        with RawFile(fs, path) as file:
            return file.peek(0, file.size) if file.size <= LONGEST_NOTE else None
    except SessileError:
        return None


# -- project folders

Worktrees = Callable[[str], Sequence[str]]
"""Return the paths of all git worktrees of the repository around a directory; none outside of one."""

Problems = list[SessileError]


class Folder(NamedTuple):
    """A project folder, the directory that it was found for, and the worktrees of that directory if there are several."""

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
        """Return every project folder, by name."""
        names = self.names(self._projects)
        return [Folder(posixpath.join(self._projects, name)) for name in names if self._is_folder(name)]

    def folders_of(self, directory: str, view: View) -> list[Folder]:
        """Return the project folders of a directory; for a long path also those with another hash in their name."""
        name = self._slug(directory, view)
        found = [name] if self._is_folder(name) else []
        prefix = long_prefix(name)
        if prefix is not None and (view == "ts" or not found):
            found += [other for other in self._same_prefix(prefix, directory, view) if other != name]
        if view == "python-sdk":
            del found[1:]
        return [Folder(posixpath.join(self._projects, each), directory) for each in found]

    def _same_prefix(self, prefix: str, directory: str, view: View) -> Iterator[str]:
        """Yield the folders with a long path's prefix; the Python SDK does not check that they belong to it."""
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
        """Return the project folder of a directory and those of its worktrees, each once."""
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
        """Return whether a project folder is that of a worktree; names of long paths may have another hash."""
        if name == slugged:
            return True
        if view == "python-sdk":  # it compares the whole slug
            return len(slugged) >= LONGEST_SLUG and name.startswith(f"{slugged}-")
        prefix = long_prefix(slugged)
        return prefix is not None and name.startswith(prefix) and self._is_of(name, worktree)

    def folders_to_search(self, directory: str | None, view: View) -> Iterator[Folder]:
        """Yield the project folders that may hold a session, in search order."""
        if directory is None:
            yield from self.all_folders()
            return
        for place in (directory, *(other for other in self._worktrees(directory) if other != directory)):
            yield from self.folders_of(place, view)

    def transcripts(self, folder: Folder) -> Iterator[tuple[str, str]]:
        """Yield the id and path of each session in a project folder."""
        for name in self.names(folder.path):
            session_id = session_of(name)
            if session_id is not None:
                yield session_id, posixpath.join(folder.path, name)

    def agents(self, folder: str, view: View) -> Iterator[tuple[str, str]]:
        """Yield the id and path of each sub-agent below a folder, including sub-folders, by name.

        The TypeScript SDK ignores links here.
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
        """Return the names in a folder; none if it cannot be read."""
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
            return 0

    def _is_folder(self, name: str) -> bool:
        """Return whether a name in the projects folder is a folder, or a link to one."""
        path = posixpath.join(self._projects, name)
        try:
            mode = self._fs.lstat(path).st_mode
            return stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and bool(self._fs.names(path)))
        except OSError:
            return False
