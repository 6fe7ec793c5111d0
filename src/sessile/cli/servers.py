"""Servers in the foreground: the gateway (`serve`) and the MCP server (`mcp`).

Rules:

- The URL is printed to stdout. At a terminal it includes the gateway's token, in the fragment, which browsers do not send.
  In a pipe or log there is no token, only the path of the file that holds it.
- Over stdio, the MCP server writes nothing but the protocol to stdout.
- The scope of the MCP server is chosen here, at its start: which sessions, and whether secrets are hidden.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from sessile.cli.arguments import other_worktrees
from sessile.cli.command import App, Settings, load_settings, verb, warn_of_unknown
from sessile.cli.listing import project_of
from sessile.cli.output import Output, write_file
from sessile.core.redact import Redactor
from sessile.demo.corpus import bind_demo
from sessile.errors import Invalid, Unsupported
from sessile.gateway.conversations.presence import Presence
from sessile.storage.secret_file import keep_secret

if TYPE_CHECKING:
    from sessile.core.secret import Secret
    from sessile.mcp.access import Access, Scope

_MAX_NOTES = 1000  # log records that wait to be printed
_PRINT_SECONDS = 1.0  # for the last ones

_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0; url={address}"><title>Sessile</title>'
)


@verb(
    "sessile serve                     serve your store at 127.0.0.1:8787",
    "sessile serve --port 0 --open     any free port; open the page",
    "sessile serve --config own.toml   with your agents and models",
    name="serve",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on (127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on (8787); 0 for any free port."
)
@click.option("--config", "named", metavar="FILE", help="Configuration file (config.toml in the store).")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--or-demo", is_flag=True, help="Serve the demo store if there are no sessions yet.")
def serve_verb(app: App, host: str | None, port: int | None, named: str | None, opens: bool, or_demo: bool) -> int:
    """Start the gateway: one process that owns the conversations of a store and serves all clients.

    It listens on this machine only by default, requires its token, and stops with Ctrl-C. Several gateways can share a
    database.
    """
    _require("gateway", "anyio", "starlette", "uvicorn")

    if or_demo:
        _use_demo_if_empty(app)
    settings = _with_options(load_settings(app, named), host, port)
    settings.config.gateway.check_exposure()
    warn_of_unknown(app, settings)
    presence = Presence(app.store)
    with _logging(app.out), presence.held():
        if app.demo:
            bind_demo(app.store)
        _serve(app, settings, presence, opens)
    app.out.note("gateway stopped")
    return 0


def _require(extra: str, *packages: str) -> None:
    """Raise if a package of an optional dependency is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise Unsupported(f"missing packages: {', '.join(missing)}", hint=f"pip install 'sessile[{extra}]'")


def _use_demo_if_empty(app: App) -> None:
    """Switch to the demo store if the user's store has no sessions."""
    root = app.places.root
    if app.places.store != root or any(name.endswith(".jsonl") for _, _, names in os.walk(root) for name in names):
        return
    app.out.note(f"no sessions in {app.tilde(root)} yet; serving made-up sessions")
    app.demo = True
    for name in ("places", "store"):
        vars(app).pop(name, None)


def _with_options(settings: Settings, host: str | None, port: int | None) -> Settings:
    """Return the settings with the options of the command line."""
    gateway = settings.config.gateway
    gateway = replace(gateway, host=host or gateway.host, port=gateway.port if port is None else port)
    return settings._replace(config=replace(settings.config, gateway=gateway))


def _serve(app: App, settings: Settings, presence: Presence, opens: bool) -> None:
    from sessile.gateway.http.asgi import make_app  # these need optional packages
    from sessile.gateway.http.server import address, gateway_token, listen, serve
    from sessile.gateway.service import make_gateway

    config, root = settings.config, app.places.root
    token_file = settings.token_file(root)
    token = gateway_token(root, token_file if config.gateway.token_file is not None else None)
    with listen(config.gateway.host, config.gateway.port) as sock, ExitStack() as stack:
        url = address(sock)

        def ready() -> None:
            stack.enter_context(presence.announced(url, token_file))
            _print_url(app, url, token, token_file)
            if opens:
                stack.enter_context(_browser(f"{root}/gateway.html", _with_token(url, token)))

        gateway = make_gateway(app.store, config, sources=app.places.sources(app.store), cache=app.places.cache)
        serve(make_app(gateway, token), sock, config.limits, ready)


def _with_token(url: str, token: Secret) -> str:
    return f"{url}/#token={token.reveal()}"


def _print_url(app: App, url: str, token: Secret, token_file: str) -> None:
    if app.json:
        app.out.record("serve/1", {"url": url, "pid": os.getpid(), "root": app.store.name, "tokenFile": token_file})
        return
    if app.out.is_terminal:
        app.out.line(_with_token(url, token))
    else:
        app.out.line(f"{url}/")
        app.out.note(f"token file: {app.tilde(token_file)}")
    app.out.note(f'try: {app.command} send "hello" · {app.command} sessions · press Ctrl-C to stop')


