"""One entry, one line: JSON as JavaScript writes it, and back.

Rules: no spaces, non-ASCII unescaped, lone surrogates escaped, whole floats without `.0`; no value can produce a raw
newline. NaN and infinity are refused. What msgspec refuses but JavaScript accepts (lone surrogates, huge integers, bytes
that are not UTF-8) goes through the standard library, so that the fast and the exact way give one answer.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from sessile.errors import InvalidEntry, TooLarge

MAX_DEPTH = 256  # deeper values come from loops, not from people; every reader on the way recurses

_encode = msgspec.json.encode
_decode = msgspec.json.decode


def encode(value: dict[str, Any]) -> bytes:
    """The value as one line without its newline."""
    try:
        line = _encode(value)
    except (UnicodeEncodeError, OverflowError):
        line = b""
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error
    # The walk is only needed where one of these could hide: msgspec writes NaN as null and 1.0 with its point.
    if not line or b".0" in line or b"null" in line or line.count(b"{") + line.count(b"[") > MAX_DEPTH:
        return _encode_exactly(_plain(value, 0))
    return line


def _encode_exactly(value: Any) -> bytes:
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error
        # The only characters that UTF-8 cannot hold are lone surrogates; this writes them as \udXXX.
        return text.encode("utf-8", "backslashreplace")


def _plain(value: Any, depth: int) -> Any:
    """A copy that JavaScript would write the same way; refuses what JSON does not have."""
    if depth > MAX_DEPTH:
        raise TooLarge(f"the entry is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        if not all(isinstance(key, str | int | float) for key in value):
            raise InvalidEntry("the members of an object are named by text")
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidEntry("NaN and infinity have no form in JSON")
        # JavaScript writes whole numbers below 1e21 as integers.
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    return value


def decode(raw: bytes) -> Any:
    """The value of one line; bytes that are not UTF-8 become U+FFFD. Raises ValueError if it is not JSON."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, ValueError):
        return decode_exactly(raw.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def exact_decoder() -> json.JSONDecoder:
    """The standard library's decoder without its extensions; numbers beyond all limits are infinite, as in JavaScript."""
    return json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)


def decode_exactly(text: str) -> Any:
    """The value of a JSON text, by the standard library and without its extensions."""
    try:
        return _exact.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_exact = exact_decoder()
