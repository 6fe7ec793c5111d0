"""What sessions have used, as charts: money, tokens, caches and tools, by time and by name.

Rules: an axis of time has every day or week from the first to the last, also those on which nothing happened. What has no price
is left out of the money, and the table of `core.statistics` says how much that is. Ranks show the first dozen, and
their tables the first `MOST_ROWS`.

It reads no clock: which days are shown is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta, tzinfo

from sessile.core import statistics
from sessile.core.spending import UNDATED, amount
from sessile.core.statistics import StatRow, Table, Usage
from sessile.render.charts import Chart, Series, Value, bars, heatmap, lines, ranking
from sessile.render.wording import money

MOST_ROWS = 200  # of a table: who has five thousand sessions reads no table of them
_RANKED = 12  # names that a chart shows


def time_axis(first: date, last: date, *, weeks: bool = False) -> list[str]:
    """The names of all days, or all weeks, from one day to another, as `core.statistics` names them."""
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    named = ("{:04d}-W{:02d}".format(*day.isocalendar()[:2]) if weeks else day.isoformat() for day in days)
    return list(dict.fromkeys(named))


def activity(usage: Usage, zone: tzinfo, first: date, last: date) -> Chart:
    """How many answers each day had, as a calendar."""
    days = {row.name: row.answers or 0 for row in statistics.daily(usage, zone).rows if row.name != UNDATED}
    return heatmap("activity", "Answers per day", first, last, days)


def costs(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """What each day or week cost, by model, the dearest model first."""
    axis = time_axis(first, last, weeks=weeks)
    found = statistics.models_by_time(usage, zone, weeks=weeks)
    models = [row.name for row in statistics.by_model(usage).rows if row.cost is not None]
    series = [Series(model, [_cost(found.get(at, {}).get(model)) for at in axis]) for model in models]
    return bars("costs", f"Cost per {_word(weeks)}, by model", axis, series, money, _word(weeks))


def tokens(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """How many tokens each day or week took, by kind."""
    kinds: dict[str, Callable[[StatRow], int | None]] = {
        "cache read": lambda row: row.cache_read,
        "input": lambda row: row.input,
        "cache write": lambda row: row.cache_write,
        "output": lambda row: row.output,
    }
    axis, rows = _over_time(usage, zone, first, last, weeks)
    series = [Series(kind, [None if row is None else count(row) for row in rows]) for kind, count in kinds.items()]
    return bars("tokens", f"Tokens per {_word(weeks)}", axis, series, _tokens, _word(weeks))


def cache_hits(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """Which part of what models read came from a cache."""
    axis, rows = _over_time(usage, zone, first, last, weeks)
    series = [Series("from the cache", [None if row is None else _hit_rate(row) for row in rows])]
    return lines("cache", f"Read from the cache per {_word(weeks)}", axis, series, _percent, _word(weeks))


def models(usage: Usage) -> Chart:
    """The models that cost most, or were used most where nothing has a price."""
    return _ranked("models", "Models", statistics.by_model(usage), "model")


def projects(usage: Usage) -> Chart:
    """The projects that cost most."""
    return _ranked("projects", "Projects", statistics.by_project(usage), "project")


def sessions(usage: Usage) -> Chart:
    """The sessions that cost most, by their titles."""
    return _ranked("sessions", "Sessions", statistics.by_session(usage), "session")


def tools(usage: Usage) -> Chart:
    """The tools that were called most, and how often they failed."""
    rows = statistics.by_tool(usage).rows
    top = rows[:_RANKED]
    calls, failures = [row.calls for row in top], [row.failures for row in top]
    names = [row.name for row in top]
    chart = ranking(
        "tools", "Calls of tools", names, [Series("calls", calls), Series("failed", failures)], _count, "tool"
    )
    table = [[row.name, row.calls, row.failures, _rate(row.failures, row.calls), row.sessions] for row in rows]
    return chart._replace(columns=["tool", "calls", "failed", "failure rate", "sessions"], rows=table)


def _ranked(name: str, title: str, table: Table, first: str) -> Chart:
    rows = table.rows
    priced = any(row.cost for row in rows)
    rows = rows if priced else sorted(rows, key=lambda row: -(row.total or 0))
    top = rows[:_RANKED]
    labels = [row.title or _end_of(row.name) for row in top]
    values: list[Value] = [row.cost if priced else row.total for row in top]
    told, what = (money, "cost") if priced else (_tokens, "tokens")
    chart = ranking(name, f"{title} by {what}", labels, [Series(what, values)], told, first)
    cells = [
        [row.title or row.name, row.sessions, row.answers, row.input, row.output, row.cache_read, row.total, row.cost]
        for row in rows[:MOST_ROWS]
    ]
    columns = [first, "sessions", "answers", "input", "output", "cache read", "tokens", "cost"]
    return chart._replace(columns=columns, rows=cells)


def _end_of(path: str) -> str:
    """The last two names of a folder, which tell more than its first ones; any other name as it is."""
    return path if path.count("/") < 3 else "…/" + "/".join(path.split("/")[-2:])


def _over_time(
    usage: Usage, zone: tzinfo, first: date, last: date, weeks: bool
) -> tuple[list[str], Sequence[StatRow | None]]:
    table = statistics.weekly(usage, zone) if weeks else statistics.daily(usage, zone)
    rows = {row.name: row for row in table.rows}
    axis = time_axis(first, last, weeks=weeks)
    return axis, [rows.get(at) for at in axis]


def _word(weeks: bool) -> str:
    return "week" if weeks else "day"


def _cost(row: StatRow | None) -> float | None:
    return None if row is None else row.cost


def _hit_rate(row: StatRow) -> float | None:
    """The cached part of what was read; `None` where nobody tells of caches."""
    if row.cache_read is None:
        return None
    return _rate(row.cache_read, (row.input or 0) + row.cache_read + (row.cache_write or 0))


def _rate(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def _tokens(count: float) -> str:
    return amount(round(count))


def _percent(rate: float) -> str:
    return f"{rate * 100:.0f} %"


def _count(number: float) -> str:
    return f"{number:,.0f}"
