"""The operation that shows two branches of a session beside each other.

Rules: what both branches share is counted and not read. The turns of both are paired as `core.compare` pairs them. Of a long
branch the first entries are given as articles; which others there are is told by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessile.core.compare import Comparison, Side, Turn, compare
from sessile.core.kinds import LABEL
from sessile.core.tree import NOWHERE
from sessile.gateway.view_entries import articles_of
from sessile.gateway.viewing import NameText, NumberText
from sessile.gateway.wire import Taken, Told
from sessile.render.compare_html import words_html
from sessile.render.compare_text import measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessile.gateway.service import Gateway
    from sessile.gateway.viewing import View

_MOST_ARTICLES = 300  # of one side


class DiffQuery(Taken, frozen=True):
    """Which session, and the heads of two of its branches."""

    id: NameText
    a: NumberText
    b: NumberText


class DiffEntry(Told, frozen=True):
    """An entry that only one branch has; `None` in place of an article that has to be asked for."""

    number: int
    html: str | None


class DiffDeltas(Told, frozen=True):
    """What each branch took from where they part: rows of a name, both sides and the difference in words; and as values."""

    rows: list[tuple[str, str, str, str]]
    left: dict[str, Any]
    right: dict[str, Any]


class DiffWords(Told, frozen=True):
    """How the last answers differ."""

    html: str


class ViewedDiff(Told, frozen=True):
    """Two branches: how many entries both have, and the last of them; then what only one of them has.

    `pairs` are the entries that begin the turns which stand beside each other; `None` where a side has none.
    """

    common: int
    common_number: int | None
    left: list[DiffEntry]
    right: list[DiffEntry]
    pairs: list[tuple[int | None, int | None]]
    deltas: DiffDeltas
    words: DiffWords


async def diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    """How two branches of a session differ."""
    return await gateway.call(_diff, gateway, query)


def _diff(gateway: Gateway, query: DiffQuery) -> ViewedDiff:
    with gateway.views.opened(query.id) as view:
        tree = view.tree
        one, other = view.check(query.a), view.check(query.b)
        parting = tree.common_ancestor(one, other)
        shared = [] if parting == NOWHERE else tree.path(parting)
        left, right = (tree.path(tip)[len(shared) :] for tip in (one, other))
        ours, theirs = ((entry for _, entry in view.read(side)) for side in (left, right))
        comparison = compare(ours, theirs)
        return ViewedDiff(
            common=sum(not view.rows[number].flags & LABEL for number in shared),
            common_number=None if parting == NOWHERE else parting,
            left=_entries(view, left),
            right=_entries(view, right),
            pairs=[(_begin(view, a, left), _begin(view, b, right)) for a, b in comparison.pairs],
            deltas=_deltas(comparison),
            words=DiffWords(html=words_html(comparison.left.answer, comparison.right.answer)),
        )


def _entries(view: View, numbers: Sequence[int]) -> list[DiffEntry]:
    articles = articles_of(view, numbers[:_MOST_ARTICLES])
    return [DiffEntry(number=number, html=articles.get(number)) for number in numbers]


def _begin(view: View, turn: Turn | None, side: Sequence[int]) -> int | None:
    """The entry that a turn begins with; one without a prompt begins with the side."""
    if turn is None:
        return None
    return side[0] if turn.id is None else view.tree.number(turn.id)


def _deltas(comparison: Comparison) -> DiffDeltas:
    return DiffDeltas(rows=list(measured(comparison)), left=_told(comparison.left), right=_told(comparison.right))


def _told(side: Side) -> dict[str, Any]:
    return {name: value for name, value in side._asdict().items() if name not in ("turns", "answer")}
