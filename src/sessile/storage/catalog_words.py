"""Words that the catalog has, asked of its SQLite tables: which entries may answer a query, the best first.

It only proposes: `searcher` reads every candidate and decides.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from sessile.core.passages import INDEXED, Field
from sessile.core.words import Query, fold
from sessile.storage.base import Filesystem
from sessile.storage.catalog_rows import storable, within
from sessile.storage.fulltext import OFFSET_BITS, OFFSETS
from sessile.storage.searcher import Beside, Candidate, Searched, read_line

_RANKED = 1000  # matches that are ranked at once, newest first: the best of all is not worth the wait
_END = 2**63 - 1
_RANK = "bm25(texts, 1.0, 0.5, 0.5)"  # what was said counts more than what was thought or called
_TRIGRAM = 3


class CatalogWords:
    """The words of a database that has caught up, below some places or in some sessions only."""

    def __init__(
        self,
        fs: Filesystem,
        database: sqlite3.Connection,
        places: Sequence[str],
        sessions: Collection[int] | None,
        keeps: bool,
    ) -> None:
        self._fs = fs
        self._db = database
        self._within = within(places)
        self._wanted = sessions
        self._keeps = keeps  # else there are words of sessions that this database does not know
        self._known: dict[int, Searched | None] = {}

    def beside(self) -> list[Beside]:
        """Sessions of which not everything is indexed, newest first."""
        where, values = self._within
        select = (
            f"SELECT number, searchable FROM sessions WHERE format IS NOT NULL AND {where}"
            " AND (NOT searchable OR size > indexed) ORDER BY number DESC"
        )
        rows = self._db.execute(select, values).fetchall()
        found = [(self._session(number), searchable) for number, searchable in rows]
        return [Beside(session, bool(searchable)) for session, searchable in found if session is not None]

    def _session(self, number: int) -> Searched | None:
        """The session with that number, if it is searched."""
        if number not in self._known:
            where, values = self._within
            columns = "path, id, size, indexed, format"
            select = f"SELECT {columns} FROM sessions WHERE number = :number AND format IS NOT NULL AND {where}"
            row = self._db.execute(select, values | {"number": number}).fetchone()
            searched = row is not None and (self._wanted is None or number in self._wanted)
            self._known[number] = Searched(os.fsdecode(row[0]), *row[1:]) if searched else None
        return self._known[number]

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Lines that may answer, the best of the newest first, then those of older ones, as far as somebody asks."""
        only, values = self._scope()
        select = (
            f"SELECT {_RANK}, -rowid FROM texts WHERE texts MATCH :match AND rowid < :before{only}"
            f" ORDER BY rowid DESC LIMIT {_RANKED}"
        )
        values = values | {"match": query.match(fields), "before": _END}
        while found := self._db.execute(select, values).fetchall():
            for rank, row in sorted(found):  # the newer of equals first
                session = self._session(-row >> OFFSET_BITS)
                raw = None if session is None else read_line(self._fs, session.path, -row & OFFSETS)
                if session is not None and raw is not None:
                    yield Candidate(rank, session, -row & OFFSETS, raw)
            values["before"] = -found[-1][1]

    def matches(self, query: Query) -> dict[str, int]:
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

    def titles(self, query: Query) -> list[str]:
        """Sessions whose title holds every word or a part of one; trigrams spare looking at most titles."""
        words = [fold(term.text.rstrip("*")) for term in query.terms]
        long = " AND ".join('"{}"'.format(word.replace('"', '""')) for word in words if len(word) >= _TRIGRAM)
        candidates = "number IN (SELECT rowid FROM titles WHERE titles MATCH ?)" if long else "?"
        select = f"SELECT number, title FROM sessions WHERE title IS NOT NULL AND (NOT searchable OR {candidates})"
        rows = self._db.execute(f"{select} ORDER BY mtime_ns DESC", (storable(long) or 1,)).fetchall()
        found = [self._session(number) for number, title in rows if all(word in fold(title) for word in words)]
        return [session.path for session in found if session is not None]
