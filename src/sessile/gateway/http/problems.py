"""HTTP errors: problem documents (RFC 9457), one shape for every rejection and failure.

    {"type": "urn:sessile:problem:session-not-found", "title": "Session not found", "status": 404,
     "detail": "…", "hint": "…"}

Rules: a Sessile error says what happened and what to do, without paths of this machine. An unexpected error reveals
nothing: its details are in the log. Long texts are cut, because they may repeat what a client sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from sessile.errors import Invalid, Refused, SessileError, TooLarge, TooMany, Unauthorized

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MEDIA_TYPE = b"application/problem+json"

_MAX_TEXT = 500  # characters
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
# Two or more names after slashes, or anything after a tilde; not the path of a URL, a media type or a chat command, nor
# a path after GET in a hint.
_PATH = re.compile(r"""(?<!GET )(?<![\w.:/-])(?:~(?:/[^\s/:'"`,;()]*)+|(?:/[^\s/:'"`,;()]+){2,}/?)""")


class HeadersTooLarge(TooLarge):
    """The request headers are too large.

    Send fewer headers, or raise `limits.headerBytes`.
    """

    status = 431


class NotJson(Invalid):
    """The request body is not declared as JSON.

    Send `Content-Type: application/json`.
    """

    status = 415


class TooSlow(Refused):
    """The request body was not received in time.

    Send it faster, or in smaller parts. `limits.bodySeconds` is the timeout, and there is a minimum rate.
    """

    status = 408


class TooSoon(TooMany):
    """Too many requests.

    Wait for the seconds in `Retry-After`.
    """

    def __init__(self, message: str, *, seconds: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: Headers
    body: bytes


def problem(error: SessileError) -> Answer:
    """Return the problem document of an error."""
    kind = type(error)
    members = {
        "type": f"urn:sessile:problem:{_CAPITAL.sub('-', kind.__name__).lower()}",
        "title": (kind.__doc__ or "").split("\n")[0].rstrip("."),
        "status": error.status,
        "detail": public_text(error.message, error.path),
        "hint": public_text(error.hint or "", error.path) or None,
    }
    headers: Headers = []
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, TooMany):
        seconds = error.seconds if isinstance(error, TooSoon) else 1
        headers.append((b"retry-after", str(seconds).encode()))
    return _answer(members, headers)


def unexpected() -> Answer:
    """Return the response to an unexpected error."""
    members = {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "Internal error.",
        "hint": "see the log of the gateway",
    }
    return _answer(members, [])


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a complete response."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of a header, whose name is in lower case."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def _answer(members: dict[str, Any], headers: Headers) -> Answer:
    body = json.dumps(members).encode()
    length = str(len(body)).encode()
    return Answer(members["status"], [(b"content-type", MEDIA_TYPE), (b"content-length", length), *headers], body)


def public_text(text: str, path: str | None) -> str:
    """Return the part of an error's text that may leave this machine. `path` is the path of the error."""
    if path:
        text = text.replace(path, "…")
    text = _PATH.sub("…", text)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
