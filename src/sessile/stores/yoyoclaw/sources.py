"""The files of one session as the lines of one: its archives, oldest first, then its live transcript.

An archive is the same conversation at an earlier time: before a reset it holds what is over, before their way of compacting
it holds what the live file has lost. So a session is the union of them. Transcripts are of the native family and are passed
on byte for byte; those of old versions are migrated in memory, with ids that are the same every time. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from sessile.core.codec import decode, encode
from sessile.core.lines import Finding, Item, Line, Scanner, read_head
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import storage_failures
from sessile.formats.yoyoclaw.names import Transcript
from sessile.storage.base import Filesystem
from sessile.storage.raw_file import RawFile

Json = dict[str, Any]


class SourceLine(NamedTuple):
    """One entry of a source."""

    entry_id: str | None
    raw: bytes


class Trouble(NamedTuple):
    """Bytes of a source that are no entry."""

    path: str
    finding: Finding


class Sources:
    """The files of one session, in the order in which they were written."""

    def __init__(self, fs: Filesystem, files: Sequence[Transcript]) -> None:
        self.files = sorted(files, key=lambda file: (file.reason is None, file.time or "", file.path))
        self.troubles: list[Trouble] = []
        self._fs = fs

    @property
    def live(self) -> Transcript | None:
        """The file that is not archived."""
        last = self.files[-1]
        return last if last.reason is None else None

    def header(self) -> Json | None:
        """The header of the live file, else of the latest archive that has one."""
        for file in reversed(self.files):
            with closing(self._items(file)) as items:
                first = next((item for item in items if isinstance(item, Line)), None)
            if first is not None and _is_header(first):
                header: Json = decode(first.raw)
                return header
        return None

    def first_timestamp(self) -> str:
        """When the session began as far as its files tell: for one that has lost its header."""
        for file in self.files:
            with closing(self._items(file)) as items:
                for item in items:
                    timestamp = decode(item.raw).get("timestamp") if isinstance(item, Line) else None
                    if isinstance(timestamp, str) and parse_timestamp(timestamp) is not None:
                        return timestamp
        return iso_timestamp(self.modified // 1_000_000)

    @property
    def modified(self) -> int:
        """When the last of the files was changed, in nanoseconds."""
        times = []
        for file in self.files:
            with storage_failures(file.path, "look at a transcript"):
                times.append(self._fs.lstat(file.path).st_mtime_ns)
        return max(times)

    def is_empty(self) -> bool:
        """Whether there is no entry in any of the files."""
        with closing(self.lines()) as lines:
            return next(lines, None) is None

    def lines(self) -> Generator[SourceLine, None, None]:
        """Every entry of every file; what is none goes to `troubles`, anew at each call."""
        self.troubles = []
        for file in self.files:
            with closing(self._items(file)) as items:
                yield from self._lines_of(file, items)

    def _lines_of(self, file: Transcript, items: Iterator[Item]) -> Iterator[SourceLine]:
        first: Line | None = None
        for item in items:
            if isinstance(item, Line):
                first = item
                break
            self._report(file, item)
        if first is None:
            return
        if _is_header(first):
            if version_of(decode(first.raw)) < VERSION:
                yield from self._migrated(file, first, items)
                return
        else:
            self._report(file, Finding("no_header", first.offset, 0, "the file does not begin with a header"))
            yield SourceLine(first.head.id, first.raw)
        for line in self._entries(file, items):
            yield SourceLine(line.head.id, line.raw)

    def _migrated(self, file: Transcript, header: Line, items: Iterator[Item]) -> Iterator[SourceLine]:
        lines = [header, *self._entries(file, items)]
        records = [decode(line.raw) for line in lines]
        migrate_session_entries(records)
        for line, record in zip(lines[1:], records[1:], strict=True):
            raw = line.raw if decode(line.raw) == record else encode(record)
            yield SourceLine(read_head(raw).id, raw)

    def _entries(self, file: Transcript, items: Iterator[Item]) -> Iterator[Line]:
        for item in items:
            if isinstance(item, Finding):
                self._report(file, item)
            elif item.head.type == "session":
                detail = "a second header in the middle of the file"
                self._report(file, Finding("second_header", item.offset, len(item.raw), detail))
            else:
                yield item

    def _report(self, file: Transcript, finding: Finding) -> None:
        self.troubles.append(Trouble(file.path, finding))

    def _items(self, file: Transcript) -> Generator[Item, None, None]:
        with RawFile(self._fs, file.path) as source:
            yield from scan_chunks(source.chunks())


def scan_chunks(chunks: Iterable[bytes]) -> Iterator[Item]:
    """The lines and findings of a file that comes in pieces."""
    scanner = Scanner()
    for chunk in chunks:
        yield from scanner.feed(chunk)
    yield from scanner.finish()


def _is_header(line: Line) -> bool:
    return line.head.type == "session" and line.head.id is not None
