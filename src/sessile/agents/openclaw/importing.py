"""Import a state folder into a native store: every session and key of every agent, with a report of every line.

    <our root>/agents/<agent>/sessions/sessions.json    the bindings of an agent, in the same format: key → entry
    <our root>/agents/<agent>/kept/                     its last good copy
    <our root>/agents/<agent>/imported.json             every key that was ever imported

In a database the bindings are a table instead of the first two.

Sessions:

- The source is only read. A session is published completely or not at all; the next run adds its new lines, so a run
  that was killed is simply repeated. An existing entry is never changed: if the source differs by now, it is counted as
  differing.
- The header of an imported session names its source (`sessile.source`: agent and file), by which it is found again.
- For each session, `read == written + present + differing`. The store file is saved unchanged among the store's
  originals.
- A session is the union of its archives, oldest first, and its live transcript: before a reset or a compaction, an
  archive holds what the live file has lost. Lines are copied byte for byte; old versions are migrated in memory, with
  reproducible ids.
- A `sessionFile` counts only if it is in one of the agent's folders.

Keys:

- Keys are kept as they are written. A binding that was changed here since its import stays, and one that was deleted
  here stays deleted. One that is unchanged is replaced by a newer one. A run without changes writes nothing.
- An entry that cannot be written as JSON, such as one with a too large number, is refused and reported.
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
from sessile.storage.layout import JOURNAL, file_name, session_files, stem_of
from sessile.storage.reader import JournalReader
from sessile.storage.session_bytes import RawFile

if TYPE_CHECKING:
    from sessile.store import Store


Json = dict[str, Any]

SOURCE = "sessile.source"  # the member of a header that names the source of a session
FORMAT = "yoyoclaw"

_BATCH = 500  # lines per sync
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


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
        hint = "pass the folder of another program, such as ~/.openclaw"
        raise Invalid("cannot import a store into itself", path=state.root, hint=hint)
    known = state.agents(source)
    report = ImportReport()
    for name in names_in(source, f"{state.root}/agents"):
        if name not in known:
            report.left_out.append(LeftOut(f"{state.root}/agents/{name}", "not a valid agent name"))
    run = _Import(store, state, source, deleted)
    for agent in known if agents is None else agents:
        report.agents.append(run.agent(agent))
    return report


def conversation_keys(store: Store, folder: str) -> list[str] | None:
    """Return the keys of the gateway whose sessions are in a folder; `None` if there is no readable store."""
    try:
        found = shared_file.read(store.fs, f"{folder}/{STORE_FILE}")
        return None if found is None else list(parse_store(found[0]).entries)
    except (BrokenStore, StorageFailure):
        return None


class _Import:
    """One run of an import."""

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
                    raise  # our own storage has failed
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

    # -- reading the source

    def _entries(self, agent: str, report: ImportedAgent) -> dict[str, SessionEntry]:
        """Return the entries of an agent. A broken store is reported, and its transcripts are imported anyway."""
        path = self._state.store(agent)
        if atomic.exists(self._fs, self._state.database(agent)):
            reason = "databases are not supported; export it with the program that owns it"
            report.left_out.append(LeftOut(self._state.database(agent), reason))
        try:
            found = shared_file.read(self._fs, path)
            copies = self._copies(path) if found is None else []
        except StorageFailure as error:
            report.left_out.append(LeftOut(path, error.message, failed=True))
            return {}
        if found is None:
            report.left_out += [LeftOut(copy, "a copy of the store file, which is missing") for copy in copies]
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
        """Return the copies that the owner's rotation left: it moves the file away before it writes the new one."""
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
        """Return the files of each session, by the name of its live transcript."""
        groups: dict[str, list[Transcript]] = {}
        for folder in self._state.folders(agent):
            try:
                found = contents_of(self._fs, folder)
                if atomic.exists(self._fs, f"{folder}/{COLD}"):
                    report.left_out.append(LeftOut(f"{folder}/{COLD}", "cold storage is not supported"))
            except StorageFailure as error:
                report.left_out.append(LeftOut(folder, error.message, failed=True))
                continue
            report.left_out += [LeftOut(path, "not a regular file") for path in found.others]
            for file in found.transcripts:
                if file.packed:
                    report.left_out.append(LeftOut(file.path, "compressed; unpack it with zstd"))
                elif file.reason == "deleted" and not self._deleted:
                    report.left_out.append(LeftOut(file.path, "deleted by its owner"))
                else:
                    groups.setdefault(file.live, []).append(file)
        return groups

    def _named(self, agent: str, entries: dict[str, SessionEntry], report: ImportedAgent) -> dict[str, list[str]]:
        """Return the keys that lead to each transcript."""
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
        """Add the transcripts that only a `sessionFile` leads to: in subfolders, or with other names."""
        known = {file.path for files in groups.values() for file in files} | {left.name for left in report.left_out}
        for path in named:
            if path in known:
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
            except SessionExists:  # created by another import
                self._add(account.path, sources, account)
            self._ours[session_id] = account.path
        account.troubles = list(sources.troubles)
        return account

    def _target(self, agent: str, file: Transcript) -> tuple[str, str | None]:
        """Return the id of a session in our store, and its file if it was imported before."""
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
        raise InvalidId(f"all possible ids of {live!r} are used by other sessions", path=live)

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
            "cwd": found["cwd"] if _is_valid_cwd(found.get("cwd")) else self._state.root,
        }
        title = title_of(entries[keys[0]]) if keys else None
        if title is not None and "title" not in header:
            header["title"] = title
        header[SOURCE] = {"format": FORMAT, "agent": agent, "file": sources.files[-1].live}
        if keys:
            header[SOURCE]["key"] = keys[0]
        return header

    def _begin(self, header: Json, sources: Sources, account: ImportedSession) -> None:
        """Write a new session completely."""
        with closing(_new_lines(sources, account, None)) as new:
            self._store.begin(account.path, chain((encode(header),), (line.raw for line in new))).close()
        atomic.set_modified(self._store.fs, account.path, sources.modified)

    def _add(self, path: str, sources: Sources, account: ImportedSession) -> None:
        """Append the new lines to a session that was imported before."""
        power = self._store.durability == "power"
        index = self._store.layout.index(path)
        with (
            closing(FileJournal(self._store.fs, path, index_path=index, power=power)) as journal,
            closing(_new_lines(sources, account, _Present(self._store.fs, journal))) as new,
        ):
            while batch := list(islice(new, _BATCH)):
                _append(journal, batch)


