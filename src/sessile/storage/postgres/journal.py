"""The journal of a session in the database: appending, replacing, holding.

An append is one statement that adds rows if the journal is still as long as it was; it is durable when it returns. If somebody
else was faster, or the rows need something that is not known here (a parent on another branch, an id that is there already, a
line without its end), the journal is locked first: then nobody is faster again. A connection that breaks in the middle leaves
open what happened; the rows themselves tell, when the journal is locked the next time.

It knows lines, ids and parents, not what entries mean.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
)
from sessile.storage import atomic, log
from sessile.storage.base import Appended, Filesystem, News, Revise, Row
from sessile.storage.postgres import questions, writing
from sessile.storage.postgres.ahead import Ahead
from sessile.storage.postgres.appending import Attempt, PostgresNews, Turn, tiled
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.failures import OutcomeUnknown, Unreachable
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.links import Link, Links
from sessile.storage.postgres.reading import PostgresReader, not_found
from sessile.storage.postgres.replacing import Replacement, replaced, take_in
from sessile.storage.postgres.rows import row_of
from sessile.storage.postgres.writing import name_of

_AT_ONCE = 1 << 20  # bytes that one statement appends; more is copied
_PAUSE = 0.05
_NEWS = f"SELECT {questions.ROW} FROM entry e WHERE e.file = %b AND e.start >= %b AND e.id IS NOT NULL ORDER BY e.start"


class PostgresJournal(PostgresReader):
    """One journal, open for reading and appending. `patience` is how many seconds it waits for one that another holds."""

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
            take_in(self._database, self._fs, self.path)
            super()._open()

    def _begin(self, last: Row | None, link: Link | None) -> None:
        super()._begin(last, link)
        self._pid = os.getpid()
        self._seen = self._held.size  # where the news begin: what we have not written, nor were opened with
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

    def _go_on(self) -> bool:
        found = super()._go_on()
        if found:
            self._seen = 0  # all of it is news
        return found

    def _open_again(self) -> None:
        """Go on in the journal that has our name now, if it is the same session."""
        session_id = self.session_id
        self._open()
        if self.session_id != session_id:
            self.session_id = session_id
            raise SessionNotFound("another session has taken the place of this one", path=self.path)
        self._seen = 0  # all of it is news

    def reopen(self) -> None:
        """Begin anew after a failure, or after the journal was replaced."""
        with self._mutex:
            held = self._lease is not None
            self.release()
            self._open_again()
            self._seen = self._held.size
            self._closed, self._failure = False, None
            if held:
                self.hold()

    @property
    def failed(self) -> bool:
        """Whether an error is latched."""
        return self._failure is not None

    def close(self) -> None:
        """Give back what is held, then raise the first error that was latched."""
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
            raise StorageFailure("the session is closed", path=self.path, hint="open it again")
        if os.getpid() != self._pid:
            self._pid, self._lease = os.getpid(), None  # a forked child holds nothing of its parent's

    def _latch(self, error: SessileError) -> SessileError:
        if self._failure is None:
            self._failure = error
            log.error("writing to %s failed: %s", self.path, error.message)
        return error

    # -- appending

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        with self._mutex:
            self._check_usable()
            refused: list[BaseException] = []

            def asked(news: News) -> Sequence[bytes]:
                try:
                    return revise(news)
                except BaseException as error:
                    refused.append(error)
                    raise

            try:
                return self._appended(lines, asked)
            except (StorageFailure, SessionNotFound, NotASession) as error:
                if error not in refused:
                    self._latch(error)
                raise

    def _appended(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        turn = Turn(lines, revise, self._known(lines))
        if turn.sent is not None:
            held, tiles, size = turn.sent[:3]
            try:
                if writing.append(self._database.query, held, self._name, tiles, size):
                    return self._done(turn.sent)
            except errors.UniqueViolation:
                turn.doubled = True
            except OutcomeUnknown as error:
                turn.doubt(error)
        while True:
            try:
                if self._database.transact(partial(self._append_held, turn)):
                    assert turn.sent is not None
                    return self._done(turn.sent)
                self._open_again()
            except errors.UniqueViolation as error:
                if turn.doubled:
                    raise StorageFailure("the rows of the journal do not fit together", path=self.path) from error
                turn.doubled = True
            except OutcomeUnknown as error:
                turn.doubt(error)
            except Unreachable as error:
                raise turn.lost or error from error

    def _known(self, lines: Sequence[bytes]) -> Attempt | None:
        """The rows of lines that one statement can append, because everything is known that they need."""
        if not 0 < len(lines) < writing.FEW or sum(map(len, lines)) > _AT_ONCE:
            return None
        if not self._ends_a_line or not self._seen:
            return None
        attempt, tiler = tiled(self.path, self._held._replace(size=self._seen), lines, self._links.copied())
        return None if attempt.links.unknown or tiler.damaged or tiler.doubled else attempt

    def _append_held(self, turn: Turn, cursor: Cursor) -> bool:
        """Append under the lock of the journal; false if another one has our name now."""
        execute = writing.executing(cursor)
        held = writing.hold(cursor, self._name)
        if held is None:
            raise not_found(self.path)
        if turn.doubtful is not None and writing.is_there(execute, held, turn.doubtful.held, turn.doubtful.tiles):
            turn.sent = turn.doubtful
            return True
        if held.file != self._held.file or not held.journal:
            return False
        lines = turn.lines
        if held.size != self._seen:
            news = [row_of(*row) for row in execute(_NEWS, (Int8(held.file), Int8(self._seen)))]
            lines = turn.revise(PostgresNews(news))
        if not lines:
            turn.sent = Attempt(held, (), self._seen, (), self._links)
            return True
        if not self._ends_a_line:
            held = writing.end_with_newline(cursor, held)
        attempt, tiler = tiled(self.path, held, lines, self._links.copied())
        sought = attempt.links.unknown | attempt.links.added if turn.doubled else attempt.links.unknown
        if sought:
            links = self._links.copied()
            links.learn(writing.links_to(execute, held.file, sought).items(), sought)
            attempt, tiler = tiled(self.path, held, lines, links)
        turn.sent = attempt
        plain = not (tiler.damaged or tiler.doubled or tiler.parentless)
        if plain and len(attempt.tiles) < writing.FEW:
            return writing.append(execute, held, self._name, attempt.tiles, attempt.size)
        writing.insert(cursor, held.file, attempt.tiles)
        writing.grow(cursor, held.file, tiler)
        return True

    def _done(self, attempt: Attempt) -> Appended:
        """Note what is in the journal now."""
        if attempt.tiles:
            self._held, self._seen, self._ends_a_line = attempt.held, attempt.size, True
            attempt.links.forget_old()
            self._links = attempt.links
            self._ahead, self._walked = Ahead(), None
        return Appended(attempt.positions, None)

    # -- durability

    def commit(self, mark: Any) -> None:
        """Nothing to wait for: what was appended was as durable as the store promises when `append` returned."""

    def flush(self) -> None:
        """Nothing to wait for either."""

    # -- replacing

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Put a journal with the edited lines in the place of this one; bytes that are no line stay as they are.

        With `keep` the old journal stays reachable under that name.
        """
        with self._mutex:
            self._check_usable()
            if keep is not None:
                atomic.make_folders(self._fs, posixpath.dirname(keep))
            while (done := self._replaced(edit, keep)) is None:
                self._open_again()
            seen = self._seen + done.shift
            self._open()
            self._seen = seen  # what others have appended is still news

    def _replaced(self, edit: Callable[[bytes], bytes | None], keep: str | None) -> Replacement | None:
        """Do it in one transaction; `None` if another journal has our name now."""
        made: list[Replacement] = []

        def work(cursor: Cursor) -> Replacement | None:
            held = writing.hold(cursor, self._name, rename=True)
            if held is None:
                raise self._latch(not_found(self.path))
            if held.file != self._held.file:
                return None
            made.append(replaced(cursor, held, self.path, edit, keep, self._seen))
            if self._lease is not None:
                self._leases.take(_lease_of(made[-1].file))  # before anybody can know the journal
            return made[-1]

        done = None
        try:
            done = self._database.transact(work)
        except OutcomeUnknown as error:
            held = self._database.transact(lambda cursor: writing.hold(cursor, self._name, rename=True), again=True)
            if not made or held is None or held.file != made[-1].file:
                raise self._latch(error) from error.__cause__
            done = made[-1]
        finally:
            self._hold_instead(done, made)
        return done

    def _hold_instead(self, done: Replacement | None, made: Sequence[Replacement]) -> None:
        """Hold the journal that is in place now, and none of the others."""
        if self._lease is not None:
            held = self._lease if done is None else _lease_of(done.file)
            for lease in (self._lease, *(_lease_of(one.file) for one in made)):
                if lease != held:
                    self._leases.release(lease)
            self._lease = held

    # -- drafts

    def hold(self) -> None:
        """Keep the journal until `release` or the end of the process: nobody else can take it over."""
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
                    raise SessionBusy(path=self.path, hint=f"held by {holder}" if holder else "try again")
                time.sleep(_PAUSE)
            self._lease = lease
            now, _ = self._ask(questions.NOTHING_ELSE)
            if now.named is None:
                self.release()
                raise self._latch(not_found(self.path))
            if _lease_of(self._held.file) != lease:  # it was replaced before it was ours
                self.release()
                self.hold()

    def release(self) -> None:
        """Give the journal back."""
        with self._mutex:
            lease, self._lease = self._lease, None
            if lease is not None:
                self._leases.release(lease)

    def rename(self, path: str) -> None:
        """Give the journal another name in an existing folder."""
        with self._mutex:
            self._check_usable()
            if atomic.exists(self._fs, path):
                raise SessionExists(path=path, hint="something has that name already; nothing was changed")
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
