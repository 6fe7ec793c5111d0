"""Tables at a terminal: columns that fit, whatever is in them and however narrow it is.

What gives way first is the wide column, then those that may be cut, down to a least width each. Where that is not enough,
the texts of a row stand below its numbers; where these do not fit either, a row is told in words. Numbers are never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sessile.core.styled import Line, Span, Style, wrapped_line
from sessile.core.visible import cut, visible_line, width

_BETWEEN = 2  # columns of the terminal between two of the table
_ENOUGH = 28  # columns that a wide one keeps as long as others can give way
_LEAST = 12  # columns that one must have that is cut
_BELOW = "    "


class Column(NamedTuple):
    """A column of a table; a wide one takes the room that the others leave, a soft one may be cut too."""

    name: str
    right: bool = False
    wide: bool = False
    soft: bool = False


class Cell(NamedTuple):
    """What stands in a table: for a person, and for a program where that differs."""

    text: str
    style: Style = "plain"
    value: str | None = None


def in_words(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    """A row as a sentence, for who cannot see columns."""
    return "; ".join(f"{column.name}: {visible_line(cell.text)}" for column, cell in zip(columns, row, strict=True))


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int) -> Iterator[Line]:
    """The lines of a table, its heads first; none if it has no rows."""
    if not rows:
        return
    heads = [Cell(column.name, "dim") for column in columns]
    shown = [heads, *([cell._replace(text=visible_line(cell.text)) for cell in row] for row in rows)]
    widths = [max(width(row[number].text) for row in shown) for number in range(len(columns))]
    _narrow(columns, widths, room)
    texts = [number for number, column in enumerate(columns) if column.wide or column.soft]
    if _taken(widths) <= room:
        yield from (_line(columns, row, widths) for row in shown)
        return
    others = [number for number in range(len(columns)) if number not in texts]
    if not texts or _taken([widths[number] for number in others]) > room:
        for row in rows:
            yield from wrapped_line((Span(in_words(columns, row)),), room)
        return
    for row in shown:
        yield _line([columns[n] for n in others], [row[n] for n in others], [widths[n] for n in others])
        if row is not heads:
            for number in sorted(texts, key=lambda number: not columns[number].wide):
                if row[number].text:
                    yield (Span(_BELOW + cut(row[number].text, room - len(_BELOW)), row[number].style),)


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _narrow(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Cut columns until they fit, or cannot be cut any more."""
    wide = [number for number, column in enumerate(columns) if column.wide]
    soft = [number for number, column in enumerate(columns) if column.soft]
    for numbers, least in ((wide, _ENOUGH), (soft, _LEAST), (wide, _LEAST)):
        while (over := _taken(widths) - room) > 0 and numbers:
            widest = max(numbers, key=lambda number: widths[number])
            if widths[widest] <= least:
                break
            rest = max((widths[number] for number in numbers if number != widest), default=least)
            # The widest gives way until it is as wide as the next one; then both do.
            widths[widest] = max(widths[widest] - over, min(rest, widths[widest] - 1), least)


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int]) -> Line:
    spans = []
    for number, (column, cell, room) in enumerate(zip(columns, row, widths, strict=True)):
        text = cut(cell.text, room)
        blank = " " * (room - width(text))
        if column.right:
            spans.append(Span(blank))
        spans.append(Span(text, cell.style))
        if number < len(columns) - 1:
            spans.append(Span(" " * _BETWEEN if column.right else blank + " " * _BETWEEN))
    return tuple(spans)
