"""Words shared by all text output: names of entries, numbers, prices, times and sizes.

Unknown values are called unknown. No clock is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sessile.core.text import iso_timestamp
from sessile.core.usage import price_list
from sessile.core.visible import visible_line
from sessile.render.styled import Style

if TYPE_CHECKING:
    from sessile.core.statistics import StatRow
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


def price(cost: float | None, unpriced: Mapping[str, int], listed: int = 0) -> str:
    """Return the cost of answers: how many have no known price, by model, and how many are priced by the table."""
    notes = [f"{', '.join(answers_of(unpriced))} unpriced"] if unpriced else []
    notes += [listed_at()] if listed and cost is not None else []
    known = UNKNOWN if cost is None else money(cost)
    return f"{known} ({', '.join(notes)})" if notes else known


_NAMED = 3  # models that are named


def answers_of(models: Mapping[str, int]) -> list[str]:
    """Return numbers of answers by model: 3 answers of openai/gpt-x."""
    named = list(models.items())
    words = [
        f"{many(count, 'answer')} of {visible_line(model) or 'an unknown model'}" for model, count in named[:_NAMED]
    ]
    rest = sum(count for _, count in named[_NAMED:])
    return [*words, f"{many(rest, 'answer')} of {len(named) - _NAMED} other models"] if rest else words


def price_notes(total: StatRow, unpriced: Mapping[str, int]) -> Iterator[str]:
    """Yield what must be said beside a sum of costs: which answers have no price, and the date of the price table."""
    if total.unpriced:
        which = ", ".join(answers_of(unpriced))
        verb = "has" if total.unpriced == 1 else "have"
        yield f"{which} {verb} no known price: the cost is a lower bound"
    if total.listed:
        yield f"{many(total.listed, 'answer')} of {total.answers or 0:,} at {listed_at()}; the others as their agent stored it"


def listed_at() -> str:
    """Return the source of prices, and their date."""
    date = prices_date()
    return f"prices of {date['date']}, {date['source']}"


def prices_date() -> dict[str, str]:
    """Return the date and the source of the price table."""
    prices = price_list()
    return {"date": prices.DATE, "source": prices.SOURCE}


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
