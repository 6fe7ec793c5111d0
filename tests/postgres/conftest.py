"""The server and databases that these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.schema import migrate


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    """An empty database with all tables."""
    made = Database(postgres_url)
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def leases(database: Database) -> Iterator[Leases]:
    """The leases of this process."""
    made = Leases(database)
    yield made
    made.close()
