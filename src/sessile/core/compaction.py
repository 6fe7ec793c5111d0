"""Compaction, the part that decides: when it is due, what it would sum up, and whether a result is good enough to be kept.

Nothing is written here and no model is asked. `prepare` says what stays and what is to be summed up; whoever sums up gives a
`Result`; `verify` says what is wrong with it. A result that does not pass is thrown away and the history stays as it is.

A preparation is lazy: it knows where the cut is, and reads what lies before the cut when somebody asks for it.

Where a compaction cuts a path: the newest part stays word for word, what lies before it is summed up.

Rules for the cut:

- Messages are added up from the newest until they reach the budget; the cut is the first place at or after that one where
  one may cut, else the nearest before it. If the budget is not reached, everything stays.
- One may cut before what somebody said and before an answer, never before a tool's result or an instruction, and never
  between a call and its result, however far apart they are.
- Entries without a message directly before the cut stay with what follows them.
- If the cut lies within a turn, the turn's beginning (up to the cut) is told apart from the history before it.
- If all that would stay is one input over the budget, and the answer to it was taken out (it did not fit), that goes too.

Messages count as the model saw them. What a summary says is no business of this module.

The live part of a path, walked from its leaf towards its root, and no further than a question needs.

It goes from the leaf back to the first entry that the last compaction kept; a reset ends it too. Steps are decoded one by
one, and only if what they mark says that they may have a message or an edit, so that a question about the newest part of a
huge session costs as much as that part.

Messages are as the model saw them: edited or taken out by a later `context_edit`, and without what the user kept from it.
An edit that comes before its target on the path is seen only after the walk has come to it. Where to cut is not known here.

Pruning: old tool results that are no longer sent, as edits to append. The results themselves stay in the session.

Rules: from the newest result back, those within the newest 40,000 estimated tokens of results are protected, and so are
the tools whose output the model must keep. What is older becomes one line that says how much it was, if that saves
20,000 tokens in all; else nothing is worth losing a cached prompt for. What was pruned before is not pruned again, and
a result that is shorter than the line stays.

It only plans: who appends the edits is the caller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from sessile.core.context import edited_message
from sessile.core.entries import Payload, context_edit
from sessile.core.kinds import BOUNDARY, CHAIN, MARKER, TALK, Json, kind_of
from sessile.core.messages import joined_text
from sessile.core.summaries import FileLists, Files
from sessile.core.tokens import Counter, Snapshot, Tally, estimate, total

# --- live path


class Step(Protocol):
    """An entry of a path, known by its id and what it marks (`sessile.core.kinds`); a journal's rows are such."""

    @property
    def id(self) -> str: ...
    @property
    def flags(self) -> int: ...


S = TypeVar("S", bound=Step)
Read = Callable[[S], Json]
"""Decodes the entry of a step."""

End = Literal["root", "compaction", "reset"]
"""Why the live part of a path does not go further back."""


class Seen(NamedTuple, Generic[S]):
    """What a cut has to know of one entry; `role` is `None` if it puts no message into the context."""

    step: S
    role: str | None = None
    tokens: int = 0
    calls: frozenset[str] = frozenset()
    result_of: str | None = None
    removed: str | None = None  # the role of a message that a later edit took out


