"""Compaction, the part that decides: when it is due, what it would sum up, and whether a result is good enough to be kept.

Nothing is written here and no model is asked. `prepare` says what stays and what is to be summed up; whoever sums up gives a
`Result`; `verify` says what is wrong with it. A result that does not pass is thrown away and the history stays as it is.

A preparation is lazy: it knows where the cut is, and reads what lies before the cut when somebody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple

import msgspec

from sessile.core.cutting import Cut, find_cut, parts_a_pair
from sessile.core.file_lists import FileLists, Files
from sessile.core.kinds import BOUNDARY, MARKER, TALK, Json
from sessile.core.live_path import LivePath, Read, S
from sessile.core.tokens import Counter, Message, Snapshot, estimate, total

_RESERVE, _KEEP, _FLOOR = 16_384, 20_000, 20_000


class CompactionSettings(msgspec.Struct, frozen=True, rename="camel"):
    """When to compact, and how much to keep. A negative or infinite number means the default."""

    enabled: bool = True  # whether it happens by itself
    reserve_tokens: float = _RESERVE  # left free for the answer
    keep_recent_tokens: float = _KEEP  # kept word for word
    reserve_tokens_floor: float = _FLOOR  # the reserve is never smaller; 0 means no floor

    def reserve(self, window: int | None) -> int:
        """How much of a context window stays free: at most half of it, so that small models can be used at all."""
        reserve = max(_usable(self.reserve_tokens, _RESERVE), _usable(self.reserve_tokens_floor, _FLOOR))
        return reserve if window is None else min(reserve, max(window, 0) // 2)

    def keep(self, window: int | None) -> int:
        """How much is kept: at most half of what may be used, else a small model would have nothing to sum up."""
        keep = _usable(self.keep_recent_tokens, _KEEP)
        return keep if window is None else min(keep, (max(window, 0) - self.reserve(window)) // 2)


def _usable(value: float, default: int) -> int:
    return int(value) if math.isfinite(value) and value >= 0 else default


def is_due(tokens: int | None, window: int | None, settings: CompactionSettings) -> bool:
    """Whether a context is too large for its window. Nobody knows if one of the two is unknown: then it is not."""
    if not settings.enabled or tokens is None or window is None or window <= 0:
        return False
    return tokens > window - settings.reserve(window)


class Span(NamedTuple):
    """The ids of the first and the last entry of a part of a path."""

    first: str
    last: str


Fate = Literal["kept", "history", "turn_prefix", "earlier", "cleared", "removed", "silent"]
"""What becomes of an entry of the path:

    kept          stays in the context word for word
    history       summed up as history
    turn_prefix   summed up as the beginning of the turn that the cut splits
    earlier       was given up by an earlier compaction, whose summary is carried on
    cleared       lies before a reset of the context
    removed       was taken out of the context by an edit
    silent        has no message for the model
