"""Server-sent events: how events are written for a browser, as the HTML standard has it, and the response that does.

Rules: a line ends at CR, LF or both, so data is split at each of them and no text can end an event or begin a field; ids and
names that hold one are refused. Silence is broken by a comment every fifteen seconds, so that nobody between takes the
connection for dead. A client that takes nothing for half a minute is cut off.

It does not know where events come from.

Responses that take their time: a stream of events, or one answer that is waited for.

Rules: whoever has gone is not waited for, and what they asked for goes on without them. Silence is broken by a comment every
fifteen seconds, so that nobody between takes the connection for dead. A client that takes nothing for half a minute is cut off.

It does not know what is sent.

A file as a response: made piece by piece on a thread, and sent as it is made.

Rules: what goes wrong before the first piece is told as a problem; behind it the connection is cut, so that nobody takes a part
for the whole. A client that leaves, or takes nothing for half a minute, ends the making. What was opened for it is closed in
any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, aclosing
from typing import Any
from urllib.parse import quote

import anyio
from anyio.abc import ObjectSendStream

from sessile.core.codec import encode_plain
from sessile.core.text import without_surrogates
from sessile.errors import Invalid, InvalidEntry, SessileError
from sessile.gateway.events import Event, Subscription
from sessile.gateway.http.problems import App, Scope

# --- sse

KEEP_ALIVE = 15.0
_PATIENCE = 30.0
_RETRY = 1000  # milliseconds until a client that lost its connection comes back

_LINE_END = re.compile("\r\n|\r|\n")  # not `splitlines`, which knows eight more
_NOT_IN_A_FIELD = re.compile("[\r\n\0]")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def frame(data: str, *, event: str | None = None, event_id: str | None = None, retry: int | None = None) -> bytes:
    """One event. An empty id makes the client forget the last one; no id leaves it."""
    fields = {"id": event_id, "event": event, "retry": None if retry is None else str(retry)}
    for name, value in fields.items():
        if value is not None and _NOT_IN_A_FIELD.search(value):
            raise Invalid(f"the {name} of an event holds a line end or a zero character")
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return "\n".join([*lines, "", ""]).encode("utf-8", "replace")


def comment(text: str = "") -> bytes:
    """Something that clients pass over."""
    return "".join(f": {line}\n" for line in _LINE_END.split(text)).encode("utf-8", "replace") + b"\n"


def retry_after(milliseconds: int) -> bytes:
    """Tells clients how long to wait before they connect again."""
    return f"retry: {milliseconds}\n\n".encode("ascii")


def encode_event(event: Event) -> bytes:
    """An event of the hub: its kind is the name, its data a JSON object with the session's id."""
    document = {"sessionId": event.session_id, "data": event.data}
    try:
        data = encode_plain(document)
    except InvalidEntry:
        # A number beyond all limits beside a lone surrogate: the number becomes null, as it does in JavaScript.
        data = encode_plain(json.loads(json.dumps(document), parse_constant=lambda _: None))
    return frame(data.decode("utf-8"), event=event.kind, event_id=event.id)


