"""Usage tables of sessions: by day, week, model, project, session and tool.

    usage = catalog.usage(Filter(since=…))
    for row in daily(usage, ZoneInfo("Europe/Berlin")).rows: …

Rules:
- Unknown values are `None`, never zero. A cost covers the answers with a price; `unpriced` counts the others. A value that a
  table cannot attribute (tokens by tool, failures by model) is `None` too.
- A session counts once in a row and once in the total, which is the same in every table.
- A quarter-hour belongs to the day in which it starts.
- An answer that several of the sessions contain, because one is a fork of another, counts once: in the session that was changed
  least recently. Its failed tool calls do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, NamedTuple, TypeVar

import msgspec

from sessile.core.usage import QUARTER, UNDATED, Answered, Spent, Used, decode_spending

UNKNOWN = "unknown"
TOTAL = "total"

_Key = TypeVar("_Key", bound=str | int)


class SessionUsage(NamedTuple):
    """The usage of one session, as it is stored."""

    id: str
    project: str | None
    title: str | None
    spending: bytes  # from `Spending.encode`


class Usage(NamedTuple):
    """The usage of some sessions, newest first. `since` and `until` (exclusive) are quarter-hours since 1970."""

    sessions: Sequence[SessionUsage]
    since: int | None = None
    until: int | None = None
    hidden: Mapping[str, int] = {}  # sessions excluded by a filter, by reason
    uncounted: int = 0  # sessions whose usage is not counted yet


class StatRow(NamedTuple):
    """A row of a table; `None` is unknown."""

    name: str
    sessions: int
    answers: int | None = None
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost: float | None = None
    unpriced: int | None = None  # answers without a known cost
    calls: int | None = None
    failures: int | None = None
    title: str | None = None  # title of the session of the row
    listed: int | None = None  # answers whose cost is by the price table


class Table(NamedTuple):
    """Rows and their total. `shell` lists commands that users ran, which are in neither."""

    rows: list[StatRow]
    total: StatRow
    shell: list[StatRow]
    undated: int  # answers outside a time range because their time is unknown


def daily(usage: Usage, zone: tzinfo) -> Table:
    """Return usage by day in a time zone, earliest first."""
    return _by_time(usage, zone, _day)


def weekly(usage: Usage, zone: tzinfo) -> Table:
    """Return usage by ISO 8601 week in a time zone, earliest first."""
    return _by_time(usage, zone, _week)


def models_by_time(usage: Usage, zone: tzinfo, *, weeks: bool = False) -> dict[str, dict[str, StatRow]]:
    """Return usage by day or week, earliest first, and by model, most expensive first; without undated usage."""
    time = _week if weeks else _day
    names: dict[str, str] = {}

    def name_of(number: int, cell: _Cell) -> str | None:
        if cell.quarter == UNDATED or not isinstance(cell.amount, Spent):
            return None
        if cell.quarter not in names:
            names[cell.quarter] = time(_moment(cell.quarter, zone))
        return f"{names[cell.quarter]} {cell.name or UNKNOWN}"

    found: dict[str, dict[str, StatRow]] = {}
    for row in _table(usage, name_of, _model_row, _by_cost).rows:
        at, _, model = row.name.partition(" ")
        found.setdefault(at, {})[model] = row._replace(name=model)
    return dict(sorted(found.items()))


def by_model(usage: Usage) -> Table:
    """Return usage by model, most expensive first."""

    def name_of(number: int, cell: _Cell) -> str | None:
        return cell.name or UNKNOWN if isinstance(cell.amount, Spent) else None

    return _table(usage, name_of, _model_row, _by_cost)


def unpriced(usage: Usage) -> dict[str, int]:
    """Return the number of answers without a known price, by model, most first."""
    rows = sorted(by_model(usage).rows, key=lambda row: (-(row.unpriced or 0), row.name))
    return {row.name: row.unpriced for row in rows if row.unpriced}


def by_project(usage: Usage) -> Table:
    """Return usage by project folder, most expensive first."""
    return _table(usage, lambda number, cell: usage.sessions[number].project or UNKNOWN, _row, _by_cost)


def by_session(usage: Usage) -> Table:
    """Return usage by session, most expensive first; the name of a row is the session's id."""

    def row(number: int, of: _Sum) -> StatRow:
        session = usage.sessions[number]
        return _row(session.id, of)._replace(title=session.title)

    return _table(usage, lambda number, cell: number, row, _by_cost)  # not by id: a copy of a session has the same one


def by_tool(usage: Usage) -> Table:
    """Return usage by tool, most frequently called first."""

    def name_of(number: int, cell: _Cell) -> str | None:
        return cell.name or UNKNOWN if isinstance(cell.amount, Used) else None

    return _table(usage, name_of, _tool_row, _by_calls)


