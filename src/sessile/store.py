"""A store: one root with sessions, blobs and trash; a folder, the same in memory, or the same in a database.

The library never looks for a home by itself: the root is an argument. Reading never writes below the root, except to the
cache; deleting moves to the trash.

From a file to a session: blank ones are begun, old versions brought up to date, other agents' recognised.

Opening for reading changes nothing: a file of an older version is brought up to date in memory. Whatever opening for writing
changes is kept as it was, and the session's notices say where.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Self

from sessile import fork
from sessile.agents.base import Agent, Place
from sessile.agents.registry import AGENTS
from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload
from sessile.core.ids import check_session_id, new_session_id
from sessile.core.lines import Finding, Line
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import clean_name, iso_timestamp
from sessile.discovery import SessionInfo, describe, find_session_files
from sessile.errors import (
    Invalid,
    InvalidId,
    NotASession,
    SessileError,
    SessionExists,
    SessionNotFound,
    StorageFailure,
    UnsafePath,
    UnsupportedVersion,
    storage_failure,
    storage_failures,
)
from sessile.session import Session
from sessile.storage import atomic, drafts, log
from sessile.storage.atomic import NameSet
from sessile.storage.backing import backing_of, blobs_at
from sessile.storage.base import Filesystem, OwnJournal
from sessile.storage.layout import JOURNAL, artifacts_of, can_be_named, encode_cwd, file_name, stem_of
from sessile.storage.trash import Deletion, Trash

# --- opening

_HINT = "no agent writes files that start like this; the file was not changed; run sessile check to see what is in it"


def open_for_writing(store: Store, path: str, cwd: str | None, *, in_place: bool) -> Session:
    """The session in a file, begun for `cwd` if the file is missing or empty."""
    notices = []
    if _is_blank(store, path) and not drafts.recover_one(store.fs, store.journals, path):
        if in_place:
            raise SessionNotFound("there is no session to write into", path=path)
        store.journals.obtain(path, _first_line(store, path, cwd))
    agent = _foreign(store, path)
    if agent is not None:
        # Most sessions are native, and their programs need none of this.
        from sessile.in_place import open_in_place

        return open_in_place(store, path, agent, in_place=in_place)
    try:
        journal = store.journals.open(path)
    except NotASession as error:
        if not store.layout.owns(path):
            raise NotASession(path=path, hint=_HINT) from error
        notices.append(_start_over(store, path, cwd))
        journal = store.journals.open(path)
    notices += _migrate(store, journal)
    session = Session(store, journal, journal, ours=store.layout.owns(path))
    session.notices += notices
    store.leave_breadcrumb(session)
    return session


def open_for_reading(store: Store, path: str) -> Session:
    """The session in a file, as it is."""
    draft = drafts.draft_path(path)
    if not atomic.exists(store.fs, path) and atomic.exists(store.fs, draft):
        path = draft
    if (agent := _foreign(store, path)) is not None:
        # Most sessions are native, and their programs need none of this.
        from sessile.agents.reader import ForeignReader

        index_path = store.layout.index(drafts.published_path(path))
        with storage_failures(path, "open the session"):
            return Session(store, ForeignReader(store.fs, path, agent, index_path=index_path), ours=False)
    try:
        reader = store.journals.read(path)
    except NotASession as error:
        raise NotASession(path=path, hint=_HINT) from error
    findings: Sequence[Finding] = ()
    if version_of(decode(reader.header())) < VERSION:
        from sessile.storage.memory import MemoryFilesystem
        from sessile.storage.reader import JournalReader

        items = list(reader.items())
        reader.close()
        findings = [item for item in items if isinstance(item, Finding)]
        copy = MemoryFilesystem()
        atomic.make_folders(copy, posixpath.dirname(path))
        atomic.write_new(copy, path, (line + b"\n" for line in _migrated(items)))
        reader = JournalReader(copy, path)
    return Session(store, reader, ours=store.layout.owns(path), findings=findings)


def _foreign(store: Store, path: str) -> Agent | None:
    """Return the agent whose file this is; `None` for a native file, or one that no agent recognises.

    Files below our own sessions folder are native.
    """
    if store.layout.owns(path):
        return None
    # Programs that only use sessions of their own need none of this.
    from sessile.agents.reader import agent_of

    return agent_of(store.fs, path)


def _is_blank(store: Store, path: str) -> bool:
    try:
        if atomic.is_plain(store.fs, path):
            return store.fs.lstat(path).st_size == 0
    except FileNotFoundError:
        return True
    except OSError as error:
        raise storage_failure(error, path, "open the session") from error
    raise UnsafePath(path=path, hint="symbolic links are not followed when writing")


def _first_line(store: Store, path: str, cwd: str | None) -> bytes:
    """The header of a new session in a given file."""
    now = store.now()
    folder = cwd if cwd is not None else posixpath.dirname(path)
    return encode(make.header(new_session_id(now, store.random), iso_timestamp(now), folder))


def _start_over(store: Store, path: str, cwd: str | None) -> str:
    """A new session in place of a file of ours that holds none; says where the old bytes are."""
    aside = f"{path}.invalid-{store.now()}"
    with storage_failures(path, "keep what was in the file"):
        atomic.keep(store.fs, path, aside)
    atomic.replace(store.fs, path, (_first_line(store, path, cwd) + b"\n",))
    return f"the file was no session; what it held is now in {aside}"


def _migrate(store: Store, journal: OwnJournal) -> Sequence[str]:
    """Bring the file of an older version up to date; says where the file is as it was."""
    version = version_of(decode(journal.header()))
    if version == VERSION:
        return ()
    try:
        if version > VERSION:
            hint = f"this release writes version {VERSION}; open it for reading"
            raise UnsupportedVersion(f"the session has version {version}", path=journal.path, hint=hint)
        kept = store.original_path(journal.path)
        lines = iter(_migrated(journal.items()))
        # A line that came meanwhile stays as it is; the rewrite notices that the file has grown, and gives up.
        journal.replace(lambda raw: next(lines, None), keep=kept)
    except BaseException:
        journal.close()
        raise
    return (f"the file had version {version} and now has {VERSION}; as it was, it is in {kept}",)


def _migrated(items: Iterable[Any]) -> list[bytes]:
    """Every line brought to the current version, in order; one that needs no change stays as it is."""
    lines = [item.raw for item in items if isinstance(item, Line)]
    records = [decode(line) for line in lines]
    migrate_session_entries(records)
    return [line if decode(line) == record else encode(record) for line, record in zip(lines, records, strict=True)]


# --- store

Durability = Literal["power", "process"]


class Store:
    """All sessions below one root: a folder, or the address of a database (`postgresql://…`).

    `durability` is what a receipt promises: "power" survives a power cut, "process" the death of the process. `cache` is
    the folder for indexes. `blobs` is the address of an object store for large content (`s3://bucket/prefix`), which else lies in
    the root. `terminal` names the terminal whose last session `continue_recent` prefers.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str] | None = None,
        blobs: str | None = None,
        durability: Durability = "power",
        terminal: str | None = None,
        patience: float = 10.0,
        fs: Filesystem | None = None,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if durability not in ("power", "process"):
            raise Invalid(f"{durability!r} is no durability", hint='it is "power" or "process"')
        backing = backing_of(root, cache, fs, power=durability == "power", patience=patience, formats=AGENTS)
        self.name, self.fs, self.layout, self.journals, self._close, self.catalog, self.database = backing
        self.blobs = blobs_at(blobs, self.layout, self.fs)
        self.pins = NameSet(self.fs, f"{self.layout.root}/pins.json")  # ids of sessions that nothing cleans up
        self.durability = durability
        self.random = random
        self._trash = Trash(self.fs, self.layout.trash)
        self._deleted = 0  # when, in milliseconds since 1970
        self._terminal = terminal
        self.patience = patience
        self._clock = clock

    @classmethod
    def in_memory(cls) -> Store:
        """A store without files, gone with the process."""
        return cls("/memory", fs=_memory(), durability="process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections of a database; a folder needs none."""
        self._close()

    def now(self) -> int:
        """Milliseconds since 1970."""
        return int(self._clock() * 1000)

    # -- opening

    def create(
        self,
        cwd: str,
        *,
        session_id: str | None = None,
        parent_session: str | None = None,
        title: str | None = None,
        publish: bool = False,
    ) -> Session:
        """A new session. No listing shows it before an assistant has answered, unless `publish` is set."""
        now = self.now()
        if session_id is None:
            session_id = new_session_id(now, self.random)
        elif (taken := self.find(session_id)) is not None:
            raise SessionExists(f"there is already a session {session_id}", path=taken)
        name = clean_name(title) if title else None
        header = make.header(session_id, iso_timestamp(now), cwd, title=name or None, parentSession=parent_session)
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, self.journals, folder)
        path = f"{folder}/{file_name(header['timestamp'], session_id)}"
        if not publish:
            path = drafts.draft_path(path)
        session = self.begin(path, [encode(header)], draft=not publish)
        self.leave_breadcrumb(session)
        return session

    def begin(self, path: str, lines: Iterable[bytes], *, draft: bool = False) -> Session:
        """A new session file with these lines, header first."""
        self.journals.create(path, (line + b"\n" for line in lines))
        journal = self.journals.open(path)
        if draft:
            journal.hold()
        return Session(self, journal, journal, draft=draft)

    def obtain(self, path: str, header: Payload) -> Session:
        """The session in a file of this store; if there is none, a new one with that header, made by one of all who ask."""
        self.journals.obtain(path, encode(header))
        return self.open(path)

    def open(
        self,
        ref: str | os.PathLike[str],
        *,
        readonly: bool = False,
        cwd: str | None = None,
        in_place: bool = False,
    ) -> Session:
        """The session with that id or in that file.

        Opening for reading changes nothing. Opening for writing brings an old version up to date; a missing or empty file
        becomes a new session for `cwd`. With `in_place`, one of another agent is written where it lies, as far as its
        format goes.
        """
        path = self._resolve(os.fspath(ref))
        if readonly:
            return open_for_reading(self, path)
        return open_for_writing(self, path, cwd, in_place=in_place)

    def _resolve(self, ref: str) -> str:
        if not can_be_named(ref):
            raise InvalidId(f"{ref[:80]!r} can name no file")
        if "/" in ref or ref.endswith(JOURNAL):
            return os.path.abspath(ref)
        path = self.find(ref)
        if path is None:
            raise SessionNotFound(
                f"there is no session {ref[:80]!r}", path=self.layout.sessions, hint="list the sessions"
            )
        return path

    def continue_recent(self, cwd: str) -> Session:
        """The session to go on with in a project: the terminal's last one, else the newest, else a new one."""
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, self.journals, folder)
        path = self._read_breadcrumb(cwd) or self._newest(cwd)
        return self.create(cwd) if path is None else self.open(path)

    def _newest(self, cwd: str) -> str | None:
        """The session of a project that was changed last. A failing disk raises: nobody wants a new session then."""
        infos = (describe(self.fs, path) for path in find_session_files(self.fs, self.layout.folder(cwd)))
        ours = (info for info in infos if info is not None and _is_of(info, cwd))
        newest = max(ours, key=lambda info: info.modified, default=None)
        return None if newest is None else newest.path

    # -- finding

    def find(self, session_id: str) -> str | None:
        """The file of a session of ours."""
        check_session_id(session_id)
        ending = f"_{session_id}{JOURNAL}"
        named = (path for path in self._files() if path.endswith(ending))
        return next((path for path in named if (i := describe(self.fs, path)) and i.id == session_id), None)

    def _files(self) -> Iterator[str]:
        with storage_failures(self.layout.sessions, "list the sessions"):
            try:
                folders = self.fs.names(self.layout.sessions)
            except (FileNotFoundError, NotADirectoryError):
                return
        for folder in folders:
            yield from find_session_files(self.fs, f"{self.layout.sessions}/{folder}")

    def list(self, cwd: str, session_dir: str | None = None, *, full: bool = False) -> Sequence[SessionInfo]:
        """The sessions of a project, newest first. With `full`, whole files are read for counts and texts."""
        if session_dir is not None:
            return self._described(find_session_files(self.fs, os.path.abspath(session_dir)), full)
        found = self._described(find_session_files(self.fs, self.layout.folder(cwd)), full)
        return [info for info in found if _is_of(info, cwd)]

    def list_all(self, *, full: bool = False) -> Sequence[SessionInfo]:
        """The sessions of all projects, newest first."""
        return self._described(self._files(), full)

    def _described(self, paths: Iterable[str], full: bool) -> Sequence[SessionInfo]:
        """What is known of each session; one that the disk does not give is left out with a warning, not the others."""
        found = []
        for path in paths:
            try:
                info = describe(self.fs, path, full=full)
            except StorageFailure as error:
                log.warning("%s is missing from the list: %s", path, error.message)
                continue
            if info is not None:
                found.append(info)
        return sorted(found, key=lambda info: info.modified, reverse=True)

    def fork_from(self, path: str | os.PathLike[str], cwd: str) -> Session:
        """A copy of a session, from any project or store, as a session of this project."""
        with self.open(os.path.abspath(path), readonly=True) as source:
            return fork.fork(self, source, cwd)

    # -- deleting

    def delete(self, ref: str | os.PathLike[str], *, below: str | None = None) -> Deletion:
        """Move a session and its artifacts to the trash; `undo` brings them back.

        One of another agent goes only if `below` names that agent's folder, which `undo` has to be told again.
        """
        path = self._resolve(os.fspath(ref))
        if not (self.layout.owns(path) if below is None else path.startswith(f"{below}/")):
            raise Invalid("only sessions of this store can be deleted", path=path, hint="use the agent that owns it")
        if not atomic.exists(self.fs, path):
            raise SessionNotFound(path=path)
        paths = [path, *(p for p in (artifacts_of(path),) if atomic.exists(self.fs, p))]
        if below is not None:
            listed = next(filter(None, (agent.list_at(self.place, below) for agent in AGENTS)), None)
            if listed is not None:
                return self._trash.get(listed.delete(path))
        self._deleted = max(self.now(), self._deleted + 1)  # the last one is known, also of many in one millisecond
        return self._trash.move(paths, f"{self._deleted}-{self.random(3).hex()}-{stem_of(path)}", below)

    def undo(self, token: str, *, roots: Sequence[str] = ()) -> Deletion:
        """Take a deletion back; `roots` are the folders of other agents that it may put something back into."""
        if (deletion := self._trash.get(token)).session_id is not None:
            return self._undo_listed(deletion, roots)
        return self._trash.undo(token, roots)

    def _undo_listed(self, deletion: Deletion, roots: Sequence[str]) -> Deletion:
        """Put a session back, and its row into its agent's list."""
        folder = f"{deletion.root}/sessions"
        if folder not in roots:
            hint = f"it was deleted from {folder}; pass that folder in roots"
            raise UnsafePath("the trash names a folder outside of the store", path=str(deletion.root), hint=hint)
        lists = (agent.list_at(self.place, folder, missing=True) for agent in AGENTS)
        for listed in filter(None, lists):
            listed.undo(deletion.token)
        return deletion

    @property
    def place(self) -> Place:
        """What agents need to write their files from this store."""
        return Place(self.fs, self.layout.root, self.layout.index, self.durability == "power", self.patience, self.now)

    def deletions(self) -> Sequence[Deletion]:
        """What is in the trash, oldest first."""
        return self._trash.list()

    # -- places

    def original_path(self, path: str) -> str:
        """Where a file is kept that is about to be rewritten."""
        return f"{self.layout.originals}/{posixpath.basename(path)}.{self.now()}-{self.random(3).hex()}"

    def leave_breadcrumb(self, session: Session) -> None:
        """Note that this terminal is in that session; without the note everything else works as well."""
        if self._terminal is not None:
            crumb = self.layout.breadcrumb(self._terminal)
            text = f"{session.cwd}\n{session.path}\n"
            try:
                atomic.make_folders(self.fs, posixpath.dirname(crumb))
                atomic.replace(self.fs, crumb, (text.encode("utf-8", "surrogateescape"),), durable=False)
            except SessileError as error:
                log.warning("the breadcrumb %s was not written: %s", crumb, error.message)

    def _read_breadcrumb(self, cwd: str) -> str | None:
        """The session that this terminal had last, if it is of this project and still there."""
        if self._terminal is None:
            return None
        try:
            crumb = atomic.read_all(self.fs, self.layout.breadcrumb(self._terminal)).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        there, path, *_ = *crumb.split("\n"), ""
        if posixpath.normpath(there) != posixpath.normpath(cwd) or not posixpath.isabs(path):
            return None
        return path if describe(self.fs, path) is not None else None


def _memory() -> Filesystem:
    from sessile.storage.memory import MemoryFilesystem  # most stores are folders

    return MemoryFilesystem(clock=time.time_ns)


def _is_of(info: SessionInfo, cwd: str) -> bool:
    """Whether a session in a project's folder is that project's: `a-b/c` and `a/b-c` share one."""
    return info.cwd in ("", cwd) or "\0" in info.cwd or encode_cwd(info.cwd) != encode_cwd(cwd)
