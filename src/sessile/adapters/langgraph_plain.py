"""Which values of LangGraph a line of a session gives back just as they were, and what to show of the others."""

from __future__ import annotations

import math
from typing import Any

from sessile.core.large import DROPPED

DEPTH = 12  # levels of lists and dicts; what lies deeper is left to the serializer
LONG_TEXT = 200_000  # characters: a longer text would leave its place for a blob, which changes what lies beside it

_NOT_PLAIN = frozenset((*DROPPED, "lineCount"))  # members that storing large content would touch


def is_dict(value: Any) -> bool:
    """Whether a value is a dict with the keys of a JSON object, and no type of its own."""
    return type(value) is dict and all(type(key) is str for key in value)


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON gives back just that value; whole floats become integers, so floats are not."""
    kind = type(value)
    if kind is str:
        return len(value) < LONG_TEXT and not value.startswith("blob:")
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is list:
        return depth < DEPTH and all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        named = is_dict(value) and _NOT_PLAIN.isdisjoint(value)
        return named and depth < DEPTH and all(is_plain(item, depth + 1) for item in value.values())
    return value is None or kind is bool


def showable(value: Any, depth: int = 0) -> Any:
    """The value as JSON that people can read; what has no form there is told by its text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < 2**63 else str(value)
    if isinstance(value, dict) and depth < DEPTH:
        return {str(key): showable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth < DEPTH:
        return [showable(item, depth + 1) for item in value]
    return str(value)
