"""JSON values of a framework beside a native message, with each text stored once.

Where the message has the text, the framework's value has `null`, and a path says where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sessile.core.codec import encode_plain

Path = list[str | int]


def without(value: Any, paths: Iterable[Path | None]) -> Any:
    """Return the value with `None` at some paths; unchanged parts are shared with the original."""
    for path in paths:
        if path is not None:
            value = _without(value, path, 0)
    return value


def _without(value: Any, path: Path, depth: int) -> Any:
    if depth == len(path):
        return None
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[path[depth]] = _without(value[path[depth]], path, depth + 1)
    return copy


def put(value: Any, path: Path, text: Any) -> None:
    """Put a text at a path of the value."""
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = text


def values_of(entry: Mapping[str, Any]) -> list[Any]:
    """Return the values of the parts of an entry's message."""
    message = entry["message"] if entry.get("type") == "message" else entry
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [_value(part) for part in content] if isinstance(content, list) else []


def _value(part: Mapping[str, Any]) -> Any:
    match part["type"]:
        case "text":
            return part["text"]
        case "thinking":
            return part["thinking"]
        case "image":
            return f"data:{part['mimeType']};base64,{part['data']}"
        case "toolCall":
            return part["arguments"]
    return None


def compact(value: Any) -> str:
    """Return the value as JSON without spaces, as models usually write it."""
    return encode_plain(value).decode("utf-8")
