"""Mount a second file system, such as a database, at one folder.

So a store in a database reads and imports files of the machine with the same calls. Nothing can be renamed or linked from one
place to the other (`EXDEV`), as between two disks.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable

from sessile.storage.base import Filesystem, Journals, OwnJournal, ReadableOwnJournal, Stat


class MountedFilesystem:
    """The files of `base`, except below the folder `point`, where those of `mounted` are."""

    def __init__(self, base: Filesystem, mounted: Filesystem, point: str) -> None:
        self._base = base
        self._mounted = mounted
        self._point = point
        self._open: dict[int, tuple[Filesystem, int]] = {}  # by our own numbers: the two could use the same
        self._next = 1
        self._lock = threading.RLock()

    def _at(self, path: str) -> Filesystem:
        return self._mounted if is_below(self._point, path) else self._base

    def _of(self, fd: int) -> tuple[Filesystem, int]:
        try:
            return self._open[fd]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _opened(self, fs: Filesystem, fd: int) -> int:
        with self._lock:
            number = self._next
            self._next += 1
            self._open[number] = (fs, fd)
            return number

    def _both(self, source: str, target: str) -> Filesystem:
        fs = self._at(source)
        if fs is not self._at(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        return fs

    # -- open files

    def open(self, path: str, flags: int) -> int:
        fs = self._at(path)
        return self._opened(fs, fs.open(path, flags))

    def temporary(self) -> int:
        return self._opened(self._base, self._base.temporary())

    def close(self, fd: int) -> None:
        fs, inner = self._of(fd)
        with self._lock:
            del self._open[fd]
        fs.close(inner)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        fs, inner = self._of(fd)
        return fs.read(inner, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        fs, inner = self._of(fd)
        return fs.write(inner, data)

    def truncate(self, fd: int, size: int) -> None:
        fs, inner = self._of(fd)
        fs.truncate(inner, size)

    def sync(self, fd: int) -> None:
        fs, inner = self._of(fd)
        fs.sync(inner)

    def lock(self, fd: int) -> bool:
        fs, inner = self._of(fd)
        return fs.lock(inner)

    def unlock(self, fd: int) -> None:
        fs, inner = self._of(fd)
        fs.unlock(inner)

    def lock_holder(self, fd: int) -> int | None:
        fs, inner = self._of(fd)
        return fs.lock_holder(inner)

    def fstat(self, fd: int) -> Stat:
        fs, inner = self._of(fd)
        return fs.fstat(inner)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        fs, inner = self._of(fd)
        fs.set_modified(inner, nanoseconds)

    # -- names

    def lstat(self, path: str) -> Stat:
        return self._at(path).lstat(path)

    def names(self, path: str) -> list[str]:
        return self._at(path).names(path)

    def mkdir(self, path: str) -> None:
        self._at(path).mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._both(source, target).rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._both(source, target).link(source, target)

    def unlink(self, path: str) -> None:
        self._at(path).unlink(path)

    def rmdir(self, path: str) -> None:
        self._at(path).rmdir(path)

    def sync_directory(self, path: str) -> None:
        self._at(path).sync_directory(path)


class MountedJournals:
    """The journals of `base`, except below the folder `point`, where those of `mounted` are."""

    def __init__(self, base: Journals, mounted: Journals, point: str) -> None:
        self._base = base
        self._mounted = mounted
        self._point = point

    def _at(self, path: str) -> Journals:
        return self._mounted if is_below(self._point, path) else self._base

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        self._at(path).create(path, pieces)

    def obtain(self, path: str, header: bytes) -> None:
        self._at(path).obtain(path, header)

    def open(self, path: str, *, patience: float | None = None) -> OwnJournal:
        return self._at(path).open(path, patience=patience)

    def read(self, path: str) -> ReadableOwnJournal:
        return self._at(path).read(path)


def is_below(point: str, path: str) -> bool:
    """Return whether a path is that folder or is below it."""
    return path == point or path.startswith(f"{point}/")
