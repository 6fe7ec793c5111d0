"""Putting a new journal in the place of another, and taking in a file of bytes as a journal; each in one transaction.

A rewritten journal is a new file: whoever reads the old one reads on, and whoever would append to it notices (`epoch`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from psycopg.types.numeric import Int8

from sessile.errors import SessionExists, storage_failures
from sessile.storage.base import Filesystem
from sessile.storage.postgres import writing
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.links import Links
from sessile.storage.postgres.names import NOW
from sessile.storage.postgres.rows import Tile, Tiler
from sessile.storage.postgres.writing import Held

_CHUNK = 1 << 20
_NEW = f"INSERT INTO file (journal, size, modified, links) VALUES (true, 0, {NOW}, 1) RETURNING id"
_RETIRE = f"""
    UPDATE file SET epoch = epoch + 1, links = links - %b, unnamed = CASE WHEN links = %b THEN {NOW} END WHERE id = %b"""


class Replacement(NamedTuple):
    """The journal that has the name now, and by how many bytes the place has moved behind which everything is news."""

    file: int
    shift: int


def new_file(cursor: Cursor) -> int:
    """An empty journal that has no name yet."""
    ((file,),) = cursor.execute(_NEW).fetchall()
    return int(file)


def replaced(
    cursor: Cursor, held: Held, path: str, edit: Callable[[bytes], bytes | None], keep: str | None, seen: int
) -> Replacement:
    """Give the name to a journal with the edited lines; the old one gets the name `keep`, or none."""
    file = new_file(cursor)
    tiler = Tiler(path, Links(whole=True))
    shift = 0
    for rows in writing.batches(writing.executing(cursor), held.file, held.size):
        tiles: list[Tile] = []
        for start, body, gap in rows:
            new = edit(body) if body else None
            if new is not None and start < seen:
                shift += len(new) - len(body)
            tiles += tiler.feed((body if new is None else new) + (b"\n" if gap is None else gap))
        writing.insert(cursor, file, tiles)
    writing.insert(cursor, file, tiler.finish())
    writing.grow(cursor, file, tiler)
    cursor.execute("UPDATE name SET file = %b WHERE folder = %b AND base = %b", (Int8(file), *writing.name_of(path)))
    if keep is not None and not writing.give_name(cursor, keep, held.file):
        raise SessionExists(path=keep, hint="something has that name already; nothing was changed")
    lost = Int8(0 if keep is not None else 1)
    cursor.execute(_RETIRE, (lost, lost, Int8(held.file)))
    return Replacement(file, shift)


def take_in(database: Database, fs: Filesystem, path: str) -> None:
    """Make a file of bytes a journal, if it is none yet; raises NotASession if it cannot be one."""

    def work(cursor: Cursor) -> None:
        held = writing.hold(cursor, writing.name_of(path))
        if held is not None and not held.journal:
            writing.fill(cursor, held.file, Tiler(path, Links(whole=True)), _chunks(fs, path))
            cursor.execute("DELETE FROM piece WHERE file = %b", (Int8(held.file),))

    database.transact(work, again=True)


def _chunks(fs: Filesystem, path: str) -> Iterator[bytes]:
    with storage_failures(path, "read the file"):
        fd = fs.open(path, os.O_RDONLY)
        try:
            offset = 0
            while chunk := fs.read(fd, _CHUNK, offset):
                yield chunk
                offset += len(chunk)
        finally:
            fs.close(fd)
