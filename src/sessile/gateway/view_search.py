"""Searching all sessions for the page: hits by session, the best first, each with its entry and its branch.

Rules: words are found by the index; what tools printed is not in it, and is read only if somebody asks for it, as far as the
time reaches. What was not searched is said: fields that have matches, sessions that are not indexed yet, time that was too short.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from sessile import Filter, WordNeedle
from sessile.core.passages import FIELDS, INDEXED, Excerpt, Field, marked
from sessile.core.words import Query
from sessile.errors import InvalidQuery, SessileError
from sessile.gateway.view_cards import NameText, SessionCard, cards, chosen, several
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessile import Hit, Library, Results, SessionRow
    from sessile.gateway.service import Gateway

_SCANNING = 2.0  # seconds for reading what tools printed
_COUNTING = 0.3  # seconds for counting it where nobody asked
_TITLES = 20  # sessions that are named for their titles


class SearchQuery(Taken, frozen=True):
    """Words, all of which an entry must hold; "…" is a phrase, and a trailing * any ending."""

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    where: tuple[Annotated[str, Meta(max_length=100)], ...] = msgspec.field(name="in", default=())
    agent: NameText | None = None
    project: NameText | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class Piece(Told, frozen=True):
    """A part of an excerpt."""

    text: str
    match: bool


class HitTold(Told, frozen=True):
    """An entry with the words; number and branch are `None` where it cannot be found in its session any more."""

    number: int | None
    entry: str | None
    field: Field
    excerpt: tuple[Piece, ...]
    branch: Literal["active", "abandoned"] | None


class Group(Told, frozen=True):
    """A session with its hits."""

    session: SessionCard
    hits: tuple[HitTold, ...]


class SearchedAll(Told, frozen=True):
    """The best hits; matches by field, asked for or not; how many sessions wait for the index; what else to know."""

    groups: tuple[Group, ...]
    matches: dict[str, int]
    pending: int
    titles: tuple[SessionCard, ...]
    notes: tuple[str, ...]


class _Found(msgspec.Struct):
    """What a search has found so far."""

    hits: list[tuple[str, str | None, Field, Excerpt]]  # path, entry, field, excerpt
    matches: dict[str, int]
    notes: list[str]


async def view_search(gateway: Gateway, query: SearchQuery) -> SearchedAll:
    """Find words in the sessions of all agents."""
    return await gateway.call(_search, gateway, query, _fields(query.where))


def _fields(where: Sequence[str]) -> tuple[Field, ...]:
    names = several(where)
    unknown = [name for name in names if name not in (*FIELDS, "all")]
    if unknown:
        raise InvalidQuery(f"there is no field {unknown[0][:40]!r}", hint=f"there are {', '.join(FIELDS)}, all")
    return INDEXED if not names else FIELDS if "all" in names else tuple(field for field in FIELDS if field in names)


def _search(gateway: Gateway, query: SearchQuery, fields: Sequence[Field]) -> SearchedAll:
    with gateway.shelf.asked() as library:
        wanted = chosen(gateway, library, agent=query.agent, project=query.project)._replace(hide=())
        indexed = [field for field in fields if field in INDEXED]
        narrowed = None if wanted == Filter(hide=()) else wanted  # the index need not be told that all are meant
        results = library.search(query.q, narrowed, fields=indexed, limit=query.limit)
        found = _found(results)
        rows = library.list(wanted).rows if "tool_result" in fields else []
        if "tool_result" not in fields and Query(query.q).terms:
            _count_results(library, query.q, wanted, found)
    _scan_results(library, rows, query, found)
    with gateway.shelf.asked() as library:
        known = _rows(library, {*(hit.session_id for hit in results.hits)}, found, results.titles, query.q)
        told = dict(zip(known, cards(library, known.values(), gateway.tags), strict=True))
    return SearchedAll(
        groups=tuple(_groups(gateway, found, told)),
        matches=found.matches,
        pending=results.pending,
        titles=tuple(told[path] for path in results.titles[:_TITLES] if path in told),
        notes=tuple(found.notes),
    )


def _found(results: Results) -> _Found:
    notes = [f"{part!r} is no word, and was not looked for" for part in results.ignored]
    return _Found([_hit(hit) for hit in results.hits], dict(results.matches), notes)


def _hit(hit: Hit) -> tuple[str, str | None, Field, Excerpt]:
    return hit.path, hit.entry_id, hit.field, hit.excerpt


# -- what tools printed


def _count_results(library: Library, text: str, wanted: Filter, found: _Found) -> None:
    count, uncounted = library.count_results(text, wanted, deadline=time.monotonic() + _COUNTING)
    found.matches["tool_result"] = count
    if uncounted:
        found.notes.append("what tools printed was not counted to the end: there may be more matches in it")


def _scan_results(library: Library, rows: Sequence[SessionRow], query: SearchQuery, found: _Found) -> None:
    if not rows or not Query(query.q).terms:
        return
    needle, deadline = WordNeedle(Query(query.q)), time.monotonic() + _SCANNING
    count = 0
    for row, match in library.scan_rows(rows, needle, fields=("tool_result",), notices=found.notes, deadline=deadline):
        count += 1
        if len(found.hits) < query.limit:
            found.hits.append((row.path, match.entry_id, match.field, match.excerpt))
    found.matches["tool_result"] = count


# -- by session


def _rows(library: Library, ids: set[str], found: _Found, titles: Sequence[str], text: str) -> dict[str, SessionRow]:
    """The rows of sessions with hits, and of those whose titles have the words, by path."""
    paths = {*(path for path, *_ in found.hits), *titles[:_TITLES]}
    rows = library.list(Filter(pinned=tuple(ids), hide=())).rows if ids else []
    if not paths <= {row.path for row in rows}:
        words = [term.text.rstrip("*") for term in Query(text).terms]
        rows += library.list(Filter(words=words, hide=())).rows if titles else []
    if not paths <= {row.path for row in rows}:
        rows = library.list(Filter(hide=())).rows  # those in which only a tool printed it
    return {row.path: row for row in rows if row.path in paths}


def _groups(gateway: Gateway, found: _Found, told: dict[str, SessionCard]) -> Iterator[Group]:
    """The hits of each session, the session with the best one first."""
    for path in dict.fromkeys(path for path, *_ in found.hits):
        if path in told:
            hits = [hit[1:] for hit in found.hits if hit[0] == path]
            places = _places(gateway, path, [entry for entry, *_ in hits])
            yield Group(
                session=told[path],
                hits=tuple(
                    HitTold(
                        number=number,
                        entry=entry,
                        field=field,
                        excerpt=tuple(Piece(text=text, match=is_match) for text, is_match in marked(part)),
                        branch=None if number is None else "active" if is_active else "abandoned",
                    )
                    for (entry, field, part), (number, is_active) in zip(hits, places, strict=True)
                ),
            )


def _places(gateway: Gateway, path: str, entries: Sequence[str | None]) -> list[tuple[int | None, bool]]:
    """Where entries are in their session, and whether the leaf's branch has them."""
    try:
        with gateway.views.opened(path) as view:
            active = frozenset() if view.leaf is None else frozenset(view.tree.path(view.leaf))
            numbers = [None if entry is None else view.tree.number(entry) for entry in entries]
    except SessileError:
        return [(None, False)] * len(entries)  # it was there a moment ago; the excerpts are still right
    return [(number, number in active) for number in numbers]
