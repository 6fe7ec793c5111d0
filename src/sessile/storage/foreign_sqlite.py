"""Read the SQLite database of another program, which may be writing to it, without changing a byte on disk.

    with reading("/home/me/.local/share/opencode/opencode.db") as database:
        database.rows("SELECT id, title FROM session")
        database.problem                         what could not be read, if anything

Rules:

- No byte and no time of the database, its `-wal` or its `-shm` changes, and nothing is created beside them. A plain read-only
  connection would note its read mark in the `-shm`, or create one.
- A connection sees one state of the database, whatever is written meanwhile. Only the pages that a query needs are read.
- What cannot be read in one way is read in the next:

      a log, and its -shm       mode=ro&readonly_shm=1: the log is read; its index is shared, or made in memory
      a log without a -shm      the same on a copy of both files, in a temporary folder
      no log, WAL mode          immutable=1: SQLite would create the two files otherwise
      rollback mode             mode=ro: takes read locks only
      none of these works       immutable=1, and `problem` says what is missing

- Threads may read at once. A copy is shared, and removed when the files have changed and its last reader has ended, or when the
  process ends. No descriptor of a database is closed while it is read: that would drop the locks of all its readers (POSIX).

SQLite accesses its file itself, so this does not go through `Filesystem`.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from typing import Any

from sessile.storage.base import CHUNK
from sessile.storage.filesystem import ALWAYS

_MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2  # of the two version bytes in the header
_VERSIONS = slice(18, 20)
_WAL_HEADER = 32  # bytes; a log that is not longer has no changes
_PATIENCE = 2.0  # seconds to wait for a lock
_TRIES = 3  # to copy files that another program is writing
_LOCKED = "another program has locked it"
_NOT_IN = "its last changes, which are in the write-ahead log, could not be read"


class Database:
    """A connection to a database of another program, for reading."""

    def __init__(self, connection: sqlite3.Connection, problem: str | None) -> None:
        self._connection = connection
        self.problem = problem

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; raise `ValueError` where the database is damaged or lacks a table or column."""
        try:
            # `yield from` would close the cursor, perhaps after the connection.
            for row in self._connection.execute(query, values):
                yield tuple(row)
        except sqlite3.Error as error:
            raise ValueError(f"the database cannot be read: {error}") from error

    def records(self, query: str, values: Sequence[Any] = ()) -> Iterator[dict[str, Any]]:
        """Yield the rows of a query with the names of their columns, for tables that differ between releases."""
        try:
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield dict(zip(names, row, strict=True))
        except sqlite3.Error as error:
            raise ValueError(f"the database cannot be read: {error}") from error

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none if there is no such table."""
        return frozenset(name for (name,) in self.rows("SELECT name FROM pragma_table_info(?)", (table,)))


@contextmanager
def reading(path: str) -> Iterator[Database]:
    """Open a database for reading; raise `OSError` if it is not one, or cannot be read at all."""
    with _held(path) as fd:
        ways = _ways(path, os.pread(fd, 100, 0))
        for number, (place, options, problem) in enumerate(ways):
            try:
                with (
                    _copied(path) if place is None else nullcontext(place) as file,
                    _connected(file, options) as connection,
                ):
                    yield Database(connection, problem)
                    return
            except _CannotOpen as error:
                if number == len(ways) - 1:
                    raise OSError(errno.EIO, f"the database cannot be read: {error}", path) from error


class _CannotOpen(Exception):
    """A way to open a database failed; another one may work."""


def _ways(path: str, header: bytes) -> list[tuple[str | None, str, str | None]]:
    """Return how to open a database, best first: its path (`None` for a copy), options, and what is missing then."""
    if header and not header.startswith(_MAGIC):
        raise OSError(errno.EIO, "it is not a SQLite database", path)
    if _size(f"{path}-wal") > _WAL_HEADER:
        shared = [(path, "mode=ro&readonly_shm=1", None)] if os.path.lexists(f"{path}-shm") else []
        return [*shared, (None, "mode=ro", None), (path, "immutable=1", _NOT_IN)]
    if header[_VERSIONS] and max(header[_VERSIONS]) == _WAL_VERSION:
        return [(path, "immutable=1", None)]
    return [(path, "mode=ro", None), (path, "immutable=1", _LOCKED)]


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


@contextmanager
def _connected(path: str, options: str) -> Iterator[sqlite3.Connection]:
    # Quoted by hand, because urllib is slow to import. Names of files are bytes.
    name = "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b"/._-" else f"%{byte:02x}"
        for byte in os.fsencode(path)
    )
    try:
        connection = sqlite3.connect(
            f"file:{name}?{options}", uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise _CannotOpen(str(error)) from error
    with closing(connection):
        try:
            connection.text_factory = _text
            connection.execute("PRAGMA query_only = ON")
            if _knows_json():
                connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise _CannotOpen(str(error)) from error
        yield connection


@cache
def _knows_json() -> bool:
    """Return whether this SQLite lets a schema use JSON without being trusted; 3.40 does not, and Kilo has such an index."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("CREATE TABLE t (a, b AS (json_extract(a, '$')))")
            connection.execute("SELECT b FROM t").fetchone()
        except sqlite3.Error:
            return False
    return True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- what readers share

