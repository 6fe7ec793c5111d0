"""The first minutes: what `sessile` says by itself, the demo, and completion in the shell."""

from __future__ import annotations

import time
from typing import Any

import click

from sessile import Filter
from sessile.cli.app import App, verb
from sessile.cli.listing import catch_up, print_newest
from sessile.cli.sources import document_sources, print_sources, source_items
from sessile.errors import Unsupported
from sessile.render.wording import many

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
