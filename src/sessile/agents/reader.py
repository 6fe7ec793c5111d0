"""Reading another agent's file in place, as a journal of ours.

Rows are indexed as ours are, under the ids and parents that the format's translator gives them; an entry is made of a row when
somebody reads it. What the translator keeps between rows is saved with the index. Nothing is written to the file, beside it,
or to its folder.

Rows of other agents' files for the catalog: what a look tells of them, and each as an entry of ours.

The catalog reads lines one by one and goes on where it stopped; what a translator has to know for that is kept with what was
counted.

Session files whose rows are not simply their bytes: archives, and the form of MyAgents before JSONL.

    open_rows(fs, path)     a descriptor to read the rows from, whatever the form

Rules: what is packed is unpacked into a file without a name, which goes when it is closed; nothing is left anywhere, least of
all beside the original. An archive that is damaged gives what is whole in it, and says so. How a file is packed is told by
the ending of its name. However small an archive is that somebody has made to hold a lot, it takes some megabytes of memory, and
no more of the disk than archives of that size may. It does not know what the rows are.

What agents' own lists of sessions say of them: `sessions.json`, beside the sessions or above their folder.

    MyAgents     an array above the folder: title and project of each session
    OpenClaw     an object in the folder: the key, and perhaps a name, of each conversation

Lists are only read, tolerantly: one that cannot be read says nothing. What a session itself says counts more.

Other agents' sessions: opened in place for reading. What can be written there, `in_place` writes.

It is apart from `store` because programs that only use sessions of ours need not load the formats.
"""

from __future__ import annotations

import os
import posixpath
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sessile.agents.base import Entry, Format, Glimpse, Known, Look, Translator, capabilities_of, possible
from sessile.agents.base import Told as base_Told
from sessile.agents.registry import format_named, recognised
from sessile.core.codec import encode_plain
from sessile.core.diagnosis import TROUBLES, Problem, problem
from sessile.core.digest import FIRST_TEXT, shown
from sessile.core.kinds import LABEL, LEAF_MARKER, MARKER, MARKERS, MESSAGE, STATE, TITLE
from sessile.core.lines import MAX_LINE, Finding, Head, Item, Line, Scanner
from sessile.core.text import parse_timestamp
from sessile.discovery import SessionInfo
from sessile.errors import NotASession, StorageFailure, Unsupported, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import CHUNK, Filesystem, Row
from sessile.storage.head import Glance
from sessile.storage.index import NOWHERE, IndexDamaged, Place, RowIndex, key_of
from sessile.storage.layout import GZIP, JOURNAL, LEGACY, LIST, ZSTD, stem_of
from sessile.storage.reader import JournalReader

# --- foreign rows

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


# --- packed

MOST = 64 << 30  # bytes that one archive may unpack to: a few kilobytes can hold a disk full of zeros
ALWAYS = 1 << 30  # bytes that every archive may unpack to
TIMES = 1000  # how much larger than itself; sessions pack to a tenth, those that repeat themselves to a hundredth

_GZIP_HEADER = 31  # how zlib is told that a gzip header comes
_STEP = 1 << 10  # bytes of zstd that are unpacked at once: four of them can stand for 128 KiB

Unpacking = Callable[[Iterator[bytes]], Iterator[bytes]]


class Rows(NamedTuple):
    """A descriptor of the rows of a file, how many bytes they have, and what could not be unpacked."""

    fd: int
    size: int
    damage: Finding | None


class _Damaged(Exception):
    """The archive ends too early, or is not one."""


def is_packed(path: str) -> bool:
    """Whether the rows of a file are not its bytes."""
    return path.endswith(LEGACY) or (path.endswith((GZIP, ZSTD)) and JOURNAL in posixpath.basename(path))


def open_rows(fs: Filesystem, path: str) -> Rows:
    """Open the rows of a session file for reading."""
    if not is_packed(path):
        fd = fs.open(path, os.O_RDONLY)
        return Rows(fd, fs.fstat(fd).st_size, None)
    fd = fs.temporary()
    try:
        size, damage = _unpack(fs, path, fd)
    except BaseException:
        fs.close(fd)
        raise
    return Rows(fd, size, damage)


