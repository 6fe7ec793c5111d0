"""Reading a journal in the database. Nothing here changes it.

Every question is one query, which also tells whether the name means another journal by now: then the question is asked there.
The way from an entry to the root is read in stretches; the first of them brings the lines and the state along, because that is
what a context is made of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8

from sessile.core.codec import decode
from sessile.core.context import fold_path
from sessile.core.kinds import STATE, State, fold_label
from sessile.core.lines import Finding, Item, Line, Scanner, read_head
from sessile.core.tree import Node, Tree
from sessile.errors import LeafMoved, NotASession, SessileError, SessionNotFound, StorageFailure
from sessile.storage.base import Row
from sessile.storage.index import MAX_FINDINGS
from sessile.storage.postgres import questions
from sessile.storage.postgres.ahead import MOST, Ahead, LineKey, line_key
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.links import Link, link_of, state_of
from sessile.storage.postgres.rows import key_of, row_of
from sessile.storage.postgres.writing import Held, batches, name_of

_EVER = 1 << 62  # behind every journal


def not_found(path: str) -> SessionNotFound:
    """The error for a name that means no journal."""
    return SessionNotFound(path=path, hint="it was moved or deleted; list the sessions again")


class Now(NamedTuple):
    """What is known of a journal at the moment of a question."""

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
        """Go on with the journal that has our name now."""
        found = self._database.query(questions.OPEN, self._name, again=True)
        if not found:
            raise not_found(self.path)
        file, journal, size, epoch, header, slot, gap, *last, state, cut, after = found[0]
        if not journal or header is None:
            raise NotASession(path=self.path, hint="it was not changed; perhaps another agent wrote it")
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
        """Forget what was read of another journal."""
        self._size = self._held.size  # when we last looked
        self._ahead = Ahead()
        self._ahead.rows = {} if last is None else {last.id: last}  # whoever opens a session goes on from there
        self._reached = (
            0,
            0,
        )  # how many rows were shown at most, and where the next one lies: skipping them takes time
        self._walked: tuple[str, State | None] | None = None  # the entry that the last walk began at, and its state

    def close(self) -> None:
        """Let go of the journal."""
        self._closed = True
        self._ahead = Ahead()

    def header(self) -> bytes:
        return self._header

    def slot(self) -> bytes | None:
        return self._slot

    # -- asking

    def _ask(self, question: str, *params: Any) -> tuple[Now, list[tuple[Any, ...]]]:
        """What the journal that has our name now says, and how it is at that moment."""
        sql = questions.asked(question)
        for _ in range(2):
            if self._closed:
                raise StorageFailure("the session is closed", path=self.path, hint="open it again")
            file = self._held.file
            found = self._database.query(sql, (*self._name, Int8(file), *params), again=True)
            now = Now._make(found[0][:7]) if found else None
            if now is not None and (now.named in (None, file) or not self._go_on()):
                if now.size != self._size:
                    self._size, self._ahead.rows = now.size, {}  # an id that is known may be there once more
                return now, [row[8:] for row in found if row[7]]
            if now is None and not self._go_on():
                raise not_found(self.path)
        raise self._rewritten("it was replaced again and again")

    def _go_on(self) -> bool:
        """Continue in the journal that has taken the place of ours, if it is the same session; whether it is."""
        with self._mutex:
            before = (self._held, self._header, self._slot, self.session_id, self._ends_a_line)
            session_id = self.session_id
            try:
                self._open()
            except SessileError:
                return False  # nothing to go on in: what is open stays readable
            if self.session_id == session_id:
                return True
            self._held, self._header, self._slot, self.session_id, self._ends_a_line = before
            return False

    def _rewritten(self, detail: str) -> LeafMoved:
        return LeafMoved(
            f"the session was rewritten while it was read: {detail}",
            path=self.path,
            hint="another program did that; open the session again",
        )

    def _row(self, question: str, *params: Any) -> Row | None:
        found = self._ask(question, *params)[1]
        return row_of(*found[0]) if found else None

    # -- entries

    def last(self) -> Row | None:
        return self._last()[1]

    def _last(self) -> tuple[Now, Row | None, Link | None]:
        """The last entry, with what the next one takes over from it."""
        now, found = self._ask(questions.LAST)
        if not found:
            return now, None, None
        *columns, state, cut, after = found[0]
        row = row_of(*columns)
        if not self._ahead.rows:
            self._ahead.rows = {row.id: row}
        return now, row, link_of(row.position[0], state, cut, after)

    def find(self, entry_id: str) -> Row | None:
        # What was there when we last looked still is: nothing goes away.
        return self._ahead.rows.get(entry_id) or self._row(questions.FIND, key_of(entry_id))

    def read(self, row: Row) -> bytes:
        return next(self.read_many((row,)))

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """The exact bytes of several entries; each query brings some megabytes of them."""
        if self._closed:
            raise StorageFailure("the session is closed", path=self.path, hint="open it again")
        return self._read_many(rows)

    def _read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        lines = self._ahead.lines
        for number, row in enumerate(rows):
            if line_key(row) not in lines:
                lines = self._read_ahead(row) if len(rows) == 1 else self._fetch(_some(rows, number))
            yield lines[line_key(row)]

    def _read_ahead(self, row: Row) -> Mapping[LineKey, bytes]:
        """Read a line, and those beside it if it is likely that they are asked for next."""
        ahead = self._ahead
        window = ahead.window(row)
        if window is not None:
            found = self._ask(questions.WINDOW, *map(Int8, window))[1]
            lines = {(start, key): body for start, key, body in found}
            if line_key(row) in lines:
                ahead.lines = lines
                return lines
        return self._fetch((row,))

    def _fetch(self, rows: Sequence[Row]) -> Mapping[LineKey, bytes]:
        """Read these lines. Those of a journal that was rewritten meanwhile are found by their ids."""
        ahead = self._ahead
        wanted = dict(map(line_key, rows))
        found = {
            (start, key): body
            for start, key, body in self._ask(questions.BODIES, [Int8(start) for start in wanted])[1]
            if wanted[start] == key
        }
        if moved := [start for start, key in wanted.items() if (start, key) not in found]:
            starts, keys = [Int8(start) for start in moved], [wanted[start] for start in moved]
            found |= {(start, key): body for start, key, body in self._ask(questions.MOVED, starts, keys)[1]}
        for row in rows:
            if line_key(row) not in found:
                raise self._rewritten(f"entry {row.id} is no longer there")
        ahead.lines = found
        return found

    def rows(self, start: int = 0) -> Iterator[Row]:
        file, (count, place) = self._held.file, self._reached
        if count > start:
            count = place = 0
        now, found = self._ask(questions.ROWS, Int8(place), Int8(_EVER), Int8(start - count))
        if now.file != file:
            now, found = self._ask(questions.ROWS, Int8(0), Int8(_EVER), Int8(start))
        return self._rows(now, found, start)

    def _rows(self, now: Now, found: list[tuple[Any, ...]], shown: int) -> Iterator[Row]:
        """Batch after batch of what was there at first; no lock is held between two of them."""
        while found:
            batch = [row_of(*row) for row in found if row[0] < now.size]
            yield from batch
            shown += len(batch)
            place = batch[-1].position[0] + 1
            if now.file == self._held.file and shown > self._reached[0]:
                self._reached = (shown, place)
            if len(found) < questions.ROWS_AT_ONCE:
                return
            later, found = self._ask(questions.ROWS, Int8(place), Int8(now.size), Int8(0))
            if later.file != now.file:  # replaced meanwhile: the same entries lie elsewhere
                now, found = self._ask(questions.ROWS, Int8(0), Int8(_EVER), Int8(shown))

    def count(self) -> int:
        return self._ask(questions.NOTHING_ELSE)[0].entries

    def up(self, row: Row) -> Iterator[Row]:
        now, found = self._ask(questions.STRAIGHT, key_of(row.id))
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
        """Many steps towards the root at once, from an entry on; each parent is looked up by its id."""
        return [row_of(*step) for step in self._ask(questions.WALK, key_of(entry_id))[1]]

    def state(self, row: Row) -> State:
        walked = self._walked
        if walked is not None and walked[0] == row.id:
            state = walked[1]
        else:
            now, found = self._ask(questions.STATE, key_of(row.id))
            state = state_of(*found[0]) if found and not now.doubled else None
        if state is not None:
            return state
        path = [step for step in self.up(row) if step.flags & STATE]
        return fold_path(map(decode, self.read_many(path[::-1])))

    def labels(self) -> Mapping[str, str]:
        """The label of each entry that has one."""
        labels: dict[str, str] = {}
        for (raw,) in self._ask(questions.LABELS)[1]:
            fold_label(labels, decode(raw))
        return labels

    def title(self) -> Row | None:
        """The last entry that names the session."""
        return self._row(questions.TITLE)

    # -- what is wrong

    def items(self) -> Iterator[Item]:
        """Every line and finding of the journal, in order; the header is one of the lines."""
        now, _ = self._ask(questions.NOTHING_ELSE)
        scanner = Scanner()
        for rows in batches(lambda sql, params: self._database.query(sql, params, again=True), now.file, now.size):
            for _, body, gap in rows:
                yield from scanner.feed(body + (b"\n" if gap is None else gap))
        yield from scanner.finish()

    def entry_before(self, offset: int) -> str | None:
        row = self._row(questions.BEFORE, Int8(offset))
        return None if row is None else row.id

    def findings(self) -> Sequence[Finding]:
        now, _ = self._ask(questions.NOTHING_ELSE)
        found = self._damage() if now.damaged else []
        if now.doubled or now.parentless:
            found += Tree(Node(row.id, row.parent_id, row.flags) for row in self.rows()).findings
        return found

    def _damage(self) -> list[Finding]:
        """What the bytes of the journal say; only the first findings are kept in full."""
        found: list[Finding] = []
        total = 0
        headed = False
        for item in self.items():
            finding = item if isinstance(item, Finding) else _wrong(item, headed)
            headed = headed or (isinstance(item, Line) and item.head.type == "session")
            if finding is not None:
                total += 1
                if len(found) < MAX_FINDINGS:
                    found.append(finding)
        if total > len(found):
            found.append(Finding("more", -1, 0, f"{total - len(found)} more findings"))
        return found


def _some(rows: Sequence[Row], number: int) -> Sequence[Row]:
    """The rows from one on that are read at once."""
    end, total = number, 0
    while end < len(rows) and total < MOST:
        total += rows[end].position[1]
        end += 1
    return rows[number:end]


def _wrong(line: Line, headed: bool) -> Finding | None:
    """What is wrong with a line that can be read, but is no entry."""
    offset, raw, head = line
    if head.type == "session":
        return Finding("second_header", offset, len(raw), "another header; ignored") if headed else None
    if head.id is None and head.type != "title":
        return Finding("no_id", offset, len(raw), f"a {head.type} entry without an id")
    return None
