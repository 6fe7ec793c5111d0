"""Bringing the rows of a catalog up to date with the files that a walk has found: only what changed is read.

Rules:

- A file is as it was if size, time of modification and inode are. One that grew is read on from where it was left, if the
  bytes before that place are still the same; any other change is read anew, under a new number.
- Head and tail come first, so that every row can be shown; counting and indexing follow, newest sessions first.
- Everything is done in short transactions and can stop between two of them; the next one goes on there. A line that has no
  newline yet is counted for show, and read again next time.
- Only rows below the given places are touched. Nothing here writes anywhere but into the database.

The lines of one session, read on from where a catalog left them: counted, and handed out for their words.

    counting = Counting(reading, formats, index=True)
    for chunk in …:                                the bytes of the file from `counting.start`
        for offset, entry in counting.feed(chunk): …       entries whose words are not written yet
    counting.covered, counting.state()             where to go on another time
    counting.finish()                              a line that has no newline yet is counted for show, and read again
    counting.told()                                what is shown of the session

It does not know where the bytes come from, nor where its answers are kept.

Lines of our own files as entries, for the catalog, which reads gigabytes of them: most are decoded once and that is all.

Lines of other agents' files are in `foreign_rows`.

Finding session files below folders: names and what `lstat` says of them, nothing is opened.

A place holds session files, or folders of projects or dates with such files. A session may be packed, or set aside by its agent
under a longer name (`….jsonl.reset.<time>`); where it also stands there as it is, that one counts. Beside a session file,
without `.jsonl`, may be its artifacts folder; session files in there are those of sub-agents. Links to folders are followed,
because people put their sessions on other disks; no deeper than that.

Words of sessions in the catalog: FTS5 over every branch, one row for each entry that says something.

    texts    text, thinking and tool input as columns of their own, contentless; the row's number is session and offset
    titles   trigrams of titles, so that a part of a word is enough
    gone     sessions whose words are still in `texts`: SQLite 3.40 cannot take them out of a contentless table

Rules: tool results are not indexed: `scan` finds them. When more words belong to sessions that are gone than to others, all
are written anew. How the index is asked is in `catalog_words`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import astuple

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Digest
from sessile.core.ids import blake2b
from sessile.core.lines import Item, Line, Scanner
from sessile.core.words import INDEXED, fold, indexed, passages
from sessile.storage.base import CHUNK, NATIVE, Filesystem, Stat
from sessile.storage.catalog_rows import COUNTS, Known, counts_as_columns
from sessile.storage.filters import storable, within
from sessile.storage.formats import EntryReader, Formats
from sessile.storage.head import Glance, Record, decoded, glance
from sessile.storage.layout import GZIP, JOURNAL, LEGACY, LIST, ZSTD, session_files
from sessile.storage.packed import Rows, is_packed, open_rows

# --- native rows

_decode = msgspec.json.Decoder().decode
_REFUSED = (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError)
_NO_ENTRIES = ("session", "title")


class NativeRows:
    """Makes entries of the lines of one file."""

    def __init__(self, header_at: int, version: int) -> None:
        self._header_at = header_at
        self._version = version

    def scanner(self, offset: int) -> Scanner:
        """What cuts the file into lines."""
        return Scanner(offset)

    def saved(self) -> None:
        """Lines of ours stand for themselves: nothing has to be known to go on."""

    def split(self, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, Record | None]]:
        """Each entry with its place, and `None` for what is not as it should be; header and title slot are left out."""
        for offset, raw in lines:
            if raw is None:
                yield offset, None
                continue
            try:
                entry = _decode(raw)
                is_plain = (
                    isinstance(entry["id"], str) and isinstance(kind := entry["type"], str) and kind not in _NO_ENTRIES
                )
            except _REFUSED:
                is_plain = False
            if is_plain:
                yield offset, entry
            elif raw:
                yield from self.judged(Scanner(offset).feed(raw + b"\n"))

    def judged(self, items: Iterable[Item]) -> Iterator[tuple[int, Record | None]]:
        """The same of lines that the scanner has looked at."""
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


# --- counting

NEAR = 64 * 1024  # bytes behind the place where counting stopped that are counted with a look
TINY = 1024  # bytes of a new session that is counted with a look: one without a message is not shown
FIT = 4096  # bytes before that place that must not have changed


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
        """Where reading on begins: words may be less far than counts."""
        return min(self.covered, self.indexed) if index else self.covered


class Counting:
    """Goes on counting one session."""

    def __init__(self, reading: Reading, formats: Formats, *, index: bool) -> None:
        self.digest = Digest() if reading.state is None else msgspec.convert(decode(reading.state), Digest)
        self.start = reading.start(index)
        self._counted, self._written = reading.covered, reading.indexed
        self._header_title = reading.header_title
        self._index = index
        self._lines = _entry_reader(reading, self.digest, formats)
        self._scanner = self._lines.scanner(self.start)

    def feed(self, chunk: bytes) -> list[tuple[int, Record]]:
        """Count the entries that a chunk completes, and give those whose words are asked for, with their places."""
        found: list[tuple[int, Record]] = []
        for offset, entry in self._lines.split(self._scanner.split(chunk)):
            if offset >= self._counted:
                self._count(entry)
            if self._index and entry is not None and offset >= self._written:
                found.append((offset, entry))
        self.digest.translator = self._lines.saved()
        return found

    @property
    def covered(self) -> int:
        """Up to where lines are complete and counted."""
        return max(self._counted, self._scanner.line_start)

    @property
    def indexed(self) -> int:
        """Up to where words were asked for."""
        return self._scanner.line_start if self._index else self._written

    def state(self) -> bytes:
        """What is needed to go on counting at `covered`."""
        return encode_plain(msgspec.to_builtins(self.digest))

    def finish(self) -> None:
        """Count the last line, which has no newline."""
        for _, entry in self._lines.judged(self._scanner.finish()):
            self._count(entry)

    def told(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Title, first text, last role and last status."""
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


