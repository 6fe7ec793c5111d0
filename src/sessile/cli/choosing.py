"""Asking a person which session is meant, by a numbered list: the sessions of this folder, newest first."""

from __future__ import annotations

import sys

import click

from sessile import Filter, SessionRow
from sessile.cli.app import App
from sessile.cli.table import Cell, Column, aligned, in_words

_OFFERED = 15  # sessions that fit on any screen
_COLUMNS = (Column("number", right=True), Column("age", right=True), Column("agent"), Column("title", wide=True))


def can_ask(app: App) -> bool:
    """Whether there is a person to ask."""
    return not app.json and sys.stdin.isatty() and sys.stderr.isatty()


def choose(app: App) -> str:
    """The session that a person picks: its path, or what they typed instead of a number."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up("count", progress=progress)
    listing = app.library.list(Filter(project=app.here, limit=_OFFERED))
    if not listing.rows:
        listing = app.library.list(Filter(limit=_OFFERED))
        if listing.rows:
            app.out.note("this folder has no session; these are the newest of all folders")
    rows = listing.rows
    if not rows:
        return "@here"  # whose error says what to do
    if len(rows) == 1 and rows[0].cwd == app.here:
        return rows[0].path
    _offer(app, rows)
    if listing.total > len(rows):
        app.out.note(f"… {listing.total - len(rows):,} more: sessile ls")
    return _answer(rows)


def _offer(app: App, rows: list[SessionRow]) -> None:
    cells = [
        [
            Cell(str(number)),
            app.out.moment(row.modified // 1_000_000),
            Cell(app.library.agent_of(row.path) or ""),
            Cell(row.title or row.first_text or "(no title)"),
        ]
        for number, row in enumerate(rows, 1)
    ]
    if app.out.plain:
        told = [in_words(_COLUMNS, row) for row in cells]
    else:
        told = ["".join(span.text for span in line) for line in aligned(_COLUMNS, cells, app.out.columns or 80)]
    for line in told:
        app.out.note(line, "plain")


def _answer(rows: list[SessionRow]) -> str:
    answer = str(click.prompt("Which one? A number, or an id or words of a title", default="1", err=True)).strip()
    if not answer.isdecimal():
        return answer
    return rows[int(answer) - 1].path if 1 <= int(answer) <= len(rows) else answer
