"""The catalog of a store in a database: the same questions and answers as `storage.catalog`, shared by all nodes.

    with PostgresCatalog(fs, database, root, formats) as catalog:
        catalog.catch_up([sessions], depth="index")
        catalog.list(Filter(project="/work/app", limit=50))

Rules:

- It is a cache: appending writes nothing to it. It is compared with the files before it is asked. If its tables are gone, they
  are made again.
- Only sessions below the root are listed: the folders of other agents are on one machine, and all nodes share these tables.
  `notices` names the folders that were left out; `joined_listings` adds them.
- Finding out what has changed is one query, whatever the number of sessions. `catch_up.walk` decides which files are sessions.
- A session is unchanged if its file, size and time of modification are. A session that grew is read on from where reading
  stopped, if the bytes before that offset are still the same; after any other change it is read again, with a new number.
- The ends of files are read first, so that every row can be shown; counting and indexing follow, newest sessions first. Lines
  are counted by the code that counts files.
- Everything is done in short steps, each one statement or transaction. After an interruption any process can continue.
- Every change of a row names the revision it was made from, and does nothing if the row has another one: of several processes
  that read the same lines, one writes them down, with their words, in one statement.
- A row can be claimed for a while, so that processes that catch up at once share the work. Claims are advisory: ignoring one
  only wastes work.
- Words are those of `core.words`, as in `storage.catalog`. All terms must occur in one field of an entry; a term is a sequence of
  words, and the last word may be a prefix. A set of words finds passages; for terms of several words, their order decides.
- Hits are ranked by BM25 without the rarity of words, since all of them must occur. Text counts twice as much as thinking and
  tool input. The newer of equals is first, and the thousand newest matches come before all others, as in `storage.catalog`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import astuple
from psycopg import errors

from sessile.core.ids import blake2b
from sessile.core.statistics import Usage
from sessile.core.text import parse_timestamp
from sessile.core.words import INDEXED, Field, Query, Term, fold, passages, words_of
from sessile.errors import StorageFailure
from sessile.storage.base import NATIVE, Filesystem
from sessile.storage.catalog import CaughtUp
from sessile.storage.catalog_rows import (
    USED,
    Facets,
    Listing,
    counts_as_columns,
    facets,
    listing,
    usage,
)
from sessile.storage.catch_up import NEAR, TINY, Counting, Depth, Enough, Progress, Reading
from sessile.storage.filters import EVERYTHING, POSTGRES, Filter, SqlSelection, within
from sessile.storage.formats import Formats
from sessile.storage.head import Glance, glance
from sessile.storage.packed import is_packed, open_rows
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.schema import CATALOG_TABLES, COUNTED, DROP_CATALOG, FILE, GLANCE, PLACE
from sessile.storage.search import Beside, Candidate, Results, Searched, Searcher, read_line
from sessile.storage.walk import INODES, Found, Mark, walk

Answer = TypeVar("Answer")

_IMPORTED = "EXISTS (SELECT 1 FROM catalog own WHERE own.origin = catalog.path)"
_GONE = (errors.UndefinedTable, errors.UndefinedColumn)
# Two processes may create the same table at the same moment.
_MADE_AT_ONCE = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)


class PostgresCatalog:
    """All sessions of a database below `root`."""

    def __init__(self, fs: Filesystem, database: Database, root: str, formats: Formats) -> None:
        self._formats = formats
        self._fs = fs
        self._database = database
        self._root = root.rstrip("/")
        self._places: tuple[str, ...] = ()
        self._depth: Depth = "look"
        self.copies: dict[str, Mark] = {}  # always empty: the originals of copies are outside, so every copy has a row
        self.notices: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the database belongs to the store."""

    # -- catching up

    def catch_up(
        self,
        places: Sequence[str],
        *,
        depth: Depth = "look",
        progress: Callable[[Progress], None] | None = None,
        deadline: float | None = None,
        copies: Mapping[str, Sequence[str]] | None = None,
    ) -> CaughtUp:
        """Compare the rows below these folders with the files, and read what changed to the given depth.

        It can be interrupted at any time, and continues there the next time, here or on another node. `deadline`, a value of
        `time.monotonic`, ends counting and indexing; every session is still looked at. `copies` are folders with copies.
        """
        folders = [place.rstrip("/") for place in (*places, *(copies or ()))]
        self._places = tuple(folder for folder in folders if folder.startswith(f"{self._root}/"))
        self._depth = depth
        self.notices[:] = [
            f"the sessions in {folder} are not listed: they are not in the database"
            for folder in folders
            if folder not in self._places
        ]
        try:
            return self._catch_up(depth, progress, deadline)
        except _GONE:
            self._make_tables()
        return self._catch_up(depth, progress, deadline)

    def _catch_up(self, depth: Depth, progress: Callable[[Progress], None] | None, deadline: float | None) -> CaughtUp:
        table = CatalogTable(self._database, self._places)
        news = table.news()
        totals = table.totals()
        waits = {"look": 0, "count": totals.uncounted, "index": totals.unindexed}[depth]
        if news.files or news.gone or waits:
            work = CatchUp(self._fs, self._formats, self._database, table, progress, deadline)
            try:
                work.look(news)
                if depth != "look":
                    work.read(depth)
            except Enough:
                pass  # the rest is counted below
            totals = table.totals()
        return CaughtUp(totals.files, len(news.files), len(news.gone), totals.uncounted, totals.unindexed)

    def _make_tables(self) -> None:
        """Create the tables again after they were dropped."""

        def work(cursor: Cursor) -> None:
            for statement in (*DROP_CATALOG, *CATALOG_TABLES):
                cursor.execute(statement)

        with suppress(*_MADE_AT_ONCE):  # another process has made them
            self._database.transact(work)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Run a query; if the tables are gone, make them again and repeat it."""
        try:
            return question()
        except _GONE:
            self._make_tables()
        self._catch_up(self._depth, None, None)
        return question()

    # -- querying

    def list(self, wanted: Filter = EVERYTHING) -> Listing:
        """Return the sessions below the places of the last catch-up that a filter selects, newest first by default."""
        return self._ask(lambda: listing(self._selection(wanted)))

    def marks(self, wanted: Filter = EVERYTHING) -> Sequence[tuple[str, int | None, int]]:
        """Return path, size and time of modification of all files that a filter selects."""
        rows = self._ask(lambda: self._selection(wanted).shown("path, size, mtime_ns"))
        return [(path.decode("utf-8", "surrogateescape"), size, modified) for path, size, modified in rows]

    def facets(self, wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
        """Return the facets of what a filter selects; `folders` are lists of places by name."""
        return self.selecting(lambda selection_for: facets(selection_for, wanted, folders))

    def usage(self, wanted: Filter | None = None) -> Usage:
        """Return what the sessions that a filter selects have used, or all of them; only counted sessions have usage."""
        return self.selecting(lambda selection_for: usage(selection_for, USED if wanted is None else wanted))

    def selecting(self, work: Callable[[Callable[[Filter], SqlSelection]], Answer]) -> Answer:
        """Return the result of `work`, which gets a function that returns the selection for a filter."""
        return self._ask(lambda: work(self._selection))

    def origins(self) -> frozenset[bytes]:
        """Return the paths of the files that sessions of the database were imported from."""
        select = "SELECT origin FROM catalog WHERE origin IS NOT NULL"
        return self._ask(lambda: frozenset(path for (path,) in self._database.query(select, again=True)))

    def _selection(self, wanted: Filter) -> SqlSelection:
        def run(select: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
            return self._database.query(select, values, again=True)

        return SqlSelection(POSTGRES, run, self._places, wanted, (_IMPORTED, {}))

    def search(
        self,
        text: str,
        *,
        fields: Sequence[Field] = INDEXED,
        sessions: Collection[int] | None = None,
        limit: int = 20,
        directly: bool = False,
        count: bool = True,
    ) -> Results:
        """Return the entries that contain all words of a text, best first; `sessions` are numbers of rows to search in.

        With `directly`, sessions that are not indexed yet are read completely instead of being reported as pending. Without
        `count`, matches are not counted by field, which is faster while the user is typing.
        """
        query = Query(text)

        def work() -> Results:
            words = PostgresWords(self._fs, self._formats, self._database, self._places, sessions)
            return Searcher(self._fs, self._formats, words, directly).search(query, fields, limit, count)

        return self._ask(work)


# -- catching up

_LOOKS = 128  # files that are looked at before their rows are written
_STEP = 4 << 20  # bytes of one session that are read at once
_GROUP = 8 << 20  # bytes of sessions whose words are written at once
_GROUP_SESSIONS = 256  # maximum number of sessions in one group
FIT = 4096  # bytes before the covered end that must not have changed; the database notes every other change itself
_PASSES = 8  # over the waiting sessions: other processes may work on the same ones

_NO_SESSION = (None, "it does not start with a session header", *(None,) * (len(GLANCE) - 2))


class _Looked(NamedTuple):
    """The result of a look at a file."""

    file: File
    known: Known | None
    columns: tuple[Any, ...]
    reading: Reading | None  # where to count from; None if it is not a session
    stretch: Stretch | None  # the new bytes of a session that grew


class CatchUp:
    """One catch-up of the rows of a table."""

    def __init__(
        self,
        fs: Filesystem,
        formats: Formats,
        database: Database,
        table: CatalogTable,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
    ) -> None:
        self._fs = fs
        self._formats = formats
        self._database = database
        self._table = table
        self._progress = progress
        self._deadline = deadline

    def _report(self, doing: Depth, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(Progress(doing, min(done, total), total))

    # -- looking

    def look(self, news: News) -> None:
        """Drop the rows of files that are gone, and look at the ends of those that changed."""
        if news.gone:
            self._database.transact(lambda cursor: self._table.forget(cursor, news.gone), again=True)
        for start in range(0, len(news.files), _LOOKS):
            some = news.files[start : start + _LOOKS]
            self._look_at(some, news.sub_agents)
            self._report("look", start + len(some), len(news.files))

    def _look_at(self, files: Sequence[tuple[File, Known | None]], sub_agents: set[str]) -> None:
        journals = [(file.id, file.path, file.size) for file, _ in files if file.journal]
        ends = ends_of(self._database, self._fs, journals)
        grown = [each for each in files if _has_grown(*each)]
        new = self._stretches([(_wanted(file, known), file.path) for file, known in grown])
        looked = [self._looked(*each, ends, new.get(each[0].id), each[0].path in sub_agents) for each in files]
        numbers = self._database.transact(lambda cursor: self._write(cursor, looked), again=True)
        self._count_near(looked, numbers)

    def _looked(
        self, file: File, known: Known | None, ends: dict[int, Ends], stretch: Stretch | None, sub_agent: bool
    ) -> _Looked:
        row = (file.path.encode("utf-8", "surrogateescape"), file.size, file.modified, file.id, sub_agent)
        try:
            name, seen, size = self._seen(file, ends.get(file.id))
        except StorageFailure:
            raise  # an error of the database, not of this file
        except OSError as error:
            problem = (None, error.strerror or str(error), *_NO_SESSION[2:])
            return _Looked(file, known, (row[0], None, *row[2:], *problem), None, None)
        if seen is None:
            return _Looked(file, known, (*row, *_NO_SESSION), None, None)
        reading = Reading(0, row[0], size, 0, None, None, 0, 0, 0, 0, None, name)
        if known is not None and stretch is not None and known.reading.fit is not None:
            fits = known.reading.fit == stretch.fit(known.reading.covered)
            reading, stretch = (known.reading, stretch) if fits else (reading, None)
        else:
            stretch = None
        reading.size, reading.header_at, reading.version = size, seen.header_at, seen.version
        reading.header_title = seen.header_title or None
        return _Looked(file, known, (*row, *_glance_columns(name, seen)), reading, stretch)

    def _seen(self, file: File, ends: Ends | None) -> tuple[str, Glance | None, int]:
        """Return the format of a file, the glance at its ends, and the number of bytes that its rows have."""
        if ends is not None and (seen := glance(ends, 0, file.size)) is not None:
            return NATIVE, seen, file.size
        fd, size, _, renderer, made = open_rows(self._fs, file.path, self._formats)
        try:
            size = size if made else min(size, file.size)
            seen = glance(self._fs, fd, size)
            if seen is not None or not size:
                return renderer or NATIVE, seen, size
            return *(self._formats.glance(self._fs, fd, size, file.path) or ("", None)), size
        finally:
            self._fs.close(fd)

    def _write(self, cursor: Cursor, looked: Sequence[_Looked]) -> dict[str, int]:
        """Write the rows; return the numbers of new ones, by path."""
        new = [each for each in looked if each.stretch is None]
        self._table.forget(cursor, [each.known for each in new if each.known is not None])
        numbers = self._table.insert(cursor, [each.columns for each in new])
        grown = [each for each in looked if each.stretch is not None and each.known is not None]
        self._table.change(
            cursor, [(each.known.number, each.known.revision, *each.columns) for each in grown if each.known]
        )
        return numbers

    def _count_near(self, looked: Sequence[_Looked], numbers: dict[str, int]) -> None:
        """Count small sessions, and small additions, at once."""
        near: list[_Work] = []
        for each in looked:
            reading, path = each.reading, each.file.path
            if reading is None:
                continue
            if each.stretch is not None and each.known is not None:
                if reading.size <= reading.covered + NEAR:
                    near.append(
                        _Work(Place(each.known.revision + 1, each.file.id, reading), self._formats, index=False)
                    )
            elif reading.size <= TINY and path in numbers:
                reading.number = numbers[path]
                near.append(_Work(Place(0, each.file.id, reading), self._formats, index=False))
        have = {each.file.id: each.stretch for each in looked if each.stretch is not None}
        more = [(work.wanted, work.path) for work in near if work.place.inode not in have]
        self._step(near, have | self._stretches(more))

    # -- counting and indexing

    def read(self, depth: Depth) -> None:
        """Read the lines of waiting sessions, newest first, in groups whose words are written together."""
        index = depth == "index"
        unread: set[int] = set()
        for attempt in range(_PASSES):
            waiting = [each for each in self._table.waiting(index) if each.number not in unread]
            if not waiting:
                return
            done, total = 0, sum(each.size for each in waiting)
            for group in _groups(waiting):
                places = self._table.claim([each.number for each in group], index, free=attempt == 0)
                unread |= self._read_group([_Work(place, self._formats, index=index) for place in places])
                done += sum(each.size for each in group)
                self._report(depth, done, total)
                self._stop_in_time()

    def _stop_in_time(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise Enough

    def _read_group(self, works: Sequence[_Work]) -> set[int]:
        """Read sessions to their ends; return the numbers of those that could not be read."""
        unread: set[int] = set()
        for work in works:
            if is_packed(work.path):
                work.place.reading.size = self._unpacked_size(work)
        while works:
            new = self._stretches([(work.wanted, work.path) for work in works])
            missing = {work.number for work in works if work.place.inode not in new and work.is_behind}
            unread |= missing
            works = self._step([work for work in works if work.number not in missing], new)
            if works:
                self._stop_in_time()
        return unread

    def _unpacked_size(self, work: _Work) -> int:
        try:
            fd, size, *_ = open_rows(self._fs, work.path, self._formats)
        except StorageFailure:
            raise
        except OSError:
            return work.place.reading.size
        self._fs.close(fd)
        return size

    def _step(self, works: Sequence[_Work], new: Mapping[int, Stretch]) -> list[_Work]:
        """Count the new bytes of some sessions and write the rows; return those that have more to read."""
        words: list[Passage] = []
        rows = [work.advance(new.get(work.place.inode), words) for work in works]
        written = self._table.save(rows, words) if rows else set()
        return [work for work in works if work.number in written and work.is_behind]

    def _stretches(self, wanted: Sequence[tuple[Wanted, str]]) -> dict[int, Stretch]:
        """Return stretches of sessions, given with their paths; a file that is not a journal is read as bytes."""
        found = stretches_of(self._database, [each for each, _ in wanted]) if wanted else {}
        for each, path in wanted:
            if each.file not in found and (stretch := self._file_stretch(each, path)) is not None:
                found[each.file] = stretch
        return found

    def _file_stretch(self, wanted: Wanted, path: str) -> Stretch | None:
        first = max(0, wanted.place - FIT)
        try:
            fd, size, *_ = open_rows(self._fs, path, self._formats)
            try:
                data = self._fs.read(fd, min(wanted.until, size) - first, first)
            finally:
                self._fs.close(fd)
        except StorageFailure:
            raise
        except OSError:
            return None  # the next look finds out what happened to it
        return Stretch(first, data) if data else None


class _Work:
    """One session that is being read."""

    def __init__(self, place: Place, formats: Formats, *, index: bool) -> None:
        self.place = place
        self.number = place.reading.number
        self._revision = place.revision
        self._index = index
        self._counting = Counting(place.reading, formats, index=index)
        self.at = self._counting.start

    @property
    def path(self) -> str:
        return self.place.reading.path.decode("utf-8", "surrogateescape")

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read."""
        return self.at < self.place.reading.size

    @property
    def wanted(self) -> Wanted:
        """The bytes to read next."""
        return Wanted(self.place.inode, self.at, min(self.place.reading.size, self.at + _STEP))

    def advance(self, new: Stretch | None, words: list[Passage]) -> tuple[Any, ...]:
        """Count the lines of a stretch, add their words to `words`, and return the row to save."""
        reading, counting = self.place.reading, self._counting
        before = len(words)
        if new is not None:
            data = new.after(self.at)[: reading.size - self.at]
            for offset, entry in counting.feed(data):
                words += passages_of(self.number, offset, entry)
            self.at += len(data)
            reading.fit = new.fit(counting.covered)
        reading.passages += len(words) - before
        place = (counting.covered, reading.fit, counting.state(), counting.indexed, reading.passages)
        revision, self._revision = self._revision, self._revision + 1
        if self.is_behind:
            return (self.number, revision, False, False, *place, *(None,) * (6 + len(COUNTED)))
        counting.finish()
        title, first_text, role, status = map(POSTGRES.storable, counting.summary())
        counts = (*counts_as_columns(counting.digest.counts()), counting.digest.spending.encode())
        said = (title, first_text, role, status, _folded(title), _folded(first_text))
        return (self.number, revision, True, self._index, *place, *said, *counts)