# --- walk

_DEEPEST = 8  # folders of sub-agents of sub-agents
_ASIDE = (f"{JOURNAL}.reset.", f"{JOURNAL}.deleted.")  # how gateways name transcripts that a conversation has left
_SUB_AGENTS = ("subagents", "workflows")
INODES = 2**63 - 1  # SQLite has no larger numbers


Mark = tuple[int | None, int, int]
"""Size, time of modification and inode: what changes when somebody writes a file."""


class Status(Protocol):
    """The part of what `lstat` says that a walk looks at."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Folders(Protocol):
    """The part of a file system that a walk needs."""

    def lstat(self, path: str) -> Status: ...

    def names(self, path: str) -> list[str]: ...


class Found(NamedTuple):
    """The session files that a walk met, and which of them are sub-agents'."""

    marks: dict[str, Mark]
    sub_agents: set[str]


def walk(fs: Folders, places: Iterable[str], notices: list[str]) -> Found:
    """Every session file below some folders; a folder that cannot be read is noted."""
    found = Found({}, set())
    for place in places:
        _visit(fs, place.rstrip("/"), 0, False, found, notices)
    return found


def _visit(fs: Folders, folder: str, level: int, sub_agents: bool, found: Found, notices: list[str]) -> None:
    try:
        names = fs.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        notices.append(f"the folder {folder} cannot be read: {error.strerror or error}")
        return
    journals = session_files(names)
    if len(journals) < len(names):
        journals += _stored_otherwise(names, level)
    lstat, marks = fs.lstat, found.marks
    for name in journals:
        path = f"{folder}/{name}"
        try:
            status = lstat(path)
        except OSError:
            continue  # gone since
        marks[path] = (status.st_size, status.st_mtime_ns, status.st_ino & INODES)
        if sub_agents:
            found.sub_agents.add(path)
    if level == _DEEPEST or len(names) == len(journals):
        return
    stems = {name.removesuffix(JOURNAL) for name in journals}
    for name in names:
        if name in stems:
            _visit(fs, f"{folder}/{name}", level + 1, True, found, notices)
        elif _leads_on(name, level, sub_agents):
            _visit(fs, f"{folder}/{name}", level + 1, sub_agents, found, notices)


def _stored_otherwise(names: Sequence[str], level: int) -> list[str]:
    """The names of sessions that are packed, set aside, or stored in an old form."""
    there = set(names)
    found = [
        name
        for name in names
        if (name.endswith((JOURNAL + GZIP, JOURNAL + ZSTD)) and name.partition(JOURNAL)[0] + JOURNAL not in there)
        or any(part in name for part in _ASIDE)
        or (level == 0 and name.endswith(LEGACY) and name != LIST)
    ]
    return [name for name in found if not name.startswith(".")]


def _leads_on(name: str, level: int, sub_agents: bool) -> bool:
    """Whether a folder is one of a project, of a date, or of a kind of sub-agents."""
    if name.startswith(".") or JOURNAL in name:
        return False
    return level == 0 or name.isdecimal() or (sub_agents and name in _SUB_AGENTS)


# --- fulltext