@contextmanager
def _browser(path: str, location: str) -> Iterator[None]:
    """Open the page in a browser through a private file, so that the token is not visible in the process list."""
    import webbrowser  # only --open needs it

    page = _PAGE.format(address=location).encode()
    write_file(path, [page], force=True, doing="open the page")
    try:
        webbrowser.open(f"file://{path}")
        yield
    finally:
        os.unlink(path)


@contextmanager
def _logging(out: Output) -> Iterator[None]:
    """Print log records of the engine and the server on stderr."""
    handler = _Notes(out.note)
    loggers = [logging.getLogger(name) for name in ("sessile", "uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class _Notes(logging.Handler):
    """Prints log records as notes, with control characters escaped and secrets replaced.

    A thread prints them, because nobody may read stderr: if it is a full pipe, records are dropped and requests go on.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._waiting: queue.Queue[str | None] = queue.Queue(_MAX_NOTES)
        self._dropped = 0
        self._printer = threading.Thread(target=self._print, name="sessile-log", daemon=True)
        self._printer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record."""
        if record.name == "asyncio" and record.levelno < logging.ERROR:
            return  # a client has disconnected during a response, which is no problem of the gateway
        try:
            self._waiting.put_nowait(f"{record.levelname.lower()}: {self.format(record)}")
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Print what is queued, if it can be printed soon."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._printer.join(_PRINT_SECONDS)
        super().close()

    def _print(self) -> None:
        while (text := self._waiting.get()) is not None:
            self._note(Redactor().redact(text))
            if self._dropped and self._waiting.empty():
                dropped, self._dropped = self._dropped, 0
                self._note(f"warning: {dropped} log records were dropped, because stderr was not read")


# -- mcp

_MCP_PORT = 8788
_MCP_TOKEN = "mcp.token"  # not the gateway's token: this one allows reading only


@verb(
    "sessile mcp                             all sessions over stdio; usually started by an agent",
    "sessile mcp --here                      only sessions of this project",
    "sessile mcp --agent claude --http       only sessions of an agent, at http://127.0.0.1:8788/mcp",
    "claude mcp add sessile -- sessile mcp   add it to Claude Code",
    name="mcp",
)
@click.option("-a", "--agent", metavar="NAME", help="Only sessions of this agent: sessile, pi, claude, codex …")
@click.option("-p", "--project", metavar="FOLDER", help="Only sessions of this project and its git worktrees.")
@click.option("--here", is_flag=True, help="Only sessions of this folder; same as -p .")
@click.option("--show-secrets", is_flag=True, help="Do not replace secrets by placeholders.")
@click.option("--http", is_flag=True, help="Serve over HTTP on this machine; clients need the token.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help=f"Port for --http ({_MCP_PORT}); 0 for any free port."
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
    """Let agents search and read past sessions over MCP: search_sessions, list_sessions, open_session.

    Access is read-only. The options set its scope; a call can narrow it, never widen it.
    """
    _require("mcp", "mcp")
    if here and project is not None:
        raise Invalid("--here and -p exclude each other", hint="pass --here or -p FOLDER")
    if port is not None and not http:
        raise Invalid("--port requires --http", hint="pass --http")
    scope = _scope(app, agent, "." if here else project)
    access = _access(app, scope, show_secrets)
    access.begin()
    try:
        if http:
            _serve_http(app, access, scope, _MCP_PORT if port is None else port)
        else:
            _serve_stdio(app, access, scope)
    finally:
        access.close()
    return 0


def _scope(app: App, agent: str | None, project: str | None) -> Scope:
    from sessile.mcp.access import Scope, folders_of  # needs optional packages

    if agent is not None:
        folders_of(app.library, agent)  # raises for an unknown agent
    folder = None if project is None else project_of(app, project)
    worktrees = () if folder is None or "/" not in folder else other_worktrees(folder, app.out.note)
    return Scope(agent, folder, worktrees)


def _access(app: App, scope: Scope, show_secrets: bool) -> Access:
    from sessile.mcp.access import Access, Links, Masks, Page  # needs optional packages

    masks, links = Masks(show_secrets=show_secrets), Links(app.command, Page(app.store))
    return Access(lambda: app.library, app.store, scope=scope, masks=masks, links=links, zone=app.out.zone)


def _serve_stdio(app: App, access: Access, scope: Scope) -> None:
    from sessile.mcp.mcp_server import serve_stdio  # needs optional packages

    if sys.stdin.isatty():
        app.out.note(f"MCP server for {scope.words()}; usually started by an agent. Press Ctrl-C to stop")
    # The blocking read of stdin cannot be interrupted otherwise, and nothing needs to be cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve_stdio(access)


def _serve_http(app: App, access: Access, scope: Scope, port: int) -> None:
    from sessile.mcp.mcp_server import serve_http  # needs optional packages

    token_file = f"{app.places.root}/{_MCP_TOKEN}"

    def ready(url: str) -> None:
        if app.json:
            members = {"url": url, "pid": os.getpid(), "scope": scope.words(), "tokenFile": token_file}
            app.out.record("mcp/1", members)
            return
        app.out.line(url)
        app.out.note(f"serving {scope.words()}; token file: {app.tilde(token_file)}")
        app.out.note("press Ctrl-C to stop")

    serve_http(access, port, keep_secret(token_file), ready)
    app.out.note("MCP server stopped")
