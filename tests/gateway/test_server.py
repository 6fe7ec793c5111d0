"""The socket and server of the gateway: listening, errors and failures of the application."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from sessile.config import Limits
from sessile.errors import Conflict, InvalidConfig, StorageFailure
from sessile.gateway.http.problems import App, Receive, Scope, Send
from sessile.gateway.http.server import address, listen, serve


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_it_listens_where_it_is_told_and_tells_how_it_is_reached(host: str) -> None:
    """The socket listens on the host, its URL is a loopback address, and small responses are sent without delay."""
    with listen(host, 0) as sock:
        url = address(sock)
        assert url.startswith(("http://127.0.0.1:", "http://[::1]:"))
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5).close()
        assert sock.proto == socket.IPPROTO_TCP  # otherwise the event loop does not set TCP_NODELAY


@pytest.mark.parametrize("host", ["192.0.2.7", "a" * 300])
def test_an_address_that_is_none_of_this_machine_is_refused(host: str) -> None:
    """An address of another machine is rejected with a hint."""
    with pytest.raises(InvalidConfig) as caught:
        listen(host, 0)
    assert "127.0.0.1" in (caught.value.hint or "")


def test_a_taken_port_is_a_conflict_and_the_socket_is_closed() -> None:
    """A port in use is a conflict that names the port."""
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(Conflict, match=str(port)):
            listen("127.0.0.1", port)


def test_an_application_that_ends_by_itself_ends_the_server() -> None:
    """If the application ends by itself, the server stops and raises its error."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        while not ready:
            await asyncio.sleep(0.001)
        raise StorageFailure("the disk is gone")

    ready: list[bool] = []
    with listen("127.0.0.1", 0) as sock, pytest.raises(StorageFailure, match="the disk is gone"):
        serve(app, sock, Limits(), lambda: ready.append(True))
    assert ready


def failing(error: Callable[[], BaseException]) -> App:
    """Return an application that fails at startup."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise error()

    return app


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lambda: StorageFailure("the disk is gone"), StorageFailure),
        (lambda: ExceptionGroup("tasks", [ValueError(), ExceptionGroup("in", [StorageFailure()])]), StorageFailure),
        (lambda: ZeroDivisionError(), ZeroDivisionError),
    ],
    ids=["ours", "in a group", "a fault"],
)
def test_what_keeps_the_application_from_starting_is_raised(
    error: Callable[[], BaseException], expected: type[BaseException]
) -> None:
    """A startup error is raised unchanged, also from an exception group, and the server is never ready."""
    ready: list[bool] = []
    with listen("127.0.0.1", 0) as sock, pytest.raises(expected):
        serve(failing(error), sock, Limits(), lambda: ready.append(True))
    assert not ready


@pytest.mark.promise("P53")
def test_nothing_is_kept_of_a_connection_that_was_reset() -> None:
    """A client resets its connection after an answer; no timer keeps the connection until its time."""
    kept: list[object] = []
    reset = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        while not reset.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        kept.extend(timer for timer in timers if not timer.cancelled() and "Protocol" in repr(timer))
        raise StorageFailure("over")

    def ask_and_reset() -> None:
        with socket.create_connection(sock.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1000)
            time.sleep(0.05)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.set()

    with listen("127.0.0.1", 0) as sock, pytest.raises(StorageFailure, match="over"):
        serve(app, sock, Limits(), threading.Thread(target=ask_and_reset).start)
    assert not kept