def _has_grown(file: File, known: Known | None) -> bool:
    """Return whether a file may only have grown; a change without growth is a rewrite."""
    if known is None or known.inode != file.id or not known.reading.covered or is_packed(file.path):
        return False
    return 0 <= known.reading.size < file.size


def _wanted(file: File, known: Known | None) -> Wanted:
    """Return what to read of a session that grew: all new bytes if they are few, else only those that must be unchanged."""
    covered = known.reading.covered if known is not None else 0
    return Wanted(file.id, covered, file.size if file.size <= covered + NEAR else covered)


def _glance_columns(name: str, seen: Glance) -> tuple[Any, ...]:
    """Return the columns that a look fills; an empty text means unknown, except for id and folder."""
    session_id, cwd, *texts, header_title, header_at, version, origin = astuple(seen)
    title, created, parent, first_text, role, status = (POSTGRES.storable(text) or None for text in texts)
    return (
        name,
        None,
        POSTGRES.storable(session_id),
        POSTGRES.storable(cwd),
        title,
        created,
        parent,
        first_text,
        role,
        status,
        POSTGRES.storable(header_title) or None,
        header_at,
        version,
        origin.encode("utf-8", "surrogatepass") or None,
        parse_timestamp(created),
        _folded(title),
        _folded(first_text),
    )