TEXTS = (
    f"CREATE VIRTUAL TABLE texts USING fts5({', '.join(INDEXED)}, content = '',"
    ' tokenize = "unicode61 remove_diacritics 2")',
    # Words are gathered in memory and written at the end of a transaction; of the megabyte that is usual many parts are made
    # and merged again.
    f"INSERT INTO texts (texts, rank) VALUES ('hashsize', {8 << 20})",
    "CREATE VIRTUAL TABLE titles USING fts5(title, tokenize = 'trigram')",
    "CREATE TABLE gone (number INTEGER PRIMARY KEY, passages INTEGER NOT NULL)",
)

OFFSET_BITS = 40  # a terabyte; leaves room for eight million sessions
OFFSETS = (1 << OFFSET_BITS) - 1

Words = tuple[int, str, str, str]


def words_of(number: int, offset: int, entry: dict[str, Any]) -> list[Words]:
    """The row of an entry, if it says something."""
    told = passages(entry).get
    text, thinking, tool_input = told("text", ""), told("thinking", ""), told("tool_input", "")
    if offset > OFFSETS or not (text or thinking or tool_input):
        return []
    return [(number << OFFSET_BITS | offset, indexed(text), indexed(thinking), indexed(tool_input))]


def add(database: sqlite3.Connection, rows: Sequence[Words]) -> None:
    """Index some entries."""
    database.executemany("INSERT INTO texts (rowid, text, thinking, tool_input) VALUES (?, ?, ?, ?)", rows)


def retitle(database: sqlite3.Connection, number: int, title: str | None) -> None:
    """Index the title that a session has now."""
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))
    if title is not None:
        database.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (number, storable(fold(title))))


def forget(database: sqlite3.Connection, number: int) -> None:
    """A session is gone, or was rewritten."""
    database.execute(
        "INSERT INTO gone SELECT number, passages FROM sessions WHERE number = ? AND passages > 0", (number,)
    )
    database.execute("DELETE FROM titles WHERE rowid = ?", (number,))


def renew_if_stale(database: sqlite3.Connection) -> None:
    """Begin anew when most words belong to sessions that are gone."""
    (stale,) = database.execute("SELECT coalesce(sum(passages), 0) FROM gone").fetchone()
    (live,) = database.execute("SELECT coalesce(sum(passages), 0) FROM sessions").fetchone()
    if stale > max(live, 1000):
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
        database.execute("DELETE FROM gone")
        database.execute("UPDATE sessions SET indexed = 0, searchable = 0, passages = 0")
        database.execute("COMMIT")


# --- reconcile

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
        formats: Formats,
        database: sqlite3.Connection,
        keeps: bool,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
    ) -> None:
        self._fs = fs
        self._formats = formats
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
            fd, size, _ = open_rows(self._fs, path, self._formats)
        except OSError as error:
            self._put(_unread(path, mark, sub_agent, error), old)
            return
        try:
            stat = self._fs.lstat(path) if is_packed(path) else self._fs.fstat(fd)
            name, seen = NATIVE, glance(self._fs, fd, size)
            if seen is None and size:
                name, seen = self._formats.glance(self._fs, fd, size, path) or ("", None)
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
            forget(self._db, number)
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
        rows = open_rows(self._fs, path, self._formats)
        return rows if is_packed(path) else rows._replace(size=row.size)

    def _read_on(self, fd: int, row: Reading, *, index: bool) -> None:
        """Read the lines that are not counted yet, or not indexed."""
        counting = Counting(row, self._formats, index=index)
        at = counting.start
        words: list[Words] = []
        while at < row.size:
            chunk = self._fs.read(fd, min(CHUNK, row.size - at), at)
            if not chunk:
                return  # it has been cut off meanwhile; the next walk will see that
            at += len(chunk)
            for offset, entry in counting.feed(chunk):
                words += words_of(row.number, offset, entry)
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

    def _place(self, fd: int, row: Reading, counting: Counting, words: Sequence[Words], index: bool) -> tuple[Any, ...]:
        """How far the lines are read; their words are written with that."""
        row.covered = counting.covered
        row.fit = self._fit(fd, row.covered)  # the last thing that may fail because of the file
        if index:
            add(self._db, words)
            row.indexed, row.passages = counting.indexed, row.passages + len(words)
        return row.covered, row.fit, counting.state(), row.indexed, row.passages

    def _tell(self, row: Reading, place: tuple[Any, ...], counting: Counting, index: bool) -> None:
        """Show what was counted."""
        title, *rest = counting.told()
        told = (title, *rest, *counts_as_columns(counting.digest.counts()))
        spending = counting.digest.spending.encode()
        self._db.execute(_TELL, (*place, index, *map(storable, told), spending, row.number))
        if index:
            retitle(self._db, row.number, title)


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
