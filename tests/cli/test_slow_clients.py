"""Clients that hold connections without sending requests are closed in time and do not block others."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .gateways import Serving, serving

pytestmark = pytest.mark.promise("P39")

SECONDS = 0.8
ROOM = 8 + 8 + 64  # limits of connections, streams and waiting connections


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Run a gateway with a header timeout below one second and few connections."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "own.toml").write_text(f"[limits]\nheaderSeconds = {SECONDS}\nconnections = 8\neventClients = 8\n")
    with serving(folder / "root", "--config", str(folder / "own.toml")) as running:
        yield running


def is_closed(sock: socket.socket, patience: float = 0.01) -> bool:
    """Return whether the other side has closed a connection, or closes it within the given seconds."""
    sock.settimeout(patience)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def answered(gateway: Serving) -> float:
    """Return the response time of an ordinary request in seconds."""
    began = time.monotonic()
    assert gateway.get("/v1/sessions", gateway.token)[0] == 200
    return time.monotonic() - began


def test_headers_that_come_byte_by_byte_stop_nobody_and_do_not_come_to_their_end(gateway: Serving) -> None:
    """Other clients are answered at once; slow ones are closed at the timeout, even while they send."""
    request = f"GET /healthz HTTP/1.1\r\nHost: {gateway.place[0]}\r\nX-Slow: {'x' * 500}".encode()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(gateway.place)) for _ in range(30)]
        began = time.monotonic()
        longest = 0.0
        sent = 0
        while time.monotonic() - began < SECONDS * 0.8:
            for sock in slow:
                sock.sendall(request[sent : sent + 1])
            sent += 1
            longest = max(longest, answered(gateway))
        assert longest < SECONDS
        assert not any(is_closed(sock) for sock in slow[:3])
        assert all(is_closed(sock, 2) for sock in slow)
        assert time.monotonic() - began < SECONDS + 2


def test_a_crowd_that_says_nothing_gives_way_to_who_asks(tmp_path: Path) -> None:
    """Over the limit, the connections that have waited longest are closed first, before their timeout."""
    (tmp_path / "own.toml").write_text("[limits]\nheaderSeconds = 60\nconnections = 8\neventClients = 8\n")
    with serving(tmp_path / "root", "--config", str(tmp_path / "own.toml")) as gateway, ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(gateway.place)) for _ in range(6 * ROOM)]
        assert answered(gateway) < 5
        assert all(is_closed(sock, 5) for sock in crowd[: 4 * ROOM])
        assert not any(is_closed(sock) for sock in crowd[-ROOM // 2 :])
        assert answered(gateway) < 5


def test_a_refused_request_does_not_hold_its_connection_by_its_body(gateway: Serving) -> None:
    """The response is sent before the body has arrived, and the rest of the body does not extend the timeout."""
    with socket.create_connection(gateway.place) as sock:
        head = f"POST /v1/chat/send HTTP/1.1\r\nHost: {gateway.place[0]}\r\nContent-Length: 100000\r\n\r\n"
        sock.sendall(head.encode())
        sock.settimeout(5)
        assert b" 401 " in sock.recv(4096)
        began = time.monotonic()
        while time.monotonic() - began < 10 * SECONDS:
            try:
                sock.sendall(b"x")
            except ConnectionError:
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 4 * SECONDS


def test_a_connection_serves_many_requests_and_is_closed_when_it_is_idle(gateway: Serving) -> None:
    """Each request restarts the timeout."""
    connection = http.client.HTTPConnection(*gateway.place, timeout=5)
    headers = {"Authorization": f"Bearer {gateway.token}"}
    first = None
    for _ in range(4):
        connection.request("GET", "/v1/sessions", headers=headers)
        assert connection.getresponse().read()
        first = first or connection.sock
        assert connection.sock is first
        time.sleep(SECONDS * 0.6)
    assert is_closed(connection.sock, 2 * SECONDS)
    connection.close()


def test_who_listens_is_not_taken_for_slow(gateway: Serving) -> None:
    """An event stream stays open although the client sends nothing."""
    connection = http.client.HTTPConnection(*gateway.place, timeout=5)
    connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {gateway.token}"})
    response = connection.getresponse()
    assert response.status == 200
    assert not is_closed(connection.sock, 3 * SECONDS)
    connection.close()


@pytest.mark.parametrize(("size", "status"), [(20_000, b" 431 "), (200_000, b" 400 ")])
def test_headers_that_are_too_large_are_refused(gateway: Serving, size: int, status: bytes) -> None:
    """They are refused without a token check; very large headers get a generic status."""
    with socket.create_connection(gateway.place) as sock:
        sock.settimeout(5)
        head = f"GET /healthz HTTP/1.1\r\nHost: {gateway.place[0]}\r\nX-Much: {'x' * size}\r\n\r\n"
        sock.sendall(head.encode())
        assert status in sock.recv(4096)
    assert answered(gateway) < SECONDS
