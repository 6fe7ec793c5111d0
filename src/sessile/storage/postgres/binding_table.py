"""The bindings of agents in a database: texts by key, and a revision that every change raises by one.

Rules: a change is one statement, made only if nobody else changed anything since the revision that it was decided on. A reader
asks for what changed behind the revision that it knows. What is removed stays as a row without a body, so that every reader
hears of it. If the connection breaks during a change, it is looked up whether it was made.

What a body means is not known here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from sessile.storage.postgres.database import Database, OutcomeUnknown

_REVISION = "SELECT revision FROM bindings WHERE agent = %s"
_BEHIND = """
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


class Behind(NamedTuple):
    """What changed behind a revision: the revision now, and the bodies by key, `None` for what was removed."""

    revision: int
    changed: Mapping[str, bytes | None]


class BindingTable:
    """The bindings of one agent."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    def revision(self) -> int:
        """How often the bindings were changed."""
        found = self._database.query(_REVISION, (self._agent,), again=True)
        return found[0][0] if found else 0

    def behind(self, revision: int) -> Behind:
        """What changed since a revision."""
        rows = self._database.query(_BEHIND, {"agent": self._agent, "revision": revision}, again=True)
        return Behind(rows[0][0] if rows else revision, {_text(key): body for _, key, body in rows})

    def change(self, seen: int, changes: Mapping[str, bytes | None]) -> int | None:
        """Change some bodies if the revision is still what was seen; the new revision, `None` if it was not."""
        if seen == 0:
            self._database.query(_FIRST, (self._agent,), again=True)
        stamp = uuid.uuid4().bytes
        told = {
            "agent": self._agent,
            "seen": seen,
            "stamp": stamp,
            "keys": [_bytes(key) for key in changes],
            "bodies": list(changes.values()),
        }
        try:
            rows = self._database.query(_CHANGE, told)
        except OutcomeUnknown:
            rows = self._database.query(_MADE, (self._agent, seen + 1, stamp), again=True)
            if not rows and self.revision() > seen + 1:
                raise  # others have changed the same keys since, so nobody can tell
        return rows[0][0] if rows else None


def _bytes(key: str) -> bytes:
    """A key as it is stored: one may hold anything, also half an emoji."""
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
