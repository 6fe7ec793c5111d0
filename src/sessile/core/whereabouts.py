"""Where the messages of a path are that the model does not see any more: who took them out of the context.

    compaction      summed up: they lie before the first entry that it kept
    reset_boundary  everything before it was left
    context_edit    taken out one by one, or changed

Nothing is ever gone: each absence names the entries, which are still in the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sessile.core.context import first_kept

_MESSAGES = ("message", "custom_message", "branch_summary")  # the kinds of entries that a model sees
_TAKES = ("compaction", "reset_boundary")

Entry = Mapping[str, Any]


class Absence(NamedTuple):
    """Messages that one entry took out of the context, or changed: how many, and the first and last of them."""

    by: str
    kind: str
    messages: int
    first: str
    last: str
    changed: bool = False


class Taking(NamedTuple):
    """A message that an entry took out of the context, or changed."""

    message: str
    by: Entry
    changed: bool


def absences(path: Iterable[Entry], seen: Collection[str | None]) -> list[Absence]:
    """What took messages of a path (root first) out of its context; `seen` are the entries that are in it."""
    found: dict[str, Absence] = {}
    for taking in takings(path, seen):
        _count(found, taking.by, taking.message, changed=taking.changed)
    return list(found.values())


def takings(path: Iterable[Entry], seen: Collection[str | None]) -> Iterator[Taking]:
    """The same one by one, in the order of the messages. Of an entry its type, its id and what it takes must be known."""
    places: dict[str, int] = {}
    said: list[str] = []  # a path may be long, so only this is held of what somebody said
    waiting: deque[tuple[int, int]] = deque()  # places of messages that are in the context, and their numbers
    taken: dict[int, Entry] = {}  # by whom a message was left out first
    edits: dict[str, Entry] = {}
    for place, entry in enumerate(entry for entry in path if isinstance(entry.get("id"), str)):
        places[str(entry["id"])] = place
        if entry.get("type") in _MESSAGES:
            waiting.append((place, len(said)))
            said.append(str(entry["id"]))
        elif entry.get("type") in _TAKES:
            kept = _kept_from(entry, place, places)
            while waiting and waiting[0][0] < kept:
                taken[waiting.popleft()[1]] = entry
        elif entry.get("type") == "context_edit":
            edits[str(entry.get("targetId"))] = entry
    for number, message in enumerate(said):
        by = edits.get(message) if message in seen else taken.get(number) or edits.get(message)
        if by is not None:
            yield Taking(message, by, changed=message in seen)


def _kept_from(taker: Entry, at: int, places: Mapping[str, int]) -> int:
    """The place from which on an entry leaves messages in the context."""
    if taker.get("type") != "compaction":
        return at
    kept = places.get(first_kept(taker) or "", at)
    return min(kept, at)


def _count(found: dict[str, Absence], by: Entry, entry_id: str, *, changed: bool) -> None:
    known = found.get(str(by["id"]))
    if known is None:
        found[str(by["id"])] = Absence(str(by["id"]), str(by["type"]), 1, entry_id, entry_id, changed)
    else:
        found[known.by] = known._replace(messages=known.messages + 1, last=entry_id)
