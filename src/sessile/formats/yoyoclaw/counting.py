"""What a turn adds to the entry of its conversation: counters that grow, and values that replace older ones.

Rules: what is counted belongs to one session; an entry that has another one by now stays as it is, because the transcript has the
numbers too. Sums stay unknown until somebody tells a number. Two counts can be added before either is written, in their order.

    inputTokens outputTokens cacheRead cacheWrite totalTokens estimatedCostUsd compactionCount    grow
    lastInteractionAt updatedAt                                                                   the latest wins
    everything else (`members`)                                                                   is replaced
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessile.core.usage import Usage
from sessile.formats.yoyoclaw.entries import FIELDS, SessionEntry

_SUMS = {"inputTokens": "input", "outputTokens": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Something to count; `at` is when it happened, in milliseconds, and `session_id` where."""

    session_id: str
    at: int
    sums: dict[str, float] = {}
    members: dict[str, Any] = {}
    interacted: int | None = None


def count_usage(usage: Usage | None, cost: float | None, compactions: int) -> dict[str, float]:
    """What the counters of an entry grow by; what is unknown is left out."""
    sums: dict[str, float] = {}
    if usage is not None:
        sums = {name: value for name, part in _SUMS.items() if (value := getattr(usage, part)) is not None}
        if usage.context is not None:
            sums["totalTokens"] = usage.context
    if cost is not None:
        sums["estimatedCostUsd"] = cost
    if compactions:
        sums["compactionCount"] = compactions
    return sums


def added(one: Count | None, other: Count) -> Count:
    """Two counts of one session as one."""
    if one is None:
        return other
    names = {*one.sums, *other.sums}
    times = [time for time in (one.interacted, other.interacted) if time is not None]
    return Count(
        session_id=other.session_id,
        at=max(one.at, other.at),
        sums={name: one.sums.get(name, 0) + other.sums.get(name, 0) for name in names},
        members={**one.members, **other.members},
        interacted=max(times, default=None),
    )


def counted(entry: SessionEntry, count: Count) -> SessionEntry:
    """The entry with a count; the same object if nothing changes by it."""
    if entry.session_id != count.session_id:
        return entry
    patch = dict(count.members)
    patch |= {name: (entry.known(name) or 0) + value for name, value in count.sums.items()}
    last = entry.known("lastInteractionAt")
    if count.interacted is not None and (last is None or last < count.interacted):
        patch["lastInteractionAt"] = count.interacted
    changes = {name: value for name, value in patch.items() if entry.get(name) != value}
    return entry.touched(changes, count.at) if changes else entry


def unknown_names(members: dict[str, Any]) -> list[str]:
    """The names that no documented member has."""
    return sorted(name for name in members if name not in FIELDS)
