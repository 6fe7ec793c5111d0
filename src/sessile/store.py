"""A store: one root folder with sessions, blobs, trash and caches, or the same in memory.

The library never looks for a home by itself: the root is an argument. Reading never writes below the root, except to the
cache; deleting moves to the trash.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from sessile import transfer
from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.ids import check_session_id, new_session_id
from sessile.core.lines import Line, scan
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import iso_timestamp
from sessile.discovery import SessionInfo, describe, find_session_files, newest_session
from sessile.errors import Invalid, NotASession, SessionExists, SessionNotFound, UnsupportedVersion, storage_failure
from sessile.session import Session
from sessile.storage import atomic, drafts
from sessile.storage.base import Filesystem
from sessile.storage.blobs import BlobStore
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal
from sessile.storage.layout import JOURNAL, Layout, artifacts_of, file_name
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.storage.trash import Deletion, Trash

Durability = Literal["power", "process"]


class Store:
    """All sessions below one root.

    `durability` is what a receipt promises: "power" survives a power cut, "process" the death of the process. `cache` is
    the folder for indexes. `terminal` names the terminal whose last session `continue_recent` prefers.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str] | None = None,
        durability: Durability = "power",
        terminal: str | None = None,
        patience: float = 10.0,
        fs: Filesystem | None = None,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if durability not in ("power", "process"):
            raise Invalid(f"{durability!r} is no durability", hint='it is "power" or "process"')
        if fs is None:
            # A symbolic link to the root is followed once, here; below the root none is.
            root = os.path.realpath(os.path.expanduser(os.fspath(root)))
        self.fs = fs if fs is not None else PosixFilesystem()
        self.layout = Layout(
            os.fspath(root), os.path.abspath(cache) if cache is not None else f"{os.fspath(root)}/cache"
        )
        self.blobs = BlobStore(self.layout.blobs, self.fs)
        self.durability = durability
        self.random = random
        self._folders: set[str] = set()
        self._trash = Trash(self.fs, self.layout.trash)
        self._terminal = terminal
        self._patience = patience
        self._clock = clock

    @classmethod
    def in_memory(cls) -> Store:
        """A store without files, gone with the process."""
        return cls("/memory", fs=_memory(), durability="process")

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
        header = make.header(session_id, iso_timestamp(now), cwd, title=title, parentSession=parent_session)
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, folder)
        path = f"{folder}/{file_name(header['timestamp'], session_id)}"
        if not publish:
            path = drafts.draft_path(path)
        session = self.begin(path, [encode(header)], draft=not publish)
        self.leave_breadcrumb(session)
        return session

    def begin(self, path: str, lines: Iterable[bytes], *, draft: bool = False) -> Session:
        """A new session file with these lines, header first."""
        atomic.make_folders(self.fs, posixpath.dirname(path), self._folders)
        if atomic.exists(self.fs, path):
            raise SessionExists(path=path)
        atomic.replace(self.fs, path, (line + b"\n" for line in lines))
        journal = self._journal(path)
        if draft:
            journal.hold()
        return Session(self, journal, writable=True, draft=draft, ours=True)

    def _journal(self, path: str) -> FileJournal:
        return FileJournal(
            self.fs,
            path,
            index_path=self.layout.index(path),
            power=self.durability == "power",
            patience=self._patience,
        )

    def open(self, ref: str | os.PathLike[str], *, readonly: bool = False, cwd: str | None = None) -> Session:
        """The session with that id or in that file.

        Opening for reading changes nothing. Opening for writing brings an old version up to date; a missing or empty file
        becomes a new session for `cwd`.
        """
        path = self._resolve(os.fspath(ref))
        if readonly:
            return self._open_for_reading(path)
        if self._is_blank(path) and not drafts.recover_one(self.fs, path):
            return self._start_at(path, cwd)
        try:
            journal = self._journal(path)
        except NotASession:
            if not self.layout.owns(path):
                raise
            return self._start_over(path, cwd)
        session = Session(self, self._migrated(journal), writable=True, ours=self.layout.owns(path))
        self.leave_breadcrumb(session)
        return session

    def _resolve(self, ref: str) -> str:
        if "/" in ref or ref.endswith(JOURNAL):
            return os.path.abspath(ref)
        path = self.find(ref)
        if path is None:
            raise SessionNotFound(
                f"there is no session {ref[:80]!r}", path=self.layout.sessions, hint="list the sessions"
            )
        return path

    def _is_blank(self, path: str) -> bool:
        try:
            return self.fs.lstat(path).st_size == 0
        except FileNotFoundError:
            return True
        except OSError as error:
            raise storage_failure(error, path, "open the session") from error

    def _start_at(self, path: str, cwd: str | None) -> Session:
        """A new session in a file that is missing or empty."""
        now = self.now()
        folder = cwd if cwd is not None else posixpath.dirname(path)
        header = make.header(new_session_id(now, self.random), iso_timestamp(now), folder)
        atomic.make_folders(self.fs, posixpath.dirname(path))
        atomic.replace(self.fs, path, (encode(header) + b"\n",))
        return Session(self, self._journal(path), writable=True, ours=self.layout.owns(path))

    def _start_over(self, path: str, cwd: str | None) -> Session:
        """A new session in place of a file of ours that holds none; the old bytes stay beside it."""
        aside = f"{path}.invalid-{self.now()}"
        try:
            self.fs.link(path, aside)
            self.fs.sync_directory(posixpath.dirname(path))
        except OSError as error:
            raise storage_failure(error, path, "keep what was in the file") from error
        session = self._start_at(path, cwd)
        session.notices.append(f"the file was no session; what it held is now in {aside}")
        return session

    def _open_for_reading(self, path: str) -> Session:
        reader = JournalReader(self.fs, path, index_path=self.layout.index(path))
        if version_of(decode(reader.header())) < VERSION:
            items = list(reader.items())
            reader.close()
            copy = _memory()
            atomic.make_folders(copy, posixpath.dirname(path))
            atomic.write_new(copy, path, (line + b"\n" for line in _migrate_lines(items)))
            reader = JournalReader(copy, path)
        return Session(self, reader, writable=False, ours=self.layout.owns(path))

    def _migrated(self, journal: FileJournal) -> FileJournal:
        version = version_of(decode(journal.header()))
        if version > VERSION:
            journal.close()
            hint = f"this release writes version {VERSION}; open it for reading"
            raise UnsupportedVersion(f"the session has version {version}", path=journal.path, hint=hint)
        if version < VERSION:
            lines = iter(_migrate_lines(journal.items()))
            journal.replace(lambda raw: next(lines), keep=self.original_path(journal.path))
        return journal

    def continue_recent(self, cwd: str) -> Session:
        """The session to go on with in a project: the terminal's last one, else the newest, else a new one."""
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, folder)
        path = self._read_breadcrumb(cwd) or newest_session(self.fs, folder)
        return self.create(cwd) if path is None else self.open(path)

    # -- finding

    def find(self, session_id: str) -> str | None:
        """The file of a session of ours."""
        check_session_id(session_id)
        ending = f"_{session_id}{JOURNAL}"
        return next((path for path in self._files() if path.endswith(ending)), None)

    def _files(self) -> Iterator[str]:
        try:
            folders = self.fs.names(self.layout.sessions)
        except (FileNotFoundError, NotADirectoryError):
            return
        for folder in folders:
            yield from find_session_files(self.fs, f"{self.layout.sessions}/{folder}")

    def list(self, cwd: str, session_dir: str | None = None, *, full: bool = False) -> Sequence[SessionInfo]:
        """The sessions of a project, newest first. With `full`, whole files are read for counts and texts."""
        folder = self.layout.folder(cwd) if session_dir is None else os.path.abspath(session_dir)
        return self._described(find_session_files(self.fs, folder), full)

    def list_all(self, *, full: bool = False) -> Sequence[SessionInfo]:
        """The sessions of all projects, newest first."""
        return self._described(self._files(), full)

    def _described(self, paths: Iterable[str], full: bool) -> Sequence[SessionInfo]:
        infos = (describe(self.fs, path, full=full) for path in paths)
        return sorted((info for info in infos if info is not None), key=lambda info: info.modified, reverse=True)

    def fork_from(self, path: str | os.PathLike[str], cwd: str) -> Session:
        """A copy of a session, from any project or store, as a session of this project."""
        with self.open(os.path.abspath(path), readonly=True) as source:
            return transfer.fork(self, source, cwd)

    # -- deleting

    def delete(self, ref: str | os.PathLike[str]) -> Deletion:
        """Move a session and its artifacts to the trash; `undo` brings them back."""
        path = self._resolve(os.fspath(ref))
        if not self.layout.owns(path):
            raise Invalid("only sessions of this store can be deleted", path=path, hint="use the agent that owns it")
        if not atomic.exists(self.fs, path):
            raise SessionNotFound(path=path)
        paths = [path, *(p for p in (artifacts_of(path),) if atomic.exists(self.fs, p))]
        stem = posixpath.basename(path).removesuffix(JOURNAL)
        return self._trash.move(paths, f"{self.now()}-{stem}")

    def undo(self, token: str) -> Deletion:
        """Take a deletion back."""
        return self._trash.undo(token)

    def deletions(self) -> Sequence[Deletion]:
        """What is in the trash, oldest first."""
        return self._trash.list()

    # -- places

    def original_path(self, path: str) -> str:
        """Where a file is kept that is about to be rewritten."""
        return f"{self.layout.originals}/{posixpath.basename(path)}.{self.now()}-{self.random(3).hex()}"

    def leave_breadcrumb(self, session: Session) -> None:
        """Note that this terminal is in that session."""
        if self._terminal is not None:
            crumb = self.layout.breadcrumb(self._terminal)
            atomic.make_folders(self.fs, posixpath.dirname(crumb))
            text = f"{session.cwd}\n{session.path}\n"
            atomic.replace(self.fs, crumb, (text.encode("utf-8", "surrogateescape"),), durable=False)

    def _read_breadcrumb(self, cwd: str) -> str | None:
        """The session that this terminal had last, if it is of this project, in this store, and still there."""
        if self._terminal is None:
            return None
        try:
            crumb = atomic.read_all(self.fs, self.layout.breadcrumb(self._terminal)).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        lines = crumb.split("\n")
        if len(lines) < 2 or lines[0] != cwd or not self.layout.owns(lines[1]):
            return None
        return lines[1] if describe(self.fs, lines[1]) is not None else None


def _memory() -> Filesystem:
    return MemoryFilesystem()


def _migrate_lines(items: Iterable[Any]) -> list[bytes]:
    """Every line brought to the current version, in order."""
    records = [decode(item.raw) for item in items if isinstance(item, Line)]
    migrate_session_entries(records)
    return [encode(record) for record in records]


def load_entries_from_file(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a session file as plain dicts, header first; empty if it is missing or no session."""
    try:
        data = atomic.read_all(PosixFilesystem(), os.path.abspath(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_failure(error, os.fspath(path), "read the session") from error
    records = [decode(item.raw) for item in scan(data) if isinstance(item, Line)]
    slot = records.pop(0) if records and records[0]["type"] == "title" and "id" not in records[0] else None
    if not records or records[0]["type"] != "session" or not isinstance(records[0].get("id"), str):
        return []
    if slot is not None:
        records[0].pop("title", None)
        if slot.get("title"):
            records[0]["title"] = slot["title"]
    return records
