"""Searching the sessions of a catalog for words, best first.

Rules: the index only proposes. Every hit is read again in its journal, where `Query` decides, so that neither a stale nor a
lying index is believed; what has no newline yet, and on demand what is not indexed yet, is read directly.

How an index is asked is in `catalog_words`, and in `postgres.words` for a store in a database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from sessile.core.lines import Line
from sessile.core.passages import INDEXED, Excerpt, Field, excerpt, passages
from sessile.core.words import Query
from sessile.storage.base import Filesystem
from sessile.storage.native_rows import entries_in, lines_in, scanner_of
from sessile.storage.packed import open_rows
from sessile.storage.session_file import CHUNK


class Searched(NamedTuple):
    """What a search must know of a session; `indexed` counts the bytes whose words are in the index."""

    path: str
    id: str
    size: int
    indexed: int
    format: str


class Beside(NamedTuple):
    """A session of which not everything is indexed: a last line without its end if it is `searchable`, else more."""

    session: Searched
    searchable: bool


class Candidate(NamedTuple):
    """A line that may answer a query, as its journal has it now."""

    rank: float
    session: Searched
    offset: int
    raw: bytes  # from the offset to the end of its line


class Index(Protocol):
    """Words of sessions, and which of them are searched."""

    def beside(self) -> Sequence[Beside]:
        """Sessions of which not everything is indexed, newest first."""
        ...

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Lines that may answer, best first, as far as somebody asks."""
        ...

    def matches(self, query: Query) -> dict[str, int]:
        """How many indexed entries match, by field."""
        ...

    def titles(self, query: Query) -> list[str]:
        """Paths of sessions whose title holds every word or a part of one, newest first."""
        ...


class Hit(NamedTuple):
    """An entry that answers a query. `rank` is the better the lower, and `None` where no index was asked."""

    path: str
    session_id: str
    entry_id: str | None  # None in a file of version 1
    offset: int
    field: Field
    excerpt: Excerpt
    rank: float | None


class Results(NamedTuple):
    """The best hits, and what is not among them."""

    hits: list[Hit]
    titles: list[str]  # paths of sessions whose title has all words
    matches: dict[str, int]  # indexed entries that match by field, also where nobody asked; case is not looked at
    pending: int  # sessions that were not searched because they are not indexed yet
    ignored: list[str]  # parts of the query that no index can find


class Searcher:
    """One search; with `directly`, sessions that are not indexed yet are read from end to end."""

    def __init__(self, fs: Filesystem, index: Index, directly: bool) -> None:
        self._fs = fs
        self._index = index
        self._directly = directly

    def search(self, query: Query, fields: Sequence[Field], limit: int, count: bool) -> Results:
        """The best hits of a query."""
        beside = self._index.beside()
        unread = [session for session, searchable in beside if searchable or self._directly]
        pending = 0 if self._directly else sum(not searchable for _, searchable in beside)
        if not query.terms:
            return Results([], [], {}, pending, query.ignored)
        fields = [field for field in INDEXED if field in fields]
        hits: list[Hit] = []
        for candidate in self._index.candidates(query, fields) if fields else ():
            hits += _hits_at(query, fields, candidate)
            if len(hits) >= limit:
                break
        for session in unread:
            if len(hits) >= limit:
                break
            hits += self._read(query, fields, session)
        matches = self._index.matches(query) if count else {}
        return Results(hits[:limit], self._index.titles(query), matches, pending, query.ignored)

    def _read(self, query: Query, fields: Sequence[Field], session: Searched) -> Iterator[Hit]:
        """The hits behind the place up to which a session is indexed."""
        at, scanner = session.indexed, scanner_of(session.format, session.indexed)
        try:
            fd, size, _ = open_rows(self._fs, session.path)
        except OSError:
            return
        try:
            while at < size and (chunk := self._fs.read(fd, min(CHUNK, size - at), at)):
                at += len(chunk)
                for item in scanner.feed(chunk):
                    if isinstance(item, Line):
                        yield from _hits_in(query, fields, session, item, None)
            for item in scanner.finish():
                if isinstance(item, Line):
                    yield from _hits_in(query, fields, session, item, None)
        finally:
            self._fs.close(fd)


def read_line(fs: Filesystem, path: str, offset: int) -> bytes | None:
    """The bytes from an offset to the end of its line, as a file has them now; `None` if it cannot be read."""
    try:
        fd, size, _ = open_rows(fs, path)
        try:
            return _line_at(fs, fd, offset, size)
        finally:
            fs.close(fd)
    except OSError:
        return None


def _line_at(fs: Filesystem, fd: int, offset: int, end: int) -> bytes:
    pieces: list[bytes] = []
    size = 16 * 1024
    while offset < end and (piece := fs.read(fd, min(size, end - offset), offset)):
        newline = piece.find(b"\n")
        if newline >= 0:
            pieces.append(piece[:newline])
            break
        pieces.append(piece)
        offset += len(piece)
        size = CHUNK
    return b"".join(pieces)


def _hits_at(query: Query, fields: Sequence[Field], candidate: Candidate) -> Iterator[Hit]:
    """The hits in a line, if the journal still has it where the index says."""
    session, offset = candidate.session, candidate.offset
    first = next(lines_in(session.format, candidate.raw, offset), None)
    if first is not None and first.offset == offset:
        yield from _hits_in(query, fields, session, first, candidate.rank)


def _hits_in(query: Query, fields: Sequence[Field], session: Searched, line: Line, rank: float | None) -> Iterator[Hit]:
    for entry_id, entry in entries_in(session.format, line):
        said = passages(entry)
        for field in fields:
            spans = query.find(said[field]) if field in said else []
            if spans:
                yield Hit(session.path, session.id, entry_id, line.offset, field, excerpt(said[field], spans), rank)
