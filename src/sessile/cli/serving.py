"""`sessile serve`: the gateway of a store, in the foreground until somebody ends it.

The address goes to stdout. The token goes with it, in the fragment that no browser sends, if a person looks; what is written
into a file or a log has no token in it, and says where the token lies.

`sessile mcp`: past sessions for agents, over MCP, in the foreground until the client goes or somebody ends it.

What is shown is chosen here, by whoever starts it: which sessions, and whether secrets are hidden. On stdin and stdout nothing
but the protocol is written; over HTTP the address goes to stdout, and the token that it asks for lies in a file.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from sessile.cli.app import App, Settings, load_settings, verb, warn_of_unknown
from sessile.cli.listing import project_of
from sessile.cli.names import other_worktrees
from sessile.cli.output import Output
from sessile.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from sessile.core.secret import Secret
    from sessile.gateway.conversations.presence import Presence
    from sessile.mcp.desk import Desk, Scope


# --- serving

_PACKAGES = ("anyio", "starlette", "uvicorn")
_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0; url={address}"><title>Sessile</title>'
)


@verb(
    "sessile serve                     your store, at 127.0.0.1:8787",
    "sessile serve --port 0 --open     at a free port; opens its page",
    "sessile serve --config own.toml   with agents and models of your own",
    name="serve",
)
@click.option("--host", metavar="ADDRESS", help="Where to listen, instead of 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Which port, instead of 8787; 0 is any.")
@click.option("--config", "named", metavar="FILE", help="The configuration, instead of config.toml in the store.")
@click.option("--open", "opens", is_flag=True, help="Open its page in a browser.")
@click.option("--or-demo", is_flag=True, help="Serve the made-up store if there are no sessions yet.")
def serve_verb(app: App, host: str | None, port: int | None, named: str | None, opens: bool, or_demo: bool) -> int:
    """Start the gateway: one process that owns the conversations of a store and answers every client.

    It listens on this machine only, asks everybody for its token, and ends with Ctrl-C. On a database many may run at once.
    """
    _check_packages()
    from sessile.demo.corpus import bind_demo
    from sessile.gateway.conversations.presence import Presence

    if or_demo:
        _take_the_demo_if_empty(app)
    settings = _chosen(load_settings(app, named), host, port)
    settings.config.gateway.check_exposure()
    warn_of_unknown(app, settings)
    presence = Presence(app.store)
    with _logged(app.out), presence.held():
        if app.demo:
            bind_demo(app.store)
        _serve(app, settings, presence, opens)
    app.out.note("the gateway has ended")
    return 0


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        hint = "pip install 'sessile[gateway]'"
        raise Unsupported(f"the gateway needs the package {' and '.join(missing)}", hint=hint)


def _take_the_demo_if_empty(app: App) -> None:
    """Serve the made-up store instead of one in which there is nothing to see."""
    root = app.places.root
    if app.places.store != root or any(name.endswith(".jsonl") for _, _, names in os.walk(root) for name in names):
        return
    app.out.note(f"there are no sessions in {app.tilde(root)} yet; these are made up")
    app.demo = True
    for name in ("places", "store"):
        vars(app).pop(name, None)


def _chosen(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings with what the command line says."""
    from msgspec.structs import replace

    gateway = settings.config.gateway
    gateway = replace(gateway, host=host or gateway.host, port=gateway.port if port is None else port)
    return settings._replace(config=replace(settings.config, gateway=gateway))


def _serve(app: App, settings: Settings, presence: Presence, opens: bool) -> None:
    from sessile.gateway.http.asgi import make_app
    from sessile.gateway.http.server import address, gateway_token, listen, serve
    from sessile.gateway.service import make_gateway

    config, root = settings.config, app.places.root
    token_file = settings.token_file(root)
    token = gateway_token(root, token_file if config.gateway.token_file is not None else None)
    with listen(config.gateway.host, config.gateway.port) as sock, ExitStack() as stack:
        url = address(sock)

        def ready() -> None:
            stack.enter_context(presence.announced(url, token_file))
            _tell(app, url, token, token_file)
            if opens:
                stack.enter_context(_opened(f"{root}/gateway.html", _with_token(url, token)))

        gateway = make_gateway(app.store, config, sources=app.places.sources(app.store), cache=app.places.cache)
        serve(make_app(gateway, token), sock, config.limits, ready)


def _with_token(url: str, token: Secret) -> str:
    return f"{url}/#token={token.reveal()}"


def _tell(app: App, url: str, token: Secret, token_file: str) -> None:
    if app.json:
        app.out.record("serve/1", {"url": url, "pid": os.getpid(), "root": app.store.name, "tokenFile": token_file})
        return
    if app.out.is_terminal:
        app.out.line(_with_token(url, token))
    else:
        app.out.line(f"{url}/")
        app.out.note(f"the token that it asks for is in {app.tilde(token_file)}")
    app.out.note(f'try: {app.command} send "hello" · {app.command} sessions · Ctrl-C ends it')


@contextmanager
def _opened(path: str, location: str) -> Iterator[None]:
    """Open the page in a browser by a file that only this user can read: who lists processes sees no token."""
    import webbrowser

    from sessile.cli.output import write_file

    page = _PAGE.format(address=location).encode()
    write_file(path, [page], force=True, doing="open the page")
    try:
        webbrowser.open(f"file://{path}")
        yield
    finally:
        os.unlink(path)


# -- the log


@contextmanager
def _logged(out: Output) -> Iterator[None]:
    """Say on stderr what the engine and the server report."""
    handler = _Notes(out.note)
    loggers = [logging.getLogger(name) for name in ("sessile", "uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _Notes(logging.Handler):
    """Writes what was logged as notes, in which nothing can drive a terminal."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._note(f"{record.levelname.lower()}: {self.format(record)}")


# --- mcp

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
    _mcp_check_packages()
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


def _mcp_check_packages() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise Unsupported("this verb needs the package mcp", hint="pip install 'sessile[mcp]'")


def _scope(app: App, agent: str | None, project: str | None) -> Scope:
    from sessile.mcp.desk import Scope, folders_of

    if agent is not None:
        folders_of(app.library, agent)  # that of a name that nobody has would be empty for ever
    folder = None if project is None else project_of(app, project)
    worktrees = () if folder is None or "/" not in folder else other_worktrees(folder, app.out.note)
    return Scope(agent, folder, worktrees)


def _desk(app: App, scope: Scope, show_secrets: bool) -> Desk:
    from sessile.mcp.desk import Desk, Links, Page, Veils

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
    from sessile.mcp.server import serve_http
    from sessile.storage.secret_file import keep_secret

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
