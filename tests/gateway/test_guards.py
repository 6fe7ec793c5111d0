"""The guards: host, origin, token, limits, and problem responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, Router

from asgi_driver import Header, Nothing, Piece, Response, ask, deliver, scope_of
from figures import measured
from sessile.config import LOOPBACK, Limits
from sessile.core.secret import Secret
from sessile.errors import Conflict, Invalid, SessileError, SessionNotFound, StorageFull, TooMany, storage_failure
from sessile.gateway.http.guards import CONTENT_POLICY, Guarding, WrongTokens, guarded
from sessile.gateway.http.problems import App, Message, Receive, Scope, Send

TOKEN = "canary-Abcdefghijklmnopqrstuvwxyz0123456789_-Z"
HOST = ("Host", "127.0.0.1:8787")
BEARER = ("Authorization", f"Bearer {TOKEN}")
JSON = ("Content-Type", "application/json")

NAMES = LOOPBACK | {"box.example"}


class Recorder:
    """An application that records request bodies and responds or fails as configured."""

    def __init__(self, failure: BaseException | None = None, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.bodies: list[bytes] = []
        self.failure = failure
        self.headers = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        if self.failure is not None:
            raise self.failure
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"in"})


def settings(**limits: Any) -> Guarding:
    return Guarding(Secret(TOKEN), Limits(**limits), NAMES, frozenset({"/healthz", "/", "/static/"}), lambda: 0.0)


def request(
    app: App,
    headers: Sequence[Header] = (HOST, BEARER),
    *,
    method: str = "GET",
    target: str = "/sessions",
    body: Sequence[Piece] = (),
    client: str | None = "127.0.0.1",
) -> Response:
    return asyncio.run(ask(app, scope_of(method, target, headers, client), body))


def try_it(
    headers: Sequence[Header], *, method: str = "GET", target: str = "/sessions", body: Sequence[Piece] = ()
) -> Response:
    """Return the response of a guarded application, and check that it is called only for allowed requests."""
    return asyncio.run(_try(scope_of(method, target, headers), body))


def try_all(requests: Iterable[tuple[str, str, Sequence[Header]]]) -> set[tuple[int, str | None]]:
    """Return the set of statuses and problem types that the requests lead to."""

    async def run() -> list[Response]:
        return [await _try(scope_of(*one), ()) for one in requests]

    return {(one.status, one.json()["type"] if one.status >= 400 else None) for one in asyncio.run(run())}


async def _try(scope: dict[str, Any], body: Sequence[Piece]) -> Response:
    inner = Recorder()
    response = await ask(guarded(inner, settings()), scope, body)
    assert bool(inner.bodies) is (response.status == 200)
    check_sealed(response)
    return response


def check_sealed(response: Response) -> None:
    """Check for security headers, no CORS headers, no token, and a problem document in every error response."""
    names = [name for name, _ in response.headers]
    assert not [name for name in names if name.startswith("access-control-") or name == "set-cookie"]
    assert response.header("content-security-policy") == CONTENT_POLICY
    assert response.header("x-content-type-options") == "nosniff"
    assert response.header("referrer-policy") == "no-referrer"
    assert response.header("cache-control") == "no-store"
    assert response.header("cross-origin-resource-policy") == "same-origin"
    assert TOKEN not in f"{response.headers} {response.body!r}"
    if response.status >= 400:
        assert response.header("content-type") == "application/problem+json"
        assert response.header("content-length") == str(len(response.body))
        assert sorted(response.json()) == ["detail", "hint", "status", "title", "type"]
        assert response.json()["status"] == response.status


# -- hosts and origins

GOOD_HOSTS = [
    "127.0.0.1:8787",
    "127.0.0.1",
    "localhost",
    "localhost:8787",
    "LocalHost:8787",
    "LOCALHOST",
    "[::1]:8787",
    "[::1]",
    "localhost:1",
    "localhost:65535",
    "box.example",
    "BOX.example:443",
]
BAD_HOSTS: list[str | bytes | None] = [
    None,
    "",
    " ",
    "evil.com",
    "evil.com:8787",
    "127.0.0.1.evil.com",
    "127.0.0.1.evil.com:8787",
    "localhost.evil.com",
    "evil.com.localhost",
    "evillocalhost",
    "localhostevil",
    "box.example.evil.com",
    "notbox.example",
    "sub.box.example",
    "boxXexample",
    "127.0.0.1.",
    "localhost.",
    "localhost.:8787",
    "[::ffff:127.0.0.1]",
    "[::ffff:127.0.0.1]:8787",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:0:0:1]",
    "[::]",
    "[::1%25lo]",
    "[::1",
    "::1",
    "::1:8787",
    "0.0.0.0",
    "0.0.0.0:8787",
    "0",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.0.0.2",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:99999",
    "localhost:+80",
    "localhost:8787:80",
    "localhost:80a",
    "localhost:0x50",
    ":8787",
    "user@localhost",
    "localhost@evil.com",
    "evil.com#localhost",
    "evil.com/localhost",
    "evil.com\\localhost",
    "http://localhost",
    "localhost/",
    "localhost, evil.com",
    "evil.com,localhost",
    "localhost evil.com",
    " localhost",
    "localhost\t",
    "localhost\n",
    "localhost\x00",
    "*",
    "null",
    "metadata.google.internal",
    "169.254.169.254",
    b"localhost\xad",
    "ｌocalhost".encode(),
    b"\xff\xfe",
]
GOOD_ORIGINS = [
    "http://127.0.0.1:8787",
    "https://127.0.0.1:8787",
    "HTTP://127.0.0.1:8787",
]
BAD_ORIGINS: list[str | bytes] = [
    "null",
    "Null",
    "",
    " ",
    "*",
    "http://evil.com",
    "http://evil.com:8787",
    "https://evil.com",
    "http://127.0.0.1.evil.com:8787",
    "http://evil.com/http://127.0.0.1:8787",
    "http://127.0.0.1",
    "http://127.0.0.1:80",
    "http://127.0.0.1:3000",
    "http://127.0.0.1:87870",
    "http://127.0.0.1:8787/",
    "http://127.0.0.1:8787 ",
    " http://127.0.0.1:8787",
    "http://127.0.0.1.:8787",
    "http://localhost:8787",
    "http://[::1]:8787",
    "http://[::ffff:127.0.0.1]:8787",
    "http://0.0.0.0:8787",
    "http://user@127.0.0.1:8787",
    "http://127.0.0.1:8787, http://evil.com",
    "http://127.0.0.1:8787 http://evil.com",
    "http:/127.0.0.1:8787",
    "//127.0.0.1:8787",
    "127.0.0.1:8787",
    "ws://127.0.0.1:8787",
    "ftp://127.0.0.1:8787",
    "file://",
    "file://127.0.0.1:8787",
    "chrome-extension://abcdefghijklmnop",
    "data:text/html,x",
    "about:blank",
    b"http://127.0.0.1:8787\xff",
]

WITHOUT_TOKEN: list[tuple[str, list[Header], str]] = [
    ("none", [], ""),
    ("wrong", [("Authorization", "Bearer " + "x" * len(TOKEN))], ""),
    ("prefix", [("Authorization", f"Bearer {TOKEN[:-1]}")], ""),
    ("first character", [("Authorization", f"Bearer {TOKEN[:1]}")], ""),
    ("longer", [("Authorization", f"Bearer {TOKEN}x")], ""),
    ("upper case", [("Authorization", f"Bearer {TOKEN.upper()}")], ""),
    ("lower case", [("Authorization", f"Bearer {TOKEN.lower()}")], ""),
    ("swapped case", [("Authorization", f"Bearer {TOKEN.swapcase()}")], ""),
    ("empty", [("Authorization", "")], ""),
    ("only the scheme", [("Authorization", "Bearer")], ""),
    ("scheme and space", [("Authorization", "Bearer ")], ""),
    ("no scheme", [("Authorization", TOKEN)], ""),
    ("another scheme", [("Authorization", f"Basic {TOKEN}")], ""),
    ("another scheme, coded", [("Authorization", "Basic OmNhbmFyeQ==")], ""),
    ("two spaces", [("Authorization", f"Bearer  {TOKEN}")], ""),
    ("a space behind", [("Authorization", f"Bearer {TOKEN} ")], ""),
    ("quoted", [("Authorization", f'Bearer "{TOKEN}"')], ""),
    ("twice", [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")], ""),
    ("right and wrong", [("Authorization", "Bearer x"), ("Authorization", f"Bearer {TOKEN}")], ""),
    ("bytes that are no text", [("Authorization", b"Bearer \xff\xfe")], ""),
    ("cookie", [("Cookie", f"token={TOKEN}; Authorization=Bearer {TOKEN}")], ""),
    ("query", [], f"?token={TOKEN}&access_token={TOKEN}"),
    ("header of another name", [("X-Api-Key", TOKEN), ("Proxy-Authorization", f"Bearer {TOKEN}")], ""),
    ("forwarded header", [("X-Forwarded-Authorization", f"Bearer {TOKEN}")], ""),
]
EVERY_TOKEN: list[tuple[str, list[Header], str]] = [*WITHOUT_TOKEN, ("right", [BEARER], "")]
ROUTES = ["/sessions", "/sessions/1/events", "/", "/healthz"]


@pytest.mark.promise("P34")
@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_who_calls_us_by_our_name_is_let_in(host: str) -> None:
    """Allowed host names are accepted in any letter case, with or without a port."""
    assert try_it([("Host", host), BEARER]).status == 200


@pytest.mark.promise("P34")
@pytest.mark.parametrize("host", BAD_HOSTS, ids=repr)
def test_who_calls_us_by_another_name_gets_nothing(host: str | bytes | None) -> None:
    """Any other Host is rejected first, on every route and with any token."""
    said: list[Header] = [] if host is None else [("Host", host)]
    requests = [("GET", route + query, [*said, *headers]) for _, headers, query in EVERY_TOKEN for route in ROUTES]
    assert try_all(requests) == {(403, "urn:sessile:problem:forbidden-host")}
    measured("P34", "foreign host names", forms=1, requests=len(requests), let_in=0)


@pytest.mark.promise("P34")
def test_two_names_are_no_name() -> None:
    """A request with two Host headers is rejected, even if both are allowed."""
    for second in ("127.0.0.1:8787", "evil.com"):
        other = ("Host", second)
        assert try_it([HOST, other, BEARER]).status == try_it([other, HOST, BEARER]).status == 403


@pytest.mark.promise("P34")
def test_no_other_header_says_who_we_are() -> None:
    """Forwarded-host headers are ignored."""
    for name in ("X-Forwarded-Host", "Forwarded", "X-Host", "X-Original-Host"):
        assert try_it([HOST, BEARER, (name, "evil.com")]).status == 200
        assert try_it([("Host", "evil.com"), BEARER, (name, "localhost")]).status == 403


@pytest.mark.promise("P34")
@pytest.mark.parametrize("origin", GOOD_ORIGINS)
def test_our_own_page_is_let_in(origin: str) -> None:
    """An Origin that matches the Host is accepted."""
    assert try_it([HOST, BEARER, ("Origin", origin)]).status == 200


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("box.example", "https://box.example"),
        ("box.example:443", "https://box.example"),
        ("[::1]:8787", "http://[::1]:8787"),
    ],
)
def test_the_usual_port_may_be_left_out(host: str, origin: str) -> None:
    """The default port may be omitted in the Host or the Origin."""
    assert try_it([("Host", host), BEARER, ("Origin", origin)]).status == 200


@pytest.mark.promise("P34")
@pytest.mark.parametrize("origin", BAD_ORIGINS, ids=repr)
def test_every_other_page_gets_nothing(origin: str | bytes) -> None:
    """Any other Origin is rejected, on every route and with any token."""
    page: list[Header] = [HOST, ("Origin", origin)]
    requests = [("GET", route + query, [*page, *headers]) for _, headers, query in EVERY_TOKEN for route in ROUTES]
    assert try_all(requests) == {(403, "urn:sessile:problem:forbidden-origin")}
    measured("P34", "foreign origins", forms=1, requests=len(requests), let_in=0)


@pytest.mark.promise("P34")
def test_two_origins_are_another_page() -> None:
    """A request with two Origin headers is rejected."""
    ours = ("Origin", GOOD_ORIGINS[0])
    for second in (ours, ("Origin", "http://evil.com")):
        assert try_it([HOST, BEARER, ours, second]).status == 403


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    "asked",
    ["Access-Control-Request-Method", "Access-Control-Request-Headers", "Access-Control-Request-Private-Network"],
)
@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:8787", "http://evil.com", "null"])
def test_a_preflight_is_refused(asked: str, origin: str | None) -> None:
    """Every CORS preflight is rejected."""
    page: list[Header] = [] if origin is None else [("Origin", origin)]
    for route in ROUTES:
        assert try_it([HOST, *page, (asked, "true")], method="OPTIONS", target=route).status == 403


@pytest.mark.promise("P34")
def test_the_application_cannot_let_another_site_read() -> None:
    """CORS headers and cookies are removed from responses; other headers are kept."""
    inner = Recorder(
        headers=[
            (b"Access-Control-Allow-Origin", b"*"),
            (b"access-control-allow-private-network", b"true"),
            (b"Set-Cookie", b"a=b"),
            (b"Content-Security-Policy", b"default-src *"),
            (b"cache-control", b"public"),
            (b"content-type", b"text/plain"),
        ]
    )
    response = request(guarded(inner, settings()))
    check_sealed(response)
    assert response.header("content-type") == "text/plain"


@pytest.mark.promise("P34")
@given(st.binary(max_size=30), st.binary(max_size=30))
def test_no_bytes_in_a_header_make_anything_but_an_answer(host: bytes, origin: bytes) -> None:
    """Arbitrary bytes in Host and Origin are rejected without an error."""
    response = try_it([("Host", host), ("Origin", origin), BEARER])
    assert response.status == 403


# -- the token


@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    ("headers", "query"), [row[1:] for row in WITHOUT_TOKEN], ids=[row[0] for row in WITHOUT_TOKEN]
)
def test_without_the_token_there_is_nothing(headers: list[Header], query: str) -> None:
    """Without a valid token, every method and path returns the same 401 response."""
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"]
    targets = ["/sessions", "/sessions/1/events", "/v1/chat/completions", "/nowhere"]
    requests = [(method, target + query, [HOST, *headers]) for method in methods for target in targets]
    assert try_all(requests) == {(401, "urn:sessile:problem:unauthorized")}
    measured("P33", "forms of a token", forms=1, requests=len(requests), let_in=0)
    assert try_it([HOST, *headers], target=f"/sessions{query}").header("www-authenticate") == "Bearer"


@pytest.mark.promise("P33")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_with_the_token_one_is_let_in(scheme: str) -> None:
    """The scheme is not case-sensitive."""
    assert try_it([HOST, ("Authorization", f"{scheme} {TOKEN}")]).status == 200


@pytest.mark.promise("P33")
@pytest.mark.parametrize("target", ["/healthz", "/healthz?x=1", "/", "/static/page.js", "/static/"])
def test_the_open_paths_need_no_token(target: str) -> None:
    """Open paths can be read without a token; other methods require it."""
    for method, status in (("GET", 200), ("HEAD", 200), ("POST", 401), ("DELETE", 401), ("OPTIONS", 401)):
        assert try_it([HOST], method=method, target=target).status == status


@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    "target",
    [
        "/healthz/",
        "/healthz/x",
        "/healthz%2f..%2fsessions",
        "//healthz",
        "/HEALTHZ",
        "/healthzz",
        "/static",
        "/static/../sessions",
        "/static/%2e%2e/sessions",
        "/static/deeper/page.js",
        "/static//sessions",
        "/x/static/page.js",
        "/sessions/static/",
        "/sessions",
        "",
        "*",
    ],
)
def test_what_only_looks_like_an_open_path_needs_the_token(target: str) -> None:
    """No other spelling of an open path is accepted without a token."""
    assert try_it([HOST], target=target).status == 401


@pytest.mark.promise("P33")
def test_the_token_is_in_no_representation() -> None:
    """The `repr` of the settings does not contain the token."""
    assert TOKEN not in repr(settings())


def test_a_request_without_the_token_does_not_wait_for_its_body() -> None:
    """A request without a token is rejected before its body is read."""

    async def never() -> Message:
        raise AssertionError("the body was asked for")

    sent: list[Message] = []
    scope = scope_of("POST", "/sessions", [HOST, JSON, ("Content-Length", "100")])
    asyncio.run(deliver(guarded(Recorder(), settings()), scope, sent, never))
    assert sent[0]["status"] == 401


# -- limits


def padded(size: int, base: Sequence[Header], target: str) -> list[Header]:
    """Return headers that, together with the target, have the given number of bytes."""
    used = len(target) + sum(len(name) + len(value) + 4 for name, value in base)
    return [*base, ("X-Pad", "x" * (size - used - len("X-Pad") - 4))]


@pytest.mark.promise("P39")
@pytest.mark.parametrize(("more", "status"), [(-1, 200), (0, 200), (1, 431)])
def test_headers_have_a_limit(more: int, status: int) -> None:
    """Headers and target together are limited in bytes."""
    limit = Limits().header_bytes
    assert try_it(padded(limit + more, [HOST, BEARER], "/sessions")).status == status
    inner = Recorder()
    target = "/sessions?" + "q" * (limit + more - sum(len(n) + len(v) + 4 for n, v in (HOST, BEARER)) - 9)
    assert request(guarded(inner, settings()), target=target).status == status


@pytest.mark.promise("P39")
@pytest.mark.parametrize(("size", "status"), [(0, 200), (99, 200), (100, 200), (101, 413), (10**9, 413)])
def test_a_body_has_a_limit_that_its_length_tells(size: int, status: int) -> None:
    """A Content-Length above the limit is rejected before the body is read."""
    inner = Recorder()
    headers = [HOST, BEARER, JSON, ("Content-Length", str(size))]
    body: list[Piece] = [b"x" * size] if status == 200 else [10.0]
    response = request(guarded(inner, settings(body_bytes=100)), headers, method="POST", body=body)
    assert response.status == status
    assert inner.bodies == ([b"x" * size] if status == 200 else [])


@pytest.mark.promise("P39")
@pytest.mark.parametrize(("pieces", "status"), [([50, 50], 200), ([50, 51], 413), ([1] * 100, 200), ([1] * 101, 413)])
def test_a_body_without_a_length_has_the_same_limit(pieces: list[int], status: int) -> None:
    """A chunked body is counted while it is read; the application gets all of it or nothing."""
    inner = Recorder()
    headers = [HOST, BEARER, JSON, ("Transfer-Encoding", "chunked")]
    body = [b"x" * size for size in pieces]
    response = request(guarded(inner, settings(body_bytes=100)), headers, method="POST", body=body)
    assert response.status == status
    assert inner.bodies == ([b"".join(body)] if status == 200 else [])


@pytest.mark.promise("P39")
def test_a_body_that_lies_about_its_length_is_counted() -> None:
    """A body that exceeds its Content-Length is still limited."""
    inner = Recorder()
    headers = [HOST, BEARER, JSON, ("Content-Length", "5")]
    response = request(guarded(inner, settings(body_bytes=100)), headers, method="POST", body=[b"x" * 60, b"x" * 60])
    assert (response.status, inner.bodies) == (413, [])


@pytest.mark.promise("P40")
@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "0x10", "5, 5", "", " ", "5 5", "9" * 5000, "٣".encode()])
def test_a_length_that_is_no_number_is_refused(length: str | bytes) -> None:
    """An invalid or repeated Content-Length returns 400."""
    assert try_it([HOST, BEARER, JSON, ("Content-Length", length)], method="POST").status == 400
    two: list[Header] = [("Content-Length", "1"), ("Content-Length", "1")]
    assert try_it([HOST, BEARER, JSON, *two], method="POST").status == 400


@pytest.mark.promise("P39")
@pytest.mark.parametrize("body", [[b"{", 5.0, b"}"], [5.0], [b"x", 0.02] * 20 + [b"x"]], ids=["stuck", "none", "drip"])
def test_a_slow_body_ends_with_408(body: list[Piece]) -> None:
    """The timeout applies to the whole body, however often a byte arrives."""
    inner = Recorder()
    headers = [HOST, BEARER, JSON, ("Transfer-Encoding", "chunked")]
    response = request(guarded(inner, settings(body_seconds=0.1)), headers, method="POST", body=body)
    assert (response.status, inner.bodies) == (408, [])


@pytest.mark.promise("P40")
def test_a_client_that_goes_away_is_not_answered() -> None:
    """A client that disconnects during its body gets no response, and the application is not called."""
    inner = Recorder()
    headers = [HOST, BEARER, JSON, ("Transfer-Encoding", "chunked")]
    with pytest.raises(Nothing):
        request(guarded(inner, settings()), headers, method="POST", body=[b"{", None])
    assert inner.bodies == []


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    ("types", "status"),
    [
        (["application/json"], 200),
        (["Application/JSON"], 200),
        (["application/json; charset=utf-8"], 200),
        (['application/json;charset="UTF-8"'], 200),
        ([], 415),
        ([""], 415),
        (["text/plain"], 415),
        (["text/plain; application/json"], 415),
        (["application/json, text/plain"], 415),
        (["text/plain, application/json"], 415),
        (["application/x-www-form-urlencoded"], 415),
        (["multipart/form-data; boundary=x"], 415),
        (["application/json; charset=utf-16"], 415),
        (["application/jsonx"], 415),
        (["application/problem+json"], 415),
        (["application/json", "application/json"], 415),
        (["application/json", "text/plain"], 415),
    ],
)
def test_a_body_is_json_or_refused(types: list[str], status: int) -> None:
    """A body must be JSON, however its length is announced, so that forms of other sites are rejected."""
    said: list[Header] = [("Content-Type", value) for value in types]
    for announced in ([("Content-Length", "2")], [("Transfer-Encoding", "chunked")], []):
        for method in ("POST", "GET", "DELETE"):
            response = try_it([HOST, BEARER, *said, *announced], method=method, body=[b"{", b"}"])
            assert response.status == status


@pytest.mark.parametrize("announced", [("Content-Length", "2"), ("Transfer-Encoding", "chunked")])
def test_a_body_of_another_type_is_not_even_read(announced: Header) -> None:
    """A body of another content type is rejected before it is read."""

    async def never() -> Message:
        raise AssertionError("the body was asked for")

    sent: list[Message] = []
    scope = scope_of("POST", "/sessions", [HOST, BEARER, ("Content-Type", "text/plain"), announced])
    asyncio.run(deliver(guarded(Recorder(), settings()), scope, sent, never))
    assert sent[0]["status"] == 415


def test_without_a_body_no_type_is_needed() -> None:
    """A request with an empty body needs no content type."""
    for length in ([], [("Content-Length", "0")], [("Content-Length", "000")]):
        assert try_it([HOST, BEARER, *length], method="POST").status == 200


@pytest.mark.promise("P39")
def test_an_address_that_asks_too_often_is_told_when_to_come_back() -> None:
    """Each address has its own request rate; more requests return 429 with Retry-After."""
    now = [100.0]
    app = guarded(Recorder(), settings(requests_per_second=3)._replace(clock=lambda: now[0]))
    assert [request(app).status for _ in range(4)] == [200, 200, 200, 429]
    refused = request(app)
    assert (refused.status, refused.header("retry-after")) == (429, "1")
    assert request(app, client="10.0.0.9").status == 200
    assert request(app, client=None).status == 200
    now[0] += 0.34
    assert [request(app).status for _ in range(2)] == [200, 429]
    now[0] += 3600
    assert [request(app).status for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.promise("P39")
def test_who_has_no_token_cannot_use_up_the_rate_of_who_has() -> None:
    """Rejected requests do not count towards the rate limit."""
    app = guarded(Recorder(), settings(requests_per_second=1))
    assert {request(app, [HOST]).status for _ in range(50)} == {401}
    assert request(app).status == 200


@pytest.mark.promise("P39")
def test_only_so_many_addresses_are_remembered() -> None:
    """The number of tracked addresses is limited, and the least recently used is dropped."""
    app = guarded(Recorder(), settings(requests_per_second=1, addresses=2))
    assert [request(app, client=client).status for client in "aab"] == [200, 429, 200]
    assert [request(app, client=client).status for client in "ab"] == [429, 429]
    assert [request(app, client=client).status for client in "cba"] == [200, 429, 200]


class Waiting:
    """An application that responds when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside += 1
        try:
            await self.go.wait()
        finally:
            self.inside -= 1
        await PlainTextResponse("done")(scope, receive, send)


