"""Send one request to an ASGI application without a server, with any bytes in headers and any pacing of the body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from sessile.gateway.http.problems import App, Message, Receive

Header = tuple[str | bytes, str | bytes]
Piece = bytes | float | None
"""Of a body: bytes, seconds to wait, or `None` for a client that goes away."""


class Response(NamedTuple):
    """The response of an application."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header that may appear once."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, (name, values)
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class Nothing(Exception):
    """The application did not answer."""


def scope_of(method: str, target: str, headers: Sequence[Header], client: str | None = "127.0.0.1") -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(_bytes(name).lower(), _bytes(value)) for name, value in headers],
        "client": None if client is None else (client, 50_000),
        "server": ("127.0.0.1", 8787),
    }


async def ask(app: App, scope: dict[str, Any], body: Sequence[Piece] = ()) -> Response:
    """Send a request and its body piece by piece, and return the whole response."""
    pieces = list(body)
    sent: list[Message] = []

    async def receive() -> Message:
        while pieces:
            piece = pieces.pop(0)
            if piece is None:
                return {"type": "http.disconnect"}
            if not isinstance(piece, bytes):
                await asyncio.sleep(piece)
                continue
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        return await no_more()

    await deliver(app, scope, sent, receive)
    return _response(sent)


async def no_more() -> Message:
    """Receive for a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def deliver(app: App, scope: dict[str, Any], sent: list[Message], receive: Receive = no_more) -> None:
    """Call an application as a server does and collect every message that it sends, even if it fails."""

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)


def _response(sent: Sequence[Message]) -> Response:
    if not sent:
        raise Nothing
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert all(message["type"] == "http.response.body" for message in rest)
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in start["headers"]]
    return Response(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
