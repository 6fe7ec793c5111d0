"""Connections that keep the gateway waiting: closed after a while, and at once if there are too many of them.

A client that sends its headers byte by byte, or nothing at all, holds a connection without asking anything. The guards never see
it, because there is no request yet; so this stands below them, in the server's own protocol.

Rules: a connection on which nothing is being answered, before the first request, between two, or while the rest of a refused one
comes in, is closed after `header_seconds`. If more are open than there is room for, the one that has kept us waiting longest goes
at once; who asks right away is not among those. A connection that is being answered is never closed here.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from sessile.config import Limits

_SPARE = 64  # connections that may wait while all others are used; a browser keeps some six


class Room:
    """The connections of one server on which nothing is being answered, the longest waiting first."""

    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.header_seconds
        self.most = limits.connections + limits.event_clients + _SPARE
        self.waiting: dict[Punctual, None] = {}


class Punctual(H11Protocol):
    """A connection whose client has to ask something in time."""

    room: ClassVar[Room]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > self.room.most:
            longest = next(iter(self.room.waiting))
            longest._forget()
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """A request has been answered."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._forget()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None and not self.transport.is_closing():
            self.room.waiting[self] = None
            # What was answered may still be on its way, so this does not abort; if there is no room, that is done.
            self._deadline = self.loop.call_later(self.room.seconds, self.transport.close)

    def _forget(self) -> None:
        self.room.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def punctual(limits: Limits) -> type[Punctual]:
    """The protocol of one server, with room of its own."""
    return type("Punctual", (Punctual,), {"room": Room(limits)})
