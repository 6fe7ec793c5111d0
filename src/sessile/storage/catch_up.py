"""Bring the rows of a catalog up to date with the session files below some folders. Only what changed is read.

`walk` finds the files, `Reconciler` updates the rows, `Counting` reads the lines of one session, and `words_of` and others
fill the full-text index.

Rules:

- A file is unchanged if its `Mark` is: size, inode, device, and times of modification and change. Programs can restore the
  first four, but not the last. A file that was changed within the last clock tick may change again without a new mark, so
  its row has no change time and it is looked at again the next time.
- After any change, the bytes that were counted are hashed again. If they are the same, reading continues after them: the file
  was appended to, touched, copied or renamed. Otherwise it is read again, under a new number.
- Head and tail come first, so that every row can be shown. Counting and indexing follow, newest sessions first.
- Everything is done in short transactions and can stop between two of them; the next catch-up continues there. A line that has
  no newline yet is counted for display, and read again next time.
- Only rows below the given folders are changed. Nothing but the database is written.
- A folder holds session files, or folders of projects or dates with such files. A session may be packed, or set aside by its
  agent under a longer name (`….jsonl.reset.<time>`); a packed file is ignored if the plain one exists. The folder named like a
  session file, without `.jsonl`, holds its artifacts; session files in there belong to sub-agents. Links to folders are
  followed one level deep, because users put sessions on other disks.

The full-text index, FTS5 over every branch, has one row for each entry with text:

    texts    text, thinking and tool input as columns, contentless; the row number is made of session and offset
    titles   trigrams of titles, so that a part of a word is enough
    gone     sessions whose words are still in `texts`: SQLite 3.40 cannot delete them from a contentless table

Tool results are not indexed; `search.scan_file` finds them. When more words belong to deleted sessions than to others, the
index is rebuilt.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Digest
from sessile.core.ids import sha256
from sessile.core.lines import Item, Line, Scanner
from sessile.core.words import fold, indexed, passages
from sessile.storage.base import CHUNK, NATIVE, Filesystem
from sessile.storage.catalog_rows import COUNTS, Known, counts_as_columns
from sessile.storage.filters import storable, within
from sessile.storage.formats import EntryReader, Formats
from sessile.storage.head import Glance, Record, decoded, glance
from sessile.storage.packed import Rows, is_packed, open_rows
from sessile.storage.walk import Found, Look, Mark, mark_of, settled

if TYPE_CHECKING:
    from hashlib import _Hash

Depth = Literal["look", "count", "index"]

_LOOKS = 64  # files to look at before their rows are written
_BATCH = 0.25  # seconds of one transaction
_GROUP = 16 << 20  # bytes of journals whose words are written together

_FILE = ("path", "size", "mtime_ns", "inode", "device", "ctime_ns", "sub_agent")
_COLUMNS = ("number", *_FILE, "format", "problem", *Glance.__struct_fields__)
_LOOKED = ", ".join(_COLUMNS)
# Unknown texts are passed as empty strings, and paths as bytearrays: sqlite3 offers `None` and bytes to adapters first, which
# takes longer than storing them.
_TEXT_COLUMNS = (
    "title",
    "created",
    "parent",
    "first_text",
    "last_role",
    "last_status",
    "header_title",
    "problem",
    "origin",
)
_ROW = ", ".join("nullif(?, '')" if name in _TEXT_COLUMNS else "?" for name in _COLUMNS)
_INSERT = f"INSERT INTO sessions ({_LOOKED}) VALUES ({_ROW})"
_CHANGE = (
    f"UPDATE sessions SET ({_LOOKED}) = ({_ROW}), counted = 0, searchable = 0, told = NULL, named = 0,"
    f" {', '.join(f'{name} = NULL' for name in COUNTS)}, spending = NULL WHERE number = ?"
)
_UNKNOWN = (None,) * len(Glance.__struct_fields__)
_NO_SESSION = (None, "it does not start with a session header", *_UNKNOWN)
# Numbers of deleted sessions are not reused while the index holds their words.
_LAST_NUMBER = (
    "SELECT max(coalesce((SELECT max(number) FROM sessions), 0), coalesce((SELECT max(number) FROM gone), 0))"
)
_READING = (
    "SELECT number, path, size, covered, fit, state, indexed, passages, header_at, version, header_title, format"
    " FROM sessions"
)
_POSITION = "covered = ?, fit = ?, state = ?, indexed = ?, passages = ?"
_SAVE = f"UPDATE sessions SET {_POSITION} WHERE number = ?"
_SHOW = (
    f"UPDATE sessions SET {_POSITION}, counted = 1, searchable = ?, named = ?, title = ?, first_text = ?, last_role = ?,"
    f" last_status = ?, {', '.join(f'{name} = ?' for name in COUNTS)}, spending = ? WHERE number = ?"
)


class Progress(NamedTuple):
    """The progress of a catch-up or a scan, in files (depth "look") or bytes."""

    doing: Depth | Literal["scan"]
    done: int
    total: int


class Enough(Exception):
    """The deadline has passed. Finished batches are kept."""


class Reconciler:
    """One catch-up, with a database that is open for writing."""

    def __init__(
        self,
        fs: Filesystem,
        formats: Formats,
        database: sqlite3.Connection,
        keeps: bool,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
        inside: float | None = None,
    ) -> None:
        self._fs = fs
        self._formats = formats
        self._db = database
        self._keeps = keeps  # if not, the full-text index belongs to another process
        self._progress = progress
        self._deadline = deadline
        self._inside = inside  # seconds for counting sessions inside of databases
        self._done = self._total = 0
        self._doing: Depth = "look"
        self._batch_began = 0.0
        self._last_number = 0
        self._new: list[tuple[Any, ...]] = []
        self._prefixes: dict[int, Prefix] = {}  # by number: files that were hashed when they were looked at

    # -- transactions

    def _begin(self, doing: Depth, total: int) -> None:
        self._doing, self._done, self._total = doing, 0, total
        self._db.execute("BEGIN IMMEDIATE")
        self._batch_began = time.monotonic()

    def _is_long(self) -> bool:
        """Return whether this batch has lasted long enough."""
        now = time.monotonic()
        return now - self._batch_began > _BATCH or self._is_over(now)

    def _is_over(self, now: float) -> bool:
        """Return whether time is up. Looking is never cut short, because a listing must show all sessions."""
        return self._deadline is not None and self._doing != "look" and now >= self._deadline

    def _next_batch(self) -> None:
        """Commit, and continue unless time is up. Callers must have saved their position."""
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

    # -- looking at files

    def look(self, found: Found, known: Mapping[str, Known], changed: Sequence[str], gone: Sequence[str]) -> None:
        """Delete the rows of files that are gone, and look at the two ends of those that changed."""
        if not changed and not gone:
            return
        self._begin("look", len(changed))
        (self._last_number,) = self._db.execute(_LAST_NUMBER).fetchone()
        for path in gone:
            self._forget(known[path][1])
        for start in range(0, len(changed), _LOOKS):
            for path in changed[start : start + _LOOKS]:
                if (look := found.looks.get(path)) is not None:
                    self._look_into(path, found.marks[path], path in found.sub_agents, known.get(path), *look)
                else:
                    self._look_at(path, found.marks[path], path in found.sub_agents, known.get(path))
            self._insert()
            self._done = min(start + _LOOKS, len(changed))
            if self._is_long():
                self._next_batch()
        self._end()

    def _look_into(self, path: str, mark: Mark, sub_agent: bool, old: Known | None, name: str, look: Look) -> None:
        """Take what an agent says of a session that it lists itself. The session is not read."""
        try:
            seen = look()
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
            return
        values = _NO_SESSION if seen is None else (name, "", *astuple(seen))
        self._put((_stored(path), *mark, int(sub_agent), *values), old)

    def _look_at(self, path: str, mark: Mark, sub_agent: bool, old: Known | None) -> None:
        try:
            # The mark is taken before anything is read: it may be older than what is read, but not newer.
            stat = self._fs.lstat(path) if is_packed(path) else None
            fd, size, _, renderer, made = open_rows(self._fs, path, self._formats)
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
            return
        try:
            if stat is None and not made:
                stat = self._fs.fstat(fd)
                size = stat.st_size
            if stat is not None:  # the mark of a rendered session may be one of several files
                mark = settled(mark_of(stat) if renderer is None else mark, time.time_ns())
            name, seen = renderer or NATIVE, glance(self._fs, fd, size)
            if seen is None and size:
                name, seen = self._formats.glance(self._fs, fd, size, path) or ("", None)
            before = None if old is None or made else self._resumable(fd, size, old, name)
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
        else:
            file = (_stored(path), *mark, int(sub_agent))
            values = _NO_SESSION if seen is None else (name, "", *astuple(seen))
            if before is None or seen is None:
                number = self._put((*file, *values), old)
            else:
                number = before.number
                self._db.execute(_CHANGE, (number, *file, *values, number))
            # A rendered session was read completely for this look.
            if seen is not None and (
                renderer is not None or size <= (TINY if before is None else before.covered + NEAR)
            ):
                self._read_near(fd, number, size, before, seen, name)
        finally:
            self._fs.close(fd)

    def _put(self, row: Sequence[Any], old: Known | None) -> int:
        """Add a new row, instead of the old one, to the next batch. Return its number."""
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
            forget(self._db, number)
        self._db.execute("DELETE FROM sessions WHERE number = ?", (number,))

    def _read_near(self, fd: int, number: int, size: int, before: Reading | None, seen: Glance, name: str) -> None:
        """Count a small file, or a small addition, at once."""
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
            pass  # it is counted later, or the next catch-up reports the error

    def _resumable(self, fd: int, size: int, old: Known, name: str) -> Reading | None:
        """Return where to continue, if the bytes that were counted are still the same."""
        place = self._db.execute(f"{_READING} WHERE number = ?", (old[1],)).fetchone()
        reading = None if place is None else Reading(*place)
        if reading is None or not 0 < reading.covered <= size or reading.format != name:
            return None
        prefix = Prefix()
        prefix.read(self._fs, fd, reading.covered)
        if prefix.digest() != reading.fit:
            return None
        self._prefixes[reading.number] = prefix
        return reading

    # -- counting and indexing

    def read(self, depth: Depth, places: Sequence[str]) -> None:
        """Read the lines of rows below these folders, newest first, in groups whose words are written in ascending order."""
        index = depth == "index"
        if index:
            renew_if_stale(self._db)
        where, values = within(places)
        missing = f"format IS NOT NULL AND NOT {'searchable' if index else 'counted'} AND {where}"
        waiting = f"{_READING} WHERE number IN (SELECT number FROM sessions WHERE {missing}) ORDER BY number DESC"
        rows = [Reading(*row) for row in self._db.execute(waiting, values)]
        rows.sort(key=lambda row: row.is_inside)  # files first
        self._begin(depth, sum(row.left(index) for row in rows))
        inside_until = math.inf if index or self._inside is None else time.monotonic() + self._inside
        for group in _groups(rows, index):
            for row in group:
                begun, share = self._done, row.left(index)
                inside = row.is_inside
                if inside and time.monotonic() > inside_until:
                    continue
                try:
                    fd, row.size, *_ = self._rows_of(row)
                    try:
                        self._read_on(fd, row, index=index, share=share)
                    finally:
                        self._fs.close(fd)
                    if inside:
                        self._db.execute("UPDATE sessions SET size = ? WHERE number = ?", (row.size, row.number))
                except _Changed:
                    self._db.execute("UPDATE sessions SET ctime_ns = NULL WHERE number = ?", (row.number,))
                except OSError:
                    pass  # it stays as far as it was read; the next catch-up finds out why
                self._done = begun + share
                if self._is_long():
                    self._next_batch()
            self._next_batch()
        self._end()

    def _rows_of(self, row: Reading) -> Rows:
        """Open the rows of a file, up to the size that it had when it was looked at."""
        rows = open_rows(self._fs, os.fsdecode(row.path), self._formats)
        return rows if rows.made else rows._replace(size=row.size)

    def _read_on(self, fd: int, row: Reading, *, index: bool, share: int = 0) -> None:
        """Read the lines that are not counted, or not indexed, yet; `share` is what they add to the progress.

        Raise `_Changed` if others are not as they were.
        """
        counting = Counting(row, self._formats, index=index)
        begun, at = self._done, counting.start
        words: list[Words] = []
        checked = Checked(self._prefix(fd, row, at) if at < row.size else Prefix(), row)
        while at < row.size:
            chunk = self._fs.read(fd, min(CHUNK, row.size - at), at)
            if not chunk:
                return  # it was truncated; the next catch-up notices
            at += len(chunk)
            checked.feed(chunk)
            for offset, entry in counting.feed(chunk):
                words += words_of(row.number, offset, entry)
            # The rows of a packed file are larger than the file, so its share is not the number of bytes read.
            self._done = begun + share * (at - counting.start) // (row.size - counting.start)
            if at < row.size:
                self._db.execute(_SAVE, (*self._position(checked, row, counting, words, index), row.number))
                words = []
                if self._is_long():
                    self._next_batch()
        position = self._position(checked, row, counting, words, index)
        counting.finish()
        self._show(row, position, counting, index)

    def _prefix(self, fd: int, row: Reading, end: int) -> Prefix:
        """Return the hash of the bytes before an offset, which may be known from looking at the file."""
        known = self._prefixes.get(row.number)
        if known is not None and known.size == end:
            return known.copy()
        prefix = Prefix()
        prefix.read(self._fs, fd, end)
        if prefix.size < end:
            raise _Changed(errno.ESTALE, "the file has become smaller")
        return prefix

    def _position(
        self, checked: Checked, row: Reading, counting: Counting, words: Sequence[Words], index: bool
    ) -> tuple[Any, ...]:
        """Return how far the lines were read, and write their words."""
        row.fit = checked.up_to(counting.line_start)  # the last thing that may fail because of the file
        row.covered = counting.covered
        if index:
            add(self._db, words)
            row.indexed, row.passages = counting.indexed, row.passages + len(words)
        return row.covered, row.fit, counting.state(), row.indexed, row.passages

    def _show(self, row: Reading, position: tuple[Any, ...], counting: Counting, index: bool) -> None:
        """Write what was counted into the row."""
        title, *rest = counting.summary()
        values = (counting.digest.named, title, *rest, *counts_as_columns(counting.digest.counts()))
        spending = counting.digest.spending.encode()
        self._db.execute(_SHOW, (*position, index, *map(storable, values), spending, row.number))
        if index:
            retitle(self._db, row.number, title)


def _unread(path: str, mark: Mark, sub_agent: bool, error: OSError) -> tuple[Any, ...]:
    """Return the columns of a file that cannot be read; without a size, so that it is tried again."""
    reason = error.strerror or str(error)
    return (_stored(path), None, *mark[1:], int(sub_agent), None, reason, *_UNKNOWN)


def _stored(path: str) -> bytearray:
    """Return a path as bytes, as it is stored."""
    return bytearray(path, "utf-8", "surrogateescape")


def _groups(rows: Sequence[Reading], index: bool) -> Iterator[list[Reading]]:
    group: list[Reading] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.left(index)
        if size > _GROUP:
            yield group[::-1]
            group, size = [], 0
    if group:
        yield group[::-1]


# -- counting

NEAR = 64 * 1024  # bytes; an addition of that size is counted when it is looked at
TINY = 1024  # bytes; a new session of that size is counted at once, because one without messages is hidden


class Reading(msgspec.Struct):
    """How far the lines of one session were read."""

    number: int
    path: bytes
    size: int
    covered: int
    fit: bytes | None
    state: bytes | None
    indexed: int
    passages: int
    header_at: int
    version: int
    header_title: str | None
    format: str = NATIVE

    def start(self, index: bool) -> int:
        """Return where to continue. The words may be behind the counts."""
        return min(self.covered, self.indexed) if index else self.covered

    @property
    def is_inside(self) -> bool:
        """Whether it is a session inside of a file that was not read yet: its size is not known."""
        return self.size == 0 and self.format != NATIVE

    def left(self, index: bool) -> int:
        """Return how many bytes of the file are to be read; a packed file may have been read further than its size."""
        return max(0, self.size - self.start(index))


# -- what was read


class _Changed(OSError):
    """The file has changed since its lines were counted. The next catch-up reads it again."""


class Prefix:
    """The hash of the first `size` bytes of a file."""

    def __init__(self) -> None:
        self.size = 0
        self._hash: _Hash = sha256()

    def add(self, data: bytes | memoryview) -> None:
        """Add the bytes that follow."""
        self._hash.update(data)
        self.size += len(data)

    def read(self, fs: Filesystem, fd: int, end: int) -> None:
        """Add the bytes of a file up to an offset, or up to its end."""
        while self.size < end and (chunk := fs.read(fd, min(CHUNK, end - self.size), self.size)):
            self.add(chunk)

    def digest(self) -> bytes:
        """Return the hash."""
        return self._hash.digest()

    def copy(self) -> Prefix:
        """Return the same prefix, to which other bytes can be added."""
        other = Prefix()
        other.size, other._hash = self.size, self._hash.copy()
        return other


class Checked:
    """Hashes the bytes of a file as they are read, and compares them with those that were counted before.

    Words may be behind the counts: then lines are read that were counted earlier, and they must be the same.
    """

    def __init__(self, prefix: Prefix, row: Reading) -> None:
        self._held = b""  # read, but not hashed: the end may be part of a line
        self._prefix = prefix
        self._counted, self._fit = row.covered, row.fit
        self._last = row.fit
        self._compare()

    def feed(self, chunk: bytes) -> None:
        """Take the bytes that follow. What was held before is part of a line that ends in them, or later."""
        self._add(self._held)
        self._held = chunk

    def up_to(self, end: int) -> bytes | None:
        """Return the hash of everything that is counted after the lines before `end` were read."""
        new = end - self._prefix.size
        if new > 0 and self._held:
            self._add(memoryview(self._held)[:new])
            self._held = self._held[new:]
            self._last = self._prefix.digest()
        return self._fit if end <= self._counted else self._last

    def _add(self, data: bytes | memoryview) -> None:
        known = self._counted - self._prefix.size
        if 0 < known < len(data):
            self._prefix.add(data[:known])
            self._compare()
            data = data[known:]
        self._prefix.add(data)
        self._compare()

    def _compare(self) -> None:
        if self._prefix.size == self._counted > 0 and self._prefix.digest() != self._fit:
            raise _Changed(errno.ESTALE, "the file has changed")


class Counting:
    """Continues counting the lines of one session.

    counting = Counting(reading, formats, index=True)
    for chunk in …:                                        the bytes of the file from `counting.start`
        for offset, entry in counting.feed(chunk): …       entries whose words are not written yet
    counting.covered, counting.state()                     where to continue another time
    counting.finish()                                      count a last line without a newline, for display
    counting.summary()                                     what is shown of the session
    """

    def __init__(self, reading: Reading, formats: Formats, *, index: bool) -> None:
        self.digest = Digest() if reading.state is None else msgspec.convert(decode(reading.state), Digest)
        self.start = reading.start(index)
        self._counted, self._written = reading.covered, reading.indexed
        self._header_title = reading.header_title
        self._index = index
        self._lines = _entry_reader(reading, self.digest, formats)
        self._scanner = self._lines.scanner(self.start)

    def feed(self, chunk: bytes) -> list[tuple[int, Record]]:
        """Count the entries that a chunk completes. Return those whose words are needed, with their offsets."""
        found: list[tuple[int, Record]] = []
        for offset, entry in self._lines.split(self._scanner.split(chunk)):
            if offset >= self._counted:
                self._count(entry)
            if self._index and entry is not None and offset >= self._written:
                found.append((offset, entry))
        self.digest.translator = self._lines.saved()
        return found

    @property
    def line_start(self) -> int:
        """The offset up to which lines were read."""
        return self._scanner.line_start

    @property
    def covered(self) -> int:
        """The offset up to which lines are complete and counted."""
        return max(self._counted, self._scanner.line_start)

    @property
    def indexed(self) -> int:
        """The offset up to which words were returned."""
        return self._scanner.line_start if self._index else self._written

    def state(self) -> bytes:
        """Return what is needed to continue counting at `covered`."""
        return encode_plain(msgspec.to_builtins(self.digest))

    def finish(self) -> None:
        """Count the last line, which has no newline."""
        for _, entry in self._lines.judged(self._scanner.finish()):
            self._count(entry)

    def summary(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Return title, first text, last role and last status."""
        digest = self.digest
        title = digest.name if digest.named else self._header_title
        return title, digest.first_text, digest.last_role, digest.last_status

    def _count(self, entry: Record | None) -> None:
        if entry is None:
            self.digest.findings += 1
        else:
            self.digest.add(entry)