"""


class Preparation(Generic[S]):
    """What a compaction would keep and what it would sum up."""

    def __init__(self, path: LivePath[S], cut: Cut) -> None:
        self._path = path
        self._cut = cut
        self.first_kept_id: str = path.looked_at(cut.first)[cut.first].step.id
        self.kept_tokens: int = path.tokens(cut.first)
        self.is_split_turn: bool = cut.turn is not None

    @property
    def tokens_before(self) -> Snapshot:
        """How large the context is now. Reads back to the last answer that says so."""
        return self._path.snapshot()

    @property
    def previous(self) -> Json | None:
        """The compaction that is carried on, if there is one."""
        return self._path.previous

    @property
    def previous_summary(self) -> str | None:
        """What the summary says until now; `None` if there is none, or an edit took it out."""
        return self._path.previous_summary

    @property
    def preserve_data(self) -> Any:
        """What the compaction before wished to be carried on, without what is good only for its own summary."""
        data = None if self.previous is None else self.previous.get("preserveData")
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name != "openaiRemoteCompaction"} or None

    @property
    def system_message(self) -> Message | None:
        """The instructions that the compaction before brought, for the next one to bring again.

        `None` if newer ones stay: a compaction with instructions of its own hides those that it keeps. The old ones are
        summed up then.
        """
        newer_stay = any(seen.role == "system" for seen in self._path.looked_at(self._cut.first))
        return None if newer_stay else self._path.previous_instructions

    def history(self) -> Iterator[Message]:
        """The messages to sum up as history, oldest first, read one by one."""
        instructions = self._path.previous_instructions if self.system_message is None else None
        if instructions is not None:
            yield instructions
        yield from self._path.messages(self._summed_from, len(self._path) - 1)

    def turn_prefix(self) -> Iterator[Message]:
        """The messages to sum up as the beginning of a split turn, oldest first."""
        return iter(()) if self._cut.turn is None else self._path.messages(self._cut.first + 1, self._cut.turn)

    def kept(self) -> Iterator[Message]:
        """The messages that stay, oldest first."""
        return self._path.messages(0, self._cut.first)

    def files(self) -> FileLists:
        """The files that the part to sum up read and changed, with those that were known before. Reads all of it."""
        files = Files()
        files.add_details(self.previous)
        for message in chain(self.history(), self.turn_prefix()):
            files.add_message(message)
        return files.lists()

    def replaced_tokens(self, counter: Counter = estimate) -> int:
        """What a summary would stand for: all that is to be summed up, and the summary before. Reads all of it."""
        previous = self.previous_summary
        before = 0 if previous is None else counter(_as_message(previous))
        return before + total(chain(self.history(), self.turn_prefix()), counter)

    @property
    def history_span(self) -> Span | None:
        """Where the history begins and ends."""
        return self._span(self._summed_from, len(self._path) - 1)

    @property
    def turn_prefix_span(self) -> Span | None:
        """Where the beginning of a split turn begins and ends."""
        return None if self._cut.turn is None else self._span(self._cut.first + 1, self._cut.turn)

    @property
    def _summed_from(self) -> int:
        return (self._cut.first if self._cut.turn is None else self._cut.turn) + 1

    def _span(self, newest: int, oldest: int) -> Span | None:
        first, last = self._path.step(oldest), self._path.step(newest)
        return None if first is None or last is None or oldest < newest else Span(first.id, last.id)

    def place_of(self, entry_id: str) -> int | None:
        """How many entries of the live path come after an entry; `None` if it is not on it."""
        place = 0
        while (step := self._path.step(place)) is not None and step.id != entry_id:
            place += 1
        return None if step is None else place

    def tokens_from(self, place: int) -> int:
        """What would stay if the cut were before another place, estimated."""
        return self._path.tokens(place)

    def parts_a_pair(self, place: int) -> bool:
        """Whether a cut before a place would part a tool call from its result."""
        return parts_a_pair(self._path, place)

    def fate(self, place: int) -> Fate | None:
        """What becomes of the entry at a place of the live path; `None` behind its oldest."""
        seen = self._path.at(place)
        if seen is None:
            return None
        if seen.step.flags & BOUNDARY:
            return "earlier" if seen.step.flags & TALK else "silent"
        if seen.role is None:
            return "silent" if seen.removed is None else "removed"
        if place <= self._cut.first:
            return "kept"
        return "turn_prefix" if self._cut.turn is not None and place <= self._cut.turn else "history"

    @property
    def was_reset(self) -> bool:
        """Whether the live path begins behind a reset."""
        return self._path.end == "reset"


def prepare(
    steps: Iterable[S],
    read: Read[S],
    settings: CompactionSettings | None = None,
    *,
    window: int | None = None,
    counter: Counter = estimate,
) -> Preparation[S] | None:
    """What a compaction of a path (leaf first) would do; `None` if there is nothing to do."""
    path = LivePath(steps, read, counter)
    cut = find_cut(path, (settings or CompactionSettings()).keep(window))
    return None if cut is None else Preparation(path, cut)


def context_size(steps: Iterable[S], read: Read[S], counter: Counter = estimate) -> Snapshot:
    """How large the context at the end of a path (leaf first) is. Reads back to the last answer that says so."""
    return LivePath(steps, read, counter).snapshot()


def account(path: Iterable[S], preparation: Preparation[S]) -> Iterator[tuple[str, Fate]]:
    """What becomes of every entry of a path (leaf first); leaf markers are no entries."""
    cleared = None
    for place, step in enumerate(step for step in path if not step.flags & MARKER):
        fate = preparation.fate(place)
        if fate is None:
            cleared = preparation.was_reset if cleared is None else cleared
            # Behind the live path only what an entry marks is looked at.
            cleared = cleared or bool(step.flags & BOUNDARY and not step.flags & TALK)
            fate = "silent" if not step.flags & TALK else "cleared" if cleared else "earlier"
        yield step.id, fate


class Result(msgspec.Struct, frozen=True):
    """What whoever sums up gives. Without a first kept entry nothing stays."""

    summary: str
    first_kept_id: str | None
    stop_reason: str | None = None
    tool_calls: int = 0


Reason = Literal["empty", "cut_off", "calls_tools", "not_on_path", "parts_a_pair", "does_not_shrink"]


class Objection(NamedTuple):
    """Why a result cannot be used."""

    reason: Reason
    detail: str


def verify(
    result: Result,
    preparation: Preparation[S],
    *,
    replaced_tokens: int | None = None,
    counter: Counter = estimate,
) -> tuple[Objection, ...]:
    """Everything that is wrong with a result; empty if it can be used.

    `replaced_tokens` is what the summary stands for (`Preparation.replaced_tokens`). Without it a summary that is longer
    than that may pass, where a provider's count of the context holds instructions and tools that no summary makes smaller.
    """
    found: list[Objection] = []
    if not result.summary.strip():
        found.append(Objection("empty", "the summary is empty"))
    if result.stop_reason == "length":
        found.append(Objection("cut_off", "the summary was cut off at the model's limit"))
    elif result.stop_reason not in (None, "stop", "toolUse"):
        found.append(Objection("cut_off", f"the summary did not come to its end: {result.stop_reason}"))
    if result.tool_calls:
        found.append(Objection("calls_tools", "the model called tools instead of summing up"))
    kept, objection = _kept_by(result, preparation)
    if objection is not None:
        return (*found, objection)
    summary = counter(_as_message(result.summary))
    system = preparation.system_message
    before, after = preparation.tokens_before.tokens, summary + kept + (0 if system is None else counter(system))
    if after >= before or (replaced_tokens is not None and summary >= replaced_tokens):
        shrink = f"the context would take about {after} tokens instead of {before}"
        found.append(Objection("does_not_shrink", shrink))
    return tuple(found)


def _as_message(summary: str) -> Message:
    return {"role": "compactionSummary", "summary": summary}


def _kept_by(result: Result, preparation: Preparation[S]) -> tuple[int, Objection | None]:
    """What stays by a result; whoever supplies one may cut elsewhere."""
    if result.first_kept_id is None:
        return 0, None
    if result.first_kept_id == preparation.first_kept_id:
        return preparation.kept_tokens, None
    place = preparation.place_of(result.first_kept_id)
    if place is None:
        detail = f"the first kept entry {result.first_kept_id} is not in the live part of the path"
        return 0, Objection("not_on_path", detail)
    if preparation.parts_a_pair(place):
        detail = f"a cut before {result.first_kept_id} would part a tool call from its result"
        return 0, Objection("parts_a_pair", detail)
    return preparation.tokens_from(place), None
