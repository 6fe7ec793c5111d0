"""A branch as a session of its own: the entries of one path, chained anew.

Labels and leaf markers on the path are left out, because a label belongs to a place and not to a story; what hung from one
hangs from its parent, so that no history is cut. Labels whose target is on the path come back as new entries at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sessile.core import entries
from sessile.core.codec import encode
from sessile.core.entries import Entry
from sessile.core.kinds import LABEL, MARKERS, kind_of


def branched_lines(
    path: Iterable[Entry], labels: Mapping[str, str], new_id: Callable[[], str], timestamp: str
) -> list[bytes]:
    """The lines of a session that holds only this path (root first); lines that need no change stay as they are."""
    lines: list[bytes] = []
    waiting: list[str] = []  # dropped entries that a compaction may name as its first kept one
    instead: dict[str, str] = {}
    last: str | None = None
    kept = []
    for entry in path:
        if kind_of(entry.type).flags & LABEL or entry.get("customType") in MARKERS:
            waiting.append(entry.id)
            continue
        instead.update(dict.fromkeys(waiting, entry.id))
        waiting.clear()
        lines.append(_chained(entry, last, instead))
        kept.append(entry.id)
        last = entry.id
    for target in kept:
        if target in labels:
            entry_id = new_id()
            lines.append(encode(entries.with_base(entries.label(target, labels[target]), entry_id, last, timestamp)))
            last = entry_id
    return lines


def _chained(entry: Entry, parent_id: str | None, instead: Mapping[str, str]) -> bytes:
    first_kept = entry.get("firstKeptEntryId") if entry.type == "compaction" else None
    moved = instead.get(first_kept) if isinstance(first_kept, str) else None
    if entry.parent_id == parent_id and moved is None:
        return entry.raw
    body = {**entry.body, "parentId": parent_id}
    return encode(body if moved is None else body | {"firstKeptEntryId": moved})
