"""The tree of names in a database: what a path means, and making and removing names.

Rules: it fails as Linux does, with the same numbers. Making a name holds its folder in place until it is made, so that no
name is ever left without a folder; whoever removes or moves a folder waits for that. Nothing is asked twice unless something
is wrong: then a second look tells what. If even that finds nothing wrong, somebody was faster, and it is tried again.

It does not know what is in a file, nor how names move: that is `renaming`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.paths import ROOT, decoded, failure, key, keys

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
"""The time of the database in nanoseconds."""

AHEAD = 65536  # bytes that opening a file brings along

_LOOK = """
    SELECT name.folder IS NOT NULL, name.file, journal, size, modified, links, {content}
    FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS asked (folder, base, depth)
    LEFT JOIN name ON name.folder = asked.folder AND name.base = asked.base
    LEFT JOIN file ON file.id = name.file
    {piece}
    ORDER BY depth"""
_STATUS = _LOOK.format(content="NULL", piece="")
_CONTENT = _LOOK.format(
    content=f"CASE WHEN size = 0 THEN '' ELSE substring(piece.data FROM 1 FOR {AHEAD}) END",
    piece="LEFT JOIN piece ON piece.file = name.file AND piece.number = 0 AND NOT journal",
)

PARENT = """
    parent AS (
        SELECT folder AS above FROM name WHERE folder = %(parent_folder)s AND base = %(parent_base)s AND file IS NULL
        FOR KEY SHARE)"""
"""The folder of a new name, held in place to the end of the transaction."""

MAKE_FOLDER = f"""
    WITH {PARENT}
    INSERT INTO name (folder, base) SELECT %(folder)s::bytea, %(base)s::bytea FROM parent
    ON CONFLICT DO NOTHING RETURNING base"""
_MAKE_FILE = f"""
    WITH {PARENT}, named AS (
        INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, nextval('file_number') FROM parent
        ON CONFLICT DO NOTHING RETURNING file)
    INSERT INTO file (id, journal, size, modified, links) SELECT file, false, 0, {NOW}, 1 FROM named
    RETURNING id, journal, size, modified, links, NULL::bytea"""
_LINK = f"""
    WITH {PARENT}, source AS (
        SELECT file FROM name WHERE folder = %(source_folder)s AND base = %(source_base)s AND file IS NOT NULL
        FOR KEY SHARE),
    named AS (
        INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, source.file FROM source, parent
        ON CONFLICT DO NOTHING RETURNING file)
    UPDATE file SET links = links + 1, unnamed = NULL FROM named WHERE file.id = named.file RETURNING file.id"""
_UNLINK = f"""
    WITH gone AS (DELETE FROM name WHERE folder = %s AND base = %s AND file IS NOT NULL RETURNING file)
    UPDATE file SET links = links - 1, unnamed = CASE WHEN links = 1 THEN {NOW} END FROM gone WHERE file.id = gone.file
    RETURNING links"""
_NAMES = "SELECT base FROM name WHERE folder = %s"
_HOLD = "SELECT file FROM name WHERE folder = %s AND base = %s FOR UPDATE"
_REMOVE_FOLDER = """
    DELETE FROM name WHERE folder = %(folder)s AND base = %(base)s
    AND NOT EXISTS (SELECT 1 FROM name AS inner_name WHERE inner_name.folder = %(path)s)"""


class Found(NamedTuple):
    """What a name means; without a file it is a folder. `ahead` is how the content begins, if that was asked for."""

    file: int | None
    journal: bool | None = None
    size: int | None = None
    modified: int | None = None
    links: int | None = None
    ahead: bytes | None = None


class Names:
    """The names in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, path: str, *, content: bool = False, cursor: Cursor | None = None) -> Found | None:
        """What a path means, if anything, also in a transaction; its folder must exist."""
        asked = keys(path)
        sql, arguments = (
            _CONTENT if content else _STATUS,
            ([one.folder for one in asked], [one.base for one in asked]),
        )
        if cursor is not None:
            return _meaning(cursor.execute(sql, arguments).fetchall(), path)
        return _meaning(self._database.query(sql, arguments, again=True), path)

    def existing(self, path: str, *, content: bool = False, cursor: Cursor | None = None) -> Found:
        """What a path means; ENOENT if that is nothing."""
        found = self.look(path, content=content, cursor=cursor)
        if found is None:
            raise failure(errno.ENOENT, path)
        return found

    def folder(self, path: str) -> None:
        """Make sure that a path is a folder."""
        if self.existing(path).file is not None:
            raise failure(errno.ENOTDIR, path)

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        found = self._database.query(_NAMES, (key(path).path,), again=True)
        if not found:
            self.folder(path)
        return sorted(decoded(base) for (base,) in found)

    def make_file(self, path: str) -> Found | None:
        """Make an empty file; None if the name is taken, which the second look may find to have changed."""
        made = self._database.query(_MAKE_FILE, placed(path))
        return Found(*made[0]) if made else None

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        arguments = placed(path)
        self._insist(
            lambda: bool(self._database.query(MAKE_FOLDER, arguments)),
            lambda: errno.EEXIST if self.look(path) is not None else None,
            path,
        )

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        arguments = {**placed(target), "source_folder": key(source).folder, "source_base": key(source).base}

        def wrong() -> int | None:
            found = self.existing(source)
            if self.look(target) is not None:
                return errno.EEXIST
            return errno.EPERM if found.file is None else None

        self._insist(lambda: bool(self._database.query(_LINK, arguments)), wrong, source, target)

    def unlink(self, path: str) -> bool:
        """Take a name from a file; whether it was the last."""
        links: list[int] = []

        def done() -> bool:
            links.extend(left for (left,) in self._database.query(_UNLINK, key(path)))
            return bool(links)

        self._insist(done, lambda: errno.EISDIR if self.existing(path).file is None else None, path)
        return links == [0]

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        asked = key(path)
        if asked == ROOT:
            raise failure(errno.EBUSY, path)

        def remove(cursor: Cursor) -> None:
            held = cursor.execute(_HOLD, asked).fetchone()
            if held is None or held[0] is not None:
                raise failure(errno.ENOENT if self.existing(path, cursor=cursor).file is None else errno.ENOTDIR, path)
            # Only now: who was making a name in it has made it, and nobody makes another.
            cursor.execute(_REMOVE_FOLDER, {"folder": asked.folder, "base": asked.base, "path": asked.path})
            if not cursor.rowcount:
                raise failure(errno.ENOTEMPTY, path)

        self._database.transact(remove)

    def _insist(
        self, done: Callable[[], bool], wrong: Callable[[], int | None], path: str, target: str | None = None
    ) -> None:
        """Try until it is done or something is wrong: what was in the way may have gone when one looks."""
        while not done():
            code = wrong()
            if code is not None:
                raise failure(code, path, target)


def placed(path: str) -> dict[str, Any]:
    """The arguments for a new name: where it goes, and the folder that must be there."""
    *above, asked = keys(path)
    parent = above[-1] if above else asked  # `/` is always taken
    return {
        "folder": asked.folder,
        "base": asked.base,
        "parent_folder": parent.folder,
        "parent_base": parent.base,
    }


def _meaning(rows: Sequence[tuple[Any, ...]], path: str) -> Found | None:
    *above, (there, *status) = rows
    for parent_there, file, *_ in above:
        if not parent_there:
            raise failure(errno.ENOENT, path)
        if file is not None:
            raise failure(errno.ENOTDIR, path)
    return Found(*status) if there else None