class _Present:
    """The entries of one of our sessions. Older versions of an entry are searched only if the latest differs."""

    def __init__(self, fs: Filesystem, journal: FileJournal) -> None:
        self._fs = fs
        self._journal = journal
        self._digests: set[bytes] | None = None

    def holds(self, line: SourceLine) -> bool | None:
        """Return whether a line is there; `None` if there is another entry with its id."""
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
    """Yield the lines of the sources that are not there yet, and count all of them."""
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
        present = {row.id for row in news.rows()}  # appended by another import
        return [line.raw for line in batch if line.entry_id is None or line.entry_id not in present]

    journal.commit(journal.append([line.raw for line in batch], revise).mark)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


def _sessions_of(store: Store) -> Iterator[tuple[str, str]]:
    """Yield id and path of the sessions in our store; the id is that of the file name."""
    for folder in names_in(store.fs, store.layout.sessions):
        for name in session_files(names_in(store.fs, f"{store.layout.sessions}/{folder}")):
            yield stem_of(name).partition("_")[2], f"{store.layout.sessions}/{folder}/{name}"


def _source_of(fs: Filesystem, path: str) -> tuple[str, str] | None:
    """Return the agent and file that a session was imported from."""
    try:
        with closing(JournalReader(fs, path)) as reader:
            source = decode(reader.header()).get(SOURCE)
    except NotASession:
        return None
    if not isinstance(source, dict) or source.get("format") != FORMAT:
        return None
    return str(source.get("agent")), str(source.get("file"))


def _is_valid_cwd(cwd: object) -> bool:
    return isinstance(cwd, str) and cwd != "" and "\0" not in cwd and without_surrogates(cwd) == cwd


# -- the report

BindingState = Literal["new", "updated", "present", "older", "ours", "deleted", "refused"]
"""What happened to a key: written, replaced by a newer entry, already there, older than ours, changed here, deleted here,
or refused."""