def _folded(text: str | None) -> str | None:
    return None if text is None else str(POSTGRES.storable(fold(text)))


def _groups(waiting: Sequence[Waiting]) -> Iterator[list[Waiting]]:
    group: list[Waiting] = []
    size = 0
    for each in waiting:
        group.append(each)
        size += each.size
        if size > _GROUP or len(group) == _GROUP_SESSIONS:
            yield group
            group, size = [], 0
    if group:
        yield group


# -- the table of sessions

CLAIM = 15_000  # milliseconds that a claim lasts

_PLACE = "covered, fit, state, indexed, passages, header_at, version, header_title, format"
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_SPELLED = "n.folder || '\\x2f'::bytea || n.base"
_NEWS = f"""
    WITH files AS (
        SELECT {_SPELLED} AS path, f.id, f.size, f.modified, f.journal
        FROM name n JOIN file f ON f.id = n.file
        WHERE ({{folders}} OR n.folder = ANY(%(places)s::bytea[])) AND (position('.jsonl'::bytea IN n.base) > 0
            OR substring(n.base from octet_length(n.base) - 5) = '.draft'::bytea
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
    journal: bool  # False: its bytes are stored in pieces


class Known(NamedTuple):
    """The row of a session file."""

    number: int
    revision: int
    sub_agent: bool
    inode: int
    reading: Reading  # with the previous size of the file


class News(NamedTuple):
    """The differences: new and changed files with their rows, and the rows of files that are gone."""

    files: list[tuple[File, Known | None]]
    sub_agents: set[str]
    gone: list[Known]


class Waiting(NamedTuple):
    """A session that has unread bytes."""

    number: int
    size: int  # unread bytes


class Place(NamedTuple):
    """A session to read, with its file."""

    revision: int
    inode: int
    reading: Reading


class Totals(NamedTuple):
    """The number of sessions: all, not counted, and not indexed."""

    files: int
    uncounted: int
    unindexed: int


class _Status(msgspec.Struct):
    st_ino: int = 0
    st_size: int = 0
    st_mtime_ns: int = 0
    st_dev: int = 0
    st_ctime_ns: int = 0


class _Names:
    """Some folders of the database, as a file system for `walk`; others are empty."""

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
        self._rows, self._values = within(places, dialect=POSTGRES)

    # -- comparing

    def news(self) -> News:
        """Return the differences to the files, oldest change first, so that newer ones get higher numbers."""
        folders, values = within(self._places, "folder", column="n.folder", dialect=POSTGRES)
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
        """Return the sessions in the folders in which files were added or removed."""
        paths = [file.path for file, _ in files] + [_path(known.reading.path) for known in gone]
        folders: set[str] = set()
        for path in paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        rows = self._database.query(_AROUND, ([_bytes(folder) for folder in folders],), again=True)
        return walk(_Names(rows), self._places, [])

    # -- writing looks

    def forget(self, cursor: Cursor, known: Sequence[Known]) -> None:
        """Delete rows and their words, unless they were changed since."""
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
        """Add rows of files that have none; return their numbers by path. A row that another process has added is left out."""
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
        """Update the rows of files that grew, given with number and revision; they count as not read to the end."""
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

    # -- counting and indexing

    def waiting(self, index: bool) -> list[Waiting]:
        """Return the sessions that are not counted, or not indexed, newest first."""
        start = "least(covered, indexed)" if index else "covered"
        select = (
            f"SELECT number, size - {start} FROM catalog WHERE format IS NOT NULL"
            f" AND NOT {_done(index)} AND {self._rows} ORDER BY number DESC"
        )
        return [Waiting(*row) for row in self._database.query(select, self._values, again=True)]

    def claim(self, numbers: Sequence[int], index: bool, *, free: bool) -> list[Place]:
        """Claim those of these sessions that still wait; with `free`, only those that no other process has claimed."""
        rows = self._database.query(
            f"UPDATE catalog SET claimed = {_NOW} + {CLAIM} WHERE number = ANY(%s::bigint[])"
            f" AND NOT {_done(index)} {f'AND claimed < {_NOW}' if free else ''}"
            f" RETURNING revision, inode, number, path, size, {_PLACE}",
            (list(numbers),),
            again=True,
        )
        return [Place(revision, inode, Reading(*reading)) for revision, inode, *reading in rows]

    def save(self, rows: Sequence[tuple[Any, ...]], words: Sequence[tuple[Any, ...]]) -> set[int]:
        """Save how far sessions are read, their counts and their words, unless another process was faster.

        The columns of `rows` are those of `_SAVED`. Return the numbers of the rows that were written.
        """
        shown = {*COUNTED, *_TEXTS}  # stays as it is until all lines are read
        sets = [
            f"{name} = CASE WHEN w.counted THEN w.{name} ELSE c.{name} END" if name in shown else f"{name} = w.{name}"
            for name in (*PLACE, "searchable", *shown)
        ]
        saved = (
            f"UPDATE catalog c SET {', '.join(sets)}, counted = c.counted OR w.counted, revision = c.revision + 1,"
            f" claimed = 0 FROM {_unnest(_SAVED)}"
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
        """Count the sessions, and those that are still to be read."""
        (found,) = self._database.query(
            "SELECT count(*), count(*) FILTER (WHERE format IS NOT NULL AND NOT counted),"
            f" count(*) FILTER (WHERE format IS NOT NULL AND NOT searchable) FROM catalog WHERE {self._rows}",
            self._values,
            again=True,
        )
        return Totals(*found)


_TEXTS = ("title", "first_text", "last_role", "last_status", "folded_title", "folded_text")
_SAVED: Mapping[str, str] = {
    "number": "bigint",
    "revision": "bigint",
    "counted": "boolean",
    "searchable": "boolean",
    **PLACE,
    **{name: GLANCE[name] for name in _TEXTS},
    **COUNTED,
}


def _done(index: bool) -> str:
    return "searchable" if index else "counted"


def _unnest(columns: Mapping[str, str], numbered: str = "") -> str:
    """Return arrays as a table; with `numbered` it has one more column, `place`."""
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


# -- words

_RANKED = 1000  # matches that are ranked at once, newest first: ranking all of them would take too long
_READ = 32  # lines that are read at once
_LONGEST = 200  # characters of a word in the set
_LARGEST = 1_000_000  # bytes of words in a set; the maximum of PostgreSQL is a mebibyte
_WEIGHTS: Mapping[Field, float] = {"text": 1.0, "thinking": 0.5, "tool_input": 0.5}
_SATURATION, _LENGTHS = 1.2, 0.75  # of BM25
_END = 2**63 - 1

_SEARCHED = "c.path, c.id, c.size, c.indexed, c.format"
_LINES = """
    SELECT w.place, e.body FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bigint[])
        AS w (place, folder, base, start)
    JOIN name n ON n.folder = w.folder AND n.base = w.base JOIN entry e ON e.file = n.file AND e.start = w.start"""

Passage = tuple[int, int, int, int, str, str | None]
"""Session, offset, field, number of words, the words in order, and the set of words."""


def passages_of(number: int, offset: int, entry: Mapping[str, Any]) -> list[Passage]:
    """Return the passages of an entry: one for each field that has words."""
    found: list[Passage] = []
    texts = passages(entry)
    for place, field in enumerate(INDEXED):
        words = words_of(texts.get(field, ""))
        if words:
            terms: str | None = " ".join({word[:_LONGEST] for word in words})
            if len(terms or "") > _LARGEST // 4 and len((terms or "").encode()) > _LARGEST:
                terms = None
            found.append((number, offset, place, len(words), f" {'  '.join(words)} ", terms))
    return found


class _Matched(NamedTuple):
    """A passage that contains all terms, and how often it contains each."""

    number: int
    offset: int
    field: int
    length: int
    session: Searched
    often: Sequence[int]


class PostgresWords:
    """The words of a catalog in a database, below some places or in some sessions."""

    def __init__(
        self,
        fs: Filesystem,
        formats: Formats,
        database: Database,
        places: Sequence[str],
        sessions: Collection[int] | None,
    ) -> None:
        self._fs = fs
        self._formats = formats
        self._database = database
        where, self._values = within(places, column="c.path", dialect=POSTGRES)
        self._where = f"c.format IS NOT NULL AND {where}"
        if sessions is not None:
            self._where += " AND c.number = ANY(%(sessions)s::bigint[])"
            self._values["sessions"] = list(sessions)

    def beside(self) -> list[Beside]:
        """Return sessions that are not completely indexed, newest first."""
        rows = self._ask(
            f"SELECT c.searchable, {_SEARCHED} FROM catalog c WHERE {self._where}"
            " AND (NOT c.searchable OR c.size > c.indexed) ORDER BY c.number DESC"
        )
        return [Beside(_searched(row), searchable) for searchable, *row in rows]

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Yield lines that may match, the best of the newest first, then those of older ones."""
        matching, values = _matching(query.terms)
        often = ", ".join(
            f"(length(words) - length(replace(words, %(term{number})s::text, ''))) / length(%(term{number})s::text)"
            for number in range(len(query.terms))
        )
        values |= {"fields": [INDEXED.index(field) for field in fields], "number": _END, "start": _END}
        newest = (
            f"SELECT p.number, p.start, p.field, p.length, {_SEARCHED}, p.words"
            f" FROM passage p JOIN catalog c ON c.number = p.number WHERE {self._where} AND {matching}"
            " AND p.field = ANY(%(fields)s::bigint[]) AND (p.number, p.start) < (%(number)s::bigint, %(start)s::bigint)"
            f" ORDER BY p.number DESC, p.start DESC LIMIT {_RANKED}"
        )
        columns = "number, start, field, length, path, id, size, indexed, format"
        select = f"SELECT {columns}, {often} FROM ({newest}) newest ORDER BY number DESC, start DESC"
        while rows := self._ask(select, **values):
            found = [_Matched(row[0], row[1], row[2], row[3], _searched(row[4:9]), row[9:]) for row in rows]
            yield from self._read(_ranked(found))
            values |= {"number": found[-1].number, "start": found[-1].offset}

    def _read(self, ranked: Sequence[tuple[float, _Matched]]) -> Iterator[Candidate]:
        """Yield the lines of passages as they are in their journals now."""
        for start in range(0, len(ranked), _READ):
            some = ranked[start : start + _READ]
            names = [matched.session.path.rpartition("/") for _, matched in some]
            places = [
                list(range(len(some))),
                [folder.encode("utf-8", "surrogateescape") for folder, _, _ in names],
                [base.encode("utf-8", "surrogateescape") for _, _, base in names],
                [matched.offset for _, matched in some],
            ]
            lines: dict[int, bytes] = dict(self._database.query(_LINES, places, again=True))
            for place, (rank, matched) in enumerate(some):
                # A file that is not a journal, or a line in the middle of other bytes, has no such row.
                raw = lines.get(place) or read_line(self._fs, matched.session.path, matched.offset, self._formats)
                if raw is not None:
                    yield Candidate(rank, matched.session, matched.offset, raw)

    def matches(self, query: Query) -> dict[str, int]:
        """Count the indexed entries that match, by field."""
        matching, values = _matching(query.terms)
        rows = self._ask(
            "SELECT p.field, count(*) FROM passage p JOIN catalog c ON c.number = p.number"
            f" WHERE {self._where} AND {matching} GROUP BY p.field",
            **values,
        )
        found = dict.fromkeys(INDEXED, 0) | {INDEXED[field]: count for field, count in rows}
        return {str(field): count for field, count in found.items()}

    def titles(self, query: Query) -> list[str]:
        """Return the paths of sessions whose title contains every word, newest first."""
        words = {
            f"word{number}": POSTGRES.storable(fold(term.text.rstrip("*"))) for number, term in enumerate(query.terms)
        }
        holds = "".join(f" AND strpos(c.folded_title, %({name})s::text) > 0" for name in words)
        select = f"SELECT c.path FROM catalog c WHERE {self._where} AND c.title IS NOT NULL{holds}"
        rows = self._ask(f"{select} ORDER BY c.mtime_ns DESC", **words)
        return [path.decode("utf-8", "surrogateescape") for (path,) in rows]

    def _ask(self, select: str, **values: Any) -> list[tuple[Any, ...]]:
        # The best plan depends on how many passages contain a word, so the statement is planned for these values.
        return self._database.query(select, self._values | values, again=True, prepare=False)


