"""The statements that put rows into a journal: one for an append by itself, and those of a transaction that holds the journal.

A journal is held by locking its row of `file`. Everything here but `append` needs that lock, or a journal that nobody
else knows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from psycopg.types.numeric import Int4, Int8

from sessile.errors import storage_failures
from sessile.storage.postgres.database import Cursor
from sessile.storage.postgres.links import Link, link_of
from sessile.storage.postgres.names import NOW, PARENT, placed
from sessile.storage.postgres.paths import Key, key
from sessile.storage.postgres.rows import COLUMNS, Tile, Tiler, is_counted, key_of

FEW = 64  # rows that are inserted by one statement; more of them are copied
_PIECE = 4 << 20  # bytes that are read at once

_INSERTED = f"INSERT INTO entry (file, {', '.join(COLUMNS)})"
_HEAD = f"""
    WITH head AS (
        UPDATE file SET size = size + %b, rows = rows + %b, entries = entries + %b, modified = {NOW}
        WHERE id = %b AND size = %b AND epoch = %b AND links > 0
            AND EXISTS (SELECT 1 FROM name WHERE folder = %b AND base = %b AND file = %b)
        RETURNING id)"""
_APPEND_ONE = f"""{_HEAD}
    {_INSERTED} SELECT id, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b FROM head RETURNING start"""
_ARRAYS = (
    "%b::bigint[], %b::bytea[], %b::bigint[], %b::bytea[], %b::integer[],"
    " %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[]"
)
_APPEND_FEW = f"{_HEAD} {_INSERTED} SELECT head.id, new.* FROM head, unnest({_ARRAYS}) AS new RETURNING start"
_INSERT_FEW = f"{_INSERTED} SELECT %b, new.* FROM unnest({_ARRAYS}) AS new"
_COPY = f"COPY entry (file, {', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_TYPES = ("int8", "int8", "bytea", "int8", "bytea", "int4", "int8", "int8", "bytea", "bytea", "bytea")

_HOLD = """
    SELECT f.id, f.journal, f.size, f.epoch FROM name n JOIN file f ON f.id = n.file
    WHERE n.folder = %b AND n.base = %b FOR UPDATE OF f"""
_NAME = "SELECT file FROM name WHERE folder = %b AND base = %b"
_GIVE = f"""
    WITH {PARENT}
    INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, %(file)s FROM parent
    ON CONFLICT DO NOTHING RETURNING file"""
_LINKS = """
    SELECT wanted.id, e.start, e.state, e.cut, s.after FROM unnest(%b::bytea[]) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT start, state, cut FROM entry WHERE file = %b AND id = wanted.id ORDER BY copy DESC LIMIT 1) AS e
    LEFT JOIN entry AS s ON s.file = %b AND s.start = e.state"""
_BATCH = "SELECT start, body, gap FROM entry WHERE file = %b AND start >= %b AND start < %b ORDER BY start"
_AT = "SELECT start, body FROM entry WHERE file = %b AND start = ANY(%b::bigint[])"
_NAMED = "SELECT id, body FROM entry WHERE file = %b AND id = ANY(%b::bytea[]) ORDER BY copy"
_GROWN = f"""
    UPDATE file SET size = %b, rows = rows + %b, entries = entries + %b, modified = {NOW}, journal = true,
        damaged = damaged OR %b, doubled = doubled OR %b, parentless = parentless OR %b WHERE id = %b"""


Execute = Callable[[Any, Any], list[tuple[Any, ...]]]
"""Runs a statement with its parameters, in a transaction or by itself, and gives its rows."""


class Held(NamedTuple):
    """A file whose row is locked."""

    file: int
    journal: bool
    size: int
    epoch: int


def name_of(path: str) -> Key:
    """Where a path stands in the table of names."""
    with storage_failures(path, "look for the session"):
        return key(path)


def give_name(cursor: Cursor, path: str, file: int) -> bool:
    """Give a file a name that nothing has yet, in a folder that is there; whether that could be done."""
    return cursor.execute(_GIVE, {**placed(path), "file": file}).fetchone() is not None


def executing(cursor: Cursor) -> Execute:
    """Statements of a transaction."""
    return lambda sql, params: cursor.execute(sql, params).fetchall()


def hold(cursor: Cursor, name: Key, *, rename: bool = False) -> Held | None:
    """Lock the file that has this name now, to the end of the transaction; with `rename` the name as well, which comes first."""
    if rename:
        cursor.execute(f"{_NAME} FOR UPDATE", name)
    while True:
        found = cursor.execute(_HOLD, name).fetchone()
        if found is None:
            return None
        # Whoever held it before us may have given the name away: only a look behind the lock tells.
        if cursor.execute(_NAME, name).fetchone() == (found[0],):
            return Held._make(found)


def append(execute: Execute, held: Held, name: Key, tiles: Sequence[Tile], size: int) -> bool:
    """Append a few rows if the journal still has its name and is as long as it was; whether that was so."""
    file = Int8(held.file)
    grown = (Int8(size - held.size), Int8(len(tiles)), Int8(sum(map(is_counted, tiles))))
    head = (*grown, file, Int8(held.size), Int8(held.epoch), *name, file)
    if len(tiles) == 1:
        return bool(execute(_APPEND_ONE, (*head, *_values(tiles[0]))))
    return bool(execute(_APPEND_FEW, (*head, *_arrays(tiles))))


def insert(cursor: Cursor, file: int, tiles: Iterable[Tile]) -> None:
    """Insert rows: a few by one statement, many by copying them."""
    rows = iter(tiles)
    batch = list(islice(rows, FEW))
    if len(batch) == FEW:
        with cursor.copy(_COPY) as copy:
            copy.set_types(_TYPES)
            for tile in chain(batch, rows):
                copy.write_row((file, *tile))
    elif batch:
        cursor.execute(_INSERT_FEW, (Int8(file), *_arrays(batch)))


def grow(cursor: Cursor, file: int, tiler: Tiler) -> None:
    """Note in the row of the file what was inserted into it."""
    counts = (Int8(tiler.size), Int8(tiler.rows), Int8(tiler.entries))
    noted = (*counts, tiler.damaged, tiler.doubled, tiler.parentless, Int8(file))
    cursor.execute(_GROWN, noted)


def fill(cursor: Cursor, file: int, tiler: Tiler, content: Iterable[bytes]) -> None:
    """Make an empty file a journal with that content."""

    def tiles() -> Iterator[Tile]:
        for data in content:
            yield from tiler.feed(data)
        yield from tiler.finish()

    insert(cursor, file, tiles())
    grow(cursor, file, tiler)


def end_with_newline(cursor: Cursor, held: Held) -> Held:
    """Close a last line that has no newline yet."""
    cursor.execute("SELECT start, gap FROM entry WHERE file = %b ORDER BY start DESC LIMIT 1", (Int8(held.file),))
    ((start, gap),) = cursor.fetchall()
    if gap is None or gap.endswith(b"\n"):
        return held
    closed = gap + b"\n" if gap else None
    cursor.execute("UPDATE entry SET gap = %b WHERE file = %b AND start = %b", (closed, Int8(held.file), Int8(start)))
    cursor.execute("UPDATE file SET size = size + 1 WHERE id = %b", (Int8(held.file),))
    return held._replace(size=held.size + 1)


def is_there(execute: Execute, held: Held, before: Held, tiles: Sequence[Tile]) -> bool:
    """Whether rows that were sent to a journal of the size `before` are in it, or in the one that has its name now."""
    if held.file == before.file:
        starts = [Int8(tile.start) for tile in tiles]
        at: dict[int, bytes] = dict(execute(_AT, (Int8(held.file), starts)))
        return all(at.get(tile.start) == tile.body for tile in tiles)
    entries = {tile.id: tile.body for tile in tiles if tile.id is not None}
    found: dict[bytes, bytes] = dict(execute(_NAMED, (Int8(held.file), list(entries))))
    return bool(entries) and found == entries


def links_to(execute: Execute, file: int, ids: Iterable[str]) -> dict[str, Link]:
    """What is known of entries that others hang from; those that are not there are left out."""
    keys = {key_of(entry_id): entry_id for entry_id in ids}
    found = execute(_LINKS, (list(keys), Int8(file), Int8(file)))
    return {keys[key]: link_of(*link) for key, *link in found}


def batches(execute: Execute, file: int, end: int) -> Iterator[list[tuple[int, bytes, bytes | None]]]:
    """The rows of a journal up to `end` as start, body and gap, some megabytes at a time."""
    start = 0
    while start < end:
        rows = execute(_BATCH, (Int8(file), Int8(start), Int8(min(end, start + _PIECE))))
        if not rows:
            return  # the file is gone
        yield rows
        last, body, gap = rows[-1]
        start = last + len(body) + (1 if gap is None else len(gap))


def _values(tile: Tile) -> tuple[Any, ...]:
    start, key, copy, parent, flags, state, cut, after, body, gap = tile
    return (
        Int8(start), key, Int8(copy), parent, Int4(flags),
        None if state is None else Int8(state), Int8(cut), after, body, gap,
    )  # fmt: skip


def _arrays(tiles: Sequence[Tile]) -> tuple[Any, ...]:
    return tuple(map(list, zip(*map(_values, tiles), strict=True)))
