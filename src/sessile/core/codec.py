"""Encode entries as lines and decode lines: JSON as JavaScript writes it.

Rules:
- No spaces, non-ASCII characters unescaped, lone surrogates escaped, whole floats without `.0`. No value produces a raw newline.
- What is encoded comes back equal. A tuple comes back as a list, and an instance of a subclass of `str`, `int` or `float` as the
  text or number that it equals. Everything else is refused by its path: bytes, sets, dates, names that are not strings, NaN and
  infinity, values nested too deeply.
- Input that msgspec refuses but JavaScript accepts (lone surrogates, huge integers, bytes that are not UTF-8) goes through the
  standard library, so the fast and the exact way return the same result.

`plain` copies a value before it is encoded. The copy equals what decoding the line returns, so it can be shown without decoding
the line again, and later changes of the caller's value have no effect on it. The same walk refuses what cannot be stored, and
notes what needs special handling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile.core.large import DATA, DATA_URL, DROPPED, MAX_STRING, MIN_IMAGE, URL
from sessile.errors import InvalidEntry, TooLarge

if TYPE_CHECKING:
    from json import JSONDecoder


MAX_DEPTH = 256  # deeper values come from bugs, and readers recurse

_NOTABLE = frozenset((*DROPPED, URL))
_SURELY_SHORT = MAX_STRING // 2  # characters, each of one or two UTF-16 units
_WHOLE = 1e21  # JavaScript writes larger whole numbers with an exponent


class Plain(NamedTuple):
    """A copy of a value, which decoding its line returns, and whether parts may be too large for a line."""

    value: Any
    large: bool


def plain(value: Any) -> Plain:
    """Copy a value for encoding. Raise `InvalidEntry` if decoding the line would not return an equal value."""
    walk = _Walk()
    try:
        return Plain(walk.copy(value, 0), walk.large)
    except _Refused:
        raise _refusal(value) from None


class _Walk:
    __slots__ = ("large",)

    def __init__(self) -> None:
        self.large = False

    def copy(self, value: Any, depth: int) -> Any:
        if type(value) is float:
            return _number(value)
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list) or type(value) is tuple:
            return self._array(value, depth)
        if value is None or type(value) in _EXACT:
            return value
        return self._base_value(value)

    def _object(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        if depth > MAX_DEPTH:
            raise TooLarge(f"the entry is nested deeper than {MAX_DEPTH} levels")
        if not _NOTABLE.isdisjoint(value):
            self.large = True
        copy = {}
        for key, item in value.items():
            if type(key) is not str:
                if not isinstance(key, str):
                    raise _Refused
                key = str.__str__(key)
            kind = type(item)
            if kind is str:
                if len(item) >= MIN_IMAGE and (key == DATA or _may_be_large(item)):
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
                self.large = self.large or _may_be_large(item)
            else:
                item = self.copy(item, depth + 1)
            copy.append(item)
        return copy

    def _base_value(self, value: Any) -> Any:
        """The text or number in an instance of a subclass, such as a member of a `StrEnum`, which equals it."""
        if isinstance(value, str):
            text = str.__str__(value)
            self.large = self.large or len(text) >= MIN_IMAGE  # its name may be that of base64
            return text
        if isinstance(value, int):
            return int.__index__(value)
        if isinstance(value, float):
            return _number(float.__float__(value))
        raise _Refused


def _may_be_large(text: str) -> bool:
    return len(text) > _SURELY_SHORT or (text.startswith(DATA_URL) and len(text) >= MIN_IMAGE)


class _Refused(Exception):
    """The value has a part that JSON does not have. Where it is costs a second walk, which only a refusal pays."""


_EXACT = frozenset((str, int, bool))
_INSTEAD = {
    "bytes": "use base64 text, or store it as a blob or an artifact",
    "bytearray": "use base64 text, or store it as a blob or an artifact",
    "memoryview": "use base64 text, or store it as a blob or an artifact",
    "set": "use a list",
    "frozenset": "use a list",
    "datetime": "use isoformat()",
    "date": "use isoformat()",
    "time": "use isoformat()",
    "Decimal": "use str() or float()",
    "UUID": "use str()",
    "ndarray": "use tolist()",
}


def _refusal(value: Any) -> InvalidEntry:
    """The error for a value that was refused: it names the first member that cannot be stored."""
    place, found, is_name = next(_refused_parts(value, ""))
    kind = type(found).__name__
    where = f"{place}: " if place else ""
    if is_name:
        return InvalidEntry(f"{where}invalid member name {found!r:.80} of type {kind}", hint="names must be strings")
    if isinstance(found, float):
        return InvalidEntry(f"{where}{found!r} cannot be written as JSON", hint="use None or text")
    hint = _INSTEAD.get(kind, "use values that JSON has: dict, list, str, int, float, bool and None")
    return InvalidEntry(f"{where}a value of type {kind} cannot be stored", hint=hint)


def _refused_parts(value: Any, place: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the parts that are refused: the path of each, the part, and whether it is the name of a member."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                yield from _refused_parts(item, f"{place}.{key:.80}" if place else f"{key:.80}")
            else:
                yield place, key, True
    elif isinstance(value, list) or type(value) is tuple:
        for number, item in enumerate(value):
            yield from _refused_parts(item, f"{place}[{number}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield place, value, False
    elif value is not None and not isinstance(value, str | int):
        yield place, value, False


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise _Refused
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
