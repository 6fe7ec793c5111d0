"""Statistics for the page: charts of what all sessions used, drawn here, each with its table.

Rules: what nobody priced, dated or counted yet is said in the notes, and not counted as nothing.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal

from sessile.core import statistics
from sessile.core.spending import UNDATED
from sessile.gateway.view_cards import NameText, chosen, moment
from sessile.gateway.wire import Taken, Told
from sessile.render import usage_charts
from sessile.render.wording import many

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile import Filter, Library
    from sessile.core.statistics import Table, Usage
    from sessile.gateway.service import Gateway

_MOST_DAYS = 366  # that fit side by side; beyond, weeks are shown
_MOST_WEEKS = 520


class StatsQuery(Taken, frozen=True):
    """Since when, and whether by day or by week."""

    since: NameText = "30d"
    by: Literal["day", "week"] = "day"
    agent: NameText | None = None
    project: NameText | None = None


class ChartTold(Told, frozen=True):
    """A chart: SVG without script, and the table of what it shows."""

    name: str
    title: str
    svg: str
    columns: list[str]
    rows: list[list[Any]]


class Statistics(Told, frozen=True):
    """What was used since a moment; `notes` say what is not in the charts."""

    since: int
    by: Literal["day", "week"]
    charts: tuple[ChartTold, ...]
    notes: tuple[str, ...]


async def view_stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    """Tokens, money and tools of all sessions, as charts."""
    return await gateway.call(_stats, gateway, query)


def _stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    with gateway.shelf.asked() as library:
        usage = library.usage(used_since(gateway, library, query.since, agent=query.agent, project=query.project))
    first, last = days_since(gateway, query.since)
    weeks = query.by == "week" or (last - first).days > _MOST_DAYS
    if (last - first).days > _MOST_WEEKS * 7:
        first = _earliest(gateway, usage, last)
    zone = gateway.zone
    charts = (
        usage_charts.costs(usage, zone, first, last, weeks=weeks),
        usage_charts.tokens(usage, zone, first, last, weeks=weeks),
        usage_charts.cache_hits(usage, zone, first, last, weeks=weeks),
        usage_charts.tools(usage),
        usage_charts.models(usage),
        usage_charts.projects(usage),
        usage_charts.sessions(usage),
    )
    return Statistics(
        since=moment(gateway, query.since),
        by="week" if weeks else "day",
        charts=tuple(ChartTold(**chart._asdict()) for chart in charts),
        notes=tuple(_notes(usage, statistics.daily(usage, zone), weeks=weeks and query.by == "day")),
    )


def used_since(
    gateway: Gateway, library: Library, since: str, *, agent: str | None = None, project: str | None = None
) -> Filter:
    """The filter for what was used since then."""
    # What a sub-agent costs is paid, too; what was imported is not paid twice.
    return chosen(gateway, library, agent=agent, project=project, since=since)._replace(hide=("imported",))


def days_since(gateway: Gateway, since: str) -> tuple[date, date]:
    """The first day and today, in the zone of the gateway."""
    first, last = (
        datetime.fromtimestamp(at / 1000, gateway.zone).date() for at in (moment(gateway, since), gateway.store.now())
    )
    return min(first, last), last


def _earliest(gateway: Gateway, usage: Usage, last: date) -> date:
    """The first day on which anything was used: an axis need not begin before it."""
    days = [row.name for row in statistics.daily(usage, gateway.zone).rows if row.name != UNDATED]
    return min((date.fromisoformat(day) for day in days), default=last)


def _notes(usage: Usage, table: Table, *, weeks: bool) -> Iterator[str]:
    if weeks:
        yield "by week, since there are more days than fit side by side"
    if usage.uncounted:
        yield f"{many(usage.uncounted, 'session is', 'sessions are')} not counted yet, and left out"
    for reason, count in usage.hidden.items():
        yield f"{many(count, 'session')} left out: {reason.replace('_', ' ')}"
    total = table.total
    if total.unpriced:
        told = f"{total.unpriced:,} of {many(total.answers or 0, 'answer')}"
        yield f"{told} {'has' if total.unpriced == 1 else 'have'} no price: the cost is at least what is shown"
    if len(usage.sessions) > usage_charts.MOST_ROWS:
        yield f"tables have the first {usage_charts.MOST_ROWS} of {len(usage.sessions):,} sessions"
    if table.undated:
        yield f"{many(table.undated, 'answer without a time is', 'answers without a time are')} left out"
