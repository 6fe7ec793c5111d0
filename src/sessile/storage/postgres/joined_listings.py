"""The catalog of a store in a database, with what other agents have on this machine: two halves that answer as one.

Sessions of the database are in its tables, which all nodes share. Folders of other agents lie on this machine and nobody else's,
so they are in a catalog of its own, in its cache, and with them the copies that were kept of their sessions: those must be
compared with the originals. Who looks at no such folder has no second half.

Rules: an answer is what one catalog of all would say. Rows are numbered anew: those of the database are even, the others odd.
Only the best hits of a search cannot be compared from half to half, since each weighs words by its own sessions: they take turns.
"""

from __future__ import annotations

import heapq
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from sessile.core.words import INDEXED, Field
from sessile.storage.catalog import Catalog, CaughtUp
from sessile.storage.catalog_rows import SUB_AGENTS, USED, Facets, Listing, SessionRow, facets, usage
from sessile.storage.catch_up import Mark
from sessile.storage.filters import EVERYTHING, Filter, Selection
from sessile.storage.layout import JOURNAL
from sessile.storage.mounted import is_below
from sessile.storage.postgres.listings import PostgresCatalog

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.storage.catch_up import Depth, Progress
    from sessile.storage.search import Results

Answer = TypeVar("Answer")
Item = TypeVar("Item")

_SORTED: dict[str, Callable[[SessionRow], float | None]] = {
    "recent": lambda row: row.modified_ns,
    "started": lambda row: row.created_ms,
    "cost": lambda row: None if row.counts is None else row.counts.cost,
    "tokens": lambda row: None if row.counts is None else row.counts.total_tokens,
    "messages": lambda row: None if row.counts is None else row.counts.messages,
    "size": lambda row: row.size,
}