class LivePath(Generic[S]):
    """The live part of a path, newest entry first, walked as far as somebody asked.

    Places in it are numbers: 0 is the leaf, or what comes before it if that is a leaf marker.
    """

    def __init__(self, steps: Iterable[S], read: Read[S], counter: Counter = estimate) -> None:
        self._rest: Iterator[S] = (step for step in steps if not step.flags & MARKER)
        self._read = read
        self._tally = Tally(counter)
        self._walked: list[S] = []
        self._seen: list[Seen[S]] = []  # of those, the ones that were looked at
        self._edits: dict[object, object] = {}
        self._edited_from: int | None = None
        self._replacing: list[tuple[int, str]] = []  # places of edits that put something else into a message, and where
        self._previous: Json | None = None
        self._kept_from: int | None = None  # the place from which on the last compaction kept
        self._end: End | None = None
        self._waiting: frozenset[str] = frozenset()
        self._open: dict[int, frozenset[str]] = {}
        self._oldest_call: dict[str, int] = {}

    # -- the walk

    def step(self, place: int) -> S | None:
        """The step at a place, not decoded; `None` behind the oldest."""
        while len(self._walked) <= place and self._end is None:
            self._walk_on()
        return self._walked[place] if place < len(self._walked) else None

    def _walk_on(self) -> None:
        step = next(self._rest, None)
        if step is None:
            self._end = "root" if self._kept_from is None else "compaction"
            return
        if step.flags & BOUNDARY and self._kept_from is None:
            entry = self._read(step)
            if entry.get("type") != "compaction":
                self._end = "reset"
                return
            self._previous = entry
            self._kept_from = len(self._walked) + 1
            self._rest = self._back_to(_first_kept(entry))
        elif step.flags == CHAIN:
            self._note_edit(self._read(step))
        self._walked.append(step)

    def _back_to(self, first: str | None) -> Iterator[S]:
        """The steps from here to the first one that a compaction kept; none if that is not on the path."""
        kept: list[S] = []
        if first is not None:
            for step in self._rest:
                kept.append(step)
                if step.id == first:
                    return iter(kept)
        return iter(())

    def _note_edit(self, entry: Json) -> None:
        target = entry.get("targetId")
        if entry.get("type") == "context_edit" and isinstance(target, str):
            if self._edited_from is None:
                self._edited_from = len(self._walked)
            replacement = entry.get("replacement")
            if isinstance(replacement, Mapping):
                self._replacing.append((len(self._walked), target))
            # The last edit counts, and that is the first one on the way back.
            self._edits.setdefault(target, replacement)

    def __len__(self) -> int:
        """How many entries there are. Walks to the end, but decodes only what may be an edit."""
        while self._end is None:
            self._walk_on()
        return len(self._walked)

    @property
    def end(self) -> End:
        """Why the live part does not go further back."""
        len(self)
        return self._end or "root"

    @property
    def previous(self) -> Json | None:
        """The compaction that began this part of the path, if one did."""
        while self._end is None and self._previous is None:
            self._walk_on()
        return self._previous

    @property
    def previous_summary(self) -> str | None:
        """What that compaction said; `None` if an edit has taken it out since."""
        previous = self.previous
        summary = None if previous is None or self._is_removed(previous.get("id")) else previous.get("summary")
        return summary if isinstance(summary, str) and summary else None

    @property
    def previous_instructions(self) -> Message | None:
        """The system message that it brought; `None` if it brought none, or an edit has taken it out since."""
        previous = self.previous
        return None if previous is None or self._is_removed(previous.get("id")) else _system_message(previous)

    def _is_removed(self, entry_id: object) -> bool:
        return entry_id in self._edits and not isinstance(self._edits[entry_id], Mapping)

    # -- what was said

    def message(self, place: int) -> Message | None:
        """The message of the entry at a place as the model saw it; `None` if there was none."""
        step = self.step(place)
        return None if step is None or not _may_speak(step.flags) else self._as_seen(place, self._stored(step))

    def _stored(self, step: S) -> dict[str, Any] | None:
        entry = self._read(step)
        project = kind_of(entry.get("type")).project
        return None if project is None else project(entry)

    def _as_seen(self, place: int, message: dict[str, Any] | None) -> dict[str, Any] | None:
        if message is None or message.get("excludeFromContext"):
            return None
        if self._was_kept(place) and message.get("role") == "system" and _system_message(self._previous) is not None:
            return None  # the compaction brought its own instead
        entry_id = self._walked[place].id
        return edited_message(message, self._edits[entry_id]) if entry_id in self._edits else message

    def _was_kept(self, place: int) -> bool:
        """Whether a place lies before the compaction that kept it."""
        return self._kept_from is not None and place >= self._kept_from

    def messages(self, newest: int, oldest: int) -> Iterator[Message]:
        """The messages between two places (both belong to it), in the order in which they were said."""
        for place in range(oldest, newest - 1, -1):
            message = self.message(place)
            if message is not None:
                yield message

    def at(self, place: int) -> Seen[S] | None:
        """What a cut has to know of the entry at a place; `None` behind the oldest."""
        while len(self._seen) <= place:
            step = self.step(len(self._seen))
            if step is None:
                return None
            self._look_at(step)
        return self._seen[place]

    def _look_at(self, step: S) -> None:
        place = len(self._seen)
        if place + 1 == self._kept_from and self._previous is not None and not self._is_removed(step.id):
            for opening in _opening(self._previous):
                self._tally.add(opening, step.id, current=False)
        stored = self._stored(step) if _may_speak(step.flags) else None
        message = self._as_seen(place, stored)
        if stored is None:
            seen = Seen(step)
        elif message is None:
            removed = stored.get("role") if self._is_removed(step.id) else None
            seen = Seen(step, calls=_calls(stored), removed=removed)
        else:
            # What the provider said about the context is out of date if something was changed in it since.
            current = not self._was_kept(place) and (self._edited_from is None or self._edited_from > place)
            role, result_of = message.get("role"), message.get("toolCallId")
            seen = Seen(
                step,
                role=role if isinstance(role, str) else "",
                tokens=self._tally.add(message, step.id, current=current),
                calls=_calls(stored),
                result_of=result_of if role == "toolResult" and isinstance(result_of, str) else None,
            )
        if seen.result_of is not None:
            self._waiting |= {seen.result_of}
        self._waiting -= seen.calls
        self._oldest_call |= dict.fromkeys(seen.calls, place)
        if self._waiting:
            self._open[place] = self._waiting
        self._seen.append(seen)

    def tokens(self, oldest: int) -> int:
        """What the messages from a place to the leaf take, estimated."""
        return sum(seen.tokens for seen in self.looked_at(oldest))

    def looked_at(self, oldest: int) -> list[Seen[S]]:
        """What is known of the entries from the leaf to a place."""
        self.at(oldest)
        return self._seen[: oldest + 1]

    def open_calls(self, place: int) -> frozenset[str]:
        """The calls with results at or after a place that were not made there."""
        self.at(place)
        return self._open.get(place, frozenset())

    def is_called_before(self, place: int, call: str) -> bool:
        """Whether a call was made before a place. Looks as far back as it has to."""
        while self._oldest_call.get(call, 0) <= place and self.at(len(self._seen)) is not None:
            pass
        return self._oldest_call.get(call, 0) > place

    def replaced_after(self, place: int) -> list[str]:
        """The ids of the entries to which edits after a place gave another content."""
        self.at(place)
        return [target for edit, target in self._replacing if edit < place]

    def snapshot(self) -> Snapshot:
        """How large the whole context is. Looks no further back than the last answer that says so."""
        place = 0
        while not self._tally.settled and self.at(place) is not None:
            place += 1
        return self._tally.snapshot()