_LOCK = threading.Lock()
"""Guards the numbers of readers, and the tables below. It is held only for short steps."""


class _Shared:
    """Something that several readers use."""

    readers = 0

    def unused(self) -> None:
        """Called when the last reader has ended, with the lock held."""
        raise NotImplementedError


_ENDED: deque[_Shared] = deque()
"""What readers have finished with, once for each reader."""


@contextmanager
def _locked() -> Iterator[None]:
    try:
        with _LOCK:
            yield
    finally:
        _settle()


def _end(shared: _Shared) -> None:
    """Note that a reader has ended."""
    _ENDED.append(shared)
    _settle()


def _settle() -> None:
    """Count the readers that have ended, unless the lock is held: then its holder does that afterwards.

    Waiting could last forever, because the garbage collector may end a reader in the thread that holds the lock.
    """
    while _ENDED and _LOCK.acquire(blocking=False):
        try:
            while _ENDED:
                shared = _ENDED.popleft()
                shared.readers -= 1
                if not shared.readers:
                    shared.unused()
        finally:
            _LOCK.release()


class _File(_Shared):
    """A database file with descriptors of it, which are closed after its last reader."""

    def __init__(self, key: tuple[int, int]) -> None:
        self._key = key
        self.fds: list[int] = []

    def unused(self) -> None:
        del _FILES[self._key]
        for fd in self.fds:
            os.close(fd)


_FILES: dict[tuple[int, int], _File] = {}
"""The files that are being read, by device and inode."""


@contextmanager
def _held(path: str) -> Iterator[int]:
    """Open a database file; close it when nobody in this process reads it any more."""
    with _locked():
        file = _FILES.get(_key(os.lstat(path)))
        if file is None:
            fd = os.open(path, os.O_RDONLY | ALWAYS)
            key = _key(os.fstat(fd))
            # It is another file than before if it was replaced in between, perhaps by one that is being read.
            file = _FILES.setdefault(key, _File(key))
            file.fds.append(fd)
        file.readers += 1
    try:
        yield file.fds[0]
    finally:
        _end(file)


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


# -- a log without an index


class _Copy(_Shared):
    """A copy of a database and its log, made when these were in a certain state, in a temporary folder."""

    def __init__(self, path: str, state: Mapping[str, Any]) -> None:
        self.state = state
        self._path = path
        self._process = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="sessile-")
        self.file = f"{self._folder}/copy.db"
        _MADE.add(self)

    def fill(self) -> None:
        with _held(self._path) as fd, open(self.file, "xb") as target:
            offset = 0
            while chunk := os.pread(fd, CHUNK, offset):
                target.write(chunk)
                offset += len(chunk)
        shutil.copyfile(f"{self._path}-wal", f"{self.file}-wal", follow_symlinks=False)

    def unused(self) -> None:
        if _COPIES.get(self._path) is not self:
            self.remove()

    def remove(self) -> None:
        _MADE.discard(self)
        if self._process == os.getpid():
            shutil.rmtree(self._folder, ignore_errors=True)


_MADE: set[_Copy] = set()
"""All copies that are on disk."""

_COPIES: dict[str, _Copy] = {}
"""By path: the newest copy of a database, which is kept for the next reader."""

_COPYING = threading.Lock()
"""Held while a copy is made: a second reader waits for it instead of making another one."""


@atexit.register
def _forget() -> None:
    _COPIES.clear()
    for copy in list(_MADE):
        copy.remove()


def _forked() -> None:
    """Leave the copies to the parent process, and what its other threads were doing."""
    global _LOCK, _COPYING
    _LOCK, _COPYING = threading.Lock(), threading.Lock()
    _COPIES.clear()
    _MADE.clear()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def _copied(path: str) -> Iterator[str]:
    """Return the path of a copy of a database with its log, in a temporary folder."""
    with _COPYING:
        copy = _copy_of(path)
    try:
        yield copy.file
    finally:
        _end(copy)


def _copy_of(path: str) -> _Copy:
    """Return the copy of a database in its present state, with one more reader."""
    for _ in range(_TRIES):
        before = _state(path)
        with _locked():
            known = _COPIES.get(path)
            if known is not None and known.state == before:
                known.readers += 1
                return known
        copy = _filled(path, before)
        if _state(path) != before:
            copy.remove()
            continue
        with _locked():
            copy.readers = 1
            _COPIES[path] = copy
            if known is not None and not known.readers:
                known.unused()
        return copy
    raise _CannotOpen(_LOCKED)


def _filled(path: str, state: Mapping[str, Any]) -> _Copy:
    try:
        copy = _Copy(path, state)
        try:
            copy.fill()
        except BaseException:
            copy.remove()
            raise
    except OSError as error:
        raise _CannotOpen(str(error)) from error
    return copy


def _state(path: str) -> dict[str, tuple[int, int, int] | None]:
    found: dict[str, tuple[int, int, int] | None] = {}
    for suffix in ("", "-wal"):
        try:
            status = os.lstat(path + suffix)
            found[suffix] = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            found[suffix] = None
    return found
