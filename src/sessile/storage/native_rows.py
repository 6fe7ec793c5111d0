"""Lines of our own files as entries, for the catalog, which reads gigabytes of them: most are decoded once and that is all.

Lines of other agents' files are in `foreign_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sessile.core.lines import Item, Line, Scanner
from sessile.storage.base import NATIVE
from sessile.storage.glance import Record, decoded

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


def scanner_of(name: str, offset: int) -> Scanner:
    """What cuts a file in that format into lines."""
    if name == NATIVE:
        return Scanner(offset)
    from sessile.storage.foreign_rows import scanner_for

    return scanner_for(name, offset)


def is_nested(name: str) -> bool:
    """Whether texts in that format are JSON within JSON."""
    if name == NATIVE:
        return False
    from sessile.storage.known_formats import format_named

    known = format_named(name)
    return known is not None and known.nested


def lines_in(name: str, data: bytes, offset: int) -> Iterator[Line]:
    """The readable lines of a piece of a file in that format, which begins at an offset."""
    scanner = scanner_of(name, offset)
    yield from (item for item in scanner.feed(data) if isinstance(item, Line))
    yield from (item for item in scanner.finish() if isinstance(item, Line))


def entries_in(name: str, line: Line) -> Iterator[tuple[str | None, Record]]:
    """The entries of one line of a file in that format, with their ids; none for a header."""
    if name != NATIVE:
        from sessile.storage.foreign_rows import entries_at

        yield from entries_at(name, line)
    elif line.head.type != "session" and (entry := decoded(line)) is not None:
        yield line.head.id, entry
