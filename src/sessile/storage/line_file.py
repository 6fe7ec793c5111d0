"""A file of lines that belongs to another program, changed by one call at a time under its lock.

Rules: an append is one write that begins on a line of its own, whatever stands at the end; one that fails is taken back if
it is still ours. A removal at the very end is one truncation, any other change is a new file that takes the name of the old
one at once; so a kill leaves the old bytes or the new ones. The other program may know nothing of the lock: what it writes
meanwhile is looked for, and kept.

It knows bytes and newlines, not what the lines mean. Nothing is open between two calls.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sessile.errors import LeafMoved, StorageFailure, SyncFailed, UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat
from sessile.storage.lock import acquire

CHUNK = 1 << 20

_EXISTING = os.O_RDWR | os.O_APPEND
_PATIENCE_WITH_MEDDLERS = 100  # times that lines are written again because others write into them


class HeldFile:
    """A file whose lock is ours; made by `held`."""

    def __init__(self, fs: Filesystem, path: str, fd: int) -> None:
        self.path = path
        self._fs = fs
        self._fd = fd
        status = fs.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("this is not a plain file", path=path)
        self.identity = (status.st_dev, status.st_ino)
        self.size = status.st_size

    def peek(self, offset: int, length: int) -> bytes:
        """A few bytes."""
        with storage_failures(self.path, "read the file"):
            return self._fs.read(self._fd, length, offset)

    def status(self) -> Stat:
        """What the file is now."""
        with storage_failures(self.path, "look at the file"):
            return self._fs.fstat(self._fd)

    def has_its_name(self) -> bool:
        """Whether nobody has put another file in its place."""
        with storage_failures(self.path, "look at the file"):
            return _identity(self._fs, self.path) == self.identity

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes between two places, in pieces."""
        while start < end and (chunk := self.peek(start, min(CHUNK, end - start))):
            yield chunk
            start += len(chunk)

    # -- appending

    def append(self, lines: Sequence[bytes]) -> int:
        """Write lines at the end, at once; gives the place where the first one begins."""
        body = b"".join(line + b"\n" for line in lines)
        torn = self.size > 0 and self.peek(self.size - 1, 1) != b"\n"
        data = b"\n" + body if torn else body
        written = 0
        try:
            written = self._fs.write(self._fd, data)
            if written < len(data):
                # A full disk shows as a short write; what follows says why.
                written += self._fs.write(self._fd, data[written:])
                if written < len(data):
                    raise OSError(errno.EIO, "the storage took only a part of the lines")
            status = self._fs.fstat(self._fd)
        except OSError as error:
            if written < len(data):
                self._take_back(written)
            raise storage_failure(error, self.path, "append to the file") from error
        if not status.st_nlink:
            raise LeafMoved("another program has replaced the file meanwhile", path=self.path, hint="try again")
        end = status.st_size if status.st_size == self.size + len(data) else self._settle(body)
        self.size = end
        return end - len(body)

    def _take_back(self, written: int) -> None:
        """Remove a part of our lines, unless somebody has written behind it: then the next append begins a new line."""
        try:
            if written and self._fs.fstat(self._fd).st_size == self.size + written:
                self._fs.truncate(self._fd, self.size)
        except OSError as error:
            log.warning("a fragment stays at the end of %s: %s", self.path, error)

    def _settle(self, body: bytes) -> int:
        """A writer without lock came between: make sure that our lines stand on their own; gives their end."""
        alone = b"\n" + body
        for _ in range(_PATIENCE_WITH_MEDDLERS):
            with storage_failures(self.path, "look at the file"):
                size = self._fs.fstat(self._fd).st_size
            before = self.peek(self.size - 1, 1) if self.size else b"\n"  # a file begins as a line does
            at = (before + b"".join(self.chunks(self.size, size))).rfind(alone)
            if at >= 0:
                return self.size + at + len(body)
            self.size = size
            with storage_failures(self.path, "append to the file"):
                self._fs.write(self._fd, alone)
        raise StorageFailure("another program writes into the file without pause", path=self.path)

    # -- taking something out

    def truncate(self, size: int) -> None:
        """Drop what lies behind `size`, if nobody has written since the file was held."""
        with storage_failures(self.path, "shorten the file"):
            if self._fs.fstat(self._fd).st_size != self.size:
                raise self._moved()
            self._fs.truncate(self._fd, size)
        self.size = size

    def replace(self, content: Iterable[bytes]) -> None:
        """Put a new file with this content in place of the old one; what others append meanwhile comes with it."""
        fs = self._fs
        temp = atomic.temp_beside(self.path)
        fd = -1
        try:
            atomic.write_new(fs, temp, content)
            fd = fs.open(temp, _EXISTING)
            fs.lock(fd)  # before anybody can know the file
            if fs.fstat(self._fd).st_size < self.size:
                raise self._moved()
            fs.rename(temp, self.path)
            self._bring_along(fd)
            fs.sync_directory(posixpath.dirname(self.path))
        except BaseException as error:
            atomic.remove(fs, temp)
            if fd >= 0:
                _close(fs, fd)
            if isinstance(error, OSError) and not isinstance(error, StorageFailure):
                raise storage_failure(error, self.path, "replace the file") from error
            raise
        old, self._fd = self._fd, fd
        _close(fs, old)
        with storage_failures(self.path, "look at the file"):
            status = fs.fstat(fd)
        self.identity, self.size = (status.st_dev, status.st_ino), status.st_size

    def _bring_along(self, fd: int) -> None:
        """A writer without lock may have had the old file open when it lost its name: its lines go to the new one."""
        size = self._fs.fstat(self._fd).st_size
        if size > self.size:
            atomic.write_all(self._fs, fd, b"".join(self.chunks(self.size, size)))
            self._fs.sync(fd)

    def _moved(self) -> LeafMoved:
        return LeafMoved("another program wrote into the file; nothing was changed", path=self.path, hint="try again")

    # -- durability

    def sync(self) -> None:
        """Make the content durable."""
        try:
            self._fs.sync(self._fd)
        except OSError as error:
            raise _unconfirmed(error, self.path) from error

    def close(self) -> None:
        """Free the descriptor, and with it the lock."""
        with storage_failures(self.path, "close the file"):
            self._fs.close(self._fd)