def _matching(terms: Sequence[Term]) -> tuple[str, dict[str, Any]]:
    """Return the condition that a passage contains all terms."""
    wanted: list[str] = []
    values: dict[str, Any] = {}
    phrases: list[str] = []
    for number, term in enumerate(terms):
        words, is_open = term.words()
        lexemes = [f"'{word[:_LONGEST]}'" for word in words]
        lexemes[-1] += ":*" if is_open else ""
        wanted += lexemes
        values[f"term{number}"] = f" {'  '.join(words)}{'' if is_open else ' '}"
        if len(words) > 1 or len(words[0]) >= _LONGEST:
            phrases.append(f"strpos(p.words, %(term{number})s::text) > 0")
    values["wanted"] = " & ".join(wanted)
    every = " AND ".join(f"strpos(p.words, %(term{number})s::text) > 0" for number in range(len(terms)))
    quick = " AND ".join(["p.vector @@ %(wanted)s::tsquery", *phrases])
    return f"(({quick}) OR (p.vector IS NULL AND {every}))", values


def _ranked(found: Sequence[_Matched]) -> list[tuple[float, _Matched]]:
    """Return each entry once with its rank, best first, the newer of equals first. Lower ranks are better."""
    average = sum(matched.length for matched in found) / len(found)
    ranks: dict[tuple[int, int], float] = {}
    first: dict[tuple[int, int], _Matched] = {}
    for matched in found:
        place = (matched.number, matched.offset)
        length = _SATURATION * (1 - _LENGTHS + _LENGTHS * matched.length / average)
        score = sum(often * (_SATURATION + 1) / (often + length) for often in matched.often)
        ranks[place] = ranks.get(place, 0.0) - _WEIGHTS[INDEXED[matched.field]] * score
        first.setdefault(place, matched)
    order = sorted(ranks, key=lambda place: (ranks[place], -place[0], -place[1]))
    return [(ranks[place], first[place]) for place in order]


