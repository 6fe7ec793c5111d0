"""Where the messages of a path are that the model does not see any more: who took them out of the context.

    compaction      summed up: they lie before the first entry that it kept
    reset_boundary  everything before it was left
    context_edit    taken out one by one, or changed

Nothing is ever gone: each absence names the entries, which are still in the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    entries = [entry for entry in path if isinstance(entry.get("id"), str)]
    edits = {str(entry.get("targetId")): entry for entry in entries if entry.get("type") == "context_edit"}
    taken = _taken(entries)
    for place, entry in enumerate(entries):
        entry_id = str(entry["id"])
        if entry.get("type") not in _MESSAGES:
            continue
        by = taken.get(place)
        if entry_id in seen or by is None:
            by = edits.get(entry_id)
        if by is not None:
            yield Taking(entry_id, by, changed=entry_id in seen)


def _taken(entries: Sequence[Entry]) -> dict[int, Entry]:
    """Who was the first to leave the message at a place out of the context; each message is taken once."""
    places = {str(entry["id"]): place for place, entry in enumerate(entries)}
    taken: dict[int, Entry] = {}
    waiting: deque[int] = deque()
    for place, entry in enumerate(entries):
        if entry.get("type") in _TAKES:
            kept = _kept_from(entry, place, places)
            while waiting and waiting[0] < kept:
                taken[waiting.popleft()] = entry
        if entry.get("type") in _MESSAGES:
            waiting.append(place)
    return taken


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
