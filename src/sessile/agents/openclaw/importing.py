"""A state folder brought into a native store: every session of every agent, and an account of every line.

Rules: the source is only read. A session is published whole or not at all; on the next run its new lines are added and
nothing else changes, so a run that was killed is simply run again. An entry that is there already is left alone, also if the
source has changed it since: then it is counted as differing. The header of a session of ours says where it is from
(`sessile.source`: agent and file), and by that it is found again, whatever its id.

Of each session, `read == written + present + differing`. Keys, settings and counters become bindings of ours: see `bindings`.
The store file is kept as it was among the store's originals.

The keys of a store file brought into a store of ours, where a gateway finds its sessions by them.

    <our root>/agents/<agent>/sessions/sessions.json    the bindings of an agent, in the same format: key → entry
    <our root>/agents/<agent>/kept/                     its last good copy
    <our root>/agents/<agent>/imported.json             every key that was ever imported

In a database the bindings are a table instead of the first two.

Rules: keys stay as they are written. A binding that somebody changed here since it was imported stays, and one that somebody
deleted here stays deleted. One that is still as it came is replaced by a newer one. A run that changes nothing writes
nothing. An entry that cannot be written as JSON, such as one with a number that is too large, is refused and told.
Transcripts are `importing`'s business.

What an import says of itself: of each session, each key, each agent, and what was left out.

Of each session, `read == written + present + differing`. Of each key there is a binding, whatever became of its transcript.

The files of one session as the lines of one: its archives, oldest first, then its live transcript.

An archive is the same conversation at an earlier time: before a reset it holds what is over, before their way of compacting
it holds what the live file has lost. So a session is the union of them. Transcripts are of the native family and are passed
on byte for byte; those of old versions are migrated in memory, with ids that are the same every time. Nothing is written.

The transcripts of a folder, and which file belongs to a key. What their names say is known to `agents.openclaw.names`.

Nothing is opened. A `sessionFile` counts only if it lies in one of the folders: an entry may not point anywhere else.

What can be told at a glance of a gateway's folder: which conversations it knows.

Only the store file is read, and nothing is written. A broken one is unknown here: whoever opens it is told what is wrong.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from sessile.agents.openclaw.binding_store import Changes, Entries, own_bindings
from sessile.agents.openclaw.document import BrokenStore, StoreDocument, parse_store
from sessile.agents.openclaw.entries import MARK, Adopted, SessionEntry, adopt, adopted_from, misfits
from sessile.agents.openclaw.keys import DEFAULT_AGENT, normalize_key
from sessile.agents.openclaw.names import Transcript, agent_of, read_name, title_of, topic_of, transcript_name
from sessile.agents.openclaw.paths import COLD, STORE_FILE, StateFolder, names_in
from sessile.core.codec import decode, encode
from sessile.core.ids import check_session_id, derived_entry_id
from sessile.core.lines import Finding, Item, Line, Scanner, read_head
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import iso_timestamp, parse_timestamp, without_surrogates
from sessile.errors import (
    Damaged,
    Invalid,
    InvalidId,
    NotASession,
    NotFound,
    SessionExists,
    StorageFailure,
    storage_failures,
)
from sessile.storage import atomic, shared_file
from sessile.storage.atomic import NameSet
from sessile.storage.base import Filesystem, News
from sessile.storage.journal import FileJournal
from sessile.storage.layout import JOURNAL, file_name, session_files
from sessile.storage.reader import JournalReader
from sessile.storage.session_bytes import RawFile

if TYPE_CHECKING:
    from sessile.store import Store


# --- sources

Json = dict[str, Any]


class SourceLine(NamedTuple):
    """One entry of a source."""

    entry_id: str | None
    raw: bytes


class Trouble(NamedTuple):
    """Bytes of a source that are no entry."""

    path: str
    finding: Finding


class Sources:
    """The files of one session, in the order in which they were written."""

    def __init__(self, fs: Filesystem, files: Sequence[Transcript]) -> None:
        self.files = sorted(files, key=lambda file: (file.reason is None, file.time or "", file.path))
        self.troubles: list[Trouble] = []
        self._fs = fs

    @property
    def live(self) -> Transcript | None:
        """The file that is not archived."""
        last = self.files[-1]
        return last if last.reason is None else None

    def header(self) -> Json | None:
        """The header of the live file, else of the latest archive that has one."""
        for file in reversed(self.files):
            with closing(self._items(file)) as items:
                first = next((item for item in items if isinstance(item, Line)), None)
            if first is not None and _is_header(first):
                header: Json = decode(first.raw)
                return header
        return None

    def first_timestamp(self) -> str:
        """When the session began as far as its files tell: for one that has lost its header."""
        for file in self.files:
            with closing(self._items(file)) as items:
                for item in items:
                    timestamp = decode(item.raw).get("timestamp") if isinstance(item, Line) else None
                    if isinstance(timestamp, str) and parse_timestamp(timestamp) is not None:
                        return timestamp
        return iso_timestamp(self.modified // 1_000_000)

    @property
    def modified(self) -> int:
        """When the last of the files was changed, in nanoseconds."""
        times = []
        for file in self.files:
            with storage_failures(file.path, "look at a transcript"):
                times.append(self._fs.lstat(file.path).st_mtime_ns)
        return max(times)

    def is_empty(self) -> bool:
        """Whether there is no entry in any of the files."""
        with closing(self.lines()) as lines:
            return next(lines, None) is None

    def lines(self) -> Generator[SourceLine, None, None]:
        """Every entry of every file; what is none goes to `troubles`, anew at each call."""
        self.troubles = []
        for file in self.files:
            with closing(self._items(file)) as items:
                yield from self._lines_of(file, items)

    def _lines_of(self, file: Transcript, items: Iterator[Item]) -> Iterator[SourceLine]:
        first: Line | None = None
        for item in items:
            if isinstance(item, Line):
                first = item
                break
            self._report(file, item)
        if first is None:
            return
        if _is_header(first):
            if version_of(decode(first.raw)) < VERSION:
                yield from self._migrated(file, first, items)
                return
        else:
            self._report(file, Finding("no_header", first.offset, 0, "the file does not begin with a header"))
            yield SourceLine(first.head.id, first.raw)
        for line in self._entries(file, items):
            yield SourceLine(line.head.id, line.raw)

    def _migrated(self, file: Transcript, header: Line, items: Iterator[Item]) -> Iterator[SourceLine]:
        lines = [header, *self._entries(file, items)]
        records = [decode(line.raw) for line in lines]
        migrate_session_entries(records)
        for line, record in zip(lines[1:], records[1:], strict=True):
            raw = line.raw if decode(line.raw) == record else encode(record)
            yield SourceLine(read_head(raw).id, raw)

    def _entries(self, file: Transcript, items: Iterator[Item]) -> Iterator[Line]:
        for item in items:
            if isinstance(item, Finding):
                self._report(file, item)
            elif item.head.type == "session":
                detail = "a second header in the middle of the file"
                self._report(file, Finding("second_header", item.offset, len(item.raw), detail))
            else:
                yield item

    def _report(self, file: Transcript, finding: Finding) -> None:
        self.troubles.append(Trouble(file.path, finding))

    def _items(self, file: Transcript) -> Generator[Item, None, None]:
        with RawFile(self._fs, file.path) as source:
            yield from scan_chunks(source.chunks())


def scan_chunks(chunks: Iterable[bytes]) -> Iterator[Item]:
    """The lines and findings of a file that comes in pieces."""
    scanner = Scanner()
    for chunk in chunks:
        yield from scanner.feed(chunk)
    yield from scanner.finish()


def _is_header(line: Line) -> bool:
    return line.head.type == "session" and line.head.id is not None


# --- accounts

BindingState = Literal["new", "updated", "present", "older", "ours", "deleted", "refused"]
"""What became of a key: written, replaced by what is newer, there already, older than what is there, changed or deleted here,
or not to be written at all."""


class Archive(msgspec.Struct, frozen=True):
    """A file that a session was put together from beside its transcript; why it was archived, or `None` for a second live one."""

    path: str
    reason: str | None


class ImportedSession(msgspec.Struct):
    """The account of one session. `keys` are those that name it; one that is live and has none is an orphan.

    `live` is its transcript, `archives` are the other files that it was put together from.
    """

    agent: str
    session_id: str
    path: str
    live: str | None
    archives: list[Archive]
    keys: list[str]
    topic: str | None = None
    read: int = 0
    written: int = 0
    present: int = 0
    differing: int = 0
    troubles: list[Trouble] = []

    @property
    def orphan(self) -> bool:
        """Whether no key leads to it any more."""
        return self.live is not None and not self.keys

    @property
    def unreadable(self) -> int:
        """How many stretches of the sources are no entries; the sources still hold them."""
        return sum(1 for trouble in self.troubles if trouble.finding.length)


class ImportedBinding(msgspec.Struct, frozen=True):
    """The account of one key. `session_id` is that of its session here, if that was imported.

    `mapped` are members that mean something else here, with the old value and the new; `kept` those that stay as they are;
    `odd` is what is not as documented about them.
    """

    key: str
    state: BindingState
    session_id: str | None
    mapped: dict[str, tuple[Any, Any]]
    kept: list[str]
    odd: list[str]


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was not imported, and why; `failed` if it would have been, but could not be read."""

    name: str
    reason: str
    failed: bool = False


