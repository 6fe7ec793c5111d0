"""One entry, one line: JSON as JavaScript writes it, and back.

Rules: no spaces, non-ASCII unescaped, lone surrogates escaped, whole floats without `.0`; no value can produce a raw
newline. NaN and infinity are refused. What msgspec refuses but JavaScript accepts (lone surrogates, huge integers, bytes
that are not UTF-8) goes through the standard library, so that the fast and the exact way give one answer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from sessile.core.plain import plain
from sessile.errors import InvalidEntry

if TYPE_CHECKING:
    from json import JSONDecoder

_encode = msgspec.json.encode
_decode = msgspec.json.decode


def encode(value: dict[str, Any]) -> bytes:
    """The value as one line without its newline."""
    return encode_plain(plain(value).value)


def encode_plain(value: Any) -> bytes:
    """A value that `plain` has made, as one line."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _encode_exactly(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error


def _encode_exactly(value: Any) -> bytes:
    import json  # few lines need it, and a command starts faster without

    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidEntry(f"the entry cannot be written as JSON: {error}") from error
    # The only characters that UTF-8 cannot hold are lone surrogates; this writes them as \udXXX.
    return text.encode("utf-8", "backslashreplace")


def decode(raw: bytes) -> Any:
    """The value of one line; bytes that are not UTF-8 become U+FFFD. Raises ValueError if it is not JSON."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, ValueError):
        return decode_exactly(raw.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@cache
def exact_decoder() -> JSONDecoder:
    """The standard library's decoder without its extensions; numbers beyond all limits are infinite, as in JavaScript."""
    import json

    return json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)


def decode_exactly(text: str) -> Any:
    """The value of a JSON text, by the standard library and without its extensions."""
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
