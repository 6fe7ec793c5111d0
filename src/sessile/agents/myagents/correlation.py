"""Compare MyAgents' index and session files with each other and with the transcripts of Claude Code.

MyAgents runs Claude Code, so a conversation is in two stores: MyAgents' session file and a transcript. This module
finds which belong together, how much space both take, and where they differ. Everything is only read; the overview uses
names and sizes.

Joining: MyAgents knows the usage, tool count and duration of an answer, and Claude Code has every step. A message
belongs to the turn that its `sdkUuid` names; without one, questions are matched by their text, in order, and an answer
belongs to the turn of its question. Messages and rows without a counterpart are reported.

Orphans are session files without a row in the index, left by a damaged index, a deletion of the first versions, or
copying. MyAgents never shows them. They can be adopted: they get a row, and the file itself is not changed.
"""

from __future__ import annotations

import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.claude.paths import long_prefix, slug
from sessile.agents.myagents import types
from sessile.agents.myagents.lock import PATIENT
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.types import DEFAULT, Message, Metadata, Usage, check_session_id, is_session_id, title_of
from sessile.core.codec import decode
from sessile.core.lines import Line, Scanner
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import Invalid, SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile

_JSONL = ".jsonl"


class Transcript(NamedTuple):
    """A transcript of Claude Code."""

    session_id: str
    path: str
    size: int
    modified: int  # nanoseconds


class Pair(NamedTuple):
    """A session and its transcript. `how` is `unified`, `separate`, `same id` (not recorded in the index), or `None`.

    For a session without a row in the index, `row` has only the id.
    """

    row: Metadata
    own_bytes: int | None
    transcript: Transcript | None
    how: str | None


class Drift(NamedTuple):
    """A session whose stores differ, and how."""

    session_id: str
    problem: str


class Report(NamedTuple):
    """Both stores compared; the sums are those of sessions that are in both."""

    pairs: tuple[Pair, ...]
    only_transcripts: tuple[Transcript, ...]
    drift: tuple[Drift, ...]

    @property
    def both(self) -> int:
        """The number of sessions in both stores."""
        return sum(pair.transcript is not None and pair.own_bytes is not None for pair in self.pairs)

    @property
    def own_bytes(self) -> int:
        return sum(pair.own_bytes for pair in self._overlap if pair.own_bytes is not None)

    @property
    def transcript_bytes(self) -> int:
        return sum(pair.transcript.size for pair in self._overlap if pair.transcript is not None)

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.transcript_bytes

    @property
    def ratio(self) -> float | None:
        """The size of the transcripts relative to MyAgents' files; `None` without files."""
        return self.transcript_bytes / self.own_bytes if self.own_bytes else None

    @property
    def _overlap(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.transcript is not None and pair.own_bytes is not None]


def transcripts(fs: Filesystem, projects: str) -> dict[str, list[Transcript]]:
    """Return every transcript below Claude Code's projects folder, by the id in its name."""
    found: dict[str, list[Transcript]] = {}
    for project in _names(fs, projects):
        folder = f"{projects}/{project}"
        for name in _names(fs, folder):
            if not name.endswith(_JSONL):
                continue
            try:
                status = fs.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue  # deleted since
            if stat.S_ISREG(status.st_mode):
                session_id = name.removesuffix(_JSONL)
                transcript = Transcript(session_id, f"{folder}/{name}", status.st_size, status.st_mtime_ns)
                found.setdefault(session_id, []).append(transcript)
    return found


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "look for transcripts"):
        try:
            return fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def pair_of(store: MyAgentsStore, row: Metadata, found: dict[str, list[Transcript]]) -> Pair:
    """Return a session and its transcript: the one that the index names, else that with the session's own id."""
    named = row.sdk_session_id
    transcript = _best(found.get(named or row.id, ()), row) or _best(found.get(row.id, ()), row)
    how = None
    if transcript is not None and transcript.session_id != row.id:
        how = "separate"
    elif transcript is not None:
        how = "unified" if row.unified or named == row.id else "same id"
    return Pair(row, _own_bytes(store, row.id), transcript, how)


def _best(candidates: list[Transcript] | tuple[()], row: Metadata) -> Transcript | None:
    """Return the transcript in the session's project folder, else the newest."""
    name = slug(row.agent_dir or "")
    ranked = sorted(candidates, key=lambda each: (_likeness(each, name), each.modified))
    return ranked[-1] if ranked else None


def _likeness(transcript: Transcript, name: str) -> int:
    """Rank how well the folder of a transcript matches; older releases hashed the names of long paths differently."""
    folder, prefix = posixpath.basename(posixpath.dirname(transcript.path)), long_prefix(name)
    if folder == name:
        return 2
    return int(prefix is not None and folder.startswith(prefix))


