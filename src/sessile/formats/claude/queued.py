"""Prompts that were typed while the agent worked: which of them the TypeScript SDK shows, where, and under which uuid.

Rules:

- A queued prompt in the chain is shown if the agent went on behind it: with an assistant row or a tool result. If the next
  thing that was said is a prompt of the user, it was sent again there. Meta rows and compact summaries say nothing of it.
- Behind the leaf, all that hang from it are shown, children by time and before the next sibling; not those from which the
  main conversation went on elsewhere.
- A prompt that was sent under another uuid has that one; it is shown once.

The Python SDK shows none.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessile.formats.claude.heads import (
    ASSISTANT,
    META,
    NOBODY,
    OFF_MAIN,
    QUEUED,
    RESULT,
    SUMMARY,
    USER,
    Heads,
)
from sessile.formats.claude.parallel import Times


def continued(heads: Heads, chain: Sequence[int]) -> set[int]:
    """The queued prompts of a chain behind which the agent went on."""
    found = set()
    went_on = False
    for row in reversed(chain):
        flags = heads.flags[row]
        if heads.kind[row] == ASSISTANT or flags & RESULT:
            went_on = True
        elif heads.kind[row] == USER and not flags & (META | SUMMARY):
            went_on = False
        elif flags & QUEUED and went_on:
            found.add(row)
    return found


def behind_the_leaf(heads: Heads, leaf: int, chain: Sequence[int], times: Times) -> list[int]:
    """The queued prompts that hang from the leaf, in the order in which they are shown."""
    on_chain = {heads.uuid[row] for row in chain}
    waiting = [row for row in heads.queued if _is_live(heads, row) and heads.uuid[row] not in on_chain]
    below = _ways_down(heads, leaf, waiting)
    if not below:
        return []
    left = _left_behind(heads, on_chain)
    shown = []
    stack = [leaf]
    seen = set(on_chain)
    while stack:
        row = stack.pop()
        if row != leaf:
            if heads.uuid[row] in seen:
                continue
            seen.add(heads.uuid[row])
            if heads.flags[row] & QUEUED and heads.uuid[row] not in left:
                shown.append(row)
        children = sorted(below.get(heads.uuid[row], ()))
        stack.extend(reversed(sorted(children, key=times) if len(children) > 1 else children))
    return shown


def _is_live(heads: Heads, row: int) -> bool:
    return heads.row_of[heads.uuid[row]] == row


def _parents(heads: Heads, row: int) -> set[int]:
    """The parent of a row, and the one that it names if a compaction has given it another."""
    return {heads.parent[row], heads.named.get(row, NOBODY)} - {NOBODY}


def _ways_down(heads: Heads, leaf: int, waiting: Sequence[int]) -> dict[int, set[int]]:
    """The children, by the uuid of their parent, on the ways from the leaf to these rows over rows that nobody spoke."""
    above: dict[int, set[int]] = {}
    stack = list(waiting)
    while stack:
        row = stack.pop()
        if row in above or heads.kind[row] in (USER, ASSISTANT):
            continue
        above[row] = _parents(heads, row)
        stack.extend(heads.row_of[number] for number in above[row] if heads.row_of[number] != NOBODY)
    below: dict[int, set[int]] = {}
    for row, numbers in above.items():
        for number in numbers:
            below.setdefault(number, set()).add(row)
    return below if heads.uuid[leaf] in below else {}


def _left_behind(heads: Heads, on_chain: set[int]) -> set[int]:
    """The uuids below which the main conversation went on beside the chain, by the parents that rows name."""
    left: set[int] = set()
    for spoken in heads.live():
        if heads.kind[spoken] not in (USER, ASSISTANT) or heads.flags[spoken] & OFF_MAIN:
            continue
        row = spoken
        while row != NOBODY and heads.uuid[row] not in left and heads.uuid[row] not in on_chain:
            left.add(heads.uuid[row])
            above = heads.named.get(row, heads.parent[row])
            row = heads.row_of[above] if above != NOBODY else NOBODY
    return left
