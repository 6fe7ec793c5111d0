"""Read the journal of a session: its header, its rows through the index, its lines.

Nothing here changes the file. The index catches up with the file whenever rows are requested, and is saved in the cache.
Rows are never used for a file that is not known to be unchanged: whenever the stamp of the file is not the one that was
last seen, and our own appends do not explain it, the bytes that the index is made from are compared with their checksum
first.
A journal with duplicate ids, forward parents or cycles is read as a whole instead, so that the answers are the same with and
without an index.

`SessionFile` holds the descriptor and reads bytes with typed errors. `JournalReader` adds header, index and entries.
`FileNews` is the part that other writers have appended since the last look.
"""

from __future__ import annotations

import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar

from sessile.core.codec import decode
from sessile.core.context import fold_path
from sessile.core.kinds import MESSAGE, STATE, State, flags_of
from sessile.core.lines import Finding, Head, Item, Line, Scanner, read_head
from sessile.core.tree import Node, Tree
from sessile.errors import LeafMoved, NotASession, SessileError, StorageFailure, storage_failure
from sessile.storage import log
from sessile.storage.atomic import Descriptor
from sessile.storage.base import CHUNK, Filesystem, Row, Stamp, Stat, stamp_of
from sessile.storage.drafts import is_draft, located
from sessile.storage.head import find_header
from sessile.storage.index import HASHED, KIND_FLAGS, NO_CACHE, NOWHERE, IndexDamaged, NewerIndex, Place, RowIndex

Answer = TypeVar("Answer")

_HEADER_CHUNK = 8 * 1024
_BATCH = 1024  # rows looked up at once for an iterator
_STEPS = 32  # rows looked up at once for a walk; most end at the last compaction
_SHOWN = 64 * 1024  # bytes of one append; larger ones are copies of sessions, which are not read in between
_GAP = 16 * 1024  # bytes; reading a smaller gap between two lines is cheaper than a second call
_CHECKED_AT_ONCE = 256 * 1024  # bytes that stay in the processor's cache between reading and checking
_MESSAGE = b'{"type":"message",'  # how nearly all lines of messages start


