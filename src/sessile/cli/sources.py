"""Sources: the folders that sessions come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from sessile.agents.openclaw.importing import conversation_keys
from sessile.cli.command import App, sources_at, verb
from sessile.cli.listing import SOON, say_copies, say_problem, soon
from sessile.cli.output import Cell, Column
from sessile.errors import Invalid, NotFound
from sessile.library import added_sources
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.storage.layout import Source
from sessile.upkeep.keep import Outlook

_GATEWAYS = ("openclaw",)  # agents whose sessions are conversations with keys


@verb(
    "sessile sources                   list the folders",
    "sessile sources add ~/old-agent   add a folder",
    "sessile sources remove ~/old-agent",
    name="sources",
)
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("path", required=False)
def sources_verb(app: App, action: str, path: str | None) -> int:
    """List the folders that sessions come from, and those that do not exist. Folders of other agents are read-only."""
    if action != "list":
        return _change_sources(app, action, path)
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    app.say_notices()
    items, missing = source_items(app)
    if app.json:
        document_sources(app, items, missing)
        return 0
    print_sources(app, items)
    say_copies(app)
    if missing:
        app.out.note(f"not found: {', '.join(map(app.tilde, missing))}")
    app.out.note(f"cache (can be deleted at any time): {app.tilde(app.places.cache)}")
    return 0


def document_sources(app: App, items: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> None:
    """Print the sources as a JSON document."""
    described = ({**item, "newest": app.out.iso(item["newest"])} for item in items)
    app.out.document("sources/1", described, missing=missing, cache=app.places.cache)


def print_sources(app: App, items: Sequence[Mapping[str, Any]]) -> None:
    """Print the sources as a table."""
    columns = [
        Column("agent"),
        Column("sessions", True),
        Column("newest", True),
        Column("folder", wide=True),
        Column("expiring"),
    ]
    rows = (
        [
            Cell(item["agent"], "strong"),
            Cell(str(item["sessions"])),
            app.out.moment(item["newest"]) if item["sessions"] else Cell("-", "dim", ""),
            Cell(app.tilde(item["root"]) + _with_keys(item["keys"]), value=item["root"]),
            _expiring(app, item["expiring"]),
        ]
        for item in items
    )
    app.out.table(columns, rows)


def _expiring(app: App, count: int | None) -> Cell:
    """Return the cell about sessions that expire soon."""
    value = "" if count is None else str(count)
    if not count:
        return Cell("", value=value)
    text = f"{count:,} {'expires' if count == 1 else 'expire'} within {SOON} days → {app.command} keep"
    return Cell(text, "failed", value)


def _with_keys(keys: int | None) -> str:
    return "" if keys is None else f" · {many(keys, 'conversation key', 'conversation keys')}"


def source_items(app: App) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the members of each source, and the folders that do not exist."""
    outlooks = {outlook.source: outlook for outlook in soon(app)}
    for outlook in outlooks.values():
        say_problem(app, outlook)
    items = [_source(app, source, outlooks.get(source)) for source in app.library.sources]
    known = {item["root"] for item in items}
    return items, list(dict.fromkeys(source.root for source in app.places.family if source.root not in known))


def _source(app: App, source: Source, outlook: Outlook | None) -> dict[str, Any]:
    listing = app.library.list(Filter(below=[source.sessions], limit=1))
    return {
        "agent": source.agent,
        "root": source.root,
        "sessions": listing.total,
        "newest": listing.rows[0].modified_ns // 1_000_000 if listing.rows else None,
        "hidden": listing.hidden,
        "keys": _count_keys(app, source),
        "kept": app.store.layout.keeps(source.sessions),
        "expiring": None if outlook is None or outlook.problem is not None else len(outlook.sessions),
    }


def _count_keys(app: App, source: Source) -> int | None:
    keys = conversation_keys(app.store, source.sessions) if source.agent in _GATEWAYS else None
    return None if keys is None else len(keys)


def _change_sources(app: App, action: str, path: str | None) -> int:
    if path is None:
        raise Invalid("a folder is required", hint=f"sessile sources {action} PATH")
    folder = os.path.abspath(os.path.join(app.here, os.path.expanduser(path)))
    known = added_sources(app.store)
    if action == "add" and not os.path.isdir(folder):
        raise NotFound("folder not found", path=folder, hint="pass an existing folder")
    changed = known.add(folder) if action == "add" else known.remove(folder)
    if action == "add":
        found = ", ".join(source.sessions for source in sources_at(folder))
        app.out.note(f"added {found}" if changed else "this folder was already added")
    else:
        app.out.note(f"removed {folder}" if changed else "this folder was not added")
    return 0 if changed else 1
