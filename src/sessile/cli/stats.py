"""Statistics: tokens, money and tools, by day, week, model, project, session or tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any

import click

from sessile.cli.app import App, verb
from sessile.cli.listing import catch_up, chosen, filters
from sessile.cli.output import Cell, Column, money
from sessile.core import statistics
from sessile.core.statistics import StatRow, Table, Usage
from sessile.core.usage import amount
from sessile.render.wording import many
from sessile.storage.filters import Filter

_LAST = {"daily": ("30d", "30 days"), "weekly": ("26w", "26 weeks")}  # unless somebody says since when
_TABLES: dict[str, Callable[[Usage, tzinfo], Table]] = {
    "daily": statistics.daily,
    "weekly": statistics.weekly,
    "models": lambda usage, zone: statistics.by_model(usage),
    "projects": lambda usage, zone: statistics.by_project(usage),
    "sessions": lambda usage, zone: statistics.by_session(usage),
    "tools": lambda usage, zone: statistics.by_tool(usage),
}


@verb(
    "sessile stats                     what each day of the last month cost",
    "sessile stats models --since 90d  by model",
    "sessile stats tools --json        calls and failures of each tool, for a program",
    name="stats",
)
@click.argument("table", type=click.Choice(tuple(_TABLES)), default="daily")
@filters
@click.option("--csv", "as_csv", is_flag=True, help="Values with commas, with a header.")
def stats_verb(app: App, table: str, as_csv: bool, **options: Any) -> int:
    """Count tokens, money and tools. What nobody priced is said, and not counted as nothing."""
    if options["since"] is None and table in _LAST:
        options["since"], words = _LAST[table]
        if not app.json:
            app.out.note(f"… only the last {words}. Show more: --since 10y")
    # What a sub-agent costs is paid, too; what was imported is not paid twice.
    wanted = chosen(app, **options)._replace(hide=("imported",))
    catch_up(app, wanted, counts=True)
    usage = app.library.usage(wanted)
    made = _TABLES[table](usage, app.out.zone)
    rows, total = made.rows, made.total
    if app.json:
        app.out.document(
            f"stats.{table}/1",
            (row._asdict() for row in rows),
            total=total._asdict(),
            hidden=dict(usage.hidden),
            uncounted=usage.uncounted,
            undated=made.undated,
        )
        return 0
    if as_csv:
        _print_csv(rows)
        return 0
    if not rows:
        found = app.library.list(Filter(hide=(), limit=0)).total
        app.out.note("nothing to count" + (f"; there are {many(found, 'session')} in all" if found else ""))
        return 1
    if table == "tools":
        columns = [Column("tool", wide=True), Column("calls", True), Column("failures", True), Column("sessions", True)]
        cells = [
            [Cell(r.name), Cell(str(r.calls)), _failures(r.failures), Cell(str(r.sessions))] for r in (*rows, total)
        ]
    else:
        names = ("sessions", "answers", "input", "output", "cache", "total", "cost")
        columns = [Column(_NAMED.get(table, table.rstrip("s")), wide=True), *(Column(name, True) for name in names)]
        cells = [*map(_spent, rows), _spent(total, rows)]
    app.out.table(columns, cells)
    app.out.hidden(usage.hidden, "-A")
    if usage.uncounted:
        app.out.note(f"{many(usage.uncounted, 'session is', 'sessions are')} not counted yet, and left out")
    if total.unpriced and table != "tools":
        told = f"{total.unpriced:,} of {many(total.answers or 0, 'answer')}"
        app.out.note(f"{told} {'has' if total.unpriced == 1 else 'have'} no price: the cost is at least what is shown")
    if made.undated:
        told = many(made.undated, "answer without a time is", "answers without a time are")
        app.out.note(f"{told} left out")
    return 0


_NAMED = {"daily": "day", "weekly": "week"}


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
    """The cells of a row; a sum of parts of which one is unknown is at least what it says."""
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
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if not number:
            writer.writerow(row._fields)
        writer.writerow("" if value is None else value for value in row)
