"""Compaction: when it is due, what it would summarize, and whether a result may be used.

Nothing is written here and no model is called. `prepare` decides what stays and what is to be summarized, a summarizer returns a
`Result`, and `verify` lists what is wrong with it. A result that does not pass is discarded and the history stays unchanged.

Rules for the cut:
- The newest part of the path is kept word for word; everything before it is summarized.
- Messages are added up from the newest until they reach the budget. The cut is the first valid place at or after that one,
  else the nearest before it. If the budget is not reached, everything stays.
- A cut is valid before a user's message and before an answer, never before a tool result or an instruction, and never between
  a tool call and its result, however far apart they are.
- Entries without a message directly before the cut stay with what follows them.
- If the cut is inside a turn, the start of the turn (up to the cut) is summarized separately from the history before it.
- If only one input over the budget would stay, and its answer was removed because it did not fit, the input is summarized too.

The live path (`LivePath`) is the part of a path that the model still sees: from the leaf back to the first entry kept by the last
compaction, or to a reset. It is walked lazily from the leaf: an entry is decoded only if its flags say that it may hold a message
or an edit, so a question about the newest part of a huge session costs as much as that part. Messages are as the model saw them:
after every `context_edit`, without messages excluded from the context.

Result pruning (`plan_result_pruning`) stops sending old tool results by appending edits; the results stay in the session. The
newest 40,000 estimated tokens of results are protected, and so are results of protected tools. Older results become one line
that states their size, if that saves at least 20,000 tokens; otherwise keeping the cached prompt is worth more. Results that are
already pruned, or shorter than the line, stay.
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
from sessile.core.messages.family import joined_text
from sessile.core.messages.request import folded, is_prompt
from sessile.core.summaries import FileLists, Files
from sessile.core.tokens import Counter, Snapshot, Tally, estimate, total

Message = Mapping[str, Any]


class Step(Protocol):
    """An entry of a path: its id and its flags (`sessile.core.kinds`). Rows of a journal are steps."""

    @property
    def id(self) -> str: ...
    @property
    def flags(self) -> int: ...


S = TypeVar("S", bound=Step)
Read = Callable[[S], Json]
"""Decode the entry of a step."""


_RESERVE, _KEEP, _FLOOR = 16_384, 20_000, 20_000


class CompactionSettings(msgspec.Struct, frozen=True, rename="camel"):
    """When to compact, and how much to keep. Negative and infinite numbers mean the default.

    Attributes:
        enabled: Compact automatically.
        reserve_tokens: How many tokens of the context window stay free for the answer.
        keep_recent_tokens: How many tokens of the newest messages are kept word for word.
        reserve_tokens_floor: The minimum of `reserve_tokens`; 0 for none.

    Example:
        ```python
        settings = CompactionSettings(keep_recent_tokens=30_000)
        Compactor(session, window=200_000, settings=settings).compact_if_due()
        ```
    """

    enabled: bool = True  # compact automatically
    reserve_tokens: float = _RESERVE  # part of the context window that is kept free for the answer
    keep_recent_tokens: float = _KEEP  # how much of the newest messages is kept word for word
    reserve_tokens_floor: float = _FLOOR  # minimum of the reserve; 0 for none

    def reserve(self, window: int | None) -> int:
        """Return how many tokens of a window stay free: at most half of it, so that small models remain usable."""
        reserve = max(_usable(self.reserve_tokens, _RESERVE), _usable(self.reserve_tokens_floor, _FLOOR))
        return reserve if window is None else min(reserve, max(window, 0) // 2)

    def keep(self, window: int | None) -> int:
        """Return how many tokens are kept: at most half of the usable part, so that there is something to summarize."""
        keep = _usable(self.keep_recent_tokens, _KEEP)
        return keep if window is None else min(keep, (max(window, 0) - self.reserve(window)) // 2)


def _usable(value: float, default: int) -> int:
    return int(value) if math.isfinite(value) and value >= 0 else default


def is_due(tokens: int | None, window: int | None, settings: CompactionSettings) -> bool:
    """Return whether a context is too large for its window; false if either size is unknown."""
    if not settings.enabled or tokens is None or window is None or window <= 0:
        return False
    return tokens > window - settings.reserve(window)


class Span(NamedTuple):
    """The ids of the first and the last entry of a part of a path."""

    first: str
    last: str


Fate = Literal["kept", "carried", "history", "turn_prefix", "earlier", "cleared", "removed", "silent"]
"""What happens to an entry of the path:

    kept          stays in the context word for word
    history       is summarized as history
    turn_prefix   is summarized as the start of the turn that the cut splits
    earlier       was summarized by an earlier compaction, whose summary is continued
    cleared       is before a reset of the context
    removed       was removed from the context by an edit
    silent        has no message for the model
