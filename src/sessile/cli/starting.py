"""The first minutes: what `sessile` says by itself, the demo, and completion in the shell.

Sources: the folders that sessions come from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from sessile.agents.openclaw.importing import conversation_keys
from sessile.cli.app import App, source_at, verb
from sessile.cli.listing import SOON, catch_up, print_newest, say_copies, say_problem, soon
from sessile.cli.output import Cell, Column
from sessile.errors import Invalid, NotFound, Unsupported
from sessile.library import added_sources
from sessile.render.wording import many
from sessile.storage.filters import Filter
from sessile.storage.layout import Source
from sessile.upkeep.keep import Outlook

# --- sources

_GATEWAYS = ("openclaw",)  # agents whose sessions are conversations with keys


@verb(
    "sessile sources                   the folders that are looked at",
    "sessile sources add ~/old-agent   look there too",
    "sessile sources remove ~/old-agent",
    name="sources",
)
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("path", required=False)
def sources_verb(app: App, action: str, path: str | None) -> int:
    """See which folders are looked at, and which were looked for in vain. Other agents' folders are only read."""
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
    app.out.note(f"cache, may be deleted at any time: {app.tilde(app.places.cache)}")
    return 0


def document_sources(app: App, items: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> None:
    """The folders that sessions come from, for a program."""
    told = ({**item, "newest": app.out.iso(item["newest"])} for item in items)
    app.out.document("sources/1", told, missing=missing, cache=app.places.cache)


def print_sources(app: App, items: Sequence[Mapping[str, Any]]) -> None:
    """The folders that sessions come from, as a table."""
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
    """How many sessions will be gone soon, and what to do."""
    value = "" if count is None else str(count)
    if not count:
        return Cell("", value=value)
    told = f"{count:,} {'expires' if count == 1 else 'expire'} within {SOON} days → {app.command} keep"
    return Cell(told, "failed", value)


def _with_keys(keys: int | None) -> str:
    return "" if keys is None else f" · {many(keys, 'conversation key', 'conversation keys')}"


def source_items(app: App) -> tuple[list[dict[str, Any]], list[str]]:
    """What is known of each folder, and the folders that are not there."""
    going = {outlook.source: outlook for outlook in soon(app)}
    for outlook in going.values():
        say_problem(app, outlook)
    items = [_source(app, source, going.get(source)) for source in app.library.sources]
    known = {item["root"] for item in items}
    return items, list(dict.fromkeys(source.root for source in app.places.family if source.root not in known))


def _source(app: App, source: Source, going: Outlook | None) -> dict[str, Any]:
    listing = app.library.list(Filter(below=[source.sessions], limit=1))
    return {
        "agent": source.agent,
        "root": source.root,
        "sessions": listing.total,
        "newest": listing.rows[0].modified_ns // 1_000_000 if listing.rows else None,
        "hidden": listing.hidden,
        "keys": _count_keys(app, source),
        "kept": app.store.layout.keeps(source.sessions),
        "expiring": None if going is None or going.problem is not None else len(going.sessions),
    }


def _count_keys(app: App, source: Source) -> int | None:
    keys = conversation_keys(app.store, source.sessions) if source.agent in _GATEWAYS else None
    return None if keys is None else len(keys)


def _change_sources(app: App, action: str, path: str | None) -> int:
    if path is None:
        raise Invalid(f"{action} needs a folder", hint=f"sessile sources {action} PATH")
    folder = os.path.abspath(os.path.join(app.here, os.path.expanduser(path)))
    known = added_sources(app.store)
    if action == "add" and not os.path.isdir(folder):
        raise NotFound("there is no such folder", path=folder, hint="sessile sources add PATH looks in a folder")
    changed = known.add(folder) if action == "add" else known.remove(folder)
    if action == "add":
        found = source_at(folder)
        app.out.note(f"looking in {found.sessions} from now on" if changed else "that folder is looked at already")
    else:
        app.out.note("not looked at any more" if changed else "that folder was not added")
    return 0 if changed else 1


# --- starting

_SHELLS = ("bash", "zsh", "fish")
_NEWEST = 10  # sessions on the first screen


def welcome(app: App) -> None:
    """The first screen: which agents' sessions there are, the newest of them, and where to go from here."""
    began = time.monotonic()
    catch_up(app, Filter(), counts=app.demo)  # the demo is small, and whoever sees it for the first time sees all of it
    listing = app.library.list(Filter(limit=0))
    unreadable = listing.hidden.get("unreadable", 0)
    if app.json:
        items, missing = source_items(app)
        document_sources(app, items, missing)
        return
    if not listing.total and not unreadable:
        _nothing(app)
        return
    items, missing = source_items(app)
    found = [item for item in items if item["sessions"]]
    told = f"Found {many(listing.total, 'session')} of {many(len({item['agent'] for item in found}), 'agent')}"
    app.out.note(f"{told} in {time.monotonic() - began:.1f} s", "strong")
    print_sources(app, found)
    if missing:
        places = ", ".join(map(app.tilde, missing))
        app.out.note(f"not found: {places}  (add a folder with: sessile sources add PATH)")
    if unreadable:
        app.out.note(f"{many(unreadable, 'file is', 'files are')} not readable → {app.command} doctor", "failed")
    if app.out.is_terminal:
        app.out.line()
        print_newest(app, _NEWEST)
        app.out.note("")
        app.out.note(f"{app.command} show ID · tree ID · search WORDS · resume ID · stats · help")
    else:
        app.out.note(f"hint: {app.command} ls --json")


def _nothing(app: App) -> None:
    looked = ", ".join(dict.fromkeys(map(app.tilde, [app.store.name, *(source.root for source in app.places.family)])))
    app.out.note(f"No agent sessions found. Looked in: {looked}")
    app.out.note("  sessile demo               try it on made-up sessions; they go to the cache folder only")
    app.out.note("  sessile sources add PATH   look in another folder")


@verb(
    "sessile demo                  make up some forty sessions, in the cache folder",
    "sessile --demo ls             use any verb on them",
    "sessile --demo tree 6513      the one with the branches",
    name="demo",
)
def demo_verb(app: App) -> int:
    """Make up a store to try things on: branches, a compaction, an image, failed tools, fake secrets, Chinese.

    It lies in the cache folder, and nothing else is touched. Every verb uses it with --demo.
    """
    app.demo = True
    for name in ("places", "store", "library"):
        vars(app).pop(name, None)
    welcome(app)
    if not app.json:
        app.out.note("These sessions are made up. Look around: sessile --demo ls, sessile --demo tree 6513")
    return 0


@verb(
    'eval "$(sessile completion bash)"                      in ~/.bashrc',
    'eval "$(sessile completion zsh)"                       in ~/.zshrc',
    "sessile completion fish > ~/.config/fish/completions/sessile.fish",
    name="completion",
)
@click.argument("shell", metavar="bash|zsh|fish")
def completion_verb(app: App, shell: str) -> int:
    """Complete verbs, options and sessions in your shell; zsh and fish show the titles beside the ids."""
    from click.shell_completion import get_completion_class

    from sessile.cli.app import sessile

    kind: Any = get_completion_class(shell) if shell in _SHELLS else None
    if kind is None:
        raise Unsupported(f"there is no completion for {shell[:20]!r}", hint=f"there is one for {', '.join(_SHELLS)}")
    click.echo(kind(sessile, {}, "sessile", "_SESSILE_COMPLETE").source())
    return 0
