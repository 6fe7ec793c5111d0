"""The links that a compaction mends: messages that it kept stay where they were, and are read behind the summary.

Rules, as the TypeScript SDK follows them (the Python SDK follows none):

- Each boundary is looked at in file order, whatever is the last one.
- `preservedMessages` chains the named rows to each other and the first to the anchor; if one of them is missing, nothing
  happens. `preservedSegment`, which it supersedes, hangs the head from the anchor and trusts the links up to it.
- Every other row that hung from the anchor then hangs from the last kept row; if the anchor is null, every other root.
- No row is dropped: what the new links do not reach is not in the chain.

It changes no row; the answer says which rows have another parent than they name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sessile.formats.claude.heads import NOBODY, Heads, is_true
from sessile.formats.claude.rows import Row, mapping_of

Links = dict[int, int]
"""Row → the number of its parent, for rows whose parent is another than the one they name."""


_NOWHERE = -2  # the anchor from which no row can hang


class _Kept(NamedTuple):
    """What one boundary asks for, in numbers: these rows, each below the one before, the first below the anchor."""

    anchor: int
    first: int
    links: Sequence[tuple[int, int]]
    last: int


def mended_links(heads: Heads) -> Links:
    """The links that all boundaries of a transcript mend. Uuids must still be known by name."""
    wishes = [wish for row in heads.boundaries if _is_live(heads, row) for wish in _wishes(heads, row)]
    if not wishes:
        return {}
    links: Links = {}
    hanging = _rows_below(heads, {wish.anchor for wish in wishes})
    for wish in wishes:
        for number, parent in wish.links:
            _move(heads.row_of[number], parent, heads, links, hanging)
        for row in tuple(hanging.get(wish.anchor, ())):
            if heads.uuid[row] != wish.first:
                _move(row, wish.last, heads, links, hanging)
    return links


def _is_live(heads: Heads, row: int) -> bool:
    return heads.row_of[heads.uuid[row]] == row


def _rows_below(heads: Heads, anchors: set[int]) -> dict[int, dict[int, None]]:
    """The rows that hang from each anchor, in file order."""
    found: dict[int, dict[int, None]] = {anchor: {} for anchor in anchors}
    for row in heads.live():
        if heads.parent[row] in found:
            found[heads.parent[row]][row] = None
    return found


def _move(row: int, parent: int, heads: Heads, links: Links, hanging: dict[int, dict[int, None]]) -> None:
    before = links.get(row, heads.parent[row])
    if before in hanging:
        hanging[before].pop(row, None)
    if parent in hanging:
        hanging[parent][row] = None
    links[row] = parent


def _wishes(heads: Heads, boundary: int) -> Iterator[_Kept]:
    metadata = heads.boundaries[boundary]
    if is_true(metadata.get("preservedMessages"), "ts"):
        yield from _kept_messages(heads, mapping_of(metadata, "preservedMessages"))
    elif is_true(metadata.get("preservedSegment"), "ts"):
        yield from _kept_segment(heads, mapping_of(metadata, "preservedSegment"))


def _kept_messages(heads: Heads, hint: Row) -> Iterator[_Kept]:
    uuids = hint.get("uuids")
    if not isinstance(uuids, list) or not uuids:
        return
    numbers = [_number(heads, uuid) for uuid in uuids]
    rows = [number for number in numbers if number != NOBODY and heads.row_of[number] != NOBODY]
    if len(rows) < len(uuids):
        return
    anchor = _anchor(heads, hint)
    yield _Kept(anchor, rows[0], list(zip(rows, [max(anchor, NOBODY), *rows], strict=False)), rows[-1])


def _kept_segment(heads: Heads, hint: Row) -> Iterator[_Kept]:
    anchor = _anchor(heads, hint)
    head = _number(heads, hint.get("headUuid"))
    links = [(head, max(anchor, NOBODY))] if head != NOBODY and heads.row_of[head] != NOBODY else []
    yield _Kept(anchor, head, links, _number(heads, hint.get("tailUuid")))


def _anchor(heads: Heads, hint: Row) -> int:
    """The number of the anchor; null is the anchor of the roots, and anything else that is no uuid is nobody's."""
    anchor = hint.get("anchorUuid", "")
    if anchor is None:
        return NOBODY
    number = _number(heads, anchor)
    return _NOWHERE if number == NOBODY else number


def _number(heads: Heads, uuid: object) -> int:
    """The number of a uuid; one that nobody has leads nowhere."""
    return heads.number(uuid) if isinstance(uuid, str) and uuid else NOBODY
