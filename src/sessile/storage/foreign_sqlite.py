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

SQLite accesses its file itself, so this does not go through `Filesystem`.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

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
    ways = _ways(path)
    for number, (place, options, problem) in enumerate(ways):
        try:
            with _connected(place or _copied(path), options) as connection:
                yield Database(connection, problem)
                return
        except _CannotOpen as error:
            if number == len(ways) - 1:
                raise OSError(errno.EIO, f"the database cannot be read: {error}", path) from error


class _CannotOpen(Exception):
    """A way to open a database failed; another one may work."""


def _ways(path: str) -> list[tuple[str | None, str, str | None]]:
    """Return how to open a database, best first: its path (`None` for a copy), options, and what is missing then."""
    fd = os.open(path, os.O_RDONLY | ALWAYS)
    try:
        header = os.pread(fd, 100, 0)
    finally:
        os.close(fd)
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
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise _CannotOpen(str(error)) from error
        yield connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- a log without an index

_COPIES: dict[str, tuple[Mapping[str, Any], str]] = {}
"""By path: the state of the files of a database, and the folder with their copy, which is removed when the process ends."""


@atexit.register
def _forget() -> None:
    for _, folder in _COPIES.values():
        shutil.rmtree(folder, ignore_errors=True)
    _COPIES.clear()


def _copied(path: str) -> str:
    """Return the path of a copy of a database with its log, in a temporary folder."""
    for _ in range(_TRIES):
        before = _state(path)
        known = _COPIES.get(path)
        if known is None or known[0] != before:
            folder = tempfile.mkdtemp(prefix="sessile-")
            try:
                for suffix in ("", "-wal"):
                    shutil.copyfile(f"{path}{suffix}", f"{folder}/copy.db{suffix}", follow_symlinks=False)
            except OSError as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise _CannotOpen(str(error)) from error
            if known is not None:
                shutil.rmtree(known[1], ignore_errors=True)
            _COPIES[path] = known = (before, folder)
        if _state(path) == before:
            return f"{known[1]}/copy.db"
    raise _CannotOpen(_LOCKED)


def _state(path: str) -> dict[str, tuple[int, int, int] | None]:
    found: dict[str, tuple[int, int, int] | None] = {}
    for suffix in ("", "-wal"):
        try:
            status = os.lstat(path + suffix)
            found[suffix] = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            found[suffix] = None
    return found
