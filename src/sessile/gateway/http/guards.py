"""Guards: the checks that a request must pass, in a fixed order, before its operation is looked up.

    Door        only HTTP is accepted; WebSockets are closed
    Sealed      every response gets the security headers, and none grants access to another site
    Problems    errors become problem documents
    Host        the `Host` header must be one of the gateway's names, which stops DNS rebinding
    Origin      a browser page must have been served by the gateway; preflight requests are rejected
    HeaderSize  431
    Token       the bearer token, from the header only; open paths, which hold no user data, are answered at once
    Rate        requests per second of one address, 429
    Json        a body must be JSON, so that no form of another site can send one
    Body        the whole body, limited in size and time: 413, 408
    Crowd       concurrent requests and streams, 429

A request without the token is rejected, or gets what is open, before it can be counted, take a slot or have its body
read: requests of strangers and of other sites cost authorised clients nothing. Wrong tokens are answered later and
later, the right one always at once. A request takes a slot when its body is complete, so slow bodies keep nobody out.
Guards know nothing about sessions and are plain ASGI.
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
    header_values,
    problem,
    send_answer,
    unexpected,
)

HEALTH = "/healthz"
EVENTS = "/events"  # suffix of every path that streams events
_CHATS = ("/v1/chat/send", "/v1/chat/completions", "/v1/session/compact")  # a model answers while they are open
_DOWNLOADS = ("/v1/view/export", "/v1/view/blob")

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
_POLICY_VIOLATION = 1008  # WebSocket close code

_PER_HEADER = 4  # bytes: colon, space and the end of the line
_MAX_DIGITS = 15  # of Content-Length

_FREE_TRIES = 10  # wrong tokens of one address that are answered at once, such as those of a page with an old token
_FIRST_PAUSE = 0.1  # seconds before the answer to the next one; each further one doubles it
_MAX_HELD = 2.0  # seconds; the answer to a longer pause is sent at once, and says how long to wait
_MAX_PAUSE = 60.0  # seconds
_FORGIVEN = 600.0  # seconds without a wrong token after which an address begins again
_HELD = 32  # answers that are held back at once, fewer than there are spare connections

_BODY_GRACE = 5.0  # seconds before a body must keep to the minimum rate
_BODY_RATE = 1024  # bytes per second


class Guarding(NamedTuple):
    """Settings of the guards. An open path that ends in a slash opens what is directly below it."""

    token: Secret
    limits: Limits = Limits()
    hosts: frozenset[str] = LOOPBACK
    open_paths: frozenset[str] = frozenset({HEALTH})
    clock: Callable[[], float] = time.monotonic


def guarded(app: App, settings: Guarding) -> App:
    """Return the application behind all guards. The first guard of the list is called first."""
    limits = settings.limits
    guards: list[Callable[[App], App]] = [
        Sealed,
        Problems,
        lambda inner: Host(inner, settings.hosts),
        Origin,
        lambda inner: HeaderSize(inner, limits.header_bytes),
        lambda inner: Token(inner, app, settings),
        lambda inner: Rate(inner, limits.requests_per_second, limits.addresses, settings.clock),
        Json,
        lambda inner: Body(inner, limits.body_bytes, limits.body_seconds, limits.connections),
        lambda inner: Crowd(inner, limits.connections, limits.event_clients),
    ]
    inside = app
    for guard in reversed(guards):
        inside = guard(inside)
    return Door(app, inside)


class Door:
    """Passes HTTP to the guards and lifespan events to the application, and closes everything else."""

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
    """Adds the security headers to every response, and removes headers that set cookies or grant access to other sites."""

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
    """Answers errors with problem documents. Unexpected errors are answered and raised, so that the server logs them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except SessileError as error:
            if started:
                raise  # a partial response cannot be replaced: the server cuts the connection
            await send_answer(send, problem(error))
        except Exception:
            if not started:
                await send_answer(send, unexpected())
            raise


