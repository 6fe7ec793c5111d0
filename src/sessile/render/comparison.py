"""Compare two branches: what they share, what each did from there, and how their answers differ.

    compare(left, right)            the comparison, as values
    compare_lines(comparison, …)    as lines of text, side by side if there is room
    words_html(left, right)         how two answers differ, as HTML with `<del>` and `<ins>`

Rules:

- Entries of one session are the same if their ids are. Entries of two sessions are the same if their content is, whatever their
  ids, parents and times. Labels are ignored.
- Numbers are about the part that the branches do not share. Unknown is `None`, written `n/a`.
- Equal prompts are paired, the others in order. If a side has many prompts, all are paired in order.
- A difference has a sign. Removed and added words have marks, not only colours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from sessile.core.digest import Digest
from sessile.core.kinds import LABEL, kind_of
from sessile.core.text import parse_timestamp
from sessile.core.tools import files
from sessile.core.usage import amount
from sessile.core.visible import visible, visible_line, width
from sessile.render.html import escape
from sessile.render.shown import Call, Shown, Text, show_all
from sessile.render.styled import EMPTY, Line, Span, Style, clipped, line, padded, wrapped_line
from sessile.render.wording import UNKNOWN, duration, many, money, price, short_id

Json = Mapping[str, Any]
By = Literal["id", "content"]

_MAX_PROMPTS = 200  # of one side; matching takes quadratic time
_MAX_WORDS = 1_500  # of one side that differ, for the same reason
_WORD = re.compile(r"\S+\s*|\s+")
_PLACE = ("id", "parentId", "timestamp")  # members that depend on where an entry is


class Turn(NamedTuple):
    """A prompt and the entries up to the next. Entries before the first prompt are a turn without one."""

    id: str | None
    prompt: str | None
    summary: str | None  # of another branch, or of a compaction
    entries: int  # without the prompt
    tools: int
    failed: int
    answer: str | None  # the last one


class Side(NamedTuple):
    """The part of a branch that the other does not have."""

    entries: int
    prompts: int
    messages: int
    tokens: int | None
    cost: float | None
    unpriced: int  # answers without a known price
    duration: int | None  # milliseconds from the first to the last entry
    calls: Mapping[str, int]  # by tool
    failures: int
    files_read: tuple[str, ...]  # and not edited
    files_edited: tuple[str, ...]
    answer: str | None  # the last one, in full
    turns: tuple[Turn, ...]
    unpriced_models: Mapping[str, int]  # answers without a known price
    listed: int  # answers that are priced by the table


class Comparison(NamedTuple):
    """Two branches."""

    common: int
    common_id: str | None  # the last entry in common
    left: Side
    right: Side
    pairs: tuple[tuple[Turn | None, Turn | None], ...]


class Change(NamedTuple):
    """Words that are in both texts, or in only one."""

    kind: Literal["same", "removed", "added"]
    text: str


def compare(left: Iterable[Json], right: Iterable[Json], by: By = "id") -> Comparison:
    """Compare two paths, each from root to leaf; `by` id for one session, by content for two."""
    ours, theirs = _without_labels(left), _without_labels(right)
    common = _shared(ours, theirs, _id if by == "id" else _content)
    one, other = _side(ours[common:]), _side(theirs[common:])
    last = ours[common - 1].get("id") if common else None
    return Comparison(
        common, last if isinstance(last, str) else None, one, other, tuple(_paired(one.turns, other.turns))
    )


def _without_labels(path: Iterable[Json]) -> list[Json]:
    return [entry for entry in path if not kind_of(entry.get("type")).flags & LABEL]


def _id(entry: Json) -> object:
    return entry.get("id")


def _content(entry: Json) -> object:
    return {name: value for name, value in entry.items() if name not in _PLACE}


def _shared(left: Sequence[Json], right: Sequence[Json], identity: Callable[[Json], object]) -> int:
    shared = 0
    for one, other in zip(left, right, strict=False):
        if identity(one) != identity(other):
            break
        shared += 1
    return shared


# -- one side


def _side(entries: Sequence[Json]) -> Side:
    digest = Digest()
    for entry in entries:
        digest.add(entry)
    counts = digest.counts()
    used = {tool or "unknown": sum(each.calls for each in at.values()) for tool, at in digest.spending.tools.items()}
    touched = files(entries)
    failures, answer = 0, None
    turns = _Turns()
    for shown in show_all(entries):
        turns.add(shown)
        failures += shown.failed
        answer = _answer(shown) or answer
    return Side(
        entries=len(entries),
        prompts=counts.user_messages,
        messages=counts.messages,
        tokens=counts.total_tokens,
        cost=counts.cost,
        unpriced=counts.unpriced,
        unpriced_models=digest.spending.unpriced(),
        listed=digest.spending.total().listed,
        duration=_duration(entries),
        calls={tool: calls for tool, calls in used.items() if calls},
        failures=failures,  # of tools, of commands of the user, and of answers
        files_read=touched.read,
        files_edited=touched.edited,
        answer=answer,
        turns=turns.all(),
    )


def _duration(entries: Sequence[Json]) -> int | None:
    times = [at for entry in entries if (at := parse_timestamp(entry.get("timestamp"))) is not None]
    return times[-1] - times[0] if times and times[-1] >= times[0] else None


def _calls(shown: Shown) -> Iterator[Call]:
    """Return the calls of a model; commands that a user ran do not count."""
    return (part for part in shown.parts if isinstance(part, Call) and shown.who == "assistant")


def _answer(shown: Shown) -> str | None:
    if shown.who != "assistant":
        return None
    texts = [part.text for part in shown.parts if isinstance(part, Text) and part.text.strip()]
    return "\n\n".join(texts) or None


class _Turns:
    """Divides entries into turns."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []

    def add(self, shown: Shown) -> None:
        if shown.who == "user":
            self._turns.append(Turn(shown.id, shown.headline, None, 0, 0, 0, None))
            return
        turn = self._turns.pop() if self._turns else Turn(None, None, None, 0, 0, 0, None)
        answer = shown.headline if _answer(shown) else None
        self._turns.append(
            turn._replace(
                summary=shown.headline if shown.who == "summary" else turn.summary,
                entries=turn.entries + 1,
                tools=turn.tools + sum(1 for _ in _calls(shown)),
                failed=turn.failed + shown.failed,
                answer=answer or turn.answer,
            )
        )

    def all(self) -> tuple[Turn, ...]:
        return tuple(self._turns)


