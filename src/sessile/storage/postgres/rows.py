"""Journals as rows of the table `entry`: how they are read, and the statements that write them.

    the file = body and gap of each row, in order of `start`; a gap that is NULL is a newline

Rules:

- Every readable line is a row. Bytes that are not a line are in the gap of the row before; before the first line, in that of a
  row without a body. No byte is lost or added.
- Every question of a reader is one query, which also returns the file that the name refers to now. If that is another journal of
  the same session, the question is asked again there.
- The path from an entry to the root is read in batches. The first one includes lines and state, because a context needs them.
- Two lines that are read in sequence and are close together, in either direction, bring their neighbours along, in growing
  windows. Lines never change, so what was read ahead stays valid as long as the journal is the same.
- A path never changes while ids are unique and parents come first. So each entry stores the state of its path, and where its
  context starts. An entry whose parent is missing has no known state, nor has anything below it: the parent may still come.
- A journal is held by locking its row of `file`. All writing here except `append` requires that lock, or a journal that no
  other process knows yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict
from psycopg.types.numeric import Int4, Int8

from sessile.core import kinds
from sessile.core.codec import decode
from sessile.core.context import first_kept, fold_path
from sessile.core.ids import blake2b
from sessile.core.kinds import BOUNDARY, MARKER, MESSAGE, STATE, State, flags_of, fold, fold_label
from sessile.core.lines import Finding, Head, Item, Line, Scanner, read_head
from sessile.core.tree import Node, Tree
from sessile.errors import LeafMoved, NotASession, SessileError, SessionNotFound, StorageFailure, storage_failures
from sessile.storage.base import Row
from sessile.storage.index import MAX_FINDINGS
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.names import NOW, PARENT, Key, key, placed
from sessile.storage.postgres.schema import HASHED, HEADER, KIND_FLAGS, MARKED, NO_ENTRY, SLOT

# -- reading

_EVER = 1 << 62  # after the end of every journal


def not_found(path: str) -> SessionNotFound:
    """Return the error for a name that has no journal."""
    return SessionNotFound(path=path, hint="list the sessions again; it was moved or deleted")


class Now(NamedTuple):
    """The journal at the time of a query; `named` is the file that its name refers to."""

    file: int
    size: int
    entries: int
    damaged: bool
    doubled: bool
    parentless: bool
    named: int | None


class PostgresReader:
    """One journal, open for reading."""

    def __init__(self, database: Database, path: str) -> None:
        self.path = path
        self._name = name_of(path)
        self._database = database
        self._mutex = threading.RLock()
        self._closed = False
        self._open()

    def _open(self) -> None:
        """Open the journal that has the name now."""
        found = self._database.query(OPEN, self._name, again=True)
        if not found:
            raise not_found(self.path)
        file, journal, size, epoch, header, slot, gap, *last, state, cut, after = found[0]
        if not journal or header is None:
            raise NotASession(path=self.path, hint="check the path; nothing was changed")
        self._held = Held(file, journal, size, epoch)
        self._header: bytes = header
        self._slot: bytes | None = slot
        self.session_id = str(read_head(self._header).id)
        self._ends_a_line = gap is None or gap.endswith(b"\n")
        if last[0] is None:
            self._begin(None, None)
        else:
            self._begin(row_of(*last), link_of(last[0], state, cut, after))

    def _begin(self, last: Row | None, link: Link | None) -> None:
        """Start over with an opened journal."""
        self._size = self._held.size  # at the last query
        self._ahead = Ahead()
        self._ahead.rows = {} if last is None else {last.id: last}  # usually needed next
        # The largest number of rows returned so far, and where the next one is: skipping rows takes time.
        self._reached = (0, 0)
        self._walked: tuple[str, State | None] | None = None  # the first entry of the last walk, and its state

    def close(self) -> None:
        """Close the journal."""
        self._closed = True
        self._ahead = Ahead()

    def header(self) -> bytes:
        return self._header

    def slot(self) -> bytes | None:
        return self._slot

    def _ask(self, question: str, *params: Any) -> tuple[Now, list[tuple[Any, ...]]]:
        """Return the journal that has the name now, and the rows that answer a question about it."""
        sql = statement_of(question)
        for _ in range(2):
            if self._closed:
                raise StorageFailure("the session is closed", path=self.path, hint="open the session again")
            file = self._held.file
            found = self._database.query(sql, (*self._name, Int8(file), *params), again=True)
            now = Now._make(found[0][:7]) if found else None
            if now is not None and (now.named in (None, file) or not self._follow_name()):
                if now.size != self._size:
                    self._size, self._ahead.rows = now.size, {}  # a known id may have been appended again
                return now, [row[8:] for row in found if row[7]]
            if now is None and not self._follow_name():
                raise not_found(self.path)
        raise self._rewritten("it was replaced several times")

    def _follow_name(self) -> bool:
        """Switch to the journal that has the name now, if it is the same session; return whether it is."""
        with self._mutex:
            before = (self._held, self._header, self._slot, self.session_id, self._ends_a_line)
            session_id = self.session_id
            try:
                self._open()
            except SessileError:
                return False  # no such journal: the open one stays readable
            if self.session_id == session_id:
                return True
            self._held, self._header, self._slot, self.session_id, self._ends_a_line = before
            return False

    def _rewritten(self, detail: str) -> LeafMoved:
        return LeafMoved(
            f"the session was rewritten while it was read: {detail}",
            path=self.path,
            hint="open the session again; another program rewrote it",
        )

    def _row(self, question: str, *params: Any) -> Row | None:
        found = self._ask(question, *params)[1]
        return row_of(*found[0]) if found else None

    # -- entries

    def last(self) -> Row | None:
        return self._last()[1]

    def _last(self) -> tuple[Now, Row | None, Link | None]:
        """Return the last entry, with the link for the next one."""
        now, found = self._ask(LAST)
        if not found:
            return now, None, None
        *columns, state, cut, after = found[0]
        row = row_of(*columns)
        if not self._ahead.rows:
            self._ahead.rows = {row.id: row}
        return now, row, link_of(row.position[0], state, cut, after)

    def find(self, entry_id: str) -> Row | None:
        # Entries are never removed, so a known row is still valid.
        return self._ahead.rows.get(entry_id) or self._row(FIND, key_of(entry_id))

    def read(self, row: Row) -> bytes:
        return next(self.read_many((row,)))

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """Yield the exact bytes of several entries; each query reads some megabytes of them."""
        if self._closed:
            raise StorageFailure("the session is closed", path=self.path, hint="open the session again")
        return self._read_many(rows)

    def _read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        lines = self._ahead.lines
        for number, row in enumerate(rows):
            if line_key(row) not in lines:
                lines = self._read_ahead(row) if len(rows) == 1 else self._fetch(_some(rows, number))
            yield lines[line_key(row)]

    def _read_ahead(self, row: Row) -> Mapping[LineKey, bytes]:
        """Read a line, with its neighbours if they are likely to be needed next."""
        ahead = self._ahead
        window = ahead.window(row)
        if window is not None:
            found = self._ask(WINDOW, *map(Int8, window))[1]
            lines = {(start, key): body for start, key, body in found}
            if line_key(row) in lines:
                ahead.lines = lines
                return lines
        return self._fetch((row,))

    def _fetch(self, rows: Sequence[Row]) -> Mapping[LineKey, bytes]:
        """Read these lines. If the journal was rewritten in the meantime, they are found by their ids."""
        ahead = self._ahead
        wanted = dict(map(line_key, rows))
        found = {
            (start, key): body
            for start, key, body in self._ask(BODIES, [Int8(start) for start in wanted])[1]
            if wanted[start] == key
        }
        if moved := [start for start, key in wanted.items() if (start, key) not in found]:
            starts, keys = [Int8(start) for start in moved], [wanted[start] for start in moved]
            found |= {(start, key): body for start, key, body in self._ask(MOVED, starts, keys)[1]}
        for row in rows:
            if line_key(row) not in found:
                raise self._rewritten(f"entry {row.id!r} is gone")
        ahead.lines = found
        return found

    def rows(self, start: int = 0) -> Iterator[Row]:
        file, (count, place) = self._held.file, self._reached
        if count > start:
            count = place = 0
        now, found = self._ask(ROWS, Int8(place), Int8(_EVER), Int8(start - count))
        if now.file != file:
            now, found = self._ask(ROWS, Int8(0), Int8(_EVER), Int8(start))
        return self._rows(now, found, start)

    def _rows(self, now: Now, found: list[tuple[Any, ...]], shown: int) -> Iterator[Row]:
        """Yield the rows that were there at the first query, batch by batch; no lock is held between batches."""
        while found:
            batch = [row_of(*row) for row in found if row[0] < now.size]
            yield from batch
            shown += len(batch)
            place = batch[-1].position[0] + 1
            if now.file == self._held.file and shown > self._reached[0]:
                self._reached = (shown, place)
            if len(found) < ROWS_AT_ONCE:
                return
            later, found = self._ask(ROWS, Int8(place), Int8(now.size), Int8(0))
            if later.file != now.file:  # replaced in the meantime: the same entries have other positions
                now, found = self._ask(ROWS, Int8(0), Int8(_EVER), Int8(shown))

    def count(self) -> int:
        return self._ask(NOTHING_ELSE)[0].entries

    def up(self, row: Row) -> Iterator[Row]:
        now, found = self._ask(STRAIGHT, key_of(row.id))
        self._walked = None
        if not found or now.doubled:
            return self._up(row, {})
        steps = [row_of(*step[3:]) for step in found]
        self._ahead.rows = {step.id: step for step in steps}
        self._ahead.lines = {(start, key): body for _, _, body, start, key, *_ in found}
        self._walked = (row.id, state_of(*found[0][:2]))
        return self._up(steps[0], self._ahead.rows)

    def _up(self, row: Row, known: Mapping[str, Row]) -> Iterator[Row]:
        seen: set[str] = set()
        step: Row | None = row
        while step is not None and step.id not in seen:
            seen.add(step.id)
            yield step
            parent_id = step.parent_id
            if parent_id is None:
                return
            step = known.get(parent_id)
            if step is None:
                steps = self._walk(parent_id)
                known = {}
                for step in steps[:-1]:
                    if step.id in seen:
                        return
                    seen.add(step.id)
                    yield step
                step = steps[-1] if steps else None

    def _walk(self, entry_id: str) -> list[Row]:
        """Return many steps towards the root, starting with an entry; each parent is looked up by its id."""
        return [row_of(*step) for step in self._ask(WALK, key_of(entry_id))[1]]

    def state(self, row: Row) -> State:
        walked = self._walked
        if walked is not None and walked[0] == row.id:
            state = walked[1]
        else:
            now, found = self._ask(STATE_OF, key_of(row.id))
            state = state_of(*found[0]) if found and not now.doubled else None
        if state is not None:
            return state
        path = [step for step in self.up(row) if step.flags & STATE]
        return fold_path(map(decode, self.read_many(path[::-1])))

    def labels(self) -> Mapping[str, str]:
        """Return the labels by entry id."""
        labels: dict[str, str] = {}
        for (raw,) in self._ask(LABELS)[1]:
            fold_label(labels, decode(raw))
        return labels

    def title(self) -> Row | None:
        """Return the last entry that sets the title of the session."""
        return self._row(TITLE)

    # -- findings

    def items(self) -> Iterator[Item]:
        """Yield every line and finding of the journal, in order; the header is one of the lines."""
        now, _ = self._ask(NOTHING_ELSE)
        scanner = Scanner()
        for rows in batches(lambda sql, params: self._database.query(sql, params, again=True), now.file, now.size):
            for _, body, gap in rows:
                yield from scanner.feed(body + (b"\n" if gap is None else gap))
        yield from scanner.finish()

    def entry_before(self, offset: int) -> str | None:
        row = self._row(BEFORE, Int8(offset))
        return None if row is None else row.id

    def findings(self) -> Sequence[Finding]:
        now, _ = self._ask(NOTHING_ELSE)
        found = self._damage() if now.damaged else []
        if now.doubled or now.parentless:
            found += Tree(Node(row.id, row.parent_id, row.flags) for row in self.rows()).findings
        return found

    def _damage(self) -> list[Finding]:
        """Return the findings in the bytes of the journal; only the first ones are kept in full."""
        found: list[Finding] = []
        total = 0
        headed = False
        for item in self.items():
            finding = item if isinstance(item, Finding) else _finding_of(item, headed)
            headed = headed or (isinstance(item, Line) and item.head.type == "session")
            if finding is not None:
                total += 1
                if len(found) < MAX_FINDINGS:
                    found.append(finding)
        if total > len(found):
            found.append(Finding("more", -1, 0, f"{total - len(found)} more findings"))
        return found


def _some(rows: Sequence[Row], number: int) -> Sequence[Row]:
    """Return the rows that are read at once, starting with one of them."""
    end, total = number, 0
    while end < len(rows) and total < MAX_BYTES:
        total += rows[end].position[1]
        end += 1
    return rows[number:end]


def _finding_of(line: Line, headed: bool) -> Finding | None:
    """Return the finding for a readable line that is not an entry; `None` if nothing is wrong with it."""
    offset, raw, head = line
    if head.type == "session":
        return Finding("second_header", offset, len(raw), "another header; ignored") if headed else None
    if head.id is None and head.type != "title":
        return Finding("no_id", offset, len(raw), f"a {head.type} entry without an id")
    return None


# -- reading ahead

MAX_BYTES = 8 << 20  # that are read at once
_FIRST = 64 << 10  # bytes of the first window
_NEAR = 64 << 10  # bytes between two lines that count as close together

LineKey = tuple[int, bytes]
"""The start of an entry, and its id as it is stored."""


def line_key(row: Row) -> LineKey:
    """Return the key of a row's line."""
    return row.position[0], key_of(row.id)