def _searched(row: Sequence[Any]) -> Searched:
    path, *rest = row
    return Searched(path.decode("utf-8", "surrogateescape"), *rest)


# -- bytes of many journals

_ENOUGH = 4096  # bytes of an end, as for a file

_NEWLINE = "coalesce(gap, '\\x0a'::bytea)"
_LENGTH = f"octet_length(e.body) + octet_length({_NEWLINE})"
_ENDS = f"""
    WITH w AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[]) AS w (file, size))
    SELECT w.file, true, e.start, {_LENGTH}, substring(e.body || {_NEWLINE} from 1 for {_ENOUGH})
    FROM w JOIN entry e ON e.file = w.file AND e.start < {_ENOUGH}
    UNION ALL
    SELECT w.file, false, e.start, {_LENGTH},
        substring(e.body || {_NEWLINE} from greatest(1, {_LENGTH} - {_ENOUGH} + 1))
    FROM w CROSS JOIN LATERAL (
        SELECT start, body, gap FROM entry WHERE file = w.file AND start >= coalesce(
            (SELECT max(start) FROM entry WHERE file = w.file AND start <= w.size - {_ENOUGH}), 0)) e"""
# The rows from the one that contains the start of the bytes that must be unchanged, up to `until`.
_STRETCHES = f"""
    SELECT w.file, e.start, e.body || {_NEWLINE}
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS w (file, place, until)
    CROSS JOIN LATERAL (
        SELECT start, body, gap FROM entry WHERE file = w.file AND start < w.until AND start >= coalesce(
            (SELECT max(start) FROM entry WHERE file = w.file AND start <= w.place - {FIT}), 0)) e
    ORDER BY w.file, e.start"""


