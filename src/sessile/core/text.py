"""Text and dates as JavaScript handles them, and names that are safe to show.

JavaScript measures strings in UTF-16 units: an emoji counts two.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SPACES = re.compile(r" {2,}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNSEEN = frozenset({"Cf", "Co", "Cn"})  # format, private use, unassigned
_ROUNDS = 10  # removing characters may enable further normalization; real tags need few rounds


def utf16_length(text: str) -> int:
    """Return the length of a string in UTF-16 units."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf16_cut(text: str, units: int) -> str:
    """Return the first `units` UTF-16 units, without a character that would be cut in half."""
    if text.isascii():
        return text[:units]
    cut = text.encode("utf-16-le", "surrogatepass")[: units * 2]
    if len(cut) >= 2 and 0xD8 <= cut[-1] <= 0xDB:
        cut = cut[:-2]
    return cut.decode("utf-16-le", "surrogatepass")


def without_surrogates(text: str) -> str:
    """Return the text with every lone surrogate replaced, so that any provider accepts it."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def iso_timestamp(milliseconds: int) -> str:
    """Format a time as `Date.toISOString` does."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=8)  # entries come in bursts, and formatting a date is slow
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def parse_timestamp(value: object) -> int | None:
    """Return an ISO date in milliseconds since 1970; `None` where JavaScript returns NaN."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
    except ValueError:
        return None
    return (moment - _EPOCH) // _MILLISECOND


def utc_datetime(microseconds: int) -> datetime:
    """An instant, given in microseconds since 1970; the nearest one that `datetime` can hold."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return (datetime.max if microseconds > 0 else datetime.min).replace(tzinfo=UTC)


def clean_name(name: str) -> str:
    """Return a name on one line: control characters become spaces, runs of spaces one space, ends are trimmed."""
    return _SPACES.sub(" ", _CONTROLS.sub(" ", name)).strip()


def clean_tag(tag: str) -> str:
    """Return a tag in NFKC form without invisible characters, so that equal-looking tags are equal."""
    for _ in range(_ROUNDS):
        before = tag
        tag = unicodedata.normalize("NFKC", tag)
        tag = "".join(char for char in tag if unicodedata.category(char) not in _UNSEEN)
        if tag == before:
            break
    return tag.strip()