class Ahead:
    """What one reader has read ahead: rows by id, and lines by key."""

    def __init__(self) -> None:
        self.rows: Mapping[str, Row] = {}
        self.lines: Mapping[LineKey, bytes] = {}
        self._read = (0, 0)  # start and end of what was read last
        self._size = _FIRST

    def window(self, row: Row) -> tuple[int, int] | None:
        """Return the range of starts to read along with this line; `None` if its neighbours are not needed."""
        start, length = row.position
        low, high = self._read
        end = start + length
        forward, backward = 0 <= start - high < _NEAR, 0 <= low - end < _NEAR
        if not forward and not backward:
            self._read, self._size = (start, end), _FIRST
            return None
        size, self._size = self._size, min(2 * self._size, MAX_BYTES)
        self._read = (start, max(end, start + size)) if forward else (min(start, end - size), end)
        return self._read


# -- queries of a reader

ROWS_AT_ONCE = 1024
_STEPS = 1024  # towards the root, in one query
_BATCH_ROWS = 4096  # maximum number of rows in the first query of a walk

ROW = (
    f"e.start, e.id, e.parent, e.flags, octet_length(e.body), CASE WHEN e.flags & {HASHED} <> 0 THEN e.body END AS line"
)
OPEN = f"""
    SELECT f.id, f.journal, f.size, f.epoch, h.body, t.body, z.gap, e.*, s.after
    FROM name n JOIN file f ON f.id = n.file
    LEFT JOIN LATERAL (
        SELECT start, body FROM entry WHERE file = f.id AND flags & {HEADER} <> 0 ORDER BY start LIMIT 1) h ON true
    LEFT JOIN LATERAL (
        SELECT body FROM entry WHERE file = f.id AND start < h.start AND flags & {SLOT} <> 0
        ORDER BY start DESC LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT gap FROM entry WHERE file = f.id ORDER BY start DESC LIMIT 1) z ON true
    LEFT JOIN LATERAL (
        SELECT {ROW}, e.state, e.cut FROM entry e WHERE e.file = f.id AND e.id IS NOT NULL
        ORDER BY e.start DESC LIMIT 1) e ON true
    LEFT JOIN entry s ON s.file = f.id AND s.start = e.state
    WHERE n.folder = %b AND n.base = %b"""
