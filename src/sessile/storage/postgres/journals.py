"""The journals of a store in a database: creating, appending, replacing, holding.

Rules:

- An append is one statement that adds rows if the journal has not grown since; it is durable when it returns. If another process
  was faster, or the rows need something that is unknown here (a parent on another branch, an id that exists already, a last line
  without a newline), the journal is locked first.
- If the connection breaks during an append, its outcome is unknown. The rows are looked up when the journal is locked next.
- Replacing a journal makes a new file, in one transaction: readers of the old file can read on, and writers notice (`epoch`).
- A file of bytes with the name of a journal, such as an import, is read as it is. It is converted to a journal, in one
  transaction, when it is opened for rows.

Lines, ids and parents are known here, but not what entries mean.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from psycopg import errors
from psycopg.types.numeric import Int8

from sessile.errors import (
    NotASession,
    SessileError,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    StorageFailure,
    storage_failure,
    storage_failures,
)
from sessile.storage import atomic, log
from sessile.storage.base import Appended, Filesystem, News, ReadableOwnJournal, Revise, Row
from sessile.storage.postgres import rows
from sessile.storage.postgres.database import Cursor, Database, OutcomeUnknown, Unreachable
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import NOW
from sessile.storage.postgres.rows import (
    Ahead,
    Held,
    Link,
    Links,
    PostgresReader,
    Tile,
    Tiler,
    name_of,
    not_found,
    row_of,
)
from sessile.storage.reader import JournalReader

_CHUNK = 1 << 20  # bytes that are read or written at once


class PostgresJournals:
    """The journals of one database. `patience` is the timeout for journals that another process holds, in seconds."""

    def __init__(self, fs: Filesystem, database: Database, leases: Leases, *, patience: float = 10.0) -> None:
        self._fs = fs
        self._database = database
        self._leases = leases
        self._patience = patience
        self._folders: set[str] = set()

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create a journal with these bytes, durably and completely or not at all."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)
        made: list[int] = []
        try:
            # Not repeated: `pieces` may be an iterator that can be read only once.
            with self._database.transaction() as cursor:
                made.append(_make(cursor, path, _joined(pieces)))
        except OutcomeUnknown:
            held = self._database.transact(lambda cursor: rows.hold(cursor, name_of(path)), again=True)
            if held is None or held.file not in made:
                raise

    def obtain(self, path: str, header: bytes) -> None:
        """Create a journal with this header, unless there is one already."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)

        def work(cursor: Cursor) -> None:
            held = rows.hold(cursor, name_of(path))
            if held is None:
                _make(cursor, path, (header + b"\n",))
            elif not held.size:
                rows.fill(cursor, held.file, _tiler(path), (header + b"\n",))

        try:
            self._database.transact(work, again=True)
        except SessionExists:
            pass  # another process was faster

    def open(self, path: str, *, patience: float | None = None) -> PostgresJournal:
        """Open a journal for writing."""
        timeout = self._patience if patience is None else patience
        return PostgresJournal(self._fs, self._database, self._leases, path, patience=timeout)

    def read(self, path: str) -> ReadableOwnJournal:
        """Open a journal for reading."""
        try:
            return PostgresReader(self._database, path)
        except NotASession:
            return JournalReader(self._fs, path)  # a file of bytes that was not converted yet


def _make(cursor: Cursor, path: str, content: Iterable[bytes]) -> int:
    file = new_file(cursor)
    if not rows.give_name(cursor, path, file):
        raise SessionExists(path=path)
    rows.fill(cursor, file, _tiler(path), content)
    return file


def _tiler(path: str) -> Tiler:
    return Tiler(path, Links(whole=True))


