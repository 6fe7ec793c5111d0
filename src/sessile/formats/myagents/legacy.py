"""The form of a session before JSONL: one object with a `messages` array.

One that was torn gives the messages that are whole, in their order, up to the damaged place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sessile.core.codec import decode, exact_decoder
from sessile.core.lines import Finding
from sessile.formats.myagents.messages import Item, Row, encode_row

_BEGIN = re.compile(r'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_NEXT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")


def read_legacy(data: bytes) -> Iterator[Item]:
    """The messages of a legacy file as the rows that they become; raises ValueError if it cannot be read as one."""
    value = decode(data.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        raise ValueError("a legacy session is an object")
    messages = value.get("messages", [])
    if not isinstance(messages, list):
        raise ValueError("the messages of a legacy session are an array")
    offset = 0
    for message in messages:
        if isinstance(message, dict):
            raw = encode_row(message)
            yield Row(offset, raw)
            offset += len(raw) + 1
        else:
            yield Finding("not_a_message", offset, 0, "a message that is not an object")


def salvaged(data: bytes) -> Iterator[Row]:
    """The messages of a file that cannot be read as a whole, as far as they are."""
    text = data.decode("utf-8", "replace")
    place = _BEGIN.search(text)
    offset = 0
    while place is not None:
        try:
            value, end = exact_decoder().raw_decode(text, place.end())
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            raw = encode_row(value)
            yield Row(offset, raw)
            offset += len(raw) + 1
        place = _NEXT.match(text, end)