def _entry_reader(reading: Reading, digest: Digest, formats: Formats) -> EntryReader:
    """Return what turns the lines of a file into entries."""
    if reading.format == NATIVE:
        return NativeRows(reading.header_at, reading.version)
    return formats.entry_reader(reading.format, digest.translator, reading.covered)


# -- entries of native files

_decode = msgspec.json.Decoder().decode
_REFUSED = (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError)
_NOT_ENTRIES = ("session", "title")


class NativeRows:
    """Turns the lines of one native file into entries. Most lines are decoded once, because there are gigabytes of them."""

    def __init__(self, header_at: int, version: int) -> None:
        self._header_at = header_at
        self._version = version

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner that splits the file into lines, starting at `offset`."""
        return Scanner(offset)

    def saved(self) -> None:
        """Return nothing: native lines do not depend on earlier ones."""

    def split(self, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, Record | None]]:
        """Yield each entry with its offset, and `None` for a damaged line; header and title slot are left out."""
        for offset, raw in lines:
            if raw is None:
                yield offset, None
                continue
            try:
                entry = _decode(raw)
                is_plain = (
                    isinstance(entry["id"], str) and isinstance(kind := entry["type"], str) and kind not in _NOT_ENTRIES
                )
            except _REFUSED:
                is_plain = False
            if is_plain:
                yield offset, entry
            elif raw:
                yield from self.judged(Scanner(offset).feed(raw + b"\n"))

    def judged(self, items: Iterable[Item]) -> Iterator[tuple[int, Record | None]]:
        """Do the same for lines that the scanner has already looked at."""
        for item in items:
            if isinstance(item, Line):
                head = item.head
                if head.type == "session" and item.offset == self._header_at:
                    continue
                if head.type == "title" and head.id is None:
                    continue
                if head.type != "session" and (head.id is not None or self._version < 2):
                    yield item.offset, decoded(item)
                    continue
            yield item.offset, None


def scanner_of(name: str, offset: int, formats: Formats) -> Scanner:
    """Return a scanner for a file in that format."""
    return Scanner(offset) if name == NATIVE else formats.scanner(name, offset)


def lines_in(name: str, data: bytes, offset: int, formats: Formats) -> Iterator[Line]:
    """Yield the readable lines of a piece of a file in that format, which starts at an offset."""
    scanner = scanner_of(name, offset, formats)
    yield from (item for item in scanner.feed(data) if isinstance(item, Line))
    yield from (item for item in scanner.finish() if isinstance(item, Line))


def entries_in(name: str, line: Line, formats: Formats) -> Iterator[tuple[str | None, Record]]:
    """Yield the entries of one line of a file in that format, with their ids; none for a header."""
    if name != NATIVE:
        yield from formats.entries(name, line)
    elif line.head.type != "session" and (entry := decoded(line)) is not None:
        yield line.head.id, entry


# -- checking


class Facts(NamedTuple):
    """Everything that a catalog knows of a file, for a comparison."""

    mark: Mark
    depth: Depth
    row: dict[str, Any]
    lengths: dict[int, bytes]  # the numbers of words of each entry that is indexed, by the offset of its line
    find: Callable[[str], set[int]]  # returns the offsets of the entries with a word
    words: Callable[[], list[str]]  # returns some of the words


_GLANCED = (
    "sub_agent",
    "format",
    "problem",
    "id",
    "cwd",
    "created",
    "parent",
    "header_at",
    "version",
    "origin",
    "told",
)
_COUNTED = (
    "named",
    "title",
    "first_text",
    "last_role",
    "last_status",
    "header_title",
    *COUNTS,
    "spending",
    "covered",
    "fit",
)
_TRIED = 100  # words of a session that are looked up


def facts_of(database: sqlite3.Connection, path: str) -> Facts | None:
    """Return what a catalog knows of a file; `None` if it has no row."""
    columns = ("number", *_FILE[1:6], "counted", "searchable", *_GLANCED, *_COUNTED)
    select = f"SELECT {', '.join(columns)} FROM sessions WHERE path = ?"
    found = database.execute(select, (_stored(path),)).fetchone()
    if found is None:
        return None
    row = dict(zip(columns, found, strict=True))
    first = row["number"] << OFFSET_BITS
    within = (first, first + OFFSETS)
    lengths = "SELECT id, sz FROM texts_docsize WHERE id BETWEEN ? AND ?"
    matching = "SELECT rowid FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ?"

    def find(word: str) -> set[int]:
        quoted = '"{}"'.format(word.replace('"', '""'))
        return {number - first for (number,) in database.execute(matching, (quoted, *within))}

    def words() -> list[str]:
        database.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, texts, row)")
        return [word for (word,) in database.execute("SELECT term FROM words ORDER BY doc, term LIMIT ?", (_TRIED,))]

    return Facts(
        (row["size"], row["mtime_ns"], row["inode"], row["device"], row["ctime_ns"]),
        "index" if row["searchable"] else "count" if row["counted"] else "look",
        row,
        {number - first: size for number, size in database.execute(lengths, within)},
        find,
        words,
    )


def differences(stored: Facts, fresh: Facts | None, has_words: bool) -> list[str]:
    """Return what a catalog knows otherwise than a new one. Which entries have words, and how many, is compared for all
    of them; which words, for the rarest ones."""
    if fresh is None:
        return ["the file has a row"]
    columns = (*_GLANCED, *_COUNTED) if stored.depth != "look" else _GLANCED
    found = [
        f"{name.replace('_', ' ')}: {_short(stored.row[name])} instead of {_short(fresh.row[name])}"
        for name in columns
        if stored.row[name] != fresh.row[name]
    ]
    if stored.depth == "index" and has_words:
        wrong = {offset for offset, _ in stored.lengths.items() ^ fresh.lengths.items()}
        for word in fresh.words():
            wrong |= stored.find(word) ^ fresh.find(word)
        if wrong:
            count = f"{len(wrong)} {'entry' if len(wrong) == 1 else 'entries'}"
            found.append(f"words: those of {count}, first at offset {min(wrong)}")
    return found


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


# -- words


OFFSET_BITS = 40  # a terabyte; that leaves room for eight million sessions
OFFSETS = (1 << OFFSET_BITS) - 1

Words = tuple[int, str, str, str]


def words_of(number: int, offset: int, entry: dict[str, Any]) -> list[Words]:
    """Return the row of an entry; none if it has no text."""
    get = passages(entry).get
    text, thinking, tool_input = get("text", ""), get("thinking", ""), get("tool_input", "")
    if offset > OFFSETS or not (text or thinking or tool_input):
        return []
    return [(number << OFFSET_BITS | offset, indexed(text), indexed(thinking), indexed(tool_input))]


def add(database: sqlite3.Connection, rows: Sequence[Words]) -> None:
    """Add entries to the index."""
    database.executemany("INSERT INTO texts (rowid, text, thinking, tool_input) VALUES (?, ?, ?, ?)", rows)


def retitle(database: sqlite3.Connection, number: int, title: str | None) -> None:
    """Index the current title of a session."""
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))
    if title is not None:
        database.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (number, storable(fold(title))))


def forget(database: sqlite3.Connection, number: int) -> None:
    """Note that a session was deleted or rewritten."""
    database.execute(
        "INSERT INTO gone SELECT number, passages FROM sessions WHERE number = ? AND passages > 0", (number,)
    )
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))


def renew_if_stale(database: sqlite3.Connection) -> None:
    """Empty the index, so that it is rebuilt, if most words belong to deleted sessions."""
    (stale,) = database.execute("SELECT coalesce(sum(passages), 0) FROM gone").fetchone()
    (live,) = database.execute("SELECT coalesce(sum(passages), 0) FROM sessions").fetchone()
    if stale > max(live, 1000):
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
        database.execute("DELETE FROM gone")
        database.execute("UPDATE sessions SET indexed = 0, searchable = 0, passages = 0")
        database.execute("COMMIT")
