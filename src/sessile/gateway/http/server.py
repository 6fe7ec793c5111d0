"""The server below the gateway: a socket, and uvicorn with everything set that the gateway promises.

    with listen("127.0.0.1", 0) as sock:
        serve(app, sock, limits, ready=lambda: print(address(sock)))

Rules: nobody's headers name another client than the one that is connected. Nothing is logged for a request. The first signal to
end lets answers that are under way come to their end, for a few seconds; the second does not. What keeps the application from
starting, or ends it later, is raised as it is: a server without its application would answer nobody.

It does not know what the application does.

Connections that keep the gateway waiting: closed after a while, and at once if there are too many of them.

A client that sends its headers byte by byte, or nothing at all, holds a connection without asking anything. The guards never see
it, because there is no request yet; so this stands below them, in the server's own protocol.

Rules: a connection on which nothing is being answered, before the first request, between two, or while the rest of a refused one
comes in, is closed after `header_seconds`. If more are open than there is room for, the one that has kept us waiting longest goes
at once; who asks right away is not among those. A connection that is being answered is never closed here.

The token of the gateway: who has it may do everything, who has not gets nothing.

It lies in the root of the store, is made at the first start, and is never a part of an address, a log or a message. A file that
somebody has named is read only: to give a token to other machines is a decision, not a default.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessile.config import Limits
from sessile.errors import Conflict, InvalidConfig, PermissionRefused, SessileError
from sessile.gateway.http.problems import App, Receive, Scope, Send
from sessile.storage.secret_file import keep_secret

if TYPE_CHECKING:
    from sessile.core.secret import Secret


# --- slow headers

_SPARE = 64  # connections that may wait while all others are used; a browser keeps some six


class Room:
    """The connections of one server on which nothing is being answered, the longest waiting first."""

    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.header_seconds
        self.most = limits.connections + limits.event_clients + _SPARE
        self.waiting: dict[Punctual, None] = {}


class Punctual(H11Protocol):
    """A connection whose client has to ask something in time."""

    room: ClassVar[Room]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > self.room.most:
            longest = next(iter(self.room.waiting))
            longest._forget()
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """A request has been answered."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._forget()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None and not self.transport.is_closing():
            self.room.waiting[self] = None
            # What was answered may still be on its way, so this does not abort; if there is no room, that is done.
            self._deadline = self.loop.call_later(self.room.seconds, self.transport.close)

    def _forget(self) -> None:
        self.room.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def punctual(limits: Limits) -> type[Punctual]:
    """The protocol of one server, with room of its own."""
    return type("Punctual", (Punctual,), {"room": Room(limits)})


# --- server

_AT_ONCE = 128  # connections that are taken in before anybody is listened to: less than there is room for
_QUEUE = 1024  # connections that the system holds meanwhile; of more than that it makes clients wait a second
_GRACE = 2  # seconds
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG = logging.getLogger("uvicorn.error")


# -- the socket


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address of this machine; 0 lets the system choose the port."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidConfig(f"there is no address of the name {host[:80]!r}", hint="such as 127.0.0.1") from error
    # Only of a socket that says its protocol the event loop knows that small answers must not wait (TCP_NODELAY).
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(_QUEUE)
    except OSError as error:
        sock.close()
        raise _refused(error, host, port) from error
    return sock


def _refused(error: OSError, host: str, port: int) -> SessileError:
    if error.errno == errno.EADDRINUSE:
        hint = "say --port N for another one; --port 0 takes one that is free"
        return Conflict(f"port {port} of {host} is taken by another program", hint=hint)
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "ports below 1024 belong to the system; say --port N"
        return PermissionRefused(f"port {port} of {host} may not be used", hint=hint, code=error.errno)
    hint = "name an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
    return InvalidConfig(f"nothing can listen on port {port} of {host}: {error.strerror}", hint=hint)


def address(sock: socket.socket) -> str:
    """Where the socket is reached from this machine, such as `http://127.0.0.1:8787`."""
    host, port = sock.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{here}]' if ':' in here else here}:{port}"


# -- the server


def serve(app: App, sock: socket.socket, limits: Limits, ready: Callable[[], None]) -> None:
    """Answer on a socket until somebody ends it; `ready` is called when the application has started."""
    watched = _Watched(app)
    config = uvicorn.Config(
        watched,
        http=punctual(limits),
        loop="asyncio",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_AT_ONCE,
        # A little more than the guard allows, so that who sends too much is told so.
        h11_max_incomplete_event_size=4 * limits.header_bytes,
        timeout_keep_alive=3600,  # idle connections are closed by the protocol
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config, ready)
    watched.ended = server.end
    _LOG.setLevel(logging.CRITICAL)  # what fails at the start or the end is raised below
    try:
        server.run(sockets=[sock])
    except SystemExit:  # the server's way to say that the application did not start
        pass
    if watched.failure is not None:
        raise watched.failure
    if not server.started:
        raise SessileError("the gateway did not start")


class _Server(uvicorn.Server):
    """A server that tells when it is ready, and ends at a signal without dying of it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then say so."""
        await super().startup(sockets)
        if self.started:
            for sock in sockets or ():
                sock.listen(_QUEUE)  # the server has made that shorter
            _LOG.setLevel(logging.ERROR)  # what clients send wrongly is told to them alone
            _spare_the_collector()
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: requests that do not are cut off, which is nothing to report."""
        _LOG.setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal, then go on behind the server: there is something left to tidy up."""
        loop = asyncio.get_running_loop()
        wanted = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        for number in wanted:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in wanted:
                loop.remove_signal_handler(number)

    def end(self) -> None:
        """Let answers come to their end, and then end; asked twice, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def _spare_the_collector() -> None:
    """What was made up to now stays until the end: who looks for garbage there lets everybody wait, and finds none."""
    gc.collect()
    gc.freeze()


class _Watched:
    """An application, and what it failed of; `ended` is called then."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.failure: BaseException | None = None
        self.ended: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            self.failure = _ours(error)
            self.ended()
            raise


def _ours(error: BaseException) -> BaseException:
    """The error of ours in a group of errors, or the error as it is."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        typed = error.subgroup(SessileError)
        error = (typed or error).exceptions[0]
    return error


# --- tokens

NAME = "gateway.token"


def gateway_token(root: str, token_file: str | None = None) -> Secret:
    """The token of the gateway of a store, or that in the file that the configuration names."""
    return keep_secret(f"{root}/{NAME}") if token_file is None else keep_secret(token_file, make=False)
