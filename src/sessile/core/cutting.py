"""Where a compaction cuts a path: the newest part stays word for word, what lies before it is summed up.

Rules for the cut:

- Messages are added up from the newest until they reach the budget; the cut is the first place at or after that one where
  one may cut, else the nearest before it. If the budget is not reached, everything stays.
- One may cut before what somebody said and before an answer, never before a tool's result or an instruction, and never
  between a call and its result, however far apart they are.
- Entries without a message directly before the cut stay with what follows them.
- If the cut lies within a turn, the turn's beginning (up to the cut) is told apart from the history before it.
- If all that would stay is one input over the budget, and the answer to it was taken out (it did not fit), that goes too.

Messages count as the model saw them. What a summary says is no business of this module.
"""

from __future__ import annotations

from typing import NamedTuple

from sessile.core.kinds import BOUNDARY
from sessile.core.live_path import LivePath, S

_CUT, _START = 1, 2
_ROLES = {
    "user": _CUT | _START,
    "assistant": _CUT,
    "bashExecution": _CUT | _START,
    "pythonExecution": _CUT | _START,
    "custom": _CUT | _START,
    "hookMessage": _CUT | _START,
    "developer": _CUT | _START,
    "fileMention": _CUT | _START,
    "branchSummary": _CUT | _START,
    "compactionSummary": _CUT | _START,
}
"""Before which messages one may cut, and which of them begin a turn."""


class Cut(NamedTuple):
    """The place of the oldest entry that stays, and of the message that begins the turn which the cut splits, if any."""

    first: int
    turn: int | None


def find_cut(path: LivePath[S], budget: int) -> Cut | None:
    """Where to cut so that about `budget` tokens stay; `None` if there is nothing to sum up."""
    start = path.step(0)
    if start is None or start.flags & BOUNDARY:
        return None
    reached = _reach(path, budget)
    place = None if reached is None else _nearest_cut(path, reached)
    if place is None:
        return None
    if _failed_alone(path, place, budget):
        return Cut(place - 1, _turn_start(path, place))
    turn = None if _begins_turn(path, place) else _turn_start(path, place + 1)
    first = _with_metadata(path, place)
    if turn is None and not _says_something_before(path, first):
        return None
    return Cut(first, turn)


def _with_metadata(path: LivePath[S], place: int) -> int:
    """The place of the oldest entry without a message before a place; a compaction may lie between, but not begin it."""
    first = place
    while (earlier := path.at(place + 1)) is not None and earlier.role is None:
        place += 1
        first = first if earlier.step.flags & BOUNDARY else place
    return first


def _reach(path: LivePath[S], budget: int) -> int | None:
    """The place where the messages from the leaf on reach the budget."""
    total = place = 0
    while (seen := path.at(place)) is not None:
        total += seen.tokens
        if total >= max(budget, 1):
            return place
        place += 1
    return None


def _nearest_cut(path: LivePath[S], reached: int) -> int | None:
    for place in range(reached, -1, -1):
        if may_cut(path, place):
            return place
    place = reached + 1
    while path.at(place) is not None:
        if may_cut(path, place):
            return place
        place += 1
    return None


def _turn_start(path: LivePath[S], place: int) -> int | None:
    while path.at(place) is not None:
        if _begins_turn(path, place):
            return place
        place += 1
    return None


def may_cut(path: LivePath[S], place: int) -> bool:
    """Whether what stays may begin at a place: with a message that can, and with no call left behind."""
    seen = path.at(place)
    return seen is not None and bool(_ROLES.get(seen.role or "", 0) & _CUT) and not parts_a_pair(path, place)


def parts_a_pair(path: LivePath[S], place: int) -> bool:
    """Whether a cut before a place leaves a call on one side and its result on the other.

    A result whose call is nowhere is damage that no cut makes worse.
    """
    return any(path.is_called_before(place, call) for call in path.open_calls(place))


def _begins_turn(path: LivePath[S], place: int) -> bool:
    seen = path.at(place)
    return seen is not None and bool(_ROLES.get(seen.role or "", 0) & _START)


def _says_something_before(path: LivePath[S], place: int) -> bool:
    earlier = place + 1
    while (seen := path.at(earlier)) is not None and seen.role is None:
        earlier += 1
    return seen is not None


def _failed_alone(path: LivePath[S], place: int, budget: int) -> bool:
    """Whether all that would stay from a place on is one message over the budget, and the answer to it was taken out.

    Not if anything older was changed since: that answer was to something else.
    """
    first = path.at(place)
    later = path.looked_at(place - 1) if place else []
    if first is None or first.tokens < budget or any(seen.role is not None for seen in later):
        return False
    behind = {seen.step.id for seen in later}
    return any(seen.removed == "assistant" for seen in later) and behind.issuperset(path.replaced_after(place))
