"""Lines of our own files as entries, for the catalog, which reads gigabytes of them: most are decoded once and that is all.

Lines of other agents' files are in `foreign_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sessile.core.lines import Item, Line, Scanner
from sessile.storage.glance import Record, decoded

NATIVE = "native"  # the format of our own files

_decode = msgspec.json.Decoder().decode
_REFUSED = (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError)
_NO_ENTRIES = ("session", "title")


class NativeRows:
    """Makes entries of the lines of one file."""

    def __init__(self, header_at: int, version: int) -> None:
        self._header_at = header_at
        self._version = version

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


def entry_in(name: str, line: Line) -> tuple[str | None, Record | None]:
    """The id and the entry of one line of a file in that format; neither for a header."""
    if name == NATIVE:
        return line.head.id, decoded(line) if line.head.type != "session" else None
    from sessile.storage.foreign_rows import entry_at

    return entry_at(name, line)
