"""Operations that show entries of a session: as articles, and as they are stored.

Rules: articles are the renderer's, and nothing stored is in them that it did not make safe. What is asked for and not there is
left out. Bodies are read for the entries that are asked for and for those near them that they call or answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile.core.large import MAX_STRING
from sessile.errors import InvalidQuery
from sessile.gateway.viewing import NameText, NumberText
from sessile.gateway.wire import Taken, Told
from sessile.render.page_chunk import articles, may_be_near, near

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile.gateway.service import Gateway
    from sessile.gateway.viewing import View

Json = dict[str, Any]

MOST_ENTRIES = 200  # in one answer


def articles_of(view: View, numbers: Sequence[int]) -> dict[int, str]:
    """Some entries of a session as articles, by number; markers are left out."""
    wanted = frozenset(number for number in numbers if not view.is_marker(number))
    return articles(view.tree, near_entries(view, wanted), wanted, view.labels, view.gaps)


def near_entries(view: View, wanted: Collection[int], *, behind: bool = True) -> Iterator[tuple[int, Json]]:
    """Some entries, with those around them that they may call or answer; `behind` is needed for articles."""
    numbers = [n for n in near(sorted(wanted), len(view.rows), behind=behind) if not view.is_marker(n)]
    for number, entry in view.read(numbers):
        if number in wanted or may_be_near(entry.raw):
            yield number, entry.body


# -- articles


class EntriesQuery(Taken, frozen=True, rename={"from_": "from"}):
    """Which entries of a session: numbers with commas between them, or from one up to another; 200 at most."""

    id: NameText
    numbers: Annotated[str, Meta(max_length=10_000, pattern=r"^[0-9]{1,10}(,[0-9]{1,10})*$")] | None = None
    from_: NumberText | None = None
    to: NumberText | None = None


class ViewedEntries(Told, frozen=True):
    """Articles by number; a number that no entry has is not among them."""

    articles: dict[int, str]


async def entries(gateway: Gateway, query: EntriesQuery) -> ViewedEntries:
    """Some entries as HTML."""
    asked = _asked(query)
    return await gateway.call(_entries, gateway, query.id, asked)


def _asked(query: EntriesQuery) -> Sequence[int]:
    span = (query.from_, query.to)
    if (query.numbers is None) == (span == (None, None)):
        raise InvalidQuery("name entries either by numbers or from one to another", hint="just one of them")
    if query.numbers is not None:
        asked: Sequence[int] = sorted(set(map(int, query.numbers.split(","))))
    else:
        first = query.from_ or 0
        asked = range(first, first + MOST_ENTRIES if query.to is None else query.to)
    if len(asked) > MOST_ENTRIES:
        raise InvalidQuery(f"{len(asked):,} entries are too many at once", hint=f"{MOST_ENTRIES} at most")
    return asked


def _entries(gateway: Gateway, name: str, asked: Sequence[int]) -> ViewedEntries:
    with gateway.views.opened(name) as view:
        numbers = [number for number in asked if number < len(view.rows)]
        return ViewedEntries(articles=articles_of(view, numbers))


# -- as it is stored


class RawQuery(Taken, frozen=True):
    """Which entry."""

    id: NameText
    number: NumberText


class ViewedRaw(Told, frozen=True):
    """An entry as it is stored, and its line, of which `line` may be the beginning only; `bytes` says how long it is."""

    number: int
    id: str
    parent: int
    entry: dict[str, Any]
    line: str
    bytes: int


async def raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    """One entry as it is stored."""
    return await gateway.call(_raw, gateway, query)


def _raw(gateway: Gateway, query: RawQuery) -> ViewedRaw:
    with gateway.views.opened(query.id) as view:
        ((number, entry),) = view.read([view.check(query.number)])
        return ViewedRaw(
            number=number,
            id=entry.id,
            parent=view.tree.parents[number],
            entry=entry.body,
            line=entry.raw[:MAX_STRING].decode("utf-8", "replace"),
            bytes=len(entry.raw),
        )