class Archive(msgspec.Struct, frozen=True):
    """Another file of a session besides its transcript, and why it was archived; `None` for a second live file."""

    path: str
    reason: str | None


class ImportedSession(msgspec.Struct):
    """The import of one session. `keys` lead to it; a live session without any is an orphan.

    `live` is its transcript, `archives` are its other files.
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
        """The number of byte ranges in the sources that are not entries; the sources still hold them."""
        return sum(1 for trouble in self.troubles if trouble.finding.length)


class ImportedBinding(msgspec.Struct, frozen=True):
    """The import of one key. `session_id` is that of its session here, if that was imported.

    `mapped` are members with another meaning here, with old and new value; `kept` are unchanged members; `odd` are
    deviations from the documentation.
    """

    key: str
    state: BindingState
    session_id: str | None
    mapped: dict[str, tuple[Any, Any]]
    kept: list[str]
    odd: list[str]


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was not imported, and why; `failed` if it could not be read."""

    name: str
    reason: str
    failed: bool = False


class ImportedAgent(msgspec.Struct):
    """The import of one agent. `missing` are keys without a transcript."""

    agent: str
    store: str | None = None  # where the store file is saved unchanged
    bound: str | None = None  # where its keys are bound to our sessions
    sessions: list[ImportedSession] = []
    bindings: list[ImportedBinding] = []
    missing: list[str] = []
    left_out: list[LeftOut] = []


class ImportReport(msgspec.Struct):
    """The result of an import."""

    agents: list[ImportedAgent] = []
    left_out: list[LeftOut] = []

    @property
    def sessions(self) -> list[ImportedSession]:
        """The imports of all sessions of all agents."""
        return [session for agent in self.agents for session in agent.sessions]

    @property
    def damaged(self) -> bool:
        """Whether something could not be read."""
        left = [*self.left_out, *(item for agent in self.agents for item in agent.left_out)]
        refused = any(binding.state == "refused" for agent in self.agents for binding in agent.bindings)
        return refused or any(item.failed for item in left) or any(session.unreadable for session in self.sessions)


# -- the files of a session


class SourceLine(NamedTuple):
    """One entry of a source."""

    entry_id: str | None
    raw: bytes


