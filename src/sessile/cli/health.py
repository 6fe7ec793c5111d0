"""The doctor: what is wrong with sessions, folders, conversations and the gateway, and what to do about it.

Mending: reading a session from end to end, saying what is wrong, and making it readable again.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

import click

from sessile import __version__
from sessile.cli.app import App, Settings, load_settings, verb
from sessile.cli.names import DAMAGED, SESSION, addresses, handle, located, one
from sessile.cli.output import Cell, Column, Step
from sessile.core.diagnosis import Problem
from sessile.core.visible import visible_line
from sessile.errors import Refused, SessileError
from sessile.gateway.conversations.doctor import Advice
from sessile.render.styled import Style
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.upkeep.check import Report, check, plan_repair, repair

# --- mending

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
            _mending_print(app, report, quiet=everything)
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


def _mending_print(app: App, report: Report, *, quiet: bool) -> None:
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


# --- doctor

_FOUND = 1  # the exit code where something was found that should not be there
_OTHERS = 0o077
_NEAR = 3  # keys that are offered instead of one that is not there


@verb(
    "sessile doctor                           what is wrong, and what to do",
    "sessile doctor webhook                   one session",
    "sessile doctor --key telegram:group:42   what a key means",
    name="doctor",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--key", metavar="KEY", help="A conversation's key: how it is read, and where it leads.")
@click.option("--config", "named", metavar="FILE", help="The configuration, instead of that in the store.")
def doctor_verb(app: App, sessions: tuple[str, ...], key: str | None, named: str | None) -> int:
    """Find out what is wrong: with sessions, folders, conversations, the gateway, and this installation.

    Nothing is changed. Exit code 1 if something should be looked at, 5 if something is damaged.
    """
    if key is not None:
        return _tell(app, list(_meant(app, key, _settings(app, named)[0])), Checking(app), [])
    found = [] if sessions else [*_surroundings(app), *_conversations(app, named)]
    checking = Checking(app)
    reports = list(checking.reports(_suspects(app, sessions)))
    found += [_advice(app, report) for report in reports if not report.ok or sessions]
    return _tell(app, found, checking, reports)


def _tell(app: App, found: list[Advice], checking: Checking, reports: list[Report]) -> int:
    if app.json:
        items = (advice._asdict() for advice in found)
        app.out.document("doctor/2", items, reports=[described(report) for report in reports], failed=checking.failed)
    else:
        for advice in found:
            _print(app, advice)
        if not checking.failed and all(advice.severity == "note" for advice in found):
            app.out.note("nothing is wrong")
    severities = {advice.severity for advice in found}
    own = DAMAGED if "damage" in severities else _FOUND if "warning" in severities else 0
    return checking.code or own


def _print(app: App, advice: Advice) -> None:
    sign = severity(app, advice.severity)
    app.out.line(visible_line(f"{sign}: {advice.what}"), STYLES[advice.severity])
    where = visible_line(app.tilde(advice.where or ""))
    if where and where not in advice.what and str(advice.where) not in advice.what:
        app.out.line(f"where: {where}" if app.out.plain else f"    in {where}", "dim")
    if advice.do:
        do = visible_line(advice.do)
        app.out.line(f"do: {do}" if app.out.plain else f"    → {do}")


# -- sessions


def _suspects(app: App, sessions: tuple[str, ...]) -> Iterator[str]:
    """The sessions that were named; else those that cannot be read, or in which the catalog found something."""
    if sessions:
        yield from paths_of(app, sessions, everything=False)
        return
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up("count", progress=progress)
    rows = app.library.list(Filter(hide=())).rows
    unreadable = (row.path for row in rows if row.format is None or not _can_be_read(app, row.path))
    yield from dict.fromkeys(
        [*unreadable, *(row.path for row in app.library.list(Filter(has=("finding",), hide=())).rows)]
    )


def _can_be_read(app: App, path: str) -> bool:
    """Whether a file may be opened: what the catalog knows of it may be from when it could."""
    in_database = app.store.database is not None and path.startswith(f"{app.store.layout.root}/")
    return in_database or os.access(path, os.R_OK)


def _advice(app: App, report: Report) -> Advice:
    if report.ok:
        told = f"{report.path} is sound: {many(report.entries, 'entry')}"
        return Advice("session", "note", told, report.path, "")
    what = report.summary or next(p.message for p in report.problems if p.severity == "damage")
    return Advice("session", "damage", f"{report.path}: {what}", report.path, again(app, report))


def _surroundings(app: App) -> Iterator[Advice]:
    versions = f"sessile {__version__}, Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}"
    yield Advice("installation", "note", versions, None, "")
    app.library.catch_up()
    for notice in app.library.notices:
        is_folder = notice.startswith("the folder ")
        do = "check who owns it, and its permissions" if is_folder else f"look at the cache folder {app.places.cache}"
        yield Advice("folder", "warning", notice, None, do)
    for source in app.library.sources:
        total = app.library.list(Filter(below=[source.sessions], hide=())).total
        told = f"{source.agent}: {many(total, 'file')} in {app.tilde(source.sessions)}"
        yield Advice("folder", "note", told, source.sessions, "")


# -- conversations


def _conversations(app: App, named: str | None) -> Iterator[Advice]:
    from sessile.gateway.conversations.doctor import Patient, examine_conversations
    from sessile.gateway.conversations.inbound import agent_workspace, routing_of
    from sessile.gateway.conversations.presence import Presence

    settings, problems = _settings(app, named)
    yield from problems
    running = Presence(app.store).running()
    if running is not None:
        yield Advice("gateway", "note", f"the gateway runs: {running.url}, process {running.pid}", None, "")
    config = settings.config
    yield from examine_conversations(
        Patient(
            store=app.store,
            config=config,
            routing=routing_of(config),
            token_file=settings.token_file(app.places.root),
            workspace=lambda agent: agent_workspace(config, app.store.layout.root, agent),
        )
    )


def _settings(app: App, named: str | None) -> tuple[Settings, list[Advice]]:
    """The configuration, and what is wrong with it; of one that cannot be used, the defaults."""
    from sessile.config import Config

    try:
        settings = load_settings(app, named)
        path = settings.path or app.places.root
        problems = [_unknown(key, path) for key in settings.unknown]
        if settings.path is not None and _holds_keys(settings) and os.stat(settings.path).st_mode & _OTHERS:
            told = "the configuration holds keys of models, and other users may read it"
            problems.append(Advice("config", "warning", told, settings.path, f"chmod 600 {settings.path}"))
    except SessileError as error:
        return Settings(Config(), [], None), [Advice("config", "damage", error.message, error.path, error.hint or "")]
    try:
        settings.config.gateway.check_exposure()
    except SessileError as error:
        problems.append(Advice("config", "damage", error.message, path, error.hint or ""))
    return settings, problems


def _unknown(key: str, path: str) -> Advice:
    return Advice("config", "warning", f"{key} is not known, and has no effect", path, "correct its spelling")


def _holds_keys(settings: Settings) -> bool:
    return any(provider.api_key is not None for provider in settings.config.models.providers.values())


def _meant(app: App, key: str, settings: Settings) -> Iterator[Advice]:
    """How a key is read, and where it leads."""
    from sessile.gateway.conversations.inbound import agent_workspace, routing_of
    from sessile.gateway.conversations.registry import Conversations

    routing = routing_of(settings.config)
    canonical = routing.canonical(key)
    with Conversations(
        app.store,
        workspace=lambda agent: agent_workspace(settings.config, app.places.root, agent),
        routing=routing,
        hold=None,
    ) as conversations:
        agent = canonical.agent or routing.default_agent
        told = f"{key} is read as {canonical}: kind {canonical.kind}, agent {agent}"
        yield Advice("key", "note", told, None, "")
        found = conversations.get(key)
        if found is None:
            known = [row.text for row in conversations.list().rows]
            near = get_close_matches(str(canonical), known, _NEAR, 0.5)
            do = f"is it one of these? {', '.join(near)}" if near else f"{app.command} sessions lists them"
            yield Advice("key", "warning", f"there is no conversation {canonical}", None, do)
            return
        path = conversations.path_of(key)
        where = "nobody has spoken in it yet" if path is None else f"its session is {found.session_id}"
        yield Advice("key", "note", where, path, "" if path is None else f"{app.command} show {path}")
