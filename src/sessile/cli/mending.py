"""Mending: reading a session from end to end, saying what is wrong, and making it readable again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from sessile import Filter, Problem, Report, check, plan_repair, repair
from sessile.cli.app import App, verb
from sessile.cli.naming import DAMAGED, SESSION, addresses, handle, located, one
from sessile.cli.progress import Step
from sessile.cli.table import Cell, Column
from sessile.core.styled import Style
from sessile.core.visible import visible_line
from sessile.errors import Refused, SessileError
from sessile.render.wording import many

STYLES: dict[str, Style] = {"damage": "failed", "warning": "tool", "note": "dim"}
_GLYPHS = {"damage": "✗", "warning": "!", "note": "·"}


@verb(
    "sessile check webhook        one session, every byte",
    "sessile check --all          all sessions of all agents; exit code 5 if one is damaged",
    "sessile check file.jsonl --json",
    name="check",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="All sessions of all agents, as without a name; only damage is printed."
)
def check_verb(app: App, sessions: tuple[str, ...], everything: bool) -> int:
    """Read sessions from end to end and say what is wrong with them. Nothing is written, no index is believed."""
    checking = Checking(app)
    reports = checking.reports(paths_of(app, sessions, everything))
    if app.json:
        app.out.document("check/1", map(described, reports), failed=checking.failed)
    else:
        for report in reports:
            _print(app, report, quiet=everything)
        unread = f", {len(checking.failed):,} could not be read" if checking.failed else ""
        app.out.note(f"{many(checking.read, 'session')} read, {checking.damaged:,} damaged{unread}")
    return checking.code


class Checking:
    """Sessions that are checked one after the other, and what came of it; one that cannot be read does not end it."""

    def __init__(self, app: App) -> None:
        self.read = self.damaged = 0
        self.code = 0
        self.failed: list[dict[str, Any]] = []
        self._app = app

    def reports(self, paths: Iterable[str]) -> Iterator[Report]:
        """A report on each session that can be read."""
        for path in paths:
            try:
                report = check(self._app.store, path)
            except SessileError as error:
                self._fail(path, error)
                continue
            self.read += 1
            if not report.ok:
                self.damaged += 1
                self.code = max(self.code, DAMAGED)
            yield report

    def _fail(self, path: str, error: SessileError) -> None:
        self.code = max(self.code, error.exit_code)
        self.failed.append({"path": path, "message": error.message, "hint": error.hint})
        self._app.out.note(f"sessile: {error}", "failed")


def paths_of(app: App, sessions: tuple[str, ...], everything: bool) -> Iterator[str]:
    if everything or not sessions:
        app.library.catch_up()
        app.say_notices()
        rows = app.library.list(Filter(hide=())).rows
        with app.out.progress("Checking") as progress:
            for number, row in enumerate(rows):
                progress(Step(number, len(rows)))
                yield row.path
    else:
        yield from (located(app, address) for address in addresses(sessions))


def _print(app: App, report: Report, *, quiet: bool) -> None:
    if quiet and report.ok:
        return
    app.out.line(visible_line(report.path), "strong")
    told = f"{report.bytes_accounted:,} of {report.size:,} bytes accounted for"
    app.out.note(f"{many(report.entries, 'entry')}, {told}")
    if report.rows is not None:
        app.out.note("rows: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in report.rows.items()))
    _print_problems(app, report.problems)
    if report.repairable:
        app.out.note(f"mend it, keeping the file as it was: {again(app, report)}")


def _print_problems(app: App, problems: Iterable[Problem]) -> None:
    columns = [Column("how bad"), Column("line", right=True), Column("offset", right=True), Column("what", wide=True)]
    cells = (
        [
            Cell(severity(app, problem.severity), STYLES[problem.severity], problem.severity),
            Cell("" if problem.line is None else str(problem.line)),
            Cell("" if problem.offset is None else str(problem.offset)),
            Cell(problem.message + (f"  {problem.excerpt}" if problem.excerpt else "")),
        ]
        for problem in problems
    )
    app.out.table(columns, cells)


def severity(app: App, name: str) -> str:
    """How bad something is, in a word, and with a sign for who sees it."""
    return name if app.out.plain else f"{_GLYPHS[name]} {name}"


def described(report: Report) -> dict[str, Any]:
    return {
        "path": report.path,
        "id": report.id,
        "ok": report.ok,
        "size": report.size,
        "bytes_accounted": report.bytes_accounted,
        "entries": report.entries,
        "rows": report.rows,
        "problems": [problem._asdict() for problem in report.problems],
    }


@verb(
    "sessile repair webhook          shows what would be done",
    "sessile repair webhook --apply  does it; the file as it was is kept",
    "sessile repair old.jsonl --apply --in-place",
    name="repair",
)
@click.argument("session", type=SESSION)
@click.option("--apply", is_flag=True, help="Do it; else it is only shown.")
@click.option("--in-place", is_flag=True, help="Also a file of another agent.")
def repair_verb(app: App, session: str, apply: bool, in_place: bool) -> int:
    """Make a damaged session readable. What could be read stays byte for byte; nothing is invented; nothing is lost."""
    path = located(app, one(session))
    plan = plan_repair(app.store, path)
    if apply and plan.changes and not in_place and not app.store.layout.owns(path):
        raise Refused("this file is not in your own store", path=path, hint="say --in-place if no agent uses it now")
    done = repair(app.store, path, in_place=in_place) if apply else None
    if app.json:
        steps = ({**step.problem._asdict(), "action": step.action} for step in plan.steps)
        original = None if done is None else done.original
        app.out.document(
            "repair/1",
            steps,
            path=path,
            applied=apply,
            changes=plan.changes,
            dropped=plan.dropped_bytes,
            original=original,
        )
        return 0
    columns = [Column("line", right=True), Column("what", wide=True), Column("then", soft=True)]
    cells = (
        [
            Cell("" if s.problem.line is None else str(s.problem.line)),
            Cell(s.problem.message),
            Cell(s.action or "stays as it is"),
        ]
        for s in plan.steps
    )
    app.out.table(columns, cells)
    if not plan.changes:
        app.out.note("nothing to repair")
    elif done is None:
        app.out.note(f"{many(plan.dropped_bytes, 'byte')} would be taken out and kept. Do it: --apply")
    else:
        app.out.line(visible_line(path))
        told = f"{many(done.kept_entries, 'entry')} kept, {done.salvaged:,} saved from damaged lines"
        app.out.note(told)
        app.out.note(f"the file as it was: {done.original}")
    return 0


def again(app: App, report: Report) -> str:
    """What to do about a damaged session: mend it, or at least see what is wrong."""
    return (
        f"{app.command} {'repair' if report.repairable else 'check'} {handle(app, report.id, report.path, whole=True)}"
    )
