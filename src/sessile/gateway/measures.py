"""The guards that measure: how much a request may be, how often it may come, and how many of them at once.

Each is one ASGI class that passes a request on or raises what is wrong with it. Their order, and what comes before them, is
`guards.guarded`. Time is an argument where it is counted, and the event loop's where it is waited for.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable

from sessile.errors import Invalid, TooLarge
from sessile.gateway.problems import (
    App,
    HeadersTooLarge,
    Message,
    NotJson,
    Receive,
    Scope,
    Send,
    TooSlow,
    TooSoon,
    values,
)

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
