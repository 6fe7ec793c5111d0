"""Cursors: where an answer ended, as a text that the next call hands back.

Rules: a cursor belongs to the question that it was made for; one that is handed back with another question is refused. Whoever
makes one up gains nothing by it: it says where to go on, never what may be shown.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TypeVar

import msgspec

from sessile.errors import InvalidQuery
from sessile.mcp.shapes import Asked

_HINT = "call without a cursor to begin anew, or with the very arguments of the call that gave it"
Place = TypeVar("Place", bound=msgspec.Struct)


def cursor_of(place: msgspec.Struct, asked: Asked) -> str:
    """The cursor for a place in the answer to a question."""
    return base64.urlsafe_b64encode(msgspec.json.encode((_question(asked), place))).decode().rstrip("=")


def place_of(asked: Asked, kind: type[Place]) -> Place | None:
    """The place at which to go on; `None` if the question begins anew."""
    if asked.cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(asked.cursor + "=" * (-len(asked.cursor) % 4))
        question, place = msgspec.json.decode(text, type=tuple[str, kind])  # type: ignore[valid-type]
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidQuery("this is no cursor of this tool", hint=_HINT) from error
    if question != _question(asked):
        raise InvalidQuery("this cursor belongs to another question", hint=_HINT)
    return place


def _question(asked: Asked) -> str:
    told = msgspec.json.encode((type(asked).__name__, msgspec.structs.replace(asked, cursor=None)))
    return hashlib.sha256(told).hexdigest()[:16]
