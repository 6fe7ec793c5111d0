"""Some entries of a session for a page that asks for them as they are looked at: articles, and rows of the outline.

    articles(tree, entries, wanted, labels, gaps)       by number: the same articles as in an export
    outline_rows(entries, wanted)                       by number: what an outline tells of each

Rules: the tree of all entries is known, and of their bodies only those that are near: the wanted ones, and what those call or
answer, up to `NEAR` entries away. The same entries give the same answers, whatever else was asked before.

It does not know where entries come from, nor what is shown of them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.tokens import reported
from sessile.core.tree import Tree
from sessile.render.fragments import entry_html
from sessile.render.page_tree import NEAR, Pairs, anchor_at, mark_of, place_at, row_of, seen_numbered

Entry = Mapping[str, Any]


class OutlineRow(NamedTuple):
    """What an outline tells of an entry; `tokens` is how large the context was after an answer, `None` if nobody said."""

    mark: int
    line: str
    tokens: int | None


UNSEEN = OutlineRow(1 << 6, "", None)
"""The row of what nobody sees."""


def near(wanted: Sequence[int], total: int, *, behind: bool = True) -> list[int]:
    """The numbers of entries to know: those wanted, `NEAR` before each, and as many behind it where articles are made."""
    found: list[int] = []
    for number in sorted(wanted):
        first = max(found[-1] + 1 if found else 0, number - NEAR)
        found.extend(range(first, min(total, number + (NEAR if behind else 0) + 1)))
    return found


def may_be_near(raw: bytes) -> bool:
    """Whether an entry, by its bytes, can call something or answer a call: others say nothing about their neighbours."""
    return b'"toolCall"' in raw or b'"toolResult"' in raw


def articles(
    tree: Tree,
    entries: Iterable[tuple[int, Entry]],
    wanted: Collection[int],
    labels: Mapping[int, str],
    gaps: Mapping[int, Sequence[str]],
) -> dict[int, str]:
    """The articles of the wanted ones of some entries in file order, by number."""
    pairs = Pairs()
    found = {}
    for seen in seen_numbered(entries):
        pairs.note(seen)
        if seen.number in wanted:
            found[seen.number] = seen
    answered = pairs.answered(tree)
    return {
        number: entry_html(
            seen.shown,
            anchor=anchor_at(tree, number),
            label=labels.get(number),
            place=place_at(tree, number),
            gaps=gaps.get(number, ()),
            call=seen.call,
            answered=answered.get(number, ()),
        )
        for number, seen in found.items()
    }


def outline_rows(entries: Iterable[tuple[int, Entry]], wanted: Collection[int]) -> dict[int, OutlineRow]:
    """What an outline tells of the wanted ones of some entries in file order, by number."""
    rows: dict[int, OutlineRow] = {}
    tokens: dict[int, int | None] = {}

    def weighed() -> Iterator[tuple[int, Entry]]:
        for number, entry in entries:
            message = entry.get("message")
            tokens[number] = reported(message) if isinstance(message, Mapping) else None
            yield number, entry

    for seen in seen_numbered(weighed()):
        if seen.number in wanted:
            row = row_of(seen)
            rows[seen.number] = OutlineRow(mark_of(row), row.line, tokens[seen.number])
    return rows
