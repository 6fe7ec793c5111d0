"""Lines on their way into a journal: the rows that they become, what was sent, and what is not known of it.

It does not know the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from sessile.storage.base import Revise, Row
from sessile.storage.postgres.failures import OutcomeUnknown
from sessile.storage.postgres.links import Links
from sessile.storage.postgres.rows import Tile, Tiler
from sessile.storage.postgres.writing import Held


class Attempt(NamedTuple):
    """Lines on their way into a journal, and what is known when they are there."""

    held: Held
    tiles: Sequence[Tile]
    size: int
    positions: Sequence[tuple[int, int]]
    links: Links


@dataclass
class Turn:
    """An append from its first try to its last; `sent` is what was tried last.

    If the outcome of a try is not known, what it sent is `doubtful`. With `doubled`, an id may be there already.
    """

    lines: Sequence[bytes]
    revise: Revise
    sent: Attempt | None
    doubtful: Attempt | None = None
    lost: OutcomeUnknown | None = None
    doubled: bool = False

    def doubt(self, error: OutcomeUnknown) -> None:
        """Note that nobody knows what became of the last try."""
        self.doubtful, self.lost = self.sent, error


class PostgresNews:
    """The rows that others have inserted."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def rows(self) -> Sequence[Row]:
        return self._rows

    def child_of(self, entry_id: str) -> bool:
        return any(row.parent_id == entry_id for row in self._rows)


def tiled(path: str, held: Held, lines: Sequence[bytes], links: Links) -> tuple[Attempt, Tiler]:
    """The rows of lines that are put behind a journal, as far as `links` knows what they hang from."""
    tiler = Tiler(path, links, held.size)
    tiles = [*tiler.feed(b"\n".join(lines) + b"\n"), *tiler.finish()]
    starts = accumulate((len(line) + 1 for line in lines), initial=held.size)
    positions = [(start, len(line)) for start, line in zip(starts, lines, strict=False)]
    return Attempt(held, tiles, tiler.size, positions, links), tiler