_ASK = """
    WITH now AS (
        SELECT f.id, f.size, f.entries, f.damaged, f.doubled, f.parentless,
            (SELECT n.file FROM name n WHERE n.folder = %b AND n.base = %b) AS named
        FROM file f WHERE f.id = %b)
    SELECT now.*, q.* FROM now LEFT JOIN LATERAL (SELECT true AS found, a.* FROM ({}) a) q ON true"""
NOTHING_ELSE = "SELECT 1"
LAST = f"""
    SELECT e.*, s.after FROM (
        SELECT {ROW}, e.state, e.cut FROM entry e WHERE e.file = now.id AND e.id IS NOT NULL
        ORDER BY e.start DESC LIMIT 1) e
    LEFT JOIN entry s ON s.file = now.id AND s.start = e.state"""
FIND = f"SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1"
BODIES = "SELECT e.start, e.id, e.body FROM entry e WHERE e.file = now.id AND e.start = ANY(%b::bigint[])"
WINDOW = """
    SELECT e.start, e.id, e.body FROM entry e
    WHERE e.file = now.id AND e.start >= %b AND e.start < %b AND e.id IS NOT NULL"""
MOVED = """
    SELECT w.start, w.id, e.body FROM unnest(%b::bigint[], %b::bytea[]) AS w (start, id) CROSS JOIN LATERAL (
        SELECT e.body FROM entry e WHERE e.file = now.id AND e.id = w.id ORDER BY e.copy DESC LIMIT 1) e"""
