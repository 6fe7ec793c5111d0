"""From the bytes of a session file to the rows of its journal, and back: no byte is lost, none is added.

    the file = body and gap of each row, in order of `start`; a gap that is null is a newline

Every line that can be read is a row. What is no line lies in the gap of the row before; before the first line, in that of a
row without a body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sessile.core.hashes import blake2b
from sessile.core.kinds import MARKER, flags_of
from sessile.core.lines import Finding, Head, Line, Scanner, read_head
from sessile.errors import NotASession
from sessile.storage.base import Row
from sessile.storage.postgres.links import Links
from sessile.storage.postgres.schema_journals import HASHED, HEADER, KIND_FLAGS, NO_ENTRY, SLOT

_LONGEST_ID = 512  # bytes; an index takes no more than a few thousand
_HASH = b"\xff"  # never begins a text
_LONGEST_GAP = 64 * 1024 * 1024  # more than a line may have


class Tile(NamedTuple):
    """One row of the table `entry`, without its file."""

    start: int
    id: bytes | None
    copy: int
    parent: bytes | None
    flags: int
    state: int | None
    cut: int
    after: bytes | None
    body: bytes
    gap: bytes | None


COLUMNS = Tile._fields


def is_counted(tile: Tile) -> bool:
    """Whether a row is an entry of the user's."""
    return tile.id is not None and not tile.flags & MARKER


def key_of(entry_id: str) -> bytes:
    """What an id is stored as: its text, or the hash of a long one."""
    text = entry_id.encode("utf-8", "surrogatepass")
    return text if len(text) <= _LONGEST_ID else _HASH + blake2b(text, 32)


def row_of(start: int, key: bytes, parent: bytes | None, flags: int, length: int, line: bytes | None) -> Row:
    """A row as the database gives it; with the line itself if one of its ids is a hash."""
    if line is not None:
        head = read_head(line)
        return Row(str(head.id), head.parentId or None, flags & KIND_FLAGS, (start, length))
    parent_id = None if parent is None else parent.decode("utf-8", "surrogatepass")
    return Row(key.decode("utf-8", "surrogatepass"), parent_id, flags & KIND_FLAGS, (start, length))


class Tiler:
    """Feed it the bytes of a journal in order, then `finish`; what lies before `offset` is there already.

    `path` is for the error that a file without a header gets.
    """

    def __init__(self, path: str, links: Links, offset: int = 0) -> None:
        self.rows = self.entries = 0
        self.damaged = self.doubled = self.parentless = False
        self._path = path
        self._links = links
        self._scanner = Scanner(offset)
        self._headed = offset > 0
        self._tile: Tile | None = None  # the last one, whose gap is not known yet
        self._rest = b""  # the bytes behind its body
        self._at = offset  # where they begin

    @property
    def size(self) -> int:
        """How many bytes the file has by now."""
        return self._scanner.offset

    def feed(self, data: bytes) -> Iterator[Tile]:
        """The rows that are complete now."""
        self._rest = self._rest + data if self._rest else data
        yield from self._take(self._scanner.feed(data))
        if len(self._rest) > _LONGEST_GAP:  # no line: that is too long to be one
            yield from self._gap(len(self._rest))

    def finish(self) -> Iterator[Tile]:
        """The last rows; raises NotASession if there was no header."""
        yield from self._take(self._scanner.finish())
        if not self._headed:
            raise self._not_a_session()
        yield from self._gap(len(self._rest))

    def _take(self, items: Iterator[Line | Finding]) -> Iterator[Tile]:
        used = 0  # of the rest
        for item in items:
            if isinstance(item, Finding):
                self.damaged = True
                continue
            begin = item.offset - self._at
            yield from self._ended(used, begin)
            used = begin + len(item.raw)
            self._tile = self._tile_of(item)
        self._rest = self._rest[used:]
        self._at += used

    def _ended(self, begin: int, end: int) -> Iterator[Tile]:
        """The last tile with what follows it."""
        gap = self._rest[begin:end]
        tile, self._tile = self._tile, None
        if tile is None:
            if not gap:
                return
            tile = _bare(self._at + begin)
        self.rows += 1
        self.entries += is_counted(tile)
        yield tile if gap == b"\n" else tile._replace(gap=gap)

    def _gap(self, length: int) -> Iterator[Tile]:
        yield from self._ended(0, length)
        self._rest = self._rest[length:]
        self._at += length

    def _tile_of(self, line: Line) -> Tile:
        start, raw, head = line
        if head.id is None or head.type == "session" or not self._headed:
            return _bare(start, self._meaning(head), raw)
        flags = flags_of(head)
        hung = self._links.add(line, flags)
        self.doubled |= hung.double
        self.parentless |= hung.orphan
        key, parent = key_of(head.id), key_of(head.parentId) if head.parentId else None
        if key[:1] == _HASH or (parent is not None and parent[:1] == _HASH):
            flags |= HASHED
        return Tile(start, key, start if hung.double else 0, parent, flags, hung.state, hung.cut, hung.after, raw, None)

    def _meaning(self, head: Head) -> int:
        """What a line is that is no entry."""
        if self._headed:
            self.damaged |= head.type != "title"
            return NO_ENTRY
        if head.type == "title" and head.id is None:
            return NO_ENTRY | SLOT
        if head.type == "session" and head.id is not None:
            self._headed = True
            return NO_ENTRY | HEADER
        raise self._not_a_session()

    def _not_a_session(self) -> NotASession:
        return NotASession(path=self._path, hint="it was not changed; perhaps another agent wrote it")


def _bare(start: int, flags: int = NO_ENTRY, body: bytes = b"") -> Tile:
    return Tile(start, None, 0, None, flags, None, 0, None, body, None)
