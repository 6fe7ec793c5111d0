"""Clients that hold connections without sending requests are closed in time and do not block others."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from figures import measured

from .gateways import Serving, serving

pytestmark = pytest.mark.promise("P39")

SECONDS = 0.8
ROOM = 4 * 8 + 8 + 64  # limits of each kind of request, streams and waiting connections
SLOW_BODIES = 100


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


def test_a_hundred_slow_bodies_keep_nobody_out(tmp_path: Path) -> None:
    """With the token, too: others are answered at once, and the slow ones are told that they are too slow."""
    with serving(tmp_path / "root") as gateway, ExitStack() as stack:
        head = (
            f"POST /v1/chat/send HTTP/1.1\r\nHost: {gateway.place[0]}\r\nAuthorization: Bearer {gateway.token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n"
        )
        slow = [stack.enter_context(socket.create_connection(gateway.place)) for _ in range(SLOW_BODIES)]
        for sock in slow:
            sock.sendall(head.encode())
        client = stack.enter_context(httpx.Client(base_url=gateway.url, timeout=10, verify=False))
        client.headers["Authorization"] = f"Bearer {gateway.token}"
        waited: list[float] = []
        began = time.monotonic()
        while time.monotonic() - began < 7:
            for sock in slow:
                with suppress(OSError):
                    sock.sendall(b" ")
            asked = time.monotonic()
            assert client.post("/v1/chat/send", json={"message": "hello"}).status_code == 202
            assert client.get("/v1/sessions").status_code == 200
            waited.append((time.monotonic() - asked) / 2)
            time.sleep(0.2)
        assert sorted(waited)[len(waited) // 2] < 0.1
        for sock in slow:
            sock.settimeout(5)
            assert sock.recv(4096).startswith(b"HTTP/1.1 408 ")
    measured("P39", "slow bodies with the token", connections=SLOW_BODIES, requests=2 * len(waited), refused=0)


def test_a_body_that_keeps_its_pace_is_not_slow(tmp_path: Path) -> None:
    """A body may take longer than the grace period, as long as enough of it arrives."""
    body = json.dumps({"message": "x" * 12_000}).encode()
    with serving(tmp_path / "root") as gateway, socket.create_connection(gateway.place) as sock:
        head = (
            f"POST /v1/chat/send HTTP/1.1\r\nHost: {gateway.place[0]}\r\nAuthorization: Bearer {gateway.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall(head.encode())
        for at in range(0, len(body), 1000):
            sock.sendall(body[at : at + 1000])
            time.sleep(0.5)
        sock.settimeout(5)
        assert sock.recv(4096).startswith(b"HTTP/1.1 202 ")


def test_wrong_tokens_are_answered_ever_later_and_the_right_one_at_once(tmp_path: Path) -> None:
    """Guessing gets slower and is refused in the end; whoever has the token does not notice."""
    with serving(tmp_path / "root") as gateway:
        token, statuses, began = gateway.token, list[int](), time.monotonic()
        for number in range(20):
            statuses.append(gateway.get("/v1/sessions", f"wrong-{number}")[0])
        assert statuses[:10] == [401] * 10 and statuses[-4:] == [429] * 4
        assert time.monotonic() - began > 1.5
        crowd = ThreadPoolExecutor(40)
        guesses = [crowd.submit(gateway.get, "/v1/sessions", f"wrong-{number}") for number in range(400)]
        assert max(answered(gateway) for _ in range(20)) < 1
        assert {guess.result()[0] for guess in guesses} == {429}
        crowd.shutdown()
        connection = http.client.HTTPConnection(*gateway.place, timeout=5)
        connection.request("GET", "/v1/sessions", headers={"Authorization": "Bearer no"})
        response = connection.getresponse()
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert json.loads(response.read())["detail"] == "too many wrong tokens from this address"
        connection.close()
        assert gateway.get("/v1/sessions")[0] == 401  # without any token: nothing to guess
        assert gateway.get("/v1/sessions", token)[0] == 200
    measured("P39", "wrong tokens", requests=421, let_in=0, right_ones_delayed=0)


LOGS = """
import logging, runpy, signal
def log(*_):
    for number in range(20_000):
        logging.getLogger("sessile").warning("%s", "x" * 100)
signal.signal(signal.SIGUSR1, log)
runpy.run_module("sessile.cli.main", run_name="__main__", alter_sys=True)
"""


def test_a_log_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    """Log records beyond what a pipe holds are dropped; requests are answered, and the gateway ends."""
    with serving(tmp_path / "root", program=(sys.executable, "-c", LOGS)) as gateway:
        gateway.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        assert answered(gateway) < 8
        assert answered(gateway) < 1
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(15) == 0