@contextmanager
def held(fs: Filesystem, path: str, *, create: bool = False, patience: float = 10.0) -> Iterator[HeldFile]:
    """The file that has this name now, its lock taken; with `create` it is made if there is none."""
    file = _take(fs, path, create, patience)
    try:
        yield file
    except BaseException:
        _close(fs, file._fd)
        raise
    file.close()


def _take(fs: Filesystem, path: str, create: bool, patience: float) -> HeldFile:
    """Open and lock, again if the name means another file by the time that the lock is ours."""
    while True:
        with storage_failures(path, "open the file"):
            fd = fs.open(path, _EXISTING | os.O_CREAT if create else _EXISTING)
        try:
            acquire(fs, fd, path, patience)
            with storage_failures(path, "look at the file"):
                file = HeldFile(fs, path, fd)
                if _identity(fs, path) == file.identity:
                    return file
        except BaseException:
            _close(fs, fd)
            raise
        with storage_failures(path, "close the file"):
            fs.close(fd)


def _identity(fs: Filesystem, path: str) -> tuple[int, int] | None:
    try:
        status = fs.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def make_durable(fs: Filesystem, path: str) -> None:
    """Sync the content and the name of a file."""
    with storage_failures(path, "open the file"):
        fd = fs.open(path, os.O_RDONLY)
    try:
        fs.sync(fd)
        fs.sync_directory(posixpath.dirname(path))
    except OSError as error:
        raise _unconfirmed(error, path) from error
    finally:
        _close(fs, fd)


def sync_name(fs: Filesystem, path: str) -> None:
    """Make the name of a file durable."""
    try:
        fs.sync_directory(posixpath.dirname(path))
    except OSError as error:
        raise _unconfirmed(error, path) from error


def _unconfirmed(error: OSError, path: str) -> SyncFailed:
    return SyncFailed(
        f"the storage did not confirm that data is durable: {error.strerror or error}",
        path=path,
        hint="what was acknowledged before is safe; check the disk, then open the session again",
        code=error.errno,
    )


def _close(fs: Filesystem, fd: int) -> None:
    """Free a descriptor on the way out: what went wrong before counts more."""
    try:
        fs.close(fd)
    except OSError:
        pass
