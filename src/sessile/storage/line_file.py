"""Append lines to a file that other writers may append to as well: the one implementation for all journals and foreign files.

The steps of an append, under the file's lock: start on a new line, write once, check that the end of the file is where it
must be, sync. `write_lines` makes the write and takes it back if it fails; `find_or_repeat` handles a writer that ignored
the lock. The native journal (`FileJournal`) keeps its own descriptor open and calls these two directly. Everything else
goes through `held`, which opens, locks and checks the file for one call:

- `HeldFile`: append lines, truncate, or replace the content of a foreign file.
- `add_rows`, `add_chosen_rows`, `replace_row`: change files of rows that other programs append to.
- `append_text`: append to a text file that users edit, such as notes.

Rules:

- Existing bytes stay, except where the caller removes or replaces a line. Lines start on a new line, whatever is before them.
- A short or failed write is truncated away if it is still the end of the file; otherwise the next append starts a new line.
- Lines that were glued to a fragment of another writer are written again.
- A content is replaced by renaming a new file, so a kill leaves the old bytes or the new ones. Lines that a writer without
  the lock adds to the old file during the rename are carried over.
- The lock is `flock`. Other programs do not know it, and it does not block them.

This module knows bytes and newlines, not what the lines mean.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sessile.errors import (
    LeafMoved,
    SessionBusy,
    StorageFailure,
    SyncFailed,
    UnsafePath,
    storage_failure,
    storage_failures,
)
from sessile.storage import atomic, log
from sessile.storage.base import CHUNK, Filesystem, Stat
from sessile.storage.locks import acquire

_EXISTING = os.O_RDWR | os.O_APPEND
_NEWLINE = b"\n"
_PATIENCE = 10.0  # seconds to wait for the lock
_REPEATS = 100  # times that lines are written again because another program writes into them
_REOPENS = 20  # times that a file is opened again because another program has replaced it
_TRIES = 8  # times that rows are added again because another program has replaced the file
_NO_LINKS = "symbolic links are not followed; use a real folder and a regular file"


# -- the append protocol


def write_lines(fs: Filesystem, fd: int, path: str, size: int, data: bytes) -> Stat:
    """Write at the end of a file, which is at `size`, and return the file's status after the write.

    If not all of the data can be written, take back what was and raise. The caller holds the lock and compares the end
    with `size + len(data)`. Every append of a native session comes here: keep it to two system calls.
    """
    written = 0
    try:
        written = fs.write(fd, data)
        if written < len(data):
            # A full disk shows as a short write; the next write says why.
            written += fs.write(fd, data[written:])
            if written < len(data):
                raise OSError(errno.EIO, "the storage wrote only a part of the data")
        return fs.fstat(fd)
    except OSError as error:
        if written < len(data):
            _take_back(fs, fd, path, size, written)
        raise storage_failure(error, path, "append to the file") from error


def _take_back(fs: Filesystem, fd: int, path: str, size: int, written: int) -> None:
    """Truncate our own bytes, unless another writer has appended behind them: then the next append starts a new line."""
    try:
        if written and fs.fstat(fd).st_size == size + written:
            fs.truncate(fd, size)
    except OSError as error:
        log.warning("an incomplete line remains at the end of %s: %s", path, error)


def find_or_repeat(
    fs: Filesystem, fd: int, path: str, size: int, body: bytes, check_shorter: Callable[[], None] | None = None
) -> int | None:
    """Make sure that lines just written behind `size` are on lines of their own, although another writer came between.

    Return where the lines end; `None` if the file has lost its name. `check_shorter` is called if the file has become
    shorter than `size`, and may raise.
    """
    alone = _NEWLINE + body
    for _ in range(_REPEATS):
        with storage_failures(path, "look at the file"):
            status = fs.fstat(fd)
        if not status.st_nlink:
            return None
        if status.st_size < size and check_shorter is not None:
            check_shorter()
        with storage_failures(path, "read the file"):
            behind = b"".join(_chunks(fs, fd, max(0, size - 1), status.st_size))
        at = (behind if size else _NEWLINE + behind).rfind(alone)  # the start of a file is the start of a line
        if at >= 0:
            return size - 1 + at + len(alone)
        # The lines are glued to a fragment of the other writer.
        size = status.st_size
        with storage_failures(path, "append to the file"):
            fs.write(fd, alone)
    raise StorageFailure(
        "another program keeps writing into the file", path=path, hint="stop that program, then try again"
    )


def _chunks(fs: Filesystem, fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (chunk := fs.read(fd, min(CHUNK, end - start), start)):
        yield chunk
        start += len(chunk)


# -- a file held for one call


class HeldFile:
    """A file whose lock we hold; made by `held`."""

    def __init__(self, fs: Filesystem, path: str, fd: int) -> None:
        self.path = path
        self._fs = fs
        self._fd = fd
        status = fs.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("not a regular file", path=path, hint=_NO_LINKS)
        self.identity = (status.st_dev, status.st_ino)
        self.size = status.st_size

    def peek(self, offset: int, length: int) -> bytes:
        """Return a few bytes."""
        with storage_failures(self.path, "read the file"):
            return self._fs.read(self._fd, length, offset)

    def status(self) -> Stat:
        """Return the current status of the file."""
        with storage_failures(self.path, "look at the file"):
            return self._fs.fstat(self._fd)

    def has_its_name(self) -> bool:
        """Return whether the path still means this file."""
        with storage_failures(self.path, "look at the file"):
            return _identity(self._fs, self.path) == self.identity

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes between two offsets, in pieces."""
        with storage_failures(self.path, "read the file"):
            yield from _chunks(self._fs, self._fd, start, end)

    # -- appending

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines in one write and return the offset of the first one."""
        body = b"".join(line + _NEWLINE for line in lines)
        torn = self.size > 0 and self.peek(self.size - 1, 1) != _NEWLINE
        data = _NEWLINE + body if torn else body
        status = write_lines(self._fs, self._fd, self.path, self.size, data)
        end: int | None = status.st_size
        if not status.st_nlink:
            end = None
        elif end != self.size + len(data):
            end = find_or_repeat(self._fs, self._fd, self.path, self.size, body)
        if end is None:
            raise LeafMoved("another program has replaced the file", path=self.path, hint="try again")
        self.size = end
        return end - len(body)

    def append_text(self, text: bytes) -> None:
        """Append text as it is, durably, or take it back and raise.

        Text that another writer's bytes precede is not written again: users can read it where it is.
        """
        fs = self._fs
        if text:
            write_lines(fs, self._fd, self.path, self.size, text)
        with storage_failures(self.path, "append to the file"):
            try:
                fs.sync(self._fd)
            except OSError:
                _take_back(fs, self._fd, self.path, self.size, len(text))
                raise
            fs.sync_directory(posixpath.dirname(self.path))
        self.size += len(text)

    # -- removing and replacing

    def truncate(self, size: int) -> None:
        """Drop everything from `size` on, if no other program has written since the file was locked."""
        with storage_failures(self.path, "truncate the file"):
            if self._fs.fstat(self._fd).st_size != self.size:
                raise self._changed()
            self._fs.truncate(self._fd, size)
        self.size = size

    def replace(self, content: Iterable[bytes], keep_as: str | None = None) -> None:
        """Put a new file with this content in place of the old one, and carry over what others appended to that.

        With `keep_as` the old file stays reachable under that name.
        """
        fs = self._fs
        opened: list[int] = []  # the new file, locked before any other process can know it

        def check(temp: str) -> None:
            if fs.fstat(self._fd).st_size < self.size or not self.has_its_name():
                raise self._changed()

        def carry_over() -> None:
            # A writer without the lock may have had the old file open when it lost its name.
            size = fs.fstat(self._fd).st_size
            if size > self.size:
                late = b"".join(_chunks(fs, self._fd, self.size, size))
                write_lines(fs, opened[0], self.path, fs.fstat(opened[0]).st_size, late)
                fs.sync(opened[0])

        try:
            atomic.replace(fs, self.path, content, keep_as=keep_as, before=check, after=carry_over, held=opened)
        except BaseException:
            for fd in opened:
                atomic.close_quietly(fs, fd)
            raise
        old, self._fd = self._fd, opened[0]
        atomic.close_quietly(fs, old)
        status = self.status()
        self.identity, self.size = (status.st_dev, status.st_ino), status.st_size

    def _changed(self) -> LeafMoved:
        return LeafMoved("another program has changed the file; nothing was written", path=self.path, hint="try again")

    # -- durability

    def sync(self) -> None:
        """Make the content durable."""
        try:
            self._fs.sync(self._fd)
        except OSError as error:
            raise _unconfirmed(error, self.path) from error

    def close(self) -> None:
        """Close the descriptor, and with it release the lock."""
        with storage_failures(self.path, "close the file"):
            self._fs.close(self._fd)


@contextmanager
def held(fs: Filesystem, path: str, *, create: bool = False, patience: float = 10.0) -> Iterator[HeldFile]:
    """Hold the lock of the file that has this name now; with `create` make it if there is none."""
    file = _lock(fs, path, create, patience)
    try:
        yield file
    except BaseException:
        atomic.close_quietly(fs, file._fd)
        raise
    file.close()


def _lock(fs: Filesystem, path: str, create: bool, patience: float) -> HeldFile:
    """Open and lock, again if the name means another file by the time that we have the lock."""
    for _ in range(_REOPENS):
        with storage_failures(path, "open the file"):
            fd = fs.open(path, _EXISTING | os.O_CREAT if create else _EXISTING)
        try:
            acquire(fs, fd, path, patience)
            with storage_failures(path, "look at the file"):
                file = HeldFile(fs, path, fd)
                if _identity(fs, path) == file.identity:
                    return file
        except BaseException:
            atomic.close_quietly(fs, fd)
            raise
        with storage_failures(path, "close the file"):
            fs.close(fd)
    raise SessionBusy("another program keeps replacing the file", path=path, hint="stop that program, then try again")


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
        atomic.close_quietly(fs, fd)


def sync_name(fs: Filesystem, path: str) -> None:
    """Make the name of a file durable."""
    try:
        fs.sync_directory(posixpath.dirname(path))
    except OSError as error:
        raise _unconfirmed(error, path) from error


def _unconfirmed(error: OSError, path: str) -> SyncFailed:
    return SyncFailed(
        f"the storage did not confirm that the data is durable: {error.strerror or error}",
        path=path,
        hint="everything acknowledged before is safe; check the disk, then reopen the session",
        code=error.errno,
    )


# -- rows


class Added(NamedTuple):
    """The offset of the first added row, and the status of the file."""

    offset: int
    stat: Stat


def add_rows(fs: Filesystem, path: str, data: bytes, *, create: bool = False, settled: bool = False) -> Added:
    """Append whole rows, newlines included, durably. With `create` make a missing file.

    `settled` means that the name of the file is known to be durable.
    """
    lines = data.removesuffix(_NEWLINE).split(_NEWLINE)
    return add_chosen_rows(fs, path, lambda: lines, create=create, settled=settled)


def add_chosen_rows(
    fs: Filesystem, path: str, choose: Callable[[], Sequence[bytes]], *, create: bool = False, settled: bool = False
) -> Added:
    """Append the rows (without newlines) that `choose` returns under the lock.

    `choose` may return no rows. It is called again if another program replaces the file.
    """
    for _ in range(_TRIES):
        with held(fs, path, create=create, patience=_PATIENCE) as file:
            create = False  # a file that is deleted from here on stays deleted
            lines = choose()
            if not lines:
                return Added(file.size, file.status())
            try:
                offset = file.append(lines)
            except LeafMoved:
                settled = False
                continue
            file.sync()
            if not settled:
                sync_name(fs, path)
            if file.has_its_name():
                return Added(offset, file.status())
        # Another program has put a new file in place, without our rows.
        settled = False
    raise StorageFailure(
        "another program keeps replacing the file", path=path, hint="stop that program, then try again"
    )


def replace_row(fs: Filesystem, path: str, offset: int, old: bytes, new: bytes, aside: str) -> None:
    """Replace the row `old` at `offset`. Until the new file is complete, the old one is also reachable as `aside`."""
    with held(fs, path, patience=_PATIENCE) as file:
        size = file.size

        def edited() -> Iterator[bytes]:
            yield from file.chunks(0, offset)
            yield new
            yield from file.chunks(offset + len(old), size)

        if file.peek(offset, len(old)) != old:
            raise LeafMoved("another program has changed the row", path=path, hint="read the session again")
        file.replace(edited(), keep_as=aside)
    with storage_failures(aside, "remove a second name"):
        fs.unlink(aside)


# -- text


def append_text(fs: Filesystem, path: str, addition: Callable[[bytes], bytes]) -> bool:
    """Append what `addition` returns for the content of a file, durably. Return whether that was anything.

    The folder must exist, and neither it nor the file may be a symbolic link. If there is nothing to append, the content
    is made durable: the process that wrote it may have died before its sync.
    """
    for _ in range(_REOPENS):
        _check_folder(fs, path)
        with held(fs, path, create=True, patience=_PATIENCE) as file:
            _check_folder(fs, path)  # again: it may have been replaced by a link before the file was opened
            if file.has_its_name():
                text = addition(b"".join(file.chunks(0, file.size)))
                file.append_text(text)
                return bool(text)
    raise SessionBusy("another program keeps replacing the file", path=path, hint="stop that program, then try again")


def _check_folder(fs: Filesystem, path: str) -> None:
    folder = posixpath.dirname(path)
    with storage_failures(folder, "look at the folder"):
        if not atomic.is_folder(fs, folder):
            raise UnsafePath("not a folder", path=folder, hint=_NO_LINKS)
