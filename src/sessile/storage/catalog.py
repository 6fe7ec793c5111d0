"""The catalog: what is known of every session below some folders, without opening them.

    with Catalog(fs, cache) as catalog:
        catalog.catch_up([sessions], depth="look")     every row can be shown
        catalog.catch_up([sessions], depth="index")    … is counted, and its words can be searched
        catalog.list(Filter(project="/work/app", limit=50))
        catalog.search("webhook retry")
        catalog.usage(Filter(since=…))                 for `core.statistics`

It is a cache, pulled and never pushed: nothing is written while appending. It is compared with the files at every catch-up,
made anew when it is damaged, and done without when it cannot be written; `notices` says so. Journals are only read.

One thread at a time may use it. Which folders there are is an argument.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from sessile.core.passages import INDEXED, Field
from sessile.errors import SessileError, StorageFailure
from sessile.storage import fulltext
from sessile.storage.base import Filesystem
from sessile.storage.beside import LISTS, has_news, retell
from sessile.storage.catalog_file import CatalogFile
from sessile.storage.catalog_rows import (
    EVERYTHING,
    SESSIONS,
    Filter,
    Known,
    Listing,
    Question,
    known_files,
    listing,
    within,
)
from sessile.storage.walk import Found, Mark, walk

if TYPE_CHECKING:
    # A listing that is up to date needs neither; what does imports them then.
    from sessile.core.statistics import Usage
    from sessile.storage.catalog_facets import Facets
    from sessile.storage.reconcile import Depth, Progress, Reconciler
    from sessile.storage.searcher import Results

VERSION = 5  # of the tables: another number makes the catalog anew
_TRIES = 4  # as it is, anew, over a copy, in memory

Answer = TypeVar("Answer")


class CaughtUp(NamedTuple):
    """What a catch-up found, and what it had no time for."""

    files: int
    changed: int
    removed: int
    uncounted: int
    unindexed: int


class Catalog:
    """All sessions below some folders. `cache` is the cache folder, or `None` for a catalog in memory."""

    def __init__(self, fs: Filesystem, cache: str | None) -> None:
        self._fs = fs
        self._file = CatalogFile(cache, (*SESSIONS, LISTS, *fulltext.TEXTS), "sessions", VERSION)
        self._places: tuple[str, ...] = ()
        self._copied: dict[str, Sequence[str]] = {}
        self._depth: Depth = "look"
        self.copies: dict[str, Mark] = {}  # by the path of the original: copies that have no row beside it
        self.imported: Container[bytes] | None = None  # paths of what was imported, where one's own has another catalog
        self._unread_folders: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def notices(self) -> Sequence[str]:
        """What did not work as it should, though answers are complete."""
        return [*self._file.notices, *self._unread_folders]

    # -- catching up

    def catch_up(
        self,
        places: Sequence[str],
        *,
        depth: Depth = "look",
        progress: Callable[[Progress], None] | None = None,
        deadline: float | None = None,
        copies: Mapping[str, Sequence[str]] | None = None,
    ) -> CaughtUp:
        """Compare the rows below these folders with the files, and read what changed as deep as is wished.

        It may be interrupted at any time and goes on there the next time. `deadline`, a moment of `time.monotonic`, ends
        counting and indexing; every file is looked at. `copies` are folders with copies, and the places that these are
        copies of: a copy has a row as soon as its original is gone, or is smaller than it.
        """
        self._copied = dict(copies or {})
        self._places, self._depth = (*places, *self._copied), depth
        self._file.attach()
        self._unread_folders.clear()
        found = walk(self._fs, places, self._unread_folders)
        self._add_copies(found)
        return self._stubbornly(lambda: self._catch_up(found, depth, progress, deadline))

    def _add_copies(self, found: Found) -> None:
        """Add the copies that stand for a session, and remember the others: their sessions are found already."""
        self.copies = {}
        for folder, originals in self._copied.items():
            copies = walk(self._fs, [folder], self._unread_folders)
            for path, mark in copies.marks.items():
                names = (place + path[len(folder) :] for place in originals)
                original = next((name for name in names if name in found.marks), None)
                if original is not None and (mark[0] or 0) <= (found.marks[original][0] or 0):
                    self.copies[original] = mark
                    continue
                found.marks[path] = mark
                if path in copies.sub_agents:
                    found.sub_agents.add(path)

    def _catch_up(
        self,
        found: Found,
        depth: Depth,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
    ) -> CaughtUp:
        database = self._file.database()
        known = known_files(database)
        changed, gone = self._news(found, known)
        if changed or gone or any(self._waiting(database, depth)) or has_news(self._fs, database, self._places):
            from sessile.storage.reconcile import Enough, Reconciler

            with self._file.writing() as ours:
                if ours is not database:  # another process has been here before we were alone
                    known = known_files(ours)
                    changed, gone = self._news(found, known)
                work = Reconciler(self._fs, ours, self._file.keeps, progress, deadline)
                try:
                    work.look(found, known, changed, gone)
                    retell(self._fs, ours, self._places)
                    self._read(work, ours, depth)
                except Enough:
                    pass  # the rest is counted below
                database = ours
        return CaughtUp(len(found.marks), len(changed), len(gone), *self._waiting(database, "index"))

    def _read(self, work: Reconciler, database: sqlite3.Connection, depth: Depth) -> None:
        if depth == "index" and not self._file.keeps:
            depth = "count"  # words of a whole store are too much for the memory
        if depth == "index":
            fulltext.renew_if_stale(database)
        if depth != "look":
            work.read(depth, self._places)

    def _news(self, found: Found, known: dict[str, Known]) -> tuple[Sequence[str], Sequence[str]]:
        """The files to look at, those changed longest ago first, so that newer ones have higher numbers; and those gone."""
        marks = found.marks
        changed = [path for path, mark in marks.items() if (row := known.get(path)) is None or row[2:] != mark]
        changed = [path for path in changed if not self._failed_before(known.get(path)) or self._opens(path)]
        changed.sort(key=lambda path: marks[path][1])
        return changed, [path for path in known if path not in found.marks and self._is_ours(path)]

    @staticmethod
    def _failed_before(row: Known | None) -> bool:
        return row is not None and row[2] is None

    def _opens(self, path: str) -> bool:
        try:
            self._fs.close(self._fs.open(path, os.O_RDONLY))
        except OSError:
            return False
        return True

    def _waiting(self, database: sqlite3.Connection, depth: Depth) -> tuple[int, int]:
        """How many sessions are not counted, and not indexed, as far as the depth asks for it."""
        if depth == "look":
            return 0, 0
        where, values = within(self._places)
        sums = "coalesce(sum(NOT counted), 0), coalesce(sum(NOT searchable), 0)"
        select = f"SELECT {sums} FROM sessions WHERE format IS NOT NULL AND {where}"
        uncounted, unindexed = database.execute(select, values).fetchone()
        return uncounted, unindexed if depth == "index" else 0

    def _is_ours(self, path: str) -> bool:
        return any(path.startswith(f"{place.rstrip('/')}/") for place in self._places)

    def _stubbornly(self, work: Callable[[], Answer]) -> Answer:
        """Do something with the database; if that fails, with a new one, a copy, or one in memory."""
        for _ in range(_TRIES):
            try:
                return work()
            except (sqlite3.Error, SessileError, OSError) as error:
                self._file.distrust(error)
                trouble = error
        raise StorageFailure(f"the catalog cannot be used: {trouble}", path=self._file.path) from trouble

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """What the database says; one that turns out to be damaged is made anew and asked again."""
        try:
            return question(self._file.database())
        except sqlite3.Error as error:
            self._file.distrust(error)
        places = [place for place in self._places if place not in self._copied]
        self.catch_up(places, depth=self._depth, copies=self._copied)
        return question(self._file.database())

    # -- asking

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """The sessions below the places of the last catch-up, newest first unless the filter says otherwise."""
        return self.answering(lambda ask: listing(ask(wanted)))

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Path, size and time of modification of all files that a filter lets through: an index alone answers that."""

        def work(ask: Callable[[Filter], Question]) -> Sequence[tuple[str, int | None, int]]:
            rows = ask(wanted).shown("path, size, mtime_ns")
            return [(os.fsdecode(path), size, modified) for path, size, modified in rows]

        return self.answering(work)

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """By what else the sessions that a filter lets through could be chosen; `folders` are names for places."""
        from sessile.storage.catalog_facets import facets

        return self.answering(lambda ask: facets(ask, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """What the sessions that a filter lets through have used, or all of them; sessions must be counted for that."""
        from sessile.storage.catalog_usage import USED, usage

        return self.answering(lambda ask: usage(ask, USED if wanted is None else wanted))

    def answering(self, work: Callable[[Callable[[Filter], Question]], Answer]) -> Answer:
        """Do something with what makes a question of a filter."""
        copied = tuple(self._copied)
        return self._ask(
            lambda database: work(lambda wanted: Question(database, self._places, wanted, self.imported, copied))
        )

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
        """The entries that hold all words of a text, best first; `sessions` are numbers of rows to search in.

        With `directly`, sessions that are not indexed yet are read from end to end instead of being reported as pending.
        Without `count`, matches by field are not counted: for a first screen while somebody is typing.
        """
        from sessile.core.words import Query
        from sessile.storage.catalog_words import CatalogWords
        from sessile.storage.searcher import Searcher

        query = Query(text)
        directly = directly or not self._file.keeps

        def work(database: sqlite3.Connection) -> Results:
            words = CatalogWords(self._fs, database, self._places, sessions, self._file.keeps)
            return Searcher(self._fs, words, directly).search(query, fields, limit, count)

        return self._ask(work)
