"""The catalog as a file in the cache folder: locked by one writer, sealed when he leaves, never trusted without its seal.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from sessile.errors import SessileError, SessionBusy, UnsafePath
from sessile.storage import atomic
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.lock import locked

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
