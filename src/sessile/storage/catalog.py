"""The catalog: what is known of every session below some folders, without opening them.

    with Catalog(fs, cache, AGENTS) as catalog:
        catalog.catch_up([sessions], depth="look")     every row can be shown
        catalog.catch_up([sessions], depth="index")    … is counted, and its words can be searched
        catalog.list(Filter(project="/work/app", limit=50))
        catalog.search("webhook retry")
        catalog.usage(Filter(since=…))                 for `core.statistics`

It is a cache, pulled and never pushed: nothing is written while appending. It is compared with the files at every catch-up,
made anew when it is damaged, and done without when it cannot be written; `notices` says so. Journals are only read.

One thread at a time may use it. Which folders there are is an argument.

The catalog as a file in the cache folder: locked by one writer, sealed when he leaves, never trusted without its seal.

    catalog.db      SQLite, rollback journal, `synchronous = OFF`: what a power cut spoils is made anew
    catalog.seal    size, times and inode of `catalog.db` as its last writer left it, or the word that one is at work
    catalog.lock    held by the writer; the kernel frees it when he dies

Rules:

- A database that does not look as its seal says is thrown away: whoever changed it, it was not us. One whose writer died at
  work is believed after SQLite has checked it. Whatever is judged bad is judged again under the lock, where nobody writes.
- Nothing here can fail a caller who only wants to know: with a cache that is locked, read-only, full or no folder at all,
  changes go to temporary tables over what can be read, and `notices` says so.
- Files are 0600, a new folder is 0700, links are not followed.

SQLite does its own file access, so the database does not go through the `Filesystem` seam; seal and lock do. It does not
know what the tables hold.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import msgspec

from sessile.core.words import INDEXED, Field
from sessile.errors import SessileError, SessionBusy, StorageFailure, UnsafePath
from sessile.storage import atomic, catch_up
from sessile.storage.base import Filesystem
from sessile.storage.catalog_rows import (
    SESSIONS,
    USED,
    Facets,
    Known,
    Listing,
    facets,
    known_files,
    listing,
    select,
    usage,
)
from sessile.storage.catch_up import Found, walk
from sessile.storage.catch_up import Mark as walk_Mark
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import EVERYTHING, Filter, SqlSelection, within
from sessile.storage.formats import Formats
from sessile.storage.locks import locked
from sessile.storage.session_lists import LISTS, has_changed, take_over

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.storage.catch_up import Depth, Progress, Reconciler
    from sessile.storage.search import Results


# --- catalog file

PATIENCE = 0.5  # seconds for the lock of another process; reading anew what changed costs no more
_SIDES = ("-journal", "-wal", "-shm")
_PAGE = 8 * 1024  # bytes; a first listing writes all rows at once
_CACHE = 16 * 1024  # kilobytes of pages in memory
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)

Mark = tuple[int, int, int, int]
"""Inode, size and times of the database."""


class _Seal(msgspec.Struct):
    version: int
    at_work: bool
    mark: Mark


class CatalogFile:
    """One database with a schema; `folder` is the cache folder, or `None` for a catalog that lives in memory."""

    def __init__(self, folder: str | None, schema: Sequence[str], shadowed: str, version: int) -> None:
        self.notices: list[str] = []
        self.keeps = True  # what is written stays, on disk or in memory as was wished
        self._folder = folder
        self._schema = schema
        self._shadowed = shadowed  # the table that is copied when the file cannot be written
        self._version = version
        self._fs = PosixFilesystem()
        self._db: sqlite3.Connection | None = None
        self._mark: Mark | None = None  # of the database behind `_db`, when we last trusted it
        self._detached = folder is None  # `_db` is all there is; the file is not looked at again
        if folder is None:
            self._db = self._in_memory()

    @property
    def path(self) -> str:
        return ":memory:" if self._folder is None else f"{self._folder}/catalog.db"

    def close(self) -> None:
        """Let go of the database."""
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- reading

    def attach(self) -> None:
        """Try the file again, if it could not be used before."""
        if self._detached and self._folder is not None:
            self.close()
            self._detached, self.keeps = False, True
            self.notices.clear()

    def database(self) -> sqlite3.Connection:
        """The database, trusted, for reading."""
        if self._detached:
            assert self._db is not None
            return self._db
        try:
            mark = self._look()
            if self._db is None or mark != self._mark:
                self._open(mark)
        except (sqlite3.Error, OSError, SessileError) as error:
            self._detach(error)
        assert self._db is not None
        return self._db

    def _open(self, mark: Mark | None) -> None:
        """Open the database if it can be trusted as it is, else under the lock."""
        self.close()
        seal = self._read_seal()
        if self._fits(seal, mark) or (seal is not None and seal.at_work and self._is_locked()):
            self._mark = mark
            self._db = self._connect()
            return
        with self._lock():
            self._open_alone()
            self._write_seal(at_work=False)

    def _fits(self, seal: _Seal | None, mark: Mark | None) -> bool:
        """Whether the database is just as its last writer left it."""
        if seal is None or mark is None or seal.at_work or seal.version != self._version:
            return False
        return seal.mark == mark and not any(os.path.lexists(self.path + side) for side in _SIDES)

    # -- writing

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The database, alone, for writing; or the same over temporary tables. What is not committed is taken back."""
        if self._detached:
            assert self._db is not None
            with _taking_back(self._db):
                yield self._db
            return
        with self._lock():
            self._open_alone()
            assert self._db is not None
            self._write_seal(at_work=True)
            try:
                with _taking_back(self._db):
                    yield self._db
            finally:
                self._write_seal(at_work=False)

    def _open_alone(self) -> None:
        """Under the lock: the database as it is, if it is sound, else a new one."""
        mark, seal = self._look(), self._read_seal()
        if self._fits(seal, mark):
            if self._db is None or mark != self._mark:
                self.close()
                self._db = self._connect()
        elif not (seal is not None and seal.at_work and seal.version == self._version and self._is_sound()):
            self._start_over()

    def _is_sound(self) -> bool:
        """Whether a database whose writer died holds together."""
        self.close()
        try:
            self._db = self._connect()
            (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema")}
            return verdict == "ok" and self._shadowed in tables
        except (sqlite3.Error, UnicodeDecodeError):
            return False

    def _start_over(self) -> None:
        """A new database in place of whatever is there: it holds nothing that the journals do not."""
        self.close()
        for path in (self.path, *(self.path + side for side in _SIDES)):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._fs.close(self._fs.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self._db = self._connect()
        _create(self._db, self._schema)

    # -- when it does not work

    def distrust(self, error: Exception) -> None:
        """Something went wrong with the database: a damaged one is made anew, any other is left alone from now on."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if self._detached or not isinstance(error, sqlite3.Error) or code not in _DAMAGE:
            self._detach(error)
            return
        try:
            with self._lock():
                self._start_over()
                self._write_seal(at_work=False)
        except (sqlite3.Error, OSError, SessileError) as trouble:
            self._detach(trouble)

    def _detach(self, error: Exception) -> None:
        """Go on without writing the file: over a copy of what can be read of it, or with nothing."""
        reason = error.message if isinstance(error, SessileError) else str(error)
        self.notices.append(f"the catalog {self.path} cannot be used ({reason}); files are read directly")
        self.keeps = False
        trusted = not self._detached and self._db is not None
        self._detached = True
        if trusted:
            assert self._db is not None
            try:
                self._db.rollback()
                self._db.execute("PRAGMA temp_store = MEMORY")
                (ddl,) = (line for line in self._schema if line.startswith(f"CREATE TABLE {self._shadowed} "))
                self._db.execute(ddl.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
                self._db.execute(f"INSERT INTO temp.{self._shadowed} SELECT * FROM main.{self._shadowed}")
                return
            except sqlite3.Error:
                pass  # then without it
        self.close()
        self._db = self._in_memory()

    def _in_memory(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _create(database, self._schema)
        return database

    # -- files

    def _connect(self) -> sqlite3.Connection:
        # Only what means something in an address must not stand for itself; names of files are bytes.
        name = "".join(
            chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b"/._-" else f"%{byte:02x}"
            for byte in os.fsencode(self.path)
        )
        address = f"file:{name}?mode=rw"
        database = sqlite3.connect(
            address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA page_size = {_PAGE}")  # of a file that is still empty
        database.execute(f"PRAGMA cache_size = -{_CACHE}")
        return database

    def _look(self) -> Mark | None:
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("the catalog is not a plain file", path=self.path, hint="remove it from the cache folder")
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _read_seal(self) -> _Seal | None:
        try:
            return msgspec.json.decode(atomic.read_all(self._fs, f"{self._folder}/catalog.seal"), type=_Seal)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def _write_seal(self, *, at_work: bool) -> None:
        self._mark = self._look()
        seal = _Seal(self._version, at_work, self._mark or (0, 0, 0, 0))
        atomic.replace(self._fs, f"{self._folder}/catalog.seal", (msgspec.json.encode(seal),), durable=False)

    def _is_locked(self) -> bool:
        """Whether a writer is at work in another process."""
        try:
            with self._lock(patience=0):
                return False
        except SessionBusy:
            return True

    @contextmanager
    def _lock(self, patience: float = PATIENCE) -> Iterator[None]:
        assert self._folder is not None
        atomic.make_folders(self._fs, self._folder)
        with locked(self._fs, f"{self._folder}/catalog.lock", patience):
            yield


@contextmanager
def _taking_back(database: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    finally:
        if database.in_transaction:
            database.rollback()


def _create(database: sqlite3.Connection, schema: Sequence[str]) -> None:
    database.execute("BEGIN")
    for statement in schema:
        database.execute(statement)
    database.execute("COMMIT")


# --- catalog

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

    def __init__(self, fs: Filesystem, cache: str | None, formats: Formats) -> None:
        self._fs = fs
        self._formats = formats
        self._file = CatalogFile(cache, (*SESSIONS, LISTS, *catch_up.TEXTS), "sessions", VERSION)
        self._places: tuple[str, ...] = ()
        self._copied: dict[str, Sequence[str]] = {}
        self._depth: Depth = "look"
        self.copies: dict[str, walk_Mark] = {}  # by the path of the original: copies that have no row beside it
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
        if changed or gone or any(self._waiting(database, depth)) or has_changed(self._fs, database, self._places):
            from sessile.storage.catch_up import Enough, Reconciler

            with self._file.writing() as ours:
                if ours is not database:  # another process has been here before we were alone
                    known = known_files(ours)
                    changed, gone = self._news(found, known)
                work = Reconciler(self._fs, self._formats, ours, self._file.keeps, progress, deadline)
                try:
                    work.look(found, known, changed, gone)
                    take_over(self._fs, ours, self._places, self._formats)
                    self._read(work, ours, depth)
                except Enough:
                    pass  # the rest is counted below
                database = ours
        return CaughtUp(len(found.marks), len(changed), len(gone), *self._waiting(database, "index"))

    def _read(self, work: Reconciler, database: sqlite3.Connection, depth: Depth) -> None:
        if depth == "index" and not self._file.keeps:
            depth = "count"  # words of a whole store are too much for the memory
        if depth == "index":
            catch_up.renew_if_stale(database)
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
        return self.selecting(lambda selection_for: listing(selection_for(wanted)))

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Path, size and time of modification of all files that a filter lets through: an index alone answers that."""

        def work(selection_for: Callable[[Filter], SqlSelection]) -> Sequence[tuple[str, int | None, int]]:
            rows = selection_for(wanted).shown("path, size, mtime_ns")
            return [(os.fsdecode(path), size, modified) for path, size, modified in rows]

        return self.selecting(work)

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """By what else the sessions that a filter lets through could be chosen; `folders` are names for places."""
        return self.selecting(lambda selection_for: facets(selection_for, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """What the sessions that a filter lets through have used, or all of them; sessions must be counted for that."""
        return self.selecting(lambda selection_for: usage(selection_for, USED if wanted is None else wanted))

    def selecting(self, work: Callable[[Callable[[Filter], SqlSelection]], Answer]) -> Answer:
        """Return the result of `work`, which gets a function that returns the selection for a filter."""
        copied = tuple(self._copied)
        return self._ask(
            lambda database: work(lambda wanted: select(database, self._places, wanted, self.imported, copied))
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
        from sessile.storage.search import CatalogWords, Searcher

        query = Query(text)
        directly = directly or not self._file.keeps

        def work(database: sqlite3.Connection) -> Results:
            words = CatalogWords(self._fs, self._formats, database, self._places, sessions, self._file.keeps)
            return Searcher(self._fs, self._formats, words, directly).search(query, fields, limit, count)

        return self._ask(work)
