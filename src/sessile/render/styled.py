"""Lines for people as pieces with a meaning: the same line is printed in colours, plain, or read aloud.

A style says what a piece means, never how it looks; who prints it decides that. Stored text must be made visible before it
becomes a piece. Widths are columns of a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

from sessile.core.visible import cut, fitting, width

Style = Literal[
    "plain",
    "dim",
    "strong",
    "user",
    "assistant",
    "tool",
    "failed",
    "label",
    "summary",
    "id",
    "active",
    "added",
    "removed",
    "mark",
]


class Span(NamedTuple):
    """A piece of a line; `look` overrides the style with terminal attributes, as the numbers of an SGR sequence."""

    text: str
    style: Style = "plain"
    look: str = ""


Line = tuple[Span, ...]
EMPTY: Line = ()


def line(*pieces: Span | str) -> Line:
    """A line of pieces; a bare string is plain, an empty one is left out."""
    spans = (Span(piece) if isinstance(piece, str) else piece for piece in pieces)
    return tuple(span for span in spans if span.text)


def plain(spans: Line) -> str:
    """The text of a line, without the spaces at its end."""
    return "".join(span.text for span in spans).rstrip(" ")


def line_width(spans: Line) -> int:
    """How many columns a line needs."""
    return sum(width(span.text) for span in spans)


def clipped(spans: Line, columns: int) -> Line:
    """The line in so many columns, with … where it goes on."""
    if line_width(spans) <= columns:
        return spans
    kept: list[Span] = []
    room = columns
    for span in spans:
        wide = width(span.text)
        if wide >= room:  # something follows, or this is too long itself: the … must fit
            kept.append(span._replace(text=cut(span.text + "…", room)))
            break
        kept.append(span)
        room -= wide
    return tuple(span for span in kept if span.text)


def padded(spans: Line, columns: int) -> Line:
    """The line with spaces up to a column; unchanged if it is longer."""
    missing = columns - line_width(spans)
    return (*spans, Span(" " * missing)) if missing > 0 else spans


def wrapped(text: str, columns: int | None) -> Iterator[str]:
    """A visible text as lines of so many columns, broken at spaces where there are some; `None` breaks nothing."""
    for whole in text.split("\n"):
        yield from (whole[start:end] for start, end in _places(whole, columns))


def wrapped_line(spans: Line, columns: int | None) -> Iterator[Line]:
    """A line of pieces as lines of so many columns; pieces keep their styles."""
    begins = [0, *accumulate(len(span.text) for span in spans)]
    first = 0
    for start, end in _places("".join(span.text for span in spans), columns):
        while first < len(spans) and begins[first + 1] <= start:
            first += 1
        made = []
        for number in range(first, len(spans)):
            if begins[number] >= end:
                break
            text = spans[number].text[max(start - begins[number], 0) : end - begins[number]]
            made.append(spans[number]._replace(text=text))
        yield line(*made)


def _places(text: str, columns: int | None) -> Iterator[tuple[int, int]]:
    """Where the lines of a text begin and end; the space that one is broken at belongs to none."""
    start = 0
    while columns is not None:
        end = fitting(text, start, max(columns, 2))
        if end == len(text):
            break
        space = text.rfind(" ", start, end + 1)
        if space > start and text[start:space].strip(" "):
            yield start, space
            start = space + 1
        else:
            yield start, end
            start = end
    yield start, len(text)


def prefixed(first: Line, rest: Line, texts: Iterable[str], style: Style = "plain") -> Iterator[Line]:
    """Lines of text behind one piece on the first and another on the others."""
    lead = first
    for text in texts:
        yield line(*lead, Span(text, style))
        lead = rest
