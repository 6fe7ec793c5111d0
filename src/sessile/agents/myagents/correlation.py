"""Two stores of one conversation: MyAgents' sessions and the transcripts of Claude Code that belong to them.

Claude Code cannot be told to keep no transcript, and MyAgents cannot do without its own file. This says which belong together,
what both take, and where they have drifted apart. Both are only read; the overview looks at names and sizes alone. A session
file without a row in the index is a session like the others, and its missing row is drift.

One conversation from two stores: MyAgents' messages beside the rows of Claude Code's transcript.

MyAgents knows what an answer used, how many tools it took and how long; Claude Code has every step. A message belongs to the
turn that its `sdkUuid` names; without one, questions are matched by their text, in order, and an answer belongs to the turn of
its question. What has no counterpart on either side is shown as that.
"""

from __future__ import annotations

import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.claude.paths import long_prefix, slug
from sessile.agents.myagents.archive import orphans
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.types import Message, Metadata, Usage, is_session_id
from sessile.core.codec import decode
from sessile.core.lines import Line, Scanner
from sessile.errors import SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile

# --- joining

_HIDDEN = ("isSidechain", "isMeta", "isCompactSummary")


class Joined(NamedTuple):
    """A message and the rows of the transcript that it stands for; none if `uuids` is empty."""

    message: Message
    uuids: tuple[str, ...]
    usage: Usage | None
    tool_count: int | None
    duration_ms: int | None


class JoinedView(NamedTuple):
    """All messages, and the rows of the transcript that no message stands for."""

    rows: tuple[Joined, ...]
    left_over: tuple[str, ...]


class Turn(NamedTuple):
    """A question in a transcript and the rows that follow it."""

    text: str
    question: str
    answers: list[str]


