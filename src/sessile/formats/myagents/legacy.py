"""The form of a session before JSONL: one object with a `messages` array."""

from __future__ import annotations

from collections.abc import Iterator

from sessile.core.codec import decode
from sessile.core.lines import Finding
from sessile.formats.myagents.messages import Item, Row, encode_row


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