ROWS = f"""
    SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.start >= %b AND e.start < %b AND e.id IS NOT NULL
    ORDER BY e.start LIMIT {ROWS_AT_ONCE} OFFSET %b"""
STATE_OF = """
    SELECT e.state, s.after FROM entry e LEFT JOIN entry s ON s.file = e.file AND s.start = e.state
    WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1"""
STRAIGHT = f"""
    SELECT leaf.state, s.after, e.*
    FROM (
        SELECT l.start, l.state, l.cut FROM entry l WHERE l.file = now.id AND l.id = %b ORDER BY l.copy DESC LIMIT 1) leaf
    LEFT JOIN entry s ON s.file = now.id AND s.start = leaf.state
    CROSS JOIN LATERAL (
        SELECT e.body, {ROW} FROM entry e WHERE e.file = now.id AND e.id IS NOT NULL
            AND e.start <= leaf.start AND e.start >= greatest(leaf.cut, leaf.start - {MAX_BYTES})
        ORDER BY e.start DESC LIMIT {_BATCH_ROWS}) e"""
WALK = f"""
    WITH RECURSIVE path AS (
        (SELECT 1 AS step, {ROW} FROM entry e WHERE e.file = now.id AND e.id = %b ORDER BY e.copy DESC LIMIT 1)
        UNION ALL
        SELECT path.step + 1, e.* FROM path, LATERAL (
            SELECT {ROW} FROM entry e WHERE e.file = now.id AND e.id = path.parent ORDER BY e.copy DESC LIMIT 1) e
        WHERE path.step < {_STEPS})
    SELECT start, id, parent, flags, octet_length, line FROM path ORDER BY step"""
_MARKED = f"FROM entry e WHERE e.file = now.id AND e.flags & {MARKED} <> 0"
TITLE = f"SELECT {ROW} {_MARKED} AND e.flags & {kinds.TITLE} <> 0 ORDER BY e.start DESC LIMIT 1"
LABELS = f"SELECT e.body {_MARKED} AND e.flags & {kinds.LABEL} <> 0 ORDER BY e.start"
BEFORE = f"""
    SELECT {ROW} FROM entry e
    WHERE e.file = now.id AND e.start < %b AND e.id IS NOT NULL ORDER BY e.start DESC LIMIT 1"""


def statement_of(question: str) -> str:
    """Return the statement for a question about the file `now`.

    It returns the columns of `Now` with each row of the answer, and one row if the answer is empty.
    """
    return _ASK.format(question)


# -- bytes and rows

_LONGEST_ID = 512  # bytes; an index entry has a maximum of a few thousand
_HASH = b"\xff"  # no UTF-8 text starts with it
_LONGEST_GAP = 64 * 1024 * 1024  # bytes; longer than any line


class Tile(NamedTuple):
    """One row of the table `entry`, without its file."""

    start: int
    id: bytes | None
    copy: int
    parent: bytes | None
    flags: int
    state: int | None
    cut: int
    after: bytes | None
    body: bytes
    gap: bytes | None


COLUMNS = Tile._fields


def is_counted(tile: Tile) -> bool:
    """Return whether a row counts as an entry; markers do not."""
    return tile.id is not None and not tile.flags & MARKER


def key_of(entry_id: str) -> bytes:
    """Return an id as it is stored: its text, or a hash if it is long."""
    text = entry_id.encode("utf-8", "surrogatepass")
    return text if len(text) <= _LONGEST_ID else _HASH + blake2b(text, 32)


def row_of(start: int, key: bytes, parent: bytes | None, flags: int, length: int, line: bytes | None) -> Row:
    """Return the `Row` of a database row; `line` is given if one of its ids is stored as a hash."""
    if line is not None:
        head = read_head(line)
        return Row(str(head.id), head.parentId or None, flags & KIND_FLAGS, (start, length))
    parent_id = None if parent is None else parent.decode("utf-8", "surrogatepass")
    return Row(key.decode("utf-8", "surrogatepass"), parent_id, flags & KIND_FLAGS, (start, length))


class Tiler:
    """Turns the bytes of a journal into rows: `feed` them in order, then call `finish`.

    The bytes before `offset` are in the journal already. `path` is for the error if there is no header.
    """

    def __init__(self, path: str, links: Links, offset: int = 0) -> None:
        self.rows = self.entries = 0
        self.damaged = self.doubled = self.parentless = False
        self._path = path
        self._links = links
        self._scanner = Scanner(offset)
        self._headed = offset > 0
        self._tile: Tile | None = None  # the last one, whose gap is not known yet
        self._rest = b""  # the bytes after its body
        self._at = offset  # where they start

    @property
    def size(self) -> int:
        """The size of the file so far, in bytes."""
        return self._scanner.offset

    def feed(self, data: bytes) -> Iterator[Tile]:
        """Add bytes and yield the rows that are complete."""
        self._rest = self._rest + data if self._rest else data
        yield from self._take(self._scanner.feed(data))
        if len(self._rest) > _LONGEST_GAP:  # too long to be a line
            yield from self._gap(len(self._rest))

    def finish(self) -> Iterator[Tile]:
        """Yield the last rows; raise NotASession if there was no header."""
        yield from self._take(self._scanner.finish())
        if not self._headed:
            raise self._not_a_session()
        yield from self._gap(len(self._rest))

    def _take(self, items: Iterator[Line | Finding]) -> Iterator[Tile]:
        used = 0  # bytes of the rest
        for item in items:
            if isinstance(item, Finding):
                self.damaged = True
                continue
            begin = item.offset - self._at
            yield from self._ended(used, begin)
            used = begin + len(item.raw)
            self._tile = self._tile_of(item)
        self._rest = self._rest[used:]
        self._at += used

    def _ended(self, begin: int, end: int) -> Iterator[Tile]:
        """Yield the last tile with the gap that follows it."""
        gap = self._rest[begin:end]
        tile, self._tile = self._tile, None
        if tile is None:
            if not gap:
                return
            tile = _bare(self._at + begin)
        self.rows += 1
        self.entries += is_counted(tile)
        yield tile if gap == b"\n" else tile._replace(gap=gap)

    def _gap(self, length: int) -> Iterator[Tile]:
        yield from self._ended(0, length)
        self._rest = self._rest[length:]
        self._at += length

    def _tile_of(self, line: Line) -> Tile:
        start, raw, head = line
        if head.id is None or head.type == "session" or not self._headed:
            return _bare(start, self._flags_of_other(head), raw)
        flags = flags_of(head)
        link = self._links.add(line, flags)
        self.doubled |= link.double
        self.parentless |= link.orphan
        key, parent = key_of(head.id), key_of(head.parentId) if head.parentId else None
        if key[:1] == _HASH or (parent is not None and parent[:1] == _HASH):
            flags |= HASHED
        return Tile(start, key, start if link.double else 0, parent, flags, link.state, link.cut, link.after, raw, None)

    def _flags_of_other(self, head: Head) -> int:
        """Return the flags of a line that is not an entry."""
        if self._headed:
            self.damaged |= head.type != "title"
            return NO_ENTRY
        if head.type == "title" and head.id is None:
            return NO_ENTRY | SLOT
        if head.type == "session" and head.id is not None:
            self._headed = True
            return NO_ENTRY | HEADER
        raise self._not_a_session()

    def _not_a_session(self) -> NotASession:
        return NotASession(path=self._path, hint="check the path; nothing was changed")