class EventStream:
    """An ASGI response that sends the events of a subscription until either side ends; then it closes the subscription."""

    def __init__(self, events: Subscription, *, keep_alive: float = KEEP_ALIVE, patience: float = _PATIENCE) -> None:
        self._events = events
        self._keep_alive = keep_alive
        self._patience = patience

    async def __call__(self, scope: object, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._events:
            headers = [
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as group:
                group.start_soon(self._wait_for_the_end, receive, group.cancel_scope)
                try:
                    await self._send_all(send)
                except OSError:
                    pass  # the client has gone, and there is nobody to tell
                group.cancel_scope.cancel()

    async def _wait_for_the_end(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _send_all(self, send: Send) -> None:
        piece: bytes | None = retry_after(_RETRY)
        while piece is not None:
            with anyio.move_on_after(self._patience) as scope:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if scope.cancelled_caught:
                return
            piece = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        """The next event, or a comment if none comes; `None` behind the last."""
        with anyio.move_on_after(self._keep_alive):
            event = await anext(self._events, None)
            return None if event is None else encode_event(event)
        return comment()


# --- streaming

_SOON = 1.0  # seconds; so long the place of a client that has gone may stay taken
_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class Stream:
    """An ASGI response of pieces, each sent as soon as it is there."""

    def __init__(
        self,
        pieces: Callable[[], AsyncIterator[bytes]],
        headers: list[tuple[bytes, bytes]] | None = None,
        *,
        keep_alive: float = KEEP_ALIVE,
        patience: float = _PATIENCE,
    ) -> None:
        self._pieces = pieces
        self._headers = [*_HEADERS, *(headers or ())]
        self._keep_alive = keep_alive
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        into, out = anyio.create_memory_object_stream[bytes](1)
        async with anyio.create_task_group() as group, into, out:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            # Pieces are waited for in a task of their own: who waits for one must not be cut off by a comment.
            group.start_soon(self._produce, into.clone())
            into.close()
            while True:
                piece: bytes | None = comment()
                with anyio.move_on_after(self._keep_alive):
                    try:
                        piece = await out.receive()
                    except anyio.EndOfStream:
                        piece = None
                with anyio.move_on_after(self._patience) as limit:
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
    """An ASGI response that is made when something is known; if the client goes before, nothing is sent."""

    def __init__(self, result: Callable[[], Awaitable[App]]) -> None:
        self._result = result

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # To look out for clients that go costs more than most answers do; it begins when one takes its time.
        response: App | None = None
        with anyio.move_on_after(_SOON):
            response = await self._result()
        if response is None:
            response = await self._late(receive)
        if response is not None:
            await response(scope, receive, send)

    async def _late(self, receive: Receive) -> App | None:
        """The response of a result that takes its time; `None` if the client has gone meanwhile."""
        response: App | None = None
        failure: SessileError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            try:
                response = await self._result()
            except SessileError as error:
                failure = error  # raised below, where no group wraps it
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return response


async def _sent(send: Send, piece: bytes | None) -> bool:
    """Send a piece, or with `None` the end; whether anybody is there to take it."""
    try:
        await send({"type": "http.response.body", "body": piece or b"", "more_body": piece is not None})
    except OSError:
        return False
    return True


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


# --- downloads

Call = Callable[..., Awaitable[Any]]

_AT_ONCE = 256 * 1024  # bytes; making many small pieces on a thread each would take longer than making them
_UNSAFE = re.compile(r"[^\w. -]+")
_LONGEST = 80  # characters of a name


class Download:
    """A response with the pieces of a file. `call` runs what blocks; `opened` is closed at the end."""

    def __init__(
        self,
        call: Call,
        pieces: Iterator[bytes],
        opened: ExitStack,
        media_type: str,
        headers: Mapping[str, str],
        *,
        patience: float = _PATIENCE,
    ) -> None:
        self._call = call
        self._patience = patience
        self._pieces = pieces
        self._opened = opened
        named = {"content-type": media_type, **headers}
        self._headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            piece = await self._next()  # before anything is sent
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            if scope["method"] == "HEAD":
                piece = b""
            async with anyio.create_task_group() as group:
                group.start_soon(self._wait_for_the_end, receive, group.cancel_scope)
                await self._send_all(send, piece)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._call(self._opened.close)

    async def _send_all(self, send: Send, piece: bytes) -> None:
        while piece:
            with anyio.move_on_after(self._patience) as scope:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if scope.cancelled_caught:
                return  # without an end, so that the server cuts the connection
            piece = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes:
        data: bytes = await self._call(self._taken)
        return data

    def _taken(self) -> bytes:
        """The next pieces, as many as are sent at once; none behind the last."""
        taken: list[bytes] = []
        size = 0
        for piece in self._pieces:
            taken.append(piece)
            size += len(piece)
            if size >= _AT_ONCE:
                break
        return b"".join(taken)

    async def _wait_for_the_end(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def disposition(name: str, suffix: str, *, inline: bool = False) -> str:
    """How a file is to be called: a name that no system takes for a path, an option or a command, in ASCII and in UTF-8."""
    safe = _UNSAFE.sub("-", without_surrogates(name))[:_LONGEST].strip(" .-_") or "session"
    plain = safe.encode("ascii", "ignore").decode().strip(" .-_") or "session"
    kind = "inline" if inline else "attachment"
    return f"{kind}; filename=\"{plain}.{suffix}\"; filename*=UTF-8''{quote(f'{safe}.{suffix}', safe='')}"
