"""A state folder brought into a native store: every session of every agent, and an account of every line.

Rules: the source is only read. A session is published whole or not at all; on the next run its new lines are added and
nothing else changes, so a run that was killed is simply run again. An entry that is there already is left alone, also if the
source has changed it since: then it is counted as differing. The header of a session of ours says where it is from
(`sessile.source`: agent and file), and by that it is found again, whatever its id.

Of each session, `read == written + present + differing`. Keys, settings and counters become bindings of ours: see `bindings`.
The store file is kept as it was among the store's originals.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING

from sessile.core.codec import decode, encode
from sessile.core.ids import check_session_id, derived_entry_id
from sessile.core.lines import Line
from sessile.core.migrate import VERSION
from sessile.core.text import iso_timestamp, parse_timestamp, without_surrogates
from sessile.errors import (
    Damaged,
    Invalid,
    InvalidId,
    NotASession,
    NotFound,
    SessionExists,
    StorageFailure,
)
from sessile.formats.yoyoclaw.document import BrokenStore, StoreDocument, parse_store
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.names import Transcript, read_name, transcript_name
from sessile.formats.yoyoclaw.naming import agent_of, title_of, topic_of
from sessile.formats.yoyoclaw.normal import DEFAULT_AGENT
from sessile.storage import atomic, shared_file
from sessile.storage.base import Filesystem, News
from sessile.storage.journal import FileJournal
from sessile.storage.layout import JOURNAL, file_name, session_files
from sessile.storage.raw_file import RawFile
from sessile.storage.reader import JournalReader
from sessile.stores.yoyoclaw.accounts import Archive, ImportedAgent, ImportedSession, ImportReport, LeftOut
from sessile.stores.yoyoclaw.bindings import import_bindings, own_bindings
from sessile.stores.yoyoclaw.paths import COLD, StateFolder, names_in
from sessile.stores.yoyoclaw.sources import Json, SourceLine, Sources, scan_chunks
from sessile.stores.yoyoclaw.transcripts import contents_of, find_transcript

if TYPE_CHECKING:
    from sessile.store import Store

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