class ImportedAgent(msgspec.Struct):
    """The account of one agent. `missing` are keys whose transcript is not there."""

    agent: str
    store: str | None = None  # where the store file is kept as it was
    bound: str | None = None  # where its keys are bound to sessions of ours
    sessions: list[ImportedSession] = []
    bindings: list[ImportedBinding] = []
    missing: list[str] = []
    left_out: list[LeftOut] = []


class ImportReport(msgspec.Struct):
    """The account of an import."""

    agents: list[ImportedAgent] = []
    left_out: list[LeftOut] = []

    @property
    def sessions(self) -> list[ImportedSession]:
        """The accounts of all sessions of all agents."""
        return [session for agent in self.agents for session in agent.sessions]

    @property
    def damaged(self) -> bool:
        """Whether something could not be read."""
        left = [*self.left_out, *(item for agent in self.agents for item in agent.left_out)]
        refused = any(binding.state == "refused" for agent in self.agents for binding in agent.bindings)
        return refused or any(item.failed for item in left) or any(session.unreadable for session in self.sessions)


# --- bindings

_WRITTEN: tuple[BindingState, ...] = ("new", "updated")


def import_bindings(
    store: Store, agent: str, path: str, entries: Entries, sessions: Mapping[str, str]
) -> list[ImportedBinding]:
    """Bring the entries of the store file at `path` into ours; `sessions` are the ids that they have here, by key."""
    if not entries:
        return []
    adopted: dict[str, Adopted] = {}
    refused: dict[str, str] = {}
    for key, entry in entries.items():
        try:
            adopted[key] = adopt(entry, sessions.get(key), path)
        except Invalid as error:
            refused[key] = error.message
    ledger = NameSet(store.fs, f"{StateFolder(store.layout.root).agent(agent)}/imported.json")
    known = set(ledger.names())
    own = own_bindings(store, agent)
    states = _states(own.read(), adopted, known)
    if not set(_WRITTEN).isdisjoint(states.values()):

        def change(current: Entries) -> Changes:
            states.update(_states(current, adopted, known))
            names = _names(current, adopted)
            return {names[key]: adopted[key].entry for key, state in states.items() if state in _WRITTEN}

        own.update_all(change, now=store.now())
    if any(_written(key) not in known for key in adopted):
        ledger.add(*map(_written, adopted))
    accounts = {key: _account(key, states[key], one, entries[key], sessions.get(key)) for key, one in adopted.items()}
    return [accounts.get(key) or ImportedBinding(key, "refused", None, {}, [], [refused[key]]) for key in entries]


