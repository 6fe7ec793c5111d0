"""What a request has to pass before anybody looks at what it asks for: one tiny class each, in one order.

    Door        only HTTP comes in; a WebSocket is closed
    Sealed      every response gets the security headers, and none allows another site anything
    Problems    errors become problem documents
    Host        the gateway is called by one of its own names: a page that rebinds its name to us is not
    Origin      a page that asks was served by us; preflights are refused, there is nothing to allow
    HeaderSize  431
    Token       the bearer header, and nothing else; open are only the paths that hold nothing, which are answered at once
    Rate        so many requests a second of one address, 429
    Crowd       so many requests and so many streams at once, 429
    Json        a body is JSON, so that no form of another site can send one
    Body        the whole body, so large and so soon: 413, 408

A request without the token is refused, or is given what is open, before it can wait for anything, be counted, hold a place or
have its body read: what strangers and pages of other sites ask for takes nothing from whoever has the token. Guards know nothing
of sessions, and are ordinary ASGI: they work below any server and above any application.

The guards that measure: how much a request may be, how often it may come, and how many of them at once.

Each is one ASGI class that passes a request on or raises what is wrong with it. Their order, and what comes before them, is
`guards.guarded`. Time is an argument where it is counted, and the event loop's where it is waited for.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sessile.config import LOOPBACK, Limits
from sessile.core.secret import Secret
from sessile.errors import ForbiddenHost, ForbiddenOrigin, Invalid, SessileError, TooLarge, Unauthorized
from sessile.gateway.http.problems import (
    App,
    Headers,
    HeadersTooLarge,
    Message,
    NotJson,
    Receive,
    Scope,
    Send,
    TooSlow,
    TooSoon,
    problem,
    send_answer,
    unexpected,
    values,
)

# --- measures

EVENTS = "/events"  # the end of every path that streams events

_PER_HEADER = 4  # bytes: colon, space and the end of the line
_LONGEST_NUMBER = 15  # digits


class HeaderSize:
    """The target and the headers have a limit together."""

    def __init__(self, app: App, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope.get("query_string", b""))
        size = target + sum(len(name) + len(value) + _PER_HEADER for name, value in scope["headers"])
        if size > self._limit:
            raise HeadersTooLarge(
                f"the headers have {size} bytes, and {self._limit} are allowed", hint="send less of them"
            )
        await self._app(scope, receive, send)


class Rate:
    """One address may ask so many times a second; a second's worth may come at once."""

    def __init__(self, app: App, per_second: int, addresses: int, clock: Callable[[], float]) -> None:
        self._app = app
        self._rate = per_second
        self._most = addresses
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        self._take(client[0] if client else "")
        await self._app(scope, receive, send)

    def _take(self, address: str) -> None:
        now = self._clock()
        left, since = self._left.pop(address, (float(self._rate), now))
        left = min(self._rate, left + (now - since) * self._rate)
        self._left[address] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        if left < 1:
            seconds = math.ceil((1 - left) / self._rate)
            raise TooSoon("too many requests came from one address", seconds=seconds, hint=f"wait {seconds} s")