def _own_bytes(store: MyAgentsStore, session_id: str) -> int | None:
    """Return the size of a session's files in all forms; `None` if there are none."""
    places = store.places
    sizes = []
    for path in (places.session, places.legacy, places.archive, places.transcript_v2):
        with storage_failures(path(session_id), "read the status of a session"):
            if atomic.exists(store.fs, path(session_id)):
                sizes.append(store.fs.lstat(path(session_id)).st_size)
    return sum(sizes) if sizes else None


def report(store: MyAgentsStore, projects: str, *, deep: bool = False) -> Report:
    """Compare both stores. With `deep` the conversations are read and compared too."""
    found = transcripts(store.fs, projects)
    listed = [row for row in store.list_sessions() if is_session_id(row.id)]
    unlisted = [Metadata({"id": each.session_id}) for each in orphans(store) if each.session_id is not None]
    pairs = tuple(pair_of(store, row, found) for row in (*listed, *unlisted))
    claims = Counter(pair.transcript.path for pair in pairs if pair.transcript is not None)
    rest = tuple(each for several in found.values() for each in several if each.path not in claims)
    drift = [Drift(pair.row.id, problem) for pair in pairs for problem in _problems(store, pair, deep=deep)]
    drift += [Drift(row.id, "its file has no row in the index, so MyAgents does not show it") for row in unlisted]
    drift += [
        Drift(pair.row.id, f"the transcript {pair.transcript.session_id} belongs to more than one session")
        for pair in pairs
        if pair.transcript is not None and claims[pair.transcript.path] > 1
    ]
    return Report(pairs, rest, tuple(drift))


def _problems(store: MyAgentsStore, pair: Pair, *, deep: bool) -> Iterator[str]:
    row, named = pair.row, pair.row.sdk_session_id
    if row.unified and named is not None and named != row.id:
        yield f"marked as unified, but its id in Claude Code is {named}"
    if named is not None and (pair.transcript is None or pair.transcript.session_id != named):
        yield f"the transcript {named} is missing, so Claude Code cannot resume it"
    if pair.own_bytes is None and pair.transcript is not None:
        yield "only Claude Code has a file"
    if deep and pair.transcript is not None and pair.own_bytes is not None:
        view = _joined(store, pair.row.id, pair.transcript)
        alone = sum(not each.uuids for each in view.rows if each.message.role == "user")
        if alone:
            yield f"{alone} questions are not in the transcript"
        if view.left_over:
            yield f"{len(view.left_over)} rows of the transcript have no message"


def joined(store: MyAgentsStore, projects: str, session_id: str) -> JoinedView:
    """Return the messages of a session with the rows of its transcript; a file without a row in the index suffices."""
    row = store.get(session_id)
    if row is None and not store.files.exists(session_id):
        raise SessionNotFound(f"session not found in MyAgents' folder: {session_id!r}", path=store.places.root)
    row = row or Metadata({"id": session_id})
    transcript = pair_of(store, row, transcripts(store.fs, projects)).transcript
    if transcript is None:
        return join(store.load(session_id).messages, ())
    return _joined(store, session_id, transcript)


def working_folder(fs: Filesystem, projects: str, session_id: str) -> str | None:
    """Return the working directory in a transcript's rows, for a session that has lost its row in the index."""
    for transcript in transcripts(fs, projects).get(session_id, ()):
        for row in _rows(fs, transcript.path):
            if isinstance(row.get("cwd"), str) and row["cwd"]:
                return str(row["cwd"])
    return None


def _joined(store: MyAgentsStore, session_id: str, transcript: Transcript) -> JoinedView:
    return join(store.load(session_id).messages, turns_of(_rows(store.fs, transcript.path)))


def _rows(fs: Filesystem, path: str) -> Iterator[dict[str, Any]]:
    scanner = Scanner()
    with RawFile(fs, path) as file:
        for chunk in file.chunks():
            yield from (decode(item.raw) for item in scanner.feed(chunk) if isinstance(item, Line))
        yield from (decode(item.raw) for item in scanner.finish() if isinstance(item, Line))


# -- joining messages and rows

_HIDDEN = ("isSidechain", "isMeta", "isCompactSummary")


class Joined(NamedTuple):
    """A message and its rows in the transcript; none if `uuids` is empty."""

    message: Message
    uuids: tuple[str, ...]
    usage: Usage | None
    tool_count: int | None
    duration_ms: int | None


class JoinedView(NamedTuple):
    """All messages, and the rows of the transcript without a message."""

    rows: tuple[Joined, ...]
    left_over: tuple[str, ...]


class Turn(NamedTuple):
    """A question in a transcript and the rows that follow it."""

    text: str
    question: str
    answers: list[str]


