"""Reading the journal of a session: its header, its rows through the index, its lines.

Nothing here changes the file. The index is caught up with the file whenever rows are asked for, and kept in the cache for
the next one who opens. A journal with duplicate ids, forward parents or circles is read as a whole instead, so that both
ways give one answer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

from sessile.core.codec import decode
from sessile.core.context import fold_path
from sessile.core.kinds import STATE, State, flags_of
from sessile.core.lines import Finding, Item, Line, Scanner, read_head
from sessile.core.tree import Node, Tree
from sessile.errors import LeafMoved, NotASession, storage_failure
from sessile.storage.base import Filesystem, Row
from sessile.storage.index import NOWHERE, TAIL, IndexDamaged, RowIndex

CHUNK = 1 << 20
SAVE_AFTER_ROWS = 64  # fewer new rows are scanned again sooner than the index is written again

_log = logging.getLogger("sessile")


class JournalReader:
    """One session file, open for reading."""

    _flags = os.O_RDONLY

    def __init__(self, fs: Filesystem, path: str, *, index_path: str | None = None) -> None:
        self.path = path
        self._fs = fs
        self._index_path = index_path
        self._mutex = threading.RLock()
        self._open()

    def _open(self) -> None:
        try:
            self._fd = self._fs.open(self.path, self._flags)
        except OSError as error:
            raise storage_failure(error, self.path, "open the session") from error
        self._index = RowIndex()
        self._indexed = -1  # the size of the file when the index was last caught up
        self._loose = False  # the last row has no newline yet
        self._whole: _Whole | None = None
        self.__dict__.pop("_header", None)
        try:
            stat = self._fs.fstat(self._fd)
            self._identity = stat.st_ino
            self._seen = stat.st_size  # everything before was looked at, or written, by us
            self.session_id = str(self._header.head.id)
        except BaseException:
            self._fs.close(self._fd)
            raise

    def close(self) -> None:
        """Free the descriptor."""
        with self._mutex:
            if self._fd >= 0:
                self._save_index()
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        self._index.close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._fs.close(fd)

    @cached_property
    def _header(self) -> Line:
        for item in self._scan(0, self._fs.fstat(self._fd).st_size):
            if isinstance(item, Finding) or (item.head.type == "title" and item.head.id is None):
                continue
            if item.head.type == "session" and item.head.id is not None:
                return item
            break
        raise NotASession(path=self.path, hint="it was not changed; look at it with `sessile check`")

    def header(self) -> bytes:
        return self._header.raw

    def items(self) -> Iterator[Item]:
        """Every line and finding of the file, in order; the header is one of the lines."""
        return self._scan(0, self._fs.fstat(self._fd).st_size)

    def _scan(self, start: int, end: int) -> Iterator[Item]:
        scanner = Scanner(start)
        self._complete_until = end  # where the last line begins if it has no newline
        while scanner.offset < end:
            try:
                chunk = self._fs.read(self._fd, min(CHUNK, end - scanner.offset), scanner.offset)
            except OSError as error:
                raise storage_failure(error, self.path, "read the session") from error
            if not chunk:
                break
            yield from scanner.feed(chunk)
        self._complete_until = scanner.line_start
        yield from scanner.finish()

    def _rows(self) -> RowIndex:
        """The index, caught up with the file."""
        size = self._fs.fstat(self._fd).st_size
        if size == self._indexed:
            return self._index
        if self._indexed < 0 or self._loose or size < self._indexed:
            self._index.close()
            self._index = self._load_index() or RowIndex()
            self._loose = False
        index = self._index
        for item in self._scan(index.covered, size):
            if isinstance(item, Finding):
                if item.code != "torn_tail":
                    index.report(item)
            else:
                self._take(item)
                self._loose = item.offset >= self._complete_until
        index.covered = self._complete_until
        self._indexed = size
        self._seen = max(self._seen, size)
        self._whole = None
        if index.unsaved >= SAVE_AFTER_ROWS:
            self._save_index()
        return index

    def _take(self, line: Line) -> None:
        head = line.head
        if head.type == "session":
            if line.offset != self._header.offset:
                self._index.report(Finding("second_header", line.offset, len(line.raw), "another header; ignored"))
        elif head.id is not None:
            self._index.add(line, head.id)
        elif head.type != "title":
            self._index.report(Finding("no_id", line.offset, len(line.raw), f"a {head.type} entry without an id"))

    def _load_index(self) -> RowIndex | None:
        if self._index_path is None:
            return None
        return RowIndex.load(self._fs, self._index_path, self._fs.fstat(self._fd), self._tail_before)

    def _save_index(self) -> None:
        """Keep the index for the next one who opens; a cache that cannot be written is no failure."""
        index = self._index
        if self._index_path is None or index.irregular or self._loose or not index.unsaved:
            return
        try:
            index.save(self._fs, self._index_path, self._fs.fstat(self._fd), self._tail_before(index.covered))
        except (OSError, IndexDamaged) as error:
            _log.info("the index of %s was not saved: %s", self.path, error)

    def _tail_before(self, end: int) -> bytes:
        start = max(0, end - TAIL)
        return self._fs.read(self._fd, end - start, start)

    def _drop_index(self) -> None:
        """Forget a cache that told something else than the journal."""
        _log.warning("the index of %s does not fit and is made anew", self.path)
        self._index.close()
        self._index = RowIndex()
        self._index_path = None
        self._indexed = 0

    def _read_whole(self) -> _Whole:
        if self._whole is None:
            self._whole = _Whole(self)
        return self._whole

    def last(self) -> Row | None:
        with self._mutex:
            index = self._rows()
            return self._row(len(index) - 1) if len(index) else None

    def find(self, entry_id: str) -> Row | None:
        with self._mutex:
            try:
                number = self._rows().find(entry_id)
            except IndexDamaged:
                self._drop_index()
                number = self._rows().find(entry_id)
            return None if number is None else self._row(number)

    def _row(self, number: int) -> Row:
        if self._index.irregular:
            return self._read_whole().rows[number]
        try:
            place = self._index.place(number)
            parent_id = None
            if place.parent != NOWHERE:
                parent_id = self._id(place.parent)
            elif place.orphan:
                parent_id = read_head(self._read(place.offset, place.length)).parentId
            return Row(self._id(number), parent_id, place.flags, (place.offset, place.length))
        except (IndexDamaged, ValueError):
            self._drop_index()
            self._rows()
            return self._row(number)

    def _id(self, number: int) -> str:
        known = self._index.id_in_memory(number)
        if known is None:
            place = self._index.place(number)
            known = read_head(self._read(place.offset, place.length)).id
        return known or ""

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._fs.read(self._fd, length, offset)
        except OSError as error:
            raise storage_failure(error, self.path, "read the session") from error

    def read(self, row: Row) -> bytes:
        with self._mutex:
            raw = self._read(*row.position)
            if self._is(raw, row.id):
                return raw
            # The index or the file has changed under us: look the entry up again, in the file itself.
            self._drop_index()
            again = self.find(row.id)
            if again is None:
                raise LeafMoved(
                    f"entry {row.id} is no longer where it was",
                    path=self.path,
                    hint="the file was rewritten by another program; open the session again",
                )
            return self._read(*again.position)

    @staticmethod
    def _is(raw: bytes, entry_id: str) -> bool:
        if raw.find(b'"id":"' + entry_id.encode("utf-8", "replace") + b'"', 0, 256) > 0:
            return True
        try:
            return read_head(raw).id == entry_id
        except ValueError:
            return False

    def rows(self) -> Iterator[Row]:
        with self._mutex:
            count = len(self._rows())
        for number in range(count):
            yield self._row(number)

    def up(self, row: Row) -> Iterator[Row]:
        with self._mutex:
            index = self._rows()
            number = index.find(row.id)
            if index.irregular:
                yield from self._read_whole().up(row)
                return
            while number is not None:
                row = self._row(number)
                yield row
                parent = self._index.place(number).parent
                number = None if parent == NOWHERE else parent

    def state(self, row: Row) -> State:
        with self._mutex:
            index = self._rows()
            number = index.find(row.id)
            if number is not None and not index.irregular:
                state = index.state(number)
                if state is not None:
                    return state
            path = [decode(self.read(step)) for step in self.up(row) if step.flags & STATE]
            path.reverse()
            return fold_path(path)

    def labels(self) -> Iterator[Row]:
        """The label entries, in order."""
        with self._mutex:
            numbers = list(self._rows().labels)
        for number in numbers:
            yield self._row(number)

    def title(self) -> Row | None:
        """The last entry that names the session."""
        with self._mutex:
            number = self._rows().title
            return None if number == NOWHERE else self._row(number)

    def message_count(self) -> int:
        """How many messages the session holds on all branches."""
        with self._mutex:
            return self._rows().messages

    def findings(self) -> Sequence[Finding]:
        with self._mutex:
            index = self._rows()
            found = list(index.findings)
            if index.found > len(found):
                found.append(Finding("more", -1, 0, f"{index.found - len(found)} more findings"))
            if index.irregular:
                found += self._read_whole().tree.findings
            torn = [item for item in self._scan(index.covered, self._indexed) if isinstance(item, Finding)]
            return found + torn


class FileNews:
    """The part of a file that others have written since we looked."""

    def __init__(self, journal: JournalReader, start: int, end: int) -> None:
        self._journal = journal
        self._start = start
        self._end = end

    def child_of(self, entry_id: str) -> bool:
        # Inside a JSON string quotes are escaped, so this text can only be a member; most news hold none.
        needle = b'"parentId":"' + entry_id.encode("utf-8", "replace") + b'"'
        if self._end - self._start <= CHUNK and needle not in self._journal._read(self._start, self._end - self._start):
            return False
        return any(row.parent_id == entry_id for row in self.rows())

    def rows(self) -> Sequence[Row]:
        lines = (item for item in self._journal._scan(self._start, self._end) if isinstance(item, Line))
        return [
            Row(line.head.id, line.head.parentId, flags_of(line.head), (line.offset, len(line.raw)))
            for line in lines
            if line.head.id is not None and line.head.type != "session"
        ]


class _Whole:
    """All rows of a journal whose parents do not simply come before their children."""

    def __init__(self, journal: JournalReader) -> None:
        news = FileNews(journal, 0, journal._indexed)
        self.rows = news.rows()
        self.tree = Tree(Node(row.id, row.parent_id, row.flags) for row in self.rows)
        self._by_id = {row.id: row for row in self.rows}

    def up(self, row: Row) -> Iterator[Row]:
        seen: set[str] = set()
        step: Row | None = row
        while step is not None and step.id not in seen:
            seen.add(step.id)
            yield step
            step = self._by_id.get(step.parent_id) if step.parent_id else None