def _bare(start: int, flags: int = NO_ENTRY, body: bytes = b"") -> Tile:
    return Tile(start, None, 0, None, flags, None, 0, None, body, None)


# -- links to parents

NOTHING = 0  # the state of a path that has set nothing; no entry starts at offset 0

_REMEMBERED = 16  # the latest links that are kept: likely parents of the next entry
_MANY = 64  # links at which old ones are dropped
_MAX_STATE = 16 * 1024  # bytes; a larger state is folded from its path when needed

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


class Link(NamedTuple):
    """What the children of an entry need to know of it."""

    start: int
    state: int | None  # the start of the entry that has the state of the path
    cut: int  # where the context starts
    value: State | None  # the state itself


class NewLink(NamedTuple):
    """The columns of a new entry that depend on its parent."""

    state: int | None
    cut: int
    after: bytes | None
    orphan: bool
    double: bool


def link_of(start: int, state: int | None, cut: int, after: bytes | None) -> Link:
    """Return the link of a database row; `after` is the state at `state`."""
    return Link(start, state, cut, State() if state == NOTHING else None if after is None else _decode(after))


def state_of(state: int | None, after: bytes | None) -> State | None:
    """Return the state after an entry; `None` if it must be folded from its path."""
    return link_of(0, state, 0, after).value