class Wanted(NamedTuple):
    """A range of a journal to read: from a place up to another, or to the end of the line there."""

    file: int
    place: int
    until: int


class Stretch(NamedTuple):
    """Bytes of a session file, and where they start: far enough before the place where reading continues."""

    start: int
    data: bytes

    def after(self, place: int) -> bytes:
        """Return the bytes from a place on."""
        return self.data[place - self.start :]

    def fit(self, place: int) -> bytes | None:
        """Return a hash of the bytes before a place, which must be unchanged to read on there; `None` if some are missing."""
        first = max(0, place - FIT)
        return blake2b(self.data[first - self.start : place - self.start], 16) if first >= self.start else None


class Ends:
    """The two ends of a journal as an open file; other bytes are read on demand."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read = read
        self._head = b""
        self._tail = b""

    def add_head(self, start: int, data: bytes) -> None:
        """Add the next row from the start, or the first part of it."""
        if start == len(self._head):
            self._head += data

    def add_tail(self, start: int, length: int, data: bytes) -> None:
        """Add the next row from the end, or the last part of it."""
        if start + length == self._size - len(self._tail):
            self._tail = data + self._tail

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Return bytes from an offset, as a `Filesystem` does."""
        end = min(offset + size, self._size)
        if end <= len(self._head):
            return self._head[offset:end]
        start = self._size - len(self._tail)
        if offset >= start:
            return self._tail[offset - start : end - start]
        return self._read(size, offset)


