"""Keeping sessions that their agent is about to delete."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click

from sessile import Filter, Keeper, Kept, expiring
from sessile.cli.app import App, verb
from sessile.cli.naming import SESSION, addresses, located
from sessile.cli.output import size_of
from sessile.cli.warning import SOON, say_problem
from sessile.core.dates import parse_span
from sessile.core.expiry import DAY
from sessile.errors import Invalid, SessileError
from sessile.render.wording import many

_ALL = ("sub_agent",)  # hidden even when everything is kept: they go with their session


@verb(
    "sessile keep                 copy what its agent would delete within 7 days; quiet if that is nothing",
    "sessile keep --within 14d    look further ahead",
    "sessile keep --all           all sessions of agents that delete theirs, however new",
    "sessile keep 0f4e webhook    these, of whichever agent",
    name="keep",
)
@click.argument("sessions", type=SESSION, nargs=-1)
@click.option("--within", metavar="SPAN", help="What would be deleted within 14d, 2w … (7d).")
@click.option("--all", "everything", is_flag=True, help="All sessions of agents that delete theirs.")
def keep_verb(app: App, sessions: tuple[str, ...], within: str | None, everything: bool) -> int:
    """Copy sessions that their agent is about to delete into your own store, byte for byte, with what lies beside them.

    Claude Code deletes what was not changed for 30 days, or for as long as its settings say. Originals are only read. A
    copy is listed, shown, searched and resumed like any session as soon as its original is gone.
    """
    if bool(sessions) + (within is not None) + everything > 1:
        raise Invalid("say names, --within or --all", hint="one of them chooses the sessions")
    days = None if everything else SOON if within is None else parse_span(within) / DAY
    deadlines = {located(app, address): None for address in addresses(sessions)} if sessions else _due(app, days)
    kept: list[Kept] = []
    failed: list[SessileError] = []
    keeper = Keeper(app.library)
    for path in deadlines:
        try:
            kept.append(keeper.keep(path))
        except SessileError as error:
            failed.append(error)
    failed += [error for each in kept for error in each.failed]
    if app.json:
        items = [_described(app, each, deadlines[each.path]) for each in kept]
        app.out.document("keep/1", _with_ids(app, items), failed=[str(error) for error in failed])
    else:
        _print(app, kept, failed)
    return failed[0].exit_code if failed else 0


def _due(app: App, days: float | None) -> dict[str, int | None]:
    """The files of the sessions that would be deleted within so many days, or ever, and when."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    app.say_notices()
    found = expiring(app.library, now=app.store.now(), within_days=days, hide=_ALL, follow=os.path.realpath)
    for outlook in found if days is not None else ():
        say_problem(app, outlook)
    return {session.path: session.deadline for outlook in found for session in outlook.sessions}


def _print(app: App, kept: list[Kept], failed: list[SessileError]) -> None:
    for each in kept:
        for path in each.written:
            app.out.line(path)
        for path in each.aside:
            app.out.note(f"the original has other bytes than its copy had; those are in {path}")
        for path in each.left_out:
            app.out.note(f"not copied, because it is neither a file nor a folder: {path}")
    for error in failed:
        app.out.fail(error)
    new = [each for each in kept if each.written]
    if new:
        told = f"kept {many(len(new), 'session')}, {size_of(sum(each.bytes for each in new))}"
        app.out.note(f"{told}, in {app.tilde(app.store.layout.kept)}")
    elif app.out.is_terminal and not failed:
        app.out.note("nothing to keep: no copy is missing")


def _described(app: App, kept: Kept, deadline: int | None) -> dict[str, Any]:
    """What was done for a session, for a program."""
    return {
        "path": kept.path,
        "agent": kept.agent,
        "deadline": app.out.iso(deadline),
        "copy": kept.copy,
        "written": kept.written,
        "bytes": kept.bytes,
        "unchanged": kept.unchanged,
        "aside": kept.aside,
        "left_out": kept.left_out,
    }


def _with_ids(app: App, items: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The sessions with their ids; that of a file where nobody looks is unknown."""
    rows = app.library.list(Filter(hide=())).rows if items else []
    ids = {row.path: row.id for row in rows}
    return ({"id": ids.get(item["path"]), **item} for item in items)
