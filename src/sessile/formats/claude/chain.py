"""From the heads of a transcript to the rows of its conversation, as the SDKs answer.

Rules:

- A terminal is a row that nobody names as its parent. From it the walk goes up to the nearest user or assistant row, the
  leaf, and from there to the root. It ends at a missing parent and at a circle; `logicalParentUuid` is never followed.
- The TypeScript SDK looks for terminals among the rows of the main conversation (no sidechain, no team, no progress) and
  takes the last in the file; what a fork is told at its begin is no terminal. Only if none leads to a leaf it does as the
  Python SDK, which looks at all rows, and takes of the leaves of the main conversation, which are no meta rows either, the
  one that is last in the file.
- Progress is a link of the chain that is never shown: who hangs from it hangs from what it hangs from. In the file of a
  sub-agent the TypeScript SDK knows neither progress nor system rows, so that what lies above them is lost there; the
  Python SDK walks through.
- The chain of a sub-agent begins at its last user or assistant row and is not mended in any way.

It works on numbers; contents are read only to compare times.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sessile.formats.claude.compaction import mended_links
from sessile.formats.claude.heads import (
    ASSISTANT,
    ATTACHMENT,
    BRIEFING,
    KINDS,
    META,
    NOBODY,
    OFF_MAIN,
    PROGRESS,
    USER,
    Heads,
)
from sessile.formats.claude.parallel import Times, with_parallel_rows

_KNOWN_IN_SUBAGENTS = (USER, ASSISTANT, ATTACHMENT)


class Conversation(NamedTuple):
    """The rows from the root to the leaf; behind the leaf there may be results that belong to it."""

    leaf: int
    rows: Sequence[int]


def conversation(heads: Heads, times: Times) -> Conversation:
    """The rows from the root of a session to its leaf, with what belongs beside them. The names of uuids are given up."""
    if heads.view == "ts":
        heads.relink(mended_links(heads))
    heads.forget_names()
    leaf = _last_leaf(heads) if heads.view == "ts" else _best_leaf(heads, range(len(heads)))
    chain = [] if leaf == NOBODY else _up_to_root(heads, leaf, heads.row_of)
    return Conversation(leaf, with_parallel_rows(heads, chain, times))


def subagent_conversation(heads: Heads) -> Conversation:
    """The rows of a sub-agent's file from its root to its last user or assistant row."""
    heads.forget_names()
    known = _KNOWN_IN_SUBAGENTS if heads.view == "ts" else KINDS.values()
    row_of = array("i", [NOBODY]) * len(heads.row_of)
    for row, kind in enumerate(heads.kind):
        if kind in known:
            row_of[heads.uuid[row]] = row
    for leaf in range(len(heads) - 1, -1, -1):
        if heads.kind[leaf] in (USER, ASSISTANT):
            return Conversation(leaf, _up_to_root(heads, leaf, row_of))
    return Conversation(NOBODY, [])


def _last_leaf(heads: Heads) -> int:
    """The leaf of the last terminal of the main conversation, else the best of all, in the TypeScript manner."""
    main = bytearray(
        kind != PROGRESS and not flags & (OFF_MAIN | BRIEFING)
        for kind, flags in zip(heads.kind, heads.flags, strict=True)
    )
    leaf = _leaf_among(heads, main)
    return leaf if leaf != NOBODY else _best_leaf(heads, heads.live())


def _leaf_among(heads: Heads, accepted: Sequence[int]) -> int:
    is_parent = bytearray(len(heads.row_of) + 1)  # the last place is that of nobody
    row_of, uuid = heads.row_of, heads.uuid
    for row, number in enumerate(heads.parent):
        if accepted[row] and row_of[uuid[row]] == row:
            is_parent[number] = True
    for row in range(len(heads) - 1, -1, -1):
        number = uuid[row]
        if row_of[number] == row and not is_parent[number] and accepted[row]:
            leaf = nearest_spoken(heads, row)
            if leaf != NOBODY:
                return leaf
    return NOBODY


def _best_leaf(heads: Heads, rows: Iterable[int]) -> int:
    """The leaf that is last in the file, preferably of the main conversation, of those that these rows lead to.

    Of rows with one uuid each is a terminal of its own to the Python SDK, and the first of them is walked from.
    """
    rows = list(rows)
    is_parent = bytearray(len(heads.row_of) + 1)  # the last place is that of nobody
    for row in rows:
        is_parent[heads.parent[row]] = True
    best = main = NOBODY
    for row in rows:
        if is_parent[heads.uuid[row]]:
            continue
        leaf = nearest_spoken(heads, row)
        if leaf == NOBODY:
            continue
        best = _later(heads, best, leaf)
        if not heads.flags[leaf] & (OFF_MAIN | META):
            main = _later(heads, main, leaf)
    return main if main != NOBODY else best


def _later(heads: Heads, one: int, other: int) -> int:
    """Which of two rows has the uuid that is seen last in the file; the first if it is the same uuid."""
    if one == NOBODY or heads.row_of[heads.uuid[other]] > heads.row_of[heads.uuid[one]]:
        return other
    return one


def nearest_spoken(heads: Heads, row: int) -> int:
    """The row itself or the nearest above it that is of the user or the assistant."""
    seen = set()
    while row != NOBODY and row not in seen and heads.kind[row] not in (USER, ASSISTANT):
        seen.add(row)
        row = heads.parent_of(row)
    return NOBODY if row in seen else row


def _up_to_root(heads: Heads, leaf: int, row_of: Sequence[int]) -> list[int]:
    """The rows from the root to a leaf, each uuid once; `row_of` says which row a uuid means."""
    chain = []
    seen = bytearray(len(row_of))
    row, uuid, parent = leaf, heads.uuid, heads.parent
    while row != NOBODY and not seen[uuid[row]]:
        seen[uuid[row]] = True
        chain.append(row)
        above = parent[row]
        row = row_of[above] if above != NOBODY else NOBODY
    chain.reverse()
    return chain
