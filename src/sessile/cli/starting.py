"""The first minutes: what `sessile` says by itself, the demo, and completion in the shell."""

from __future__ import annotations

import time
from typing import Any

import click

from sessile import Filter
from sessile.cli.app import App, verb
from sessile.cli.listing import print_newest
from sessile.cli.output import Cell, Column
from sessile.cli.sources import source_items
from sessile.errors import Unsupported

_SHELLS = ("bash", "zsh", "fish")
_NEWEST = 10  # sessions on the first screen


def welcome(app: App) -> None:
    """The first screen: which agents' sessions there are, the newest of them, and where to go from here."""
    began = time.monotonic()
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up(progress=progress)
    listing = app.library.list(Filter(limit=0))
    unreadable = listing.hidden.get("unreadable", 0)
    if app.json:
        items, missing = source_items(app)
        app.out.document("sources/1", items, missing=missing, cache=app.places.cache)
        return
    if not listing.total:
        _nothing(app)
        return
    items, missing = source_items(app)
    found = [item for item in items if item["sessions"]]
    agents = f"{len(found)} agent{'s' if len(found) > 1 else ''}"
    app.out.note(f"Found {listing.total} sessions of {agents} in {time.monotonic() - began:.1f} s", "strong")
    app.out.table(
        [Column("agent"), Column("sessions", True), Column("newest", True), Column("folder", wide=True)],
        (
            [
                Cell(item["agent"], "strong"),
                Cell(str(item["sessions"])),
                app.out.moment(item["newest"]),
                Cell(item["root"]),
            ]
            for item in found
        ),
    )
    if missing:
        app.out.note(f"not found: {', '.join(missing)}  (add a folder with: sessile sources add PATH)")
    if unreadable:
        app.out.note(f"{unreadable} file{'s are' if unreadable > 1 else ' is'} not readable → sessile doctor", "failed")
    if app.out.is_terminal:
        app.out.line()
        print_newest(app, _NEWEST)
        app.out.note("")
        app.out.note("sessile show ID · tree ID · search WORDS · resume ID · stats · help")
    else:
        app.out.note("hint: sessile ls --json")


def _nothing(app: App) -> None:
    looked = ", ".join([app.places.root, *(source.root for source in app.places.family)])
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