# -- both sides


def _paired(left: Sequence[Turn], right: Sequence[Turn]) -> Iterator[tuple[Turn | None, Turn | None]]:
    openings = [side[0] if side and side[0].prompt is None else None for side in (left, right)]
    if any(openings):
        yield openings[0], openings[1]
        left, right = left[openings[0] is not None :], right[openings[1] is not None :]
    if max(len(left), len(right)) > _MAX_PROMPTS:
        yield from zip_longest(left, right)
        return
    matcher = SequenceMatcher(None, _prompts(left), _prompts(right), autojunk=False)
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        yield from zip_longest(left[start:end], right[other_start:other_end])


def _prompts(turns: Iterable[Turn]) -> list[str | None]:
    return [turn.prompt for turn in turns]


def word_changes(left: str, right: str) -> list[Change]:
    """Return how one text becomes another, in words and the spaces between them."""
    one, other = _words(left), _words(right)
    start = _common_prefix(one, other)
    end = _common_prefix(one[start:][::-1], other[start:][::-1])
    middle, instead = one[start : len(one) - end], other[start : len(other) - end]
    changes = [Change("same", "".join(one[:start]))]
    if max(len(middle), len(instead)) > _MAX_WORDS:
        changes += [Change("removed", "".join(middle)), Change("added", "".join(instead))]
    else:
        for tag, first, last, other_first, other_last in SequenceMatcher(None, middle, instead).get_opcodes():
            if tag == "equal":
                changes.append(Change("same", "".join(middle[first:last])))
            else:
                changes.append(Change("removed", "".join(middle[first:last])))
                changes.append(Change("added", "".join(instead[other_first:other_last])))
    changes.append(Change("same", "".join(one[len(one) - end :])))
    return [change for change in changes if change.text]


def _words(text: str) -> list[str]:
    """Split a text into words, each with the spaces after it."""
    return _WORD.findall(text)


