"""The catalog: what is known about every session below some folders, without opening them.

    with Catalog(fs, cache, AGENTS) as catalog:
        catalog.catch_up([sessions], depth="look")     every row can be shown
        catalog.catch_up([sessions], depth="index")    … is counted, and its words can be searched
        catalog.list(Filter(project="/work/app", limit=50))
        catalog.search("webhook retry")
        catalog.usage(Filter(since=…))                 for `core.statistics`

It is a cache. Nothing is written to it while appending: every catch-up compares it with the files. It is rebuilt when it is
damaged, and replaced by one in memory when it cannot be written; `notices` says so. Journals are only read. Only one thread at
a time may use it. The folders are arguments.

`CatalogFile` is the database in the cache folder:

    catalog.db      SQLite, rollback journal, `synchronous = OFF`: a database that a power cut damages is rebuilt
    catalog.seal    size, times and inode of `catalog.db` as its last writer left it, or a note that one is writing
    catalog.lock    held by the writer; the kernel releases it when the process dies

Rules:

- A database that does not match its seal is discarded: another program has changed it. One whose writer died is used after
  SQLite has checked it. A database is only discarded under the lock, after a second look.
- A caller who only wants to read never fails: if the cache is locked, read-only, full or not a folder, changes go to temporary
  tables over what can be read, and `notices` says so.
- Files have mode 0600, a new folder has 0700, and links are not followed.

SQLite accesses its file itself, so the database does not go through `Filesystem`; seal and lock do.
"""

from __future__ import annotations

import os
import posixpath
import sqlite3
import stat
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import msgspec

from sessile.core.words import INDEXED, Field, Query
from sessile.errors import (
    SessileError,
    SessionBusy,
    StorageFailure,
    UnsafePath,
    UnsupportedVersion,
    second_name,
    storage_failures,
)
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.catalog_rows import (
    SESSIONS,
    TEXTS,
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
from sessile.storage.filesystem import PosixFilesystem, check_private
from sessile.storage.filters import EVERYTHING, Filter, SqlSelection, within
from sessile.storage.formats import Formats
from sessile.storage.locks import locked
from sessile.storage.session_lists import LISTS, has_changed, take_over, withdrawn
from sessile.storage.walk import Found, Mark, find, mark_of

if TYPE_CHECKING:
    from sessile.core.statistics import Usage
    from sessile.storage.catch_up import Depth, Facts, Progress, Reconciler
    from sessile.storage.search import Results

VERSION = 7  # of the tables: a catalog with another number is rebuilt
_TRIES = 4  # as it is, rebuilt, over a copy, in memory

Answer = TypeVar("Answer")

PATIENCE = 0.5  # seconds to wait for another process; reading the changed files again costs no more
_ERASE_PATIENCE = 10.0
_SIDES = ("-journal", "-wal", "-shm")
_PAGE = 8 * 1024  # bytes; a first listing writes all rows at once
_CACHE = 16 * 1024  # kilobytes of pages in memory
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)

DatabaseMark = tuple[int, int, int, int]
"""Inode, size and times of the database file."""


class CaughtUp(NamedTuple):
    """How many files a catch-up found, and how many it did not finish."""

    files: int
    changed: int
    removed: int
    uncounted: int
    unindexed: int