class Trouble(NamedTuple):
    """Bytes of a source that are not an entry."""

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
        """Return the header of the live file, else of the latest archive that has one."""
        for file in reversed(self.files):
            with closing(self._items(file)) as items:
                first = next((item for item in items if isinstance(item, Line)), None)
            if first is not None and _is_header(first):
                header: Json = decode(first.raw)
                return header
        return None

    def first_timestamp(self) -> str:
        """Return the first timestamp in the files, for a session that has lost its header."""
        for file in self.files:
            with closing(self._items(file)) as items:
                for item in items:
                    timestamp = decode(item.raw).get("timestamp") if isinstance(item, Line) else None
                    if isinstance(timestamp, str) and parse_timestamp(timestamp) is not None:
                        return timestamp
        return iso_timestamp(self.modified // 1_000_000)

    @property
    def modified(self) -> int:
        """The last modification time of the files, in nanoseconds."""
        times = []
        for file in self.files:
            with storage_failures(file.path, "read the status of a transcript"):
                times.append(self._fs.lstat(file.path).st_mtime_ns)
        return max(times)

    def is_empty(self) -> bool:
        """Return whether none of the files holds an entry."""
        with closing(self.lines()) as lines:
            return next(lines, None) is None

    def lines(self) -> Generator[SourceLine, None, None]:
        """Yield every entry of every file; other bytes are added to `troubles`, anew in each call."""
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
            self._report(file, Finding("no_header", first.offset, 0, "the file does not start with a header"))
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
    """Yield the lines and findings of a file in chunks."""
    scanner = Scanner()
    for chunk in chunks:
        yield from scanner.feed(chunk)
    yield from scanner.finish()


def _is_header(line: Line) -> bool:
    return line.head.type == "session" and line.head.id is not None


# -- finding transcripts


class Lookup(NamedTuple):
    """The transcript of a key: its path if there is one, and a `sessionFile` that was refused."""

    path: str | None
    refused: str | None = None


class Contents(NamedTuple):
    """The transcripts and archives in a folder, and other things with such a name."""

    transcripts: list[Transcript]
    others: list[str]


def contents_of(fs: Filesystem, folder: str) -> Contents:
    """Return the transcripts and archives of a folder."""
    found = Contents([], [])
    for name in names_in(fs, folder):
        file = read_name(f"{folder}/{name}")
        if file is not None and _is(atomic.is_plain, fs, file.path):
            found.transcripts.append(file)
        elif file is not None:
            found.others.append(file.path)
    return found


def find_transcript(fs: Filesystem, entry: SessionEntry, folders: Sequence[str], topic: str | None = None) -> Lookup:
    """Return the transcript of an entry: `sessionFile`, else by session id (and topic) in each of the folders."""
    refused = None
    session_file = entry.session_file
    if session_file:
        path = posixpath.normpath(posixpath.join(folders[0], session_file))
        if not any(_contains(fs, folder, path) for folder in folders):
            refused = session_file
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


def _contains(fs: Filesystem, folder: str, path: str) -> bool:
    """Return whether a path is in a folder and does not go through a link."""
    if not path.startswith(f"{folder}/"):
        return False
    below = path[len(folder) + 1 :].split("/")[:-1]
    between = (posixpath.join(folder, *below[: depth + 1]) for depth in range(len(below)))
    return not any(_is(_is_not_folder, fs, inner) for inner in between)


def _is_not_folder(fs: Filesystem, path: str) -> bool:
    return not atomic.is_folder(fs, path)


def _is(kind: Callable[[Filesystem, str], bool], fs: Filesystem, path: str) -> bool:
    """Return whether a path exists and is of this kind; false for a text that cannot be a path."""
    with storage_failures(path, "read the status of a file"):
        try:
            return kind(fs, path)
        except ValueError:  # a NUL or a lone surrogate
            return False
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return False


# -- keys

_WRITTEN: tuple[BindingState, ...] = ("new", "updated")


def import_bindings(
    store: Store, agent: str, path: str, entries: Entries, sessions: Mapping[str, str]
) -> list[ImportedBinding]:
    """Import the entries of the store file at `path`; `sessions` are the ids of their sessions here, by key."""
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
    if any(_ledger_key(key) not in known for key in adopted):
        ledger.add(*map(_ledger_key, adopted))
    accounts = {key: _binding(key, states[key], one, entries[key], sessions.get(key)) for key, one in adopted.items()}
    return [accounts.get(key) or ImportedBinding(key, "refused", None, {}, [], [refused[key]]) for key in entries]


def _states(current: Entries, adopted: Mapping[str, Adopted], known: set[str]) -> dict[str, BindingState]:
    names = _names(current, adopted)
    return {key: _state(current.get(names[key]), one.entry, _ledger_key(key) in known) for key, one in adopted.items()}


def _state(ours: SessionEntry | None, theirs: SessionEntry, known: bool) -> BindingState:
    if ours is None:
        return "deleted" if known else "new"
    mark = ours.get(MARK)
    if isinstance(mark, dict) and mark.get("digest") == theirs[MARK]["digest"]:
        return "present"
    origin = adopted_from(ours)
    if origin is None:
        return "ours"
    ahead = (theirs.updated_at or 0) - (ours.updated_at or 0)
    # Two folders may have the key. If both entries are of the same age, they must not replace each other in turns.
    return "updated" if ahead > 0 or (ahead == 0 and origin == theirs[MARK]["store"]) else "older"


def _names(current: Entries, adopted: Mapping[str, Adopted]) -> dict[str, str]:
    """Return the keys under which our store has these keys, or would have them: the spelling may differ."""
    spelled = {normalize_key(name): name for name in current}
    return {key: key if key in current else spelled.get(normalize_key(key), key) for key in adopted}


def _ledger_key(key: str) -> str:
    """Return a key as the ledger stores it: a lone surrogate cannot be written as it is."""
    return key.encode("utf-8", "backslashreplace").decode()


def _binding(
    key: str, state: BindingState, adopted: Adopted, entry: SessionEntry, session_id: str | None
) -> ImportedBinding:
    kept = [name for name in entry.members if name not in adopted.mapped]
    odd = [f"{misfit.name}: {misfit.detail}" for misfit in misfits(entry)]
    return ImportedBinding(key, state, session_id, adopted.mapped, kept, odd)