class JoinedCatalog:
    """The sessions below `root`, which are in a database, and those in other places, of which `make` makes a catalog."""

    def __init__(self, own: PostgresCatalog, root: str, make: Callable[[], Catalog]) -> None:
        self._own = own
        self._root = root
        self._make = make
        self._made: Catalog | None = None
        self._looks_beside = False  # whether the last catch-up was about other places, too

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of both halves."""
        self._own.close()
        if self._made is not None:
            self._made.close()

    @property
    def _beside(self) -> Catalog | None:
        """The second half, if it is asked."""
        return self._made if self._looks_beside else None

    @property
    def copies(self) -> Mapping[str, Mark]:
        """By the path of the original: copies that have no row beside it."""
        return {} if self._beside is None else self._beside.copies

    @property
    def notices(self) -> Sequence[str]:
        """What did not work as it should, though answers are complete."""
        return [*self._own.notices, *(() if self._beside is None else self._beside.notices)]

    def catch_up(
        self,
        places: Sequence[str],
        *,
        depth: Depth = "look",
        progress: Callable[[Progress], None] | None = None,
        deadline: float | None = None,
        copies: Mapping[str, Sequence[str]] | None = None,
    ) -> CaughtUp:
        """Compare the rows below these folders with the files, and read what changed as deep as is wished."""
        ours = [place for place in places if is_below(self._root, place)]
        theirs = [place for place in places if place not in ours]
        done = self._own.catch_up(ours, depth=depth, progress=progress, deadline=deadline)
        self._looks_beside = bool(theirs or copies)
        if not self._looks_beside:
            return done
        if self._made is None:
            self._made = self._make()
        self._made.imported = _Imported(self._own.origins(), tuple(copies or ()))
        more = self._made.catch_up(theirs, depth=depth, progress=progress, deadline=deadline, copies=copies)
        return CaughtUp(*map(sum, zip(done, more, strict=True)))

    # -- asking

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """The sessions below the places of the last catch-up, newest first unless the filter says otherwise."""
        if self._beside is None:
            return _numbered(self._own.list(wanted), 0)
        limit = None if wanted.limit is None else wanted.offset + wanted.limit
        first = wanted._replace(limit=limit, offset=0)
        halves = (_numbered(self._own.list(first), 0), _numbered(self._beside.list(first), 1))
        rows = sorted(chain.from_iterable(half.rows for half in halves), key=_order(wanted.sort), reverse=True)
        hidden = dict(sorted(sum((Counter(half.hidden) for half in halves), Counter()).items()))
        total, unjudged = sum(half.total for half in halves), sum(half.unjudged for half in halves)
        return Listing(rows[wanted.offset : limit], total, hidden, unjudged)

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Path, size and time of modification of all files that a filter lets through."""
        halves = [self._own.marks(wanted), () if self._beside is None else self._beside.marks(wanted)]
        return sorted(chain.from_iterable(halves), key=lambda mark: mark[2], reverse=True)

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """By what else the sessions that a filter lets through could be chosen; `folders` are names for places."""
        return self._selecting(lambda selection_for: facets(selection_for, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """What the sessions that a filter lets through have used, or all of them; sessions must be counted for that."""
        return self._selecting(lambda selection_for: usage(selection_for, USED if wanted is None else wanted))

    def _selecting(self, work: Callable[[Callable[[Filter], Selection]], Answer]) -> Answer:
        """Do something with questions that go to both halves."""
        beside = self._beside
        if beside is None:
            return self._own.selecting(work)

        def with_ours(ours: Callable[[Filter], Selection]) -> Answer:
            return beside.selecting(lambda theirs: work(lambda wanted: _Both(ours(wanted), theirs(wanted))))

        return self._own.selecting(with_ours)

    def search(
        self,
        text: str,
        *,
        fields: Sequence[Field] = INDEXED,
        sessions: Collection[int] | None = None,
        limit: int = 20,
        directly: bool = False,
        count: bool = True,
    ) -> Results:
        """The entries that hold all words of a text, the best of each half in turn; `sessions` are numbers of rows."""
        from sessile.storage.search import Results

        def search(half: Catalog | PostgresCatalog, parity: int) -> Results:
            chosen = None if sessions is None else {number // 2 for number in sessions if number % 2 == parity}
            return half.search(text, fields=fields, sessions=chosen, limit=limit, directly=directly, count=count)

        ours = search(self._own, 0)
        if self._beside is None:
            return ours
        theirs = search(self._beside, 1)
        return Results(
            list(_in_turn(ours.hits, theirs.hits))[:limit],
            [*ours.titles, *theirs.titles],
            {field: found + theirs.matches[field] for field, found in ours.matches.items()},
            ours.pending + theirs.pending,
            ours.ignored,
        )


class _Imported:
    """The paths of files that sessions of the database were imported from, and of copies of these.

    A copy lies below its folder as its original does below its agent's, which nobody may know by now.
    """

    def __init__(self, origins: Collection[bytes], copied: Sequence[str]) -> None:
        self._origins = origins
        self._copied = [os.fsencode(folder.rstrip("/")) for folder in copied]
        self._named: dict[bytes, list[bytes]] = {}
        for origin in origins if copied else ():
            self._named.setdefault(posixpath.basename(origin), []).append(origin)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, bytes) and (path in self._origins or self._is_copy(path) or self._is_sub_agent(path))

    def _is_sub_agent(self, path: bytes) -> bool:
        """Whether a file is of a sub-agent, which was copied with its session."""
        session, below, _ = path.partition(SUB_AGENTS.encode())
        return bool(below) and session + JOURNAL.encode() in self._origins

    def _is_copy(self, path: bytes) -> bool:
        originals = self._named.get(posixpath.basename(path), ())
        rests = [path[len(folder) :] for folder in self._copied if path.startswith(folder + b"/")]
        return any(origin.endswith(rest) for rest in rests for origin in originals)


class _Both(NamedTuple):
    """One question to two halves."""

    ours: Selection
    theirs: Selection

    def shown(self, columns: str) -> Iterable[Any]:
        """Columns of all rows that are shown, newest first."""
        halves = (half.shown(f"mtime_ns, {columns}") for half in self)
        return (row[1:] for row in heapq.merge(*halves, key=lambda row: row[0], reverse=True))

    def totals(self) -> tuple[int, dict[str, int]]:
        """How many rows are shown, and how many are hidden for what reason."""
        (ours, hidden), (theirs, more) = (half.totals() for half in self)
        return ours + theirs, dict(sorted((Counter(hidden) + Counter(more)).items()))

    def uncounted(self) -> int:
        """How many rows may match once they are counted."""
        return sum(half.uncounted() for half in self)


def _numbered(listing: Listing, parity: int) -> Listing:
    """The rows of a half with numbers that the other half does not have."""
    return listing._replace(rows=[row._replace(number=2 * row.number + parity) for row in listing.rows])


def _order(sort: str) -> Callable[[SessionRow], tuple[bool, float, int]]:
    """What is most comes first, what is unknown last, and of equals the newest first."""

    def key(row: SessionRow) -> tuple[bool, float, int]:
        value = _SORTED[sort](row)
        return value is not None, value or 0, row.modified_ns

    return key


def _in_turn(first: Iterable[Item], second: Iterable[Item]) -> Iterator[Item]:
    """One of each, then what is left of the longer."""
    return (item for pair in zip_longest(first, second) for item in pair if item is not None)
