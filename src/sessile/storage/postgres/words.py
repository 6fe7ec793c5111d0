"""Words of sessions in a database: how entries are indexed, and how the index is asked.

Rules: the words are those of `core.words`, the same that the catalog in a file has: a term is a row of words that follow each
other, all terms must be in one field of an entry, and the last word may be the beginning of one. A set of words proposes
passages, their words in order decide where a term has several.

Best first: a term counts more the more often it is there, less in a passage that is longer than others, and what was said counts
twice what was thought or called (BM25, without the rarity of words: all of them must be there). Of equals the newer is
first, and so are the thousand newest before all others, as in the catalog in a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.passages import INDEXED, Field, passages
from sessile.core.words import Query, Term, fold, words_of
from sessile.storage.base import Filesystem
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.listing import storable, within
from sessile.storage.searcher import Beside, Candidate, Searched, read_line

_RANKED = 1000  # matches that are ranked at once, newest first: the best of all is not worth the wait
_READ = 32  # lines that are read at once
_LONGEST = 200  # characters of a word that the set holds
_LARGEST = 1_000_000  # bytes of words in a set; PostgreSQL takes no more than a mebibyte
_WEIGHTS: Mapping[Field, float] = {"text": 1.0, "thinking": 0.5, "tool_input": 0.5}
_SATURATION, _LENGTHS = 1.2, 0.75  # of BM25
_END = 2**63 - 1

_SEARCHED = "c.path, c.id, c.size, c.indexed, c.format"
_LINES = """
    SELECT w.place, e.body FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bigint[])
        AS w (place, folder, base, start)
    JOIN name n ON n.folder = w.folder AND n.base = w.base JOIN entry e ON e.file = n.file AND e.start = w.start"""

Passage = tuple[int, int, int, int, str, str | None]
"""Session, offset, field, number of words, the words in order, and those of the set."""


def passages_of(number: int, offset: int, entry: Mapping[str, Any]) -> list[Passage]:
    """What is indexed of an entry, if it says something: one row for each field."""
    found: list[Passage] = []
    told = passages(entry)
    for place, field in enumerate(INDEXED):
        words = words_of(told.get(field, ""))
        if words:
            terms: str | None = " ".join({word[:_LONGEST] for word in words})
            if len(terms or "") > _LARGEST // 4 and len((terms or "").encode()) > _LARGEST:
                terms = None
            found.append((number, offset, place, len(words), f" {'  '.join(words)} ", terms))
    return found


class _Matched(NamedTuple):
    """A passage that has all terms, and how often it has each."""

    number: int
    offset: int
    field: int
    length: int
    session: Searched
    often: Sequence[int]


class PostgresWords:
    """The words of a catalog in a database, below some places or in some sessions only."""

    def __init__(
        self, fs: Filesystem, database: Database, places: Sequence[str], sessions: Collection[int] | None
    ) -> None:
        self._fs = fs
        self._database = database
        where, self._values = within(places, column="c.path")
        self._where = f"c.format IS NOT NULL AND {where}"
        if sessions is not None:
            self._where += " AND c.number = ANY(%(sessions)s::bigint[])"
            self._values["sessions"] = list(sessions)

    def beside(self) -> list[Beside]:
        """Sessions of which not everything is indexed, newest first."""
        rows = self._ask(
            f"SELECT c.searchable, {_SEARCHED} FROM catalog c WHERE {self._where}"
            " AND (NOT c.searchable OR c.size > c.indexed) ORDER BY c.number DESC"
        )
        return [Beside(_searched(row), searchable) for searchable, *row in rows]

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Lines that may answer, the best of the newest first, then those of older ones, as far as somebody asks."""
        matching, values = _matching(query.terms)
        often = ", ".join(
            f"(length(words) - length(replace(words, %(term{number})s::text, ''))) / length(%(term{number})s::text)"
            for number in range(len(query.terms))
        )
        values |= {"fields": [INDEXED.index(field) for field in fields], "number": _END, "start": _END}
        newest = (
            f"SELECT p.number, p.start, p.field, p.length, {_SEARCHED}, p.words"
            f" FROM passage p JOIN catalog c ON c.number = p.number WHERE {self._where} AND {matching}"
            " AND p.field = ANY(%(fields)s::bigint[]) AND (p.number, p.start) < (%(number)s::bigint, %(start)s::bigint)"
            f" ORDER BY p.number DESC, p.start DESC LIMIT {_RANKED}"
        )
        columns = "number, start, field, length, path, id, size, indexed, format"
        select = f"SELECT {columns}, {often} FROM ({newest}) newest ORDER BY number DESC, start DESC"
        while rows := self._ask(select, **values):
            found = [_Matched(row[0], row[1], row[2], row[3], _searched(row[4:9]), row[9:]) for row in rows]
            yield from self._read(_ranked(found))
            values |= {"number": found[-1].number, "start": found[-1].offset}

    def _read(self, ranked: Sequence[tuple[float, _Matched]]) -> Iterator[Candidate]:
        """The lines of passages, as their journals have them now."""
        for start in range(0, len(ranked), _READ):
            some = ranked[start : start + _READ]
            names = [matched.session.path.rpartition("/") for _, matched in some]
            places = [
                list(range(len(some))),
                [folder.encode("utf-8", "surrogateescape") for folder, _, _ in names],
                [base.encode("utf-8", "surrogateescape") for _, _, base in names],
                [matched.offset for _, matched in some],
            ]
            lines: dict[int, bytes] = dict(self._database.query(_LINES, places, again=True))
            for place, (rank, matched) in enumerate(some):
                # A file that is no journal, or a line in the middle of other bytes, is not found by its row.
                raw = lines.get(place) or read_line(self._fs, matched.session.path, matched.offset)
                if raw is not None:
                    yield Candidate(rank, matched.session, matched.offset, raw)

    def matches(self, query: Query) -> dict[str, int]:
        """How many indexed entries match, by field."""
        matching, values = _matching(query.terms)
        rows = self._ask(
            "SELECT p.field, count(*) FROM passage p JOIN catalog c ON c.number = p.number"
            f" WHERE {self._where} AND {matching} GROUP BY p.field",
            **values,
        )
        found = dict.fromkeys(INDEXED, 0) | {INDEXED[field]: count for field, count in rows}
        return {str(field): count for field, count in found.items()}

    def titles(self, query: Query) -> list[str]:
        """Sessions whose title holds every word or a part of one, newest first."""
        words = {f"word{number}": storable(fold(term.text.rstrip("*"))) for number, term in enumerate(query.terms)}
        holds = "".join(f" AND strpos(c.folded_title, %({name})s::text) > 0" for name in words)
        select = f"SELECT c.path FROM catalog c WHERE {self._where} AND c.title IS NOT NULL{holds}"
        rows = self._ask(f"{select} ORDER BY c.mtime_ns DESC", **words)
        return [path.decode("utf-8", "surrogateescape") for (path,) in rows]

    def _ask(self, select: str, **values: Any) -> list[tuple[Any, ...]]:
        # How many passages a word is in decides how they are best found: a plan for any word is none for this one.
        return self._database.query(select, self._values | values, again=True, prepare=False)


