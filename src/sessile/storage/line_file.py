"""A file of lines that belongs to another program, changed by one call at a time under its lock.

Rules: an append is one write that begins on a line of its own, whatever stands at the end; one that fails is taken back if
it is still ours. A removal at the very end is one truncation, any other change is a new file that takes the name of the old
one at once; so a kill leaves the old bytes or the new ones. The other program may know nothing of the lock: what it writes
meanwhile is looked for, and kept.

It knows bytes and newlines, not what the lines mean. Nothing is open between two calls.

Files of rows that other programs append to as well: add rows at the end, put one row in place of another.

Rules: rows begin on a line of their own, whatever stands before them. Rows that were written stay readable even if somebody
else wrote at the same moment or put another file in place. A row is replaced by putting a whole new file in place at once;
what others add to the old file meanwhile is carried over, and until that is done the old file keeps a second name.

Our own processes take turns by `flock`, which other programs do not know and are not held up by. It does not know what a
row means.

A text file of somebody else's to which we append: notes that a person reads, edits, and other programs write too.

Rules:
- Nothing that is there is changed. What is appended goes to the end in one write, and is durable when this returns.
- Writers of ours take turns by `flock` on the file itself, so that no lock lies about in a person's folder. Whoever waited looks
  again whether the file still has its name: an editor may have put another in its place.
- Whatever is appended is a function of what the file holds under the lock. Of nothing to append, what is there is made durable:
  it may be from somebody who died before it was.
- What could not be written whole, or was not confirmed, is cut off again, unless somebody else has appended behind it. A kill can
  leave a beginning of it only where the system does not write it at once.
- Neither the file nor its folder may be a symbolic link. A new file has mode 0600; others keep theirs.

It does not know what is appended.
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
from sessile.storage.base import Filesystem, Stat
from sessile.storage.locks import acquire

# --- line file

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


# --- row file

_PATIENCE = 10.0
_TRIES = 8  # others who replace the file or write between at every one of them are no accident
_NEWLINE = b"\n"


class Added(NamedTuple):
    """Where rows lie that were added, and what the file is now."""

    offset: int
    stat: Stat


def add_rows(fs: Filesystem, path: str, data: bytes, *, create: bool = False, settled: bool = False) -> Added:
    """Write whole rows, newlines included, at the end of a file, durably; one that is missing is only made on demand.

    `settled` says that the name of the file is durable already.
    """
    lines = data.removesuffix(_NEWLINE).split(_NEWLINE)
    return add_chosen_rows(fs, path, lambda: lines, create=create, settled=settled)


def add_chosen_rows(
    fs: Filesystem, path: str, choose: Callable[[], Sequence[bytes]], *, create: bool = False, settled: bool = False
) -> Added:
    """The same of rows, without newlines, that are chosen when the lock is held; perhaps none, perhaps more than once."""
    for _ in range(_TRIES):
        with held(fs, path, create=create, patience=_PATIENCE) as file:
            create = False  # what is deleted from here on stays deleted
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
        # Somebody has put another file in place: ours is not there any more, so the rows go into that one.
        settled = False
    raise StorageFailure("another program replaces the file without pause", path=path, hint="end it, then try again")


def replace_row(fs: Filesystem, path: str, offset: int, old: bytes, new: bytes, aside: str) -> None:
    """Put `new` in place of the row `old` at `offset`; until all is safe the file as it was is also called `aside`."""
    temp = atomic.temp_beside(path)
    temporary = [temp]
    with storage_failures(path, "rewrite a row"):
        fd = fs.open(path, os.O_RDWR)
        try:
            acquire(fs, fd, path, _PATIENCE)
            size = fs.fstat(fd).st_size
            if fs.read(fd, len(old), offset) != old or not _is_named(fs, fd, path):
                raise LeafMoved("another program has changed the row", path=path, hint="read the session again")
            atomic.write_new(fs, temp, _edited(fs, fd, size, offset, old, new))
            atomic.keep(fs, path, aside)
            if not _is_named(fs, fd, path):
                raise LeafMoved("another program has replaced the file", path=path, hint="read the session again")
            fs.rename(temp, path)
            temporary.clear()
            fs.sync_directory(posixpath.dirname(path))
            late = fs.read(fd, fs.fstat(fd).st_size - size, size)
        finally:
            fs.close(fd)
            for name in temporary:
                atomic.remove(fs, name)
    if late:
        add_rows(fs, path, late if late.endswith(_NEWLINE) else late + _NEWLINE)
    with storage_failures(aside, "remove a second name"):
        fs.unlink(aside)


def _edited(fs: Filesystem, fd: int, size: int, offset: int, old: bytes, new: bytes) -> Iterator[bytes]:
    yield from _pieces(fs, fd, 0, offset)
    yield new
    yield from _pieces(fs, fd, offset + len(old), size)


def _pieces(fs: Filesystem, fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (chunk := fs.read(fd, min(CHUNK, end - start), start)):
        yield chunk
        start += len(chunk)


def _is_named(fs: Filesystem, fd: int, path: str) -> bool:
    """Whether the path still means this file."""
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    held = fs.fstat(fd)
    return (named.st_ino, named.st_dev) == (held.st_ino, held.st_dev)


# --- appended text

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_APPENDED_TEXT_TRIES = 20  # a program that replaces the file during each of them is no person
_CHUNK = 1 << 20
_NO_LINKS = "symbolic links are not followed; put a folder and a plain file there"


def append_text(fs: Filesystem, path: str, addition: Callable[[bytes], bytes]) -> bool:
    """Append what `addition` makes of the content of a file, in a folder that exists; says whether that was anything."""
    with storage_failures(path, "append to a file"):
        for _ in range(_APPENDED_TEXT_TRIES):
            _check_folder(fs, path)
            fd = fs.open(path, _FLAGS)
            try:
                acquire(fs, fd, path, _PATIENCE)
                _check_folder(fs, path)  # once more: a link that took its place before the file was opened is one
                if _appended_text_is_named(fs, path, fd):
                    return _append(fs, path, fd, addition)
            finally:
                fs.close(fd)
    raise SessionBusy("another program replaces the file without pause", path=path, hint="end it, then try again")


def _check_folder(fs: Filesystem, path: str) -> None:
    folder = posixpath.dirname(path)
    if not atomic.is_folder(fs, folder):
        raise UnsafePath("a folder is needed where a file or a link is", path=folder, hint=_NO_LINKS)


def _appended_text_is_named(fs: Filesystem, path: str, fd: int) -> bool:
    """Whether a name means the open file, which must be a plain one."""
    opened = fs.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
        raise UnsafePath("only a plain file can be appended to", path=path, hint=_NO_LINKS)
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _append(fs: Filesystem, path: str, fd: int, addition: Callable[[bytes], bytes]) -> bool:
    content = _content(fs, fd)
    new = addition(content)
    try:
        atomic.write_all(fs, fd, new)
        fs.sync(fd)
    except OSError:
        _take_back(fs, fd, len(content), len(new))
        raise
    fs.sync_directory(posixpath.dirname(path))
    return bool(new)


def _content(fs: Filesystem, fd: int) -> bytes:
    chunks = []
    size = 0
    while chunk := fs.read(fd, _CHUNK, size):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _take_back(fs: Filesystem, fd: int, size: int, most: int) -> None:
    """Cut off what was appended, if it is the end of the file; what went wrong before counts more."""
    try:
        if size < fs.fstat(fd).st_size <= size + most:
            fs.truncate(fd, size)
    except OSError:
        pass
