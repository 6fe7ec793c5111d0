"""A journal in SQLite, which proves that the journal interface does not require files.

One table is one journal; positions are row numbers. It is simple rather than fast: states are computed from the path.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sessile.core.codec import decode
from sessile.core.context import fold_path
from sessile.core.kinds import LABEL, MARKER, STATE, TITLE, State, flags_of, fold_label
from sessile.core.lines import Finding, read_head
from sessile.core.tree import Node, Tree
from sessile.errors import NotASession, StorageFailure
from sessile.storage.base import Appended, Revise, Row

_SCHEMA = "CREATE TABLE IF NOT EXISTS lines (seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB, parent BLOB, flags INT, line BLOB)"
_COLUMNS = "SELECT id, parent, flags, seq FROM lines WHERE id IS NOT NULL"
_HEADER = "SELECT seq, line FROM lines WHERE id IS NULL ORDER BY seq LIMIT 1"


class SqliteJournal:
    """One session in one database file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._db.execute(_SCHEMA)
        self._db.execute("CREATE INDEX IF NOT EXISTS by_id ON lines (id, seq)")
        self._seen = self._last_number()

    @classmethod
    def create(cls, path: str, lines: Sequence[bytes]) -> None:
        """Store a journal; its first line is the header."""
        journal = cls(path)
        with journal._transaction():
            journal._db.execute("INSERT INTO lines (line) VALUES (?)", (lines[0],))
            journal._insert(lines[1:])
        journal.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _execute(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise StorageFailure(f"the database failed: {error}", path=self.path) from error

    def _insert(self, lines: Sequence[bytes]) -> list[int]:
        positions = []
        for line in lines:
            head = read_head(line)
            values = (_blob(head.id), _blob(head.parentId or None), flags_of(head), line)
            cursor = self._db.execute("INSERT INTO lines (id, parent, flags, line) VALUES (?, ?, ?, ?)", values)
            positions.append(cursor.lastrowid or 0)
        return positions

    def _last_number(self) -> int:
        ((number,),) = self._execute("SELECT coalesce(max(seq), 0) FROM lines")
        assert isinstance(number, int)
        return number

    def _select(self, rest: str, *parameters: object) -> list[Row]:
        return [_row(*values) for values in self._execute(f"{_COLUMNS} {rest}", parameters)]

    def header(self) -> bytes:
        found = self._execute(_HEADER)
        if not found or not isinstance(found[0][1], bytes):
            raise NotASession(path=self.path)
        return found[0][1]

    def slot(self) -> bytes | None:
        return None

    def last(self) -> Row | None:
        return next(iter(self._select("ORDER BY seq DESC LIMIT 1")), None)

    def find(self, entry_id: str) -> Row | None:
        return next(iter(self._select("AND id = ? ORDER BY seq DESC LIMIT 1", _blob(entry_id))), None)

    def read(self, row: Row) -> bytes:
        ((line,),) = self._execute("SELECT line FROM lines WHERE seq = ?", (row.position,))
        assert isinstance(line, bytes)
        return line

    def rows(self, start: int = 0) -> Iterator[Row]:
        return iter(self._select("ORDER BY seq")[start:])

    def count(self) -> int:
        return sum(not row.flags & MARKER for row in self.rows())

    def up(self, row: Row) -> Iterator[Row]:
        seen: set[str] = set()
        step: Row | None = row
        while step is not None and step.id not in seen:
            seen.add(step.id)
            yield step
            step = self.find(step.parent_id) if step.parent_id else None

    def state(self, row: Row) -> State:
        path = [decode(self.read(step)) for step in self.up(row) if step.flags & STATE]
        return fold_path(reversed(path))

    def labels(self) -> Mapping[str, str]:
        labels: dict[str, str] = {}
        for row in self._select(f"AND flags & {LABEL} ORDER BY seq"):
            fold_label(labels, decode(self.read(row)))
        return labels

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        return map(self.read, rows)

    def title(self) -> Row | None:
        return next(iter(self._select(f"AND flags & {TITLE} ORDER BY seq DESC LIMIT 1")), None)

    def entry_before(self, offset: int) -> str | None:
        return None  # a database has no unreadable lines

    def findings(self) -> Sequence[Finding]:
        return Tree(Node(row.id, row.parent_id, row.flags) for row in self.rows()).findings

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        with self._lock, self._transaction():
            if self._last_number() > self._seen:
                lines = revise(SqliteNews(self._select("AND seq > ? ORDER BY seq", self._seen)))
            positions = self._insert(lines)
            if positions:
                self._seen = positions[-1]
            return Appended(positions, None)

    def follow(self) -> Row | None:
        with self._lock:
            last = self.last()
            self._seen = self._last_number()
            return last

    def commit(self, mark: object) -> None:
        """Do nothing: the transaction was durable when `append` returned."""

    def flush(self) -> None:
        """Do nothing, as in `commit`."""

    @property
    def failure(self) -> None:
        return None

    def reopen(self) -> None:
        """Do nothing: a failed transaction leaves nothing behind."""

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        with self._lock, self._transaction():
            if keep is not None:
                self._db.execute("CREATE TABLE IF NOT EXISTS kept (name TEXT, seq INT, line BLOB)")
                self._db.execute("INSERT INTO kept SELECT ?, seq, line FROM lines", (keep,))
            for number, line in self._execute("SELECT seq, line FROM lines"):
                assert isinstance(line, bytes)
                new = edit(line)
                if new is not None:
                    self._db.execute("UPDATE lines SET line = ? WHERE seq = ?", (new, number))

    def close(self) -> None:
        self._db.close()


class SqliteNews:
    """The rows that other handles have inserted."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def rows(self) -> Sequence[Row]:
        return self._rows

    def child_of(self, entry_id: str) -> bool:
        return any(row.parent_id == entry_id for row in self._rows)


def _row(entry_id: object, parent: object, flags: object, number: object) -> Row:
    assert isinstance(entry_id, bytes)
    assert isinstance(flags, int)
    return Row(_text(entry_id), _text(parent) if isinstance(parent, bytes) else None, flags, number)


def _blob(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