@pytest.mark.promise("P39")
def test_only_so_many_requests_and_streams_are_open_at_once() -> None:
    """Requests and streams have separate limits; further ones return 429, and a finished one frees its slot."""

    async def run() -> None:
        inner = Waiting()
        app = guarded(inner, settings(connections=2, event_clients=3))

        def begin(target: str) -> asyncio.Task[Response]:
            return asyncio.create_task(ask(app, scope_of("GET", target, [HOST, BEARER])))

        requests = [begin("/sessions") for _ in range(4)]
        streams = [begin("/sessions/1/events") for _ in range(5)]
        await asyncio.sleep(0.01)
        assert inner.inside == 5
        refused = [task.result() for task in (*requests, *streams) if task.done()]
        assert [(one.status, one.header("retry-after")) for one in refused] == [(429, "1")] * 4
        streams[0].cancel()
        await asyncio.sleep(0.01)
        later = begin("/events")
        await asyncio.sleep(0.01)
        assert inner.inside == 5 and not later.done()
        inner.go.set()
        assert (await later).status == 200
        assert [(await task).status for task in requests] == [200, 200, 429, 429]
        assert (await begin("/sessions")).status == 200

    asyncio.run(run())


# -- problems


@pytest.mark.promise("P40")
@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (SessionNotFound("there is no session 7", path="/home/me/.sessile/s"), 404, "session-not-found"),
        (Invalid("no", hint="say yes"), 400, "invalid"),
        (Conflict(), 409, "conflict"),
        (StorageFull("could not write: full", path="/home/me/x"), 507, "storage-full"),
        (storage_failure(PermissionError(13, "Permission denied", "/home/me/x"), "/home/me/x", "look"), 507, None),
        (TooMany("32 turns wait"), 429, "too-many"),
    ],
)
def test_an_error_of_ours_is_told_with_its_status(error: SessileError, status: int, name: str | None) -> None:
    """A Sessile error becomes a problem document with its status, message and hint, without paths."""
    response = request(guarded(Recorder(error), settings()))
    check_sealed(response)
    told = response.json()
    assert (response.status, told["hint"]) == (status, error.hint)
    assert told["detail"] == error.message
    assert name is None or told["type"] == f"urn:sessile:problem:{name}"
    assert b"/home" not in response.body
    assert response.header("retry-after") == ("1" if status == 429 else None)


