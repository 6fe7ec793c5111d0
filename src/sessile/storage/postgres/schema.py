"""The tables of a database, and the way from an older set of them to this one.

Rules: each part has a list of steps that only ever grows; `schema_version` says how many of them a database has
taken. All missing steps are taken in one transaction under the lock of those rows, so that of many processes that begin
at once one does the work. A database with more steps than are known here belongs to a later release and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors

from sessile.errors import Unsupported, UnsupportedVersion
from sessile.storage.postgres import schema_catalog, schema_files, schema_gateway, schema_journals
from sessile.storage.postgres.database import Cursor, Database

Steps = tuple[tuple[str, ...], ...]

PARTS: tuple[tuple[str, Steps], ...] = (
    ("files", (schema_files.TABLES,)),
    ("journals", (schema_journals.TABLES,)),
    ("catalog", (schema_catalog.TABLES,)),
    ("gateway", (schema_gateway.TABLES,)),
)
"""In the order in which they are made. A further step is one more member of a part's tuple, never a change of one."""

_ENCODINGS = ("UTF8", "UTF-8")
_LOOK = "SELECT current_setting('server_encoding'), EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s)"
# Two processes may find that something is missing and make it at the same moment: PostgreSQL does not keep them apart.
# How far the slower one came says which error it gets; a table also makes a type of its name, a "duplicate object".
_MADE_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateSchema, errors.DuplicateObject)


def migrate(database: Database, parts: Sequence[tuple[str, Steps]] = PARTS) -> None:
    """Make the tables that are missing; one query if there is nothing to do."""
    if _behind(_versions(database), parts, database.place):
        _begin(database, parts)
        database.transact(lambda cursor: _catch_up(cursor, parts, database.place), again=True)


def _versions(database: Database) -> dict[str, int]:
    """How many steps of each part the database has taken."""
    try:
        return dict(database.query("SELECT part, version FROM schema_version", again=True))
    except errors.UndefinedTable:
        return {}


def _behind(versions: dict[str, int], parts: Sequence[tuple[str, Steps]], place: str) -> bool:
    """Whether steps are missing. A database that is ahead is refused."""
    known = {part: len(steps) for part, steps in parts}
    for part, version in versions.items():
        if version > known.get(part, 0):
            message = f"the database has version {version} of its {part}, this release knows {known.get(part, 0)}"
            raise UnsupportedVersion(
                message, path=place, hint="use the release of Sessile that made it, or a later one"
            )
    return any(versions.get(part, 0) < version for part, version in known.items())


def _begin(database: Database, parts: Sequence[tuple[str, Steps]]) -> None:
    """Make the schema and the rows that are locked while steps are taken."""
    (encoding, there), *_ = database.query(_LOOK, (database.schema,), again=True)
    if encoding.upper() not in _ENCODINGS:
        hint = "make one with: createdb --encoding=UTF8 --template=template0 NAME"
        raise Unsupported(f"the database keeps its texts as {encoding}", path=database.place, hint=hint)
    if not there:  # who may not make schemas may still use one
        _make(database, f"CREATE SCHEMA IF NOT EXISTS {database.schema}")
    _make(database, "CREATE TABLE IF NOT EXISTS schema_version (part text PRIMARY KEY, version bigint NOT NULL)")
    names = [part for part, _ in parts]
    sql = "INSERT INTO schema_version SELECT part, 0 FROM unnest(%s::text[]) AS part ON CONFLICT DO NOTHING"
    database.query(sql, (names,), again=True)


def _make(database: Database, statement: str) -> None:
    try:
        database.query(statement, again=True)
    except _MADE_AT_ONCE:
        database.query(statement, again=True)


def _catch_up(cursor: Cursor, parts: Sequence[tuple[str, Steps]], place: str) -> None:
    """Take the steps that are missing, unless somebody else has while we waited for the rows."""
    cursor.execute("SELECT part, version FROM schema_version ORDER BY part FOR UPDATE")
    versions: dict[str, int] = dict(cursor.fetchall())
    if not _behind(versions, parts, place):
        return
    for part, steps in parts:
        for step in steps[versions[part] :]:
            if step:
                cursor.execute(";".join(step), binary=False)  # as text many statements can go at once
        cursor.execute("UPDATE schema_version SET version = %s WHERE part = %s", (len(steps), part))
