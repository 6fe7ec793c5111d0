"""The backing of a store in a database.

Its paths are below one root folder that exists on no machine, and is the same for every process that uses the database.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sessile.storage.backing import Backing
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.formats import Formats
from sessile.storage.journal import FileJournals
from sessile.storage.layout import Layout
from sessile.storage.mounted import MountedFilesystem, MountedJournals
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.joined_listings import JoinedCatalog
from sessile.storage.postgres.journals import PostgresJournals
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.listings import PostgresCatalog
from sessile.storage.postgres.names import PostgresFilesystem, forget
from sessile.storage.postgres.schema import migrate

ROOT = "/sessile:postgresql"


def database_backing(
    url: str, cache: str | os.PathLike[str] | None, *, power: bool, patience: float, formats: Formats
) -> Backing:
    """Return the backing of a store in a database. Missing tables are created, and old ones are migrated."""
    database = Database(url, durability="power" if power else "process", patience=patience)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    leases = Leases(database)
    here = PosixFilesystem()
    files = PostgresFilesystem(database, leases)
    layout = Layout(ROOT, os.path.abspath(cache) if cache is not None else f"{ROOT}/cache")
    fs = MountedFilesystem(here, files, ROOT)
    local = FileJournals(here, layout, power=power, patience=patience)
    journals = MountedJournals(local, PostgresJournals(files, database, leases, patience=patience), ROOT)

    def close() -> None:
        leases.close()
        database.close()

    def catalog(cache: str | None) -> JoinedCatalog:
        if cache is not None and cache.startswith(f"{ROOT}/"):
            cache = None  # that folder is in the database; SQLite would create it on this machine
        return JoinedCatalog(PostgresCatalog(fs, database, ROOT, formats), ROOT, lambda: Catalog(fs, cache, formats))

    def purge(paths: Sequence[str], session_id: str) -> None:
        forget(database, paths, session_id)

    return Backing(database.place, fs, layout, lambda: journals, close, catalog, database, purge)
