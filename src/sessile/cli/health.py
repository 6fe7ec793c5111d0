"""Health: checker and repairing sessions, and the doctor, which examines everything and suggests fixes."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

import click

from sessile import __version__
from sessile.cli.arguments import DAMAGED, SESSION, addresses, handle, located, one
from sessile.cli.command import App, Settings, load_settings, verb
from sessile.cli.output import Cell, Column, Step
from sessile.config import Config
from sessile.core.diagnosis import Problem
from sessile.core.visible import visible_line
from sessile.erase import pending
from sessile.errors import Refused, SessileError
from sessile.gateway.conversations.doctor import Advice, Patient, examine_conversations
from sessile.gateway.conversations.inbound import agent_workspace, routing_of
from sessile.gateway.conversations.presence import Presence
from sessile.gateway.conversations.registry import Conversations
from sessile.render.styled import Style
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.upkeep.check import Report, check, plan_repair, repair
from sessile.upkeep.sweep import leftovers

_STYLES: dict[str, Style] = {"damage": "failed", "warning": "tool", "note": "dim"}
_GLYPHS = {"damage": "✗", "warning": "!", "note": "·"}


@verb(
    "sessile check webhook        one session, every byte",
    "sessile check --all          all sessions of all agents; exit code 5 if any is damaged",
    "sessile check file.jsonl --json",
    name="check",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions of all agents; print damaged ones only.")
def check_verb(app: App, sessions: tuple[str, ...], everything: bool) -> int:
    """Read sessions from end to end and report damage. Caches are not used, but compared: a wrong one is removed."""
    checker = _Checker(app)
    reports = checker.reports(_paths_of(app, sessions, everything))
    if app.json:
        more = {"leftovers": [advice.where for advice in _leftovers(app)]} if everything else {}
        app.out.document("check/1", map(_described, reports), failed=checker.failed, **more)
    else:
        for report in reports:
            _print_report(app, report, quiet=everything)
        for advice in _leftovers(app) if everything else ():
            _print(app, advice)
        unread = f", {len(checker.failed):,} unreadable" if checker.failed else ""
        wrong = f", {many(checker.wrong_caches, 'wrong cache')} removed" if checker.wrong_caches else ""
        app.out.note(f"{many(checker.read, 'session')} checked, {checker.damaged:,} damaged{unread}{wrong}")
    return checker.code


class _Checker:
    """Checks sessions one after the other; an unreadable one is recorded and does not stop it."""

    def __init__(self, app: App) -> None:
        self.read = self.damaged = self.wrong_caches = 0
        self.code = 0
        self.failed: list[dict[str, Any]] = []
        self._app = app

    def reports(self, paths: Iterable[str]) -> Iterator[Report]:
        """Yield a report on each readable session."""
        for path in paths:
            try:
                report = check(self._app.store, path, library=self._app.library)
            except SessileError as error:
                self._fail(path, error)
                continue
            self.read += 1
            self.wrong_caches += _has_wrong_cache(report)
            if not report.ok:
                self.damaged += 1
                self.code = max(self.code, DAMAGED)
            yield report

    def _fail(self, path: str, error: SessileError) -> None:
        self.code = max(self.code, error.exit_code)
        self.failed.append({"path": path, "message": error.message, "hint": error.hint})
        self._app.out.note(f"sessile: {error}", "failed")


def _paths_of(app: App, sessions: tuple[str, ...], everything: bool) -> Iterator[str]:
    """Yield the files of the named sessions, or of all."""
    if everything or not sessions:
        app.library.catch_up()
        app.say_notices()
        rows = app.library.list(Filter(hide=())).rows
        with app.out.progress("Checking sessions") as progress:
            for number, row in enumerate(rows):
                progress(Step(number, len(rows)))
                yield row.path
    else:
        yield from (located(app, address) for address in addresses(sessions))


def _print_report(app: App, report: Report, *, quiet: bool) -> None:
    if quiet and report.ok and not _has_wrong_cache(report):
        return
    app.out.line(visible_line(report.path), "strong")
    app.out.note(f"{many(report.entries, 'entry')}, {report.bytes_accounted:,} of {report.size:,} bytes accounted for")
    if report.rows is not None:
        app.out.note("rows: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in report.rows.items()))
    _print_problems(app, report.problems)
    if report.repairable:
        kept = "" if report.ok else " (the original file is kept)"
        app.out.note(f"repair it{kept}: {_next_step(app, report)}")
    if report.gaps:
        name = handle(app, report.id, report.path, whole=True)
        app.out.note(f"{_gaps(report)}. Read across the gap: {app.command} context {name} --bridge")
        if report.agent is None:
            app.out.note(f"connect it for good (the original file is kept): {app.command} repair {name} --bridge")


def _gaps(report: Report) -> str:
    """Return how many entries have lost the history before them."""
    return f"the history ends at {many(report.gaps, 'entry')} whose parent is missing"


def _has_wrong_cache(report: Report) -> bool:
    return any(problem.kind == "wrong_cache" for problem in report.problems)


def _print_problems(app: App, problems: Iterable[Problem]) -> None:
    columns = [
        Column("severity"),
        Column("line", right=True),
        Column("offset", right=True),
        Column("problem", wide=True),
    ]
    cells = (
        [
            Cell(_severity(app, problem.severity), _STYLES[problem.severity], problem.severity),
            Cell("" if problem.line is None else str(problem.line)),
            Cell("" if problem.offset is None else str(problem.offset)),
            Cell(problem.message + (f"  {problem.excerpt}" if problem.excerpt else "")),
        ]
        for problem in problems
    )
    app.out.table(columns, cells)


def _severity(app: App, name: str) -> str:
    """Return the severity as a word, with a glyph unless the output is plain."""
    return name if app.out.plain else f"{_GLYPHS[name]} {name}"


def _described(report: Report) -> dict[str, Any]:
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
    "sessile repair webhook          show what would be done",
    "sessile repair webhook --apply  repair it; the original file is kept",
    "sessile repair webhook --bridge --apply         connect entries whose parent is missing, too",
    "sessile repair old.jsonl --apply --in-place",
    name="repair",
)
@click.argument("session", type=SESSION)
@click.option("--apply", is_flag=True, help="Do it; otherwise only show.")
@click.option("--in-place", is_flag=True, help="Allow a file of another agent.")
@click.option(
    "--bridge/--unbridge",
    default=None,
    help="Connect an entry whose parent is missing to the nearest earlier entry, or remove such bridges.",
)
def repair_verb(app: App, session: str, apply: bool, in_place: bool, bridge: bool | None) -> int:
    """Repair a damaged session. Readable lines stay byte for byte, nothing is made up, and the original file is kept.

    A draft that no process writes any more is published.

    A missing parent ends the history of a session. With --bridge the entry gets the nearest earlier entry as its parent. Its
    line keeps the missing parent, so that --unbridge can restore it.
    """
    path = located(app, one(session))
    plan = plan_repair(app.store, path, bridge=bridge)
    if apply and plan.changes and not in_place and not app.store.layout.owns(path):
        raise Refused("this file is not in your store", path=path, hint="pass --in-place if no agent is using it")
    done = repair(app.store, path, in_place=in_place, bridge=bridge) if apply else None
    if app.json:
        steps = ({**step.problem._asdict(), "action": step.action} for step in plan.steps)
        original = None if done is None else done.original
        app.out.document(
            "repair/1",
            steps,
            path=path if done is None else done.path,
            applied=apply,
            changes=plan.changes,
            dropped=plan.dropped_bytes,
            original=original,
        )
        return 0
    columns = [Column("line", right=True), Column("problem", wide=True), Column("action", soft=True)]
    cells = (
        [
            Cell("" if s.problem.line is None else str(s.problem.line)),
            Cell(s.problem.message),
            Cell(s.action or "none"),
        ]
        for s in plan.steps
    )
    app.out.table(columns, cells)
    if not plan.changes:
        app.out.note("nothing to repair")
    elif done is None:
        dropped = many(plan.dropped_bytes, "byte")
        app.out.note(
            f"{dropped} would be moved out of the session. Do it: --apply" if plan.dropped_bytes else "Do it: --apply"
        )
    else:
        app.out.line(visible_line(done.path))
        app.out.note(f"{many(done.kept_entries, 'entry')} kept, {done.salvaged:,} recovered from damaged lines")
        if done.original is not None:
            app.out.note(f"original file: {done.original}")
    if bridge is None and any(step.problem.kind == "missing_parent" for step in plan.steps):
        app.out.note("the history ends where a parent is missing. Connect it to the entry before it: --bridge")
    return 0


def _next_step(app: App, report: Report) -> str:
    """Return the command for a damaged session: repair it, or check it if that is not possible."""
    verb_name = "repair" if report.repairable else "check"
    return f"{app.command} {verb_name} {handle(app, report.id, report.path, whole=True)}"


# -- doctor

_FOUND = 1  # exit code for warnings
_OTHER_USERS = 0o077  # permission bits
_SIMILAR = 3  # keys to suggest for an unknown one


@verb(
    "sessile doctor                           examine everything",
    "sessile doctor webhook                   one session",
    "sessile doctor --key telegram:group:42   explain a conversation key",
    name="doctor",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--key", metavar="KEY", help="Explain a conversation key: how it is parsed, and its session.")
@click.option("--config", "named", metavar="FILE", help="Configuration file (config.toml in the store).")
def doctor_verb(app: App, sessions: tuple[str, ...], key: str | None, named: str | None) -> int:
    """Find problems of sessions, folders, conversations, the gateway and this installation, and suggest fixes.

    Nothing is changed. The exit code is 1 for warnings and 5 for damage.
    """
    if key is not None:
        return _print_advice(app, list(_explain_key(app, key, _settings(app, named)[0])), _Checker(app), [])
    found = [] if sessions else [*_environment(app), *_conversations(app, named)]
    checker = _Checker(app)
    reports = list(checker.reports(_suspects(app, sessions)))
    found += [
        _advice(app, report) for report in reports if not report.ok or report.gaps or sessions or _is_left(report)
    ]
    return _print_advice(app, found, checker, reports)


def _print_advice(app: App, found: list[Advice], checker: _Checker, reports: list[Report]) -> int:
    if app.json:
        items = (advice._asdict() for advice in found)
        app.out.document("doctor/2", items, reports=[_described(report) for report in reports], failed=checker.failed)
    else:
        for advice in found:
            _print(app, advice)
        if not checker.failed and all(advice.severity == "note" for advice in found):
            app.out.note("no problems found")
    severities = {advice.severity for advice in found}
    own = DAMAGED if "damage" in severities else _FOUND if "warning" in severities else 0
    return checker.code or own


def _print(app: App, advice: Advice) -> None:
    sign = _severity(app, advice.severity)
    app.out.line(visible_line(f"{sign}: {advice.what}"), _STYLES[advice.severity])
    where = visible_line(app.tilde(advice.where or ""))
    if where and where not in advice.what and str(advice.where) not in advice.what:
        app.out.line(f"where: {where}" if app.out.plain else f"    in {where}", "dim")
    if advice.do:
        do = visible_line(advice.do)
        app.out.line(f"do: {do}" if app.out.plain else f"    → {do}")


# -- sessions


def _suspects(app: App, sessions: tuple[str, ...]) -> Iterator[str]:
    """Yield the named sessions; without names, drafts and those that are unreadable or have findings in the catalog."""
    if sessions:
        yield from _paths_of(app, sessions, everything=False)
        return
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up("count", progress=progress)
    rows = app.library.list(Filter(hide=())).rows
    unreadable = (row.path for row in rows if row.format is None or row.draft or not _can_be_read(app, row.path))
    # Where a line is missing, the entry before it has no child: only sessions with branches can have lost one.
    branched = app.library.list(Filter(has=("branch",), hide=())).rows
    cut = (row.path for row in branched if row.format == "native" and _is_cut(app, row.path))
    found = (row.path for row in app.library.list(Filter(has=("finding",), hide=())).rows)
    yield from dict.fromkeys([*unreadable, *found, *cut])


def _is_cut(app: App, path: str) -> bool:
    """Return whether the parent of an entry is missing; the index of the session knows."""
    try:
        with app.store.open(path, readonly=True) as session:
            return any(finding.code == "missing_parent" for finding in session.findings)
    except SessileError:
        return True  # the check says why


def _can_be_read(app: App, path: str) -> bool:
    """Return whether a file can be opened now; the catalog may be older than its permissions."""
    in_database = app.store.database is not None and path.startswith(f"{app.store.layout.root}/")
    return in_database or os.access(path, os.R_OK)


def _is_left(report: Report) -> bool:
    """Return whether a draft has entries, but no writer any more."""
    return report.entries > 0 and any(problem.kind == "draft" for problem in report.problems)


def _advice(app: App, report: Report) -> Advice:
    if report.ok and _is_left(report):
        left = f"{report.path} is a draft without a writer: {many(report.entries, 'entry')} that other programs do not list"
        return Advice("session", "warning", left, report.path, f"{_next_step(app, report)} --apply")
    if report.ok and report.gaps:
        verb_name = "repair" if report.agent is None else "context"
        do = f"{app.command} {verb_name} {handle(app, report.id, report.path, whole=True)} --bridge"
        return Advice("session", "warning", f"{report.path}: {_gaps(report)}", report.path, do)
    if report.ok:
        return Advice("session", "note", f"{report.path} is OK: {many(report.entries, 'entry')}", report.path, "")
    what = report.summary or next(p.message for p in report.problems if p.severity == "damage")
    return Advice("session", "damage", f"{report.path}: {what}", report.path, _next_step(app, report))


def _environment(app: App) -> Iterator[Advice]:
    versions = f"sessile {__version__}, Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}"
    yield Advice("installation", "note", versions, None, "")
    app.library.catch_up()
    for notice in app.library.notices:
        of_cache = app.places.cache in notice
        do = f"check the cache folder {app.places.cache}" if of_cache else "check its owner and permissions"
        yield Advice("folder", "warning", notice, None, do)
    for source in app.library.sources:
        total = app.library.list(Filter(below=[source.sessions], hide=())).total
        files = f"{source.agent}: {many(total, 'file')} in {app.tilde(source.sessions)}"
        yield Advice("folder", "note", files, source.sessions, "")
    yield from _leftovers(app)
    for path in pending(app.store):
        what = f"erasing a session was interrupted; {path} says what is left"
        yield Advice("erasure", "warning", what, path, "the next command that writes continues; or erase it again")


def _leftovers(app: App) -> Iterator[Advice]:
    """Yield the temporary files of dead processes, in the store, its cache and the folders of other agents."""
    if app.store.database is not None:
        return  # each name would be a query; `du` counts them
    for left in leftovers(app.store, *(source.sessions for source in app.library.given)):
        what = f"a process died while it wrote {left.path} ({many(left.size, 'byte')})"
        if left.spare:
            yield Advice("leftover", "note", f"{what}; the next writer removes it", left.path, "")
        else:
            do = f"look at it, then run {app.command} prune --leftovers --apply"
            yield Advice("leftover", "warning", f"{what}; its bytes are nowhere else", left.path, do)


# -- conversations


def _conversations(app: App, named: str | None) -> Iterator[Advice]:
    settings, problems = _settings(app, named)
    yield from problems
    running = Presence(app.store).running()
    if running is not None:
        yield Advice("gateway", "note", f"the gateway is running: {running.url}, process {running.pid}", None, "")
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
    """Return the configuration and its problems; an invalid one is replaced by the defaults."""
    try:
        settings = load_settings(app, named)
        path = settings.path or app.places.root
        problems = [_unknown(key, path) for key in settings.unknown]
        if settings.path is not None and _holds_keys(settings) and os.stat(settings.path).st_mode & _OTHER_USERS:
            exposed = "the configuration contains API keys, and other users can read it"
            problems.append(Advice("config", "warning", exposed, settings.path, f"chmod 600 {settings.path}"))
    except SessileError as error:
        return Settings(Config(), [], None), [Advice("config", "damage", error.message, error.path, error.hint or "")]
    try:
        settings.config.gateway.check_exposure()
    except SessileError as error:
        problems.append(Advice("config", "damage", error.message, path, error.hint or ""))
    return settings, problems


def _unknown(key: str, path: str) -> Advice:
    return Advice("config", "warning", f"unknown key {key} is ignored", path, "check its spelling")


def _holds_keys(settings: Settings) -> bool:
    return any(provider.api_key is not None for provider in settings.config.models.providers.values())


def _explain_key(app: App, key: str, settings: Settings) -> Iterator[Advice]:
    """Yield how a conversation key is parsed, and its session."""
    routing = routing_of(settings.config)
    canonical = routing.canonical(key)
    with Conversations(
        app.store,
        workspace=lambda agent: agent_workspace(settings.config, app.places.root, agent),
        routing=routing,
        hold=None,
    ) as conversations:
        agent = canonical.agent or routing.default_agent
        parsed = f"{key} is parsed as {canonical}: kind {canonical.kind}, agent {agent}"
        yield Advice("key", "note", parsed, None, "")
        found = conversations.get(key)
        if found is None:
            known = [row.text for row in conversations.list().rows]
            similar = get_close_matches(str(canonical), known, _SIMILAR, 0.5)
            do = f"did you mean {', '.join(similar)}?" if similar else f"run `{app.command} sessions` for a list"
            yield Advice("key", "warning", f"conversation not found: {canonical}", None, do)
            return
        path = conversations.path_of(key)
        where = "it has no messages yet" if path is None else f"its session is {found.session_id}"
        yield Advice("key", "note", where, path, "" if path is None else f"{app.command} show {path}")
