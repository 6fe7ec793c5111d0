"""Files of rows that other programs append to as well: add rows at the end, put one row in place of another.

Rules: rows begin on a line of their own, whatever stands before them. Rows that were written stay readable even if somebody
else wrote at the same moment or put another file in place. A row is replaced by putting a whole new file in place at once;
what others add to the old file meanwhile is carried over, and until that is done the old file keeps a second name.

Our own processes take turns by `flock`, which other programs do not know and are not held up by. It does not know what a
row means.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sessile.errors import LeafMoved, StorageFailure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.line_file import held, sync_name
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