def _may_speak(flags: int) -> bool:
    """Whether an entry can have a message of its own, judged by what it marks."""
    return bool(flags & TALK) and not flags & BOUNDARY


def _calls(message: Message) -> frozenset[str]:
    content = message.get("content") if message.get("role") == "assistant" else None
    blocks = content if isinstance(content, list) else ()
    calls = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "toolCall")
    return frozenset(call_id for call in calls if isinstance(call_id := call.get("id"), str))


def _first_kept(compaction: Json) -> str | None:
    """From where a compaction kept entries. What a provider sealed away cannot be summed up, so the entries are."""
    first = compaction.get("firstKeptEntryId")
    return first if isinstance(first, str) and first != compaction.get("id") else None


def _system_message(compaction: Json | None) -> Message | None:
    message = None if compaction is None else compaction.get("systemMessage")
    return message if isinstance(message, dict) else None


def _opening(compaction: Json) -> Iterator[Message]:
    """The messages with which a compaction begins the context."""
    system, project = _system_message(compaction), kind_of("compaction").project
    if system is not None:
        yield system
    if project is not None and (summary := project(compaction)) is not None:
        yield summary


# --- cutting

_CUT, _START = 1, 2
_ROLES = {
    "user": _CUT | _START,
    "assistant": _CUT,
    "bashExecution": _CUT | _START,
    "pythonExecution": _CUT | _START,
    "custom": _CUT | _START,
    "hookMessage": _CUT | _START,
    "developer": _CUT | _START,
    "fileMention": _CUT | _START,
    "branchSummary": _CUT | _START,
    "compactionSummary": _CUT | _START,
}
"""Before which messages one may cut, and which of them begin a turn."""


class Cut(NamedTuple):
    """The place of the oldest entry that stays, and of the message that begins the turn which the cut splits, if any."""

    first: int
    turn: int | None


def find_cut(path: LivePath[S], budget: int) -> Cut | None:
    """Where to cut so that about `budget` tokens stay; `None` if there is nothing to sum up."""
    start = path.step(0)
    if start is None or start.flags & BOUNDARY:
        return None
    reached = _reach(path, budget)
    place = None if reached is None else _nearest_cut(path, reached)
    if place is None:
        return None
    if _failed_alone(path, place, budget):
        return Cut(place - 1, _turn_start(path, place))
    turn = None if _begins_turn(path, place) else _turn_start(path, place + 1)
    first = _with_metadata(path, place)
    if turn is None and not _says_something_before(path, first):
        return None
    return Cut(first, turn)


