"""A file system in a database: `Filesystem` for everything of a store that is no journal.

Rules: it answers as Linux does, with the same error numbers; a database that cannot be reached is a `StorageFailure`, which is
an `OSError` too. What is written is committed, so syncing has nothing left to do. The lock of a file is a lease: it ends some
seconds after its holder dies, and a holder that could not renew it cannot write through that descriptor any more.
A file lives for an hour after its last name has gone, for those who have it open. Journals can be read, renamed, linked and
unlinked; they are written elsewhere.

Folders have no time of modification, and there are no symbolic links and no permissions: those of the database count.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from sessile.errors import StorageFailure
from sessile.storage.postgres.contents import Contents
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import Found, Names
from sessile.storage.postgres.paths import failure, key
from sessile.storage.postgres.renaming import rename
from sessile.storage.postgres.unnamed import make_temporary, remove_unnamed, sweep

_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_SWEEP_EVERY = 60.0  # seconds


class PostgresStat(NamedTuple):
    """What `lstat` and `fstat` say about a file in a database."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_size: int
    st_mtime_ns: int


@dataclass(eq=False, slots=True)
class _OpenFile:
    """One open file description: what a lock belongs to."""

    path: str
    found: Found
    readable: bool
    writable: bool
    appends: bool
    temporary: bool = False
    position: int = 0
    told: bool = True  # whether the status that opening brought along was used, or may not be
    read_to: int | None = None  # how far what opening brought along was read; None: no more of it may be used
    token: int | None = None  # of the lease, as long as this one has the lock
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def file(self) -> int:
        if self.found.file is None:
            raise failure(errno.EISDIR, self.path)
        return self.found.file

    @property
    def lease(self) -> str:
        return f"file:{key(self.path).path!r}" if self.found.file is None else f"file:{self.found.file}"