class Links:
    """The possible parents of new entries.

    With `whole` all entries are known. Otherwise `unknown` collects the ids that were not found, which the caller looks up and
    passes to `learn`; `added` are the ids of new entries, which may exist already.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.unknown: set[str] = set()
        self.added: set[str] = set()
        self._whole = whole
        self._absent: set[str] = set()
        self._links: dict[str, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def learn(self, found: Iterable[tuple[str, Link]], sought: Iterable[str] = ()) -> None:
        """Add the links that were found among the `sought` ids; the others do not exist."""
        self._links.update(found)
        self._absent = {entry_id for entry_id in sought if entry_id not in self._links}

    def copied(self) -> Links:
        """Return a copy, to try an append with."""
        copy = Links(whole=self._whole)
        copy._links = dict(self._links)
        copy._absent = self._absent
        return copy

    def forget_old(self) -> None:
        """Keep only the newest links, so that memory does not grow with the session."""
        links = self._links
        if len(links) > _MANY:
            self._links = {entry_id: links[entry_id] for entry_id in list(links)[-_REMEMBERED:]}
        self._absent, self.added = set(), set()

    def add(self, line: Line, flags: int) -> NewLink:
        """Add the next entry of the journal."""
        start, head = line.offset, line.head
        entry_id, parent_id = str(head.id), head.parentId
        state: int | None = NOTHING
        value: State | None = None
        cut = start
        orphan = False
        if parent_id:
            parent = self._find(parent_id)
            if parent is None:
                state, orphan = None, True
            else:
                _, state, cut, value = parent
        else:
            value = State()
        if flags & BOUNDARY:
            cut = self._first_kept(line)
        after = None
        if flags & STATE and value is not None:
            state, value, after = _after(state, value, line, flags)
        double = entry_id in self._links
        if double:
            del self._links[entry_id]  # the newest come last
        self._links[entry_id] = Link(start, state, cut, value)
        if not self._whole:
            self.added.add(entry_id)
        return NewLink(state, cut, after, orphan, double)

    def _find(self, entry_id: str) -> Link | None:
        link = self._links.get(entry_id)
        if link is None and not self._whole and entry_id not in self._absent:
            self.unknown.add(entry_id)
        return link

    def _first_kept(self, line: Line) -> int:
        if line.head.type != "compaction":
            return line.offset
        kept = first_kept(decode(line.raw))
        link = None if kept is None else self._find(kept)
        return line.offset if link is None else link.start


def _after(state: int | None, value: State, line: Line, flags: int) -> tuple[int | None, State | None, bytes | None]:
    """Return the state after an entry that may change it; most messages do not."""
    entry: dict[str, Any]
    if flags & MESSAGE:
        assert line.head.message is not None  # implied by the flag
        entry = {"type": "message", "message": asdict(line.head.message)}
    else:
        entry = decode(line.raw)
    new = fold(value, entry)
    if new == value:
        return state, value, None
    try:
        encoded = _encode(new)
    except (ValueError, OverflowError):
        return None, None, None  # a lone surrogate or a huge integer
    return (line.offset, new, encoded) if len(encoded) <= _MAX_STATE else (None, None, None)


# -- writing

FEW = 64  # fewer rows are inserted by one statement; others are copied
_PIECE = 4 << 20  # bytes that are read at once

_INSERTED = f"INSERT INTO entry (file, {', '.join(COLUMNS)})"
_HEAD = f"""
    WITH head AS (
        UPDATE file SET size = size + %b, rows = rows + %b, entries = entries + %b, modified = {NOW}
        WHERE id = %b AND size = %b AND epoch = %b AND links > 0
            AND EXISTS (SELECT 1 FROM name WHERE folder = %b AND base = %b AND file = %b)
        RETURNING id)"""
_APPEND_ONE = f"""{_HEAD}
    {_INSERTED} SELECT id, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b FROM head RETURNING start"""
_ARRAYS = (
    "%b::bigint[], %b::bytea[], %b::bigint[], %b::bytea[], %b::integer[],"
    " %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[]"
)
_APPEND_FEW = f"{_HEAD} {_INSERTED} SELECT head.id, new.* FROM head, unnest({_ARRAYS}) AS new RETURNING start"
_INSERT_FEW = f"{_INSERTED} SELECT %b, new.* FROM unnest({_ARRAYS}) AS new"
_COPY = f"COPY entry (file, {', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_TYPES = ("int8", "int8", "bytea", "int8", "bytea", "int4", "int8", "int8", "bytea", "bytea", "bytea")

_HOLD = """
    SELECT f.id, f.journal, f.size, f.epoch FROM name n JOIN file f ON f.id = n.file
    WHERE n.folder = %b AND n.base = %b FOR UPDATE OF f"""
_NAME = "SELECT file FROM name WHERE folder = %b AND base = %b"
_GIVE = f"""
    WITH {PARENT}
    INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, %(file)s FROM parent
    ON CONFLICT DO NOTHING RETURNING file"""
_LINKS = """
    SELECT wanted.id, e.start, e.state, e.cut, s.after FROM unnest(%b::bytea[]) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT start, state, cut FROM entry WHERE file = %b AND id = wanted.id ORDER BY copy DESC LIMIT 1) AS e
    LEFT JOIN entry AS s ON s.file = %b AND s.start = e.state"""
_BATCH = "SELECT start, body, gap FROM entry WHERE file = %b AND start >= %b AND start < %b ORDER BY start"
_AT = "SELECT start, body FROM entry WHERE file = %b AND start = ANY(%b::bigint[])"
_NAMED = "SELECT id, body FROM entry WHERE file = %b AND id = ANY(%b::bytea[]) ORDER BY copy"
_GROWN = f"""
    UPDATE file SET size = %b, rows = rows + %b, entries = entries + %b, modified = {NOW}, journal = true,
        damaged = damaged OR %b, doubled = doubled OR %b, parentless = parentless OR %b WHERE id = %b"""


Execute = Callable[[Any, Any], list[tuple[Any, ...]]]
"""Runs a statement with its parameters, in a transaction or alone, and returns its rows."""


class Held(NamedTuple):
    """A file whose row is locked."""

    file: int
    journal: bool
    size: int
    epoch: int


def name_of(path: str) -> Key:
    """Return the key of a path in the table of names."""
    with storage_failures(path, "find the session"):
        return key(path)


def give_name(cursor: Cursor, path: str, file: int) -> bool:
    """Give a file a new name in an existing folder; return whether that was possible."""
    return cursor.execute(_GIVE, {**placed(path), "file": file}).fetchone() is not None


def executing(cursor: Cursor) -> Execute:
    """Return a function that runs statements in a transaction."""
    return lambda sql, params: cursor.execute(sql, params).fetchall()


def hold(cursor: Cursor, name: Key, *, rename: bool = False) -> Held | None:
    """Lock the file that has this name, until the end of the transaction; with `rename`, lock the name first."""
    if rename:
        cursor.execute(f"{_NAME} FOR UPDATE", name)
    while True:
        found = cursor.execute(_HOLD, name).fetchone()
        if found is None:
            return None
        # The previous holder may have moved the name to another file, so check again under the lock.
        if cursor.execute(_NAME, name).fetchone() == (found[0],):
            return Held._make(found)


def append(execute: Execute, held: Held, name: Key, tiles: Sequence[Tile], size: int) -> bool:
    """Append a few rows if name and size of the journal are unchanged; return whether they were."""
    file = Int8(held.file)
    grown = (Int8(size - held.size), Int8(len(tiles)), Int8(sum(map(is_counted, tiles))))
    head = (*grown, file, Int8(held.size), Int8(held.epoch), *name, file)
    if len(tiles) == 1:
        return bool(execute(_APPEND_ONE, (*head, *_values(tiles[0]))))
    return bool(execute(_APPEND_FEW, (*head, *_arrays(tiles))))


def insert(cursor: Cursor, file: int, tiles: Iterable[Tile]) -> None:
    """Insert rows: a few by one statement, many by COPY."""
    rows = iter(tiles)
    batch = list(islice(rows, FEW))
    if len(batch) == FEW:
        with cursor.copy(_COPY) as copy:
            copy.set_types(_TYPES)
            for tile in chain(batch, rows):
                copy.write_row((file, *tile))
    elif batch:
        cursor.execute(_INSERT_FEW, (Int8(file), *_arrays(batch)))


def grow(cursor: Cursor, file: int, tiler: Tiler) -> None:
    """Update the row of the file after an insert."""
    counts = (Int8(tiler.size), Int8(tiler.rows), Int8(tiler.entries))
    cursor.execute(_GROWN, (*counts, tiler.damaged, tiler.doubled, tiler.parentless, Int8(file)))


def fill(cursor: Cursor, file: int, tiler: Tiler, content: Iterable[bytes]) -> None:
    """Turn an empty file into a journal with this content."""

    def tiles() -> Iterator[Tile]:
        for data in content:
            yield from tiler.feed(data)
        yield from tiler.finish()

    insert(cursor, file, tiles())
    grow(cursor, file, tiler)


def end_with_newline(cursor: Cursor, held: Held) -> Held:
    """Add a newline to the last line if it has none."""
    cursor.execute("SELECT start, gap FROM entry WHERE file = %b ORDER BY start DESC LIMIT 1", (Int8(held.file),))
    ((start, gap),) = cursor.fetchall()
    if gap is None or gap.endswith(b"\n"):
        return held
    closed = gap + b"\n" if gap else None
    cursor.execute("UPDATE entry SET gap = %b WHERE file = %b AND start = %b", (closed, Int8(held.file), Int8(start)))
    cursor.execute("UPDATE file SET size = size + 1 WHERE id = %b", (Int8(held.file),))
    return held._replace(size=held.size + 1)


def is_there(execute: Execute, held: Held, before: Held, tiles: Sequence[Tile]) -> bool:
    """Return whether rows sent to the journal `before` are in it, or in the one that has its name now."""
    if held.file == before.file:
        starts = [Int8(tile.start) for tile in tiles]
        at: dict[int, bytes] = dict(execute(_AT, (Int8(held.file), starts)))
        return all(at.get(tile.start) == tile.body for tile in tiles)
    entries = {tile.id: tile.body for tile in tiles if tile.id is not None}
    found: dict[bytes, bytes] = dict(execute(_NAMED, (Int8(held.file), list(entries))))
    return bool(entries) and found == entries


def links_to(execute: Execute, file: int, ids: Iterable[str]) -> dict[str, Link]:
    """Return the links of these entries; missing entries are left out."""
    keys = {key_of(entry_id): entry_id for entry_id in ids}
    found = execute(_LINKS, (list(keys), Int8(file), Int8(file)))
    return {keys[key]: link_of(*link) for key, *link in found}


def batches(execute: Execute, file: int, end: int) -> Iterator[list[tuple[int, bytes, bytes | None]]]:
    """Yield the rows of a journal up to `end` as start, body and gap, some megabytes at a time."""
    start = 0
    while start < end:
        rows = execute(_BATCH, (Int8(file), Int8(start), Int8(min(end, start + _PIECE))))
        if not rows:
            return  # the file is gone
        yield rows
        last, body, gap = rows[-1]
        start = last + len(body) + (1 if gap is None else len(gap))


def _values(tile: Tile) -> tuple[Any, ...]:
    start, key, copy, parent, flags, state, cut, after, body, gap = tile
    return (
        Int8(start), key, Int8(copy), parent, Int4(flags),
        None if state is None else Int8(state), Int8(cut), after, body, gap,
    )  # fmt: skip


def _arrays(tiles: Sequence[Tile]) -> tuple[Any, ...]:
    return tuple(map(list, zip(*map(_values, tiles), strict=True)))
