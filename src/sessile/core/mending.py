"""How a damaged session file becomes a readable one without losing or inventing anything.

The new file is told in pieces: ranges that are copied from the old one byte for byte, and the few bytes that are added. A line
without damage is never touched. On a line with damage every entry gets a line of its own and the rest is left out; what is
JSON but no entry stays, and so does a line that is too long to be read. It does not know where the bytes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from sessile.core.diagnosis import Numbered, Peek
from sessile.core.lines import Finding, Item, Line
from sessile.core.troubles import TROUBLES


class Copy(NamedTuple):
    """Bytes of the old file, from `start` to before `end`."""

    start: int
    end: int


Piece = Copy | bytes


class Mending:
    """One pass over a file; afterwards it knows what was done."""

    def __init__(self, peek: Peek, header: bytes | None = None, header_at: int | None = None) -> None:
        self.salvaged = 0  # entries that stood on a damaged line
        self._peek = peek
        self._header = header
        self._header_at = header_at

    def pieces(self, items: Iterable[Numbered], size: int) -> Iterator[Piece]:
        """The new file. `header` goes before the record at `header_at`, or first if there is none."""
        copied = 0
        if self._header is not None and self._header_at is None:
            yield self._header + b"\n"
        for _, group in groupby(items, key=lambda pair: pair[0]):
            line = [item for _, item in group]
            if not self._needs_mending(line):
                continue
            start, end = line[0].offset, max(map(_end, line))
            if start > copied:
                yield Copy(copied, start)
            kept = list(self._kept(line))
            for number, piece in enumerate(kept):
                if number:
                    yield b"\n"
                yield piece
            copied = end if kept else self._behind_line_end(end)
        if copied < size:
            yield Copy(copied, size)

    def _needs_mending(self, line: list[Item]) -> bool:
        return any(_is_mended(item) if isinstance(item, Finding) else self._is_headers_place(item) for item in line)

    def _is_headers_place(self, item: Item) -> bool:
        return self._header is not None and item.offset == self._header_at

    def _kept(self, line: list[Item]) -> Iterator[Piece]:
        damaged = any(isinstance(item, Finding) and _is_mended(item) for item in line)
        for item in line:
            if isinstance(item, Line):
                if self._header is not None and self._is_headers_place(item):
                    yield self._header
                yield Copy(item.offset, _end(item))
                self.salvaged += damaged
            elif item.length and not _is_mended(item) and item.code != "blank":
                yield Copy(item.offset, _end(item))

    def _behind_line_end(self, at: int) -> int:
        """Where the next line begins, if this one has nothing more than its end."""
        while self._peek(at, 1) == b"\r":
            at += 1
        return at + 1 if self._peek(at, 1) == b"\n" else at


def _is_mended(finding: Finding) -> bool:
    if finding.code == "bad_utf8" and not finding.length:
        return False  # the entry itself can be read
    return TROUBLES[finding.code].remedy is not None


def _end(item: Item) -> int:
    return item.offset + (len(item.raw) if isinstance(item, Line) else item.length)
