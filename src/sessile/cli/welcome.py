"""First steps: what `sessile` prints without a verb, the demo, and shell completion."""

from __future__ import annotations

import time
from typing import Any

import click
from click.shell_completion import get_completion_class

from sessile.cli.command import App, sessile, verb
from sessile.cli.listing import catch_up, print_newest
from sessile.cli.sources import document_sources, print_sources, source_items
from sessile.errors import Unsupported
from sessile.render.wording import many
from sessile.storage.filters import Filter

_SHELLS = ("bash", "zsh", "fish")
_NEWEST = 10  # sessions on the first screen


def welcome(app: App) -> None:
    """Print the first screen: the agents and their sessions, the newest sessions, and the next steps."""
    began = time.monotonic()
    catch_up(app)
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
    agents = many(len({item["agent"] for item in found}), "agent")
    app.out.note(f"Found {many(listing.total, 'session')} of {agents} in {time.monotonic() - began:.1f} s", "strong")
    print_sources(app, found)
    if missing:
        app.out.note(f"{many(len(missing), 'folder')} of other agents not found → {app.command} sources")
    if unreadable:
        app.out.note(f"{many(unreadable, 'file is', 'files are')} unreadable → {app.command} doctor", "failed")
    if app.out.is_terminal:
        app.out.line()
        print_newest(app, _NEWEST)
        if listing.total > _NEWEST:
            app.out.note(f"… {listing.total - _NEWEST:,} more. Show: {app.command} ls")
        app.out.hidden({name: count for name, count in listing.hidden.items() if name != "unreadable"}, "ls -A")
        app.out.note("")
        app.out.note(f"{app.command} show ID · tree ID · search WORDS · resume ID · stats · help")
    else:
        app.out.note(f"hint: {app.command} ls --json")


def _nothing(app: App) -> None:
    looked = ", ".join(dict.fromkeys(map(app.tilde, [app.store.name, *(source.root for source in app.places.family)])))
    app.out.note(f"No agent sessions found. Looked in: {looked}")
    app.out.note("  sessile demo               try it with made-up sessions, created in the cache folder")
    app.out.note("  sessile sources add PATH   add a folder")


@verb(
    "sessile demo                  create about forty sessions in the cache folder",
    "sessile --demo ls             use any verb on them",
    "sessile --demo tree 6513      a session with branches",
    name="demo",
)
def demo_verb(app: App) -> int:
    """Create a store of made-up sessions: branches, a compaction, an image, failed tools, fake secrets, Chinese text.

    It is created in the cache folder; nothing else is changed. Pass --demo to any verb to use it.
    """
    app.demo = True
    for name in ("places", "store", "library"):
        vars(app).pop(name, None)
    welcome(app)
    if not app.json:
        app.out.note("These sessions are made up. Try: sessile --demo ls, sessile --demo tree 6513")
    return 0


@verb(
    'eval "$(sessile completion bash)"                      in ~/.bashrc',
    'eval "$(sessile completion zsh)"                       in ~/.zshrc',
    "sessile completion fish > ~/.config/fish/completions/sessile.fish",
    name="completion",
)
@click.argument("shell", metavar="bash|zsh|fish")
def completion_verb(app: App, shell: str) -> int:
    """Print the script that completes verbs, options and sessions; zsh and fish show titles beside the ids."""
    kind: Any = get_completion_class(shell) if shell in _SHELLS else None
    if kind is None:
        raise Unsupported(f"no completion for shell {shell[:20]!r}", hint=f"use {', '.join(_SHELLS)}")
    click.echo(kind(sessile, {}, "sessile", "_SESSILE_COMPLETE").source())
    return 0
