"""Responses that take time: server-sent events, replies that are waited for, and downloads.

Rules:
- In an event stream a line ends at CR, LF or both, so data is split at each of them, and no text can end an event or
  start a field. Ids and names with line ends are rejected.
- During silence a comment is sent every 15 seconds, so that proxies keep the connection open.
- A client that accepts nothing for 30 seconds is disconnected. A client that disconnects does not stop what it asked
  for.
- A download is produced piece by piece on a thread. An error before the first piece becomes a problem document. After
  that the connection is cut, so that a part is not mistaken for the whole. Opened files are closed in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing
from typing import Any
from urllib.parse import quote

import anyio
from anyio.abc import ObjectSendStream

from sessile.core.codec import encode_plain
from sessile.core.text import without_surrogates
from sessile.errors import Invalid, InvalidEntry, SessileError
from sessile.gateway.events import Event, Subscription
from sessile.gateway.http.problems import App, Receive, Scope, Send

Call = Callable[..., Awaitable[Any]]

KEEP_ALIVE = 15.0

_TIMEOUT = 30.0
_RETRY = 1000  # milliseconds until a client that lost its connection reconnects
_SOON = 1.0  # seconds after which a waiting response watches for a disconnect
_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_CHUNK = 256 * 1024  # bytes; a thread for every small piece would cost more than producing it
_MAX_NAME = 80  # characters of a file name

_LINE_END = re.compile("\r\n|\r|\n")  # not `splitlines`, which knows eight more
_NOT_IN_A_FIELD = re.compile("[\r\n\0]")
_UNSAFE = re.compile(r"[^\w. -]+")


# -- writing events


def frame(data: str, *, event: str | None = None, event_id: str | None = None, retry: int | None = None) -> bytes:
    """Encode an event. An empty id makes the client forget the last one; no id keeps it."""
    fields = {"id": event_id, "event": event, "retry": None if retry is None else str(retry)}
    for name, value in fields.items():
        if value is not None and _NOT_IN_A_FIELD.search(value):
            raise Invalid(f"the {name} of an event must not contain line ends or NUL")
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return "\n".join([*lines, "", ""]).encode("utf-8", "replace")


def comment(text: str = "") -> bytes:
    """Encode a comment, which clients ignore."""
    return "".join(f": {line}\n" for line in _LINE_END.split(text)).encode("utf-8", "replace") + b"\n"


def retry_after(milliseconds: int) -> bytes:
    """Encode the time that clients wait before they reconnect."""
    return f"retry: {milliseconds}\n\n".encode("ascii")


def encode_event(event: Event) -> bytes:
    """Encode an event of the hub: its kind is the name, its data a JSON object with the session's id."""
    document = {"sessionId": event.session_id, "data": event.data}
    try:
        data = encode_plain(document)
    except InvalidEntry:
        # An infinite number beside a lone surrogate: the number becomes null, as in JavaScript.
        data = encode_plain(json.loads(json.dumps(document), parse_constant=lambda _: None))
    return frame(data.decode("utf-8"), event=event.kind, event_id=event.id)


# -- responses