class SessionFile(Descriptor):
    """The descriptor of a session file, or -1 if it is closed, and reading from it."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self._fs = fs

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                self._fs.close(fd)
            except OSError as error:
                raise storage_failure(error, self.path, "close the session") from error

    def _stat(self) -> Stat:
        if self._fd < 0:
            raise StorageFailure("the session is closed", path=self.path, hint="open it again")
        try:
            return self._fs.fstat(self._fd)
        except OSError as error:
            raise storage_failure(error, self.path, "look at the session") from error

    def _stat_by_name(self, identity: int) -> Stat | None:
        """Return the status of the file if it is open and still has its name, with one call; else `None`."""
        try:
            stat = self._fs.lstat(self.path)
        except OSError:
            return None
        return stat if self._fd >= 0 and stat.st_ino == identity else None

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._fs.read(self._fd, length, offset)
        except OSError as error:
            raise storage_failure(error, self.path, "read the session") from error

    def _chunks(self, start: int, end: int, size: int | None = None) -> Iterator[bytes]:
        while start < end and (chunk := self._read(start, min(size or CHUNK, end - start))):
            yield chunk
            start += len(chunk)

    def _scan(self, start: int, end: int, size: int | None = None) -> Iterator[Item]:
        """Yield the lines and findings between two offsets, read in pieces of that size."""
        scanner = self._scanner(start)
        for chunk in self._chunks(start, end, size):
            yield from scanner.feed(chunk)
        yield from scanner.finish()

    def _scanner(self, offset: int) -> Scanner:
        return Scanner(offset)

    def _read_runs(self, positions: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the bytes at several positions; neighbours are read together."""
        number = 0
        for start, end, count in runs_of(positions):
            data = self._read(start, end - start)
            for offset, length in positions[number : number + count]:
                yield data[offset - start : offset - start + length]
            number += count

    def _line_start(self, offset: int) -> int:
        """Return the start of the line that contains `offset`."""
        if offset > 0 and self._read(offset - 1, 1) == b"\n":
            return offset
        while offset > 0:
            start = max(0, offset - CHUNK)
            newline = self._read(start, offset - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            offset = start
        return 0


class FileNews:
    """The part of a file that others have written since the last look."""

    def __init__(self, file: SessionFile, start: int, end: int) -> None:
        self._file = file
        self._start = file._line_start(start)  # a line that was incomplete is news as well
        self._known = start
        self._end = end

    def child_of(self, entry_id: str) -> bool:
        return not self._cannot_name(entry_id) and any(row.parent_id == entry_id for row in self.rows())

    def _cannot_name(self, entry_id: str) -> bool:
        """Return whether the news certainly do not contain an id, because they do not contain its text."""
        if self._end - self._start > CHUNK or not (entry_id.isascii() and entry_id.isalnum()):
            return False
        text = self._file._read(self._start, self._end - self._start)
        # JSON allows letters to be written as \u0061.
        return entry_id.encode() not in text and b"\\u00" not in text

    def rows(self) -> Sequence[Row]:
        lines = (item for item in self._file._scan(self._start, self._end) if isinstance(item, Line))
        return [
            Row(line.head.id, line.head.parentId or None, flags_of(line.head), (line.offset, len(line.raw)))
            for line in lines
            if line.head.id is not None and line.head.type != "session" and line.offset + len(line.raw) > self._known
        ]


class WholeFile:
    """All rows of an irregular file, in which parents do not always come before their children."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_id = {row.id: row for row in rows}

    def up(self, row: Row) -> Iterator[Row]:
        """Yield an entry and its ancestors; a cycle is followed once."""
        seen: set[str] = set()
        step: Row | None = row
        while step is not None and step.id not in seen:
            seen.add(step.id)
            yield step
            step = self._by_id.get(step.parent_id) if step.parent_id else None


def runs_of(positions: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Group positions that are close together: the start and end of each group, and how many positions it has."""
    start = end = count = 0
    for offset, length in positions:
        if count and not (0 <= offset - end <= _GAP and offset + length - start <= CHUNK):
            yield start, end, count
            count = 0
        if not count:
            start = offset
        count += 1
        end = offset + length
    if count:
        yield start, end, count


class Grown:
    """A file that only a journal of this process has changed, by appending, since certain stamps.

    Other readers in this process need not compare its bytes again for each append.
    """

    def __init__(self, *stamps: Stamp | None) -> None:
        self.stamps = set(stamps)
        self.last: Stamp | None = None

    def is_from(self, stamp: Stamp | None, last: Stamp) -> bool:
        """Return whether nothing but appends lie between the two stamps."""
        return stamp is not None and last == self.last and stamp in self.stamps


GROWN: dict[tuple[int, int], Grown] = {}
"""By inode and device, the files that journals of this process append to."""


class JournalReader(SessionFile):
    """One session file, open for reading."""

    _flags = os.O_RDONLY

    def __init__(self, fs: Filesystem, path: str, *, index_path: str | None = None) -> None:
        super().__init__(fs, path)
        self._index_path = index_path
        self._mutex = threading.RLock()
        self._index = RowIndex()
        self._open()

    def _open(self) -> None:
        try:
            fd = self._fs.open(self.path, self._flags)
        except OSError as error:
            raise storage_failure(error, self.path, "open the session") from error
        self._begin(fd)

    def _begin(self, fd: int) -> None:
        """Read from this descriptor from now on. Close it if it is not a session."""
        self._fd = fd
        self._forget_index()
        try:
            stat = self._stat()
            self._identity = stat.st_ino
            self._seen = (
                stat.st_size
            )  # where the news start: bytes that we did not write and that were not there at open
            # The file as we opened it, or as our last append left it; `None` if another program has changed it since.
            self._left: Stamp | None = stamp_of(stat)
            self._header = self._find_header(stat.st_size)
            self.session_id = str(self._header.head.id)
        except BaseException:
            self._close_descriptor()
            raise

    def _find_header(self, size: int) -> Line:
        header, self._slot = find_header(self._scan(0, size, _HEADER_CHUNK))
        if header is None:
            raise NotASession(path=self.path, hint="it was not changed; another agent may have written it")
        return header

    def close(self) -> None:
        """Save the index and close the descriptor."""
        with self._mutex:
            if self._fd >= 0:
                self._save_index(closing=True)
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        self._index.close()
        super()._close_descriptor()

    def header(self) -> bytes:
        return self._header.raw

    def slot(self) -> bytes | None:
        return self._slot

    def items(self) -> Iterator[Item]:
        """Yield every line and finding of the file, in order, including the header."""
        return self._scan(0, self._stat().st_size)

    # -- the index

    def _ask(self, question: Callable[[RowIndex], Answer]) -> Answer:
        """Return the answer of the index, caught up with the file. A damaged index is rebuilt."""
        with self._mutex:
            try:
                return question(self._rows())
            except IndexDamaged as error:
                log.warning("rebuilding the index of %s, which does not match: %s", self.path, error)
            self._forget_index(distrust=True)
            try:
                return question(self._rows())
            except IndexDamaged as error:
                raise self._rewritten(str(error)) from error

    def _forget_index(self, *, distrust: bool = False) -> None:
        self._index.close()
        self._index = RowIndex()
        self._whole: WholeFile | None = None
        self._loose = False  # whether the last rows come from a line that has no newline yet
        self._tail_findings: list[Finding] = []
        self._indexed = 0 if distrust else -1  # the size of the file when the index was last caught up
        self._stamp: Stamp | None = None  # the file when it was last known to be as the index says
        self._asked = False  # since the last append: a caller that reads between appends will read again

    def _rows(self) -> RowIndex:
        """Return the index, caught up with the file."""
        self._asked = True
        stat = self._stat_by_name(self._identity)
        if stat is None and is_draft(self.path):
            self.path = located(self._fs, self.path)  # its writer has published it
            stat = self._stat_by_name(self._identity)
        if stat is None:
            stat = self._stat()
            if self._is_replaced():
                self._open_again()
                self._seen = 0  # everything is news
                stat = self._stat()
        stamp = stamp_of(stat)
        if stamp != self._stamp or stat.st_size != self._indexed:
            self._renew(stamp)
        return self._index

    def _renew(self, stamp: Stamp) -> None:
        """Bring the index up to date with the file, which has this stamp now."""
        size = stamp[2]
        if self._indexed < 0 or self._loose or size < self._indexed:
            self._forget_index()
            self._index = self._load_index(stamp) or self._index
        elif stamp != self._stamp and not self._starts_with(self._index.checked, self._index.checksum):
            self._forget_index(distrust=True)
        self._stamp = stamp
        self._catch_up(self._index, self._chunks(self._index.covered, size), size)

    def _starts_with(self, size: int, checksum: int) -> bool:
        """Return whether so many first bytes of the file have that checksum."""
        found = read = 0
        for chunk in self._chunks(0, size, _CHECKED_AT_ONCE):
            found = zlib.crc32(chunk, found)
            read += len(chunk)
        return (read, found) == (size, checksum)

    def _is_replaced(self) -> bool:
        """Return whether another handle has replaced our file, which has lost its name, by a new one of the same session."""
        try:
            other = JournalReader(self._fs, self.path)
        except (OSError, SessileError):
            return False  # nothing to continue in: the open file stays readable
        other.close()
        return other.session_id == self.session_id

    def _open_again(self) -> None:
        """Continue in the file that has our name now."""
        self._close_descriptor()
        self._open()

    def _catch_up(self, index: RowIndex, chunks: Iterable[bytes], size: int) -> None:
        scanner = self._scanner(index.covered)
        try:
            for chunk in chunks:
                index.note(scanner.offset, chunk)
                for item in scanner.feed(chunk):
                    if isinstance(item, Finding):
                        index.report(item)
                    else:
                        self._take(index, item, index.report)
            self._caught_up(index, scanner, size)
        except BaseException:
            self._forget_index()  # rows that were already added would be added twice
            raise

    def _show_index(self, written: bytes, end: int) -> None:
        """Feed what was just written to the index, if it covers everything before it. For callers that read between appends."""
        self._asked = False
        if len(written) <= _SHOWN and self._index.covered == self._indexed == end - len(written):
            with suppress(IndexDamaged):  # the append has succeeded; the next read rebuilds the index
                self._catch_up(self._index, (written,), end)

    def _caught_up(self, index: RowIndex, scanner: Scanner, size: int) -> None:
        """Note that all bytes up to `size` were fed, and save the index."""
        index.covered = scanner.line_start
        self._save_index()
        # The last line may still grow: it is shown, but not saved.
        self._tail_findings = []
        for item in scanner.finish():
            if isinstance(item, Finding):
                self._tail_findings.append(item)
            else:
                self._loose = True
                self._take(index, item, self._tail_findings.append)
        self._whole = None
        self._indexed = size

    def _take(self, index: RowIndex, line: Line, report: Callable[[Finding], None]) -> None:
        head = line.head
        if head.type == "session":
            if line.offset != self._header.offset:
                report(Finding("second_header", line.offset, len(line.raw), "another header; ignored"))
        elif head.id is not None:
            index.add(line, head, flags_of(head))
        elif head.type != "title":
            report(Finding("no_id", line.offset, len(line.raw), f"a {head.type} entry without an id"))

    def _load_index(self, stamp: Stamp) -> RowIndex | None:
        """Return the saved index, if it is one of the file with this stamp."""

        compared = False

        def is_unchanged(stamped: Stamp | None, size: int, checksum: int) -> bool:
            nonlocal compared
            grown = GROWN.get(stamp[:2])
            if grown is not None and grown.is_from(stamped, stamp):
                return True
            compared = True
            return self._starts_with(size, checksum)

        path = self._index_path
        try:
            index = None if path is None else RowIndex.load(self._fs, path, stamp, is_unchanged)
        except NewerIndex:
            self._index_path = index = None  # nor is it replaced: both releases may be in use
        if index is not None and compared:
            index.stamped = None  # save the new stamp at once, so that nobody compares again
        return index

    def _save_index(self, *, closing: bool = False) -> None:
        """Save the index for the next time the session is opened. A cache that cannot be written is not an error.

        The stamp of the file is saved with it, and on closing if the file has changed since: then the next one to open it
        has nothing to check.
        """
        index, stamp = self._index, self._stamp
        if self._index_path is None or stamp is None or index.irregular:
            return
        try:
            if index.worth_saving and not self._loose:
                index.save(self._fs, self._index_path)
            if closing or index.stamped is None:
                index.stamp(self._fs, self._index_path, stamp)
                grown = GROWN.get(stamp[:2])
                if grown is not None and grown.last == stamp:
                    grown.stamps.add(stamp)
        except (SessileError, *NO_CACHE) as error:
            log.info("the index of %s was not saved: %s", self.path, error)

    def compare_index(self) -> list[str]:
        """Return the differences between the saved index and the file; none if there is no index that would be used."""
        with self._mutex:
            saved = JournalReader._load_index(self, stamp_of(self._stat()))
            if saved is None:
                return []
            with closing(self._unindexed()) as fresh:
                try:
                    fresh._catch_up(fresh._index, fresh._chunks(0, saved.covered), saved.covered)
                    return saved.differences(fresh._index)
                except NO_CACHE as error:
                    return [f"it cannot be read: {error}"]
                finally:
                    saved.close()

    def _unindexed(self) -> JournalReader:
        """Return another reader of the same file, which has no saved index."""
        return JournalReader(self._fs, self.path)

    def _rewritten(self, detail: str) -> LeafMoved:
        return LeafMoved(
            f"the session was rewritten while it was read: {detail}",
            path=self.path,
            hint="another program changed it; open the session again",
        )

    # -- entries

    def last(self) -> Row | None:
        return self._ask(lambda index: self._row(index, len(index) - 1) if len(index) else None)

    def find(self, entry_id: str) -> Row | None:
        def look(index: RowIndex) -> Row | None:
            number = index.find(entry_id)
            return None if number is None else self._row(index, number)

        return self._ask(look)

    def _row(self, index: RowIndex, number: int) -> Row:
        if index.irregular and number < len(index):
            return self._read_whole().rows[number]
        return self._steps(number, 1, index)[0][0]

    def _steps(self, number: int, size: int, index: RowIndex) -> tuple[list[Row], int]:
        """Return the rows of up to `size` steps towards the root, and the number of the next one."""
        if number >= len(index):
            raise IndexDamaged("it has fewer rows")
        place = index.place(number)
        entry_id = self._id(place)
        steps: list[Row] = []
        while len(steps) < size:
            _, packed, length, number, _ = place
            position = (packed >> 16, length)
            if number == NOWHERE:
                parent_id = self._head(place).parentId if place.orphan else None
                steps.append(Row(entry_id, parent_id, packed & KIND_FLAGS, position))
                break
            place = index.place(number)
            parent_id = self._id(place)
            steps.append(Row(entry_id, parent_id, packed & KIND_FLAGS, position))
            entry_id = parent_id
        return steps, number

    def _id(self, place: Place, raw: bytes | None = None) -> str:
        if not place.packed & HASHED:
            return place.key.decode("ascii")
        known = self._head(place, raw).id
        if known is None:
            raise IndexDamaged("an entry has no id")
        return known

    def _head(self, place: Place, raw: bytes | None = None) -> Head:
        """Return the head of a row. `raw` is its line, if it was already read."""
        try:
            return read_head(self._read(place.offset, place.length) if raw is None else raw)
        except ValueError as error:
            raise IndexDamaged(str(error)) from error

    def _all_rows(self) -> Sequence[Row]:
        return FileNews(self, 0, self._indexed).rows()

    def _read_whole(self) -> WholeFile:
        if self._whole is None:
            self._whole = WholeFile(self._all_rows())
        return self._whole

    def read(self, row: Row) -> bytes:
        with self._mutex:
            raw = self._read(*row.position)
            if self._is(raw, row):
                return self._shown(raw, row)
            # The index or the file has changed: look the entry up again, in the file itself.
            self._forget_index(distrust=True)
            again = self.find(row.id)
            if again is None:
                raise self._rewritten(f"entry {row.id} is gone")
            if again[:3] != row[:3]:
                raise self._rewritten(f"entry {row.id} has another parent or kind")
            return self._shown(self._read(*again.position), again)

    def _shown(self, raw: bytes, row: Row) -> bytes:
        """Return a line as a native entry."""
        return raw

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """Yield the exact bytes of several entries; neighbours are read together."""
        for row, raw in zip(rows, self._read_runs([row.position for row in rows]), strict=True):
            yield self._shown(raw, row) if self._is(raw, row) else self.read(row)

    def _is(self, raw: bytes, row: Row) -> bool:
        """Return whether these bytes are the line of that row: its id, its parent, its kind."""
        entry_id, parent_id, flags, _ = row
        if flags & MESSAGE and parent_id is not None and raw.startswith(_MESSAGE) and raw.endswith(b"}"):
            ids = f'"id":"{entry_id}","parentId":"{parent_id}"'
            if raw.startswith(ids.encode("utf-8", "surrogatepass"), len(_MESSAGE)):
                return True
        try:
            head = read_head(raw)
        except ValueError:
            return False
        return (head.id, head.parentId or None, flags_of(head)) == (entry_id, parent_id, flags)

    def rows(self, start: int = 0) -> Iterator[Row]:
        return self._numbered(range(start, self._ask(len)))

    def _numbered(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows with these consecutive numbers. No lock is held between two batches."""
        for start in range(0, len(numbers), _BATCH):
            yield from self._ask(partial(self._batch, numbers[start : start + _BATCH]))

    def _batch(self, numbers: Sequence[int], index: RowIndex) -> list[Row]:
        if index.irregular or numbers[-1] >= len(index):
            return [self._row(index, number) for number in numbers]
        first = numbers[0]
        places = index.places(first, numbers[-1] + 1)
        ids = self._ids(places)
        rows = []
        for entry_id, place in zip(ids, places, strict=True):
            _, packed, length, parent, _ = place
            if parent >= first:
                parent_id: str | None = ids[parent - first]
            elif parent == NOWHERE:
                parent_id = self._head(place).parentId if place.orphan else None
            else:
                parent_id = self._id(index.place(parent))
            rows.append(Row(entry_id, parent_id, packed & KIND_FLAGS, (packed >> 16, length)))
        return rows

    def _ids(self, places: Sequence[Place]) -> list[str]:
        """Return the ids of several rows. Lines are read where the index only has a hash of the id."""
        if not any(place.packed & HASHED for place in places):
            return [place.key.decode("ascii") for place in places]
        lines = self._read_runs([(place.offset, place.length) for place in places])
        return [self._id(place, raw) for place, raw in zip(places, lines, strict=True)]

    def up(self, row: Row) -> Iterator[Row]:
        with self._mutex:
            irregular, number = self._ask(lambda index: (index.irregular, index.find(row.id)))
            whole = self._read_whole() if irregular else None
        if whole is not None:
            yield from whole.up(row)
            return
        while number is not None and number != NOWHERE:
            steps, number = self._ask(partial(self._steps, number, _STEPS))
            yield from steps

    def state(self, row: Row) -> State:
        def look(index: RowIndex) -> State | None:
            number = None if index.irregular else index.find(row.id)
            return None if number is None else index.state(number)

        state = self._ask(look)
        if state is not None:
            return state
        path = [decode(self.read(step)) for step in self.up(row) if step.flags & STATE]
        path.reverse()
        return fold_path(path)

    def labels(self) -> Mapping[str, str]:
        """Return the label of each entry that has one."""
        return self._ask(lambda index: dict(index.labels))

    def title(self) -> Row | None:
        """Return the last entry that names the session."""
        return self._ask(lambda index: None if index.title == NOWHERE else self._row(index, index.title))

    def count(self) -> int:
        return self._ask(lambda index: index.entries)

    def entry_before(self, offset: int) -> str | None:
        before = self._ask(lambda index: bisect_left(range(len(index)), offset, key=lambda n: index.place(n).offset))
        return next(self._numbered([before - 1])).id if before else None

    def findings(self) -> Sequence[Finding]:
        with self._mutex:
            index = self._ask(lambda index: index)
            found = list(index.findings)
            if index.found > len(found):
                found.append(Finding("more", -1, 0, f"{index.found - len(found)} more findings"))
            found += self._tail_findings
            if index.irregular or index.has_orphans:
                found += Tree(Node(row.id, row.parent_id, row.flags) for row in self.rows()).findings
            return found
