"""How a session is read for its outline: bodies only of what is shown, and of short runs.

It is apart from `view` because programs that only append and resume need not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sessile.core.entries import Entry
from sessile.core.outline import EVERYTHING, Only, OutlineRow, RunCounts, outline
from sessile.core.parts import Call, Shown
from sessile.core.shown import show
from sessile.core.tree import NOWHERE, Tree

_COUNTED = 5000  # entries in elided runs that are read to say what is in them; of more, only the number is told
_NEAR = 64  # steps from a result up to the call that it answers


def outlined(
    tree: Tree,
    read: Callable[[int], Entry],
    leaf: str | None,
    labels: Mapping[str, str],
    only: Collection[Only] | None,
    full: bool,
) -> Iterator[OutlineRow]:
    """The outline of a tree whose entries `read` gives by their numbers."""
    left = _COUNTED

    def look(number: int) -> Shown:
        return show(read(number), _calls_before(tree, read, number))

    def count(numbers: Sequence[int]) -> RunCounts | None:
        nonlocal left
        left -= len(numbers)
        if left < 0:
            return None
        calls = failed = 0
        for shown in (show(read(number)) for number in numbers):
            calls += sum(isinstance(part, Call) for part in shown.parts)
            failed += shown.failed
        return RunCounts(calls, failed)

    wanted = EVERYTHING if only is None else only
    return outline(tree, look, leaf=leaf, labels=labels, count=count, only=wanted, full=full)


def _calls_before(tree: Tree, read: Callable[[int], Entry], number: int) -> dict[str, Call]:
    """The calls that a result may answer: those of the nearest answer above it."""
    message = read(number).get("message")
    if not isinstance(message, dict) or message.get("role") != "toolResult":
        return {}
    for _ in range(_NEAR):
        number = tree.parents[number]
        if number == NOWHERE:
            break
        calls = [part for part in show(read(number)).parts if isinstance(part, Call)]
        if calls:
            return {call.id: call for call in calls}
    return {}
