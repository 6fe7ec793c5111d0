"""One line as JSON, in the two ways in which each SDK does it: with patience for messages, strictly for a listing."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from sessile.core.codec import decode_exactly
from sessile.formats.claude.rows import View

UNPRINTED = bytes(range(33))  # what the TypeScript SDK passes over before a row

_decode = msgspec.json.Decoder().decode


def read_row(raw: bytes, view: View = "ts") -> dict[str, Any] | None:
    """One row, or None for what is not an object in JSON; bytes that are not UTF-8 become U+FFFD.

    The TypeScript SDK passes over NUL bytes and other unprinted ones before a row. The Python SDK does so for what Python
    calls space, on both sides, and reads NaN and Infinity.
    """
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            value = _read_exactly(raw, view)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _read_exactly(raw: bytes, view: View) -> object:
    if view == "ts":
        return decode_exactly(raw.lstrip(UNPRINTED).decode("utf-8", "replace"))
    return json.loads(raw.decode("utf-8", "replace").strip())


def parsed(line: str, view: View = "ts") -> Any:
    """The value of a line; None if it is not JSON, which for the Python SDK has NaN and Infinity."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # lone surrogates and huge numbers are refused there
    try:
        return decode_exactly(line) if view == "ts" else json.loads(line)
    except (ValueError, RecursionError):
        return None
