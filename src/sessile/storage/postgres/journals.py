"""The journals of a store that lies in a database.

A file of bytes under the name of a journal (an import wrote it, or somebody put it there) is read as it is, and taken in as a
journal by whoever opens it for writing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from sessile.errors import NotASession, SessionExists
from sessile.storage import atomic
from sessile.storage.base import Filesystem, ReadableOwnJournal
from sessile.storage.postgres import writing
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.failures import OutcomeUnknown
from sessile.storage.postgres.journal import PostgresJournal
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.links import Links
from sessile.storage.postgres.reading import PostgresReader
from sessile.storage.postgres.replacing import new_file
from sessile.storage.postgres.rows import Tiler
from sessile.storage.postgres.writing import name_of
from sessile.storage.reader import JournalReader

_CHUNK = 1 << 20


class PostgresJournals:
    """The journals of one database. `patience` is how many seconds one waits for another process."""

    def __init__(self, fs: Filesystem, database: Database, leases: Leases, *, patience: float = 10.0) -> None:
        self._fs = fs
        self._database = database
        self._leases = leases
        self._patience = patience
        self._folders: set[str] = set()

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new journal with just these bytes: whole and durable, or not there."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)
        made: list[int] = []
        try:
            # Not repeated: the pieces may come from somewhere that gives them only once.
            with self._database.transaction() as cursor:
                made.append(_make(cursor, path, _joined(pieces)))
        except OutcomeUnknown:
            held = self._database.transact(lambda cursor: writing.hold(cursor, name_of(path)), again=True)
            if held is None or held.file not in made:
                raise

    def obtain(self, path: str, header: bytes) -> None:
        """A journal that begins with that header, unless something is there already."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)

        def work(cursor: Cursor) -> None:
            held = writing.hold(cursor, name_of(path))
            if held is None:
                _make(cursor, path, (header + b"\n",))
            elif not held.size:
                writing.fill(cursor, held.file, _tiler(path), (header + b"\n",))

        try:
            self._database.transact(work, again=True)
        except SessionExists:
            pass  # somebody else was faster

    def open(self, path: str, *, patience: float | None = None) -> PostgresJournal:
        """The journal for writing."""
        waiting = self._patience if patience is None else patience
        return PostgresJournal(self._fs, self._database, self._leases, path, patience=waiting)

    def read(self, path: str) -> ReadableOwnJournal:
        """The journal for reading."""
        try:
            return PostgresReader(self._database, path)
        except NotASession:
            return JournalReader(self._fs, path)  # bytes that nobody has taken in yet


def _make(cursor: Cursor, path: str, content: Iterable[bytes]) -> int:
    file = new_file(cursor)
    if not writing.give_name(cursor, path, file):
        raise SessionExists(path=path)
    writing.fill(cursor, file, _tiler(path), content)
    return file


def _tiler(path: str) -> Tiler:
    return Tiler(path, Links(whole=True))


def _joined(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """The same bytes in larger pieces."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)