def ends_of(database: Database, fs: Filesystem, journals: Sequence[tuple[int, str, int]]) -> dict[int, Ends]:
    """Return the ends of journals, given as file, path and size."""
    found = {file: Ends(size, _reader(fs, path)) for file, path, size in journals}
    sizes = [size for _, _, size in journals]
    rows = sorted(database.query(_ENDS, (list(found), sizes), again=True) if found else ())
    for file, _, start, _, data in (row for row in rows if row[1]):
        found[file].add_head(start, data)
    for file, _, start, length, data in (row for row in reversed(rows) if not row[1]):
        found[file].add_tail(start, length, data)
    return found


def stretches_of(database: Database, wanted: Sequence[Wanted]) -> dict[int, Stretch]:
    """Return stretches of journals by file; those without rows are left out."""
    files, places, untils = zip(*wanted, strict=True) if wanted else ((), (), ())
    pieces: dict[int, list[bytes]] = {}
    starts: dict[int, int] = {}
    for file, start, data in database.query(_STRETCHES, (list(files), list(places), list(untils)), again=True):
        pieces.setdefault(file, []).append(data)
        starts.setdefault(file, start)
    return {file: Stretch(starts[file], b"".join(several)) for file, several in pieces.items()}


def _reader(fs: Filesystem, path: str) -> Callable[[int, int], bytes]:
    def read(size: int, offset: int) -> bytes:
        fd = fs.open(path, os.O_RDONLY)
        try:
            return fs.read(fd, size, offset)
        finally:
            fs.close(fd)

    return read
