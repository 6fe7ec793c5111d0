"""The HTTP server: a socket, uvicorn with the settings that the gateway relies on, and the gateway's token.

    with listen("127.0.0.1", 0) as sock:
        serve(app, sock, limits, ready=lambda: print(address(sock)))

Rules:
- Proxy headers are ignored: the client is the one that is connected. Requests are not logged.
- The first signal lets running responses finish for a few seconds. The second stops at once.
- An error that keeps the application from starting, or ends it, is raised.
- A connection without a running request (before the first one, between two, or while the rest of a rejected one
  arrives) is closed after `header_seconds`. If too many are open, the one that has been idle longest is closed at once.
  Clients that send headers byte by byte never reach the guards, so this is part of the server's protocol.
- The rest of a rejected request is received and discarded, within limits, before its connection is closed. Otherwise
  the system would reset the connection, and the client would never see the response.
- The token is in the root of the store, is created at the first start, and is never part of a URL, a log or a message.
  A token file that is configured is only read.

This module knows nothing about the application.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessile.config import Limits
from sessile.errors import Conflict, InvalidConfig, PermissionRefused, SessileError
from sessile.gateway.http.guards import CROWDS
from sessile.gateway.http.problems import App, Receive, Scope, Send
from sessile.storage.secret_file import keep_secret

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from sessile.core.secret import Secret

NAME = "gateway.token"

_SPARE = 64  # idle connections beside the used ones; a browser keeps about six
_BACKLOG = 128  # connections accepted before any is served: fewer than there is room for
_QUEUE = 1024  # connections that the system holds; further clients wait a second
_GRACE = 2  # seconds
_DISCARDED = 64 << 20  # bytes of a rejected request
_CHUNK = 1 << 18
_M_ARENA_MAX = -8  # of mallopt
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG = logging.getLogger("uvicorn.error")


# -- the socket


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this machine. Port 0 lets the system choose."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidConfig(f"invalid host {host[:80]!r}", hint="use an address such as 127.0.0.1") from error
    # The event loop sets TCP_NODELAY only for sockets with an explicit protocol.
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
        hint = "pass --port N for another port, or --port 0 for a free one"
        return Conflict(f"port {port} of {host} is in use by another program", hint=hint)
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "ports below 1024 are reserved; pass --port N"
        return PermissionRefused(f"permission denied for port {port} of {host}", hint=hint, code=error.errno)
    hint = "use an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
    return InvalidConfig(f"cannot listen on port {port} of {host}: {error.strerror}", hint=hint)


def address(sock: socket.socket) -> str:
    """Return the URL of a socket, such as `http://127.0.0.1:8787`."""
    host, port = sock.getsockname()[:2]
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{here}]' if ':' in here else here}:{port}"


# -- the server


def serve(app: App, sock: socket.socket, limits: Limits, ready: Callable[[], None]) -> None:
    """Serve an application on a socket until it is stopped. `ready` is called when the application has started."""
    _share_memory()
    watched = _WatchedApp(app)
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
        backlog=_BACKLOG,
        # More than the guard allows, so that a client that sends too much gets its error.
        h11_max_incomplete_event_size=4 * limits.header_bytes,
        timeout_keep_alive=3600,  # idle connections are closed by the protocol
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config, ready)
    watched.ended = server.end
    _LOG.setLevel(logging.CRITICAL)  # errors at start and end are raised below
    try:
        server.run(sockets=[sock])
    except SystemExit:  # raised by uvicorn if the application did not start
        pass
    if watched.failure is not None:
        raise watched.failure
    if not server.started:
        raise SessileError("the gateway failed to start")


class _Server(uvicorn.Server):
    """A server that calls `ready`, and that stops at a signal instead of raising it again."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then call `ready`."""
        await super().startup(sockets)
        if self.started:
            for sock in sockets or ():
                sock.listen(_QUEUE)  # uvicorn has set a shorter queue
            _LOG.setLevel(logging.ERROR)  # protocol errors are reported to the client only
            _freeze_garbage()
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop. Requests that do not finish in time are cut off, which is not logged."""
        _LOG.setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, and let the caller of `serve` continue."""
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
        """Let running responses finish, then stop; called twice, stop at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def _freeze_garbage() -> None:
    """Exempt the objects made so far from garbage collection: they live until the end, and scanning them delays requests."""
    gc.collect()
    gc.freeze()


def _share_memory() -> None:
    """Let all threads allocate from two arenas. With one for each, as by default, memory grows by what lies free in them."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class _WatchedApp:
    """An application whose failure is kept. `ended` is called then."""

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
            self.failure = _unwrapped(error)
            self.ended()
            raise


