"""Errors as HTTP tells them: problem documents (RFC 9457), the same shape for every refusal and failure.

    {"type": "urn:sessile:problem:session-not-found", "title": "There is no such session", "status": 404,
     "detail": "…", "hint": "…"}

Rules: an error of ours says what happened and what to do, without any path of this machine. An error that nobody expected says
nothing: what it holds is for the log. A text is cut where it gets long, because it may repeat what a client has sent.
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

_LONGEST = 500  # characters of a text
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
# Two or more names behind slashes, or anything behind a tilde; not the path of an address, a media type or a chat command, nor
# what a hint says to ask the gateway.
_PATH = re.compile(r"""(?<!GET )(?<![\w.:/-])(?:~(?:/[^\s/:'"`,;()]*)+|(?:/[^\s/:'"`,;()]+){2,}/?)""")


class HeadersTooLarge(TooLarge):
    """The headers are larger than the limit.

    Send fewer, or raise `limits.headerBytes`.
    """

    status = 431


class NotJson(Invalid):
    """The body is not sent as JSON.

    Send `Content-Type: application/json`.
    """

    status = 415


class TooSlow(Refused):
    """The request did not come to its end in time.

    Send it faster, or in smaller pieces; `limits.bodySeconds` is how long it may take.
    """

    status = 408


class TooSoon(TooMany):
    """There are more requests than are answered; try again later.

    Wait as long as `Retry-After` says.
    """

    def __init__(self, message: str, *, seconds: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    body: bytes


def problem(error: SessileError) -> Answer:
    """The response that tells an error."""
    kind = type(error)
    members = {
        "type": f"urn:sessile:problem:{_CAPITAL.sub('-', kind.__name__).lower()}",
        "title": (kind.__doc__ or "").split("\n")[0].rstrip("."),
        "status": error.status,
        "detail": tellable(error.message, error.path),
        "hint": tellable(error.hint or "", error.path) or None,
    }
    headers: Headers = []
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, TooMany):
        seconds = error.seconds if isinstance(error, TooSoon) else 1
        headers.append((b"retry-after", str(seconds).encode()))
    return _answer(members, headers)


def unexpected() -> Answer:
    """The response to what should not have happened."""
    members = {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "Something went wrong.",
        "hint": "the log of the gateway says more",
    }
    return _answer(members, [])


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


def values(scope: Scope, name: bytes) -> list[bytes]:
    """What a request says under the name of a header, which is in lower case."""
    return [value for key, value in scope["headers"] if key.lower() == name]


def _answer(members: dict[str, Any], headers: Headers) -> Answer:
    body = json.dumps(members).encode()
    length = str(len(body)).encode()
    return Answer(members["status"], [(b"content-type", MEDIA_TYPE), (b"content-length", length), *headers], body)


def tellable(text: str, path: str | None) -> str:
    """What of an error's text may leave this machine; `path` is the one that the error is about."""
    if path:
        text = text.replace(path, "…")
    text = _PATH.sub("…", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