def _unpack(fs: Filesystem, path: str, target: int) -> tuple[int, Finding | None]:
    """Write what a file holds into another; how much that was, and what was wrong."""
    size = 0
    source = fs.open(path, os.O_RDONLY)
    try:
        most = min(MOST, max(ALWAYS, TIMES * fs.fstat(source).st_size))
        for piece in _UNPACKINGS[posixpath.splitext(path)[1]](_chunks(fs, source)):
            if size + len(piece) > most:
                raise _Damaged(f"it holds more than {most} bytes")
            atomic.write_all(fs, target, piece)
            size += len(piece)
    except _Damaged as error:
        return size, Finding("damaged_archive", size, 0, f"the archive is damaged: {error}")
    finally:
        fs.close(source)
    return size, None


def _chunks(fs: Filesystem, fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := fs.read(fd, CHUNK, offset):
        yield chunk
        offset += len(chunk)


def _gunzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip archives that follow each other."""
    unpacker = None
    for chunk in chunks:
        rest = chunk
        while rest:
            unpacker = unpacker or zlib.decompressobj(_GZIP_HEADER)
            try:
                yield unpacker.decompress(rest, CHUNK)
            except zlib.error as error:
                raise _Damaged(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        yield unpacker.flush()
        raise _Damaged("it ends too early")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of zstd frames that follow each other."""
    import zstandard  # most people have no such file

    unpacker = None
    for rest in _steps(chunks):
        while rest:
            unpacker = unpacker or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield unpacker.decompress(rest)
            except zstandard.ZstdError as error:
                raise _Damaged(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else b""
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise _Damaged("it ends too early")


def _steps(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in small pieces, for an unpacker that gives back all that it has been given."""
    for chunk in chunks:
        for at in range(0, len(chunk), _STEP):
            yield chunk[at : at + _STEP]


def _legacy(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of one JSON object, as the rows that they become."""
    from sessile.agents.myagents.messages import Row, read_legacy, salvaged

    data = b"".join(chunks)
    try:
        for item in read_legacy(data):
            # A message that is no object becomes a line that is no row: the reader says so.
            yield item.raw + b"\n" if isinstance(item, Row) else b"null\n"
    except (ValueError, RecursionError) as error:
        yield from (row.raw + b"\n" for row in salvaged(data))
        raise _Damaged(str(error)) from error


_UNPACKINGS: dict[str, Unpacking] = {".gz": _gunzipped, ".zst": _unzstd, ".json": _legacy}


# --- beside

LISTS = "CREATE TABLE lists (path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL)"
"""Which lists a catalog has read, and how they were then."""

Told = tuple[str | None, str | None]
"""Title and project of a session, where they are said."""

_LARGEST = 64 << 20  # bytes; a list that is larger is none

# A title that the session itself has given counts more than that of a list.
_RETELL = (
    "UPDATE sessions SET title = CASE WHEN title IS header_title THEN :title ELSE title END, header_title = :title,"
    " cwd = coalesce(:cwd, cwd) WHERE number = :number"
)


class _List(NamedTuple):
    """A list, and how it is now."""

    path: str
    size: int
    modified: int


def told_of(fs: Filesystem, path: str) -> Told:
    """What is said of the session in a file."""
    found = _list_of(fs, posixpath.dirname(path))
    return (_read(fs, found) if found else {}).get(stem_of(path), (None, None))


def has_news(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> bool:
    """Whether a list has changed since a catalog read it."""
    known = {os.fsdecode(path): mark for path, *mark in database.execute("SELECT path, size, mtime_ns FROM lists")}
    found = filter(None, (_list_of(fs, place.rstrip("/")) for place in places))
    return any(known.get(each.path) != [each.size, each.modified] for each in found)


def retell(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> None:
    """Tell the rows of a catalog what the lists of their places say of them."""
    for place in places:
        found = _list_of(fs, place.rstrip("/"))
        if found is not None:
            told = _read(fs, found)
            database.executemany(_RETELL, list(_news(database, place.rstrip("/"), told)))
            mark = (os.fsencode(found.path), found.size, found.modified)
            database.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", mark)


def _news(database: sqlite3.Connection, place: str, told: Mapping[str, Told]) -> Iterator[dict[str, Any]]:
    """What differs from what the rows below a place say."""
    below = os.fsencode(f"{place}/")
    select = "SELECT number, path, id, header_title, cwd FROM sessions WHERE path > ? AND path < ?"
    for number, path, known, title, cwd in database.execute(select, (below, below[:-1] + b"0")):
        # A topic of a chat has the id of that chat, but a file of its own.
        says = told.get(stem_of(os.fsdecode(path))) or told.get(known)
        if says is not None and (says[0] != title or (says[1] or cwd) != cwd):
            yield {"number": number, "title": says[0], "cwd": says[1]}


def _list_of(fs: Filesystem, folder: str) -> _List | None:
    """The list that tells of the sessions in a folder."""
    for path in (f"{folder}/{LIST}", f"{posixpath.dirname(folder)}/{LIST}"):
        try:
            status = fs.lstat(path)
        except OSError:
            continue  # there is none
        return _List(path, status.st_size, status.st_mtime_ns) if status.st_size <= _LARGEST else None
    return None


def _read(fs: Filesystem, found: _List) -> Mapping[str, Told]:
    """What a list says, by the ids of sessions or the names of their files."""
    try:
        data = atomic.read_all(fs, found.path)
    except OSError:
        return {}  # it cannot be read: it says nothing
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        from sessile.agents.myagents.index import described

        return {known: (row.title, row.cwd) for known, row in described(data).items()}
    from sessile.agents.openclaw.names import described as keyed

    return {known: (title, None) for known, (title, _) in keyed(data).items()}


# --- foreign


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
        header = self.format.header(stem_of(self.path), first, base_Told(*told_of(self._fs, self.path)))
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


# --- foreign

_HINT = "it was not changed; no format that is known begins so; sessile check says what it holds"


def open_foreign(fs: Filesystem, path: str, index_path: str | None = None) -> ForeignReader:
    """The file of another agent, recognised by what it holds."""
    with storage_failures(path, "look at the file"):
        known = format_of(fs, path)
        if known is None:
            raise NotASession(path=path, hint=_HINT)
        return ForeignReader(fs, path, known, index_path=index_path)


def format_name(fs: Filesystem, path: str) -> str:
    """The name of the format of another agent's file."""
    with closing(open_foreign(fs, path)) as reader:
        return reader.format.name


def refusal(name: str, path: str) -> Unsupported:
    """What is to be said of a file that is not written because it is not ours, and what could be done instead."""
    rest = f"or say in_place=True: {possible(name)}" if capabilities_of(name) else possible(name)
    return Unsupported(
        f"this is a session of {name}, which is read in place",
        path=path,
        hint=f"fork it, and go on in the copy; {rest}",
    )


def describe_foreign(fs: Filesystem, path: str) -> SessionInfo | None:
    """What the two ends of another agent's file tell of it; `None` if it is no session, or one that nobody lists."""
    with storage_failures(path, "look at a session"):
        fd, _, _ = open_rows(fs, path)
        try:
            status = fs.fstat(fd)
            found = glance_foreign(fs, fd, status.st_size, path)
        finally:
            fs.close(fd)
    if found is None:
        return None
    _, seen = found
    created = parse_timestamp(seen.created)
    return SessionInfo(
        path=path,
        id=seen.id,
        cwd=seen.cwd,
        title=seen.title or None,
        parent_session_path=None,
        created=None if created is None else datetime.fromtimestamp(created / 1000, UTC),
        modified=datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC),
        size=status.st_size,
        first_message=seen.first_text or None,
    )


def problems_of(findings: Iterable[Finding]) -> Iterator[Problem]:
    """What is not as it should be in another agent's file; none of it is for us to repair."""
    for code, offset, length, detail in findings:
        kind = code if code in TROUBLES else "not_an_entry"
        found = problem(kind, detail)._replace(repairable=False)
        yield found._replace(offset=offset, length=length) if offset >= 0 else found
