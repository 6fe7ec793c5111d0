"""The table of the catalog in a database: what differs from the files, and how its rows change.

Rules:

- What differs is one query, whatever the number of sessions: names and files on one side, rows on the other.
- Every change of a row names the revision that it was made from, and changes nothing if the row has another one by then:
  of several processes that read the same lines one writes down what they say, with their words, in one statement.
- A row can be claimed for a while, so that two processes that catch up at once share the work. A claim is a courtesy: who
  does not keep it has worked in vain, and nothing more.

Names of sessions are judged by `walk`; here only what cannot be one is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.storage.counting import Reading
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.listing import within
from sessile.storage.postgres.schema_catalog import COUNTED, FILE, GLANCE, PLACE
from sessile.storage.walk import INODES, Found, walk

CLAIM = 15_000  # milliseconds

_PLACE = "covered, fit, state, indexed, passages, header_at, version, header_title, format"
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_SPELLED = "n.folder || '\\x2f'::bytea || n.base"
_NEWS = f"""
    WITH files AS (
        SELECT {_SPELLED} AS path, f.id, f.size, f.modified, f.journal
        FROM name n JOIN file f ON f.id = n.file
        WHERE ({{folders}} OR n.folder = ANY(%(places)s::bytea[])) AND (position('.jsonl'::bytea IN n.base) > 0
            OR (n.folder = ANY(%(places)s::bytea[])
                AND substring(n.base from octet_length(n.base) - 4) = '.json'::bytea))),
    rows AS (SELECT * FROM catalog WHERE {{rows}})
    SELECT files.path, files.id, files.size, files.modified, files.journal,
        rows.path, rows.number, rows.revision, rows.sub_agent, rows.size, rows.inode, rows.{", rows.".join(_PLACE.split(", "))}
    FROM files FULL JOIN rows ON rows.path = files.path
    WHERE files.path IS NULL OR rows.path IS NULL OR rows.size IS DISTINCT FROM files.size
        OR rows.mtime_ns <> files.modified OR rows.inode <> files.id"""
_AROUND = """
    SELECT n.folder, n.base, f.id, f.size, f.modified FROM name n LEFT JOIN file f ON f.id = n.file
    WHERE n.folder = ANY(%s::bytea[])"""


class File(NamedTuple):
    """A session file as it is now."""

    path: str
    id: int
    size: int
    modified: int
    journal: bool  # else its bytes lie in pieces


class Known(NamedTuple):
    """What the catalog has of a session file."""

    number: int
    revision: int
    sub_agent: bool
    inode: int
    reading: Reading  # with the size that the file had


class News(NamedTuple):
    """What differs: files with what was known of them, and what is known of files that are gone."""

    files: list[tuple[File, Known | None]]
    sub_agents: set[str]
    gone: list[Known]


class Waiting(NamedTuple):
    """A session that is to be read on."""

    number: int
    size: int  # bytes that nobody has read


class Place(NamedTuple):
    """A session that we read on, and the file in which it lies."""

    revision: int
    inode: int
    reading: Reading


class Totals(NamedTuple):
    """How many sessions there are, not counted, and not indexed."""

    files: int
    uncounted: int
    unindexed: int


class _Status(msgspec.Struct):
    st_ino: int = 0
    st_size: int = 0
    st_mtime_ns: int = 0


class _Names:
    """Some folders of the database, as a walk looks at them; others are empty."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes, int | None, int, int]]) -> None:
        self._names: dict[str, list[str]] = {}
        self._files: dict[str, _Status] = {}
        for folder, base, file, size, modified in rows:
            self._names.setdefault(_path(folder), []).append(_path(base))
            if file is not None:
                self._files[f"{_path(folder)}/{_path(base)}"] = _Status(file, size, modified)

    def names(self, path: str) -> list[str]:
        if path in self._files:
            raise NotADirectoryError(path)
        return sorted(self._names.get(path, ()))

    def lstat(self, path: str) -> _Status:
        return self._files.get(path) or _Status()