class Crowd:
    """So many requests are answered at once; streams of events stay, and are counted apart."""

    def __init__(self, app: App, requests: int, streams: int) -> None:
        self._app = app
        self._limits = {False: requests, True: streams}
        self._now = {False: 0, True: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope["path"].endswith(EVENTS)
        if self._now[stream] >= self._limits[stream]:
            what = "streams of events" if stream else "requests"
            raise TooSoon(f"{self._limits[stream]} {what} are open already", seconds=1, hint="end one, or wait")
        self._now[stream] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now[stream] -= 1


class Json:
    """A body says that it is JSON; a body that was not announced is looked at when it comes."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = [value.strip() for value in values(scope, b"content-length")]
        if _is_json(values(scope, b"content-type")):
            return await self._app(scope, receive, send)
        if any(value.strip(b"0") for value in announced) or values(scope, b"transfer-encoding"):
            raise _not_json()

        async def watching() -> Message:
            message = await receive()
            if message.get("body"):
                raise _not_json()
            return message

        return await self._app(scope, watching, send)


def _is_json(types: list[bytes]) -> bool:
    if len(types) != 1:
        return False
    kind, *parameters = (part.strip().lower() for part in types[0].split(b";"))
    return kind == b"application/json" and all(part in (b"charset=utf-8", b'charset="utf-8"') for part in parameters)


def _not_json() -> NotJson:
    return NotJson(hint="send `Content-Type: application/json`, in UTF-8")


class Body:
    """Reads the body, so that the application gets all of it or is not asked at all."""

    def __init__(self, app: App, limit: int, seconds: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_length(values(scope, b"content-length"))
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._whole(receive)
        except TimeoutError:
            hint = "send it faster, or send less"
            raise TooSlow(f"the body did not come within {self._seconds:g} s", hint=hint) from None
        if body is None:
            return  # the client has gone: there is nobody to answer
        coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return coming.pop() if coming else await receive()

        await self._app(scope, again, send)

    def _check_length(self, said: list[bytes]) -> None:
        if not said:
            return
        if len(said) > 1 or not said[0].isdigit() or len(said[0]) > _LONGEST_NUMBER:
            raise Invalid("the length of the body is no number", hint="send one Content-Length, or none")
        self._check_size(int(said[0]))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"the body has more than {self._limit} bytes", hint="send it in parts")

    async def _whole(self, receive: Receive) -> bytes | None:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            self._check_size(size)
            if chunk:
                chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


# --- guards

HEALTH = "/healthz"

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types sessile"
)
SEALS: Headers = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

_AUTHORITY = re.compile(rb"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_PORTS = {b"http": 80, b"https": 443}
_POLICY_VIOLATION = 1008  # of a WebSocket


class Guarding(NamedTuple):
    """What the guards have to know. An open path that ends in a slash opens what lies directly below it."""

    token: Secret
    limits: Limits = Limits()
    hosts: frozenset[str] = LOOPBACK
    open_paths: frozenset[str] = frozenset({HEALTH})
    clock: Callable[[], float] = time.monotonic


def guarded(app: App, settings: Guarding) -> App:
    """The application behind all guards; the first of the list is asked first."""
    limits = settings.limits
    guards: list[Callable[[App], App]] = [
        Sealed,
        Problems,
        lambda inner: Host(inner, settings.hosts),
        Origin,
        lambda inner: HeaderSize(inner, limits.header_bytes),
        lambda inner: Token(inner, app, settings.token, settings.open_paths),
        lambda inner: Rate(inner, limits.requests_per_second, limits.addresses, settings.clock),
        lambda inner: Crowd(inner, limits.connections, limits.event_clients),
        Json,
        lambda inner: Body(inner, limits.body_bytes, limits.body_seconds),
    ]
    inside = app
    for guard in reversed(guards):
        inside = guard(inside)
    return Door(app, inside)


class Door:
    """Lets HTTP in, hands the start and the end of the server to the application, and closes everything else."""

    def __init__(self, app: App, guards: App) -> None:
        self._app = app
        self._guards = guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._guards(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})


class Sealed:
    """Gives every response the security headers; takes away what would set a cookie or let another site read."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._names = {name for name, _ in SEALS} | {b"set-cookie"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sealing(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [header for header in message.get("headers", ()) if not self._forbids(header[0].lower())]
                message = {**message, "headers": [*kept, *SEALS]}
            await send(message)

        await self._app(scope, receive, sealing)

    def _forbids(self, name: bytes) -> bool:
        return name in self._names or name.startswith(b"access-control-")


class Problems:
    """Answers with what went wrong. What nobody expected goes on to the server, for its log, after a word to the client."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except SessileError as error:
            if begun:
                raise  # half an answer cannot be taken back: the server cuts it off
            await send_answer(send, problem(error))
        except Exception:
            if not begun:
                await send_answer(send, unexpected())
            raise


class Host:
    """The request names us. A name is compared as it stands: a dot, another spelling or a number is another name."""

    def __init__(self, app: App, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = frozenset(name.encode() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = values(scope, b"host")
        called = _authority(said[0]) if len(said) == 1 else None
        if called is None or called[0] not in self._hosts:
            raise ForbiddenHost(
                hint="call the gateway by the address that it prints, or list the name in gateway.allowedHosts"
            )
        await self._app(scope, receive, send)


class Origin:
    """A page that asks comes from where it asks; programs that are no pages say nothing."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = values(scope, b"origin")
        preflight = any(name.lower().startswith(b"access-control-request-") for name, _ in scope["headers"])
        if preflight or len(said) > 1 or (said and not _same(said[0], values(scope, b"host")[0])):
            raise ForbiddenOrigin(hint="only the gateway's own page may ask from a browser")
        await self._app(scope, receive, send)


def _same(origin: bytes, host: bytes) -> bool:
    scheme, _, rest = origin.lower().partition(b"://")
    page, called = _authority(rest), _authority(host)
    if scheme not in _PORTS or page is None or called is None:
        return False
    usual = _PORTS[scheme]
    return page[0] == called[0] and (page[1] or usual) == (called[1] or usual)


def _authority(text: bytes) -> tuple[bytes, int | None] | None:
    """The name and the port of a `Host` header; `None` if it is none."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    port = None if match[2] is None else int(match[2])
    return (match[1], port) if port is None or 0 < port < 65536 else None


class Token:
    """Who asks has the token, in the one header that no browser sends by itself; what is open goes past the other guards."""

    def __init__(self, app: App, opened: App, token: Secret, open_paths: frozenset[str]) -> None:
        self._app = app
        self._opened = opened
        self._token = token
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_open(scope):
            await self._opened(scope, receive, send)
            return
        if not self._is_held(scope):
            hint = "send it as `Authorization: Bearer …`; it is never taken from an address or a cookie"
            raise Unauthorized(hint=hint)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        folder = path[: path.rfind("/") + 1]
        return scope["method"] in ("GET", "HEAD") and (path in self._open or (folder != "/" and folder in self._open))

    def _is_held(self, scope: Scope) -> bool:
        said = values(scope, b"authorization")
        scheme, _, offered = said[0].partition(b" ") if len(said) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and self._token.matches(offered)