def _common_prefix(left: Sequence[str], right: Sequence[str]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length


# -- as lines

_SIDE_BY_SIDE = 100  # columns of a terminal that has room for both sides
_BETWEEN = " │ "
_NAMES = ("A", "B")
_MARKS: dict[str, tuple[str, str, Style]] = {
    "same": ("", "", "plain"),
    "removed": ("[-", "-]", "removed"),
    "added": ("{+", "+}", "added"),
}


def compare_lines(comparison: Comparison, columns: int | None, names: tuple[str, str] = _NAMES) -> Iterator[Line]:
    """Yield the lines of a comparison; `names` are those of the branches."""
    left, right = (visible_line(name) or default for name, default in zip(names, _NAMES, strict=True))
    up_to = f" (up to {short_id(comparison.common_id)})" if comparison.common_id else ""
    yield _fit(line(Span(f"{many(comparison.common, 'entry')} in common{up_to}", "dim")), columns)
    yield EMPTY
    if columns is not None and columns >= _SIDE_BY_SIDE:
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
    """Yield the prompt, the summary, the number of other entries, and the answer."""
    if turn.prompt is not None:
        yield line(Span("user  ", "user"), visible_line(turn.prompt))
    if turn.summary is not None:
        yield line(Span("summary  ", "summary"), visible_line(turn.summary))
    others = turn.entries - (turn.summary is not None) - (turn.answer is not None)
    counted = [many(number, word) for number, word in ((others, "entry"), (turn.tools, "tool")) if number]
    counted += [f"{turn.failed:,} failed"] if turn.failed else []
    if counted:
        yield line(Span(f"~ {' · '.join(counted)}", "dim"))
    if turn.answer is not None:
        yield line(Span("asst  ", "assistant"), visible_line(turn.answer))


# -- numbers


class _Measure(NamedTuple):
    """A row of the table: a number for each side, and its format."""

    name: str
    of: Callable[[Side], float | None]
    write: Callable[[float], str]
    describe: Callable[[Side], str] | None = None  # more than the number


def _whole(number: float) -> str:
    return f"{int(number):,}"


_MEASURES = (
    _Measure("entries", lambda side: side.entries, _whole),
    _Measure("prompts", lambda side: side.prompts, _whole),
    _Measure("tokens", lambda side: side.tokens, lambda number: amount(int(number))),
    _Measure("cost", lambda side: side.cost, money, lambda side: price(side.cost, side.unpriced_models, side.listed)),
    _Measure("duration", lambda side: side.duration, lambda number: duration(int(number))),
    _Measure("tool calls", lambda side: sum(side.calls.values()), _whole),
    _Measure("failures", lambda side: side.failures, _whole),
    _Measure("files edited", lambda side: len(side.files_edited), _whole),
    _Measure("files read", lambda side: len(side.files_read), _whole),
)


def measured(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table: name, left, right, difference."""
    left, right = comparison.left, comparison.right
    for measure in _MEASURES:
        yield measure.name, _described(measure, left), _described(measure, right), _difference(measure, left, right)


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


def _described(measure: _Measure, side: Side) -> str:
    if measure.describe is not None:
        return measure.describe(side)
    number = measure.of(side)
    return UNKNOWN if number is None else measure.write(number)


def _difference(measure: _Measure, left: Side, right: Side) -> str:
    one, other = measure.of(left), measure.of(right)
    if one is None or other is None:
        return UNKNOWN
    by = other - one
    return f"{'-' if by < 0 else '+' if by else ''}{measure.write(abs(by))}"


# -- answers


def _answers(left: str | None, right: str | None, columns: int | None, one: str, other: str) -> Iterator[Line]:
    """Yield how the last answers differ."""
    if left is None or right is None:
        missing = " and ".join(name for name, answer in ((one, left), (other, right)) if answer is None)
        yield _fit(line(Span(f"no final answer in {missing}", "dim")), columns)
        return
    yield _fit(line(Span(f"final answers: [-only in {one}-] {{+only in {other}+}}", "strong")), columns)
    yield from _marked(word_changes(visible(left), visible(right)), columns)


def _marked(changes: Sequence[Change], columns: int | None) -> Iterator[Line]:
    """Yield changes as wrapped lines."""
    current: list[Span] = []
    for change in changes:
        opening, closing, style = _MARKS[change.kind]
        pieces = f"{opening}{change.text.rstrip()}{closing}{_trailing_space(change.text)}".split("\n")
        for number, piece in enumerate(pieces):
            if number:
                yield from wrapped_line(tuple(current), columns)
                current = []
            current.append(Span(piece, style))
    if current:
        yield from wrapped_line(tuple(current), columns)


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]


# -- as HTML

_ELEMENTS = {"removed": "del", "added": "ins"}


def words_html(left: str | None, right: str | None) -> str:
    """Return the changes from the left answer to the right one, or a notice if a side has none."""
    if left is None or right is None:
        sides = " and ".join(side for side, answer in (("left", left), ("right", right)) if answer is None)
        return f'<p class="missing">no final answer on the {sides}</p>'
    return f'<div class="words">{"".join(map(_change, word_changes(visible(left), visible(right))))}</div>'


def _change(change: Change) -> str:
    name = _ELEMENTS.get(change.kind)
    return escape(change.text) if name is None else f"<{name}>{escape(change.text)}</{name}>"
