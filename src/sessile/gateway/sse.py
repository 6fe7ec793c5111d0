"""Server-sent events: how events are written for a browser, as the HTML standard has it, and the response that does.

Rules: a line ends at CR, LF or both, so data is split at each of them and no text can end an event or begin a field; ids and
names that hold one are refused. Silence is broken by a comment every fifteen seconds, so that nobody between takes the
connection for dead. A client that takes nothing for half a minute is cut off.

It does not know where events come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio

from sessile.core.codec import encode_plain
from sessile.errors import Invalid, InvalidEntry
from sessile.gateway.events import Event, Subscription

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
