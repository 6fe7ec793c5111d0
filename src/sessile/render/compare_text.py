"""A comparison of two branches as lines: what they share, turn by turn, what each took, and how the answers differ.

Side by side where there is room for two columns, else one below the other. A difference has a sign, and what is unknown is
`n/a`; removed and added words have marks, not only colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sessile.core.compare import Change, Comparison, Side, Turn, word_changes
from sessile.core.spending import amount
from sessile.core.styled import EMPTY, Line, Span, Style, clipped, line, padded, wrapped_line
from sessile.core.visible import visible, visible_line, width
from sessile.render.wording import UNKNOWN, duration, many, money, price, short_id

_NARROWEST = 100  # columns that two columns need
_BETWEEN = " │ "
_NAMES = ("A", "B")
_MARKS: dict[str, tuple[str, str, Style]] = {
    "same": ("", "", "plain"),
    "removed": ("[-", "-]", "removed"),
    "added": ("{+", "+}", "added"),
}


def compare_lines(comparison: Comparison, columns: int | None, names: tuple[str, str] = _NAMES) -> Iterator[Line]:
    """The lines of a comparison; `names` say which branch is which."""
    left, right = (visible_line(name) or default for name, default in zip(names, _NAMES, strict=True))
    behind = f" (up to {short_id(comparison.common_id)})" if comparison.common_id else ""
    yield _fit(line(Span(f"{many(comparison.common, 'entry')} in common{behind}", "dim")), columns)
    yield EMPTY
    if columns is not None and columns >= _NARROWEST:
        yield from _beside(comparison, columns, left, right)
    else:
        yield from _stacked(comparison, columns, left, right)
    yield EMPTY
    yield from (_fit(each, columns) for each in _table(comparison, left, right))
    yield EMPTY
    yield from _answers(comparison.left.answer, comparison.right.answer, columns, left, right)


def _fit(spans: Line, columns: int | None) -> Line:
    return spans if columns is None else clipped(spans, columns)


# -- turn by turn


def _beside(comparison: Comparison, columns: int, left: str, right: str) -> Iterator[Line]:
    each = (columns - len(_BETWEEN)) // 2
    yield _row((Span(left, "strong"),), (Span(right, "strong"),), each)
    for pair in comparison.pairs:
        sides = [list(_turn(turn)) if turn else [] for turn in pair]
        for number in range(max(map(len, sides))):
            one, other = (side[number] if number < len(side) else EMPTY for side in sides)
            yield _row(one, other, each)


def _row(left: Line, right: Line, columns: int) -> Line:
    return line(*padded(clipped(left, columns), columns), Span(_BETWEEN, "dim"), *clipped(right, columns))


def _stacked(comparison: Comparison, columns: int | None, left: str, right: str) -> Iterator[Line]:
    for pair in comparison.pairs:
        for name, turn in zip((left, right), pair, strict=True):
            for each in _turn(turn) if turn else ():
                yield _fit(line(Span(f"{name}  ", "strong"), *each), columns)


def _turn(turn: Turn) -> Iterator[Line]:
    """A prompt, what was summed up, how much followed it, and the answer."""
    if turn.prompt is not None:
        yield line(Span("user  ", "user"), visible_line(turn.prompt))
    if turn.summary is not None:
        yield line(Span("summary  ", "summary"), visible_line(turn.summary))
    others = (
        turn.entries - (turn.summary is not None) - (turn.answer is not None)
    )  # than those with a line of their own
    counted = [many(number, word) for number, word in ((others, "entry"), (turn.tools, "tool")) if number]
    counted += [f"{turn.failed:,} failed"] if turn.failed else []
    if counted:
        yield line(Span(f"~ {' · '.join(counted)}", "dim"))
    if turn.answer is not None:
        yield line(Span("asst  ", "assistant"), visible_line(turn.answer))


# -- in numbers


class _Measure(NamedTuple):
    """A row of the table: a number of each side, and how it is written."""

    name: str
    of: Callable[[Side], float | None]
    write: Callable[[float], str]
    told: Callable[[Side], str] | None = None  # where a side says more than its number


def _whole(number: float) -> str:
    return f"{int(number):,}"


_MEASURES = (
    _Measure("entries", lambda side: side.entries, _whole),
    _Measure("prompts", lambda side: side.prompts, _whole),
    _Measure("tokens", lambda side: side.tokens, lambda number: amount(int(number))),
    _Measure("cost", lambda side: side.cost, money, lambda side: price(side.cost, side.unpriced)),
    _Measure("duration", lambda side: side.duration, lambda number: duration(int(number))),
    _Measure("tool calls", lambda side: sum(side.calls.values()), _whole),
    _Measure("failures", lambda side: side.failures, _whole),
    _Measure("files edited", lambda side: len(side.files_edited), _whole),
    _Measure("files read", lambda side: len(side.files_read), _whole),
)


def measured(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """What each side took, a row each: its name, both sides in words, and the difference."""
    left, right = comparison.left, comparison.right
    for measure in _MEASURES:
        yield measure.name, _told(measure, left), _told(measure, right), _difference(measure, left, right)


def _table(comparison: Comparison, left: str, right: str) -> Iterator[Line]:
    sides = (comparison.left, comparison.right)
    rows: list[Sequence[str]] = [("", left, right, "difference"), *measured(comparison)]
    widths = [max(width(row[column]) for row in rows) for column in range(3)]
    for number, row in enumerate(rows):
        cells = (text + " " * (wide - width(text)) for text, wide in zip(row[:3], widths, strict=True))
        yield line(Span("  ".join((*cells, row[3])).rstrip(), "plain" if number else "strong"))
    for name, side in zip((left, right), sides, strict=True):
        if side.files_edited:
            yield line(Span(f"edited in {name}: ", "dim"), ", ".join(map(visible_line, side.files_edited)))


def _told(measure: _Measure, side: Side) -> str:
    if measure.told is not None:
        return measure.told(side)
    number = measure.of(side)
    return UNKNOWN if number is None else measure.write(number)


def _difference(measure: _Measure, left: Side, right: Side) -> str:
    one, other = measure.of(left), measure.of(right)
    if one is None or other is None:
        return UNKNOWN
    by = other - one
    return f"{'-' if by < 0 else '+' if by else ''}{measure.write(abs(by))}"


# -- in words


def _answers(left: str | None, right: str | None, columns: int | None, one: str, other: str) -> Iterator[Line]:
    """How the last answers differ."""
    if left is None or right is None:
        missing = " and ".join(name for name, answer in ((one, left), (other, right)) if answer is None)
        yield _fit(line(Span(f"no final answer in {missing}", "dim")), columns)
        return
    yield _fit(line(Span(f"final answers: [-only in {one}-] {{+only in {other}+}}", "strong")), columns)
    yield from _marked(word_changes(visible(left), visible(right)), columns)


def _marked(changes: Sequence[Change], columns: int | None) -> Iterator[Line]:
    """Changes as lines: each piece is wrapped behind what is on the line already."""
    current: list[Span] = []
    for change in changes:
        begin, end, style = _MARKS[change.kind]
        pieces = f"{begin}{change.text.rstrip()}{end}{_blanks(change.text)}".split("\n")
        for number, piece in enumerate(pieces):
            if number:
                yield from wrapped_line(tuple(current), columns)
                current = []
            current.append(Span(piece, style))
    if current:
        yield from wrapped_line(tuple(current), columns)


def _blanks(text: str) -> str:
    return text[len(text.rstrip()) :]
