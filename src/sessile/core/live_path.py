"""The live part of a path, walked from its leaf towards its root, and no further than a question needs.

It goes from the leaf back to the first entry that the last compaction kept; a reset ends it too. Steps are decoded one by
one, and only if what they mark says that they may have a message or an edit, so that a question about the newest part of a
huge session costs as much as that part.

Messages are as the model saw them: edited or taken out by a later `context_edit`, and without what the user kept from it.
An edit that comes before its target on the path is seen only after the walk has come to it. Where to cut is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from sessile.core.context import edited_message
from sessile.core.kinds import BOUNDARY, CHAIN, MARKER, TALK, Json, kind_of
from sessile.core.tokens import Counter, Message, Snapshot, Tally, estimate


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
