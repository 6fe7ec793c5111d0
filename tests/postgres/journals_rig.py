"""Journals in a database for tests: created from lines or bytes, and read through the file system."""

from __future__ import annotations

import os
from itertools import count

from sessile.storage import atomic
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.journals import PostgresJournal, PostgresJournals
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import PostgresFilesystem
from sessile.storage.postgres.schema import migrate

ROOT = "/sessile:postgresql"


class Place:
    """A database with its file system and its journals."""

    def __init__(self, database: Database, leases: Leases | None = None, *, patience: float = 10.0) -> None:
        self.database = database
        self.leases = leases or Leases(database)
        self.fs = PostgresFilesystem(database, self.leases)
        self.journals = PostgresJournals(self.fs, database, self.leases, patience=patience)
        self._numbers = count()

    def path(self) -> str:
        """Return an unused path."""
        return f"{ROOT}/{os.getpid()}-{next(self._numbers)}.jsonl"

    def put(self, data: bytes, path: str | None = None) -> str:
        """Write a file of bytes, as an import does, and return its path."""
        path = path or self.path()
        atomic.replace(self.fs, path, [data])
        return path

    def taken_in(self, data: bytes) -> PostgresJournal:
        """Return the journal that bytes become when they are opened for writing."""
        return self.journals.open(self.put(data))

    def content(self, path: str) -> bytes:
        """Return the bytes of a file as the file system shows them."""
        return atomic.read_all(self.fs, path)

    def is_journal(self, path: str) -> bool:
        """Return whether a path is stored as rows rather than bytes."""
        found = self.fs.names_in.look(path)
        assert found is not None
        return bool(found.journal)

    def close(self) -> None:
        """Release everything."""
        self.leases.close()
        self.database.close()


def place_at(url: str, *, patience: float = 10.0) -> Place:
    """Return a separate place, as another process has it. Create missing tables."""
    database = Database(url, patience=patience)
    migrate(database)
    return Place(database, patience=patience)
