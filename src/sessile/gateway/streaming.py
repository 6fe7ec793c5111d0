"""Responses that take their time: a stream of events, or one answer that is waited for.

Rules: whoever has gone is not waited for, and what they asked for goes on without them. Silence is broken by a comment every
fifteen seconds, so that nobody between takes the connection for dead. A client that takes nothing for half a minute is cut off.

It does not know what is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import anyio
from anyio.abc import ObjectSendStream

from sessile.errors import SessileError
from sessile.gateway.problems import App, Receive, Scope, Send
from sessile.gateway.sse import KEEP_ALIVE, comment

_PATIENCE = 30.0
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
