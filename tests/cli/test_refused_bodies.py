"""A client whose request is refused before its body has arrived sees the response, whatever client it is."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx
import pytest

from figures import measured

from .gateways import Serving, serving

pytestmark = pytest.mark.promise("P39")

LIMIT = 1 << 20
SECONDS = 2.0
BODY = b'{"key": "main", "message": "' + b"x" * (LIMIT + (1 << 20)) + b'"}'
PATH = "/v1/chat/send"

Headers = dict[str, str]


class Answered(NamedTuple):
    """What a client saw."""

    status: int
    media_type: str | None
    body: bytes


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Run a gateway that takes bodies of one mebibyte."""
    folder = tmp_path_factory.mktemp("bodies")
    (folder / "own.toml").write_text(f"[limits]\nbodyBytes = {LIMIT}\nheaderSeconds = {SECONDS}\n")
    (folder / "body").write_bytes(BODY)
    with serving(folder / "root", "--config", str(folder / "own.toml")) as running:
        yield running


def pieces() -> Iterator[bytes]:
    for at in range(0, len(BODY), 1 << 16):
        yield BODY[at : at + (1 << 16)]


def with_curl(*options: str) -> Callable[[Serving, Headers], Answered]:
    def ask(gateway: Serving, headers: Headers) -> Answered:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        sent = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
        form = "\n%{http_code} %{content_type}"
        command = ["curl", "-sS", "-X", "POST", "--data-binary", "@-", "-w", form, *options, *sent, gateway.url + PATH]
        ended = subprocess.run(command, input=BODY, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr
        body, _, told = ended.stdout.rpartition(b"\n")
        status, media_type = told.decode().split(" ")
        return Answered(int(status), media_type, body)

    return ask


def with_urllib(gateway: Serving, headers: Headers) -> Answered:
    """Send `Connection: close`, as this client always does."""
    request = urllib.request.Request(gateway.url + PATH, data=BODY, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return Answered(response.status, None, b"")
    except urllib.error.HTTPError as error:
        return Answered(error.code, error.headers["Content-Type"], error.read())


def with_http_client(chunked: bool, **more: str) -> Callable[[Serving, Headers], Answered]:
    def ask(gateway: Serving, headers: Headers) -> Answered:
        connection = http.client.HTTPConnection(*gateway.place, timeout=10)
        try:
            body = pieces() if chunked else BODY
            connection.request("POST", PATH, body=body, headers=headers | more, encode_chunked=chunked)
            response = connection.getresponse()
            return Answered(response.status, response.getheader("Content-Type"), response.read())
        finally:
            connection.close()

    return ask


def with_httpx(chunked: bool, **more: str) -> Callable[[Serving, Headers], Answered]:
    def ask(gateway: Serving, headers: Headers) -> Answered:
        content = pieces() if chunked else BODY
        response = httpx.post(gateway.url + PATH, content=content, headers=headers | more, timeout=10)
        return Answered(response.status_code, response.headers["Content-Type"], response.content)

    return ask


def slowly(gateway: Serving, headers: Headers) -> Answered:
    """Send the whole body in pieces, with pauses, before looking for a response."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(BODY)}\r\n{lines}\r\n"
    with socket.create_connection(gateway.place, timeout=10) as sock:
        sock.sendall(head.encode())
        for piece in pieces():
            sock.sendall(piece)
            time.sleep(0.01)
        response = http.client.HTTPResponse(sock, method="POST")
        response.begin()
        return Answered(response.status, response.getheader("Content-Type"), response.read())


CLOSE = {"Connection": "close"}
CLIENTS: dict[str, Callable[[Serving, Headers], Answered]] = {
    "curl": with_curl(),
    "curl, no Expect": with_curl("-H", "Expect:"),
    "curl, Expect": with_curl("-H", "Expect: 100-continue"),
    "curl, chunked": with_curl("-H", "Transfer-Encoding: chunked"),
    "curl, 1.0": with_curl("--http1.0"),
    "urllib": with_urllib,
    "http.client": with_http_client(False),
    "http.client, close": with_http_client(False, **CLOSE),
    "http.client, chunked": with_http_client(True),
    "http.client, chunked, close": with_http_client(True, **CLOSE),
    "http.client, Expect": with_http_client(False, Expect="100-continue"),
    "httpx": with_httpx(False),
    "httpx, close": with_httpx(False, **CLOSE),
    "httpx, chunked": with_httpx(True),
    "slow": slowly,
}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("ask", CLIENTS.values(), ids=CLIENTS)
def test_every_client_sees_why_its_body_is_refused(
    gateway: Serving, ask: Callable[[Serving, Headers], Answered]
) -> None:
    """Too large, not allowed, not JSON: each is a problem document, and no connection is reset."""
    bearer = {"Authorization": f"Bearer {gateway.token}"}
    cases = ((bearer | JSON, 413), (JSON, 401), (bearer | {"Content-Type": "text/plain"}, 415))
    for headers, status in cases:
        answered = ask(gateway, headers)
        assert (answered.status, answered.media_type) == (status, "application/problem+json")
        assert json.loads(answered.body)["status"] == status
    measured("P39", "bodies refused before they arrive", requests=len(cases), resets=0)


def test_the_error_names_the_limit(gateway: Serving) -> None:
    """The response says how large a body may be."""
    answered = with_urllib(gateway, {"Authorization": f"Bearer {gateway.token}"} | JSON)
    assert f"larger than {LIMIT} bytes" in json.loads(answered.body)["detail"]


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_refused_body_is_not_received_for_ever(gateway: Serving, connection: str) -> None:
    """The rest is discarded for some seconds only, and the response was sent before."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\nContent-Length: 1000000000\r\n\r\n"
    with socket.create_connection(gateway.place, timeout=10) as sock:
        began = time.monotonic()
        sock.sendall(head.encode())
        with pytest.raises(OSError):
            while time.monotonic() - began < 10 * SECONDS:
                sock.sendall(b"x" * 1000)
                time.sleep(0.02)
        assert SECONDS * 0.5 < time.monotonic() - began < 4 * SECONDS
    assert gateway.get("/healthz")[0] == 200


def test_a_refused_body_is_not_received_whatever_its_size(gateway: Serving) -> None:
    """A client that goes on sending at full speed is cut off before the timeout."""
    for connection in ("close", "keep-alive"):
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\nContent-Length: 9000000000\r\n\r\n"
        )
        sent = 0
        with socket.create_connection(gateway.place, timeout=10) as sock, pytest.raises(OSError):
            sock.sendall(head.encode())
            while sent < 1 << 30:
                sock.sendall(b"x" * (1 << 20))
                sent += 1 << 20
        assert sent < 512 << 20
