"""Bringing the catalog in a database up to date: only what is new of sessions that changed is read.

Rules are those of `reconcile`, which does the same for files, and the lines are counted by the same code:

- A session is as it was if its file, its size and its time of modification are. One that grew is read on from where it was left,
  if the bytes before that place are still the same; any other change is read anew, under a new number.
- Ends come first, so that every row can be shown; counting and indexing follow, newest sessions first.
- Everything is done in short steps, each one statement or transaction; who is interrupted between two of them goes on there,
  and so does any other process. What another one has written meanwhile is not written again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import astuple

from sessile.core.text import parse_timestamp
from sessile.core.words import fold
from sessile.errors import StorageFailure
from sessile.storage.base import NATIVE, Filesystem
from sessile.storage.catalog_rows import counts_as_columns
from sessile.storage.counting import FIT, NEAR, TINY, Counting, Reading
from sessile.storage.glance import Glance, glance
from sessile.storage.packed import is_packed, open_rows
from sessile.storage.postgres.catalog_table import CatalogTable, File, Known, News, Place, Waiting
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.journal_bytes import Ends, Stretch, Wanted, ends_of, stretches_of
from sessile.storage.postgres.listing import storable
from sessile.storage.postgres.schema_catalog import COUNTED, GLANCE
from sessile.storage.postgres.words import Passage, passages_of
from sessile.storage.reconcile import Depth, Enough, Progress

_LOOKS = 128  # files that are looked at before their rows are written
_STEP = 4 << 20  # bytes of one session that are read at once
_GROUP = 8 << 20  # bytes of sessions whose words are written at once
_MOST = 256  # sessions of one group
_PASSES = 8  # through what waits: others may have worked on the same

_NO_SESSION = (None, "it does not begin with a session header", *(None,) * (len(GLANCE) - 2))


class _Looked(NamedTuple):
    """What a look at a file has told."""

    file: File
    known: Known | None
    columns: tuple[Any, ...]
    reading: Reading | None  # what is to be counted at once, or later; not of what is no session
    stretch: Stretch | None  # of a session that grew: what is new of it


class Follower:
    """One catch-up of the rows of a table."""

    def __init__(
        self,
        fs: Filesystem,
        database: Database,
        table: CatalogTable,
        progress: Callable[[Progress], None] | None,
        deadline: float | None,
    ) -> None:
        self._fs = fs
        self._database = database
        self._table = table
        self._progress = progress
        self._deadline = deadline

    def _tell_progress(self, doing: Depth, done: int, total: int) -> None:
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
            self._tell_progress("look", start + len(some), len(news.files))

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
            raise  # it is the database that cannot be read
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
        return _Looked(file, known, (*row, *_told(name, seen)), reading, stretch)

    def _seen(self, file: File, ends: Ends | None) -> tuple[str, Glance | None, int]:
        """The format of a file, what its ends tell, and how many bytes its rows have."""
        if ends is not None and (seen := glance(ends, 0, file.size)) is not None:
            return NATIVE, seen, file.size
        fd, size, _ = open_rows(self._fs, file.path)
        try:
            size = size if is_packed(file.path) else min(size, file.size)
            seen = glance(self._fs, fd, size)
            if seen is not None or not size:
                return NATIVE, seen, size
            from sessile.storage.foreign_rows import glance_foreign  # few have any in a database

            return *(glance_foreign(self._fs, fd, size, file.path) or ("", None)), size
        finally:
            self._fs.close(fd)

    def _write(self, cursor: Cursor, looked: Sequence[_Looked]) -> dict[str, int]:
        """Write rows as they look now; the numbers of those that are new."""
        anew = [each for each in looked if each.stretch is None]
        self._table.forget(cursor, [each.known for each in anew if each.known is not None])
        numbers = self._table.insert(cursor, [each.columns for each in anew])
        grown = [each for each in looked if each.stretch is not None and each.known is not None]
        self._table.change(
            cursor, [(each.known.number, each.known.revision, *each.columns) for each in grown if each.known]
        )
        return numbers

    def _count_near(self, looked: Sequence[_Looked], numbers: dict[str, int]) -> None:
        """Count at once what is soon counted."""
        near: list[_Work] = []
        for each in looked:
            reading, path = each.reading, each.file.path
            if reading is None:
                continue
            if each.stretch is not None and each.known is not None:
                if reading.size <= reading.covered + NEAR:
                    near.append(_Work(Place(each.known.revision + 1, each.file.id, reading), index=False))
            elif reading.size <= TINY and path in numbers:
                reading.number = numbers[path]
                near.append(_Work(Place(0, each.file.id, reading), index=False))
        have = {each.file.id: each.stretch for each in looked if each.stretch is not None}
        more = [(work.wanted, work.path) for work in near if work.place.inode not in have]
        self._step(near, have | self._stretches(more))

    # -- counting and indexing

    def read(self, depth: Depth) -> None:
        """Read the lines of rows that wait, newest first, in groups whose words are written together."""
        index = depth == "index"
        unread: set[int] = set()
        for attempt in range(_PASSES):
            waiting = [each for each in self._table.waiting(index) if each.number not in unread]
            if not waiting:
                return
            done, total = 0, sum(each.size for each in waiting)
            for group in _groups(waiting):
                places = self._table.claim([each.number for each in group], index, free=attempt == 0)
                unread |= self._read_group([_Work(place, index) for place in places])
                done += sum(each.size for each in group)
                self._tell_progress(depth, done, total)
                self._stop_in_time()

    def _stop_in_time(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise Enough

    def _read_group(self, works: Sequence[_Work]) -> set[int]:
        """Read sessions to their ends; the numbers of those that could not be read."""
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
            fd, size, _ = open_rows(self._fs, work.path)
        except StorageFailure:
            raise
        except OSError:
            return work.place.reading.size
        self._fs.close(fd)
        return size

    def _step(self, works: Sequence[_Work], new: Mapping[int, Stretch]) -> list[_Work]:
        """Count what is new of some sessions and write it down; those of which there is more to read."""
        words: list[Passage] = []
        rows = [work.advance(new.get(work.place.inode), words) for work in works]
        written = self._table.tell(rows, words) if rows else set()
        return [work for work in works if work.number in written and work.is_behind]

    def _stretches(self, wanted: Sequence[tuple[Wanted, str]]) -> dict[int, Stretch]:
        """Stretches of sessions, given with their paths; what is no journal is read as a file."""
        found = stretches_of(self._database, [each for each, _ in wanted]) if wanted else {}
        for each, path in wanted:
            if each.file not in found and (stretch := self._file_stretch(each, path)) is not None:
                found[each.file] = stretch
        return found

    def _file_stretch(self, wanted: Wanted, path: str) -> Stretch | None:
        first = max(0, wanted.place - FIT)
        try:
            fd, size, _ = open_rows(self._fs, path)
            try:
                data = self._fs.read(fd, min(wanted.until, size) - first, first)
            finally:
                self._fs.close(fd)
        except StorageFailure:
            raise
        except OSError:
            return None  # it stays as far as it is read; the next look will say what became of it
        return Stretch(first, data) if data else None


class _Work:
    """One session that is being read on."""

    def __init__(self, place: Place, index: bool) -> None:
        self.place = place
        self.number = place.reading.number
        self._revision = place.revision
        self._index = index
        self._counting = Counting(place.reading, index=index)
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
        """What is to be read next."""
        return Wanted(self.place.inode, self.at, min(self.place.reading.size, self.at + _STEP))

    def advance(self, new: Stretch | None, words: list[Passage]) -> tuple[Any, ...]:
        """Count the lines of a stretch, add their words to others, and say what is to be written down."""
        reading, counting = self.place.reading, self._counting
        before = len(words)
        if new is not None:
            data = new.behind(self.at)[: reading.size - self.at]
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
        title, first_text, role, status = map(storable, counting.told())
        counts = (*counts_as_columns(counting.digest.counts()), counting.digest.spending.encode())
        said = (title, first_text, role, status, _folded(title), _folded(first_text))
        return (self.number, revision, True, self._index, *place, *said, *counts)


def _has_grown(file: File, known: Known | None) -> bool:
    """Whether a file may only have grown; a change without growth is a rewrite."""
    if known is None or known.inode != file.id or not known.reading.covered or is_packed(file.path):
        return False
    return 0 <= known.reading.size < file.size


def _wanted(file: File, known: Known | None) -> Wanted:
    """What is read of a session that grew: all that is new if it is little, else only what must not have changed."""
    covered = known.reading.covered if known is not None else 0
    return Wanted(file.id, covered, file.size if file.size <= covered + NEAR else covered)


def _told(name: str, seen: Glance) -> tuple[Any, ...]:
    """The columns that a look fills; an empty text is an unknown one, but for id and folder."""
    session_id, cwd, *texts, header_title, header_at, version, origin = astuple(seen)
    title, created, parent, first_text, role, status = (storable(text) or None for text in texts)
    return (
        name,
        None,
        storable(session_id),
        storable(cwd),
        title,
        created,
        parent,
        first_text,
        role,
        status,
        storable(header_title) or None,
        header_at,
        version,
        origin.encode("utf-8", "surrogatepass") or None,
        parse_timestamp(created),
        _folded(title),
        _folded(first_text),
    )


def _folded(text: str | None) -> str | None:
    return None if text is None else str(storable(fold(text)))


def _groups(waiting: Sequence[Waiting]) -> Iterator[list[Waiting]]:
    group: list[Waiting] = []
    size = 0
    for each in waiting:
        group.append(each)
        size += each.size
        if size > _GROUP or len(group) == _MOST:
            yield group
            group, size = [], 0
    if group:
        yield group