class Catalog:
    """All sessions below some folders. `cache` is the cache folder; `None` for a catalog in memory."""

    def __init__(self, fs: Filesystem, cache: str | None, formats: Formats) -> None:
        self._fs = fs
        self._formats = formats
        self._file = CatalogFile(cache, (*SESSIONS, LISTS, *TEXTS), "sessions", VERSION)
        self._places: tuple[str, ...] = ()
        self._copied: dict[str, Sequence[str]] = {}
        self._owners: Mapping[str, str] = {}
        self._depth: Depth = "look"
        self.copies: dict[str, Mark] = {}  # copies without a row, by the path of their original
        self.imported: Container[bytes] | None = None  # paths of imported sessions, if the store has another catalog
        self._unread_folders: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._file.close()

    @property
    def notices(self) -> Sequence[str]:
        """What did not work. Answers are complete in spite of it."""
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
        owners: Mapping[str, str] | None = None,
        inside: float | None = None,
    ) -> CaughtUp:
        """Compare the rows below these folders with the files, and read what changed.

        It may be interrupted at any time and continues there the next time. `depth` is how much to read: "look", "count" or
        "index". `deadline`, a time of `time.monotonic`, ends counting and indexing; every file is looked at. `copies` are
        folders with copies, and the folders of their originals: a copy has a row if its original is gone or smaller.
        `owners` are the agents of folders, of which some list their sessions themselves. `inside` are the
        seconds for counting sessions inside of databases, of which a listing knows most without reading them.
        """
        self._copied, self._owners = dict(copies or {}), owners or {}
        self._places, self._depth = (*places, *self._copied), depth
        self._file.attach()
        self._unread_folders.clear()
        found = find(self._fs, places, self._owners, self._formats, self._unread_folders)
        self._add_copies(found)
        return self._retried(lambda: self._catch_up(found, depth, progress, deadline, inside))

    def _add_copies(self, found: Found) -> None:
        """Add the copies whose original is gone or smaller. Remember the others, which need no row."""
        self.copies = {}
        for folder, originals in self._copied.items():
            copies = find(self._fs, [folder], self._owners, self._formats, self._unread_folders)
            for path, mark in copies.marks.items():
                names = (place + path[len(folder) :] for place in originals)
                original = next((name for name in names if name in found.marks), None)
                if original is not None and (
                    found.looks.get(original) is not None or (mark[0] or 0) <= (found.marks[original][0] or 0)
                ):
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
        inside: float | None,
    ) -> CaughtUp:
        database = self._file.database()
        known = known_files(database)
        changed, gone = self._news(found, known)
        if changed or gone or any(self._waiting(database, depth)) or has_changed(self._fs, database, self._places):
            catch_up = _catching_up()
            with self._file.writing() as ours:
                if ours is not database:  # another process has changed it before we had the lock
                    known = known_files(ours)
                    changed, gone = self._news(found, known)
                again = withdrawn(self._fs, ours, self._places, self._formats)
                changed = [*changed, *(path for path in again if path in found.marks and path not in changed)]
                work = catch_up.Reconciler(self._fs, self._formats, ours, self._file.keeps, progress, deadline, inside)
                try:
                    work.look(found, known, changed, gone)
                    take_over(self._fs, ours, self._places, self._formats)
                    self._read(work, depth)
                except catch_up.Enough:
                    pass  # the rest is counted below
                database = ours
        return CaughtUp(len(found.marks), len(changed), len(gone), *self._waiting(database, "index"))

    def _read(self, work: Reconciler, depth: Depth) -> None:
        if depth == "index" and not self._file.keeps:
            depth = "count"  # the words of a whole store do not fit into memory
        if depth != "look":
            work.read(depth, self._places)

    def _news(self, found: Found, known: dict[str, Known]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the files to look at, oldest first so that newer ones get higher numbers, and the files that are gone."""
        marks = found.marks
        changed = [path for path, mark in marks.items() if (row := known.get(path)) is None or row[2:] != mark]
        if found.looks:  # the size of such a session is known when it is read
            looks = found.looks
            changed = [path for path in changed if not (looks.get(path) and _is_same(known.get(path), marks[path]))]
        changed = [
            path
            for path in changed
            if not self._failed_before(known.get(path)) or found.looks.get(path) or self._opens(path)
        ]
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
        """Return how many sessions are not counted and not indexed, as far as the depth needs it."""
        if depth == "look":
            return 0, 0
        where, values = within(self._places)
        sums = "coalesce(sum(NOT counted), 0), coalesce(sum(NOT searchable), 0)"
        select = f"SELECT {sums} FROM sessions WHERE format IS NOT NULL AND {where}"
        uncounted, unindexed = database.execute(select, values).fetchone()
        return uncounted, unindexed if depth == "index" else 0

    def _is_ours(self, path: str) -> bool:
        return any(path.startswith(f"{place.rstrip('/')}/") for place in self._places)

    def _retried(self, work: Callable[[], Answer]) -> Answer:
        """Do some work with the database; if that fails, with a rebuilt one, a copy, or one in memory."""
        for _ in range(_TRIES):
            try:
                return work()
            except (sqlite3.Error, SessileError, OSError) as error:
                self._file.distrust(error)
                failure = error
        raise StorageFailure(f"the catalog cannot be used: {failure}", path=self._file.path) from failure

    def _ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Return the answer of the database. A damaged one is rebuilt and asked again."""
        try:
            return question(self._file.database())
        except sqlite3.Error as error:
            self._file.distrust(error)
        places = [place for place in self._places if place not in self._copied]
        self.catch_up(places, depth=self._depth, copies=self._copied, owners=self._owners)
        return question(self._file.database())

    # -- checking

    def compare(self, path: str, places: Sequence[str]) -> Sequence[str]:
        """Return how the row of a file, and its words, differ from the file; none if they would be read again anyway.

        `places` are the folders of sessions, which may have lists.
        """
        beside = [place for place in places if path.startswith(f"{place.rstrip('/')}/")]

        def work(database: sqlite3.Connection) -> Sequence[str]:
            stored = _catching_up().facts_of(database, path)
            try:
                mark = mark_of(self._fs.lstat(path))
            except OSError:
                return []
            if stored is None or stored.mark != mark:
                return []
            fresh = self._read_anew(path, stored, beside)
            found: Sequence[str] = _catching_up().differences(stored, fresh, self._file.keeps)
            return found

        return self._ask(work)

    def _read_anew(self, path: str, stored: Facts, places: Sequence[str]) -> Facts | None:
        """Return what a new catalog knows of a file, read as deeply as before."""
        found = Found({path: stored.mark}, {path} if stored.row["sub_agent"] else set())
        with Catalog(self._fs, None, self._formats)._file.writing() as fresh:
            reading = _catching_up().Reconciler(self._fs, self._formats, fresh, True, None, None)
            reading.look(found, {}, [path], [])
            take_over(self._fs, fresh, places, self._formats)
            if stored.depth != "look":
                reading.read(stored.depth, [posixpath.dirname(path)])
            facts: Facts | None = _catching_up().facts_of(fresh, path)
            return facts

    def forget(self, path: str) -> None:
        """Remove the row of a file and its words, so that the next catch-up reads it."""

        def work() -> None:
            with self._file.writing() as database:
                known = known_files(database).get(path)
                if known is not None:
                    reading = _catching_up().Reconciler(self._fs, self._formats, database, self._file.keeps, None, None)
                    reading.look(Found({}, set()), {path: known}, [], [path])

        self._retried(work)

    # -- queries

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """Return the sessions below the folders of the last catch-up, newest first unless the filter has another order."""
        return self.selecting(lambda selection_for: listing(selection_for(wanted)))

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Return path, size and modification time of all files that a filter selects. An index alone answers this."""

        def work(selection_for: Callable[[Filter], SqlSelection]) -> Sequence[tuple[str, int | None, int]]:
            rows = selection_for(wanted).shown("path, size, mtime_ns")
            return [(os.fsdecode(path), size, modified) for path, size, modified in rows]

        return self.selecting(work)

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """Return the facets of the sessions that a filter selects; `folders` are lists of places by name."""
        return self.selecting(lambda selection_for: facets(selection_for, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """Return what the sessions that a filter selects have used. Only counted sessions are included."""
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
        """Return the entries that contain all words of a text, best first. `sessions` are numbers of rows to search in.

        With `directly`, sessions that are not indexed yet are read completely instead of being reported as pending.
        Without `count`, matches by field are not counted: for results while the user is typing.
        """
        from sessile.storage.search import CatalogWords, Searcher  # saves start-up time: a listing needs no search

        query = Query(text)
        directly = directly or not self._file.keeps

        def work(database: sqlite3.Connection) -> Results:
            words = CatalogWords(self._fs, self._formats, database, self._places, sessions, self._file.keeps)
            return Searcher(self._fs, self._formats, words, directly).search(query, fields, limit, count)

        return self._ask(work)


def _is_same(row: Known | None, mark: Mark) -> bool:
    return row is not None and row[2] is not None and row[3:] == mark[1:]


def _catching_up() -> ModuleType:
    from sessile.storage import catch_up  # saves start-up time: a warm listing reads no files

    return catch_up


# -- the database file


class _Seal(msgspec.Struct):
    version: int
    at_work: bool
    mark: DatabaseMark


class CatalogFile:
    """One database with a schema. `folder` is the cache folder; `None` for a catalog in memory."""

    def __init__(self, folder: str | None, schema: Sequence[str], shadowed: str, version: int) -> None:
        self.notices: list[str] = []
        self.keeps = True  # whether writes are kept, on disk or in memory as requested
        self._folder = folder
        self._schema = schema
        self._shadowed = shadowed  # the table that is copied if the file cannot be written
        self._version = version
        self._fs = PosixFilesystem()
        self._db: sqlite3.Connection | None = None
        self._mark: DatabaseMark | None = None  # of the database behind `_db`, when it was last checked
        self._detached = folder is None  # `_db` is used without the file
        if folder is None:
            self._db = self._in_memory()

    @property
    def path(self) -> str:
        return ":memory:" if self._folder is None else f"{self._folder}/catalog.db"

    def close(self) -> None:
        """Close the database."""
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
        """Return the database, checked, for reading."""
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

    def _open(self, mark: DatabaseMark | None) -> None:
        """Open the database as it is if it matches its seal, else under the lock. One of a newer release is left alone."""
        self.close()
        if self._folder is not None:
            with storage_failures(self._folder, "use the cache folder"):
                check_private(self._folder)
        seal = self._read_seal()
        if seal is not None and seal.version > self._version:
            raise UnsupportedVersion(
                f"its version is {seal.version}; this release supports {self._version}", path=self.path
            )
        if self._fits(seal, mark) or (seal is not None and seal.at_work and self._is_locked()):
            self._mark = mark
            self._db = self._connect()
            return
        with self._lock():
            self._open_alone()
            self._write_seal(at_work=False)

    def _fits(self, seal: _Seal | None, mark: DatabaseMark | None) -> bool:
        """Return whether the database is exactly as its last writer left it."""
        if seal is None or mark is None or seal.at_work or seal.version != self._version:
            return False
        return seal.mark == mark and not any(os.path.lexists(self.path + side) for side in _SIDES)

    # -- writing

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the database for writing, under the lock, or over temporary tables. Uncommitted changes are rolled back."""
        if self._detached:
            assert self._db is not None
            with _rolling_back(self._db):
                yield self._db
            return
        with self._lock():
            self._open_alone()
            assert self._db is not None
            self._write_seal(at_work=True)
            try:
                with _rolling_back(self._db):
                    yield self._db
            finally:
                self._write_seal(at_work=False)

    def _open_alone(self) -> None:
        """Open the database under the lock; a damaged one is replaced by a new one."""
        mark, seal = self._look(), self._read_seal()
        if self._fits(seal, mark):
            if self._db is None or mark != self._mark:
                self.close()
                self._db = self._connect()
        elif not (seal is not None and seal.at_work and seal.version == self._version and self._is_sound()):
            self._start_over()

    def _is_sound(self) -> bool:
        """Return whether a database whose writer died is intact."""
        self.close()
        try:
            self._db = self._connect()
            (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema")}
            return verdict == "ok" and self._shadowed in tables
        except (sqlite3.Error, UnicodeDecodeError):
            return False

    def _start_over(self) -> None:
        """Replace the database by a new one. Nothing is lost: everything in it comes from the journals."""
        self.close()
        for path in (self.path, *(self.path + side for side in _SIDES)):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._fs.close(self._fs.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self._db = self._connect()
        _create(self._db, self._schema)

    def erase(self) -> None:
        """Remove the database for good, with everything that it knows. The next catch-up makes a new one."""
        if self._folder is None or not os.path.isdir(self._folder):  # that of a store in memory is not on the disk
            return
        with self._lock(_ERASE_PATIENCE):
            self.close()
            for path in (self.path, *(self.path + side for side in _SIDES), f"{self._folder}/catalog.seal"):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    # -- failures

    def distrust(self, error: Exception) -> None:
        """Handle an error of the database: replace a damaged one; after any other error stop using the file."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if self._detached or not isinstance(error, sqlite3.Error) or code not in _DAMAGE:
            self._detach(error)
            return
        try:
            with self._lock():
                self._start_over()
                self._write_seal(at_work=False)
        except (sqlite3.Error, OSError, SessileError) as failure:
            self._detach(failure)

    def _detach(self, error: Exception) -> None:
        """Continue without the file: over a copy of what can be read, or with an empty database."""
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
                pass  # continue without it
        self.close()
        self._db = self._in_memory()

    def _in_memory(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _create(database, self._schema)
        return database

    # -- files

    def _connect(self) -> sqlite3.Connection:
        # Quoted by hand, because urllib is slow to import. Names of files are bytes.
        name = "".join(
            chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b"/._-" else f"%{byte:02x}"
            for byte in os.fsencode(self.path)
        )
        address = f"file:{name}?mode=rw"
        database = sqlite3.connect(
            address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA page_size = {_PAGE}")  # only applies to an empty file
        database.execute(f"PRAGMA cache_size = -{_CACHE}")
        return database

    def _look(self) -> DatabaseMark | None:
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath(
                "the catalog is not a regular file", path=self.path, hint="remove it from the cache folder"
            )
        if status.st_nlink > 1:
            raise second_name(self.path)
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _read_seal(self) -> _Seal | None:
        try:
            return msgspec.json.decode(atomic.read_all(self._fs, f"{self._folder}/catalog.seal"), type=_Seal)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def _write_seal(self, *, at_work: bool) -> None:
        self._mark = self._look()
        seal = _Seal(self._version, at_work, self._mark or (0, 0, 0, 0))
        atomic.replace(
            self._fs, f"{self._folder}/catalog.seal", (msgspec.json.encode(seal),), durable=False, cache=True
        )

    def _is_locked(self) -> bool:
        """Return whether another process is writing."""
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
def _rolling_back(database: sqlite3.Connection) -> Iterator[None]:
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
