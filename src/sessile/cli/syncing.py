"""Bringing sessions from one store to another."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from typing import Any

import click

from sessile import Store, Synced, is_database, sync, sync_bindings
from sessile.cli.app import App, verb
from sessile.cli.output import size_of
from sessile.errors import Invalid, NotFound
from sessile.render.wording import many


@verb(
    "sessile sync postgresql://me@db/x           bring your sessions to a database",
    "sessile sync --from postgresql://me@db/x    bring here what you lack",
    "sessile sync ~/backup --dry-run             see what a copy in a folder lacks",
    name="sync",
)
@click.argument("target", metavar="STORE", required=False)
@click.option("--from", "source", metavar="STORE", help="The store to bring sessions from, instead of your own.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
def sync_verb(app: App, target: str | None, source: str | None, dry_run: bool) -> int:
    """Bring sessions to another store: a folder, or a database.

    New sessions are copied byte for byte, with their blobs and artifacts; others get the entries that they lack. The bindings of
    a gateway come along, of two the newer. Nothing is deleted or changed otherwise. It can be broken off and repeated at any
    time, and then goes on where it was.
    """
    if target is None and source is None:
        raise Invalid("say which store", hint="sessile sync FOLDER or sessile sync postgresql://…")
    with ExitStack() as stack:
        here = app.store if source is None else stack.enter_context(_existing(app, source))
        there = app.store if target is None else stack.enter_context(_store(app, target))
        if (here.name, here.layout.root) == (there.name, there.layout.root):
            raise Invalid("this is one store, not two", path=here.name, hint="name another one")
        with app.out.progress("Bringing sessions") as progress:
            done = list(sync(here, there, preview=dry_run, progress=progress))
            bound = sync_bindings(here, there, preview=dry_run)
        if app.json:
            told = {"source": here.name, "target": there.name, "bindings": bound, "preview": dry_run}
            app.out.document("sync/1", map(_described, done), **told)
        else:
            _print(app, done, bound, there.name, dry_run)
    failed = [each.error for each in done if each.error is not None]
    return failed[0].exit_code if failed else 0


def _existing(app: App, name: str) -> Store:
    """A store that sessions come from: a folder that is not there is a mistake, not a store without sessions."""
    if not is_database(name) and not os.path.isdir(os.path.expanduser(name)):
        raise NotFound(
            "there is no store", path=name, hint="look at the path; a store is a folder with sessions/ in it"
        )
    return _store(app, name)


def _store(app: App, name: str) -> Store:
    return Store(name, cache=app.places.cache if is_database(name) else None)


def _print(app: App, done: list[Synced], bound: int, target: str, preview: bool) -> None:
    for each in done:
        if each.state in ("new", "grown"):
            app.out.line(each.path)
        elif each.error is not None:
            app.out.fail(each.error)
    count = Counter(each.state for each in done)
    parts = [many(count["new"], "new session")] if count["new"] else []
    parts += [f"{many(count['grown'], 'other')} with new entries"] if count["grown"] else []
    parts += [many(bound, "binding")] if bound else []
    room = sum(each.bytes for each in done)
    parts += [size_of(room)] if room else []
    where = app.tilde(target)
    if parts:
        app.out.note(f"{', '.join(parts)}, {'would be brought to' if preview else 'in'} {where}")
    if count["failed"]:
        app.out.note(f"{many(count['failed'], 'session')} could not be brought to {where}")
    elif not parts:
        app.out.note(f"nothing is missing in {where}")


def _described(done: Synced) -> dict[str, Any]:
    """What became of a session, for a program."""
    told = done._asdict()
    return told | {"error": None if done.error is None else str(done.error)}