class EventStream:
    """An ASGI response that sends the events of a subscription until either side ends, then closes the subscription."""

    def __init__(self, events: Subscription, *, keep_alive: float = KEEP_ALIVE, timeout: float = _TIMEOUT) -> None:
        self._events = events
        self._keep_alive = keep_alive
        self._timeout = timeout

    async def __call__(self, scope: object, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._events:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                try:
                    await self._send_all(send)
                except OSError:
                    pass  # the client has disconnected
                group.cancel_scope.cancel()

    async def _send_all(self, send: Send) -> None:
        piece: bytes | None = retry_after(_RETRY)
        while piece is not None:
            with anyio.move_on_after(self._timeout) as scope:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if scope.cancelled_caught:
                return
            piece = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        """Return the next event, or a comment if none arrives; `None` after the last."""
        with anyio.move_on_after(self._keep_alive):
            event = await anext(self._events, None)
            return None if event is None else encode_event(event)
        return comment()


class Stream:
    """An ASGI response of pieces, each sent as soon as it is available."""

    def __init__(
        self,
        pieces: Callable[[], AsyncIterator[bytes]],
        headers: list[tuple[bytes, bytes]] | None = None,
        *,
        keep_alive: float = KEEP_ALIVE,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._pieces = pieces
        self._headers = [*_HEADERS, *(headers or ())]
        self._keep_alive = keep_alive
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        into, out = anyio.create_memory_object_stream[bytes](1)
        async with anyio.create_task_group() as group, into, out:
            group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
            # Pieces are produced in their own task: waiting for one must not be cancelled by a comment.
            group.start_soon(self._produce, into.clone())
            into.close()
            while True:
                piece: bytes | None = comment()
                with anyio.move_on_after(self._keep_alive):
                    try:
                        piece = await out.receive()
                    except anyio.EndOfStream:
                        piece = None
                with anyio.move_on_after(self._timeout) as limit:
                    if not await _sent(send, piece):
                        break
                if piece is None or limit.cancelled_caught:
                    break
            group.cancel_scope.cancel()

    async def _produce(self, into: ObjectSendStream[bytes]) -> None:
        async with into, aclosing(self._pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await into.send(piece)


class Waiting:
    """An ASGI response that is made when its result is available. If the client disconnects before, nothing is sent."""

    def __init__(self, result: Callable[[], Awaitable[App]]) -> None:
        self._result = result

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # Watching for a disconnect costs more than most results; it starts only if the result takes time.
        response: App | None = None
        with anyio.move_on_after(_SOON):
            response = await self._result()
        if response is None:
            response = await self._late(receive)
        if response is not None:
            await response(scope, receive, send)

    async def _late(self, receive: Receive) -> App | None:
        """Return the response of a slow result; `None` if the client disconnects before."""
        response: App | None = None
        failure: SessileError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
            try:
                response = await self._result()
            except SessileError as error:
                failure = error  # raised below, so that it is not wrapped in a group
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return response


class Download:
    """An ASGI response with the pieces of a file. `call` runs blocking functions; `opened` is closed at the end."""

    def __init__(
        self,
        call: Call,
        pieces: Iterator[bytes],
        opened: ExitStack,
        media_type: str,
        headers: Mapping[str, str],
        *,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._call = call
        self._timeout = timeout
        self._pieces = pieces
        self._opened = opened
        all_headers = {"content-type": media_type, **headers}
        self._headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in all_headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            piece = await self._next()  # before anything is sent
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            if scope["method"] == "HEAD":
                piece = b""
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                await self._send_all(send, piece)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._call(self._opened.close)

    async def _send_all(self, send: Send, piece: bytes) -> None:
        while piece:
            with anyio.move_on_after(self._timeout) as scope:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if scope.cancelled_caught:
                return  # without an end, so that the server cuts the connection
            piece = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes:
        data: bytes = await self._call(self._read_chunk)
        return data

    def _read_chunk(self) -> bytes:
        """Return the next pieces, joined into one chunk; empty after the last."""
        pieces: list[bytes] = []
        size = 0
        for piece in self._pieces:
            pieces.append(piece)
            size += len(piece)
            if size >= _CHUNK:
                break
        return b"".join(pieces)


async def _sent(send: Send, piece: bytes | None) -> bool:
    """Send a piece, or with `None` the end. Return whether the client is still connected."""
    try:
        await send({"type": "http.response.body", "body": piece or b"", "more_body": piece is not None})
    except OSError:
        return False
    return True


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def disposition(name: str, suffix: str, *, inline: bool = False) -> str:
    """Return a Content-Disposition with a file name that no system takes for a path, an option or a command."""
    safe = _UNSAFE.sub("-", without_surrogates(name))[:_MAX_NAME].strip(" .-_") or "session"
    plain = safe.encode("ascii", "ignore").decode().strip(" .-_") or "session"
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}.{suffix}\"; filename*=UTF-8''{quote(f'{safe}.{suffix}', safe='')}"
