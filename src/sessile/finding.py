"""Finding a text in one session: which of its entries hold it, on whatever branch, from its bytes as they are now.

Rules: the file is searched as `storage.scan` does it, so that only lines that can hold the text are decoded. A file that is shown
in another version than it has is read entry by entry instead. Nothing is written, and no catalog is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from sessile.core.kinds import MARKER
from sessile.core.passages import pieces
from sessile.storage.base import Row
from sessile.storage.scan import Match, Needle, scan_file
from sessile.store import Store
from sessile.view import SessionView


def find_in_session(
    store: Store, session: SessionView, needle: Needle, *, rows: Sequence[Row] | None = None, most: int | None = None
) -> list[int]:
    """The numbers of the entries that hold a text, in file order, `most` at most; leaf markers are counted, never found.

    `rows` are those of the session, for who has them.
    """
    rows = list(session.iter_rows()) if rows is None else rows
    found: list[int] = []
    for match in scan_file(store.fs, session.path, needle, name=session.format):
        number = _number(rows, match)
        if number is None:
            return _first(_holding(session, rows, needle), most)
        if not rows[number].flags & MARKER and number not in found[-1:]:
            found.append(number)
        if len(found) == most:
            break
    return found


def _number(rows: Sequence[Row], match: Match) -> int | None:
    """The entry that a match is in, by its place; several entries may lie in one row of another agent's."""
    number = bisect_left(rows, match.offset, key=lambda row: int(row.position[0]))
    while number < len(rows) and rows[number].position[0] == match.offset:
        if rows[number].id == match.entry_id:
            return number
        number += 1
    return None


def _holding(session: SessionView, rows: Sequence[Row], needle: Needle) -> Iterator[int]:
    for number, (row, entry) in enumerate(zip(rows, session.read_rows(rows), strict=True)):
        if not row.flags & MARKER and any(needle.spans(text) for _, text in pieces(entry)):
            yield number


def _first(numbers: Iterator[int], most: int | None) -> list[int]:
    return [number for _, number in zip(range(most), numbers, strict=False)] if most is not None else list(numbers)
