"""The bindings of an agent in a database: bodies by key, and a revision that every change raises by one.

Rules:

- A change is one statement. It is made only if the revision is still the one that the caller has seen.
- A reader asks for the changes after the revision that it knows. A removed binding stays as a row without a body, so that every
  reader learns of it.
- If the connection breaks during a change, the table is read to find out whether the change was made.

The bodies are opaque here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from sessile.storage.postgres.database import Database, OutcomeUnknown

_REVISION = "SELECT revision FROM bindings WHERE agent = %s"
_AFTER = """
    SELECT (SELECT revision FROM bindings WHERE agent = %(agent)s), key, body
    FROM binding WHERE agent = %(agent)s AND revision > %(revision)s ORDER BY revision, key
"""
_FIRST = "INSERT INTO bindings (agent, revision) VALUES (%s, 0) ON CONFLICT (agent) DO NOTHING"
_CHANGE = """
    WITH head AS (
        UPDATE bindings SET revision = revision + 1 WHERE agent = %(agent)s AND revision = %(seen)s RETURNING revision
    )
    INSERT INTO binding (agent, key, body, revision, stamp)
    SELECT %(agent)s, changed.key, changed.body, head.revision, %(stamp)s
    FROM head, unnest(%(keys)s::bytea[], %(bodies)s::bytea[]) AS changed (key, body)
    ON CONFLICT (agent, key)
    DO UPDATE SET body = excluded.body, revision = excluded.revision, stamp = excluded.stamp
    RETURNING revision
"""
_MADE = "SELECT revision FROM binding WHERE agent = %s AND revision = %s AND stamp = %s LIMIT 1"


class Changes(NamedTuple):
    """The current revision, and the bodies that changed, by key; `None` for a removed one."""

    revision: int
    changed: Mapping[str, bytes | None]


class BindingTable:
    """The bindings of one agent."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    def revision(self) -> int:
        """Return the current revision: the number of changes so far."""
        found = self._database.query(_REVISION, (self._agent,), again=True)
        return found[0][0] if found else 0

    def changes_since(self, revision: int) -> Changes:
        """Return what changed after a revision."""
        rows = self._database.query(_AFTER, {"agent": self._agent, "revision": revision}, again=True)
        return Changes(rows[0][0] if rows else revision, {_text(key): body for _, key, body in rows})

    def change(self, seen: int, changes: Mapping[str, bytes | None]) -> int | None:
        """Change bodies if the revision is still `seen`. Return the new revision, or `None` if it was not."""
        if seen == 0:
            self._database.query(_FIRST, (self._agent,), again=True)
        stamp = uuid.uuid4().bytes
        values = {
            "agent": self._agent,
            "seen": seen,
            "stamp": stamp,
            "keys": [_bytes(key) for key in changes],
            "bodies": list(changes.values()),
        }
        try:
            rows = self._database.query(_CHANGE, values)
        except OutcomeUnknown:
            rows = self._database.query(_MADE, (self._agent, seen + 1, stamp), again=True)
            if not rows and self.revision() > seen + 1:
                raise  # the same keys may have been changed again since, so the outcome stays unknown
        return rows[0][0] if rows else None


def _bytes(key: str) -> bytes:
    """Return a key as it is stored; it may contain lone surrogates."""
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