def turns_of(rows: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """Return the turns of a transcript, without rows of sub-agents and hidden rows."""
    turns: list[Turn] = []
    for row in rows:
        uuid = row.get("uuid")
        if not isinstance(uuid, str) or any(row.get(name) for name in _HIDDEN):
            continue
        text = _question(row)
        if text is not None:
            turns.append(Turn(text, uuid, []))
        elif turns and row.get("type") in ("user", "assistant"):
            turns[-1].answers.append(uuid)
    return turns


def _question(row: Mapping[str, Any]) -> str | None:
    """Return the question in a row, or `None`."""
    message = row.get("message")
    if row.get("type") != "user" or not isinstance(message, Mapping):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    if not blocks or any(block.get("type") == "tool_result" for block in blocks):
        return None
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str)).strip()


def join(messages: Sequence[Message], turns: Sequence[Turn]) -> JoinedView:
    """Return the messages with the rows of their turns."""
    places = {uuid: at for at, turn in enumerate(turns) for uuid in (turn.question, *turn.answers)}
    used: set[str] = set()
    joined = []
    current: int | None = None  # the turn of the last question
    after = 0  # earlier turns are done
    for message in messages:
        uuids: tuple[str, ...] = ()
        if message.role == "user":
            current = places.get(message.sdk_uuid or "")
            if current is None:
                current = _next_with(turns, message.text.strip(), after)
            after = after if current is None else current + 1
            uuids = () if current is None else (turns[current].question,)
        else:
            at = places.get(message.sdk_uuid or "", current)
            uuids = () if at is None else tuple(uuid for uuid in turns[at].answers if uuid not in used)
        used.update(uuids)
        joined.append(Joined(message, uuids, message.usage, message.tool_count, message.duration_ms))
    return JoinedView(tuple(joined), tuple(uuid for uuid in places if uuid not in used))


def _next_with(turns: Sequence[Turn], text: str, start: int) -> int | None:
    return next((at for at in range(start, len(turns)) if turns[at].text == text), None)


# -- orphans

_ENDINGS = (".jsonl.gz", ".jsonl", ".json")


class Orphan(NamedTuple):
    """Files of one session without a row; `session_id` is `None` if the file name is not a valid id."""

    session_id: str | None
    paths: tuple[str, ...]
    bytes: int
    modified: int  # nanoseconds, of the newest file


def orphans(store: MyAgentsStore) -> list[Orphan]:
    """Return the sessions that have a file but no row, by name."""
    known = store.index.rows()
    found: dict[str, Orphan] = {}
    for name, path in _session_files(store):
        if name in known:
            continue
        with storage_failures(path, "read the status of a session"):
            try:
                status = store.fs.lstat(path)
            except FileNotFoundError:
                continue  # deleted since
        before = found.get(name, Orphan(name if is_session_id(name) else None, (), 0, 0))
        size, modified = before.bytes + status.st_size, max(before.modified, status.st_mtime_ns)
        found[name] = Orphan(before.session_id, (*before.paths, path), size, modified)
    return [found[name] for name in sorted(found)]


def _session_files(store: MyAgentsStore) -> Iterator[tuple[str, str]]:
    """Yield session name and path of every file that looks like a session."""
    for folder in (store.places.sessions, store.places.transcripts_v2):
        with storage_failures(folder, "look for sessions"):
            try:
                names = store.fs.names(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
        for name in names:
            ending = next((each for each in _ENDINGS if name.endswith(each)), None)
            if ending is not None and not name.startswith("."):
                yield name.removesuffix(ending), f"{folder}/{name}"


def adopt(store: MyAgentsStore, session_id: str, agent_dir: str, title: str | None = None) -> Metadata:
    """Add a row for a session file to the index, with times, title and statistics of its messages."""
    loaded = store.load(check_session_id(session_id))
    if loaded.path is None:
        raise SessionNotFound(f"the session has no file: {session_id!r}", path=store.places.session(session_id))
    if not agent_dir:
        raise Invalid("agent_dir must not be empty", path=loaded.path, hint="pass the folder in which the agent worked")
    with storage_failures(loaded.path, "read the status of a session"):
        written = store.fs.lstat(loaded.path).st_mtime_ns // 1_000_000
    messages = loaded.messages
    moments = [at for at in (parse_timestamp(message.timestamp) for message in messages) if at is not None] or [written]
    row = Metadata(
        {
            "id": session_id,
            "agentDir": agent_dir,
            "title": title or _title(messages),
            "createdAt": iso_timestamp(min(moments)),
            "lastActiveAt": iso_timestamp(max(moments)),
            "stats": types.recount(messages),
        }
    )
    store.index.create(row, PATIENT)
    return row


def _title(messages: list[Message]) -> str:
    """Return the title that MyAgents would have given the session."""
    return next((title_of(message.text) for message in messages if message.role == "user"), DEFAULT)