"""


class Preparation(Generic[S]):
    """What a compaction would keep and what it would summarize. Reads entries only when asked for them."""

    def __init__(self, path: LivePath[S], cut: Cut) -> None:
        self._path = path
        self._cut = cut
        self.first_kept_id: str = path.facts_to(cut.first)[cut.first].step.id
        self.kept_tokens: int = path.tokens(cut.first)
        self.is_split_turn: bool = cut.turn is not None

    @property
    def tokens_before(self) -> Snapshot:
        """The current size of the context. Reads back to the last answer that reports it."""
        return self._path.snapshot()

    @property
    def previous(self) -> Json | None:
        """The previous compaction, if there is one."""
        return self._path.previous

    @property
    def previous_summary(self) -> str | None:
        """The summary of the previous compaction; `None` if there is none or an edit removed it."""
        return self._path.previous_summary

    @property
    def preserve_data(self) -> Any:
        """The data that the previous compaction asked to carry over, without data that belongs to its own summary."""
        data = None if self.previous is None else self.previous.get("preserveData")
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name != "openaiRemoteCompaction"} or None

    @property
    def system_message(self) -> Message | None:
        """The instructions of the whole path as one message, for the compaction to carry; `None` if there are none.

        A compaction hides the system messages that it keeps, as well as those that it summarizes.
        """
        earlier = self._path.previous_instructions
        later = self._path.messages(0, len(self._path) - 1)
        return folded(later if earlier is None else (earlier, *later))

    def history(self) -> Iterator[Message]:
        """Yield the messages to summarize as history, oldest first. Instructions are carried on, not summarized."""
        return _without_prompts(self._path.messages(self._newest_summarized, len(self._path) - 1))

    def turn_prefix(self) -> Iterator[Message]:
        """Yield the messages to summarize as the start of a split turn, oldest first."""
        if self._cut.turn is None:
            return iter(())
        return _without_prompts(self._path.messages(self._cut.first + 1, self._cut.turn))

    def kept(self) -> Iterator[Message]:
        """Yield the messages that stay, oldest first."""
        return _without_prompts(self._path.messages(0, self._cut.first))

    def files(self) -> FileLists:
        """Return the files read and changed in the part to summarize, and those known before. Reads the whole part."""
        files = Files()
        files.add_details(self.previous)
        for message in chain(self.history(), self.turn_prefix()):
            files.add_message(message)
        return files.lists()

    def replaced_tokens(self, counter: Counter = estimate) -> int:
        """Return the size of what a summary replaces, including the previous summary. Reads the whole part."""
        previous = self.previous_summary
        before = 0 if previous is None else counter(_as_message(previous))
        return before + total(chain(self.history(), self.turn_prefix()), counter)

    @property
    def history_span(self) -> Span | None:
        """The first and last entry of the history."""
        return self._span(self._newest_summarized, len(self._path) - 1)

    @property
    def turn_prefix_span(self) -> Span | None:
        """The first and last entry of the start of a split turn."""
        return None if self._cut.turn is None else self._span(self._cut.first + 1, self._cut.turn)

    @property
    def _newest_summarized(self) -> int:
        return (self._cut.first if self._cut.turn is None else self._cut.turn) + 1

    def _span(self, newest: int, oldest: int) -> Span | None:
        first, last = self._path.step(oldest), self._path.step(newest)
        return None if first is None or last is None or oldest < newest else Span(first.id, last.id)

    def place_of(self, entry_id: str) -> int | None:
        """Return how many entries of the live path come after an entry; `None` if it is not on the path."""
        place = 0
        while (step := self._path.step(place)) is not None and step.id != entry_id:
            place += 1
        return None if step is None else place

    def tokens_from(self, place: int) -> int:
        """Return the estimated size of what stays if the cut is before a place."""
        return self._path.tokens(place)

    def parts_a_pair(self, place: int) -> bool:
        """Return whether a cut before a place separates a tool call from its result."""
        return parts_a_pair(self._path, place)

    def fate(self, place: int) -> Fate | None:
        """Return what happens to the entry at a place of the live path; `None` past the oldest."""
        facts = self._path.at(place)
        if facts is None:
            return None
        if facts.step.flags & BOUNDARY:
            return "earlier" if facts.step.flags & TALK else "silent"
        if facts.role is None:
            return "silent" if facts.removed is None else "removed"
        if facts.role == "system":
            return "carried"
        if place <= self._cut.first:
            return "kept"
        return "turn_prefix" if self._cut.turn is not None and place <= self._cut.turn else "history"

    @property
    def was_reset(self) -> bool:
        """Whether the live path starts after a reset."""
        return self._path.end == "reset"


def prepare(
    steps: Iterable[S],
    read: Read[S],
    settings: CompactionSettings | None = None,
    *,
    window: int | None = None,
    counter: Counter = estimate,
) -> Preparation[S] | None:
    """Plan the compaction of a path (leaf first); return `None` if there is nothing to summarize."""
    path = LivePath(steps, read, counter)
    cut = find_cut(path, (settings or CompactionSettings()).keep(window))
    return None if cut is None else Preparation(path, cut)


def context_size(steps: Iterable[S], read: Read[S], counter: Counter = estimate) -> Snapshot:
    """Return the size of the context of a path (leaf first). Reads back to the last answer that reports it."""
    return LivePath(steps, read, counter).snapshot()


def account(path: Iterable[S], preparation: Preparation[S]) -> Iterator[tuple[str, Fate]]:
    """Yield what happens to every entry of a path (leaf first), without leaf markers."""
    cleared = None
    for place, step in enumerate(step for step in path if not step.flags & MARKER):
        fate = preparation.fate(place)
        if fate is None:
            cleared = preparation.was_reset if cleared is None else cleared
            # Before the live path only the flags are known.
            cleared = cleared or bool(step.flags & BOUNDARY and not step.flags & TALK)
            fate = "silent" if not step.flags & TALK else "cleared" if cleared else "earlier"
        yield step.id, fate


class Result(msgspec.Struct, frozen=True):
    """The result of a summarizer. Without a first kept entry nothing stays."""

    summary: str
    first_kept_id: str | None
    stop_reason: str | None = None
    tool_calls: int = 0


Reason = Literal["empty", "cut_off", "calls_tools", "not_on_path", "parts_a_pair", "does_not_shrink"]


class Objection(NamedTuple):
    """A reason why a result cannot be used."""

    reason: Reason
    detail: str


def verify(
    result: Result,
    preparation: Preparation[S],
    *,
    replaced_tokens: int | None = None,
    counter: Counter = estimate,
) -> tuple[Objection, ...]:
    """Return everything that is wrong with a result; empty if it can be used.

    `replaced_tokens` is the size of what the summary replaces (`Preparation.replaced_tokens`). Without it a summary that is
    longer than that may pass if the provider's count of the context includes instructions and tools.
    """
    found: list[Objection] = []
    if not result.summary.strip():
        found.append(Objection("empty", "the summary is empty"))
    if result.stop_reason == "length":
        found.append(Objection("cut_off", "the summary was cut off at the model's limit"))
    elif result.stop_reason not in (None, "stop", "toolUse"):
        found.append(Objection("cut_off", f"the summary is incomplete: {result.stop_reason}"))
    if result.tool_calls:
        found.append(Objection("calls_tools", "the model called tools instead of writing a summary"))
    kept, objection = _kept_by(result, preparation)
    if objection is not None:
        return (*found, objection)
    summary = counter(_as_message(result.summary))
    system = preparation.system_message
    before, after = preparation.tokens_before.tokens, summary + kept + (0 if system is None else counter(system))
    if after >= before or (replaced_tokens is not None and summary >= replaced_tokens):
        detail = f"the context would take about {after} tokens instead of {before}"
        found.append(Objection("does_not_shrink", detail))
    return tuple(found)


def _as_message(summary: str) -> Message:
    return {"role": "compactionSummary", "summary": summary}


def _kept_by(result: Result, preparation: Preparation[S]) -> tuple[int, Objection | None]:
    """Return how many tokens a result keeps; it may cut at another place than the preparation."""
    if result.first_kept_id is None:
        return 0, None
    if result.first_kept_id == preparation.first_kept_id:
        return preparation.kept_tokens, None
    place = preparation.place_of(result.first_kept_id)
    if place is None:
        detail = f"the first kept entry {result.first_kept_id} is not on the live path"
        return 0, Objection("not_on_path", detail)
    if preparation.parts_a_pair(place):
        detail = f"a cut before {result.first_kept_id} separates a tool call from its result"
        return 0, Objection("parts_a_pair", detail)
    return preparation.tokens_from(place), None


# -- the live path

End = Literal["root", "compaction", "reset"]
"""Why a live path ends."""


class Facts(NamedTuple, Generic[S]):
    """What is needed of one entry to place a cut; `role` is `None` if it adds no message to the context."""

    step: S
    role: str | None = None
    tokens: int = 0
    calls: frozenset[str] = frozenset()
    result_of: str | None = None
    removed: str | None = None  # the role of a message that a later edit removed


class LivePath(Generic[S]):
    """The live part of a path, newest entry first, walked as far as needed.

    Places are numbers: 0 is the leaf, or the entry before it if the leaf is a marker.
    """

    def __init__(self, steps: Iterable[S], read: Read[S], counter: Counter = estimate) -> None:
        self._rest: Iterator[S] = (step for step in steps if not step.flags & MARKER)
        self._read = read
        self._tally = Tally(counter)
        self._walked: list[S] = []
        self._facts: list[Facts[S]] = []  # of the first entries of `_walked`
        self._edits: dict[object, object] = {}
        self._edited_from: int | None = None
        self._replacing: list[tuple[int, str]] = []  # places of edits that replace content, and their targets
        self._previous: Json | None = None
        self._kept_from: int | None = None  # place of the newest entry kept by the last compaction
        self._end: End | None = None
        self._waiting: frozenset[str] = frozenset()
        self._open: dict[int, frozenset[str]] = {}
        self._oldest_call: dict[str, int] = {}

    def step(self, place: int) -> S | None:
        """Return the step at a place, not decoded; `None` past the oldest."""
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
        """Yield the steps back to the first one that a compaction kept; none if that is not on the path."""
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
            # The last edit counts, which is the first one on the way back.
            self._edits.setdefault(target, replacement)

    def __len__(self) -> int:
        """Return the number of entries. Walks to the end, but decodes only what may be an edit."""
        while self._end is None:
            self._walk_on()
        return len(self._walked)

    @property
    def end(self) -> End:
        """Why the live path ends."""
        len(self)
        return self._end or "root"

    @property
    def previous(self) -> Json | None:
        """The compaction that starts the live path, if there is one."""
        while self._end is None and self._previous is None:
            self._walk_on()
        return self._previous

    @property
    def previous_summary(self) -> str | None:
        """The summary of that compaction; `None` if an edit has removed it."""
        previous = self.previous
        summary = None if previous is None or self._is_removed(previous.get("id")) else previous.get("summary")
        return summary if isinstance(summary, str) and summary else None

    @property
    def previous_instructions(self) -> Message | None:
        """The system message of that compaction; `None` if it has none or an edit has removed it."""
        previous = self.previous
        return None if previous is None or self._is_removed(previous.get("id")) else _system_message(previous)

    def _is_removed(self, entry_id: object) -> bool:
        return entry_id in self._edits and not isinstance(self._edits[entry_id], Mapping)

    def message(self, place: int) -> Message | None:
        """Return the message at a place as the model saw it; `None` if there is none."""
        step = self.step(place)
        return None if step is None or not _may_speak(step.flags) else self._as_seen(place, self._stored(step))

    def _stored(self, step: S) -> dict[str, Any] | None:
        entry = self._read(step)
        project = kind_of(entry.get("type")).project
        return None if project is None else project(entry)

    def _as_seen(self, place: int, message: dict[str, Any] | None) -> dict[str, Any] | None:
        if message is None or message.get("excludeFromContext"):
            return None
        if self._was_kept(place) and is_prompt(message):
            return None  # replaced by the compaction's own
        entry_id = self._walked[place].id
        return edited_message(message, self._edits[entry_id]) if entry_id in self._edits else message

    def _was_kept(self, place: int) -> bool:
        """Return whether the last compaction comes after a place."""
        return self._kept_from is not None and place >= self._kept_from

    def messages(self, newest: int, oldest: int) -> Iterator[Message]:
        """Yield the messages between two places (inclusive), oldest first."""
        for place in range(oldest, newest - 1, -1):
            message = self.message(place)
            if message is not None:
                yield message

    def at(self, place: int) -> Facts[S] | None:
        """Return the facts about the entry at a place; `None` past the oldest."""
        while len(self._facts) <= place:
            step = self.step(len(self._facts))
            if step is None:
                return None
            self._inspect(step)
        return self._facts[place]

    def _inspect(self, step: S) -> None:
        place = len(self._facts)
        if place + 1 == self._kept_from and self._previous is not None and not self._is_removed(step.id):
            for opening in _opening(self._previous):
                self._tally.add(opening, step.id, current=False)
        stored = self._stored(step) if _may_speak(step.flags) else None
        message = self._as_seen(place, stored)
        if stored is None:
            facts = Facts(step)
        elif message is None:
            removed = stored.get("role") if self._is_removed(step.id) else None
            facts = Facts(step, calls=_calls(stored), removed=removed)
        else:
            # A provider's count of the context is outdated if the context was edited since.
            current = not self._was_kept(place) and (self._edited_from is None or self._edited_from > place)
            role, result_of = message.get("role"), message.get("toolCallId")
            facts = Facts(
                step,
                role=role if isinstance(role, str) else "",
                tokens=self._tally.add(message, step.id, current=current),
                calls=_calls(stored),
                result_of=result_of if role == "toolResult" and isinstance(result_of, str) else None,
            )
        if facts.result_of is not None:
            self._waiting |= {facts.result_of}
        self._waiting -= facts.calls
        self._oldest_call |= dict.fromkeys(facts.calls, place)
        if self._waiting:
            self._open[place] = self._waiting
        self._facts.append(facts)

    def tokens(self, oldest: int) -> int:
        """Return the estimated size of the messages from a place to the leaf."""
        return sum(facts.tokens for facts in self.facts_to(oldest))

    def facts_to(self, oldest: int) -> list[Facts[S]]:
        """Return the facts about the entries from the leaf to a place."""
        self.at(oldest)
        return self._facts[: oldest + 1]

    def open_calls(self, place: int) -> frozenset[str]:
        """Return the calls whose results are at or after a place, and which were not made there."""
        self.at(place)
        return self._open.get(place, frozenset())

    def is_called_before(self, place: int, call: str) -> bool:
        """Return whether a call was made before a place. Walks as far back as needed."""
        while self._oldest_call.get(call, 0) <= place and self.at(len(self._facts)) is not None:
            pass
        return self._oldest_call.get(call, 0) > place

    def replaced_after(self, place: int) -> list[str]:
        """Return the ids of the entries whose content was replaced by edits after a place."""
        self.at(place)
        return [target for edit, target in self._replacing if edit < place]

    def snapshot(self) -> Snapshot:
        """Return the size of the context. Walks back to the last answer that reports it."""
        place = 0
        while not self._tally.settled and self.at(place) is not None:
            place += 1
        return self._tally.snapshot()


def _may_speak(flags: int) -> bool:
    """Return whether an entry may have a message of its own, judged by its flags."""
    return bool(flags & TALK) and not flags & BOUNDARY


def _calls(message: Message) -> frozenset[str]:
    content = message.get("content") if message.get("role") == "assistant" else None
    blocks = content if isinstance(content, list) else ()
    calls = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "toolCall")
    return frozenset(call_id for call in calls if isinstance(call_id := call.get("id"), str))


def _first_kept(compaction: Json) -> str | None:
    """Return the first entry that a compaction kept.

    Unlike in a context, this includes a provider's own (remote) compaction: its content is opaque and cannot be summarized,
    so the entries are.
    """
    first = compaction.get("firstKeptEntryId")
    return first if isinstance(first, str) and first != compaction.get("id") else None


def _without_prompts(messages: Iterable[Message]) -> Iterator[Message]:
    return (message for message in messages if not is_prompt(message))


def _system_message(compaction: Json | None) -> Message | None:
    message = None if compaction is None else compaction.get("systemMessage")
    return message if isinstance(message, dict) else None


def _opening(compaction: Json) -> Iterator[Message]:
    """Yield the messages with which a compaction starts the context."""
    system, project = _system_message(compaction), kind_of("compaction").project
    if system is not None:
        yield system
    if project is not None and (summary := project(compaction)) is not None:
        yield summary


# -- the cut

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
"""The messages before which a cut is valid, and which of them start a turn."""


class Cut(NamedTuple):
    """The place of the oldest entry that stays, and of the message that starts the turn which the cut splits, if any."""

    first: int
    turn: int | None


def find_cut(path: LivePath[S], budget: int) -> Cut | None:
    """Return where to cut so that about `budget` tokens stay; `None` if there is nothing to summarize."""
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
    if turn is None and not _has_message_before(path, first):
        return None
    return Cut(first, turn)


def _with_metadata(path: LivePath[S], place: int) -> int:
    """Return the place of the oldest entry of the run without messages before a place.

    A compaction may be inside the run, but does not start it.
    """
    first = place
    while (earlier := path.at(place + 1)) is not None and earlier.role is None:
        place += 1
        first = first if earlier.step.flags & BOUNDARY else place
    return first


def _reach(path: LivePath[S], budget: int) -> int | None:
    """Return the place where the messages from the leaf reach the budget."""
    total = place = 0
    while (facts := path.at(place)) is not None:
        total += facts.tokens
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
    """Return whether a cut before a place is valid."""
    facts = path.at(place)
    return facts is not None and bool(_ROLES.get(facts.role or "", 0) & _CUT) and not parts_a_pair(path, place)


def parts_a_pair(path: LivePath[S], place: int) -> bool:
    """Return whether a cut before a place separates a tool call from its result.

    A result whose call is missing does not count.
    """
    return any(path.is_called_before(place, call) for call in path.open_calls(place))


def _begins_turn(path: LivePath[S], place: int) -> bool:
    facts = path.at(place)
    return facts is not None and bool(_ROLES.get(facts.role or "", 0) & _START)


def _has_message_before(path: LivePath[S], place: int) -> bool:
    earlier = place + 1
    while (facts := path.at(earlier)) is not None and facts.role is None:
        earlier += 1
    return facts is not None


def _failed_alone(path: LivePath[S], place: int, budget: int) -> bool:
    """Return whether only one message over the budget would stay from a place, and the answer to it was removed.

    False if anything older was edited since, because then the answer was to another context.
    """
    first = path.at(place)
    later = path.facts_to(place - 1) if place else []
    if first is None or first.tokens < budget or any(facts.role is not None for facts in later):
        return False
    behind = {facts.step.id for facts in later}
    return any(facts.removed == "assistant" for facts in later) and behind.issuperset(path.replaced_after(place))


# -- result pruning

PROTECT = 40_000  # tokens
MINIMUM = 20_000  # tokens
PROTECTED_TOOLS = frozenset({"skill", "read"})

_NOTICE = re.compile(r"\[Output truncated - \d+ tokens\]")


class ResultPruning(NamedTuple):
    """The edits that prune tool results, oldest target first, and the tokens that they save."""

    edits: tuple[Payload, ...] = ()
    saved: int = 0


def pruned_notice(tokens: int) -> str:
    """Return the line that replaces a result of that size."""
    return f"[Output truncated - {tokens} tokens]"


def plan_result_pruning(
    messages: Sequence[Message],
    sources: Sequence[str | None],
    *,
    protect: int = PROTECT,
    minimum: int = MINIMUM,
    protected_tools: Collection[str] = PROTECTED_TOOLS,
    counter: Counter = estimate,
) -> ResultPruning:
    """Return the edits that prune old tool results of a context; `sources` are the ids of the messages' entries."""
    edits: list[Payload] = []
    saved = newer = 0
    for message, source in zip(reversed(messages), reversed(sources), strict=True):
        if message.get("role") != "toolResult":
            continue
        tokens = counter(message)
        text = pruned_notice(tokens)
        saving = tokens - counter({"role": "toolResult", "content": text})
        tool = message.get("toolName")
        protected = newer < protect or (isinstance(tool, str) and tool in protected_tools)
        newer += tokens
        # An edit needs the id of its target.
        if protected or source is None or saving <= 0 or is_pruned_result(message):
            continue
        edits.append(context_edit(source, text))
        saved += saving
    return ResultPruning(tuple(reversed(edits)), saved) if edits and saved >= minimum else ResultPruning()


def is_pruned_result(message: Message) -> bool:
    """Return whether a result is already pruned, by one of these edits or by another agent of the pi family."""
    return bool(message.get("prunedAt")) or _NOTICE.fullmatch(joined_text(message.get("content"))) is not None