class PostgresFilesystem:
    """The files of one database."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self.names_in = Names(database)
        self._contents = Contents(database)
        self._database = database
        self._leases = leases
        self._descriptors = count(3)
        self._open: dict[int, _OpenFile] = {}
        self._device = zlib.crc32(database.place.encode())
        self._user = os.getuid()
        self._swept = time.monotonic()

    # Files

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT and flags & os.O_DIRECTORY:
            raise failure(errno.EINVAL, path)
        access = flags & _ACCESS
        found = self._found(path, flags, content=access == os.O_RDONLY)
        opened = _OpenFile(path, found, access != os.O_WRONLY, access != os.O_RDONLY, bool(flags & os.O_APPEND))
        if found.file is not None and flags & os.O_TRUNC and found.size:
            self._contents.resize(found.file, 0)
        elif access == os.O_RDONLY:
            opened.told, opened.read_to = False, None if found.ahead is None else 0
        return self._described(opened)

    def temporary(self) -> int:
        found = make_temporary(self._database)
        return self._described(_OpenFile("", found, True, True, appends=False, temporary=True))

    def close(self, fd: int) -> None:
        opened = self._opened(fd)
        del self._open[fd]
        self._release(opened)
        if opened.temporary:
            remove_unnamed(self._database, opened.file)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        opened = self._opened(fd)
        if not opened.readable:
            raise failure(errno.EBADF)
        file = opened.file
        if offset < 0:
            raise failure(errno.EINVAL)
        with opened.guard:
            brought = _brought(opened, size, offset)
        return (
            self._contents.read(file, size, offset, journal=bool(opened.found.journal)) if brought is None else brought
        )

    def write(self, fd: int, data: bytes) -> int:
        opened = self._opened(fd)
        if not opened.writable:
            raise failure(errno.EBADF)
        self._still_locked(opened)
        if not data:
            return 0
        with opened.guard:
            if opened.appends:
                return self._contents.append(opened.file, data)
            written = self._contents.put(opened.file, data, opened.position)
            opened.position += written
            return written

    def truncate(self, fd: int, size: int) -> None:
        opened = self._opened(fd)
        if size < 0 or not opened.writable:
            raise failure(errno.EINVAL)
        self._still_locked(opened)
        self._contents.resize(opened.file, size)

    def sync(self, fd: int) -> None:
        self._opened(fd)

    def fstat(self, fd: int) -> PostgresStat:
        opened = self._opened(fd)
        if opened.found.file is not None and opened.told:
            return self._stat(opened.path, self._contents.status(opened.found.file))
        opened.told = True  # once: from now on it may have changed
        return self._stat(opened.path, opened.found)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        opened = self._opened(fd)
        opened.told = True
        self._contents.set_modified(opened.file, nanoseconds)

    # Locks

    def lock(self, fd: int) -> bool:
        opened = self._opened(fd)
        if opened.token is not None and self._leases.token(opened.lease) == opened.token:
            return True
        opened.told, opened.read_to = True, None  # whoever had the lock before may have changed everything
        opened.token = self._leases.take(opened.lease)
        return opened.token is not None

    def unlock(self, fd: int) -> None:
        self._release(self._opened(fd))

    def lock_holder(self, fd: int) -> int | None:
        """The process that has the lock, if it is one of this machine."""
        holder = self._leases.holder(self._opened(fd).lease)
        host, _, rest = (holder or "").rpartition(":")[0].rpartition(":")
        return int(rest) if host == socket.gethostname() else None

    # Names

    def lstat(self, path: str) -> PostgresStat:
        return self._stat(path, self.names_in.existing(path))

    def names(self, path: str) -> list[str]:
        return self.names_in.names(path)

    def mkdir(self, path: str) -> None:
        self.names_in.make_folder(path)

    def rename(self, source: str, target: str) -> None:
        if rename(self._database, self.names_in, source, target):
            self._sweep_at_times()

    def link(self, source: str, target: str) -> None:
        self.names_in.link(source, target)

    def unlink(self, path: str) -> None:
        if self.names_in.unlink(path):
            self._sweep_at_times()

    def rmdir(self, path: str) -> None:
        self.names_in.remove_folder(path)

    def sync_directory(self, path: str) -> None:
        self.names_in.folder(path)

    # For those who keep journals in the same tree

    def file_of(self, path: str) -> Found | None:
        """What a path means, with the number of its file; None if there is nothing."""
        return self.names_in.look(path)

    # Inside

    def _found(self, path: str, flags: int, *, content: bool) -> Found:
        """The file to open, made if that is asked for."""
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        while True:
            found = None if exclusive else self.names_in.look(path, content=content)
            if found is None:
                if not flags & os.O_CREAT:
                    raise failure(errno.ENOENT, path)
                found = self.names_in.make_file(path)
                if found is not None:
                    return found
                if exclusive and self.names_in.look(path) is not None:
                    raise failure(errno.EEXIST, path)
                continue  # somebody was faster
            if found.file is None:
                if flags & (os.O_CREAT | os.O_TRUNC | _ACCESS):
                    raise failure(errno.EISDIR, path)
            elif flags & os.O_DIRECTORY:
                raise failure(errno.ENOTDIR, path)
            elif found.journal and flags & (os.O_TRUNC | _ACCESS):
                raise failure(errno.EROFS, path)
            return found

    def _described(self, opened: _OpenFile) -> int:
        fd = next(self._descriptors)
        self._open[fd] = opened
        return fd

    def _opened(self, fd: int) -> _OpenFile:
        try:
            return self._open[fd]
        except KeyError:
            raise failure(errno.EBADF) from None

    def _release(self, opened: _OpenFile) -> None:
        token, opened.token = opened.token, None
        if token is not None and self._leases.token(opened.lease) == token:
            self._leases.release(opened.lease)

    def _still_locked(self, opened: _OpenFile) -> None:
        """Who has lost the lock must not write as if he had it."""
        if opened.token is not None and self._leases.token(opened.lease) != opened.token:
            hint = "the database was out of reach for too long; open the file again"
            raise StorageFailure("the lock of the file was lost", path=opened.path, hint=hint, code=errno.ENOLCK)

    def _stat(self, path: str, found: Found) -> PostgresStat:
        if found.file is None:
            number = int.from_bytes(blake2b(key(path).path, digest_size=8).digest()) >> 1
            return PostgresStat(stat.S_IFDIR | 0o700, number, self._device, 1, self._user, 0, 0)
        assert found.links is not None and found.size is not None and found.modified is not None
        mode = stat.S_IFREG | 0o600
        return PostgresStat(mode, found.file, self._device, found.links, self._user, found.size, found.modified)

    def _sweep_at_times(self) -> None:
        """Remove what has had no name for an hour: whoever makes such files does it, once a minute."""
        now = time.monotonic()
        if now - self._swept >= _SWEEP_EVERY:
            self._swept = now
            try:
                sweep(self._database)
            except StorageFailure:
                pass  # what was asked for is done; the next one sweeps


def _brought(opened: _OpenFile, size: int, offset: int) -> bytes | None:
    """What opening brought along, each byte once and in order; None if the database must be asked."""
    ahead, whole = opened.found.ahead, opened.found.size
    if opened.read_to != offset or ahead is None or whole is None:
        opened.read_to = None
        return None
    if offset + size > len(ahead) and len(ahead) < whole:
        opened.read_to = None
        return None
    part = ahead[offset : offset + size]
    opened.read_to = offset + len(part) if part or not size else None
    return part
