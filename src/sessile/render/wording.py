"""The words that all text surfaces share: who spoke, numbers, money, times and sizes.

What is unknown is said to be unknown. Nothing here reads a clock.
"""

from __future__ import annotations

from sessile.core.text import iso_timestamp
from sessile.core.visible import visible_line
from sessile.render.shown import Image, Shown
from sessile.render.styled import Style

UNKNOWN = "n/a"
SHORT_ID = 8  # characters of an id that a person needs
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # the milliseconds that a date can be written for


def who(shown: Shown) -> str:
    """Who an entry is from, or what it is: `user`, `assistant`, `bash`, `branch summary`."""
    return visible_line(shown.name) or shown.who


def style_of(shown: Shown) -> Style:
    """The meaning that the name of an entry is printed with."""
    if shown.failed:
        return "failed"
    if shown.who in ("user", "assistant", "summary"):
        return shown.who
    return "tool" if shown.who in ("tool", "shell") else "dim"


def short_id(entry_id: str | None) -> str:
    """As much of an id as a person needs to name it."""
    return visible_line(entry_id or "")[:SHORT_ID]


def many(number: int, word: str, plural: str | None = None) -> str:
    """A number with its word: 1 entry, 3 entries."""
    return f"{number:,} {word if number == 1 else plural or _plural(word)}"


def _plural(word: str) -> str:
    return word[:-1] + "ies" if word.endswith("y") else word + "s"


def moment(at: int | None) -> str:
    """An instant in ISO 8601; empty if it is unknown, or no date."""
    return iso_timestamp(at) if at is not None and _FIRST <= at <= _LAST else ""


def money(dollars: float) -> str:
    """A price: $0.19, $0.0042."""
    return f"${dollars:,.2f}" if dollars == 0 or abs(dollars) >= 0.01 else f"${dollars:.4f}"


def price(cost: float | None, unpriced: int) -> str:
    """What answers cost, and how many of them nobody priced."""
    missing = f"{many(unpriced, 'message')} unpriced" if unpriced else ""
    if cost is None:
        return f"{UNKNOWN} ({missing})" if missing else UNKNOWN
    return f"{money(cost)} ({missing})" if missing else money(cost)


def duration(milliseconds: int) -> str:
    """A time as people say it: 45 s, 12 min 5 s, 3 h 20 min."""
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def size(length: int) -> str:
    """A number of bytes: 940 B, 12 kB, 3.4 MB."""
    if length < 1000:
        return f"{length} B"
    return f"{round(length / 1000)} kB" if length < 999_500 else f"{length / 1_000_000:.1f} MB"


def image_word(image: Image) -> str:
    """A picture in words: `[image png 12 kB]`."""
    kind = visible_line(image.mime).removeprefix("image/").removeprefix("image")
    length = 0 if image.data.startswith("blob:") else len(image.data.rstrip("=")) * 3 // 4
    return f"[{' '.join(filter(None, ('image', kind, size(length) if length else '')))}]"
