"""Words shared by all text output: names of entries, numbers, prices, times and sizes.

Unknown values are called unknown. No clock is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessile.core.text import iso_timestamp
from sessile.core.visible import visible_line
from sessile.render.styled import Style

if TYPE_CHECKING:
    from sessile.render.shown import Image, Shown

UNKNOWN = "n/a"
SHORT_ID = 8  # characters of an id that people use
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # milliseconds that can be written as a date


def who(shown: Shown) -> str:
    """Return the author or kind of an entry: `user`, `assistant`, `bash`, `branch summary`."""
    return visible_line(shown.name) or shown.who


def style_of(shown: Shown) -> Style:
    """Return the style of an entry's name."""
    if shown.failed:
        return "failed"
    if shown.who in ("user", "assistant", "summary"):
        return shown.who
    return "tool" if shown.who in ("tool", "shell") else "dim"


def short_id(entry_id: str | None) -> str:
    """Return the short form of an id."""
    return visible_line(entry_id or "")[:SHORT_ID]


def many(number: int, word: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 entry, 3 entries."""
    return f"{number:,} {word if number == 1 else plural or _plural(word)}"


def _plural(word: str) -> str:
    return word[:-1] + "ies" if word.endswith("y") else word + "s"


def moment(at: int | None) -> str:
    """Return a time in ISO 8601; empty if it is unknown or out of range."""
    return iso_timestamp(at) if at is not None and _FIRST <= at <= _LAST else ""


def money(dollars: float) -> str:
    """Return an amount of dollars: $0.19, $0.0042."""
    return f"${dollars:,.2f}" if dollars == 0 or abs(dollars) >= 0.01 else f"${dollars:.4f}"


def price(cost: float | None, unpriced: int) -> str:
    """Return the cost of messages, and how many have no known price."""
    missing = f"{many(unpriced, 'message')} unpriced" if unpriced else ""
    if cost is None:
        return f"{UNKNOWN} ({missing})" if missing else UNKNOWN
    return f"{money(cost)} ({missing})" if missing else money(cost)


def duration(milliseconds: int) -> str:
    """Return a duration: 45 s, 12 min 5 s, 3 h 20 min."""
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def size(length: int) -> str:
    """Return a number of bytes: 940 B, 12 kB, 3.4 MB."""
    if length < 1000:
        return f"{length} B"
    return f"{round(length / 1000)} kB" if length < 999_500 else f"{length / 1_000_000:.1f} MB"


def image_word(image: Image) -> str:
    """Return an image in words: `[image png 12 kB]`."""
    kind = visible_line(image.mime).removeprefix("image/").removeprefix("image")
    length = 0 if image.data.startswith("blob:") else len(image.data.rstrip("=")) * 3 // 4
    return f"[{' '.join(filter(None, ('image', kind, size(length) if length else '')))}]"