@pytest.mark.promise("P40")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cannot open /home/me/.sessile/x.jsonl now", "cannot open … now"),
        ("in '/srv/a/b': gone", "in '…': gone"),
        ("see ~/notes or ~", "see … or ~"),
        ("(/var/lib/x)", "(…)"),
        ("say /new or /reset", "say /new or /reset"),
        ("application/json, and/or https://host/v1/x", "application/json, and/or https://host/v1/x"),
        ("the root /data has spaces: /data/my notes/x", "the root /data has spaces: …"),
        ("x" * 600, "x" * 500 + "…"),
    ],
)
def test_a_path_in_a_text_is_not_told(text: str, told: str) -> None:
    """Paths are removed from messages; URLs, media types and chat commands are kept."""
    error = Invalid(text, hint=text, path="/data/my notes/x")
    document = request(guarded(Recorder(error), settings())).json()
    assert (document["detail"], document["hint"]) == (told, told)


@pytest.mark.promise("P40")
def test_an_error_that_nobody_expected_says_nothing() -> None:
    """An unexpected error returns a 500 without details and is raised for the server's log."""
    sent: list[Message] = []
    app = guarded(Recorder(KeyError("secret at /home/me")), settings())
    with pytest.raises(KeyError):
        asyncio.run(deliver(app, scope_of("GET", "/sessions", [HOST, BEARER]), sent))
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"] and b"KeyError" not in sent[1]["body"] and b"home" not in sent[1]["body"]


