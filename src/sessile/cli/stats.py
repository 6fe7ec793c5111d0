"""Statistics: tokens, cost and tool calls by day, week, model, project, session or tool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import click

from sessile.cli.command import App, verb
from sessile.cli.listing import catch_up, chosen, excluded_by, filters, say_excluded
from sessile.cli.output import Cell, Column, money
from sessile.core import statistics
from sessile.core.statistics import StatRow, Table, Usage
from sessile.core.usage import amount
from sessile.render.wording import many, price_notes, prices_date
from sessile.storage.filters import Filter

_SINCE = {"daily": ("30d", "30 days"), "weekly": ("26w", "26 weeks")}  # defaults of --since
_FIRST_COLUMN = {"daily": "day", "weekly": "week"}
_TABLES: dict[str, Callable[[Usage, tzinfo], Table]] = {
    "daily": statistics.daily,
    "weekly": statistics.weekly,
    "models": lambda usage, zone: statistics.by_model(usage),
    "projects": lambda usage, zone: statistics.by_project(usage),
    "sessions": lambda usage, zone: statistics.by_session(usage),
    "tools": lambda usage, zone: statistics.by_tool(usage),
}


@verb(
    "sessile stats                     the last 30 days, by day",
    "sessile stats models --since 90d  by model",
    "sessile stats tools --json        calls and failures of each tool, for programs",
    name="stats",
)
@click.argument("table", type=click.Choice(tuple(_TABLES)), default="daily")
@filters
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
def stats_verb(app: App, table: str, as_csv: bool, **options: Any) -> int:
    """Count tokens, cost and tool calls. Answers without a known price are reported, not counted as free."""
    if options["since"] is None and table in _SINCE:
        options["since"], words = _SINCE[table]
        if not app.json:
            app.out.note(f"… last {words} only. Show: --since 10y")
    # Sub-agents cost money too; imported copies must not be counted twice.
    wanted = chosen(app, **options)._replace(hide=("imported",))
    catch_up(app)
    usage = app.library.usage(wanted)
    result = _TABLES[table](usage, app.out.zone)
    rows, total = result.rows, result.total
    if app.json:
        app.out.document(
            f"stats.{table}/1",
            (row._asdict() for row in rows),
            total=total._asdict(),
            hidden=dict(usage.hidden),
            excluded=excluded_by(app, wanted),
            uncounted=usage.uncounted,
            undated=result.undated,
            unpriced=statistics.unpriced(usage),
            prices=prices_date(),
        )
        return 0
    if as_csv:
        _print_csv(rows)
        _print_left_out(app, usage, wanted, options)
        return 0
    if not rows:
        found = app.library.list(Filter(hide=(), limit=0)).total
        app.out.note("nothing to count" + (f" in the selection; {many(found, 'session')} in total" if found else ""))
        _print_left_out(app, usage, wanted, options)
        return 1
    if table == "tools":
        columns = [Column("tool", wide=True), Column("calls", True), Column("failures", True), Column("sessions", True)]
        cells = [
            [Cell(r.name), Cell(str(r.calls)), _failures(r.failures), Cell(str(r.sessions))] for r in (*rows, total)
        ]
    else:
        names = ("sessions", "answers", "input", "output", "cache", "total", "cost")
        columns = [
            Column(_FIRST_COLUMN.get(table, table.rstrip("s")), wide=True),
            *(Column(name, True) for name in names),
        ]
        cells = [*map(_spent, rows), _spent(total, rows)]
    app.out.table(columns, cells)
    _print_left_out(app, usage, wanted, options)
    if table != "tools":
        for note in price_notes(total, statistics.unpriced(usage)):
            app.out.note(note)
    if result.undated:
        undated = many(result.undated, "answer without a time is", "answers without a time are")
        app.out.note(f"{undated} not included")
    return 0


def _print_left_out(app: App, usage: Usage, wanted: Filter, options: Mapping[str, Any]) -> None:
    """Print which sessions are not included."""
    if usage.hidden:
        imported = many(
            sum(usage.hidden.values()), "original of an imported session is", "originals of imported sessions are"
        )
        app.out.note(f"… {imported} not counted twice")
    if usage.uncounted:
        app.out.note(f"{many(usage.uncounted, 'session is', 'sessions are')} not counted yet and not included")
    say_excluded(app, wanted, options)


def _cached(row: StatRow) -> int | None:
    if row.cache_read is None and row.cache_write is None:
        return None
    return (row.cache_read or 0) + (row.cache_write or 0)


_TOKENS: tuple[Callable[[StatRow], int | None], ...] = (
    lambda row: row.input,
    lambda row: row.output,
    _cached,
    lambda row: row.total,
)


def _failures(count: int | None) -> Cell:
    return Cell(f"✗ {count}" if count else "0", "failed" if count else "dim", str(count))


def _spent(row: StatRow, parts: Sequence[StatRow] = ()) -> list[Cell]:
    """Return the cells of a row; a total of which some part is unknown gets a "+"."""
    tokens = [(count(row), any(count(part) is None for part in parts)) for count in _TOKENS]
    price = money(row.cost) + ("+" if row.cost is not None and row.unpriced else "")
    return [
        Cell(row.title or row.name, value=row.name),
        Cell(str(row.sessions)),
        Cell(str(row.answers)),
        *(
            Cell(
                "n/a" if count is None else amount(count) + ("+" if open_ended else ""),
                value="" if count is None else str(count),
            )
            for count, open_ended in tokens
        ),
        Cell(price, value="" if row.cost is None else str(row.cost)),
    ]


def _print_csv(rows: Sequence[StatRow]) -> None:
    import csv  # few users ask for it

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if not number:
            writer.writerow(row._fields)
        writer.writerow(_csv_cell(value) for value in row)


def _csv_cell(value: str | float | None) -> str | float:
    """A cell as a spreadsheet shows it: a name that looks like a formula gets a quote, so that it is not run."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
