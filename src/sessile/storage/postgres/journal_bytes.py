"""Bytes of many journals at once, for the catalog: their ends, and what was appended to them, in one query each.

Rules: the rows of a journal tile its file, each with what follows it up to the next. Nothing is read twice, and of a long line
at an end only the end. It does not know what the bytes mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sessile.core.hashes import blake2b
from sessile.storage.base import Filesystem
from sessile.storage.counting import FIT
from sessile.storage.postgres.database import Database

_ENOUGH = 4096  # bytes at an end: what a look reads of a file

_NEWLINE = "coalesce(gap, '\\x0a'::bytea)"
_LENGTH = f"octet_length(e.body) + octet_length({_NEWLINE})"
_ENDS = f"""
    WITH w AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[]) AS w (file, size))
    SELECT w.file, true, e.start, {_LENGTH}, substring(e.body || {_NEWLINE} from 1 for {_ENOUGH})
    FROM w JOIN entry e ON e.file = w.file AND e.start < {_ENOUGH}
    UNION ALL
    SELECT w.file, false, e.start, {_LENGTH},
        substring(e.body || {_NEWLINE} from greatest(1, {_LENGTH} - {_ENOUGH} + 1))
    FROM w CROSS JOIN LATERAL (
        SELECT start, body, gap FROM entry WHERE file = w.file AND start >= coalesce(
            (SELECT max(start) FROM entry WHERE file = w.file AND start <= w.size - {_ENOUGH}), 0)) e"""
# From the row on in which what must not have changed begins, up to another place.
_STRETCHES = f"""
    SELECT w.file, e.start, e.body || {_NEWLINE}
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS w (file, place, until)
    CROSS JOIN LATERAL (
        SELECT start, body, gap FROM entry WHERE file = w.file AND start < w.until AND start >= coalesce(
            (SELECT max(start) FROM entry WHERE file = w.file AND start <= w.place - {FIT}), 0)) e
    ORDER BY w.file, e.start"""


class Wanted(NamedTuple):
    """A stretch of a journal: from a place up to another, or to the end of the line that lies there."""

    file: int
    place: int
    until: int


class Stretch(NamedTuple):
    """Bytes of a session file, and where they begin: far enough before the place where reading goes on."""

    start: int
    data: bytes

    def behind(self, place: int) -> bytes:
        """The bytes from a place on."""
        return self.data[place - self.start :]

    def fit(self, place: int) -> bytes | None:
        """A hash of what lies before a place: whoever reads on there must find the same. `None` if that is not all here."""
        first = max(0, place - FIT)
        return blake2b(self.data[first - self.start : place - self.start], 16) if first >= self.start else None


class Ends:
    """The two ends of a journal as a file that is open for reading; what lies between is read only if somebody asks."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read = read
        self._head = b""
        self._tail = b""

    def add_head(self, start: int, data: bytes) -> None:
        """The next row from the beginning, or the beginning of it."""
        if start == len(self._head):
            self._head += data

    def add_tail(self, start: int, length: int, data: bytes) -> None:
        """The next row from the end, or the end of it."""
        if start + length == self._size - len(self._tail):
            self._tail = data + self._tail

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes from an offset, as a file system reads them."""
        end = min(offset + size, self._size)
        if end <= len(self._head):
            return self._head[offset:end]
        start = self._size - len(self._tail)
        if offset >= start:
            return self._tail[offset - start : end - start]
        return self._read(size, offset)


def ends_of(database: Database, fs: Filesystem, journals: Sequence[tuple[int, str, int]]) -> dict[int, Ends]:
    """The ends of journals, given their files, paths and sizes."""
    found = {file: Ends(size, _reader(fs, path)) for file, path, size in journals}
    sizes = [size for _, _, size in journals]
    rows = sorted(database.query(_ENDS, (list(found), sizes), again=True) if found else ())
    for file, _, start, _, data in (row for row in rows if row[1]):
        found[file].add_head(start, data)
    for file, _, start, length, data in (row for row in reversed(rows) if not row[1]):
        found[file].add_tail(start, length, data)
    return found


def stretches_of(database: Database, wanted: Sequence[Wanted]) -> dict[int, Stretch]:
    """Stretches of journals; those without a row are left out."""
    files, places, untils = zip(*wanted, strict=True) if wanted else ((), (), ())
    pieces: dict[int, list[bytes]] = {}
    starts: dict[int, int] = {}
    for file, start, data in database.query(_STRETCHES, (list(files), list(places), list(untils)), again=True):
        pieces.setdefault(file, []).append(data)
        starts.setdefault(file, start)
    return {file: Stretch(starts[file], b"".join(several)) for file, several in pieces.items()}


def _reader(fs: Filesystem, path: str) -> Callable[[int, int], bytes]:
    def read(size: int, offset: int) -> bytes:
        fd = fs.open(path, os.O_RDONLY)
        try:
            return fs.read(fd, size, offset)
        finally:
            fs.close(fd)

    return read
