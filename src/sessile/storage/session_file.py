"""The bytes of one open session file, and what is new in them. Errors are typed; nothing here changes the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sessile.core.kinds import flags_of
from sessile.core.lines import Item, Line, Scanner
from sessile.errors import StorageFailure, storage_failure
from sessile.storage.base import Filesystem, Row, Stat

CHUNK = 1 << 20
_GAP = 16 * 1024  # bytes between two lines that are read for nothing sooner than by a call of their own


class SessionFile:
    """A descriptor that is open, or -1."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._fd = -1

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

    def _size_by_name(self, identity: int) -> int | None:
        """The size of the file, if it is open and still has its name: one look answers both."""
        try:
            stat = self._fs.lstat(self.path)
        except OSError:
            return None
        return stat.st_size if self._fd >= 0 and stat.st_ino == identity else None

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
        """The lines and findings between two places, read in pieces of that size."""
        scanner = self._scanner(start)
        for chunk in self._chunks(start, end, size):
            yield from scanner.feed(chunk)
        yield from scanner.finish()

    def _scanner(self, offset: int) -> Scanner:
        return Scanner(offset)

    def _read_runs(self, positions: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes at several places; those that lie together are read at once."""
        number = 0
        for start, end, count in runs_of(positions):
            data = self._read(start, end - start)
            for offset, length in positions[number : number + count]:
                yield data[offset - start : offset - start + length]
            number += count

    def _line_start(self, offset: int) -> int:
        """Where the line begins that goes on at `offset`."""
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
    """The part of a file that others have written since we looked."""

    def __init__(self, file: SessionFile, start: int, end: int) -> None:
        self._file = file
        self._start = file._line_start(start)  # a line that was only half there is news as well
        self._known = start
        self._end = end

    def child_of(self, entry_id: str) -> bool:
        return not self._cannot_name(entry_id) and any(row.parent_id == entry_id for row in self.rows())

    def _cannot_name(self, entry_id: str) -> bool:
        """Whether the news surely do not hold an id, because they do not hold its text; most news are like that."""
        if self._end - self._start > CHUNK or not (entry_id.isascii() and entry_id.isalnum()):
            return False
        text = self._file._read(self._start, self._end - self._start)
        # Letters may also be written as \u0061, though nobody does.
        return entry_id.encode() not in text and b"\\u00" not in text

    def rows(self) -> Sequence[Row]:
        lines = (item for item in self._file._scan(self._start, self._end) if isinstance(item, Line))
        return [
            Row(line.head.id, line.head.parentId or None, flags_of(line.head), (line.offset, len(line.raw)))
            for line in lines
            if line.head.id is not None and line.head.type != "session" and line.offset + len(line.raw) > self._known
        ]


class WholeFile:
    """All rows of a file in which parents do not simply come before their children."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_id = {row.id: row for row in rows}

    def up(self, row: Row) -> Iterator[Row]:
        """From an entry to its root; a circle is gone through once."""
        seen: set[str] = set()
        step: Row | None = row
        while step is not None and step.id not in seen:
            seen.add(step.id)
            yield step
            step = self._by_id.get(step.parent_id) if step.parent_id else None


def positions_of(lines: Sequence[bytes], start: int) -> list[tuple[int, int]]:
    """Where lines stand that were written from a place on, each with its newline."""
    positions = []
    for line in lines:
        positions.append((start, len(line)))
        start += len(line) + 1
    return positions


def runs_of(positions: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Places that follow each other closely in the file: the first and last byte of each group, and how many they are."""
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
