"""Searching the sessions of a catalog for words, best first.

Rules: the index only proposes. Every hit is read again in its journal, where `Query` decides, so that neither a stale nor a
lying index is believed; what has no newline yet, and on demand what is not indexed yet, is read directly.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.core.lines import Line
from sessile.core.passages import INDEXED, Excerpt, Field, excerpt, passages
from sessile.core.words import Query, fold
from sessile.storage.base import Filesystem
from sessile.storage.catalog_rows import storable, within
from sessile.storage.fulltext import OFFSET_BITS, OFFSETS
from sessile.storage.native_rows import entries_in, lines_in, scanner_of
from sessile.storage.packed import open_rows
from sessile.storage.session_file import CHUNK

_RANKED = 1000  # matches that are ranked at once, newest first: the best of all is not worth the wait
_END = 2**63 - 1
_RANK = "bm25(texts, 1.0, 0.5, 0.5)"  # what was said counts more than what was thought or called
_TRIGRAM = 3


class _Session(NamedTuple):
    """What a search must know of a session; `indexed` counts the bytes whose words are in the index."""

    path: str
    id: str
    size: int
    indexed: int
    format: str


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
    """One search in a database that has caught up, below some places or in some sessions only."""

    def __init__(
        self,
        fs: Filesystem,
        database: sqlite3.Connection,
        places: Sequence[str],
        sessions: Collection[int] | None,
        directly: bool,
        keeps: bool,
    ) -> None:
        self._fs = fs
        self._db = database
        self._within = within(places)
        self._wanted = sessions
        self._directly = directly
        self._keeps = keeps  # else there are words of sessions that this database does not know
        self._known: dict[int, _Session | None] = {}

    def search(self, query: Query, fields: Sequence[Field], limit: int, count: bool) -> Results:
        """The best hits of a query."""
        pending, unread = self._beside_the_index()
        if not query.terms:
            return Results([], [], {}, pending, query.ignored)
        fields = [field for field in INDEXED if field in fields]
        hits: list[Hit] = []
        for rank, session, offset in self._ranked(query, fields):
            hits += self._hits_at(query, fields, session, offset, rank)
            if len(hits) >= limit:
                break
        for session in unread:
            if len(hits) >= limit:
                break
            hits += self._read(query, fields, session)
        matches = self._matches(query) if count else {}
        return Results(hits[:limit], self._titles(query), matches, pending, query.ignored)

    def _beside_the_index(self) -> tuple[int, list[_Session]]:
        """How many sessions are not searched, and those to read: for a line without its end, or if wished from end to end."""
        where, values = self._within
        select = (
            f"SELECT number, searchable FROM sessions WHERE format IS NOT NULL AND {where}"
            " AND (NOT searchable OR size > indexed) ORDER BY number DESC"
        )
        rows = [row for row in self._db.execute(select, values) if self._wanted is None or row[0] in self._wanted]
        unread = [self._session(number) for number, searchable in rows if searchable or self._directly]
        pending = 0 if self._directly else sum(not searchable for _, searchable in rows)
        return pending, [session for session in unread if session is not None]

    def _session(self, number: int) -> _Session | None:
        """The session with that number, if it is searched."""
        if number not in self._known:
            where, values = self._within
            columns = "path, id, size, indexed, format"
            select = f"SELECT {columns} FROM sessions WHERE number = :number AND format IS NOT NULL AND {where}"
            row = self._db.execute(select, values | {"number": number}).fetchone()
            searched = row is not None and (self._wanted is None or number in self._wanted)
            self._known[number] = _Session(os.fsdecode(row[0]), *row[1:]) if searched else None
        return self._known[number]

    def _ranked(self, query: Query, fields: Sequence[Field]) -> Iterator[tuple[float, _Session, int]]:
        """Candidates, the best of the newest first, then those of older ones, as far as somebody asks."""
        if not fields:
            return
        only, values = self._scope()
        select = (
            f"SELECT {_RANK}, -rowid FROM texts WHERE texts MATCH :match AND rowid < :before{only}"
            f" ORDER BY rowid DESC LIMIT {_RANKED}"
        )
        values = values | {"match": query.match(fields), "before": _END}
        while found := self._db.execute(select, values).fetchall():
            for rank, row in sorted(found):  # the newer of equals first
                session = self._session(-row >> OFFSET_BITS)
                if session is not None:
                    yield rank, session, -row & OFFSETS
            values["before"] = -found[-1][1]

    def _hits_at(
        self, query: Query, fields: Sequence[Field], session: _Session, offset: int, rank: float
    ) -> Iterator[Hit]:
        """The hits in the line at an offset, if the journal still has it there."""
        try:
            fd, size, _ = open_rows(self._fs, session.path)
            try:
                raw = _line_at(self._fs, fd, offset, size)
            finally:
                self._fs.close(fd)
        except OSError:
            return
        first = next(lines_in(session.format, raw, offset), None)
        if first is not None and first.offset == offset:
            yield from _hits_in(query, fields, session, first, rank)

    def _read(self, query: Query, fields: Sequence[Field], session: _Session) -> Iterator[Hit]:
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

    def _matches(self, query: Query) -> dict[str, int]:
        """How many indexed entries match, by field."""
        only, values = self._scope()
        select = f"SELECT count(*) FROM texts WHERE texts MATCH :match{only}"
        found: dict[str, int] = {}
        for field in INDEXED:
            (found[field],) = self._db.execute(select, values | {"match": query.match([field])}).fetchone()
        return found

    def _scope(self) -> tuple[str, dict[str, Any]]:
        """What keeps an answer of the index to the sessions that are searched; mostly that is all of them."""
        where, values = self._within
        counts = f"(SELECT count(*) FROM sessions), (SELECT count(*) FROM sessions WHERE {where})"
        everywhere, here, gone = self._db.execute(f"SELECT {counts}, (SELECT count(*) FROM gone)", values).fetchone()
        session = f" AND rowid >> {OFFSET_BITS} IN"
        if self._wanted is not None:
            return f"{session} (SELECT value FROM json_each(:wanted))", {
                "wanted": msgspec.json.encode(list(self._wanted)).decode()
            }
        if not self._keeps or everywhere > here or gone:
            return f"{session} (SELECT number FROM sessions WHERE format IS NOT NULL AND {where})", values
        return "", {}

    def _titles(self, query: Query) -> list[str]:
        """Sessions whose title holds every word or a part of one; trigrams spare looking at most titles."""
        words = [fold(term.text.rstrip("*")) for term in query.terms]
        long = " AND ".join('"{}"'.format(word.replace('"', '""')) for word in words if len(word) >= _TRIGRAM)
        candidates = "number IN (SELECT rowid FROM titles WHERE titles MATCH ?)" if long else "?"
        select = f"SELECT number, title FROM sessions WHERE title IS NOT NULL AND (NOT searchable OR {candidates})"
        rows = self._db.execute(f"{select} ORDER BY mtime_ns DESC", (storable(long) or 1,)).fetchall()
        found = [self._session(number) for number, title in rows if all(word in fold(title) for word in words)]
        return [session.path for session in found if session is not None]


def _hits_in(query: Query, fields: Sequence[Field], session: _Session, line: Line, rank: float | None) -> Iterator[Hit]:
    for entry_id, entry in entries_in(session.format, line):
        said = passages(entry)
        for field in fields:
            spans = query.find(said[field]) if field in said else []
            if spans:
                yield Hit(session.path, session.id, entry_id, line.offset, field, excerpt(said[field], spans), rank)


def _line_at(fs: Filesystem, fd: int, offset: int, end: int) -> bytes:
    """The bytes from an offset to the end of its line."""
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
