"""Reading another agent's file in place, as a journal of ours.

Rows are indexed as ours are, under the ids and parents that the format's translator gives them; an entry is made of a row when
somebody reads it. What the translator keeps between rows is saved with the index. Nothing is written to the file, beside it,
or to its folder.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence

from sessile.core.codec import encode_plain
from sessile.core.kinds import LABEL, MESSAGE, STATE, flags_of
from sessile.core.lines import Finding, Head, Line, Scanner
from sessile.errors import NotASession
from sessile.formats.base import Format, Translator
from sessile.storage.base import Filesystem, Row
from sessile.storage.index import RowIndex
from sessile.storage.index_file import IndexDamaged, Place
from sessile.storage.reader import JournalReader

FIRST = 64 * 1024  # bytes in which a file says what it is


def format_of(fs: Filesystem, path: str, formats: Sequence[Format]) -> Format | None:
    """The format of a file, by its first bytes."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        first = fs.read(fd, FIRST, 0)
    finally:
        fs.close(fd)
    return next((known for known in formats if known.recognises(first)), None)


class ForeignReader(JournalReader):
    """One file of another agent, open for reading."""

    def __init__(self, fs: Filesystem, path: str, format_: Format, *, index_path: str | None = None) -> None:
        self.format = format_
        self._translator: Translator = format_.translator()
        super().__init__(fs, path, index_path=index_path)

    def _find_header(self, size: int) -> Line:
        self._slot = None
        first = self._read(0, min(size, FIRST))
        if not self.format.recognises(first):
            raise NotASession(f"the file is no {self.format.name} session", path=self.path)
        stem = posixpath.basename(self.path).removesuffix(".jsonl")
        header = self.format.header(stem, first)
        return Line(-1, encode_plain(header), Head("session", header["id"]))

    def raw(self, row: Row) -> bytes:
        """The row as the other agent wrote it."""
        return self._read(*row.position)

    def pieces(self) -> Iterator[bytes]:
        """The whole file as it is, piece by piece."""
        return self._chunks(0, self._stat().st_size)

    # -- the index

    def _forget_index(self, *, distrust: bool = False) -> None:
        super()._forget_index(distrust=distrust)
        self._translator = self.format.translator()

    def _load_index(self) -> RowIndex | None:
        index = super()._load_index()
        if index is not None:
            self._translator = self.format.translator(index.extra)
        return index

    def _save_index(self) -> None:
        self._index.extra = self._translator.saved()
        super()._save_index()

    def _take(self, index: RowIndex, line: Line, report: Callable[[Finding], None]) -> None:
        head, flags = self._translator.take(line)
        entry_id, kinds = str(head.id), flags_of(head) if flags is None else flags
        entry = None
        if kinds & (STATE | LABEL) and not kinds & MESSAGE:  # of these the index needs more than the head
            entry = encode_plain(self.format.entry(line.raw, entry_id, head.parentId, lambda other: None))
        index.add(Line(line.offset, line.raw, head), entry_id, kinds, entry)

    def _head(self, place: Place) -> Head:
        known = self.format.id_of(self._read(place.offset, place.length), place.offset)
        if known is None:
            raise IndexDamaged("a row has lost its id")
        return Head("custom", known)

    def _is(self, raw: bytes, row: Row) -> bool:
        return self.format.id_of(raw, row.position[0]) == row.id

    def _all_rows(self) -> Sequence[Row]:
        translator = self.format.translator()
        rows = []
        scanner = Scanner()
        for chunk in self._chunks(0, self._indexed):
            rows += [self._known(translator, item) for item in scanner.feed(chunk) if isinstance(item, Line)]
        return rows + [self._known(translator, item) for item in scanner.finish() if isinstance(item, Line)]

    @staticmethod
    def _known(translator: Translator, line: Line) -> Row:
        head, flags = translator.take(line)
        flags = flags_of(head) if flags is None else flags
        return Row(str(head.id), head.parentId, flags, (line.offset, len(line.raw)))

    # -- entries

    def last(self) -> Row | None:
        """The entry that the conversation goes on from; other rows may come after it."""
        leaf = self._ask(lambda index: self._translator.leaf)
        return super().last() if leaf is None else self.find(leaf)

    def _shown(self, raw: bytes, row: Row) -> bytes:
        return encode_plain(self.format.entry(raw, row.id, row.parent_id, self._look))

    def _look(self, entry_id: str) -> bytes | None:
        row = self.find(entry_id)
        return None if row is None else self._read(*row.position)
