"""A session file as bytes, whether it is a session or not: read from end to end, and replaced under its lock.

For checks and repairs, which must not stumble over what they look for: nothing here needs a header or an index. Reading
changes nothing. A replaced file is the old one or the new one, whole; the old one stays reachable under another name.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator

from sessile.errors import LeafMoved, SessileError, UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.lock import acquire

CHUNK = 1 << 20


class RawFile:
    """One plain file, open for reading; its size is that of the moment when it was opened or held."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._fd = -1
        with storage_failures(path, "open the file"):
            self._fd = fs.open(path, os.O_RDONLY)
        try:
            self.stat = self._look()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the descriptor, and with it the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with storage_failures(self.path, "close the file"):
                self._fs.close(fd)

    @property
    def size(self) -> int:
        return self.stat.st_size

    def _look(self) -> Stat:
        with storage_failures(self.path, "look at the file"):
            status = self._fs.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("this is not a plain file", path=self.path)
        return status

    def peek(self, offset: int, length: int) -> bytes:
        """A few bytes."""
        with storage_failures(self.path, "read the file"):
            return self._fs.read(self._fd, length, offset)

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes between two places, or all of them, in pieces."""
        end = self.size if end is None else end
        while start < end and (chunk := self.peek(start, min(CHUNK, end - start))):
            yield chunk
            start += len(chunk)

    def is_unchanged(self) -> bool:
        """Whether the file is still what it was when it was opened; one that lost its name meanwhile is."""
        now = self._look()
        return (now.st_size, now.st_mtime_ns) == (self.stat.st_size, self.stat.st_mtime_ns)

    # -- the lock

    def is_held(self) -> bool:
        """Whether another handle holds the lock of the file. Asking takes it for a moment."""
        with storage_failures(self.path, "look whether the session is open"):
            if not self._fs.lock(self._fd):
                return True
            self._fs.unlock(self._fd)
        return False

    def hold(self, patience: float) -> None:
        """Keep the lock until the file is closed; the path must still mean this file."""
        acquire(self._fs, self._fd, self.path, patience)
        with storage_failures(self.path, "look at the file"):
            named = self._fs.lstat(self.path)
        self.stat = self._look()
        if (named.st_ino, named.st_dev) != (self.stat.st_ino, self.stat.st_dev):
            raise LeafMoved("another program has replaced the file", path=self.path, hint="try again")

    # -- replacing

    def replace(self, content: Iterable[bytes], keep: str) -> None:
        """Put this content in place of the file, which must be held; as it was it stays under the name `keep`.

        The new file has the time of modification of the old one: nobody has said anything in it since.
        """
        fs = self._fs
        temp = atomic.temp_beside(self.path)
        temporary = [temp]
        opened: list[int] = []
        try:
            atomic.write_new(fs, temp, content)
            opened.append(fs.open(temp, os.O_RDWR))
            fs.lock(opened[0])  # before anybody can know the file, so that nobody writes before we are done
            if self._look().st_size != self.size:
                raise LeafMoved(
                    "another program wrote into the session during the repair; nothing was changed",
                    path=self.path,
                    hint="try again",
                )
            fs.set_modified(opened[0], self.stat.st_mtime_ns)
            atomic.keep(fs, self.path, keep)
            temporary.append(keep)
            fs.rename(temp, self.path)
            temporary.clear()
            fs.sync_directory(posixpath.dirname(self.path))
            fs.close(opened.pop())
        except BaseException as error:
            for name in temporary:
                atomic.remove(fs, name)
            for fd in opened:
                _close(fs, fd)
            if isinstance(error, OSError) and not isinstance(error, SessileError):
                raise storage_failure(error, self.path, "repair the session") from error
            raise


def _close(fs: Filesystem, fd: int) -> None:
    """Free a descriptor on the way out: what went wrong before counts more."""
    try:
        fs.close(fd)
    except OSError:
        pass


def is_held(fs: Filesystem, path: str) -> bool:
    """Whether somebody holds the lock of a file."""
    with RawFile(fs, path) as file:
        return file.is_held()
