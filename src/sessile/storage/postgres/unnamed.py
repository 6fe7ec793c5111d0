"""Files without a name: temporary ones, and those that have lost their last name but may still be open somewhere.

Rules: a file that lost its name is kept for an hour, because no process knows what the others have open. A temporary file
goes when it is closed; one whose process died is found after a week.
"""

from __future__ import annotations

from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.names import NOW, Found

_HOUR = 3600.0
_WEEK = 7 * 24 * 3600 * 10**9
_AT_ONCE = 100  # files

_MAKE = f"""
    INSERT INTO file (id, journal, size, modified, links, unnamed)
    VALUES (nextval('file_number'), false, 0, {NOW}, 0, {NOW} + {_WEEK})
    RETURNING id, journal, size, modified, links"""
_UNNAMED = f"""
    SELECT id FROM file WHERE links = 0 AND unnamed <= {NOW} - %s::bigint
    ORDER BY unnamed LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED"""
_REMOVE = (
    "DELETE FROM piece WHERE file = ANY(%s)",
    "DELETE FROM entry WHERE file = ANY(%s)",
    "DELETE FROM file WHERE id = ANY(%s)",
)


def make_temporary(database: Database) -> Found:
    """Make a file without a name."""
    return Found(*database.query(_MAKE)[0])


def remove_unnamed(database: Database, file: int) -> None:
    """Remove a temporary file and what is in it."""
    database.transact(lambda cursor: _remove(cursor, [file]), again=True)


def sweep(database: Database, older_than: float = _HOUR) -> int:
    """Remove files that lost their last name that many seconds ago; how many they were."""

    def remove_old(cursor: Cursor) -> int:
        found = [file for (file,) in cursor.execute(_UNNAMED, (int(older_than * 1e9),)).fetchall()]
        if found:
            _remove(cursor, found)
        return len(found)

    total = 0
    while removed := database.transact(remove_old, again=True):
        total += removed
    return total


def _remove(cursor: Cursor, files: list[int]) -> None:
    for statement in _REMOVE:
        cursor.execute(statement, (files,))
