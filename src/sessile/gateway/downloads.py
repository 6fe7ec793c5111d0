"""A file as a response: made piece by piece on a thread, and sent as it is made.

Rules: what goes wrong before the first piece is told as a problem; behind it the connection is cut, so that nobody takes a part
for the whole. A client that leaves, or takes nothing for half a minute, ends the making. What was opened for it is closed in
any case.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio

from sessile.core.text import without_surrogates

if TYPE_CHECKING:
    from sessile.gateway.problems import Receive, Scope, Send

Call = Callable[..., Awaitable[Any]]

_AT_ONCE = 256 * 1024  # bytes; making many small pieces on a thread each would take longer than making them
_PATIENCE = 30.0  # seconds
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
