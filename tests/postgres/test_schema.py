"""Tables are created once by any number of processes, and those of a later release are not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import errors

from figures import measured
from postgres.at_once import run_at_once
from postgres_rig import Server
from sessile.errors import PermissionRefused, Unsupported, UnsupportedVersion
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.schema import PARTS, Steps, migrate

pytestmark = [pytest.mark.mission("B8"), pytest.mark.promise("P52")]

_SHAPE = """
    SELECT 'column', table_name, column_name, data_type, is_nullable, coalesce(column_default, '')
    FROM information_schema.columns WHERE table_schema = current_schema()
    UNION ALL
    SELECT 'index', tablename, indexname, replace(indexdef, current_schema() || '.', ''), '', ''
    FROM pg_indexes WHERE schemaname = current_schema()
    ORDER BY 1, 2, 3, 4"""


def shape(database: Database) -> list[tuple[str, ...]]:
    """Return every column and index of a database."""
    rows = database.query(_SHAPE.replace("data_type,", "data_type::text,"))
    return [tuple(str(value).replace(f"{database.schema}.", "") for value in row) for row in rows]


def step_by_step(parts: tuple[tuple[str, Steps], ...]) -> list[tuple[tuple[str, Steps], ...]]:
    """Return the migrations of each release, from one step to all steps."""
    known: dict[str, Steps] = {}
    releases = []
    for part, steps in parts:
        for length in range(1, len(steps) + 1):
            known[part] = steps[:length]
            releases.append(tuple(known.items()))
    return releases


def test_from_scratch_and_step_by_step_give_the_same_tables(postgres_urls: Callable[[], str]) -> None:
    """A database migrated through any releases has the same tables as a new one."""
    fresh, grown = Database(postgres_urls()), Database(postgres_urls())
    migrate(fresh)
    seen = []
    for parts in step_by_step(PARTS):
        migrate(grown, parts)
        seen.append(len(shape(grown)))
    assert shape(fresh) == shape(grown)
    assert seen == sorted(seen) and len(set(seen)) >= 4  # a step creates something, or only forgets what was derived
    measured("P52", "schemas of a database", releases=len(seen), differences=0)
    fresh.close()
    grown.close()


def test_the_second_time_is_one_query(database: Database) -> None:
    """A migrated database needs one query, for its version."""
    before = database.count
    migrate(database)
    assert database.count == before + 1


def test_a_step_of_a_later_release_is_taken_by_an_older_database(database: Database) -> None:
    """Only missing steps run, and existing data stays."""
    database.query("INSERT INTO name (folder, base) VALUES ('/', 'kept')")
    later = tuple((part, (*steps, (f"CREATE TABLE later_{part} (a bigint)",))) for part, steps in PARTS)
    migrate(database, later)
    migrate(database, later)
    assert database.query("SELECT count(*) FROM later_files, later_journals") == [(0,)]
    assert database.query("SELECT 1 FROM name WHERE base = 'kept'") == [(1,)]


def test_a_step_that_fails_leaves_nothing_of_itself(database: Database) -> None:
    """All missing steps are one transaction, so the next attempt starts from the same state."""
    broken = (*PARTS, ("more", (("CREATE TABLE more_one (a bigint)", "CREATE TABLE more_one (a bigint)"),)))
    before = shape(database)
    for _ in range(2):
        with pytest.raises(Exception, match="more_one"):
            migrate(database, broken)
    assert shape(database) == before
    assert ("more", 0) in database.query("SELECT part, version FROM schema_version")


@pytest.mark.parametrize("part", ["files", "gateway", "a part that nobody knows"])
def test_the_database_of_a_later_release_is_refused(database: Database, part: str) -> None:
    """It is not changed, and the message names the release to use."""
    database.query("INSERT INTO schema_version VALUES (%s, 99) ON CONFLICT (part) DO UPDATE SET version = 99", (part,))
    with pytest.raises(UnsupportedVersion, match=f"version 99 of {part}") as caught:
        migrate(database)
    assert caught.value.path == database.place and "later" in str(caught.value.hint)


def test_processes_that_begin_at_once_make_the_tables_once(postgres_url: str) -> None:
    """Four processes open an empty database at once, and all of them can use it."""
    script = """
database = Database(url)
gate()
migrate(database)
print(database.query("SELECT count(*) FROM name")[0][0])
"""
    assert run_at_once(script, postgres_url) == ["2"] * 4


@pytest.mark.parametrize(
    "error", [errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateSchema, errors.DuplicateObject]
)
def test_whichever_way_another_process_was_faster(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Each creating statement fails once, as for the slower of two processes; the tables exist afterwards."""
    database, refused = Database(postgres_url), set[str]()
    query = database.query

    def query_slowly(sql: str, *arguments: Any, **options: Any) -> list[Any]:
        if sql.startswith("CREATE") and sql not in refused:
            refused.add(sql)
            raise error("already exists")
        return query(sql, *arguments, **options)

    monkeypatch.setattr(database, "query", query_slowly)
    migrate(database)
    assert len(refused) == 2
    assert query("SELECT count(*) FROM name") == [(2,)]
    database.close()


def test_whoever_may_not_make_a_schema_can_use_one(postgres_server: Server, postgres_url: str) -> None:
    """A user with rights on an existing schema creates the tables; one without rights is refused with a hint."""
    schema = postgres_url.rpartition("=")[2]
    with postgres_server.connect() as connection:
        connection.execute("CREATE ROLE tenant LOGIN")
        connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION tenant")
    own = Database(postgres_server.url(schema, user="tenant"))
    migrate(own)
    assert own.query("SELECT count(*) FROM name") == [(2,)]
    other = Database(postgres_server.url(f"{schema}_not_mine", user="tenant"))
    with pytest.raises(PermissionRefused, match="permission denied") as caught:
        migrate(other)
    assert "?schema=" in str(caught.value.hint)
    own.close()
    other.close()


def test_a_database_that_is_not_in_utf8_is_refused(postgres_server: Server) -> None:
    """Other encodings cannot store all texts; the hint creates a database in UTF-8."""
    with postgres_server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    database = Database(postgres_server.url().replace("/postgres?", "/latin?"))
    with pytest.raises(Unsupported, match="LATIN1") as caught:
        migrate(database)
    assert "UTF8" in str(caught.value.hint)
    database.close()
