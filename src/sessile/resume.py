"""The context at any entry of a journal, reading no more than its live part.

From the leaf the path is followed back to the last boundary and from there to the first entry that it kept; what lies
further back is not read. The state of the whole path comes from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sessile.core.context import Live, first_kept, fold_path, live_part, missing_parent
from sessile.core.kinds import BOUNDARY, CHAIN, MARKER, State
from sessile.core.lines import Finding
from sessile.storage.base import ReadableJournal, Row

Bodies = Callable[[Sequence[Row]], Iterator[dict[str, Any]]]
"""Gives the decoded entries of rows."""


def live_at(journal: ReadableJournal, leaf: Row, bodies: Bodies) -> tuple[State, Live, list[Finding]]:
    """The state and the live part of the path that ends at `leaf`."""
    steps = journal.up(leaf)
    after: list[Row] = []
    for step in steps:
        after.append(step)
        if step.flags & BOUNDARY:
            break
    findings = _end_of(after)
    boundary = after.pop() if after[-1].flags & BOUNDARY else None
    compaction = None if boundary is None else next(bodies((boundary,)))
    kept: list[Row] = []
    if compaction is not None and compaction.get("type") == "compaction":
        kept = _kept(journal, steps, first_kept(compaction))
    else:
        compaction = None
    live = Live(compaction, bodies(kept[::-1]), bodies(after[::-1]))
    return journal.state(leaf), live, findings


def _kept(journal: ReadableJournal, steps: Iterator[Row], first: str | None) -> list[Row]:
    """The rows behind a compaction down to the first kept one; none if that is not on the path."""
    if first is None or journal.find(first) is None:
        return []
    kept = []
    for step in steps:
        kept.append(step)
        if step.id == first:
            return kept
    return []


def _end_of(path: list[Row]) -> list[Finding]:
    """What is wrong where a walk to the root ended."""
    last = path[-1]
    if last.flags & BOUNDARY or last.parent_id is None:
        return []
    if any(row.id == last.parent_id for row in path):
        return [Finding("cycle", -1, 0, f"the ancestors of entry {path[0].id} form a circle")]
    return [missing_parent(last.id, last.parent_id)]


def bridged_at(journal: ReadableJournal, leaf: Row, bodies: Bodies) -> tuple[State, Live, list[Finding]]:
    """As `live_at`, but a missing parent is bridged to the nearest earlier entry of the chain."""
    rows = list(journal.rows())
    places = {row.id: number for number, row in enumerate(rows)}
    path: list[Row] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    row: Row | None = leaf
    while row is not None and row.id not in seen:
        for step in journal.up(row):
            if step.id in seen:
                break
            seen.add(step.id)
            path.append(step)
        end = path[-1]
        row = None
        if end.parent_id is not None and end.parent_id not in places:
            earlier = (rows[number] for number in range(places[end.id] - 1, -1, -1))
            row = next((r for r in earlier if r.flags & CHAIN and not r.flags & MARKER), None)
            findings.append(missing_parent(end.id, end.parent_id))
    entries = list(bodies(path[::-1]))
    return fold_path(entries), live_part(entries), findings
