"""Lines that are read before they are asked for: whoever goes through entries one by one should not wait for each of them.

Two lines that are read one after the other and lie close together, in whichever direction, bring their neighbours along, more
and more of them. Lines never change, so what was read ahead stays true as long as the journal is the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from sessile.storage.base import Row
from sessile.storage.postgres.rows import key_of

MOST = 8 << 20  # bytes that are read at once
_FIRST = 64 << 10
_NEAR = 64 << 10

LineKey = tuple[int, bytes]
"""Where an entry begins, and what its id is stored as."""


def line_key(row: Row) -> LineKey:
    """What the line of a row is known by."""
    return row.position[0], key_of(row.id)


class Ahead:
    """What one handle has read ahead: rows by their ids, and lines."""

    def __init__(self) -> None:
        self.rows: Mapping[str, Row] = {}
        self.lines: Mapping[LineKey, bytes] = {}
        self._read = (0, 0)  # the place that was read last
        self._size = _FIRST

    def window(self, row: Row) -> tuple[int, int] | None:
        """Where to read if this line is read alone: from one start up to another. `None` if its neighbours are of no interest."""
        start, length = row.position
        low, high = self._read
        end = start + length
        forward, backward = 0 <= start - high < _NEAR, 0 <= low - end < _NEAR
        if not forward and not backward:
            self._read, self._size = (start, end), _FIRST
            return None
        size, self._size = self._size, min(2 * self._size, MOST)
        self._read = (start, max(end, start + size)) if forward else (min(start, end - size), end)
        return self._read