def _joined(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """Yield the same bytes in larger pieces."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)


# -- one journal

_AT_ONCE = 1 << 20  # bytes that one statement appends; more are copied
_PAUSE = 0.05  # seconds between two attempts to hold a journal
_NEWS = f"SELECT {rows.ROW} FROM entry e WHERE e.file = %b AND e.start >= %b AND e.id IS NOT NULL ORDER BY e.start"


class PostgresJournal(PostgresReader):
    """One journal, open for reading and appending. `patience` is the timeout of `hold`, in seconds."""

    def __init__(
        self, fs: Filesystem, database: Database, leases: Leases, path: str, *, patience: float = 10.0
    ) -> None:
        self._fs = fs
        self._leases = leases
        self._patience = patience
        self._failure: SessileError | None = None
        self._lease: str | None = None
        super().__init__(database, path)

    def _open(self) -> None:
        try:
            super()._open()
        except NotASession:
            convert(self._database, self._fs, self.path)
            super()._open()

    def _begin(self, last: Row | None, link: Link | None) -> None:
        super()._begin(last, link)
        self._pid = os.getpid()
        self._seen = self._held.size  # where the news start: rows that other writers have added since
        self._links = Links()
        if last is not None and link is not None:
            self._links.learn([(last.id, link)])

    def follow(self) -> Row | None:
        with self._mutex:
            now, last, link = self._last()
            self._seen = now.size
            if last is not None and link is not None:
                self._links.learn([(last.id, link)])
            return last

    def _follow_name(self) -> bool:
        followed = super()._follow_name()
        if followed:
            self._seen = 0  # all of it is news
        return followed

    def _open_again(self) -> None:
        """Switch to the journal that has the name now; raise if it is another session."""
        session_id = self.session_id
        self._open()
        if self.session_id != session_id:
            self.session_id = session_id
            raise SessionNotFound("the journal was replaced by another session", path=self.path)
        self._seen = 0  # all of it is news

    def reopen(self) -> None:
        """Start over after a failure, or after the journal was replaced."""
        with self._mutex:
            held = self._lease is not None
            self.release()
            self._open_again()
            self._seen = self._held.size
            self._closed, self._failure = False, None
            if held:
                self.hold()

    @property
    def failure(self) -> SessileError | None:
        """The error that prevents further writing, if any."""
        return self._failure

    def close(self) -> None:
        """Release the journal, then raise the first error of writing, if there was one."""
        with self._mutex:
            try:
                self.release()
            finally:
                super().close()
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StorageFailure("the session is closed", path=self.path, hint="open the session again")
        if os.getpid() != self._pid:
            self._pid, self._lease = os.getpid(), None  # a forked child does not hold what its parent holds

    def _latch(self, error: SessileError) -> SessileError:
        if self._failure is None:
            self._failure = error
            log.error("writing to %s failed: %s", self.path, error.message)
        return error

    # -- appending

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        with self._mutex:
            self._check_usable()
            from_caller: list[BaseException] = []  # errors of `revise` do not make the journal fail

            def noting_errors(news: News) -> Sequence[bytes]:
                try:
                    return revise(news)
                except BaseException as error:
                    from_caller.append(error)
                    raise

            try:
                return self._append(_Append(lines, noting_errors, self._attempt(lines)))
            except (StorageFailure, SessionNotFound, NotASession) as error:
                if error not in from_caller:
                    self._latch(error)
                raise

    def _append(self, work: _Append) -> Appended:
        if work.sent is not None:
            held, tiles, size = work.sent[:3]
            try:
                if rows.append(self._database.query, held, self._name, tiles, size):
                    return self._done(work.sent)
            except errors.UniqueViolation:
                work.doubled = True
            except OutcomeUnknown as error:
                work.doubt(error)
        while True:
            try:
                if self._database.transact(partial(self._append_held, work)):
                    assert work.sent is not None
                    return self._done(work.sent)
                self._open_again()
            except errors.UniqueViolation as error:
                if work.doubled:
                    raise StorageFailure("the rows of the journal are inconsistent", path=self.path) from error
                work.doubled = True
            except OutcomeUnknown as error:
                work.doubt(error)
            except Unreachable as error:
                raise work.error or error from error

    def _attempt(self, lines: Sequence[bytes]) -> Attempt | None:
        """Return the rows of lines that one statement can append; `None` if something about them is unknown."""
        if not 0 < len(lines) < rows.FEW or sum(map(len, lines)) > _AT_ONCE:
            return None
        if not self._ends_a_line or not self._seen:
            return None
        attempt, tiler = tiled(self.path, self._held._replace(size=self._seen), lines, self._links.copied())
        return None if attempt.links.unknown or tiler.damaged or tiler.doubled else attempt

    def _append_held(self, work: _Append, cursor: Cursor) -> bool:
        """Append under the lock of the journal; return False if another journal has the name now."""
        execute = rows.executing(cursor)
        held = rows.hold(cursor, self._name)
        if held is None:
            raise not_found(self.path)
        doubtful = work.doubtful
        if doubtful is not None and rows.is_there(execute, held, doubtful.held, doubtful.tiles):
            work.sent = doubtful
            return True
        if held.file != self._held.file or not held.journal:
            return False
        lines = work.lines
        if held.size != self._seen:
            news = [row_of(*row) for row in execute(_NEWS, (Int8(held.file), Int8(self._seen)))]
            lines = work.revise(PostgresNews(news))
        if not lines:
            work.sent = Attempt(held, (), self._seen, (), self._links)
            return True
        if not self._ends_a_line:
            held = rows.end_with_newline(cursor, held)
        attempt, tiler = tiled(self.path, held, lines, self._links.copied())
        sought = attempt.links.unknown | attempt.links.added if work.doubled else attempt.links.unknown
        if sought:
            links = self._links.copied()
            links.learn(rows.links_to(execute, held.file, sought).items(), sought)
            attempt, tiler = tiled(self.path, held, lines, links)
        work.sent = attempt
        plain = not (tiler.damaged or tiler.doubled or tiler.parentless)
        if plain and len(attempt.tiles) < rows.FEW:
            return rows.append(execute, held, self._name, attempt.tiles, attempt.size)
        rows.insert(cursor, held.file, attempt.tiles)
        rows.grow(cursor, held.file, tiler)
        return True

    def _done(self, attempt: Attempt) -> Appended:
        """Remember what is in the journal now."""
        if attempt.tiles:
            self._held, self._seen, self._ends_a_line = attempt.held, attempt.size, True
            attempt.links.forget_old()
            self._links = attempt.links
            self._ahead, self._walked = Ahead(), None
        return Appended(attempt.positions, None)

    # -- durability

    def commit(self, mark: Any) -> None:
        """Do nothing: entries are durable when `append` returns."""

    def flush(self) -> None:
        """Raise if an append failed. Otherwise do nothing: entries are durable when `append` returns."""
        self._check_usable()

    # -- replacing

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Replace this journal with one that has the edited lines; bytes that are not a line stay as they are.

        With `keep` the old journal stays available under that name.
        """
        with self._mutex:
            self._check_usable()
            if keep is not None:
                atomic.make_folders(self._fs, posixpath.dirname(keep))
            while (done := self._replaced(edit, keep)) is None:
                self._open_again()
            seen = self._seen + done.shift
            self._open()
            self._seen = seen  # rows that other writers have added are still news

    def _replaced(self, edit: Callable[[bytes], bytes | None], keep: str | None) -> Replacement | None:
        """Replace the journal in one transaction; return `None` if another journal has the name now."""
        made: list[Replacement] = []

        def work(cursor: Cursor) -> Replacement | None:
            held = rows.hold(cursor, self._name, rename=True)
            if held is None:
                raise self._latch(not_found(self.path))
            if held.file != self._held.file:
                return None
            made.append(replaced(cursor, held, self.path, edit, keep, self._seen))
            if self._lease is not None:
                self._leases.take(_lease_of(made[-1].file))  # before other processes can see the journal
            return made[-1]

        done = None
        try:
            done = self._database.transact(work)
        except OutcomeUnknown as error:
            held = self._database.transact(lambda cursor: rows.hold(cursor, self._name, rename=True), again=True)
            if not made or held is None or held.file != made[-1].file:
                raise self._latch(error) from error.__cause__
            done = made[-1]
        finally:
            self._hold_instead(done, made)
        return done

    def _hold_instead(self, done: Replacement | None, made: Sequence[Replacement]) -> None:
        """Hold the journal that is in place now, and release the others."""
        if self._lease is not None:
            held = self._lease if done is None else _lease_of(done.file)
            for lease in (self._lease, *(_lease_of(one.file) for one in made)):
                if lease != held:
                    self._leases.release(lease)
            self._lease = held

    # -- drafts

    def hold(self) -> None:
        """Hold the journal until `release` or the end of the process: no other process can take it over."""
        with self._mutex:
            self._check_usable()
            if self._lease is not None and self._leases.holds(self._lease):
                return
            self._lease = None
            until = time.monotonic() + self._patience
            while True:
                lease = _lease_of(self._held.file)
                if self._leases.take(lease) is not None:
                    break
                if time.monotonic() >= until:
                    holder = self._leases.holder(lease)
                    hint = f"close the session in {holder}, or try again later" if holder else "try again later"
                    raise SessionBusy(path=self.path, hint=hint)
                time.sleep(_PAUSE)
            self._lease = lease
            now, _ = self._ask(rows.NOTHING_ELSE)
            if now.named is None:
                self.release()
                raise self._latch(not_found(self.path))
            if _lease_of(self._held.file) != lease:  # it was replaced before we held it
                self.release()
                self.hold()

    def release(self) -> None:
        """Release the journal."""
        with self._mutex:
            lease, self._lease = self._lease, None
            if lease is not None:
                self._leases.release(lease)

    def rename(self, path: str) -> None:
        """Give the journal another name in an existing folder."""
        with self._mutex:
            self._check_usable()
            if atomic.exists(self._fs, path):
                raise SessionExists(path=path, hint="choose another name; nothing was changed")
            try:
                self._fs.rename(self.path, path)
            except OSError as error:
                known = (
                    error
                    if isinstance(error, SessileError)
                    else storage_failure(error, self.path, "rename the session")
                )
                raise self._latch(known) from error
            self.path, self._name = path, name_of(path)


def _lease_of(file: int) -> str:
    return f"file:{file}"


# -- an append


class Attempt(NamedTuple):
    """Lines as the rows that are sent to the database."""

    held: Held  # the journal that they are appended to
    tiles: Sequence[Tile]
    size: int  # of the journal with them
    positions: Sequence[tuple[int, int]]
    links: Links  # with the new entries


@dataclass
class _Append:
    """An append with all its attempts; `sent` is the last one.

    `doubtful` is an attempt whose outcome is unknown, because of `error`. With `doubled`, an id may exist already.
    """

    lines: Sequence[bytes]
    revise: Revise
    sent: Attempt | None
    doubtful: Attempt | None = None
    error: OutcomeUnknown | None = None
    doubled: bool = False

    def doubt(self, error: OutcomeUnknown) -> None:
        """Remember that the outcome of the last attempt is unknown."""
        self.doubtful, self.error = self.sent, error


class PostgresNews:
    """The rows that other writers have added."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def rows(self) -> Sequence[Row]:
        return self._rows

    def child_of(self, entry_id: str) -> bool:
        return any(row.parent_id == entry_id for row in self._rows)


def tiled(path: str, held: Held, lines: Sequence[bytes], links: Links) -> tuple[Attempt, Tiler]:
    """Return the rows of lines appended to a journal, with the parents that `links` knows."""
    tiler = Tiler(path, links, held.size)
    tiles = [*tiler.feed(b"\n".join(lines) + b"\n"), *tiler.finish()]
    starts = accumulate((len(line) + 1 for line in lines), initial=held.size)
    positions = [(start, len(line)) for start, line in zip(starts, lines, strict=False)]
    return Attempt(held, tiles, tiler.size, positions, links), tiler


# -- replacing

_NEW = f"INSERT INTO file (journal, size, modified, links) VALUES (true, 0, {NOW}, 1) RETURNING id"
_RETIRE = f"""
    UPDATE file SET epoch = epoch + 1, links = links - %b, unnamed = CASE WHEN links = %b THEN {NOW} END WHERE id = %b"""


class Replacement(NamedTuple):
    """The file of the new journal, and by how many bytes the start of the news has moved."""

    file: int
    shift: int


def new_file(cursor: Cursor) -> int:
    """Create an empty journal without a name, and return its file."""
    ((file,),) = cursor.execute(_NEW).fetchall()
    return int(file)


def replaced(
    cursor: Cursor, held: Held, path: str, edit: Callable[[bytes], bytes | None], keep: str | None, seen: int
) -> Replacement:
    """Create a journal with the edited lines and give it the name; the old one gets the name `keep`, or none."""
    file = new_file(cursor)
    tiler = _tiler(path)
    shift = 0
    for batch in rows.batches(rows.executing(cursor), held.file, held.size):
        tiles: list[Tile] = []
        for start, body, gap in batch:
            new = edit(body) if body else None
            if new is not None and start < seen:
                shift += len(new) - len(body)
            tiles += tiler.feed((body if new is None else new) + (b"\n" if gap is None else gap))
        rows.insert(cursor, file, tiles)
    rows.insert(cursor, file, tiler.finish())
    rows.grow(cursor, file, tiler)
    cursor.execute("UPDATE name SET file = %b WHERE folder = %b AND base = %b", (Int8(file), *rows.name_of(path)))
    if keep is not None and not rows.give_name(cursor, keep, held.file):
        raise SessionExists(path=keep, hint="choose another name; nothing was changed")
    lost_names = Int8(0 if keep is not None else 1)
    cursor.execute(_RETIRE, (lost_names, lost_names, Int8(held.file)))
    return Replacement(file, shift)


def convert(database: Database, fs: Filesystem, path: str) -> None:
    """Convert a file of bytes to a journal, if it is not one yet; raise NotASession if that is impossible."""

    def work(cursor: Cursor) -> None:
        held = rows.hold(cursor, rows.name_of(path))
        if held is not None and not held.journal:
            rows.fill(cursor, held.file, _tiler(path), _chunks(fs, path))
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
