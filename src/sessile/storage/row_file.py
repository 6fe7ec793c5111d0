"""Files of rows that other programs append to as well: add rows at the end, put one row in place of another.

Rules: rows begin on a line of their own, whatever stands before them. Rows that were written stay readable even if somebody
else wrote at the same moment or put another file in place. A row is replaced by putting a whole new file in place at once;
what others add to the old file meanwhile is carried over, and until that is done the old file keeps a second name.

Our own processes take turns by `flock`, which other programs do not know and are not held up by. It does not know what a
row means.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from typing import NamedTuple

from sessile.errors import LeafMoved, StorageFailure, UnsafePath, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat
from sessile.storage.lock import acquire

CHUNK = 1 << 20
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
    with storage_failures(path, "append to the session"):
        for _ in range(_TRIES):
            fd = fs.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0))
            create = False  # what is deleted from here on stays deleted
            try:
                acquire(fs, fd, path, _PATIENCE)
                _check_plain(fs.fstat(fd), path)
                added = _write(fs, fd, path, data)
                fs.sync(fd)
                if not settled:
                    fs.sync_directory(posixpath.dirname(path))
                if _is_named(fs, fd, path):
                    return Added(added, fs.fstat(fd))
                # Somebody has put another file in place: ours is not there any more, so the rows go into that one.
                settled = False
            finally:
                fs.close(fd)
    raise StorageFailure("another program replaces the file without pause", path=path, hint="end it, then try again")


def _write(fs: Filesystem, fd: int, path: str, data: bytes) -> int:
    """Write once, on a line of its own; gives the place of the first row."""
    for _ in range(_TRIES):
        size = fs.fstat(fd).st_size
        torn = size > 0 and fs.read(fd, 1, size - 1) != _NEWLINE
        whole = _NEWLINE + data if torn else data
        written = 0
        try:
            written = fs.write(fd, whole)
            while written < len(whole):
                more = fs.write(fd, whole[written:])
                if not more:
                    raise OSError(errno.EIO, "the storage took only a part of the row")
                written += more
        except OSError:
            _take_back(fs, fd, path, size, written)
            raise
        if fs.fstat(fd).st_size == size + len(whole):
            return size + len(whole) - len(data)
        place = _find(fs, fd, data, size)
        if place is not None:
            return place
        # Another program wrote at that moment and ours was glued to its row: write once more.
    raise StorageFailure("another program writes into the session without pause", path=path)


def _find(fs: Filesystem, fd: int, data: bytes, start: int) -> int | None:
    """Where rows lie on lines of their own, behind `start`."""
    before = max(0, start - 1)
    tail = fs.read(fd, fs.fstat(fd).st_size - before, before)
    if not start and tail.startswith(data):
        return 0
    place = tail.rfind(_NEWLINE + data)
    return None if place < 0 else before + place + 1


def _take_back(fs: Filesystem, fd: int, path: str, size: int, written: int) -> None:
    """Remove a part of a row, unless somebody has written behind it: then the next row begins a new line."""
    try:
        if written and fs.fstat(fd).st_size == size + written:
            fs.truncate(fd, size)
    except OSError as error:
        log.warning("a fragment stays at the end of %s: %s", path, error)


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


def _check_plain(status: Stat, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePath("this is not a plain file", path=path)