@pytest.mark.promise("P40")
@pytest.mark.parametrize("error", [Conflict(), KeyError("x")])
def test_half_an_answer_is_cut_off_and_not_mixed_with_another(error: Exception) -> None:
    """An error after the response has started is raised and not mixed into the response."""
    sent: list[Message] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    with pytest.raises(type(error)):
        asyncio.run(deliver(guarded(inner, settings()), scope_of("GET", "/x", [HOST, BEARER]), sent))
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_surrogates_in_an_error_do_not_break_its_answer() -> None:
    """An error message with a lone surrogate is still valid JSON."""
    assert request(guarded(Recorder(Invalid("bad \ud800 text")), settings())).json()["detail"] == "bad \ud800 text"


# -- other ASGI events


def test_start_and_end_of_the_server_reach_the_application() -> None:
    """Lifespan events are passed to the application."""
    seen = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    asyncio.run(deliver(guarded(inner, settings()), {"type": "lifespan"}, []))
    assert seen == ["lifespan"]


@pytest.mark.promise("P34")
def test_a_websocket_is_closed_before_it_is_open() -> None:
    """WebSocket connections are closed, with or without a token."""
    sent: list[Message] = []
    inner = Recorder()
    scope = {**scope_of("GET", "/sessions", [HOST, BEARER]), "type": "websocket"}
    asyncio.run(deliver(guarded(inner, settings()), scope, sent))
    assert [message["type"] for message in sent] == ["websocket.close"] and not inner.bodies