def _states(current: Entries, adopted: Mapping[str, Adopted], known: set[str]) -> dict[str, BindingState]:
    names = _names(current, adopted)
    return {key: _state(current.get(names[key]), one.entry, _written(key) in known) for key, one in adopted.items()}


def _state(mine: SessionEntry | None, theirs: SessionEntry, known: bool) -> BindingState:
    if mine is None:
        return "deleted" if known else "new"
    mark = mine.get(MARK)
    if isinstance(mark, dict) and mark.get("digest") == theirs[MARK]["digest"]:
        return "present"
    origin = adopted_from(mine)
    if origin is None:
        return "ours"
    ahead = (theirs.updated_at or 0) - (mine.updated_at or 0)
    # Two homes may have the key. Of the same age, each is as good as the other, and they must not take turns.
    return "updated" if ahead > 0 or (ahead == 0 and origin == theirs[MARK]["store"]) else "older"


def _names(current: Entries, adopted: Mapping[str, Adopted]) -> dict[str, str]:
    """The names under which our store has keys, or would have them: it may spell one otherwise."""
    spelled = {normalize_key(name): name for name in current}
    return {key: key if key in current else spelled.get(normalize_key(key), key) for key in adopted}


def _written(key: str) -> str:
    """A key as the ledger has it: half an emoji that a channel cut off cannot be written as it is."""
    return key.encode("utf-8", "backslashreplace").decode()


