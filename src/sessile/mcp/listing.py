"""`list_sessions`: which sessions there are, the newest first, in pages.

Rules: words are looked for in what is told of a session, not in what is hidden of it: whoever asks for the beginning of a key
does not learn that there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sessile import HIDE, Filter, Library
from sessile.core.words import fold
from sessile.mcp.cursors import cursor_of, place_of
from sessile.mcp.desk import Call, Desk, catalogued
from sessile.mcp.scope import Scope
from sessile.mcp.shapes import NOTICE, ListAnswer, ListSessions
from sessile.mcp.veil import Veil
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile import SessionRow

_REASONS: dict[str, tuple[str, ...]] = {
    "unreadable": ("unreadable file",),
    "empty": ("empty session",),
    "sub_agent": ("sub-agent",),
    "imported": ("original of which there is a copy", "originals of which there are copies"),
}


class _Page(msgspec.Struct, frozen=True):
    """Where a page begins."""

    offset: int


def list_sessions(desk: Desk, call: Call, asked: ListSessions) -> ListAnswer:
    """The sessions that a call asks for."""
    place = place_of(asked, _Page)
    offset = 0 if place is None else max(0, place.offset)
    veil = desk.veils.plain()
    with desk.shelf.asked() as library:
        wanted = desk.chosen(library, asked)._replace(hide=() if asked.everything else HIDE)
        rows, total, hidden = _listed(library, wanted, asked, offset, veil, call)
        cards = tuple(desk.card(library, row, veil) for row in rows)
        notices = [veil.line(notice) or "" for notice in library.notices]
    if notices and desk.scope != Scope():  # they may be about what this server does not show
        notices = ["not all files could be read; `sessile ls` says why"]
    end = offset + len(cards)
    left_out = [f"not listed: {many(number, *_REASONS[reason])}; say everything" for reason, number in hidden.items()]
    if end < total:
        left_out.append(f"{many(total - end, 'more session')}; call again with the cursor")
    if desk.shelf.pending:  # of all that there are: their number is nobody's business
        left_out.append("sessions are still being read: titles and numbers may be missing")
    return ListAnswer(
        notice=NOTICE,
        scope=desk.scope.words(),
        sessions=cards,
        total=total,
        hidden=hidden,
        left_out=(*left_out, *notices),
        next=cursor_of(_Page(end), asked) if end < total and cards else None,
    )


def _listed(
    library: Library, wanted: Filter, asked: ListSessions, offset: int, veil: Veil, call: Call
) -> tuple[list[SessionRow], int, dict[str, int]]:
    words = (asked.words or "").split()
    if not words:
        page = library.list(wanted._replace(limit=asked.limit, offset=offset))
        return page.rows, page.total, page.hidden
    # How many are hidden is told of no words: it would say what stands in texts that nobody may see.
    rows = [row for row in library.list(wanted._replace(words=words)).rows if _says(row, words, veil, call)]
    return rows[offset : offset + asked.limit], len(rows), {}


def _says(row: SessionRow, words: list[str], veil: Veil, call: Call) -> bool:
    call.is_late()  # raises if nobody waits any more
    told = fold(f"{veil.line(catalogued(row.title)) or ''}\n{veil.line(catalogued(row.first_text)) or ''}")
    return all(fold(word) in told for word in words)