def _unwrapped(error: BaseException) -> BaseException:
    """Return the Sessile error in a group of errors, or the error as it is."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        typed = error.subgroup(SessileError)
        error = (typed or error).exceptions[0]
    return error


# -- connections


class Room:
    """The idle connections of one server, the longest idle first, and those that discard the rest of a request."""

    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.header_seconds
        # Bodies that arrive, and each kind of request.
        self.most = limits.connections * len(CROWDS) + limits.event_clients + _SPARE
        self.waiting: dict[Punctual, None] = {}
        self.lingering: dict[Lingering, None] = {}


class Punctual(H11Protocol):
    """A connection that is closed if its client sends no complete request in time."""

    room: ClassVar[Room]
    _deadline: asyncio.TimerHandle | None = None
    _discarded = 0
    _is_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of a new connection."""
        super().connection_made(transport)
        self._update()
        if len(self.connections) > self.room.most:
            next(iter(self.room.waiting))._abort()

    def data_received(self, data: bytes) -> None:
        """Stop the deadline if a request is complete."""
        super().data_received(data)
        self._update()
        if self._deadline is not None and self.conn.their_state is h11.SEND_BODY:
            self._discarded += len(data)
            if self._discarded > _DISCARDED:
                self._abort()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a closed connection. If the rest of a rejected request is on its way, discard it first."""
        self._forget()
        self._unset_keepalive_if_required()  # uvicorn leaves this timer if the client has reset the connection
        if exc is None and not self._is_over and self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            Lingering(self.room, self.transport.get_extra_info("socket"), self.loop)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Note that the client sends nothing more."""
        self._is_over = True
        super().eof_received()

    def _update(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None and not self.transport.is_closing():
            self._discarded = 0
            self.room.waiting[self] = None
            # The response may still be in transit, so do not abort here; that is done only if there is no room.
            self._deadline = self.loop.call_later(self.room.seconds, self._close)

    def _close(self) -> None:
        self._is_over = True
        self.transport.close()

    def _abort(self) -> None:
        self._is_over = True
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self.room.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Lingering:
    """A connection whose response is sent: what still arrives is discarded until the client closes it, within limits."""

    def __init__(self, room: Room, sock: TransportSocket, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._sock = sock.dup()  # the transport closes its own
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the client has closed it
        self._left = _DISCARDED
        self._room = room
        self._loop = loop
        if len(room.lingering) >= _SPARE:
            next(iter(room.lingering)).close()
        room.lingering[self] = None
        self._deadline = loop.call_later(room.seconds, self.close)
        loop.add_reader(self._sock, self._discard)

    def close(self) -> None:
        """Close the connection."""
        self._deadline.cancel()
        self._room.lingering.pop(self, None)
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _discard(self) -> None:
        try:
            size = len(self._sock.recv(_CHUNK))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        self._left -= size
        if size == 0 or self._left < 0:
            self.close()


def punctual(limits: Limits) -> type[Punctual]:
    """Return the protocol class of one server."""
    return type("Punctual", (Punctual,), {"room": Room(limits)})


# -- the token


def gateway_token(root: str, token_file: str | None = None) -> Secret:
    """Return the token of a store's gateway, or the one in the configured file."""
    return keep_secret(f"{root}/{NAME}") if token_file is None else keep_secret(token_file, make=False)
