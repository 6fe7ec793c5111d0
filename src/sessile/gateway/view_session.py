"""Operations that show a whole session at a glance: what it is, and one line for each of its entries.

Rules: the first answer reads the index of a session and no entry, however large it is; lines come so many at a time. Entries are
named by number, as `viewing` has it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sessile.core.kinds import DEFAULT_ROLE
from sessile.core.text import parse_timestamp
from sessile.core.visible import visible, visible_line
from sessile.gateway.view_entries import near_entries
from sessile.gateway.viewing import NameText, NumberText
from sessile.gateway.wire import Taken, Told
from sessile.render.fragments import moment_of
from sessile.render.page_chunk import UNSEEN, OutlineRow, outline_rows
from sessile.render.page_tree import anchor_at, number_at
from sessile.render.wording import many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessile.gateway.service import Gateway
    from sessile.gateway.viewing import View

MOST_ROWS = 5_000  # of an outline in one answer
_MOST_NOTES = 20


# -- what a session is


class ViewQuery(Taken, frozen=True):
    """Which session; `at` is the anchor of an entry in it whose number is asked for."""

    id: NameText
    at: Annotated[str, Meta(max_length=1_000)] | None = None


class ViewGap(Told, frozen=True):
    """Something that could not be read, behind the entry with that number; -1 is before the first."""

    after: int
    text: str


class ViewedSession(Told, frozen=True):
    """A session without its entries. `path` are the entries up to the leaf, or to the last entry if there is no leaf.

    `window` is how many tokens its model can read, `None` if nobody knows; `live` says whether its events can be followed.
    """

    id: str
    agent: str
    title: str | None
    cwd: str
    created: int | None
    modified: int
    total: int
    leaf: int | None
    heads: list[int]
    labels: dict[int, str]
    gaps: list[ViewGap]
    facts: list[tuple[str, str]]
    notes: list[str]
    writable: bool
    live: bool
    path: list[int]
    model: str | None
    window: int | None
    at: int | None


async def session(gateway: Gateway, query: ViewQuery) -> ViewedSession:
    """What a session is, and how it branches."""
    return await gateway.call(_session, gateway, query)


def _session(gateway: Gateway, query: ViewQuery) -> ViewedSession:
    with gateway.views.opened(query.id) as view:
        found, tree = view.session, view.tree
        tip = view.leaf
        if tip is None:
            tip = next((number for number in reversed(range(len(view.rows))) if not view.is_marker(number)), None)
        model = None if tip is None else found.get_state(view.rows[tip].id).models.get(DEFAULT_ROLE)
        return ViewedSession(
            id=found.id,
            agent=view.agent,
            title=None if found.title is None else visible_line(found.title),
            cwd=visible_line(found.cwd),
            created=parse_timestamp(found.header.get("timestamp")),
            modified=view.mark.modified // 1_000_000,
            total=len(view.rows),
            leaf=view.leaf,
            heads=view.heads,
            labels=_labels(view),
            gaps=[ViewGap(after=after, text=visible(text)) for after, texts in view.gaps.items() for text in texts],
            facts=list(_facts(view)),
            notes=list(_notes(view)),
            writable=view.is_own,
            live=view.is_own,
            path=[] if tip is None else tree.path(tip),
            model=model,
            window=None if model is None else gateway.models.window(model),
            at=None if query.at is None else number_at(tree, query.at),
        )


def _labels(view: View) -> dict[int, str]:
    return {number: visible(text) for number, text in view.labels.items()}


def _facts(view: View) -> Iterator[tuple[str, str]]:
    found = view.session
    yield "id", visible_line(found.id)
    yield "agent", visible_line(view.agent)
    yield "project", visible_line(found.cwd) or "unknown"
    begun = moment_of(parse_timestamp(found.header.get("timestamp")))
    yield "begun", f"{begun:%Y-%m-%d %H:%M} UTC" if begun else "unknown"
    yield "entries", f"{found.count_entries():,}"
    heads = len(view.heads)
    if heads > 1:
        yield "branches", f"{heads:,}"
    if view.labels:
        yield "labels", f"{len(view.labels):,}"
    yield "file", visible_line(view.path)


def _notes(view: View) -> Iterator[str]:
    """What is not as it should be, and has no place of its own."""
    gaps = sum(map(len, view.gaps.values()))
    if gaps:
        yield f"{many(gaps, 'place')} of the file could not be read"
    unplaced = [visible_line(finding.detail) for finding in view.session.findings if finding.offset < 0]
    yield from islice(unplaced, _MOST_NOTES)
    if len(unplaced) > _MOST_NOTES:
        yield f"and {len(unplaced) - _MOST_NOTES:,} more like these"


# -- one line for each entry


class OutlineQuery(Taken, frozen=True, rename={"from_": "from"}):
    """Which session, and from which entry up to which, which is not among them; 5,000 at most."""

    id: NameText
    from_: NumberText = 0
    to: NumberText = MOST_ROWS


class ViewedOutline(Told, frozen=True, rename={"from_": "from"}):
    """Columns with one item for each entry from `from` up to `to`, in file order.

    `marks` are numbers: who in bits 0 to 2 (user, assistant, system, tool, shell, summary, setting, note), the least depth at
    which it is shown in bits 3 and 4 (prompts, chat, tools, all), whether it failed in bit 5; bit 6 is a row that nobody sees.
    `parents` are -1 for what hangs from nothing. `tokens` is how large the context was after an answer, by the word of the
    provider. `labels` and `leaf` are of the whole session.
    """

    from_: int
    to: int
    total: int
    anchors: list[str]
    parents: list[int]
    marks: list[int]
    lines: list[str]
    tokens: list[int | None]
    labels: dict[int, str]
    leaf: int | None


async def outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    """One line for each of some entries."""
    return await gateway.call(_outline, gateway, query)


def _outline(gateway: Gateway, query: OutlineQuery) -> ViewedOutline:
    with gateway.views.opened(query.id) as view:
        total = len(view.rows)
        first = min(query.from_, total)
        numbers = range(first, max(first, min(query.to, total, first + MOST_ROWS)))
        rows = _rows(view, numbers)
        return ViewedOutline(
            from_=numbers.start,
            to=numbers.stop,
            total=total,
            anchors=[anchor_at(view.tree, number) for number in numbers],
            parents=[view.tree.parents[number] for number in numbers],
            marks=[row.mark for row in rows],
            lines=[row.line for row in rows],
            tokens=[row.tokens for row in rows],
            labels=_labels(view),
            leaf=view.leaf,
        )


def _rows(view: View, numbers: Sequence[int]) -> list[OutlineRow]:
    """What is told of entries; what was made once is kept with the session."""
    missing = frozenset(number for number in numbers if number not in view.lines and not view.is_marker(number))
    view.lines.update(outline_rows(near_entries(view, missing, behind=False), missing))
    return [view.lines.get(number, UNSEEN) for number in numbers]
