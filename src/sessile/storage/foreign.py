"""Reading another agent's file in place, as a journal of ours.

Rows are indexed as ours are, under the ids and parents that the format's translator gives them; an entry is made of a row when
somebody reads it. What the translator keeps between rows is saved with the index. Nothing is written to the file, beside it,
or to its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sessile.core.codec import encode_plain
from sessile.core.kinds import LABEL, LEAF_MARKER, MARKER, MARKERS, MESSAGE, STATE, TITLE
from sessile.core.lines import Finding, Head, Line, Scanner
from sessile.errors import NotASession, storage_failure, storage_failures
from sessile.formats.base import Entry, Format, Glimpse, Known, Look, Told, Translator
from sessile.storage.base import Filesystem, Row
from sessile.storage.beside import told_of
from sessile.storage.foreign_rows import beginning, ends
from sessile.storage.index import NOWHERE, RowIndex
from sessile.storage.index_file import IndexDamaged, Place, key_of
from sessile.storage.known_formats import recognised
from sessile.storage.layout import stem_of
from sessile.storage.packed import is_packed, open_rows
from sessile.storage.reader import JournalReader


def format_of(fs: Filesystem, path: str) -> Format | None:
    """The format of a file, by its first bytes."""
    fd, _, _ = open_rows(fs, path)
    try:
        first = beginning(fs, fd)
    finally:
        fs.close(fd)
    return recognised(first)


class ForeignReader(JournalReader):
    """One file of another agent, open for reading."""

    def __init__(self, fs: Filesystem, path: str, format_: Format, *, index_path: str | None = None) -> None:
        self.format = format_
        self._translator: Translator = format_.translator()
        self._damage: Finding | None = None
        self._second: ForeignReader | None = None
        super().__init__(fs, path, index_path=None if is_packed(path) else index_path)

    def _open(self) -> None:
        try:
            fd, _, self._damage = open_rows(self._fs, self.path)
        except OSError as error:
            raise storage_failure(error, self.path, "open the session") from error
        self._begin(fd)

    def _size_by_name(self, identity: int) -> int | None:
        return None  # a compressed file has another size under its name than where it is read

    def _is_replaced(self) -> bool:
        return False  # what is open stays readable; who wants what came instead opens it again

    def findings(self) -> Sequence[Finding]:
        found = super().findings()
        return found if self._damage is None else [*found, self._damage]

    def _scanner(self, offset: int) -> Scanner:
        return self.format.scanner(offset)

    def _find_header(self, size: int) -> Line:
        self._slot = None
        with storage_failures(self.path, "read the session"):
            first = beginning(self._fs, self._fd)
        if not self.format.recognises(first):
            raise NotASession(f"the file is no {self.format.name} session", path=self.path)
        header = self.format.header(stem_of(self.path), first, Told(*told_of(self._fs, self.path)))
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
        for known in self._translator.take(line):
            self._add(index, line, known.head, known.flags)

    def _add(self, index: RowIndex, line: Line, head: Head, flags: int) -> int:
        entry = None
        if flags & (STATE | LABEL) and not flags & MESSAGE:  # of these the index needs more than the head
            entry = encode_plain(self.format.entry(line.raw, str(head.id), head.parentId, lambda other: None))
        return index.add(line, head, flags, entry)

    def _head(self, place: Place, raw: bytes | None = None) -> Head:
        raw = self._read(place.offset, place.length) if raw is None else raw
        for known in self.format.ids_of(raw, place.offset):
            if key_of(known)[0] == place.key:
                return Head("custom", known)
        raise IndexDamaged("a row has lost its id")

    def _is(self, raw: bytes, row: Row) -> bool:
        return row.id in self.format.ids_of(raw, row.position[0])

    def _all_rows(self) -> Sequence[Row]:
        translator = self.format.translator()
        rows: list[Row] = []
        for item in self._scan(0, self._indexed):
            if isinstance(item, Line):
                place = (item.offset, len(item.raw))
                rows += [_row(known, place) for known in translator.take(item)]
        return rows

    # -- entries

    def last(self) -> Row | None:
        """The entry that the conversation goes on from; other rows may come after it."""
        leaf = self._ask(lambda index: self._translator.leaf)
        return super().last() if leaf is None else self.find(leaf)

    def entries(self) -> Iterator[tuple[Row, Entry]]:
        """Every entry with its row, in file order: one pass over the file, by which the index is made as well."""
        self._forget_index()
        index, size = self._index, self._stat().st_size

        def look(entry_id: str) -> bytes | None:  # what an entry looks for can only stand before it
            number = index.find(entry_id)
            place = None if number is None else index.place(number)
            return None if place is None else self._read(place.offset, place.length)

        scanner = self._scanner(0)
        for chunk in self._chunks(0, size):
            for item in scanner.feed(chunk):
                if isinstance(item, Finding):
                    index.report(item)
                    continue
                for known in self._translator.take(item):
                    row = _row(known, (item.offset, len(item.raw)))
                    parent = self._add(index, item, known.head, row.flags)
                    if row.parent_id and parent == NOWHERE and not self._comes_later(row.parent_id):
                        row = row._replace(parent_id=None)
                    yield row, self._entry(item.raw, row, look)
        behind = len(index)
        self._caught_up(index, scanner, size)
        for row in self._numbered(range(behind, len(index))):
            yield row, self._entry(self.raw(row), row, self._look)

    def _comes_later(self, entry_id: str) -> bool:
        """Whether an entry stands behind one that hangs from it; few files ask, so a second reader looks for it."""
        if self._second is None:
            self._second = ForeignReader(self._fs, self.path, self.format)
        return self._second.find(entry_id) is not None

    def close(self) -> None:
        """Free the descriptors."""
        if self._second is not None:
            self._second.close()
            self._second = None
        super().close()

    def glimpse(self) -> Glimpse | None:
        """What the two ends of the file tell a listing."""
        with storage_failures(self.path, "read the session"):
            first, last = ends(self._fs, self._fd, self._stat().st_size)
        return self.format.glimpse(stem_of(self.path), first, last)

    def _shown(self, raw: bytes, row: Row) -> bytes:
        return encode_plain(self._entry(raw, row, self._look))

    def _entry(self, raw: bytes, row: Row, look: Look) -> Entry:
        """A row as an entry; one that stands beside the conversation is a marker, with all that it says."""
        entry = self.format.entry(raw, row.id, row.parent_id, look)
        if not row.flags & MARKER or row.flags & TITLE or entry.get("customType") in MARKERS:
            return entry
        base: Entry = {name: entry[name] for name in ("id", "parentId", "timestamp") if name in entry}
        rest = {name: value for name, value in entry.items() if name not in base}
        return {"type": "custom", **base, "customType": LEAF_MARKER, "data": rest}

    def _look(self, entry_id: str) -> bytes | None:
        row = self.find(entry_id)
        return None if row is None else self._read(*row.position)


def _row(known: Known, place: tuple[int, int]) -> Row:
    head = known.head
    return Row(str(head.id), head.parentId, known.flags, place)
