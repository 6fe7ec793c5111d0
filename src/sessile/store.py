"""A store: one root with sessions, blobs and trash. The root is a folder, memory, or a database.

Rules:

- The root is an argument: the store never looks for a home folder.
- Reading never writes below the root, except to the cache. Opening a session for reading changes nothing: a file of an older
  version is migrated in memory.
- Opening for writing creates a session in a missing or empty file, migrates an older version, and recognizes other agents'
  files. Whatever it changes is kept as it was, and the session's `notices` name the copy.
- Deleting moves to the trash.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Self

from sessile.agents.base import Place
from sessile.agents.registry import AGENTS
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.entries import Payload
from sessile.core.ids import check_session_id, new_session_id
from sessile.core.text import clean_name, iso_timestamp
from sessile.core.visible import html_table
from sessile.errors import (
    Invalid,
    InvalidId,
    SessileError,
    SessionExists,
    SessionNotFound,
    StorageFailure,
    UnsafePath,
    storage_failures,
)
from sessile.storage import atomic, drafts, log
from sessile.storage.atomic import NameSet
from sessile.storage.backing import backing_of, blobs_at
from sessile.storage.base import Filesystem, Journals
from sessile.storage.layout import DRAFT, JOURNAL, artifacts_of, can_be_named, encode_cwd, file_name, stem_of
from sessile.storage.walk import find_session_files

if TYPE_CHECKING:
    from sessile.discovery import SessionInfo
    from sessile.erase import Erasure
    from sessile.session import Session
    from sessile.storage.trash import Deletion, Trash

Durability = Literal["power", "process"]


class Store:
    """All sessions below one root: a folder, or the address of a database.

    Args:
        root: A folder, which is created when the first session is, or "postgresql://user@host/name".
        cache: The folder for indexes, which may be deleted at any time; `cache` in the root by default.
        blobs: The address of an object store for large content ("s3://bucket/prefix"); in the root by default.
        durability: What an entry survives once it has a receipt: "power" (a power cut) or "process" (the death of the process).
        terminal: The id of the user's terminal. `continue_recent` prefers the last session of this terminal.
        patience: How long to wait for another process that locks a session, in seconds.
        fs: Another filesystem, for tests.
        clock: Returns the current time in seconds since 1970.
        random: Returns random bytes, for ids.

    Attributes:
        name (str): The root for display, without a password.
        pins (NameSet): The ids of pinned sessions, which nothing cleans up.
        blobs (Blobs): The large content of the sessions.
        durability (str): What an entry survives once it has a receipt.
        patience (float): How long to wait for a lock, in seconds.
        is_memory (bool): Whether the store has no files. Its sessions keep images and long texts in their lines.

    Raises:
        Invalid: The durability is invalid.
        NotFound: The root is a file.
        Unsupported: There is no store at such an address, or a package for it is not installed.

    Example:
        ```python
        store = Store("~/.my-agent")
        with store.continue_recent("/work/app") as session:
            session.append_message({"role": "user", "content": "hello"})
        for info in store.list("/work/app"):
            print(info.modified, info.title)
        ```
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
            raise Invalid(f"invalid durability {durability!r}", hint='use "power" or "process"')
        backing = backing_of(root, cache, fs, power=durability == "power", patience=patience, formats=AGENTS)
        self.name, self.fs, self.layout, self._make_journals, self._close, self.catalog, self.database, self._purge = (
            backing
        )
        self.blobs = blobs_at(blobs, self.layout, self.fs)
        self.pins = NameSet(self.fs, f"{self.layout.root}/pins.json")
        self.durability = durability
        self.is_memory = False
        self.random = random
        self._deleted = 0  # when the last deletion was, in milliseconds since 1970
        self._kept = 0  # when the last original was kept
        self._settled = False  # whether erasures that were interrupted are finished
        self._terminal = terminal
        self.patience = patience
        self._clock = clock

    @cached_property
    def journals(self) -> Journals:
        """The journals of the store; a listing opens none."""
        return self._make_journals()

    @cached_property
    def _trash(self) -> Trash:
        from sessile.storage.trash import Trash  # few programs delete

        return Trash(self.fs, self.layout.trash)

    @classmethod
    def in_memory(cls) -> Store:
        """Create a store without files. It is lost when the process ends."""
        store = cls("/memory", fs=_memory(), durability="process")
        store.is_memory = True
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.name!r} durability={self.durability!r}>"

    def _repr_html_(self) -> str:
        found = self.list_all()
        rows = ((f"{i.modified:%Y-%m-%d %H:%M}", i.title or i.first_message, i.cwd, i.id) for i in found)
        return html_table(f"Store {self.name}: {len(found):,} sessions", ("modified", "title", "project", "id"), rows)

    def close(self) -> None:
        """Close the connections of a database. A folder needs no closing."""
        self._close()

    def now(self) -> int:
        """Return the time of the store's clock, in milliseconds since 1970, as entries store it."""
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
        """Create a session.

        It is a draft until an assistant has answered: listings of other programs do not show it, and `path` ends in
        `.draft`. Our own listings show it, marked as a draft. Like any other session, it survives the end of the process;
        whoever opens it for writing afterwards publishes it.

        Args:
            cwd: The project: the working folder that the session is for.
            session_id: The id; a new UUIDv7 if `None`.
            parent_session: The path of the session that this one continues, noted in the header.
            title: The title.
            publish: Make the session visible to other programs at once.

        Raises:
            InvalidId: The id has characters that ids cannot have.
            SessionExists: The store has a session with this id.
        """
        self._settle()
        now = self.now()
        if session_id is None:
            session_id = new_session_id(now, self.random)
        elif (existing := self.find(session_id)) is not None:
            raise SessionExists(f"session already exists: {session_id!r}", path=existing)
        name = clean_name(title) if title else None
        header = make.header(session_id, iso_timestamp(now), cwd, title=name or None, parentSession=parent_session)
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, self.journals, folder)
        path = f"{folder}/{file_name(header['timestamp'], session_id)}"
        if not publish:
            path = drafts.draft_path(path)
        session = self.begin(path, [encode(header)], draft=not publish)
        self._leave_breadcrumb(session)
        return session

    def begin(self, path: str, lines: Iterable[bytes], *, draft: bool = False) -> Session:
        """Create a session file with these lines, header first, and open it.

        Args:
            path: The path of the new file.
            lines: Its lines, without newlines.
            draft: Whether the path is that of a draft.
        """
        with atomic.folders_for(self.fs, posixpath.dirname(path)):
            self.journals.create(path, (line + b"\n" for line in lines))
            try:
                journal = self.journals.open(path)
                if draft:
                    journal.hold()
            except BaseException:
                with suppress(OSError, SessileError):  # the first error matters more
                    self.fs.unlink(path)
                raise
        from sessile.session import Session  # see open

        return Session(self, journal, journal)

    def obtain(self, path: str, header: Payload) -> Session:
        """Open the session in a file of this store, or create it with this header.

        If several processes ask at the same time, one of them creates it.
        """
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
        """Open a session.

        Opening for reading changes nothing. Opening for writing migrates a file of an older version, and publishes a draft
        whose process has ended. A draft is found by the path that it has, and by the one that it gets when it is published.

        Args:
            ref: The id of a session of this store, or the path of a session file of any agent.
            readonly: Open for reading only.
            cwd: The project of the new session that is created in a missing or empty file.
            in_place: Allow appending to another agent's file, as far as its format supports it.

        Raises:
            NotASession: No agent recognizes the file.
            Unsupported: The file belongs to another agent, and `in_place` is not set or its format cannot be written.
            SessionBusy: The session is a draft that another process writes; it can be opened for reading.
            SessionNotFound: There is no such session.
            UnsupportedVersion: The file has a newer version; it can be opened for reading.
        """
        from sessile.opening import open_for_reading, open_for_writing  # a listing opens no session

        if readonly:
            return open_for_reading(self, self._resolve(os.fspath(ref)))
        self._settle()  # first: a session whose erasure was interrupted is gone then
        path = self._resolve(os.fspath(ref))
        return open_for_writing(self, path, cwd, in_place=in_place)

    def _resolve(self, ref: str) -> str:
        if not can_be_named(ref):
            raise InvalidId(f"invalid session name {ref[:80]!r}: it cannot be the name of a file")
        if "://" in ref:
            raise Invalid(f"invalid session name {ref[:80]!r}: it is a URL", hint="pass the id of a session, or a path")
        if "/" in ref or ref.endswith((JOURNAL, DRAFT)):
            return os.path.abspath(ref)
        path = self.find(ref)
        if path is None:
            raise SessionNotFound(
                f"session not found: {ref[:80]!r}", path=self.layout.sessions, hint="list the sessions"
            )
        return path

    def _project_of(self, path: str) -> str:
        """Return the project of a new session in a given file: its folder, unless that is the folder of a project's sessions.

        The name of that folder does not tell the project: `a-b` and `a/b` have the same. So the other sessions there are
        asked, then the working folder of this process; otherwise the name is read in the most likely way.
        """
        folder = posixpath.dirname(path)
        if not self.layout.owns(path):
            return folder
        name, here = posixpath.basename(folder), os.getcwd()
        others = (_describe(self.fs, other) for other in find_session_files(self.fs, folder) if other != path)
        known = (info.cwd for info in others if info is not None and info.cwd and "\0" not in info.cwd)
        likely = (*known, here, f"/{name.strip('-').replace('-', '/')}")
        return next((cwd for cwd in likely if encode_cwd(cwd) == name), here)

    def continue_recent(self, cwd: str) -> Session:
        """Open the session to continue in a project.

        That is the last one of this terminal, otherwise the one modified last, otherwise a new one.

        Raises:
            StorageFailure: The disk failed. No new session is created then.
        """
        self._settle()
        folder = self.layout.folder(cwd)
        drafts.recover(self.fs, self.journals, folder)
        path = self._read_breadcrumb(cwd) or self._newest(cwd)
        return self.create(cwd) if path is None else self.open(path)

    def _newest(self, cwd: str) -> str | None:
        """The session of a project that was modified last. Raise if the disk fails, rather than return `None`."""
        files = find_session_files(self.fs, self.layout.folder(cwd))
        # Drafts were recovered before; the others have a writer, or no message.
        infos = (_describe(self.fs, path) for path in files if not drafts.is_draft(path))
        ours = (info for info in infos if info is not None and _is_of(info, cwd))
        newest = max(ours, key=lambda info: info.modified, default=None)
        return None if newest is None else newest.path

    # -- finding

    def find(self, session_id: str) -> str | None:
        """Return the path of the session with this id in the store, which may be a draft; `None` if there is none."""
        check_session_id(session_id)
        endings = (f"_{session_id}{JOURNAL}", f"_{session_id}{DRAFT}")
        named = (path for path in self._files() if path.endswith(endings))
        found = (path for path in named if (info := _describe(self.fs, path)) and info.id == session_id)
        draft = None
        for path in found:
            if not drafts.is_draft(path):
                return path  # rather than a draft of the same id, which can be there after a restored backup
            draft = path
        return draft

    def _files(self) -> Iterator[str]:
        with storage_failures(self.layout.sessions, "list the sessions"):
            try:
                folders = self.fs.names(self.layout.sessions)
            except (FileNotFoundError, NotADirectoryError):
                return
        for folder in folders:
            yield from find_session_files(self.fs, f"{self.layout.sessions}/{folder}")

    def list(self, cwd: str, session_dir: str | None = None, *, full: bool = False) -> Sequence[SessionInfo]:
        """List the sessions of a project, newest first, drafts included.

        Args:
            cwd: The project.
            session_dir: List the sessions in this folder instead.
            full: Read whole files, for counts and texts.
        """
        if session_dir is not None:
            return self._described(find_session_files(self.fs, os.path.abspath(session_dir)), full)
        found = self._described(find_session_files(self.fs, self.layout.folder(cwd)), full)
        return [info for info in found if _is_of(info, cwd)]

    def list_all(self, *, full: bool = False) -> Sequence[SessionInfo]:
        """List the sessions of all projects, newest first, drafts included. With `full`, whole files are read."""
        return self._described(self._files(), full)

    def _described(self, paths: Iterable[str], full: bool) -> Sequence[SessionInfo]:
        """Describe sessions, newest first. One that cannot be read is left out with a warning."""
        found = []
        for path in paths:
            try:
                info = _discovery().listed(self.fs, path, full=full)
            except StorageFailure as error:
                log.warning("%s is not listed: %s", path, error.message)
                continue
            if info is not None:
                found.append(info)
        return sorted(found, key=lambda info: info.modified, reverse=True)

    def fork_from(self, path: str | os.PathLike[str], cwd: str) -> Session:
        """Copy a session from any project, store or agent to a new session of a project.

        Args:
            path: The path of the session file.
            cwd: The project of the copy.
        """
        with self.open(os.path.abspath(path), readonly=True) as source:
            from sessile.fork import fork  # a listing forks nothing

            return fork(self, source, cwd)

    # -- deleting

    def delete(self, ref: str | os.PathLike[str], *, below: str | None = None, force: bool = False) -> Deletion:
        """Move a session and its artifacts to the trash. `undo` restores them.

        Args:
            ref: The id of a session of this store, or a path.
            below: The folder of another agent. Its sessions are deleted only with this argument.
            force: Delete the session even if another process has it open. Appends of that process fail from then on.

        Returns:
            The deletion, whose `token` undoes it.

        Raises:
            Invalid: The session is not in this store, or not below `below`.
            SessionBusy: Another process writes the session or has it open, and `force` is not set.
            StorageFull: There is no room for a folder in the trash. The hint says what to do.
            SessionNotFound: There is no such session.
        """
        path = drafts.located(self.fs, self._resolve(os.fspath(ref)))
        self._check_deletable(path, below)
        if force:
            return self._delete(path, below)
        with self._trash.unused(path, hold=below is None):
            return self._delete(path, below)

    def _check_deletable(self, path: str, below: str | None) -> None:
        if not (self.layout.owns(path) if below is None else path.startswith(f"{below}/")):
            raise Invalid(
                "only sessions of this store can be deleted", path=path, hint="pass the agent's folder as below"
            )
        if not atomic.exists(self.fs, path):
            raise SessionNotFound(path=path)

    def _delete(self, path: str, below: str | None) -> Deletion:
        """Move a session to the trash. The caller holds it."""
        self._check_deletable(path, below)
        paths = [path, *(p for p in (artifacts_of(path),) if atomic.exists(self.fs, p))]
        if below is not None:
            listed = next(filter(None, (agent.list_at(self.place, below) for agent in AGENTS)), None)
            if listed is not None:
                return self._trash.get(listed.delete(path))
        self._deleted = max(self.now(), self._deleted + 1)  # tokens sort in order, even within a millisecond
        return self._trash.move(paths, f"{self._deleted}-{self.random(3).hex()}-{stem_of(path)}", below)

    def erase(self, ref: str | os.PathLike[str], *, confirm: bool = False, caches: Sequence[str] = ()) -> Erasure:
        """Erase a session for good, with everything that was made from it. Nothing can restore it.

        Without `confirm`, nothing is changed, and the result says what would be erased. If the process is killed, the next
        writer of the store continues. Other sessions stay, also forks of this one.

        Args:
            ref: The id or the path of a session of this store, also of one in the trash.
            confirm: Whether to do it.
            caches: Cache folders of other programs that have listed this store.

        Returns:
            What is erased: files, blobs, prompts of the history, and their size.

        Raises:
            Invalid: The session is not in this store.
            SessionBusy: A process has the session open.
            SessionNotFound: There is no such session.
        """
        self._settled = False  # ask again: another process may have been killed since
        self._settle()
        return _erasing().erase(self, os.fspath(ref), self._resolve, confirm=confirm, caches=caches)  # type: ignore[no-any-return]

    def _settle(self) -> None:
        """Continue erasures that were interrupted, once. A failure is only logged: the next process tries again."""
        if self._settled:
            return
        self._settled = True
        try:
            if any(name.endswith(".plan") for name in self.fs.names(f"{self.layout.root}/erased")):
                _erasing().finish(self)
        except (FileNotFoundError, NotADirectoryError):
            pass  # nothing was ever erased
        except (OSError, SessileError) as error:
            log.warning("an erasure could not be finished: %s", error)

    def undo(self, token: str, *, roots: Sequence[str] = ()) -> Deletion:
        """Restore what a deletion has moved to the trash.

        Args:
            token: The token of the deletion.
            roots: The folders of other agents in which it may restore something.

        Raises:
            Conflict: There is a file where the session was.
            NotFound: There is no such deletion.
            UnsafePath: It would restore something in a folder that is not in `roots`.
        """
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
        """Return what is in the trash, oldest first."""
        return self._trash.list()

    # -- files beside the sessions

    def original_path(self, path: str) -> str:
        """Return a new path for the copy of a file that is about to be rewritten."""
        self._kept = max(self.now(), self._kept + 1)  # names sort in order, even within a millisecond
        return f"{self.layout.originals}/{posixpath.basename(path)}.{self._kept}-{self.random(3).hex()}"

    def _keep_once(self, original: str) -> str:
        """Return where the content of an original is kept: if an earlier one of the same file is identical, there."""
        folder, name = posixpath.split(original)
        start = name.rpartition(".")[0] + "."
        try:
            size = self.fs.lstat(original).st_size
            for other in self.fs.names(folder):
                if other.startswith(start) and other < name:
                    same_size = self.fs.lstat(f"{folder}/{other}").st_size == size
                    if same_size and atomic.starts_with(self.fs, f"{folder}/{other}", original):
                        self.fs.unlink(original)
                        return f"{folder}/{other}"
        except (OSError, SessileError) as error:
            log.warning("the original %s could not be compared: %s", original, error)
        return original

    def _leave_breadcrumb(self, session: Session) -> None:
        """Note the session of this terminal, for `continue_recent`. A failure is only logged."""
        if self._terminal is not None:
            crumb = self.layout.breadcrumb(self._terminal)
            # The path once it is published: other agents of the family read breadcrumbs, and must not open drafts.
            text = f"{session.cwd}\n{drafts.published_path(session.path)}\n"
            try:
                atomic.make_folders(self.fs, posixpath.dirname(crumb))
                atomic.replace(self.fs, crumb, (text.encode("utf-8", "surrogateescape"),), durable=False, cache=True)
            except SessileError as error:
                log.warning("the breadcrumb %s could not be written: %s", crumb, error.message)

    def _read_breadcrumb(self, cwd: str) -> str | None:
        """The last session of this terminal, if it belongs to the project and still exists."""
        if self._terminal is None:
            return None
        try:
            crumb = atomic.read_all(self.fs, self.layout.breadcrumb(self._terminal)).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        project, path, *_ = *crumb.split("\n"), ""
        if posixpath.normpath(project) != posixpath.normpath(cwd) or not posixpath.isabs(path):
            return None
        return path if _describe(self.fs, path) is not None else None


def _describe(fs: Filesystem, path: str) -> SessionInfo | None:
    info: SessionInfo | None = _discovery().describe(fs, path)
    return info


def _discovery() -> ModuleType:
    from sessile import discovery  # saves start-up time: a library asks its catalog

    return discovery


def _erasing() -> ModuleType:
    from sessile import erase  # few programs erase

    return erase


def _memory() -> Filesystem:
    from sessile.storage.memory import MemoryFilesystem  # most stores are folders

    return MemoryFilesystem(clock=time.time_ns)


def _is_of(info: SessionInfo, cwd: str) -> bool:
    """Whether a session in a project's folder belongs to that project: `a-b/c` and `a/b-c` share a folder."""
    return info.cwd in ("", cwd) or "\0" in info.cwd or encode_cwd(info.cwd) != encode_cwd(cwd)
