"""`sessile mcp`: past sessions for agents, over MCP, in the foreground until the client goes or somebody ends it.

What is shown is chosen here, by whoever starts it: which sessions, and whether secrets are hidden. On stdin and stdout nothing
but the protocol is written; over HTTP the address goes to stdout, and the token that it asks for lies in a file.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from sessile.cli.app import App, verb
from sessile.cli.listing import project_of
from sessile.cli.worktrees import other_worktrees
from sessile.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from sessile.mcp.desk import Desk
    from sessile.mcp.scope import Scope

_PORT = 8788
_TOKEN = "mcp.token"  # another one than the gateway's: who has it may read, and no more


@verb(
    "sessile mcp                             all sessions, on stdin and stdout: an agent starts it",
    "sessile mcp --here                      only those of this project",
    "sessile mcp --agent claude --http       only those of an agent, at http://127.0.0.1:8788/mcp",
    "claude mcp add sessile -- sessile mcp   let Claude Code start it",
    name="mcp",
)
@click.option("-a", "--agent", metavar="NAME", help="Show only sessions of an agent: sessile, pi, claude, codex …")
@click.option("-p", "--project", metavar="FOLDER", help="Show only sessions of a project and its git worktrees.")
@click.option("--here", is_flag=True, help="Show only sessions of this folder, as -p . does.")
@click.option("--show-secrets", is_flag=True, help="Do not hide secrets. Without: placeholders stand for them.")
@click.option("--http", is_flag=True, help="Answer over HTTP, to programs of this machine that have the token.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help=f"Which port of it, instead of {_PORT}; 0 is any."
)
def mcp_verb(
    app: App,
    agent: str | None,
    project: str | None,
    here: bool,
    show_secrets: bool,
    http: bool,
    port: int | None,
) -> int:
    """Let agents search and read past sessions, through MCP: search_sessions, list_sessions, open_session.

    Nothing can be written through it. What it shows is chosen here; a call can narrow it, never widen it.
    """
    _check_packages()
    if here and project is not None:
        raise Invalid("this folder or another project?", hint="--here, or -p FOLDER")
    if port is not None and not http:
        raise Invalid("only an HTTP server has a port", hint="say --http, too")
    scope = _scope(app, agent, "." if here else project)
    desk = _desk(app, scope, show_secrets)
    desk.begin()
    try:
        if http:
            _serve_http(app, desk, scope, _PORT if port is None else port)
        else:
            _serve_stdio(app, desk, scope)
    finally:
        desk.close()
    return 0


def _check_packages() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise Unsupported("this verb needs the package mcp", hint="pip install 'sessile[mcp]'")


def _scope(app: App, agent: str | None, project: str | None) -> Scope:
    from sessile.mcp.scope import Scope, folders_of

    if agent is not None:
        folders_of(app.library, agent)  # that of a name that nobody has would be empty for ever
    folder = None if project is None else project_of(app, project)
    worktrees = () if folder is None or "/" not in folder else other_worktrees(folder, app.out.note)
    return Scope(agent, folder, worktrees)


def _desk(app: App, scope: Scope, show_secrets: bool) -> Desk:
    from sessile.mcp.desk import Desk, Links, Page
    from sessile.mcp.veil import Veils

    veils, links = Veils(show_secrets=show_secrets), Links(app.command, Page(app.store))
    return Desk(lambda: app.library, app.store, scope=scope, veils=veils, links=links, zone=app.out.zone)


def _serve_stdio(app: App, desk: Desk, scope: Scope) -> None:
    from sessile.mcp.server import serve_stdio

    if sys.stdin.isatty():
        app.out.note(f"speaking MCP about {scope.words()}; an agent usually starts this. Ctrl-C ends it")
    # Nobody reads stdin in such a way that Ctrl-C could interrupt it, and there is nothing to tidy up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve_stdio(desk)


def _serve_http(app: App, desk: Desk, scope: Scope, port: int) -> None:
    from sessile import keep_secret
    from sessile.mcp.server import serve_http

    token_file = f"{app.places.root}/{_TOKEN}"

    def ready(url: str) -> None:
        if app.json:
            told = {"url": url, "pid": os.getpid(), "scope": scope.words(), "tokenFile": token_file}
            app.out.record("mcp/1", told)
            return
        app.out.line(url)
        app.out.note(f"shows {scope.words()}; the token that it asks for is in {app.tilde(token_file)}")
        app.out.note("Ctrl-C ends it")

    serve_http(desk, port, keep_secret(token_file), ready)
    app.out.note("the server has ended")
