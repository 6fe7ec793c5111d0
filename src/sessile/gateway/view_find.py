"""The operation that finds words in one session, on all of its branches.

Rules: the file itself is searched, so that an answer is complete as of now. Case does not count. More hits than anybody goes
through are not looked for, and the answer says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sessile import Needle, find_in_session
from sessile.gateway.viewing import NameText
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from sessile.gateway.service import Gateway

_MOST = 5_000  # entries that are found


class FindQuery(Taken, frozen=True):
    """Which session, and what is looked for in it, letter by letter."""

    id: NameText
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]


class FoundEntries(Told, frozen=True):
    """The entries that hold it, in file order; with `more` there are others behind them, which nobody counted."""

    total: int
    numbers: list[int]
    more: bool


async def find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    """The entries of a session that hold some words."""
    return await gateway.call(_find, gateway, query)


def _find(gateway: Gateway, query: FindQuery) -> FoundEntries:
    needle = Needle(query.q, case=False)
    with gateway.views.opened(query.id) as view:
        found = find_in_session(gateway.store, view.session, needle, rows=view.rows, most=_MOST + 1)
    return FoundEntries(total=len(found[:_MOST]), numbers=found[:_MOST], more=len(found) > _MOST)
