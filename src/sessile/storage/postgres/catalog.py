"""The catalog of a store in a database: the same questions and answers as `storage.catalog`, for all nodes at once.

    with PostgresCatalog(fs, database, root) as catalog:
        catalog.catch_up([sessions], depth="index")
        catalog.list(Filter(project="/work/app", limit=50))

It is a cache, pulled and never pushed: appending writes nothing to it. Whoever asks compares it with the files first. Its
tables lie beside those of the journals, are shared by all processes, and are made anew when they are gone.

Only what lies below the root is listed: other agents' folders lie on some machine, and all nodes share these tables. `notices`
says what was left out for that; `joined_catalog` puts it beside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

from psycopg import errors

from sessile.core.passages import INDEXED, Field
from sessile.storage.base import Filesystem
from sessile.storage.catalog import CaughtUp
from sessile.storage.catalog_rows import EVERYTHING, Filter, Listing
from sessile.storage.postgres.catalog_table import CatalogTable
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.listing import PostgresQuestion, listing
from sessile.storage.postgres.schema_catalog import GONE, TABLES
from sessile.storage.walk import Mark

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.storage.catalog_facets import Facets
    from sessile.storage.reconcile import Depth, Progress
    from sessile.storage.searcher import Results

Answer = TypeVar("Answer")

_GONE = (errors.UndefinedTable, errors.UndefinedColumn)
# Two processes may make the same table at the same moment: PostgreSQL does not keep them apart.
_MADE_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)


class PostgresCatalog:
    """All sessions of a database below `root`."""

    def __init__(self, fs: Filesystem, database: Database, root: str) -> None:
        self._fs = fs
        self._database = database
        self._root = root.rstrip("/")
        self._places: tuple[str, ...] = ()
        self._depth: Depth = "look"
        self.copies: dict[str, Mark] = {}  # originals of copies lie outside: every copy has a row
        self.notices: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """The database belongs to the store, and stays open."""

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

        It may be interrupted at any time and goes on there the next time, here or on another node. `deadline`, a moment of
        `time.monotonic`, ends counting and indexing; every session is looked at. `copies` are folders with copies.
        """
        asked = [place.rstrip("/") for place in (*places, *(copies or ()))]
        self._places = tuple(place for place in asked if place.startswith(f"{self._root}/"))
        self._depth = depth
        self.notices[:] = [
            f"the sessions in {place} are not listed: they do not lie in the database"
            for place in asked
            if place not in self._places
        ]
        try:
            return self._catch_up(depth, progress, deadline)
        except _GONE:
            self._make_tables()
        return self._catch_up(depth, progress, deadline)

    def _catch_up(self, depth: Depth, progress: Callable[[Progress], None] | None, deadline: float | None) -> CaughtUp:
        table = CatalogTable(self._database, self._places)
        news = table.news()
        totals = table.totals()
        waits = {"look": 0, "count": totals.uncounted, "index": totals.unindexed}[depth]
        if news.files or news.gone or waits:
            from sessile.storage.postgres.following import Follower
            from sessile.storage.reconcile import Enough

            work = Follower(self._fs, self._database, table, progress, deadline)
            try:
                work.look(news)
                if depth != "look":
                    work.read(depth)
            except Enough:
                pass  # the rest is counted below
            totals = table.totals()
        return CaughtUp(totals.files, len(news.files), len(news.gone), totals.uncounted, totals.unindexed)

    def _make_tables(self) -> None:
        """Make the tables again that somebody has dropped."""

        def work(cursor: Cursor) -> None:
            for statement in (*GONE, *TABLES):
                cursor.execute(statement)

        with suppress(*_MADE_AT_ONCE):  # then they are there
            self._database.transact(work)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """What the tables say; if they are gone they are made anew and asked again."""
        try:
            return question()
        except _GONE:
            self._make_tables()
        self._catch_up(self._depth, None, None)
        return question()

    # -- asking

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """The sessions below the places of the last catch-up, newest first unless the filter says otherwise."""
        return self._ask(lambda: listing(self._database, self._places, wanted))

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Path, size and time of modification of all files that a filter lets through."""
        rows = self._ask(lambda: self._question(wanted).shown("path, size, mtime_ns"))
        return [(path.decode("utf-8", "surrogateescape"), size, modified) for path, size, modified in rows]

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """By what else the sessions that a filter lets through could be chosen; `folders` are names for places."""
        from sessile.storage.catalog_facets import facets

        return self.answering(lambda ask: facets(ask, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """What the sessions that a filter lets through have used, or all of them; sessions must be counted for that."""
        from sessile.storage.catalog_usage import USED, usage

        return self.answering(lambda ask: usage(ask, USED if wanted is None else wanted))

    def answering(self, work: Callable[[Callable[[Filter], PostgresQuestion]], Answer]) -> Answer:
        """Do something with what makes a question of a filter."""
        return self._ask(lambda: work(self._question))

    def origins(self) -> frozenset[bytes]:
        """The paths of the files that sessions of the database were imported from."""
        select = "SELECT origin FROM catalog WHERE origin IS NOT NULL"
        return self._ask(lambda: frozenset(path for (path,) in self._database.query(select, again=True)))

    def _question(self, wanted: Filter) -> PostgresQuestion:
        return PostgresQuestion(self._database, self._places, wanted)

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
        from sessile.storage.postgres.words import PostgresWords
        from sessile.storage.searcher import Searcher

        query = Query(text)

        def work() -> Results:
            words = PostgresWords(self._fs, self._database, self._places, sessions)
            return Searcher(self._fs, words, directly).search(query, fields, limit, count)

        return self._ask(work)