class Host:
    """Requires a known host name. Names are compared as they are: another spelling or a number is another name."""

    def __init__(self, app: App, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = frozenset(name.encode() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = header_values(scope, b"host")
        authority = _authority(hosts[0]) if len(hosts) == 1 else None
        if authority is None or authority[0] not in self._hosts:
            raise ForbiddenHost(hint="use the address that the gateway prints, or add the name to gateway.allowedHosts")
        await self._app(scope, receive, send)


class Origin:
    """Requires that a page comes from the gateway itself. Programs that are not browsers send no origin."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = header_values(scope, b"origin")
        preflight = any(name.lower().startswith(b"access-control-request-") for name, _ in scope["headers"])
        if preflight or len(origins) > 1 or (origins and not _same(origins[0], header_values(scope, b"host")[0])):
            raise ForbiddenOrigin(hint="only the gateway's own page may send requests from a browser")
        await self._app(scope, receive, send)


def _same(origin: bytes, host: bytes) -> bool:
    scheme, _, rest = origin.lower().partition(b"://")
    page, called = _authority(rest), _authority(host)
    if scheme not in _PORTS or page is None or called is None:
        return False
    usual = _PORTS[scheme]
    return page[0] == called[0] and (page[1] or usual) == (called[1] or usual)


def _authority(text: bytes) -> tuple[bytes, int | None] | None:
    """Return name and port of a `Host` header; `None` if it is invalid."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    port = None if match[2] is None else int(match[2])
    return (match[1], port) if port is None or 0 < port < 65536 else None


class HeaderSize:
    """Limits the size of target and headers together."""

    def __init__(self, app: App, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope.get("query_string", b""))
        size = target + sum(len(name) + len(value) + _PER_HEADER for name, value in scope["headers"])
        if size > self._limit:
            raise HeadersTooLarge(
                f"request headers have {size} bytes, the limit is {self._limit}", hint="send fewer headers"
            )
        await self._app(scope, receive, send)


class Token:
    """Requires the token in the `Authorization` header, which browsers never send by themselves.

    Open paths skip the other guards. The right token passes at once, whatever came before it from the same address.
    """

    def __init__(self, app: App, opened: App, settings: Guarding) -> None:
        self._app = app
        self._opened = opened
        self._token = settings.token
        self._open = settings.open_paths
        self._wrong = WrongTokens(settings.limits.addresses, settings.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_open(scope):
            await self._opened(scope, receive, send)
            return
        found = header_values(scope, b"authorization")
        if not self._has_token(found):
            if found:
                await self._wrong.hold(_address_of(scope))
            hint = "send `Authorization: Bearer …`; the token is never read from a URL or a cookie"
            raise Unauthorized(hint=hint)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        folder = path[: path.rfind("/") + 1]
        return scope["method"] in ("GET", "HEAD") and (path in self._open or (folder != "/" and folder in self._open))

    def _has_token(self, found: list[bytes]) -> bool:
        scheme, _, offered = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and self._token.matches(offered)


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


class WrongTokens:
    """The wrong tokens of each address. The more there were, the longer the answer to the next one takes."""

    def __init__(self, addresses: int, clock: Callable[[], float]) -> None:
        self._most = addresses
        self._clock = clock
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()  # their number, and when the pause ends
        self._held = 0

    async def hold(self, address: str) -> None:
        """Count a wrong token, and wait as long as its answer takes. Raise `TooSoon` if that is too long to wait."""
        pause = self._count(address)
        if pause > _MAX_HELD or (pause and self._held >= _HELD):
            seconds = math.ceil(pause)
            raise TooSoon("too many wrong tokens from this address", seconds=seconds, hint=f"wait {seconds} s")
        if pause:
            self._held += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._held -= 1

    def _count(self, address: str) -> float:
        """Count a wrong token. Return the pause before its answer, in seconds."""
        now = self._clock()
        tries, until = self._tries.pop(address, (0, now))
        tries = 1 if now > until + _FORGIVEN else tries + 1
        doublings = tries - _FREE_TRIES - 1
        pause = 0.0 if doublings < 0 else min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(doublings, 16))
        self._tries[address] = (tries, now + pause)
        if len(self._tries) > self._most:
            self._tries.popitem(last=False)
        return pause


class Rate:
    """Limits the requests per second of one address. Up to a second's worth may come at once."""

    def __init__(self, app: App, per_second: int, addresses: int, clock: Callable[[], float]) -> None:
        self._app = app
        self._rate = per_second
        self._most = addresses
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._take(_address_of(scope))
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
            raise TooSoon("too many requests from this address", seconds=seconds, hint=f"wait {seconds} s")


class Crowd:
    """Limits concurrent requests, separately for each kind of them, so that those that last keep no others out.

    Event streams last until the client leaves, chats as long as a model takes, downloads as long as the client takes.
    Reading or aborting a turn is quick and not a chat: it works while every chat is waiting for its model.
    """

    def __init__(self, app: App, requests: int, streams: int) -> None:
        self._app = app
        self._limits = dict.fromkeys(CROWDS, requests) | {"event streams": streams}
        self._now = dict.fromkeys(CROWDS, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _crowd_of(scope["path"])
        if self._now[kind] >= self._limits[kind]:
            raise TooSoon(f"{self._limits[kind]} {kind} are open already", seconds=1, hint="close one, or wait")
        self._now[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now[kind] -= 1


CROWDS = ("requests", "chats", "downloads", "event streams")


def _crowd_of(path: str) -> str:
    """Return the kind of requests that a path belongs to."""
    if path in _CHATS:
        return "chats"
    if path.endswith(EVENTS):
        return "event streams"
    return "downloads" if path in _DOWNLOADS else "requests"


class Json:
    """Requires a body to be declared as JSON. An unannounced body is checked when it arrives."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = [value.strip() for value in header_values(scope, b"content-length")]
        if _is_json(header_values(scope, b"content-type")):
            return await self._app(scope, receive, send)
        if any(value.strip(b"0") for value in announced) or header_values(scope, b"transfer-encoding"):
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
    """Reads the whole body before the application is called.

    A body has `seconds`, and after a grace period it must keep to a minimum rate. If `most` bodies are arriving and one
    more begins, the slowest of them is refused.
    """

    def __init__(self, app: App, limit: int, seconds: float, most: int) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds
        self._most = most
        self._arriving: dict[_Arrival, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_length(header_values(scope, b"content-length"))
        arrival = _Arrival(asyncio.get_running_loop().time(), self._seconds)
        if len(self._arriving) >= self._most:
            self._refuse_slowest()
        self._arriving[arrival] = None
        try:
            async with asyncio.timeout_at(arrival.deadline) as arrival.timeout:
                body = await self._whole(receive, arrival)
        except TimeoutError:
            raise TooSlow(
                f"the request body arrived too slowly: {arrival.size} bytes, within {self._seconds:g} s, or "
                f"{_BODY_GRACE:g} s at less than {_BODY_RATE} bytes per second",
                hint="send it faster, or send less",
            ) from None
        finally:
            self._arriving.pop(arrival, None)
        if body is None:
            return  # the client has disconnected
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    def _refuse_slowest(self) -> None:
        slowest = min(self._arriving, key=_Arrival.due)
        del self._arriving[slowest]
        slowest.timeout.reschedule(0)

    def _check_length(self, lengths: list[bytes]) -> None:
        if not lengths:
            return
        if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > _MAX_DIGITS:
            raise Invalid("invalid Content-Length", hint="send one Content-Length, or none")
        self._check_size(int(lengths[0]))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge(f"the request body is larger than {self._limit} bytes", hint="send it in parts")

    async def _whole(self, receive: Receive, arrival: _Arrival) -> bytes | None:
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            arrival.size += len(chunk)
            self._check_size(arrival.size)
            if chunk:
                chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)
            if arrival in self._arriving:
                arrival.timeout.reschedule(arrival.deadline)


class _Arrival:
    """A body that is being received."""

    timeout: asyncio.Timeout

    def __init__(self, began: float, seconds: float) -> None:
        self.size = 0
        self._began = began
        self._end = began + seconds

    def due(self) -> float:
        """Return when the body would fall behind the minimum rate."""
        return self._began + _BODY_GRACE + self.size / _BODY_RATE

    @property
    def deadline(self) -> float:
        """When the body is refused, unless more of it arrives."""
        return min(self._end, self.due())
