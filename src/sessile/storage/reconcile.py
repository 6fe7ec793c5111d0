"""Bringing the rows of a catalog up to date with the files that a walk has found: only what changed is read.

Rules:

- A file is as it was if size, time of modification and inode are. One that grew is read on from where it was left, if the
  bytes before that place are still the same; any other change is read anew, under a new number.
- Head and tail come first, so that every row can be shown; counting and indexing follow, newest sessions first.
- Everything is done in short transactions and can stop between two of them; the next one goes on there. A line that has no
  newline yet is counted for show, and read again next time.
- Only rows below the given places are touched. Nothing here writes anywhere but into the database.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import astuple

from sessile.core.hashes import blake2b
from sessile.storage import fulltext
from sessile.storage.base import NATIVE, Filesystem, Stat
from sessile.storage.catalog_rows import COUNTS, Known, counts_as_columns, storable, within
from sessile.storage.counting import FIT, NEAR, TINY, Counting, Reading
from sessile.storage.glance import Glance, glance
from sessile.storage.packed import Rows, is_packed, open_rows
from sessile.storage.session_file import CHUNK
from sessile.storage.walk import INODES, Found, Mark

Depth = Literal["look", "count", "index"]

_LOOKS = 64  # files that are looked at before their rows are written
_BATCH = 0.25  # seconds of one transaction
_GROUP = 16 << 20  # bytes of journals whose words are written at once

_COLUMNS = ("number", "path", "size", "mtime_ns", "inode", "sub_agent", "format", "problem", *Glance.__struct_fields__)
_LOOKED = ", ".join(_COLUMNS)
# Of a session, unknown texts come as empty ones, and paths as bytearrays: sqlite3 offers `None` and bytes to adapters first,
# which takes longer than to store them.
_TEXTS = ("title", "created", "parent", "first_text", "last_role", "last_status", "header_title", "problem", "origin")
_ROW = ", ".join("nullif(?, '')" if name in _TEXTS else "?" for name in _COLUMNS)
_INSERT = f"INSERT INTO sessions ({_LOOKED}) VALUES ({_ROW})"
_CHANGE = (
    f"UPDATE sessions SET ({_LOOKED}) = ({_ROW}), counted = 0, searchable = 0,"
    f" {', '.join(f'{name} = NULL' for name in COUNTS)}, spending = NULL WHERE number = ?"
)
_UNKNOWN = (None,) * len(Glance.__struct_fields__)
_NO_SESSION = (None, "it does not begin with a session header", *_UNKNOWN)
# Numbers of sessions that are gone are not used again as long as the index holds their words.
_LAST_NUMBER = (
    "SELECT max(coalesce((SELECT max(number) FROM sessions), 0), coalesce((SELECT max(number) FROM gone), 0))"
)
_PLACE = (
    "SELECT number, path, size, covered, fit, state, indexed, passages, header_at, version, header_title, format"
    " FROM sessions"
)
_PLACED = "covered = ?, fit = ?, state = ?, indexed = ?, passages = ?"
_SAVE = f"UPDATE sessions SET {_PLACED} WHERE number = ?"
_TELL = (
    f"UPDATE sessions SET {_PLACED}, counted = 1, searchable = ?, title = ?, first_text = ?, last_role = ?,"
    f" last_status = ?, {', '.join(f'{name} = ?' for name in COUNTS)}, spending = ? WHERE number = ?"
)


class Progress(NamedTuple):
    """How far a catch-up is: files that were looked at, or bytes that were read."""

    doing: Depth
    done: int
    total: int


class Enough(Exception):
    """The deadline has come; what is done is done."""


class Reconciler:
    """One catch-up with a database that is ours for the moment."""

    def __init__(
        self,
        fs: Filesystem,
        database: sqlite3.Connection,
        keeps: bool,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
    ) -> None:
        self._fs = fs
        self._db = database
        self._keeps = keeps  # else the words belong to another process
        self._progress = progress
        self._deadline = deadline
        self._done = self._total = 0
        self._doing: Depth = "look"
        self._batch_began = 0.0
        self._last_number = 0
        self._new: list[tuple[Any, ...]] = []

    # -- transactions

    def _begin(self, doing: Depth, total: int) -> None:
        self._doing, self._done, self._total = doing, 0, total
        self._db.execute("BEGIN IMMEDIATE")
        self._batch_began = time.monotonic()

    def _is_long(self) -> bool:
        """Whether this batch has lasted long enough."""
        now = time.monotonic()
        return now - self._batch_began > _BATCH or self._is_over(now)

    def _is_over(self, now: float) -> bool:
        """Whether time is up. Looking is never cut short: a listing shows all sessions, or it misleads."""
        return self._deadline is not None and self._doing != "look" and now >= self._deadline

    def _next_batch(self) -> None:
        """Keep what is done, and go on unless time is up. Callers must have saved where they are."""
        self._db.execute("COMMIT")
        if self._progress is not None:
            self._progress(Progress(self._doing, self._done, self._total))
        if self._is_over(time.monotonic()):
            raise Enough
        self._db.execute("BEGIN IMMEDIATE")
        self._batch_began = time.monotonic()

    def _end(self) -> None:
        self._db.execute("COMMIT")
        if self._progress is not None:
            self._progress(Progress(self._doing, self._total, self._total))

    # -- looking

    def look(self, found: Found, known: Mapping[str, Known], changed: Sequence[str], gone: Sequence[str]) -> None:
        """Drop the rows of files that are gone, and look at the ends of those that changed."""
        if not changed and not gone:
            return
        self._begin("look", len(changed))
        (self._last_number,) = self._db.execute(_LAST_NUMBER).fetchone()
        for path in gone:
            self._forget(known[path][1])
        for start in range(0, len(changed), _LOOKS):
            for path in changed[start : start + _LOOKS]:
                self._look_at(path, found.marks[path], path in found.sub_agents, known.get(path))
            self._insert()
            self._done = min(start + _LOOKS, len(changed))
            if self._is_long():
                self._next_batch()
        self._end()

    def _look_at(self, path: str, mark: Mark, sub_agent: bool, old: Known | None) -> None:
        try:
            fd, size, _ = open_rows(self._fs, path)
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
            return
        try:
            stat = self._fs.lstat(path) if is_packed(path) else self._fs.fstat(fd)
            name, seen = NATIVE, glance(self._fs, fd, size)
            if seen is None and size:
                name, seen = self._glance_foreign(fd, size, path)
            before = None if old is None or is_packed(path) else self._resumable(fd, stat, old)
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
        else:
            file = (_stored(path), stat.st_size, stat.st_mtime_ns, stat.st_ino & INODES, int(sub_agent))
            told = _NO_SESSION if seen is None else (name, "", *astuple(seen))
            if before is None or seen is None:
                number = self._put((*file, *told), old)
            else:
                number = before.number
                self._db.execute(_CHANGE, (number, *file, *told, number))
            if seen is not None and size <= (TINY if before is None else before.covered + NEAR):
                self._read_near(fd, number, size, before, seen, name)
        finally:
            self._fs.close(fd)

    def _glance_foreign(self, fd: int, size: int, path: str) -> tuple[str, Glance | None]:
        from sessile.storage.foreign_rows import glance_foreign  # most people have sessions of one kind

        return glance_foreign(self._fs, fd, size, path) or ("", None)

    def _put(self, row: Sequence[Any], old: Known | None) -> int:
        """A new row in place of the old one; it is written with others of its kind."""
        if old is not None:
            self._forget(old[1])
        self._last_number += 1
        self._new.append((self._last_number, *row))
        return self._last_number

    def _insert(self) -> None:
        self._db.executemany(_INSERT, self._new)
        self._new.clear()

    def _forget(self, number: int) -> None:
        if self._keeps:
            fulltext.forget(self._db, number)
        self._db.execute("DELETE FROM sessions WHERE number = ?", (number,))

    def _read_near(self, fd: int, number: int, size: int, before: Reading | None, seen: Glance, name: str) -> None:
        """Count at once what is soon counted."""
        self._insert()
        row = before or Reading(number, b"", size, 0, None, None, 0, 0, 0, 0, None, name)
        row.size, row.header_at, row.version, row.header_title = (
            size,
            seen.header_at,
            seen.version,
            seen.header_title or None,
        )
        try:
            self._read_on(fd, row, index=False)
        except OSError:
            pass  # then it is counted later, or the next walk says why not

    def _resumable(self, fd: int, stat: Stat, old: Known) -> Reading | None:
        """Where to read on, if the file has only grown since; a change without growth is a rewrite."""
        _, number, size, _, inode = old
        if size is None or stat.st_size <= size or inode != stat.st_ino & INODES:
            return None
        place = self._db.execute(f"{_PLACE} WHERE number = ?", (number,)).fetchone()
        if place is None:
            return None
        reading = Reading(*place)
        return reading if reading.covered and reading.fit == self._fit(fd, reading.covered) else None

    def _fit(self, fd: int, end: int) -> bytes:
        start = max(0, end - FIT)
        return blake2b(self._fs.read(fd, end - start, start), 16)

    # -- counting and indexing

    def read(self, depth: Depth, places: Sequence[str]) -> None:
        """Read the lines of rows below these places, newest first, in groups whose words are written in rising order."""
        index = depth == "index"
        where, values = within(places)
        missing = f"format IS NOT NULL AND NOT {'searchable' if index else 'counted'} AND {where}"
        waiting = f"{_PLACE} WHERE number IN (SELECT number FROM sessions WHERE {missing}) ORDER BY number DESC"
        rows = [Reading(*row) for row in self._db.execute(waiting, values)]
        self._begin(depth, sum(row.size - row.start(index) for row in rows))
        for group in _groups(rows, index):
            for row in group:
                try:
                    fd, row.size, _ = self._rows_of(row)
                    try:
                        self._read_on(fd, row, index=index)
                    finally:
                        self._fs.close(fd)
                except OSError:
                    pass  # it stays as far as it is read; the next walk will say what became of it
                if self._is_long():
                    self._next_batch()
            self._next_batch()
        self._end()

    def _rows_of(self, row: Reading) -> Rows:
        """The rows of a file, as far as it went when it was looked at."""
        path = os.fsdecode(row.path)
        rows = open_rows(self._fs, path)
        return rows if is_packed(path) else rows._replace(size=row.size)

    def _read_on(self, fd: int, row: Reading, *, index: bool) -> None:
        """Read the lines that are not counted yet, or not indexed."""
        counting = Counting(row, index=index)
        at = counting.start
        words: list[fulltext.Words] = []
        while at < row.size:
            chunk = self._fs.read(fd, min(CHUNK, row.size - at), at)
            if not chunk:
                return  # it has been cut off meanwhile; the next walk will see that
            at += len(chunk)
            for offset, entry in counting.feed(chunk):
                words += fulltext.words_of(row.number, offset, entry)
            if self._doing != "look":
                self._done += len(chunk)
            if at < row.size:
                self._db.execute(_SAVE, (*self._place(fd, row, counting, words, index), row.number))
                words = []
                if self._is_long():
                    self._next_batch()
        place = self._place(fd, row, counting, words, index)
        counting.finish()
        self._tell(row, place, counting, index)

    def _place(
        self, fd: int, row: Reading, counting: Counting, words: Sequence[fulltext.Words], index: bool
    ) -> tuple[Any, ...]:
        """How far the lines are read; their words are written with that."""
        row.covered = counting.covered
        row.fit = self._fit(fd, row.covered)  # the last thing that may fail because of the file
        if index:
            fulltext.add(self._db, words)
            row.indexed, row.passages = counting.indexed, row.passages + len(words)
        return row.covered, row.fit, counting.state(), row.indexed, row.passages

    def _tell(self, row: Reading, place: tuple[Any, ...], counting: Counting, index: bool) -> None:
        """Show what was counted."""
        title, *rest = counting.told()
        told = (title, *rest, *counts_as_columns(counting.digest.counts()))
        spending = counting.digest.spending.encode()
        self._db.execute(_TELL, (*place, index, *map(storable, told), spending, row.number))
        if index:
            fulltext.retitle(self._db, row.number, title)


def _unread(path: str, mark: Mark, sub_agent: bool, error: OSError) -> tuple[Any, ...]:
    """The columns of a file that cannot be read; without a size, so that it is tried again."""
    reason = error.strerror or str(error)
    return (_stored(path), None, *mark[1:], int(sub_agent), None, reason, *_UNKNOWN)


def _stored(path: str) -> bytearray:
    """Names of files are bytes."""
    return bytearray(path, "utf-8", "surrogateescape")


def _groups(rows: Sequence[Reading], index: bool) -> Iterator[list[Reading]]:
    group: list[Reading] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.size - row.start(index)
        if size > _GROUP:
            yield group[::-1]
            group, size = [], 0
    if group:
        yield group[::-1]