class CatalogTable:
    """The rows of the catalog below some places."""

    def __init__(self, database: Database, places: Sequence[str]) -> None:
        self._database = database
        self._places = places
        self._rows, self._values = within(places)

    # -- what differs

    def news(self) -> News:
        """What differs from the files, those changed longest ago first, so that newer ones get higher numbers."""
        folders, values = within(self._places, "folder", column="n.folder")
        values |= self._values | {"places": [_bytes(place.rstrip("/")) for place in self._places]}
        rows = self._database.query(_NEWS.format(folders=folders, rows=self._rows), values, again=True)
        files = [(_file(row), _known(row)) for row in rows if row[0] is not None]
        gone = [known for row in rows if row[0] is None and (known := _known(row)) is not None]
        if all(known is not None for _, known in files) and not gone:
            found = Found({}, {file.path for file, known in files if known is not None and known.sub_agent})
        else:
            found = self._walk(files, gone)
            gone += [known for file, known in files if known is not None and file.path not in found.marks]
            files = [each for each in files if each[0].path in found.marks]
        files.sort(key=lambda each: (each[0].modified, each[0].path))
        return News(files, found.sub_agents, gone)

    def _walk(self, files: Sequence[tuple[File, Known | None]], gone: Sequence[Known]) -> Found:
        """The sessions in the folders in which something has come or gone."""
        paths = [file.path for file, _ in files] + [_path(known.reading.path) for known in gone]
        folders: set[str] = set()
        for path in paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        rows = self._database.query(_AROUND, ([_bytes(folder) for folder in folders],), again=True)
        return walk(_Names(rows), self._places, [])

    # -- rows as looked at

    def forget(self, cursor: Cursor, known: Sequence[Known]) -> None:
        """Drop rows and their words, unless somebody has changed them since."""
        if not known:
            return
        cursor.execute(
            "DELETE FROM catalog c USING unnest(%s::bigint[], %s::bigint[]) AS w (number, revision)"
            " WHERE c.number = w.number AND c.revision = w.revision RETURNING c.number",
            ([each.number for each in known], [each.revision for each in known]),
        )
        numbers = [number for (number,) in cursor.fetchall()]
        cursor.execute("DELETE FROM passage WHERE number = ANY(%s::bigint[])", (numbers,))

    def insert(self, cursor: Cursor, rows: Sequence[tuple[Any, ...]]) -> dict[str, int]:
        """Add rows of files that have none; the numbers that they got, by path. Who came later gets none."""
        if not rows:
            return {}
        columns = FILE | GLANCE
        cursor.execute(
            f"INSERT INTO catalog ({', '.join(columns)}) SELECT {', '.join(columns)} FROM"
            f" {_unnest(columns, ' WITH ORDINALITY')} ORDER BY place"
            " ON CONFLICT (path) DO NOTHING RETURNING path, number",
            _arrays(rows),
        )
        return {_path(path): number for path, number in cursor.fetchall()}

    def change(self, cursor: Cursor, rows: Sequence[tuple[Any, ...]]) -> None:
        """Tell rows, given with number and revision, what their grown files say at their ends; they are to be read on."""
        if not rows:
            return
        columns = FILE | GLANCE
        cursor.execute(
            f"UPDATE catalog c SET {', '.join(f'{name} = w.{name}' for name in columns)}, counted = false,"
            f" searchable = false, {', '.join(f'{name} = NULL' for name in COUNTED)}, revision = c.revision + 1"
            f" FROM {_unnest({'number': 'bigint', 'revision': 'bigint'} | columns)}"
            " WHERE c.number = w.number AND c.revision = w.revision",
            _arrays(rows),
        )

    # -- reading on

    def waiting(self, index: bool) -> list[Waiting]:
        """The sessions that are not counted, or not indexed, newest first."""
        start = "least(covered, indexed)" if index else "covered"
        select = (
            f"SELECT number, size - {start} FROM catalog WHERE format IS NOT NULL"
            f" AND NOT {_done(index)} AND {self._rows} ORDER BY number DESC"
        )
        return [Waiting(*row) for row in self._database.query(select, self._values, again=True)]

    def claim(self, numbers: Sequence[int], index: bool, *, free: bool) -> list[Place]:
        """Claim the sessions of these that still wait; with `free`, only those that nobody else has claimed."""
        rows = self._database.query(
            f"UPDATE catalog SET claimed = {_NOW} + {CLAIM} WHERE number = ANY(%s::bigint[])"
            f" AND NOT {_done(index)} {f'AND claimed < {_NOW}' if free else ''}"
            f" RETURNING revision, inode, number, path, size, {_PLACE}",
            (list(numbers),),
            again=True,
        )
        return [Place(revision, inode, Reading(*reading)) for revision, inode, *reading in rows]

    def tell(self, rows: Sequence[tuple[Any, ...]], words: Sequence[tuple[Any, ...]]) -> set[int]:
        """Write down how far sessions are read, what they say, and their words, unless others were faster.

        `rows` have number, revision, whether they are counted and searchable, place, title, first text, last role and status,
        the same folded, and counts. The numbers of the rows that were written.
        """
        columns = _TOLD
        kept = {*COUNTED, *_SAID}  # what is shown stays as it is until all lines are read
        sets = [
            f"{name} = CASE WHEN w.counted THEN w.{name} ELSE c.{name} END" if name in kept else f"{name} = w.{name}"
            for name in (*PLACE, "searchable", *kept)
        ]
        saved = (
            f"UPDATE catalog c SET {', '.join(sets)}, counted = c.counted OR w.counted, revision = c.revision + 1,"
            f" claimed = 0 FROM {_unnest(columns)}"
            " WHERE c.number = w.number AND c.revision = w.revision RETURNING c.number"
        )
        written = (
            "INSERT INTO passage (number, start, field, length, words, vector)"
            " SELECT number, start, field, length, words,"
            " CASE WHEN terms IS NOT NULL THEN array_to_tsvector(string_to_array(terms, ' ')) END"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[])"
            " AS p (number, start, field, length, words, terms) JOIN saved USING (number)"
        )
        arrays = [*_arrays(rows), *(_arrays(words) if words else [[]] * 6)]
        found = self._database.query(
            f"WITH saved AS ({saved}), written AS ({written}) SELECT number FROM saved", arrays, again=True
        )
        return {number for (number,) in found}

    def totals(self) -> Totals:
        """What there is, and what is still to be read."""
        (found,) = self._database.query(
            "SELECT count(*), count(*) FILTER (WHERE format IS NOT NULL AND NOT counted),"
            f" count(*) FILTER (WHERE format IS NOT NULL AND NOT searchable) FROM catalog WHERE {self._rows}",
            self._values,
            again=True,
        )
        return Totals(*found)


_SAID = ("title", "first_text", "last_role", "last_status", "folded_title", "folded_text")
_TOLD: Mapping[str, str] = {
    "number": "bigint",
    "revision": "bigint",
    "counted": "boolean",
    "searchable": "boolean",
    **PLACE,
    **{name: GLANCE[name] for name in _SAID},
    **COUNTED,
}


def _done(index: bool) -> str:
    return "searchable" if index else "counted"


def _unnest(columns: Mapping[str, str], numbered: str = "") -> str:
    """Arrays as a table; with numbers it has one more column, `place`."""
    arrays = ", ".join(f"%s::{kind.partition(' COLLATE')[0]}[]" for kind in columns.values())
    names = [*columns, "place"] if numbered else [*columns]
    return f"unnest({arrays}){numbered} AS w ({', '.join(names)})"


def _arrays(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _file(row: Sequence[Any]) -> File:
    path, file, size, modified, journal = row[:5]
    return File(_path(path), file & INODES, size, modified, journal)


def _known(row: Sequence[Any]) -> Known | None:
    path, number, revision, sub_agent, size, inode, *place = row[5:]
    if path is None:
        return None
    return Known(number, revision, sub_agent, inode, Reading(number, path, -1 if size is None else size, *place))


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _path(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