def _with_metadata(path: LivePath[S], place: int) -> int:
    """The place of the oldest entry without a message before a place; a compaction may lie between, but not begin it."""
    first = place
    while (earlier := path.at(place + 1)) is not None and earlier.role is None:
        place += 1
        first = first if earlier.step.flags & BOUNDARY else place
    return first


def _reach(path: LivePath[S], budget: int) -> int | None:
    """The place where the messages from the leaf on reach the budget."""
    total = place = 0
    while (seen := path.at(place)) is not None:
        total += seen.tokens
        if total >= max(budget, 1):
            return place
        place += 1
    return None


def _nearest_cut(path: LivePath[S], reached: int) -> int | None:
    for place in range(reached, -1, -1):
        if may_cut(path, place):
            return place
    place = reached + 1
    while path.at(place) is not None:
        if may_cut(path, place):
            return place
        place += 1
    return None


def _turn_start(path: LivePath[S], place: int) -> int | None:
    while path.at(place) is not None:
        if _begins_turn(path, place):
            return place
        place += 1
    return None


def may_cut(path: LivePath[S], place: int) -> bool:
    """Whether what stays may begin at a place: with a message that can, and with no call left behind."""
    seen = path.at(place)
    return seen is not None and bool(_ROLES.get(seen.role or "", 0) & _CUT) and not parts_a_pair(path, place)


def parts_a_pair(path: LivePath[S], place: int) -> bool:
    """Whether a cut before a place leaves a call on one side and its result on the other.

    A result whose call is nowhere is damage that no cut makes worse.
    """
    return any(path.is_called_before(place, call) for call in path.open_calls(place))


def _begins_turn(path: LivePath[S], place: int) -> bool:
    seen = path.at(place)
    return seen is not None and bool(_ROLES.get(seen.role or "", 0) & _START)


def _says_something_before(path: LivePath[S], place: int) -> bool:
    earlier = place + 1
    while (seen := path.at(earlier)) is not None and seen.role is None:
        earlier += 1
    return seen is not None


def _failed_alone(path: LivePath[S], place: int, budget: int) -> bool:
    """Whether all that would stay from a place on is one message over the budget, and the answer to it was taken out.

    Not if anything older was changed since: that answer was to something else.
    """
    first = path.at(place)
    later = path.looked_at(place - 1) if place else []
    if first is None or first.tokens < budget or any(seen.role is not None for seen in later):
        return False
    behind = {seen.step.id for seen in later}
    return any(seen.removed == "assistant" for seen in later) and behind.issuperset(path.replaced_after(place))


# --- compaction

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


# --- pruning

PROTECT = 40_000  # tokens
MINIMUM = 20_000  # tokens
PROTECTED_TOOLS = frozenset({"skill", "read"})

_NOTICE = re.compile(r"\[Output truncated - \d+ tokens\]")

Message = Mapping[str, Any]


class Pruning(NamedTuple):
    """What pruning would do: the payloads of the edits, oldest target first, and the tokens that they save."""

    edits: tuple[Payload, ...] = ()
    saved: int = 0


def notice(tokens: int) -> str:
    """The line that stands for a result of so many tokens."""
    return f"[Output truncated - {tokens} tokens]"


def plan_pruning(
    messages: Sequence[Message],
    sources: Sequence[str | None],
    *,
    protect: int = PROTECT,
    minimum: int = MINIMUM,
    protected_tools: Collection[str] = PROTECTED_TOOLS,
    counter: Counter = estimate,
) -> Pruning:
    """The edits that prune a context, given as its messages and the ids of the entries that they come from."""
    edits: list[Payload] = []
    saved = newer = 0
    for message, source in zip(reversed(messages), reversed(sources), strict=True):
        if message.get("role") != "toolResult":
            continue
        tokens = counter(message)
        text = notice(tokens)
        saving = tokens - counter({"role": "toolResult", "content": text})
        tool = message.get("toolName")
        protected = newer < protect or (isinstance(tool, str) and tool in protected_tools)
        newer += tokens
        # Without an id there is nothing that an edit could name.
        if protected or source is None or saving <= 0 or is_pruned(message):
            continue
        edits.append(context_edit(source, text))
        saved += saving
    return Pruning(tuple(reversed(edits)), saved) if edits and saved >= minimum else Pruning()


def is_pruned(message: Message) -> bool:
    """Whether a result was pruned before, by an edit of ours or in the way of the family."""
    return bool(message.get("prunedAt")) or _NOTICE.fullmatch(joined_text(message.get("content"))) is not None
