"""The same sessions in a database and in a folder, to compare the answers of both catalogs."""

from __future__ import annotations

import os
import posixpath
from typing import Any

from builders import Json
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode
from sessile.errors import NotASession
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.catalog import Catalog, CaughtUp
from sessile.storage.filters import Filter
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.journals import PostgresJournals
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.listings import PostgresCatalog
from sessile.storage.postgres.names import PostgresFilesystem
from sessions import FOLDER, header

ROOT = "/sessile:postgresql"
EVERYTHING = Filter(hide=())


def journal(session_id: str, *records: Json, **members: Any) -> bytes:
    """Return the bytes of a session with these entries."""
    return b"".join(encode(record) + b"\n" for record in (header(session_id, **members), *records))


class Twins:
    """A store in a database and one in a folder with the same changes."""

    def __init__(self, database: Database, leases: Leases, place: str = "sessions") -> None:
        self.place = f"{ROOT}/{place}"
        self.database = database
        self.known: dict[str, bytes] = {}
        self.fs = PostgresFilesystem(database, leases)
        self.journals = PostgresJournals(self.fs, database, leases)
        self.folder = MemoryFilesystem()
        self.catalog = PostgresCatalog(self.fs, database, ROOT, AGENTS)
        self.twin = Catalog(self.folder, None, AGENTS)
        for fs in (self.fs, self.folder):
            atomic.make_folders(fs, self.place)

    def close(self) -> None:
        self.catalog.close()
        self.twin.close()

    def path(self, name: str, folder: str = FOLDER) -> str:
        """Return the path of a session, which is the same in both."""
        return f"{self.place}/{folder}/{name}.jsonl"

    def put(self, path: str, data: bytes, *, take_in: bool = True) -> str:
        """Write a session: as a journal in the database if it is valid, otherwise as a file of bytes."""
        for fs in (self.fs, self.folder):
            atomic.make_folders(fs, posixpath.dirname(path))
            atomic.replace(fs, path, (data,), durable=False)
        if take_in:
            try:
                self.journals.open(path).close()
            except NotASession:
                pass  # not a session: it stays a file of bytes
        return path

    def append(self, path: str, *records: Json) -> None:
        """Append entries to a journal, as a session does."""
        lines = [encode(record) for record in records]
        opened = self.journals.open(path)
        opened.append(lines, lambda news: lines)
        opened.close()
        write(self.folder, path, b"".join(line + b"\n" for line in lines))

    def delete(self, path: str) -> None:
        for fs in (self.fs, self.folder):
            if atomic.exists(fs, path):
                fs.unlink(path)

    def rename(self, source: str, target: str) -> None:
        for fs in (self.fs, self.folder):
            atomic.make_folders(fs, posixpath.dirname(target))
            if atomic.exists(fs, source):
                fs.rename(source, target)

    def catch_up(self, depth: Any = "index", *more: str) -> CaughtUp:
        """Let both catalogs catch up, and check that they report the same."""
        found, expected = (each.catch_up([self.place, *more], depth=depth) for each in (self.catalog, self.twin))
        assert found == expected
        return found

    def assert_same(self, *queries: str) -> None:
        """Check that both catalogs give the same answers."""
        found, expected = facts(self.catalog, *queries), facts(self.twin, *queries)
        for name, answer in expected.items():
            assert found[name] == answer, name


def write(fs: Filesystem, path: str, data: bytes) -> None:
    """Append bytes to a file."""
    fd = fs.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        atomic.write_all(fs, fd, data)
    finally:
        fs.close(fd)


def facts(catalog: Catalog | PostgresCatalog, *queries: str) -> dict[str, Any]:
    """Return all answers of a catalog, except row numbers, ranks and times, which may differ."""
    said: dict[str, Any] = {"notices": list(catalog.notices)}
    for wanted in (EVERYTHING, Filter(), Filter(hide=(), sort="started"), Filter(hide=(), sort="cost", limit=2)):
        listing = catalog.list(wanted)
        rows = [row._replace(number=0, modified_ns=0) for row in listing.rows]
        said[f"{wanted}"] = (rows, listing.total, listing.hidden, listing.unjudged)
    for query in queries:
        found = catalog.search(query, limit=100_000)
        hits = sorted((hit.path, hit.offset, hit.field, hit.entry_id or "", hit.excerpt) for hit in found.hits)
        said[query] = (hits, found.titles, found.matches, found.pending, found.ignored)
    usage = catalog.usage()
    said["usage"] = (list(usage.sessions), usage.hidden, usage.uncounted)
    said["facets"] = catalog.facets(Filter(), {"all": [ROOT]})
    said["marks"] = [(path, size) for path, size, _ in catalog.marks()]
    return said
