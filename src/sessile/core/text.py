"""Text as JavaScript counts it, dates as it writes them, and names that are safe to show.

The family measures strings in UTF-16 units: an emoji counts two. Nothing here knows what the text is for.
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
_ROUNDS = 10  # what is stripped may join what can be normalised again; nothing real takes more


def utf16_length(text: str) -> int:
    """The length that JavaScript reports for a string."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf16_cut(text: str, units: int) -> str:
    """The first `units` UTF-16 units; a character that would be cut in half is left out."""
    if text.isascii():
        return text[:units]
    cut = text.encode("utf-16-le", "surrogatepass")[: units * 2]
    if len(cut) >= 2 and 0xD8 <= cut[-1] <= 0xDB:
        cut = cut[:-2]
    return cut.decode("utf-16-le", "surrogatepass")


def without_surrogates(text: str) -> str:
    """The text with every lone surrogate replaced, so that any provider accepts it."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def iso_timestamp(milliseconds: int) -> str:
    """An instant as `Date.toISOString` writes it."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=8)  # entries come in bursts, and writing a date is slow
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def parse_timestamp(value: object) -> int | None:
    """Milliseconds since 1970 of an ISO date; `None` where JavaScript would say NaN."""
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
    """A name on one line: control characters become spaces, runs of spaces one, ends are trimmed."""
    return _SPACES.sub(" ", _CONTROLS.sub(" ", name)).strip()


def clean_tag(tag: str) -> str:
    """A tag in its compatible form, without what nobody can see: people filter by it."""
    for _ in range(_ROUNDS):
        before = tag
        tag = unicodedata.normalize("NFKC", tag)
        tag = "".join(char for char in tag if unicodedata.category(char) not in _UNSEEN)
        if tag == before:
            break
    return tag.strip()
