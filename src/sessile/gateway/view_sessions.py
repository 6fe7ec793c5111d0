"""Operations that look at all sessions: the list with its facets, and the overview.

Rules: only what the catalog knows is told, and how much it does not know yet; nothing is opened for it. What a list hides is
counted by the reason.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Meta

from sessile import HIDE, Filter, expiring
from sessile.gateway.problems import tellable
from sessile.gateway.view_cards import NameText, SessionCard, cards, chosen, several
from sessile.gateway.view_stats import days_since, used_since
from sessile.gateway.wire import Taken, Told
from sessile.render import usage_charts
from sessile.render.wording import many

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile import Library
    from sessile.gateway.service import Gateway
    from sessile.render.charts import Chart

_RECENT = 5  # sessions that somebody may want to go on with
_SOON = 7  # days that a warning looks ahead
_ACTIVITY, _COSTS = "26w", "30d"  # how far back the charts of the overview go


# -- the list


class SessionsQuery(Taken, frozen=True):
    """Which sessions are listed: words of title or first prompt, and what they have in common."""

    q: Annotated[str, Meta(max_length=1_000)] = ""
    agent: NameText | None = None
    project: NameText | None = None
    model: NameText | None = None
    has: tuple[Annotated[str, Meta(max_length=100)], ...] = ()
    since: NameText | None = None
    sort: Literal["recent", "started", "cost", "tokens", "messages", "size"] = "recent"
    all: bool = False
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FacetCounts(Told, frozen=True):
    """How many sessions each choice would leave, the most first."""

    agent: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


class SessionList(Told, frozen=True):
    """A page of sessions, how many there are in all, how many are hidden, and how many nobody could judge yet."""

    total: int
    hidden: dict[str, int]
    unjudged: int
    rows: tuple[SessionCard, ...]
    facets: FacetCounts


async def view_sessions(gateway: Gateway, query: SessionsQuery) -> SessionList:
    """List the sessions of all agents."""
    return await gateway.call(_sessions, gateway, query)


def _sessions(gateway: Gateway, query: SessionsQuery) -> SessionList:
    with gateway.shelf.asked() as library:
        wanted = chosen(gateway, library, agent=query.agent, project=query.project, since=query.since)._replace(
            words=query.q.split(),
            model=query.model,
            has=several(query.has),
            sort=query.sort,
            hide=() if query.all else HIDE,
        )
        listing = library.list(wanted._replace(limit=query.limit, offset=query.offset))
        facets = library.facets(wanted)
        return SessionList(
            total=listing.total,
            hidden=listing.hidden,
            unjudged=listing.unjudged,
            rows=cards(library, listing.rows, gateway.tags),
            facets=FacetCounts(agent=facets.below, project=facets.project, model=facets.model, has=facets.has),
        )


# -- the overview


class Warned(Told, frozen=True):
    """Something that a person should know, and the page that shows it."""

    kind: Literal["damaged", "unreadable", "expiring", "store", "pending", "notice"]
    text: str
    href: str | None = None


class SourceTold(Told, frozen=True):
    """A folder with sessions; `newest` is when one of them was changed last."""

    agent: str
    path: str
    sessions: int
    newest: int | None


class TableTold(Told, frozen=True):
    """What a chart shows, in numbers."""

    columns: list[str]
    rows: list[list[Any]]


class SvgTable(Told, frozen=True):
    """A chart, and its table."""

    svg: str
    table: TableTold


class Overview(Told, frozen=True):
    """The first page: where to go on, what to know, and what was done."""

    recent: tuple[SessionCard, ...]
    warnings: tuple[Warned, ...]
    sources: tuple[SourceTold, ...]
    heatmap: SvgTable
    costs: SvgTable


async def view_overview(gateway: Gateway) -> Overview:
    """What there is, at a glance."""
    return await gateway.call(_overview, gateway)


def _overview(gateway: Gateway) -> Overview:
    with gateway.shelf.asked() as library:
        recent = cards(library, library.list(Filter(limit=_RECENT)).rows, gateway.tags)
        warnings = tuple(_warnings(gateway, library))
        sources = tuple(_sources(library))
        lately, longer = (library.usage(used_since(gateway, library, since)) for since in (_COSTS, _ACTIVITY))
    return Overview(
        recent=recent,
        warnings=warnings,
        sources=sources,
        heatmap=_drawn(usage_charts.activity(longer, gateway.zone, *days_since(gateway, _ACTIVITY))),
        costs=_drawn(usage_charts.costs(lately, gateway.zone, *days_since(gateway, _COSTS))),
    )


def _drawn(chart: Chart) -> SvgTable:
    return SvgTable(svg=chart.svg, table=TableTold(columns=chart.columns, rows=chart.rows))


def _sources(library: Library) -> Iterator[SourceTold]:
    for source in library.sources:
        listing = library.list(Filter(below=[source.sessions], limit=1))
        newest = listing.rows[0].modified // 1_000_000 if listing.rows else None
        yield SourceTold(agent=source.agent, path=source.sessions, sessions=listing.total, newest=newest)


def _warnings(gateway: Gateway, library: Library) -> Iterator[Warned]:
    for broken in gateway.conversations.problems():
        yield Warned(kind="store", text=f"conversations: {tellable(broken.message, broken.path)}", href="/gateway")
    listing = library.list(Filter(has=("finding",), limit=0))
    if listing.total:
        told = many(listing.total, "session has lines that", "sessions have lines that")
        yield Warned(kind="damaged", text=f"{told} could not be read", href="/sessions?has=finding")
    unreadable = library.list(Filter(limit=0)).hidden.get("unreadable", 0)
    if unreadable:
        told = many(unreadable, "file is no session that", "files are no sessions that")
        yield Warned(kind="unreadable", text=f"{told} can be read", href="/sessions?all=true")
    yield from _expiring(gateway, library)
    if gateway.shelf.pending:
        told = many(gateway.shelf.pending, "session is", "sessions are")
        yield Warned(kind="pending", text=f"{told} not indexed yet: numbers and search go on growing")
    for notice in library.notices:
        yield Warned(kind="notice", text=notice)


def _expiring(gateway: Gateway, library: Library) -> Iterator[Warned]:
    """What other agents are about to delete, and of which of them nobody can tell that."""
    for outlook in expiring(library, now=gateway.store.now(), within_days=_SOON, follow=os.path.realpath):
        agent, count = outlook.source.agent, len(outlook.sessions)
        href = f"/sessions?agent={quote(agent)}"
        if outlook.problem is not None:
            told = f"it is unknown when {agent} deletes sessions, because of its {outlook.problem}"
            yield Warned(kind="expiring", text=f"{told}; sessile keep --all keeps them", href=href)
        elif count:
            told = many(count, f"session of {agent} expires", f"sessions of {agent} expire")
            kept = "it" if count == 1 else "them"
            yield Warned(kind="expiring", text=f"{told} within {_SOON} days; sessile keep keeps {kept}", href=href)
