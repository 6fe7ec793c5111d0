"""Two branches beside each other: what they share, what each did from there, and what came of it.

Rules:

- Entries of one session are the same if their ids are; those of two sessions if they say the same, whatever their ids, parents
  and times. Labels are left out: they belong to a place and not to a story.
- Numbers are over what the branches do not share. What is unknown is `None`.
- Prompts are paired: equal ones with each other, the others in their order. Sides of many prompts are paired by order alone.

It does not know how a comparison looks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from sessile.core.digest import Digest
from sessile.core.kinds import LABEL, kind_of
from sessile.core.parts import Call, Shown, Text
from sessile.core.shown import show_all
from sessile.core.text import parse_timestamp

Json = Mapping[str, Any]
By = Literal["id", "content"]

_MOST_PROMPTS = 200  # of one side, to look for equal ones: that takes their square
_MOST_WORDS = 1_500  # of one side that differ, for the same reason
_READING = ("read",)
_EDITING = ("write", "edit")
_WORD = re.compile(r"\S+\s*|\s+")
_PLACE = ("id", "parentId", "timestamp")  # what an entry has of where it stands


class Turn(NamedTuple):
    """A prompt and what followed it. What comes before the first prompt is a turn without one."""

    id: str | None
    prompt: str | None
    summary: str | None  # of a branch that was left, or of what came before
    entries: int  # that followed
    tools: int
    failed: int
    answer: str | None  # the last thing that the model said


class Side(NamedTuple):
    """One branch, from where it leaves the other."""

    entries: int
    prompts: int
    messages: int
    tokens: int | None
    cost: float | None
    unpriced: int  # answers of which nobody said what they cost
    duration: int | None  # milliseconds from the first to the last entry
    calls: Mapping[str, int]  # by tool
    failures: int
    files_read: tuple[str, ...]  # and not edited
    files_edited: tuple[str, ...]
    answer: str | None  # the whole of the last answer
    turns: tuple[Turn, ...]


class Comparison(NamedTuple):
    """Two branches."""

    common: int
    common_id: str | None  # the last entry that both have
    left: Side
    right: Side
    pairs: tuple[tuple[Turn | None, Turn | None], ...]


class Change(NamedTuple):
    """Words that both texts have, or only one of them."""

    kind: Literal["same", "removed", "added"]
    text: str


def compare(left: Iterable[Json], right: Iterable[Json], by: By = "id") -> Comparison:
    """Compare two paths, each from its root to its leaf: of one session `by` id, of two by content."""
    ours, theirs = _story(left), _story(right)
    common = _shared(ours, theirs, _id if by == "id" else _content)
    one, other = _side(ours[common:]), _side(theirs[common:])
    last = ours[common - 1].get("id") if common else None
    return Comparison(
        common, last if isinstance(last, str) else None, one, other, tuple(_paired(one.turns, other.turns))
    )


def _story(path: Iterable[Json]) -> list[Json]:
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
    calls: Counter[str] = Counter()
    read: set[str] = set()
    edited: set[str] = set()
    failures = 0
    answer = None
    turns = _Turns()
    for shown in show_all(entries):
        turns.add(shown)
        failures += shown.failed
        answer = _spoken(shown) or answer
        for call in _calls(shown):
            calls[call.name] += 1
            path = call.arguments.get("path") if isinstance(call.arguments, dict) else None
            if isinstance(path, str) and call.name in (*_READING, *_EDITING):
                (edited if call.name in _EDITING else read).add(path)
    return Side(
        entries=len(entries),
        prompts=counts.user_messages,
        messages=counts.messages,
        tokens=counts.total_tokens,
        cost=counts.cost,
        unpriced=counts.unpriced,
        duration=_duration(entries),
        calls=dict(calls),
        failures=failures,
        files_read=tuple(sorted(read - edited)),
        files_edited=tuple(sorted(edited)),
        answer=answer,
        turns=turns.all(),
    )


def _duration(entries: Sequence[Json]) -> int | None:
    times = [at for entry in entries if (at := parse_timestamp(entry.get("timestamp"))) is not None]
    return times[-1] - times[0] if times and times[-1] >= times[0] else None


def _calls(shown: Shown) -> Iterator[Call]:
    """The tools that a model called; a command that a person ran is none."""
    return (part for part in shown.parts if isinstance(part, Call) and shown.who == "assistant")


def _spoken(shown: Shown) -> str | None:
    if shown.who != "assistant":
        return None
    texts = [part.text for part in shown.parts if isinstance(part, Text) and part.text.strip()]
    return "\n\n".join(texts) or None


class _Turns:
    """Parts entries at each prompt."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []

    def add(self, shown: Shown) -> None:
        if shown.who == "user":
            self._turns.append(Turn(shown.id, shown.headline, None, 0, 0, 0, None))
            return
        turn = self._turns.pop() if self._turns else Turn(None, None, None, 0, 0, 0, None)
        said = shown.headline if _spoken(shown) else None
        self._turns.append(
            turn._replace(
                summary=shown.headline if shown.who == "summary" else turn.summary,
                entries=turn.entries + 1,
                tools=turn.tools + sum(1 for _ in _calls(shown)),
                failed=turn.failed + shown.failed,
                answer=said or turn.answer,
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
    if max(len(left), len(right)) > _MOST_PROMPTS:
        yield from zip_longest(left, right)
        return
    matcher = SequenceMatcher(None, _prompts(left), _prompts(right), autojunk=False)
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        yield from zip_longest(left[start:end], right[other_start:other_end])


def _prompts(turns: Iterable[Turn]) -> list[str | None]:
    return [turn.prompt for turn in turns]


def word_changes(left: str, right: str) -> list[Change]:
    """How one text becomes another, in words and the spaces between them."""
    one, other = _words(left), _words(right)
    begin = _alike(one, other)
    end = _alike(one[begin:][::-1], other[begin:][::-1])
    middle, instead = one[begin : len(one) - end], other[begin : len(other) - end]
    changes = [Change("same", "".join(one[:begin]))]
    if max(len(middle), len(instead)) > _MOST_WORDS:
        changes += [Change("removed", "".join(middle)), Change("added", "".join(instead))]
    else:
        for tag, start, stop, other_start, other_stop in SequenceMatcher(None, middle, instead).get_opcodes():
            if tag == "equal":
                changes.append(Change("same", "".join(middle[start:stop])))
            else:
                changes.append(Change("removed", "".join(middle[start:stop])))
                changes.append(Change("added", "".join(instead[other_start:other_stop])))
    changes.append(Change("same", "".join(one[len(one) - end :])))
    return [change for change in changes if change.text]


def _words(text: str) -> list[str]:
    """A text in pieces that can be joined again: each a word with the spaces behind it."""
    return _WORD.findall(text)


def _alike(left: Sequence[str], right: Sequence[str]) -> int:
    alike = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        alike += 1
    return alike