def _account(
    key: str, state: BindingState, adopted: Adopted, entry: SessionEntry, session_id: str | None
) -> ImportedBinding:
    kept = [name for name in entry.members if name not in adopted.mapped]
    odd = [f"{misfit.name}: {misfit.detail}" for misfit in misfits(entry)]
    return ImportedBinding(key, state, session_id, adopted.mapped, kept, odd)


# --- transcripts

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Lookup(NamedTuple):
    """The transcript of a key: its path if there is one, and a `sessionFile` that was refused."""

    path: str | None
    refused: str | None = None


class Contents(NamedTuple):
    """What lies in a folder: transcripts and archives by name, and what is called like one but is no plain file."""

    transcripts: list[Transcript]
    others: list[str]


def contents_of(fs: Filesystem, folder: str) -> Contents:
    """The transcripts and archives of a folder."""
    found = Contents([], [])
    for name in names_in(fs, folder):
        file = read_name(f"{folder}/{name}")
        if file is not None and _is(atomic.is_plain, fs, file.path):
            found.transcripts.append(file)
        elif file is not None:
            found.others.append(file.path)
    return found


def find_transcript(fs: Filesystem, entry: SessionEntry, folders: Sequence[str], topic: str | None = None) -> Lookup:
    """The transcript of an entry: `sessionFile`, else by session id (and topic) in each of the folders."""
    refused = None
    named = entry.session_file
    if named:
        path = posixpath.normpath(posixpath.join(folders[0], named))
        if not any(_holds(fs, folder, path) for folder in folders):
            refused = named
        elif _is(atomic.is_plain, fs, path):
            return Lookup(path)
    session_id = entry.session_id
    if session_id is None or "/" in session_id or "\0" in session_id:
        return Lookup(None, refused)
    names = [transcript_name(session_id)]
    if topic is not None:
        names.insert(0, transcript_name(session_id, topic))
    paths = (f"{folder}/{name}" for name in names for folder in folders)
    return Lookup(next((path for path in paths if _is(atomic.is_plain, fs, path)), None), refused)


def _holds(fs: Filesystem, folder: str, path: str) -> bool:
    """Whether a path lies in a folder; one that goes through a link leads somewhere else."""
    if not path.startswith(f"{folder}/"):
        return False
    below = path[len(folder) + 1 :].split("/")[:-1]
    between = (posixpath.join(folder, *below[: depth + 1]) for depth in range(len(below)))
    return not any(_is(_no_folder, fs, inner) for inner in between)


def _no_folder(fs: Filesystem, path: str) -> bool:
    return not atomic.is_folder(fs, path)


def _is(kind: Callable[[Filesystem, str], bool], fs: Filesystem, path: str) -> bool:
    """Whether there is something of that name and kind. Stores hold any text: a name that no file can have is nobody's."""
    with storage_failures(path, "look at a file"):
        try:
            return kind(fs, path)
        except ValueError:  # a NUL, or half an emoji
            return False
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return False


# --- importing

SOURCE = "sessile.source"  # the member of a header that says where a session is from
FORMAT = "yoyoclaw"

_BATCH = 500  # lines with one sync
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def import_state(
    store: Store,
    state: StateFolder,
    *,
    agents: Sequence[str] | None = None,
    deleted: bool = False,
    fs: Filesystem | None = None,
) -> ImportReport:
    """Import the sessions of all agents, or of some; with `deleted` also those that their owner deleted."""
    source = fs if fs is not None else store.fs
    if posixpath.normpath(state.root) == store.layout.root:
        hint = "name the folder of another program, such as ~/.openclaw"
        raise Invalid("a store cannot be imported into itself", path=state.root, hint=hint)
    known = state.agents(source)
    report = ImportReport()
    for name in names_in(source, f"{state.root}/agents"):
        if name not in known:
            report.left_out.append(LeftOut(f"{state.root}/agents/{name}", "the name is no agent's"))
    run = _Import(store, state, source, deleted)
    for agent in known if agents is None else agents:
        report.agents.append(run.agent(agent))
    return report


