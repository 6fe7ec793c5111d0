"""What is in the files of a database.

Rules: a file lies in pieces; a missing piece, and what lies behind the end of a short one, are zeros. The piece in which a
file ends is always there up to that end, so that appending is one statement which needs not know how long the file is. Every
change takes the row of the file first, so changes of one file come one after the other. A journal reads as its rows make it
up, and is changed through nothing here.
"""

from __future__ import annotations

import errno
from typing import Any

from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.names import NOW, Found
from sessile.storage.postgres.paths import failure

PIECE = 1 << 18
_MOST_AT_ONCE = 1 << 22  # bytes that one write takes

_TOUCH = f"modified = {NOW} WHERE id = %(file)s AND NOT journal"
_APPEND = f"""
    WITH head AS (
        UPDATE file SET size = size + %(length)s, {_TOUCH} RETURNING id, size - %(length)s AS at)
    INSERT INTO piece (file, number, data)
    SELECT head.id, number, substring(
        %(data)s::bytea FROM (greatest(at, number * {PIECE}) - at + 1)::int
        FOR (least(at + %(length)s, (number + 1) * {PIECE}) - greatest(at, number * {PIECE}))::int)
    FROM head CROSS JOIN LATERAL generate_series(at / {PIECE}, (at + %(length)s - 1) / {PIECE}) AS number
    ON CONFLICT (file, number) DO UPDATE SET data = piece.data || excluded.data
    RETURNING number"""
# In the first piece `skipped` bytes stay in front; a piece that is shorter than that is filled up with zeros.
_PUT = f"""
    WITH head AS (
        UPDATE file SET size = greatest(size, %(at)s::bigint + %(length)s), {_TOUCH} RETURNING id)
    INSERT INTO piece (file, number, data)
    SELECT head.id, asked.number, asked.data FROM head, unnest(%(numbers)s::bigint[], %(parts)s::bytea[]) AS asked (number, data)
    ON CONFLICT (file, number) DO UPDATE SET data =
        CASE WHEN piece.number = %(first)s::bigint AND %(skipped)s::int > 0 THEN
            substring(piece.data || %(zeros)s::bytea FROM 1 FOR %(skipped)s::int)
            || substring(excluded.data FROM %(skipped)s::int + 1)
        ELSE excluded.data END
        || substring(piece.data FROM octet_length(excluded.data) + 1)
    RETURNING number"""
_CUT = f"""
    WITH head AS (UPDATE file SET size = %(size)s, {_TOUCH} RETURNING id),
    gone AS (DELETE FROM piece USING head WHERE piece.file = head.id AND piece.number >= %(behind)s RETURNING number)
    SELECT id FROM head"""
_END = """
    INSERT INTO piece (file, number, data) VALUES (%(file)s, %(last)s, %(zeros)s)
    ON CONFLICT (file, number) DO UPDATE
    SET data = substring(piece.data || %(zeros)s FROM 1 FOR octet_length(%(zeros)s))"""
# Both give the size and, where there are any, places in the file and what lies there.
_READ = f"""
    SELECT file.size, piece.number * {PIECE}, piece.data
    FROM file LEFT JOIN piece ON piece.file = file.id AND piece.number BETWEEN %(begin)s / {PIECE} AND %(end)s / {PIECE}
    WHERE file.id = %(file)s AND NOT journal"""
_READ_JOURNAL = r"""
    SELECT file.size, start, body || coalesce(gap, '\x0a'::bytea)
    FROM file LEFT JOIN entry ON entry.file = file.id AND start <= %(end)s
        AND start >= coalesce((SELECT max(start) FROM entry WHERE file = %(file)s AND start <= %(begin)s), 0)
    WHERE file.id = %(file)s AND journal"""
_STATUS = "SELECT id, journal, size, modified, links FROM file WHERE id = %s"
_MODIFIED = "UPDATE file SET modified = %s WHERE id = %s"


class Contents:
    """The bytes of files, by their numbers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self, file: int) -> Found:
        """What is known of a file."""
        found = self._database.query(_STATUS, (file,), again=True)
        if not found:
            raise failure(errno.ESTALE)
        return Found(*found[0])

    def read(self, file: int, size: int, offset: int, *, journal: bool) -> bytes:
        """At most `size` bytes from `offset` of a file that was a journal, or none, when it was last looked at."""
        asked = {"file": file, "begin": offset, "end": offset + max(size, 1) - 1}
        rows = self._database.query(_READ_JOURNAL if journal else _READ, asked, again=True)
        if not rows:  # it has become a journal meanwhile, or has gone
            rows = self._database.query(_READ if journal else _READ_JOURNAL, asked, again=True)
        if not rows:
            raise failure(errno.ESTALE)
        content = bytearray(max(min(size, rows[0][0] - offset), 0))
        for _, begin, data in rows:
            if begin is not None:
                _overlay(content, begin - offset, data)
        return bytes(content)

    def append(self, file: int, data: bytes) -> int:
        """Write at the end as it is now; how much was written."""
        data = data[:_MOST_AT_ONCE]
        done = self._database.query(_APPEND, {"file": file, "data": data, "length": len(data)})
        if not done:
            raise self._unwritable(file)
        return len(data)

    def put(self, file: int, data: bytes, at: int) -> int:
        """Write at a place; how much was written."""
        data = data[:_MOST_AT_ONCE]
        first, skipped = divmod(at, PIECE)
        parts = [bytes(skipped) + data[: PIECE - skipped]]
        parts.extend(data[begin : begin + PIECE] for begin in range(PIECE - skipped, len(data), PIECE))
        arguments: dict[str, Any] = {
            "file": file,
            "at": at,
            "length": len(data),
            "first": first,
            "skipped": skipped,
            "zeros": bytes(skipped),
            "numbers": list(range(first, first + len(parts))),
            "parts": parts,
        }
        if not self._database.query(_PUT, arguments, again=True):
            raise self._unwritable(file)
        return len(data)

    def resize(self, file: int, size: int) -> None:
        """Cut or extend with zeros."""
        last, rest = divmod(size, PIECE)
        arguments = {"file": file, "size": size, "behind": last + (rest > 0), "last": last, "zeros": bytes(rest)}

        def resize(cursor: Cursor) -> bool:
            if not cursor.execute(_CUT, arguments).fetchone():
                return False
            cursor.execute(_END, arguments)
            return True

        # A file that ends with a piece has no last one to cut or to fill up.
        done = (
            self._database.transact(resize, again=True) if rest else self._database.query(_CUT, arguments, again=True)
        )
        if not done:
            raise self._unwritable(file)

    def set_modified(self, file: int, nanoseconds: int) -> None:
        """Give a file another time of modification."""
        self._database.query(_MODIFIED, (nanoseconds, file), again=True)

    def _unwritable(self, file: int) -> OSError:
        return failure(errno.EROFS if self.status(file).journal else errno.ESTALE)


def _overlay(content: bytearray, at: int, data: bytes) -> None:
    """Put that part of `data` into `content` which falls into it, if it begins `at` there."""
    begin, end = max(at, 0), min(at + len(data), len(content))
    if begin < end:
        content[begin:end] = memoryview(data)[begin - at : end - at]