def turns_of(rows: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """The turns of a transcript; rows of sub-agents and rows that nobody said are left out."""
    turns: list[Turn] = []
    for row in rows:
        uuid = row.get("uuid")
        if not isinstance(uuid, str) or any(row.get(name) for name in _HIDDEN):
            continue
        text = _question_in(row)
        if text is not None:
            turns.append(Turn(text, uuid, []))
        elif turns and row.get("type") in ("user", "assistant"):
            turns[-1].answers.append(uuid)
    return turns


def _question_in(row: Mapping[str, Any]) -> str | None:
    """What a person asked, if the row is that."""
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
    """The messages with the rows of their turns."""
    places = {uuid: at for at, turn in enumerate(turns) for uuid in (turn.question, *turn.answers)}
    used: set[str] = set()
    joined = []
    here: int | None = None  # the turn of the last question
    after = 0  # turns before it are done with
    for message in messages:
        uuids: tuple[str, ...] = ()
        if message.role == "user":
            here = places.get(message.sdk_uuid or "")
            if here is None:
                here = _next_with(turns, message.text.strip(), after)
            after = after if here is None else here + 1
            uuids = () if here is None else (turns[here].question,)
        else:
            at = places.get(message.sdk_uuid or "", here)
            uuids = () if at is None else tuple(uuid for uuid in turns[at].answers if uuid not in used)
        used.update(uuids)
        joined.append(Joined(message, uuids, message.usage, message.tool_count, message.duration_ms))
    return JoinedView(tuple(joined), tuple(uuid for uuid in places if uuid not in used))


def _next_with(turns: Sequence[Turn], text: str, start: int) -> int | None:
    return next((at for at in range(start, len(turns)) if turns[at].text == text), None)


# --- correlation

_JSONL = ".jsonl"


class Transcript(NamedTuple):
    """A transcript of Claude Code."""

    session_id: str
    path: str
    size: int
    modified: int  # nanoseconds


class Pair(NamedTuple):
    """A session and its transcript. `how` is `unified`, `separate` or `same id` (which nobody has noted); `None` without one.

    Of a session without a row in the index `row` knows nothing but the id.
    """

    row: Metadata
    own_bytes: int | None
    transcript: Transcript | None
    how: str | None


class Drift(NamedTuple):
    """A session whose two stores do not agree, and why."""

    session_id: str
    problem: str


class Report(NamedTuple):
    """Both stores side by side; the sums are those of sessions that are in both."""

    pairs: tuple[Pair, ...]
    only_transcripts: tuple[Transcript, ...]
    drift: tuple[Drift, ...]

    @property
    def both(self) -> int:
        """How many sessions are in both stores."""
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
        """How many times as much the transcripts take; `None` if there is nothing to compare with."""
        return self.transcript_bytes / self.own_bytes if self.own_bytes else None

    @property
    def _overlap(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.transcript is not None and pair.own_bytes is not None]


def transcripts(fs: Filesystem, projects: str) -> dict[str, list[Transcript]]:
    """Every transcript below Claude Code's projects folder, by the id that its name gives."""
    found: dict[str, list[Transcript]] = {}
    for project in _names(fs, projects):
        folder = f"{projects}/{project}"
        for name in _names(fs, folder):
            if not name.endswith(_JSONL):
                continue
            try:
                status = fs.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue  # gone since
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
    """A session and the transcript that belongs to it: the one that the index names, else that of the session's own id."""
    named = row.sdk_session_id
    transcript = _best(found.get(named or row.id, ()), row) or _best(found.get(row.id, ()), row)
    how = None
    if transcript is not None and transcript.session_id != row.id:
        how = "separate"
    elif transcript is not None:
        how = "unified" if row.unified or named == row.id else "same id"
    return Pair(row, _own_bytes(store, row.id), transcript, how)


def _best(candidates: list[Transcript] | tuple[()], row: Metadata) -> Transcript | None:
    """The one in the folder of the session's project, else the newest."""
    name = slug(row.agent_dir or "")
    ranked = sorted(candidates, key=lambda each: (_likeness(each, name), each.modified))
    return ranked[-1] if ranked else None


def _likeness(transcript: Transcript, name: str) -> int:
    """How well the folder of a transcript fits; older releases hashed the names of long paths in another way."""
    folder, prefix = posixpath.basename(posixpath.dirname(transcript.path)), long_prefix(name)
    if folder == name:
        return 2
    return int(prefix is not None and folder.startswith(prefix))


def _own_bytes(store: MyAgentsStore, session_id: str) -> int | None:
    """What the files of a session take, in all forms that are there; `None` if there is none."""
    places = store.places
    sizes = []
    for path in (places.session, places.legacy, places.archive, places.transcript_v2):
        with storage_failures(path(session_id), "look at a session"):
            if atomic.exists(store.fs, path(session_id)):
                sizes.append(store.fs.lstat(path(session_id)).st_size)
    return sum(sizes) if sizes else None


def report(store: MyAgentsStore, projects: str, *, deep: bool = False) -> Report:
    """Both stores side by side. With `deep` the conversations are read and compared as well."""
    found = transcripts(store.fs, projects)
    listed = [row for row in store.list_sessions() if is_session_id(row.id)]
    unlisted = [Metadata({"id": each.session_id}) for each in orphans(store) if each.session_id is not None]
    pairs = tuple(pair_of(store, row, found) for row in (*listed, *unlisted))
    claims = Counter(pair.transcript.path for pair in pairs if pair.transcript is not None)
    rest = tuple(each for several in found.values() for each in several if each.path not in claims)
    drift = [Drift(pair.row.id, problem) for pair in pairs for problem in _problems(store, pair, deep=deep)]
    drift += [Drift(row.id, "its file is in no row of the index: MyAgents does not show it") for row in unlisted]
    drift += [
        Drift(pair.row.id, f"the transcript {pair.transcript.session_id} belongs to more than one session")
        for pair in pairs
        if pair.transcript is not None and claims[pair.transcript.path] > 1
    ]
    return Report(pairs, rest, tuple(drift))


def _problems(store: MyAgentsStore, pair: Pair, *, deep: bool) -> Iterator[str]:
    row, named = pair.row, pair.row.sdk_session_id
    if row.unified and named is not None and named != row.id:
        yield f"said to have one id in both stores, but Claude Code has {named}"
    if named is not None and (pair.transcript is None or pair.transcript.session_id != named):
        yield f"the transcript {named} is gone: Claude Code cannot resume it"
    if pair.own_bytes is None and pair.transcript is not None:
        yield "only Claude Code has a file of it"
    if deep and pair.transcript is not None and pair.own_bytes is not None:
        view = _joined(store, pair.row.id, pair.transcript)
        alone = sum(not each.uuids for each in view.rows if each.message.role == "user")
        if alone:
            yield f"{alone} questions are not in the transcript"
        if view.left_over:
            yield f"{len(view.left_over)} rows of the transcript belong to no message"


def joined(store: MyAgentsStore, projects: str, session_id: str) -> JoinedView:
    """The messages of a session beside the rows of its transcript; a file without a row in the index will do."""
    row = store.get(session_id)
    if row is None and not store.files.exists(session_id):
        raise SessionNotFound(f"there is no session {session_id} in MyAgents' folder", path=store.places.root)
    row = row or Metadata({"id": session_id})
    transcript = pair_of(store, row, transcripts(store.fs, projects)).transcript
    if transcript is None:
        return join(store.load(session_id).messages, ())
    return _joined(store, session_id, transcript)


def working_folder(fs: Filesystem, projects: str, session_id: str) -> str | None:
    """Where the transcript of an id was begun, as its rows say: for a session that has lost its row in the index."""
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
