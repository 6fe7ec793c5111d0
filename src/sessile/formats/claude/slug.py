"""The name of a project folder, made of a working directory as Claude Code makes it, and the test for a session id.

Rules:

- JavaScript counts UTF-16 units, so we do: a character outside the basic plane becomes two hyphens and hashes as two units.
- Many paths share one slug (`/a/b-c`, `/a/b/c`). A slug is never decoded: rows say their `cwd` themselves.
- Links are resolved by whoever knows the disk; here a path is only text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

LONGEST_SLUG = 200  # a file system takes 255 bytes; the rest is left for the hash of a longer path

_HYPHENATED = re.compile(r"[^a-zA-Z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def slug(path: str) -> str:
    """The folder below `projects` for a working directory whose links are resolved."""
    return _named(path, hyphenated(path), _utf16_units)


def hyphenated(path: str) -> str:
    """A path in the letters of a slug, however long."""
    return _HYPHENATED.sub(_hyphens, unicodedata.normalize("NFC", path))


def python_sdk_slug(path: str) -> str:
    """The folder in which the Python SDK looks, which counts characters and so misses some that Claude Code makes."""
    return _named(path, _HYPHENATED.sub("-", unicodedata.normalize("NFC", path)), lambda text: map(ord, text))


def _named(path: str, hyphenated: str, units: Callable[[str], Iterable[int]]) -> str:
    if len(hyphenated) <= LONGEST_SLUG:
        return hyphenated
    return f"{hyphenated[:LONGEST_SLUG]}-{string_hash(units(unicodedata.normalize('NFC', path)))}"


def long_prefix(name: str) -> str | None:
    """How the folder of a long path begins whatever hashed it, or None for a slug without a hash.

    Older releases hashed long paths in another way, so a reader looks for this beginning if the exact name is missing.
    """
    return f"{name[:LONGEST_SLUG]}-" if len(name) > LONGEST_SLUG else None


def string_hash(units: Iterable[int]) -> str:
    """The Java string hash of units, its sign dropped, in base 36."""
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return _base_36(min(value, 0x1_0000_0000 - value))


def is_uuid(text: str) -> bool:
    """Whether a text is a session id: a UUID, and nothing around it, in any case of letters."""
    return _UUID.fullmatch(text) is not None


def _utf16_units(text: str) -> Iterable[int]:
    return memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]  # native order, behind the mark


def _hyphens(match: re.Match[str]) -> str:
    return "--" if ord(match.group()) > 0xFFFF else "-"


def _base_36(number: int) -> str:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"
