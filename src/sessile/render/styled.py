"""Lines of text as spans with a meaning: the same line is printed in colour, plain, or read aloud.

A style says what a span means, not how it looks. Stored text must be made visible before it becomes a span. Widths are columns of
a terminal.
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
    """Return a line of spans; a string is a plain span, empty ones are left out."""
    spans = (Span(piece) if isinstance(piece, str) else piece for piece in pieces)
    return tuple(span for span in spans if span.text)


def plain(spans: Line) -> str:
    """Return the text of a line, without trailing spaces."""
    return "".join(span.text for span in spans).rstrip(" ")


def line_width(spans: Line) -> int:
    """Return the width of a line in columns."""
    return sum(width(span.text) for span in spans)


def clipped(spans: Line, columns: int) -> Line:
    """Return a line cut to a width, with … at its end if it is longer."""
    if line_width(spans) <= columns:
        return spans
    kept: list[Span] = []
    room = columns
    for span in spans:
        wide = width(span.text)
        if wide >= room:  # more follows, or this is too long: the … must fit
            kept.append(span._replace(text=cut(span.text + "…", room)))
            break
        kept.append(span)
        room -= wide
    return tuple(span for span in kept if span.text)


def padded(spans: Line, columns: int) -> Line:
    """Pad a line with spaces to a width; longer lines stay as they are."""
    missing = columns - line_width(spans)
    return (*spans, Span(" " * missing)) if missing > 0 else spans


def wrapped(text: str, columns: int | None) -> Iterator[str]:
    """Wrap a visible text at a width, at spaces if possible; `None` only splits its lines."""
    for whole in text.split("\n"):
        yield from (whole[start:end] for start, end in _places(whole, columns))


def wrapped_line(spans: Line, columns: int | None) -> Iterator[Line]:
    """Wrap a line of spans at a width; spans keep their styles."""
    starts = [0, *accumulate(len(span.text) for span in spans)]
    first = 0
    for start, end in _places("".join(span.text for span in spans), columns):
        while first < len(spans) and starts[first + 1] <= start:
            first += 1
        spans_here = []
        for number in range(first, len(spans)):
            if starts[number] >= end:
                break
            text = spans[number].text[max(start - starts[number], 0) : end - starts[number]]
            spans_here.append(spans[number]._replace(text=text))
        yield line(*spans_here)


def _places(text: str, columns: int | None) -> Iterator[tuple[int, int]]:
    """Yield start and end of each wrapped line, without the space at which it was broken."""
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
    """Yield lines of text, the first after one prefix and the others after another."""
    lead = first
    for text in texts:
        yield line(*lead, Span(text, style))
        lead = rest
