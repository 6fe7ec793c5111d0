"""JSON of a framework whose texts stand in one of our messages beside it, so that each text is stored once.

Where the message has the text, the framework's value has `null`; a path says where it belongs. Nothing here knows a framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sessile.core.codec import encode_plain

Path = list[str | int]


def without(value: Any, paths: Iterable[Path | None]) -> Any:
    """The value with nothing at some places; what does not change is shared with the original."""
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
    """Put something at a place of the value."""
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = text


def values_of(entry: Mapping[str, Any]) -> list[Any]:
    """What the parts of the message in an entry hold, part by part."""
    told = entry["message"] if entry.get("type") == "message" else entry
    content = told.get("content")
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
    """The value as the JSON text that models write, mostly: without spaces."""
    return encode_plain(value).decode("utf-8")
