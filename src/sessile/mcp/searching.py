"""`search_sessions`: entries that hold words, the best first, by session, in pages.

Rules: the index proposes, and every proposal is read again as it would be told: a word that stands only in a hidden secret is
no hit, and is counted nowhere. An excerpt is cut from a text that was redacted as a whole. What tools printed is in no index:
it is read if a call names it, as far as the time reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sessile import Entry, Filter, Library, WordNeedle
from sessile.core.passages import INDEXED, Excerpt, Field, excerpt, passages
from sessile.core.words import Query, fold
from sessile.errors import InvalidQuery, SessileError
from sessile.gateway.handles import Handles
from sessile.mcp.cursors import cursor_of, place_of
from sessile.mcp.desk import Call, Desk, catalogued
from sessile.mcp.shapes import NOTICE, FoundEntry, FoundSession, SearchAnswer, SearchSessions
from sessile.mcp.veil import LARGEST, Veil
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile import Results, Session, SessionRow

_WIDTH = 400  # characters of an excerpt
_MOST = 1_000  # hits that are looked at; who needs more asks for something else
_OPEN = 16  # sessions that are open at once
_TITLES = 10  # sessions that are named for their titles alone


class _Page(msgspec.Struct, frozen=True):
    """Where a page begins."""

    offset: int


class _Proposed(NamedTuple):
    """Where words may be."""

    path: str
    entry_id: str | None
    field: Field
    raw: str  # the excerpt as it is stored, which is told to nobody


class _Hit(NamedTuple):
    """Words that are there for everybody to see."""

    path: str
    entry_id: str | None
    field: Field
    excerpt: Excerpt


def search_sessions(desk: Desk, call: Call, asked: SearchSessions) -> SearchAnswer:
    """The entries that a call asks for."""
    if not Query(asked.query).terms:
        raise InvalidQuery("there is no word in the query", hint="words of letters or digits can be found")
    place = place_of(asked, _Page)
    offset = 0 if place is None else max(0, place.offset)
    searching = _Searching(desk, call, asked)
    try:
        hits = searching.hits(offset + asked.limit + 1)
    finally:
        searching.close()
    page, more = hits[offset : offset + asked.limit], len(hits) > offset + asked.limit
    end = offset + len(page)
    return SearchAnswer(
        notice=NOTICE,
        scope=desk.scope.words(),
        sessions=tuple(searching.told(page, titles=offset == 0)),
        left_out=tuple(searching.left_out(more)),
        next=cursor_of(_Page(end), asked) if more and end < _MOST else None,
    )


class _Searching:
    """One search, and what it did not look at."""

    def __init__(self, desk: Desk, call: Call, asked: SearchSessions) -> None:
        self._desk = desk
        self._call = call
        self._asked = asked
        self._query = Query(asked.query)
        self._rows: dict[str, SessionRow] = {}
        self._titles: list[str] = []
        self._pending = 0
        self._notes: list[str] = []
        self._handles: Handles[Session] = Handles(lambda path: desk.store.open(path, readonly=True), _OPEN)
        self._veils: dict[str, Veil] = {}  # by path: a session is read for its secrets once

    def close(self) -> None:
        """Let go of the sessions."""
        self._handles.close()

    def hits(self, most: int) -> list[_Hit]:
        """So many hits, or all that there are."""
        found: dict[tuple[str, str | None, Field], _Hit | None] = {}
        wanted = 2 * most
        while True:
            proposed = self._proposed(min(wanted, _MOST))
            for each in proposed:
                if each[:3] not in found:
                    found[each[:3]] = None if self._is_late() else self._seen(each)
            hits = [hit for each in proposed if (hit := found[each[:3]]) is not None]
            if len(hits) >= most or len(proposed) < wanted or wanted >= _MOST or self._call.is_late():
                break
            wanted *= 2
        if "tool_result" in self._asked.where and len(hits) < most:
            hits += self._printed(most - len(hits))
        return hits[:most]

    def _is_late(self) -> bool:
        late = self._call.is_late()
        if late and (told := "the time was too short to read all hits") not in self._notes:
            self._notes.append(told)
        return late

    def _proposed(self, most: int) -> list[_Proposed]:
        """What the index has, best first."""
        fields = [field for field in self._asked.where if field in INDEXED]
        with self._desk.shelf.asked() as library:
            wanted = self._desk.chosen(library, self._asked)
            everything = wanted == Filter(hide=())  # then the index need not be told which sessions are meant
            results = library.search(
                self._asked.query, None if everything else wanted, fields=fields, limit=most, count=False
            )
            self._titles, self._pending = results.titles, results.pending
            self._know(library, wanted, results)
        notes = [f"{part[:40]!r} is no word and was not looked for" for part in results.ignored]
        self._notes += [note for note in notes if note not in self._notes]
        return [
            _Proposed(hit.path, hit.entry_id, hit.field, hit.excerpt.text)
            for hit in results.hits
            if hit.path in self._rows
        ]

    def _know(self, library: Library, wanted: Filter, results: Results) -> None:
        """Take down the rows of what was found; what is not among those of the scope is not told of."""
        ids = {hit.session_id for hit in results.hits}
        rows = library.list(wanted._replace(pinned=tuple(ids))).rows if ids else []
        if results.titles:
            words = [term.text.rstrip("*") for term in self._query.terms]
            rows += library.list(wanted._replace(words=words)).rows
        self._rows |= {row.path: row for row in rows}

    # -- what everybody may see

    def _seen(self, proposed: _Proposed) -> _Hit | None:
        """A hit, if its words are still there when secrets are hidden."""
        try:
            with self._handles.opened(proposed.path) as session:
                entry = _entry(session, proposed)
                if entry is None or len(entry.raw) > LARGEST:
                    return None
                veil = self._veils.get(proposed.path) or self._desk.veils.over(session)
                self._veils[proposed.path] = veil
                text = veil.text(passages(veil.value(entry.body)).get(proposed.field, ""))
        except SessileError:
            return None  # it was there a moment ago
        spans = self._query.find(text)
        if not spans:
            return None
        return _Hit(proposed.path, entry.id, proposed.field, excerpt(text, spans, _WIDTH))

    def _printed(self, most: int) -> list[_Hit]:
        """Hits in what tools printed, newest sessions first."""
        with self._desk.shelf.asked() as library:
            wanted = self._desk.chosen(library, self._asked)
            rows = library.list(wanted).rows
        self._rows |= {row.path: row for row in rows}
        needle, notices = WordNeedle(self._query), list[str]()
        scanned = library.scan_rows(
            rows, needle, fields=("tool_result",), notices=notices, deadline=self._call.deadline
        )
        hits: list[_Hit] = []
        for row, match in scanned:
            if len(hits) >= most or self._is_late():
                break
            hit = self._seen(_Proposed(row.path, match.entry_id, match.field, match.excerpt.text))
            hits += [] if hit is None else [hit]
        if notices:  # which name files, and what may stand in their names
            self._notes.append("not all sessions could be read to the end in that time")
        return hits

    # -- telling

    def told(self, hits: Sequence[_Hit], *, titles: bool) -> Iterator[FoundSession]:
        """The hits by session, the session with the best one first; then those that only have a title with the words."""
        desk, veil = self._desk, self._desk.veils.plain()
        named = [path for path in self._titles if self._is_titled(path)][:_TITLES] if titles else []
        paths = dict.fromkeys([*(hit.path for hit in hits), *named])
        with desk.shelf.asked() as library:
            cards = {path: desk.card(library, self._rows[path], self._veils.get(path, veil)) for path in paths}
        for path, card in cards.items():
            row = self._rows[path]
            yield FoundSession(
                session=card,
                hits=tuple(
                    FoundEntry(
                        entry=veil.line(hit.entry_id, 1_000),
                        field=hit.field,
                        text=hit.excerpt.text,
                        marks=hit.excerpt.marks,
                        link=desk.links.to(veil, row, hit.entry_id),
                    )
                    for hit in hits
                    if hit.path == path
                ),
            )

    def _is_titled(self, path: str) -> bool:
        """Whether the title has the words in what everybody may see of it."""
        row = self._rows.get(path)
        title = None if row is None else self._desk.veils.plain().line(catalogued(row.title))
        words = [fold(term.text.rstrip("*")) for term in self._query.terms]
        return title is not None and all(word in fold(title) for word in words)

    def left_out(self, more: bool) -> Iterator[str]:
        """What is not in the answer."""
        if more:
            yield "more hits; call again with the cursor"
        if "tool_result" not in self._asked.where:
            yield "what tools printed was not searched; name tool_result in `in`"
        if self._pending:
            yield f"{many(self._pending, 'session is', 'sessions are')} not indexed yet; call again in a moment"
        if self._desk.veils.hide:
            yield "secrets are hidden, and no words are looked for in them"
        yield from self._notes


def _entry(session: Session, proposed: _Proposed) -> Entry | None:
    """The entry in which words were found; those of very old files have no ids to be found by."""
    if proposed.entry_id is not None:
        return session.get_entry(proposed.entry_id)
    lines = session.iter_lines()
    return next((entry for entry in lines if proposed.raw in passages(entry).get(proposed.field, "")), None)
