"""The catalog of a store in a database joined with a local one, for the sessions of other agents on this machine.

The sessions of the database are in its tables, which all nodes share. The folders of other agents exist on this machine only, so
their sessions are in a local catalog in the cache, together with the kept copies of their sessions, which must be compared with
the originals. The local catalog is created only if such folders are used.

Rules:

- An answer is what one catalog of all sessions would return.
- Rows get new numbers: even ones for the database, odd ones for the local catalog.
- Search ranks of the two catalogs cannot be compared, because each weighs words by its own sessions: their hits alternate.
"""

from __future__ import annotations

import heapq
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple, Self, TypeVar

from sessile.core.statistics import Usage
from sessile.core.words import INDEXED, Field
from sessile.storage.catalog import Catalog, CaughtUp
from sessile.storage.catalog_rows import SUB_AGENTS, USED, Facets, Listing, SessionRow, facets, usage
from sessile.storage.catch_up import Depth, Progress
from sessile.storage.filters import EVERYTHING, Filter, Selection
from sessile.storage.layout import JOURNAL
from sessile.storage.mounted import is_below
from sessile.storage.postgres.listings import PostgresCatalog
from sessile.storage.search import Results
from sessile.storage.walk import Mark

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
    """The sessions below `root`, which are in a database, and those in other places; `make` creates the local catalog."""

    def __init__(self, own: PostgresCatalog, root: str, make: Callable[[], Catalog]) -> None:
        self._own = own
        self._root = root
        self._make = make
        self._made: Catalog | None = None
        self._uses_local = False  # whether the last catch-up included other places

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both catalogs."""
        self._own.close()
        if self._made is not None:
            self._made.close()

    @property
    def _local(self) -> Catalog | None:
        """The local catalog, if it is used."""
        return self._made if self._uses_local else None

    @property
    def copies(self) -> Mapping[str, Mark]:
        """The kept copies that have no row of their own, by the path of the original."""
        return {} if self._local is None else self._local.copies

    @property
    def notices(self) -> Sequence[str]:
        """Problems that did not make answers incomplete, for the user."""
        return [*self._own.notices, *(() if self._local is None else self._local.notices)]

    def catch_up(
        self,
        places: Sequence[str],
        *,
        depth: Depth = "look",
        progress: Callable[[Progress], None] | None = None,
        deadline: float | None = None,
        copies: Mapping[str, Sequence[str]] | None = None,
        owners: Mapping[str, str] | None = None,
        inside: float | None = None,
    ) -> CaughtUp:
        """Compare the rows below these folders with the files, and read what changed to the given depth."""
        below = [place for place in places if is_below(self._root, place)]
        outside = [place for place in places if place not in below]
        done = self._own.catch_up(below, depth=depth, progress=progress, deadline=deadline)
        self._uses_local = bool(outside or copies)
        if not self._uses_local:
            return done
        if self._made is None:
            self._made = self._make()
        self._made.imported = _Imported(self._own.origins(), tuple(copies or ()))
        more = self._made.catch_up(
            outside, depth=depth, progress=progress, deadline=deadline, copies=copies, owners=owners, inside=inside
        )
        return CaughtUp(*map(sum, zip(done, more, strict=True)))

    def compare(self, path: str, places: Sequence[str]) -> Sequence[str]:
        """Return how the local row of a file differs from the file. The database keeps its own rows with its files."""
        return () if self._local is None or is_below(self._root, path) else self._local.compare(path, places)

    def forget(self, path: str) -> None:
        """Remove the local row of a file, so that the next catch-up reads it."""
        if self._local is not None and not is_below(self._root, path):
            self._local.forget(path)

    # -- querying

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """Return the sessions below the places of the last catch-up that a filter selects, newest first by default."""
        if self._local is None:
            return _numbered(self._own.list(wanted), 0)
        limit = None if wanted.limit is None else wanted.offset + wanted.limit
        first = wanted._replace(limit=limit, offset=0)
        halves = (_numbered(self._own.list(first), 0), _numbered(self._local.list(first), 1))
        rows = sorted(chain.from_iterable(half.rows for half in halves), key=_order(wanted.sort), reverse=True)
        hidden = dict(sorted(sum((Counter(half.hidden) for half in halves), Counter()).items()))
        total, unjudged = sum(half.total for half in halves), sum(half.unjudged for half in halves)
        return Listing(rows[wanted.offset : limit], total, hidden, unjudged)

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Return path, size and time of modification of all files that a filter selects."""
        halves = [self._own.marks(wanted), () if self._local is None else self._local.marks(wanted)]
        return sorted(chain.from_iterable(halves), key=lambda mark: mark[2], reverse=True)

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """Return the facets of what a filter selects; `folders` are lists of places by name."""
        return self._selecting(lambda selection_for: facets(selection_for, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """Return what the sessions that a filter selects have used, or all of them; only counted sessions have usage."""
        return self._selecting(lambda selection_for: usage(selection_for, USED if wanted is None else wanted))

    def _selecting(self, work: Callable[[Callable[[Filter], Selection]], Answer]) -> Answer:
        """Return the result of `work`, which gets a function that returns the selection for a filter."""
        local = self._local
        if local is None:
            return self._own.selecting(work)

        def with_own(own_for: Callable[[Filter], Selection]) -> Answer:
            return local.selecting(lambda local_for: work(lambda wanted: _Both(own_for(wanted), local_for(wanted))))

        return self._own.selecting(with_own)

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
        """Return the entries that contain all words of a text, alternating between the two catalogs, best first.

        `sessions` are numbers of rows to search in.
        """

        def search(half: Catalog | PostgresCatalog, parity: int) -> Results:
            chosen = None if sessions is None else {number // 2 for number in sessions if number % 2 == parity}
            return half.search(text, fields=fields, sessions=chosen, limit=limit, directly=directly, count=count)

        own = search(self._own, 0)
        if self._local is None:
            return own
        local = search(self._local, 1)
        return Results(
            list(_alternating(own.hits, local.hits))[:limit],
            [*own.titles, *local.titles],
            {field: found + local.matches[field] for field, found in own.matches.items()},
            own.pending + local.pending,
            own.ignored,
        )


class _Imported:
    """The paths of files that sessions of the database were imported from, and of copies of these.

    A copy has the same path below the folder of copies as its original had below its agent's folder, which may be unknown.
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
        """Return whether a file belongs to a sub-agent, which is imported with its session."""
        session, below, _ = path.partition(SUB_AGENTS.encode())
        return bool(below) and session + JOURNAL.encode() in self._origins

    def _is_copy(self, path: bytes) -> bool:
        originals = self._named.get(posixpath.basename(path), ())
        rests = [path[len(folder) :] for folder in self._copied if path.startswith(folder + b"/")]
        return any(origin.endswith(rest) for rest in rests for origin in originals)


class _Both(NamedTuple):
    """One selection from two catalogs."""

    own: Selection
    local: Selection

    def shown(self, columns: str) -> Iterable[Any]:
        """Return columns of all rows that are shown, newest first."""
        halves = (half.shown(f"mtime_ns, {columns}") for half in self)
        return (row[1:] for row in heapq.merge(*halves, key=lambda row: row[0], reverse=True))

    def totals(self) -> tuple[int, dict[str, int]]:
        """Return the number of rows that are shown, and of those that are hidden, by reason."""
        (own, hidden), (local, more) = (half.totals() for half in self)
        return own + local, dict(sorted((Counter(hidden) + Counter(more)).items()))

    def uncounted(self) -> int:
        """Return the number of rows that may match once they are counted."""
        return sum(half.uncounted() for half in self)


def _numbered(listing: Listing, parity: int) -> Listing:
    """Return a listing whose row numbers do not occur in the other catalog."""
    return listing._replace(rows=[row._replace(number=2 * row.number + parity) for row in listing.rows])


def _order(sort: str) -> Callable[[SessionRow], tuple[bool, float, int]]:
    """Return the sort key, for descending order: unknown values come last, and the newest of equals comes first."""

    def key(row: SessionRow) -> tuple[bool, float, int]:
        value = _SORTED[sort](row)
        return value is not None, value or 0, row.modified_ns

    return key


def _alternating(first: Iterable[Item], second: Iterable[Item]) -> Iterator[Item]:
    """Yield one item of each, then the rest of the longer one."""
    return (item for pair in zip_longest(first, second) for item in pair if item is not None)
