"""Encode entries as lines and decode lines: JSON as JavaScript writes it.

Rules:
- No spaces, non-ASCII characters unescaped, lone surrogates escaped, whole floats without `.0`. No value produces a raw newline.
- NaN, infinity and values nested too deeply are refused.
- Input that msgspec refuses but JavaScript accepts (lone surrogates, huge integers, bytes that are not UTF-8) goes through the
  standard library, so the fast and the exact way return the same result.

`plain` copies a value before it is encoded. The copy equals what decoding the line returns, so it can be shown without decoding
the line again, and later changes of the caller's value have no effect on it. The same walk notes what needs special handling.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile.core.large import DROPPED, MAX_STRING, MIN_IMAGE, URL
from sessile.errors import InvalidEntry, TooLarge

if TYPE_CHECKING:
    from json import JSONDecoder


MAX_DEPTH = 256  # deeper values come from bugs, and readers recurse

_NOTABLE = frozenset((*DROPPED, URL))
_SURELY_SHORT = MAX_STRING // 2  # characters, each of one or two UTF-16 units
_WHOLE = 1e21  # JavaScript writes larger whole numbers with an exponent


class Plain(NamedTuple):
    """A copy of a value; whether decoding its line returns exactly that; whether parts may be too large for a line."""

    value: Any
    exact: bool
    large: bool


def plain(value: Any) -> Plain:
    """Copy a value for encoding."""
    walk = _Walk()
    return Plain(walk.copy(value, 0), walk.exact, walk.large)


class _Walk:
    __slots__ = ("exact", "large")

    def __init__(self) -> None:
        self.exact = True
        self.large = False

    def copy(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list | tuple):
            return self._array(value, depth)
        if type(value) is float:
            return _number(value)
        # Other types that msgspec can encode are decoded as something else: a date as text, an enum as its value.
        self.exact = self.exact and (value is None or type(value) in (str, int, bool))
        return value

    def _object(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        if depth > MAX_DEPTH:
            raise TooLarge(f"the entry is nested deeper than {MAX_DEPTH} levels")
        if not _NOTABLE.isdisjoint(value):
            self.large = True
        copy = {}
        for key, item in value.items():
            if type(key) is not str:
                self._unusual(key)
            kind = type(item)
            if kind is str:
                if len(item) > _SURELY_SHORT or (key == "data" and len(item) >= MIN_IMAGE):
                    self.large = True
            elif kind is dict:
                item = self._object(item, depth + 1)
            elif kind is list:
                item = self._array(item, depth + 1)
            elif kind is not int and kind is not bool and item is not None:
                item = self.copy(item, depth + 1)
            copy[key] = item
        return copy

    def _array(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise TooLarge(f"the entry is nested deeper than {MAX_DEPTH} levels")
        copy = []
        for item in value:
            kind = type(item)
            if kind is dict:
                item = self._object(item, depth + 1)
            elif kind is str:
                self.large = self.large or len(item) > _SURELY_SHORT
            else:
                item = self.copy(item, depth + 1)
            copy.append(item)
        return copy

    def _unusual(self, key: object) -> None:
        self.exact = False
        if not isinstance(key, str | int | float):
            raise InvalidEntry(f"invalid member name of type {type(key).__name__}: names must be strings")


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise InvalidEntry("NaN and infinity cannot be written as JSON")
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


# Strings and punctuation of JSON: enough to find the members of an object without changing a byte of it.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]')


def member_span(raw: bytes, name: str) -> tuple[int, int] | None:
    """Return where the value of a member of an encoded object starts and ends; of several members, that of the last."""
    depth = 0
    key = found = None
    start = 0
    for token in _TOKEN.finditer(raw):
        mark = raw[token.start()]
        if mark in b"{[":
            depth += 1
        elif depth == 1 and mark in b",}":
            if key is not None and start and decode(key) == name:
                found = (start, token.start())
            key, start = None, 0
        elif depth == 1 and mark == ord(":"):
            start = token.end()
        elif depth == 1 and not start:
            key = token[0]
        if mark in b"}]":
            depth -= 1
    return found


_encode = msgspec.json.encode
_decode = msgspec.json.decode


def encode(value: dict[str, Any]) -> bytes:
    """Encode a value as one line, without the newline."""
    return encode_plain(plain(value).value)


def encode_plain(value: Any) -> bytes:
    """Encode a value returned by `plain` as one line."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _encode_exactly(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error


def _encode_exactly(value: Any) -> bytes:
    try:
        text: str = _json().dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error
    # Only lone surrogates cannot be encoded as UTF-8; they are written as \udXXX.
    return text.encode("utf-8", "backslashreplace")


def decode(raw: bytes) -> Any:
    """Decode one line; bytes that are not UTF-8 become U+FFFD. Raise `ValueError` if it is not JSON."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, ValueError):
        return decode_exactly(raw.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@cache
def exact_decoder() -> JSONDecoder:
    """Return the standard library's decoder without its extensions; huge numbers are infinite, as in JavaScript."""
    decoder: JSONDecoder = _json().JSONDecoder(parse_constant=_refuse, parse_int=_integer)
    return decoder


@cache
def _json() -> Any:
    import json  # rarely needed; commands start faster without it

    return json


def decode_exactly(text: str) -> Any:
    """Decode a JSON text with the standard library, without its extensions."""
    try:
        return exact_decoder().decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)