def _by_time(usage: Usage, zone: tzinfo, name: Callable[[datetime], str]) -> Table:
    names = {UNDATED: UNDATED}

    def name_of(number: int, cell: _Cell) -> str:
        if cell.quarter not in names:
            names[cell.quarter] = name(_moment(cell.quarter, zone))
        return names[cell.quarter]

    return _table(usage, name_of, _row, lambda row: (row.name == UNDATED, row.name))


def _moment(quarter: str, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(int(quarter) * (QUARTER // 1000), zone)


def _day(moment: datetime) -> str:
    return f"{moment.date()}"


def _week(moment: datetime) -> str:
    return "{:04d}-W{:02d}".format(*moment.isocalendar()[:2])


# -- sums


class _Cell(NamedTuple):
    """The usage of a model or a tool in a quarter-hour."""

    name: str
    quarter: str
    amount: Spent | Used


class _Sum(msgspec.Struct):
    """The sum of a row."""

    sessions: int = 0
    last: int | None = None  # the session counted last; cells come session by session
    spent: Spent = msgspec.field(default_factory=Spent)
    used: Used = msgspec.field(default_factory=Used)

    def add(self, number: int, amount: Spent | Used) -> None:
        self.sessions += self.last != number
        self.last = number
        if isinstance(amount, Spent):
            self.spent.merge(amount)
        else:
            self.used.calls += amount.calls
            self.used.failures += amount.failures


def _table(
    usage: Usage,
    key_of: Callable[[int, _Cell], _Key | None],
    row_of: Callable[[_Key, _Sum], StatRow],
    order: Callable[[StatRow], Any],
) -> Table:
    """Add up cells by key; a cell without one counts in the total only."""
    sums: dict[_Key, _Sum] = {}
    shell: dict[str, _Sum] = {}
    total = _Sum()
    undated = 0
    seen: dict[int, Answered | None] = {}
    for number, session in reversed(list(enumerate(usage.sessions))):
        spending = decode_spending(session.spending)
        spending.leave_out(seen)
        for cell in (*_cells(spending.answers), *_cells(spending.tools)):
            if _is_in(usage, cell.quarter):
                total.add(number, cell.amount)
                key = key_of(number, cell)
                if key is not None:
                    sums.setdefault(key, _Sum()).add(number, cell.amount)
            elif cell.quarter == UNDATED and isinstance(cell.amount, Spent):
                undated += cell.amount.answers
        for cell in _cells(spending.shell):
            if _is_in(usage, cell.quarter):
                shell.setdefault(cell.name, _Sum()).add(number, cell.amount)
    rows = sorted((row_of(key, of) for key, of in sums.items()), key=order)
    runs = sorted((_tool_row(name, of) for name, of in shell.items()), key=_by_calls)
    return Table(rows, _row(TOTAL, total), runs, undated)


def _cells(table: Mapping[str, Mapping[str, Spent]] | Mapping[str, Mapping[str, Used]]) -> Iterator[_Cell]:
    for name, quarters in table.items():
        for quarter, amount in quarters.items():
            if _is_used(amount):
                yield _Cell(name, quarter, amount)


def _is_used(amount: Spent | Used) -> bool:
    """Return whether anything is left of an amount without the copies."""
    if isinstance(amount, Spent):
        return bool(amount.answers or amount.calls or amount.total)
    return bool(amount.calls or amount.failures)


def _is_in(usage: Usage, quarter: str) -> bool:
    if usage.since is None and usage.until is None:
        return True
    if quarter == UNDATED:
        return False
    number = int(quarter)
    return (usage.since is None or number >= usage.since) and (usage.until is None or number < usage.until)


# -- rows


def _row(name: str, of: _Sum) -> StatRow:
    spent = of.spent
    return StatRow(
        name=name,
        sessions=of.sessions,
        answers=spent.answers,
        input=spent.input,
        output=spent.output,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        total=spent.total,
        cost=None if spent.cost is None else round(spent.cost, 9),
        unpriced=spent.unpriced,
        calls=of.used.calls,
        failures=of.used.failures,
        listed=spent.listed,
    )


def _model_row(name: str, of: _Sum) -> StatRow:
    """Return a row without failures, because results do not name the model that called the tool."""
    return _row(name, of)._replace(calls=of.spent.calls, failures=None)


def _tool_row(name: str, of: _Sum) -> StatRow:
    """Return a row with calls and failures only."""
    return StatRow(name, of.sessions, calls=of.used.calls, failures=of.used.failures)


def _by_cost(row: StatRow) -> tuple[bool, float, int, str]:
    return (row.cost is None, -(row.cost or 0), -(row.total or 0), row.name)


def _by_calls(row: StatRow) -> tuple[int, int, str]:
    return (-(row.calls or 0), -(row.failures or 0), row.name)
