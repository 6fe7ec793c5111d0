"""Putting other content in place of entries that exist.

The only way in which lines of a session ever change, and always by a verb of the caller: the file as it was is kept, ids,
parents and types stay, and what is not edited stays byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sessile.core import large
from sessile.core.codec import decode, encode
from sessile.core.entries import Entry
from sessile.core.kinds import MARKERS
from sessile.errors import InvalidEntry

Edit = Callable[[Entry], Mapping[str, Any] | None]
"""Gives the new members of an entry, or `None` to leave it alone."""


def rewritten(raw: bytes, edit: Edit, put: large.Put) -> bytes | None:
    """The line that takes the place of `raw`, if any."""
    body = decode(raw)
    if body.get("type") == "session" or not isinstance(body.get("id"), str) or body.get("customType") in MARKERS:
        return None
    new = edit(Entry(body["id"], body.get("parentId"), raw, body))
    if new is None:
        return None
    if any(new.get(name) != body.get(name) for name in ("id", "parentId", "type")):
        raise InvalidEntry(f"entry {body['id']} must keep its id, type and parent when it is rewritten")
    return encode(large.shrink(_without_stale_texts(dict(new), body), put))


def _without_stale_texts(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The new body without the full texts of strings that are no longer what was cut from them."""
    full = new.get(large.FULL)
    if not isinstance(full, dict):
        return new
    kept = {pointer: ref for pointer, ref in full.items() if _at(new, pointer) == _at(old, pointer) is not None}
    rest = {name: value for name, value in new.items() if name != large.FULL}
    return rest | {large.FULL: kept} if kept else rest


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer names; `None` if it leads nowhere."""
    for step in (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


class ToolCallRewrite:
    """An edit that gives a tool call other arguments."""

    def __init__(self, call_id: str, arguments: Mapping[str, Any]) -> None:
        self._call_id = call_id
        self._arguments = dict(arguments)
        self._quoted = encode({"id": call_id})[1:-1]

    def concerns(self, entry: Entry) -> bool:
        """Whether the entry holds the call."""
        return self._quoted in entry.raw and any(map(self._is_call, _content(entry)))

    def __call__(self, entry: Entry) -> Mapping[str, Any] | None:
        if not self.concerns(entry):
            return None
        blocks = [{**b, "arguments": self._arguments} if self._is_call(b) else b for b in _content(entry)]
        return {**entry.body, "message": {**entry["message"], "content": blocks}}

    def _is_call(self, block: object) -> bool:
        return isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id") == self._call_id


def _content(entry: Entry) -> list[Any]:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []
