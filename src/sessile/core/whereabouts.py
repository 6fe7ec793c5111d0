"""Where the messages of a path are that the model does not see any more: who took them out of the context.

    compaction      summed up: they lie before the first entry that it kept
    reset_boundary  everything before it was left
    context_edit    taken out one by one, or changed

Nothing is ever gone: each absence names the entries, which are still in the session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


def absences(path: Iterable[Entry], seen: Collection[str | None]) -> list[Absence]:
    """What took messages of a path (root first) out of its context; `seen` are the entries that are in it."""
    entries = [entry for entry in path if isinstance(entry.get("id"), str)]
    places = {str(entry["id"]): place for place, entry in enumerate(entries)}
    takers = [(place, entry) for place, entry in enumerate(entries) if entry.get("type") in _TAKES]
    edits = {str(entry.get("targetId")): entry for entry in entries if entry.get("type") == "context_edit"}
    found: dict[str, Absence] = {}
    for place, entry in enumerate(entries):
        entry_id = str(entry["id"])
        if entry.get("type") not in _MESSAGES:
            continue
        by = next((taker for at, taker in takers if at > place and _takes(taker, at, place, places)), None)
        if entry_id in seen or by is None:
            by = edits.get(entry_id)
        if by is not None:
            _count(found, by, entry_id, changed=entry_id in seen)
    return list(found.values())


def _takes(taker: Entry, at: int, place: int, places: Mapping[str, int]) -> bool:
    """Whether an entry leaves the message at a place out of the context."""
    if taker.get("type") != "compaction":
        return True
    kept = places.get(first_kept(taker) or "", at)
    return place < kept or kept > at


def _count(found: dict[str, Absence], by: Entry, entry_id: str, *, changed: bool) -> None:
    known = found.get(str(by["id"]))
    if known is None:
        found[str(by["id"])] = Absence(str(by["id"]), str(by["type"]), 1, entry_id, entry_id, changed)
    else:
        found[known.by] = known._replace(messages=known.messages + 1, last=entry_id)