class _Import:
    """One run."""

    def __init__(self, store: Store, state: StateFolder, fs: Filesystem, deleted: bool) -> None:
        self._store = store
        self._state = state
        self._fs = fs
        self._deleted = deleted
        self._ours = dict(_sessions_of(store))

    def agent(self, agent: str) -> ImportedAgent:
        report = ImportedAgent(agent)
        entries = self._entries(agent, report)
        groups = self._groups(agent, report)
        named = self._named(agent, entries, report)
        self._add_named(agent, groups, named, report)
        for files in groups.values():
            keys = [key for file in files for key in named.get(file.path, ())]
            sources = Sources(self._fs, files)
            try:
                if sources.is_empty():
                    report.left_out.append(LeftOut(files[-1].path, "holds no entries"))
                else:
                    report.sessions.append(self._session(agent, sources, keys, entries))
            except (StorageFailure, NotFound) as error:
                if error.path not in {file.path for file in files}:
                    raise  # it is our own storage that fails
                report.left_out.append(LeftOut(error.path, error.message, failed=True))
        self._bind(agent, entries, report)
        return report

    def _bind(self, agent: str, entries: dict[str, SessionEntry], report: ImportedAgent) -> None:
        sessions = {key: session.session_id for session in report.sessions for key in session.keys}
        report.bound = own_bindings(self._store, agent).path if entries else None
        try:
            report.bindings = import_bindings(self._store, agent, self._state.store(agent), entries, sessions)
        except Damaged as error:
            name = error.path or self._state.store(agent)
            report.left_out.append(LeftOut(name, f"no keys were imported: {error.message}", failed=True))

    # -- what there is

    def _entries(self, agent: str, report: ImportedAgent) -> dict[str, SessionEntry]:
        """The entries of an agent. A broken store is told; its transcripts are imported all the same."""
        path = self._state.store(agent)
        if atomic.exists(self._fs, self._state.database(agent)):
            reason = "a database, which is not read; export it with the program that owns it"
            report.left_out.append(LeftOut(self._state.database(agent), reason))
        try:
            found = shared_file.read(self._fs, path)
            copies = self._copies(path) if found is None else []
        except StorageFailure as error:
            report.left_out.append(LeftOut(path, error.message, failed=True))
            return {}
        if found is None:
            report.left_out += [LeftOut(copy, "a copy of the store, which itself is missing") for copy in copies]
            return {}
        report.store = self._keep_store(agent, path, found[0])
        try:
            document: StoreDocument = parse_store(found[0], path)
        except BrokenStore as error:
            report.left_out.append(LeftOut(path, error.message, failed=True))
            return {}
        if not self._state.shared:
            return document.entries
        return {key: entry for key, entry in document.entries.items() if (agent_of(key) or DEFAULT_AGENT) == agent}

    def _copies(self, path: str) -> list[str]:
        """What their rotation left of a store: it moves the file away before it writes the new one."""
        folder, name = posixpath.split(path)
        return [f"{folder}/{other}" for other in names_in(self._fs, folder) if other.startswith(f"{name}.bak.")]

    def _keep_store(self, agent: str, path: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()[:16]
        kept = f"{self._store.layout.originals}/{FORMAT}/{agent}/{posixpath.basename(path)}.{digest}"
        if not atomic.exists(self._store.fs, kept):
            atomic.make_folders(self._store.fs, posixpath.dirname(kept))
            atomic.replace(self._store.fs, kept, (data,))
        return kept

    def _groups(self, agent: str, report: ImportedAgent) -> dict[str, list[Transcript]]:
        """The files of each session, by the name of its live transcript."""
        groups: dict[str, list[Transcript]] = {}
        for folder in self._state.folders(agent):
            try:
                found = contents_of(self._fs, folder)
                if atomic.exists(self._fs, f"{folder}/{COLD}"):
                    report.left_out.append(LeftOut(f"{folder}/{COLD}", "cold storage, which is not read"))
            except StorageFailure as error:
                report.left_out.append(LeftOut(folder, error.message, failed=True))
                continue
            report.left_out += [LeftOut(path, "a link or a folder, not a file") for path in found.others]
            for file in found.transcripts:
                if file.packed:
                    report.left_out.append(LeftOut(file.path, "compressed; unpack it with zstd"))
                elif file.reason == "deleted" and not self._deleted:
                    report.left_out.append(LeftOut(file.path, "deleted by its owner"))
                else:
                    groups.setdefault(file.live, []).append(file)
        return groups

    def _named(self, agent: str, entries: dict[str, SessionEntry], report: ImportedAgent) -> dict[str, list[str]]:
        """The keys that name each transcript."""
        named: dict[str, list[str]] = {}
        for key, entry in entries.items():
            found = find_transcript(self._fs, entry, self._state.folders(agent), topic_of(key))
            if found.refused is not None:
                report.left_out.append(LeftOut(found.refused, f"outside the sessions folder, named by {key}"))
            if found.path is None:
                report.missing.append(key)
            else:
                named.setdefault(found.path, []).append(key)
        return named

    def _add_named(
        self, agent: str, groups: dict[str, list[Transcript]], named: dict[str, list[str]], report: ImportedAgent
    ) -> None:
        """Add the transcripts that only a `sessionFile` leads to: they lie deeper, or have names of their own."""
        told = {file.path for files in groups.values() for file in files} | {left.name for left in report.left_out}
        for path in named:
            if path in told:
                continue
            folder = next(folder for folder in self._state.folders(agent) if path.startswith(f"{folder}/"))
            file = read_name(path) or Transcript(path, "", posixpath.basename(path))
            groups.setdefault(path[len(folder) + 1 :], []).append(file._replace(live=path[len(folder) + 1 :]))

    # -- one session

    def _session(
        self, agent: str, sources: Sources, keys: list[str], entries: dict[str, SessionEntry]
    ) -> ImportedSession:
        session_id, path = self._target(agent, sources.files[-1])
        live = None if sources.live is None else sources.live.path
        archives = [Archive(file.path, file.reason) for file in sources.files if file.path != live]
        account = ImportedSession(agent, session_id, path or "", live, archives, keys, sources.files[-1].topic)
        if path is not None:
            self._add(path, sources, account)
        else:
            header = self._header(agent, session_id, sources, keys, entries)
            name = file_name(iso_timestamp(parse_timestamp(header["timestamp"]) or 0), session_id)
            account.path = f"{self._store.layout.folder(header['cwd'])}/{name}"
            try:
                self._begin(header, sources, account)
            except SessionExists:  # another import was faster
                self._add(account.path, sources, account)
            self._ours[session_id] = account.path
        account.troubles = list(sources.troubles)
        return account

    def _target(self, agent: str, file: Transcript) -> tuple[str, str | None]:
        """The id of a session in our store, and its file if it was imported before."""
        live = file.live
        name = file.session_id if file.topic is None else transcript_name(file.session_id, file.topic)
        stem = _UNSAFE.sub("-", name.removesuffix(JOURNAL)).strip("._-")
        short = derived_entry_id(FORMAT, agent, live)
        for candidate in (stem, f"{stem[:100].strip('._-')}-{short}".lstrip("-")):
            try:
                check_session_id(candidate)
            except InvalidId:
                continue
            path = self._ours.get(candidate)
            if path is None or _source_of(self._store.fs, path) == (agent, live):
                return candidate, path
        raise InvalidId(f"there are other sessions of the names that {live!r} could have", path=live)

    def _header(
        self, agent: str, session_id: str, sources: Sources, keys: list[str], entries: dict[str, SessionEntry]
    ) -> Json:
        found = sources.header() or {}
        timestamp = found.get("timestamp")
        header = {
            **found,
            "type": "session",
            "version": VERSION,
            "id": session_id,
            "timestamp": sources.first_timestamp() if parse_timestamp(timestamp) is None else timestamp,
            "cwd": found["cwd"] if _can_be_a_folder(found.get("cwd")) else self._state.root,
        }
        title = title_of(entries[keys[0]]) if keys else None
        if title is not None and "title" not in header:
            header["title"] = title
        header[SOURCE] = {"format": FORMAT, "agent": agent, "file": sources.files[-1].live}
        if keys:
            header[SOURCE]["key"] = keys[0]
        return header

    def _begin(self, header: Json, sources: Sources, account: ImportedSession) -> None:
        """Write a session that is not there yet, whole."""
        with closing(_new_lines(sources, account, None)) as new:
            self._store.begin(account.path, chain((encode(header),), (line.raw for line in new))).close()
        atomic.set_modified(self._store.fs, account.path, sources.modified)

    def _add(self, path: str, sources: Sources, account: ImportedSession) -> None:
        """Add the lines that are new to a session that was imported before."""
        power = self._store.durability == "power"
        index = self._store.layout.index(path)
        with (
            closing(FileJournal(self._store.fs, path, index_path=index, power=power)) as journal,
            closing(_new_lines(sources, account, _Present(self._store.fs, journal))) as new,
        ):
            while batch := list(islice(new, _BATCH)):
                _append(journal, batch)


class _Present:
    """What a session of ours holds. All versions of an entry are only looked for when the latest is not the one."""

    def __init__(self, fs: Filesystem, journal: FileJournal) -> None:
        self._fs = fs
        self._journal = journal
        self._digests: set[bytes] | None = None

    def holds(self, line: SourceLine) -> bool | None:
        """Whether a line is there; `None` if an entry of its id is, but not this one."""
        row = None if line.entry_id is None else self._journal.find(line.entry_id)
        if line.entry_id is not None and row is None:
            return False
        if row is not None and self._journal.read(row) == line.raw:
            return True
        if self._digests is None:
            with RawFile(self._fs, self._journal.path) as file:
                self._digests = {_digest(item.raw) for item in scan_chunks(file.chunks()) if isinstance(item, Line)}
        if _digest(line.raw) in self._digests:
            return True
        return None if row is not None else False


def _new_lines(
    sources: Sources, account: ImportedSession, present: _Present | None
) -> Generator[SourceLine, None, None]:
    """The lines of the sources that are not there yet; each is counted."""
    several = len(sources.files) > 1
    passed: set[bytes] = set()  # an archive and the live file share most of their lines
    with closing(sources.lines()) as lines:
        for line in lines:
            account.read += 1
            digest = _digest(line.raw) if several else b""
            there = True if digest in passed else present.holds(line) if present is not None else False
            if there is None:
                account.differing += 1
            elif there:
                account.present += 1
            else:
                account.written += 1
                if several:
                    passed.add(digest)
                yield line


def _append(journal: FileJournal, batch: Sequence[SourceLine]) -> None:
    def revise(news: News) -> Sequence[bytes]:
        taken = {row.id for row in news.rows()}  # another import was faster
        return [line.raw for line in batch if line.entry_id is None or line.entry_id not in taken]

    journal.commit(journal.append([line.raw for line in batch], revise).mark)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


def _sessions_of(store: Store) -> Iterator[tuple[str, str]]:
    """The sessions of our store, by the id in the name of each file."""
    for folder in names_in(store.fs, store.layout.sessions):
        for name in session_files(names_in(store.fs, f"{store.layout.sessions}/{folder}")):
            yield name.removesuffix(JOURNAL).partition("_")[2], f"{store.layout.sessions}/{folder}/{name}"


def _source_of(fs: Filesystem, path: str) -> tuple[str, str] | None:
    """The agent and the file that a session of ours was imported from."""
    try:
        with closing(JournalReader(fs, path)) as reader:
            source = decode(reader.header()).get(SOURCE)
    except NotASession:
        return None
    if not isinstance(source, dict) or source.get("format") != FORMAT:
        return None
    return str(source.get("agent")), str(source.get("file"))


def _can_be_a_folder(cwd: object) -> bool:
    return isinstance(cwd, str) and cwd != "" and "\0" not in cwd and without_surrogates(cwd) == cwd


# --- glance


def conversation_keys(store: Store, folder: str) -> list[str] | None:
    """The keys of the gateway whose sessions lie in a folder; `None` if that is no gateway's, or cannot be read."""
    try:
        found = shared_file.read(store.fs, f"{folder}/{STORE_FILE}")
        return None if found is None else list(parse_store(found[0]).entries)
    except (BrokenStore, StorageFailure):
        return None