def _matching(terms: Sequence[Term]) -> tuple[str, dict[str, Any]]:
    """The condition that a passage has all terms."""
    asked: list[str] = []
    values: dict[str, Any] = {}
    phrases: list[str] = []
    for number, term in enumerate(terms):
        words, is_open = term.words()
        lexemes = [f"'{word[:_LONGEST]}'" for word in words]
        lexemes[-1] += ":*" if is_open else ""
        asked += lexemes
        values[f"term{number}"] = f" {'  '.join(words)}{'' if is_open else ' '}"
        if len(words) > 1 or len(words[0]) >= _LONGEST:
            phrases.append(f"strpos(p.words, %(term{number})s::text) > 0")
    values["asked"] = " & ".join(asked)
    every = " AND ".join(f"strpos(p.words, %(term{number})s::text) > 0" for number in range(len(terms)))
    quick = " AND ".join(["p.vector @@ %(asked)s::tsquery", *phrases])
    return f"(({quick}) OR (p.vector IS NULL AND {every}))", values


def _ranked(found: Sequence[_Matched]) -> list[tuple[float, _Matched]]:
    """Each entry once with its rank, which is the better the lower: the best first, the newer of equals first."""
    average = sum(matched.length for matched in found) / len(found)
    ranks: dict[tuple[int, int], float] = {}
    first: dict[tuple[int, int], _Matched] = {}
    for matched in found:
        place = (matched.number, matched.offset)
        length = _SATURATION * (1 - _LENGTHS + _LENGTHS * matched.length / average)
        score = sum(often * (_SATURATION + 1) / (often + length) for often in matched.often)
        ranks[place] = ranks.get(place, 0.0) - _WEIGHTS[INDEXED[matched.field]] * score
        first.setdefault(place, matched)
    order = sorted(ranks, key=lambda place: (ranks[place], -place[0], -place[1]))
    return [(ranks[place], first[place]) for place in order]


def _searched(row: Sequence[Any]) -> Searched:
    path, *rest = row
    return Searched(path.decode("utf-8", "surrogateescape"), *rest)
