"""Rows of other agents' files for the catalog: what a look tells of them, and each as an entry of ours.

The catalog reads lines one by one and goes on where it stopped; what a translator has to know for that is kept with what was
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessile.core.digest import FIRST_TEXT, shown
from sessile.core.kinds import MARKER, TITLE
from sessile.core.lines import MAX_LINE, Item, Line, Scanner
from sessile.errors import StorageFailure
from sessile.formats.base import Translator
from sessile.storage.base import Filesystem
from sessile.storage.glance import Glance
from sessile.storage.known_formats import format_named, recognised
from sessile.storage.layout import stem_of

_WINDOW = 64 * 1024

Record = dict[str, Any]


def beginning(fs: Filesystem, fd: int) -> bytes:
    """The bytes in which a file says what it is: the first row, however long, and what is read with it."""
    first = fs.read(fd, _WINDOW, 0)
    while b"\n" not in first and len(first) <= MAX_LINE and (more := fs.read(fd, len(first), len(first))):
        first += more
    return first


def ends(fs: Filesystem, fd: int, size: int) -> tuple[bytes, bytes]:
    """The two ends of an open file; those of a short one are the same."""
    first = beginning(fs, fd)
    return first, first if size <= len(first) else fs.read(fd, _WINDOW, size - _WINDOW)


def glance_foreign(fs: Filesystem, fd: int, size: int, path: str) -> tuple[str, Glance] | None:
    """The format of an open file and what its ends tell; `None` if no format knows it."""
    first, last = ends(fs, fd, size)
    known = recognised(first)
    if known is None:
        return None
    stem = stem_of(path)
    glimpse = known.glimpse(stem, first, last)
    if glimpse is None:
        return None
    header = known.header(stem, first)
    told = shown(glimpse.title) or ""
    said = (shown(glimpse.first_text) or "")[:FIRST_TEXT]
    seen = Glance(
        id=str(header["id"]),
        cwd=shown(header.get("cwd")) or "",
        title=told,
        created=shown(header.get("timestamp")) or "",
        parent="",
        first_text=said,
        last_role=glimpse.last_role,
        last_status="",
        header_title=told,
        header_at=-1,
        version=3,
    )
    return known.name, seen


class RowReader:
    """Makes entries of the rows of one file, in order.

    Those behind `start` go on from what was saved; those before it are read again for their words only, and what hangs from
    what does not matter there.
    """

    def __init__(self, name: str, saved: Any, start: int) -> None:
        known = format_named(name)
        if known is None:  # it was there when the file was looked at
            raise StorageFailure(f"the format {name} is not installed", hint="install the package that brings it")
        self._format = known
        self._start = start
        self._again: Translator = known.translator()
        self._translator: Translator = known.translator(saved)

    def scanner(self, offset: int) -> Scanner:
        """What cuts the file into rows."""
        return self._format.scanner(offset)

    def saved(self) -> Any:
        """What is needed to go on later."""
        return self._translator.saved()

    def split(self, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, Record | None]]:
        """Each entry with its place, and `None` for what is not as it should be; markers are left out."""
        for offset, raw in lines:
            if raw is None:
                yield offset, None
            elif raw:
                yield from self.judged(self.scanner(offset).feed(raw + b"\n"))

    def judged(self, items: Iterable[Item]) -> Iterator[tuple[int, Record | None]]:
        """The same of lines that the scanner has looked at."""
        for item in items:
            if not isinstance(item, Line):
                yield item.offset, None
                continue
            for known in (self._translator if item.offset >= self._start else self._again).take(item):
                head, flags = known.head, known.flags
                if flags & MARKER and not flags & TITLE:
                    continue
                entry = self._format.entry(item.raw, str(head.id), head.parentId, lambda entry_id: None)
                if head.message is not None and head.message.model is not None and "message" in entry:
                    entry["message"].setdefault("model", head.message.model)  # as rows before this one have told
                if flags & MARKER:
                    del entry["id"]  # a name that stands beside the conversation, not in it
                yield item.offset, entry


def scanner_for(name: str, offset: int) -> Scanner:
    """What cuts a file of that format into rows."""
    known = format_named(name)
    return Scanner(offset) if known is None else known.scanner(offset)


def entries_at(name: str, line: Line) -> Iterator[tuple[str, Record]]:
    """The entries of one row, with their ids; what they hang from is not known here."""
    known = format_named(name)
    if known is not None:
        for entry_id in known.ids_of(line.raw, line.offset):
            yield entry_id, known.entry(line.raw, entry_id, None, lambda other: None)
