"""The client of the gateway: direct connections to one address, and errors that keep their meaning."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sessile import errors
from sessile.cli.gateway_client import BrokenOff, Event, GatewayClient, Unreachable, holding, kebab, problem_class
from sessile.core.secret import Secret

TOKEN = "t" * 43


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[GatewayClient, list[bytes]]]:
    """Yield a client of a server that always sends the same bytes, and the list of requests."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            client, _ = door.accept()
            with client:
                request = client.recv(65536)
                while b"Content-Length" in request and request.endswith(b"\r\n\r\n"):
                    request += client.recv(65536)  # the body is sent separately
                asked.append(request)
                client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield GatewayClient(f"http://127.0.0.1:{door.getsockname()[1]}", Secret(TOKEN)), asked
        thread.join(5)


def response(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_the_token_goes_into_one_header_and_a_query_into_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables are ignored; parameters that are None are left out of the query."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with answering(response("200 OK", b'{"a": 1}')) as (client, asked):
        assert client.get("/v1/status", key="a b:ü", limit=None) == {"a": 1}
    line, *headers = asked[0].decode().split("\r\n")
    assert line == "GET /v1/status?key=a+b%3A%C3%BC HTTP/1.1"
    assert [header for header in headers if TOKEN in header] == [f"Authorization: Bearer {TOKEN}"]


def test_a_problem_becomes_the_error_that_it_was() -> None:
    """Message, hint and exit code are kept; control characters are escaped."""
    document = {
        "type": "urn:sessile:problem:session-not-found",
        "status": 404,
        "detail": "no \x1b[31mway",
        "hint": "list them",
    }
    body = json.dumps(document).encode()
    told = response("404 Not Found", body, "application/problem+json")
    with answering(told) as (client, _), pytest.raises(errors.SessionNotFound) as caught:
        client.get("/v1/session")
    assert caught.value.message == "no \\x1b[31mway" and caught.value.hint == "list them"


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("urn:sessile:problem:turn-in-progress", 409, errors.TurnInProgress),
        ("urn:sessile:problem:something-new", 404, errors.NotFound),
        (None, 401, errors.Unauthorized),
        (None, 429, errors.TooMany),
        ("about:blank", 500, errors.ExtensionFailed),
        (7, 418, errors.ExtensionFailed),
    ],
)
def test_an_unknown_problem_is_told_by_its_status(name: object, status: int, kind: type[errors.SessileError]) -> None:
    """A gateway may send error types that this client does not know."""
    assert problem_class(name, status) is kind


def test_problems_are_named_as_the_gateway_names_them() -> None:
    """Every error class has the same problem type on both sides."""
    from sessile.gateway.http.problems import problem

    waiting: list[type[errors.SessileError]] = [errors.SessileError]
    while waiting:
        kind = waiting.pop()
        waiting += [below for below in kind.__subclasses__() if below.__module__ == errors.__name__]
        told = json.loads(problem(kind("x")).body)["type"]
        assert told == f"urn:sessile:problem:{kebab(kind.__name__)}" and problem_class(told, 599) is kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (response("302 Found\r\nLocation: http://192.0.2.1/", b""), errors.ExtensionFailed),
        (response("200 OK", b"<html>"), errors.ExtensionFailed),
        (response("502 Bad Gateway", b"<html>"), errors.ExtensionFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", BrokenOff),
        (b"", BrokenOff),
        (b"SSH-2.0-OpenSSH_9.6\r\n", BrokenOff),
    ],
    ids=["redirect", "page", "proxy", "half", "nothing", "other"],
)
def test_what_no_gateway_answers_is_an_error_of_ours(answer: bytes, kind: type[errors.SessileError]) -> None:
    """Redirects are not followed, and a truncated response is an error."""
    with answering(answer) as (client, asked), pytest.raises(kind) as caught:
        client.get("/v1/status")
    assert len(asked) == 1 and TOKEN not in str(caught.value) and caught.value.hint


def test_nobody_there_is_said_so() -> None:
    """The error names the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        GatewayClient(f"http://127.0.0.1:{port}", Secret(TOKEN)).get("/v1/status")


def test_events_come_one_by_one() -> None:
    """Comments are skipped, data may span several lines, and an incomplete event is dropped."""
    stream = (
        b': hello\n\nretry: 1000\n\nevent: delta\ndata: {\ndata: "text": "a"}\n\n'
        b'id: 7\r\nevent: reply\r\ndata:{"turn":"x"}\r\n\r\nevent: half\ndata: {"a"'
    )
    with answering(response("200 OK", stream, "text/event-stream; charset=utf-8")) as (client, asked):
        events = list(client.stream("/v1/chat/send", {"message": "hi"}))
    assert events == [Event("delta", {"text": "a"}), Event("reply", {"turn": "x"})]
    assert asked[0].endswith(b'{"message": "hi"}')


@pytest.mark.parametrize("document", [{}, {"a": 1}, [], None, "text", 7])
def test_an_answer_that_lacks_something_is_not_a_gateways(document: object) -> None:
    """A response from another program is detected, and the error names the missing member."""
    with pytest.raises(errors.ExtensionFailed, match="no member 'b'" if document == {"a": 1} else "no member 'a'"):
        holding(document, "http://127.0.0.1:1", "a", "b")
    assert holding({"a": 1, "b": 2}, "http://127.0.0.1:1", "a", "b") == {"a": 1, "b": 2}