def test_the_application_is_told_when_a_client_goes_away() -> None:
    """After the body, the application receives the disconnect message."""
    coming: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.request", "body": b"}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    seen: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([await receive(), await receive()])

    scope = scope_of("POST", "/sessions", [HOST, BEARER, JSON])
    asyncio.run(deliver(guarded(inner, settings()), scope, [], receive))
    assert seen == [{"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}]


def test_a_router_of_starlette_stands_behind_the_guards() -> None:
    """A Starlette router works behind the guards, and errors of its handlers become problems."""

    async def echo(asked: Request) -> JSONResponse:
        return JSONResponse(await asked.json())

    async def fail(asked: Request) -> JSONResponse:
        raise SessionNotFound(hint="list them")

    app = guarded(Router([Route("/echo", echo, methods=["POST"]), Route("/fail", fail)]), settings())

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8787", headers=headers) as client:
            answer = await client.post("/echo", json={"a": ["é"]})
            assert (answer.status_code, answer.json()) == (200, {"a": ["é"]})
            assert (await client.get("/fail")).json()["type"] == "urn:sessile:problem:session-not-found"
            assert (await client.post("/echo", data={"a": "b"})).status_code == 415
            assert (await client.get("http://evil.com/fail")).status_code == 403

    asyncio.run(run())


# -- wrong tokens


class Moment:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.promise("P39")
def test_wrong_tokens_take_bounded_memory_and_are_forgiven() -> None:
    """Only so many addresses are remembered, each with two numbers; after some time an address begins again."""
    clock = Moment()
    wrong = WrongTokens(100, clock)
    for number in range(5_000):
        assert wrong._count(f"10.0.{number >> 8}.{number & 255}") == 0
    assert len(wrong._tries) == 100
    pauses = [wrong._count("10.9.9.9") for _ in range(40)]
    assert pauses[:10] == [0.0] * 10 and pauses[10:13] == [0.1, 0.2, 0.4] and pauses[-1] == 60.0
    assert pauses == sorted(pauses)
    clock.now += 300
    assert wrong._count("10.9.9.9") == 60.0
    clock.now += 700
    assert wrong._count("10.9.9.9") == 0.0


@pytest.mark.promise("P39")
def test_few_answers_to_wrong_tokens_are_held_back_at_once() -> None:
    """Held answers occupy connections, so their number is limited; further ones are refused at once."""
    app = guarded(Recorder(), Guarding(Secret(TOKEN), Limits(), NAMES))
    wrong = ("Authorization", "Bearer wrong")

    async def run() -> list[int]:
        guesses = [asyncio.create_task(ask(app, scope_of("GET", "/sessions", (HOST, wrong)))) for _ in range(200)]
        await asyncio.sleep(0.05)
        began = asyncio.get_running_loop().time()
        right = await ask(app, scope_of("GET", "/sessions", (HOST, BEARER)))
        assert right.status == 200 and asyncio.get_running_loop().time() - began < 0.5
        return [(await one).status for one in guesses]

    told = asyncio.run(run())
    assert told.count(401) < 20 and told.count(429) > 180


# -- slow bodies


@pytest.mark.promise("P39")
def test_if_too_many_bodies_arrive_the_slowest_is_refused() -> None:
    """A body that has sent less for its age makes room for a new one; the others go on."""
    app = guarded(Recorder(), settings(connections=2))

    async def run() -> list[int]:
        headers = (HOST, BEARER, JSON)
        slow = asyncio.create_task(ask(app, scope_of("POST", "/sessions", headers), (b" ", 60.0, b" ")))
        await asyncio.sleep(0.05)
        quick = asyncio.create_task(ask(app, scope_of("POST", "/sessions", headers), (b" " * 9000, 0.2, b"{}")))
        await asyncio.sleep(0.05)
        new = await ask(app, scope_of("POST", "/sessions", headers), (b"{", 0.01, b"}"))
        return [new.status, (await asyncio.wait_for(slow, 5)).status, (await quick).status]

    assert asyncio.run(run()) == [200, 408, 200]


@pytest.mark.promise("P39")
def test_requests_that_last_keep_out_only_their_own_kind() -> None:
    """Chats, downloads and streams are counted separately, each up to its limit."""
    gate = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})

    app = guarded(waiting, settings(connections=2, event_clients=1))
    paths = {"/v1/chat/send": 2, "/v1/view/export": 2, "/v1/view/blob": 0, "/v1/events": 1, "/v1/sessions": 2}

    async def run() -> dict[str, int]:
        held = {
            path: [asyncio.create_task(ask(app, scope_of("GET", path, (HOST, BEARER)))) for _ in range(4)]
            for path in paths
        }
        await asyncio.sleep(0.05)
        gate.set()
        return {path: [(await one).status for one in asked].count(200) for path, asked in held.items()}

    assert asyncio.run(run()) == paths
