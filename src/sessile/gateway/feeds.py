"""What clients are told of one session, and how its durable part is read.

Rules: an entry is known by its row number in the journal, counted from 1, so that nothing has to be remembered about what
was told: the id of an event is the place to go on from. Leaf markers have numbers but are not told, and an entry is told as
`delivering` shows it. Everything here blocks and belongs on a thread; a feed may be used from several. Numbers hold as long as
nobody takes rows out of the journal; that is noticed by the id of the last row, and raised.

It does not know who listens.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from sessile.core.ids import check_session_id
from sessile.errors import InvalidQuery, LeafMoved, storage_failures
from sessile.gateway.delivering import shown

if TYPE_CHECKING:
    from sessile import Entry, Session

BATCH = 64  # rows that are read at once, so that a long session neither fills the memory nor makes others wait

Kind = Literal["entry", "delta", "typing", "turn", "notice", "compaction", "reset"]

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


class Event(NamedTuple):
    """Something that clients are told. What is live only has no id; what concerns no session has no session id."""

    id: str | None
    session_id: str | None
    kind: Kind
    data: dict[str, Any]


class EventId(NamedTuple):
    """How far a client has come in a session: so many rows."""

    session_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> EventId:
        """The id that a client sends back as Last-Event-ID."""
        session_id, _, number = text.rpartition(":")
        if not _NUMBER.fullmatch(number):
            raise InvalidQuery(f"{text[:80]!r} is no event id", hint="send the id of an event back as it came")
        return cls(check_session_id(session_id), int(number))


class Row(NamedTuple):
    """One row of a journal; a leaf marker has no event."""

    number: int
    entry_id: str
    event: Event | None


class News(NamedTuple):
    """Rows that were not known before; `complete` if there are no more, `reached` if those that were asked for are told."""

    since: int
    rows: Sequence[Row]
    complete: bool
    reached: bool


class Stat(Protocol):
    """The part of `os.stat_result` by which a change is noticed."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


OpenSession = Callable[[str], "Session"]
"""Opens the session with an id for reading; its `close` is called."""

LStat = Callable[[str], Stat]
"""What a path is, as `os.lstat` says; of a store, `store.fs.lstat`."""

Mark = tuple[int, int, int]


class Feed:
    """The rows of one session that somebody follows, own and others'."""

    def __init__(self, session_id: str, open_session: OpenSession, lstat: LStat) -> None:
        self.session_id = session_id
        self.total = 0  # rows that are known
        self._open_session = open_session
        self._lstat = lstat
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        self._path = ""
        self._inode: int | None = None
        self._seen: Mark | None = None  # the file when the last row was read; `None` if there may be more
        self._last_id: str | None = None
        self._latest: Sequence[Row] = ()  # the last news, so that many clients cost one reading
        self._told_ids: deque[str] = deque(maxlen=BATCH)

    def begin(self, entry_id: str | None = None) -> None:
        """Open the session and count its rows, or only those before one of its last entries."""
        with self._lock:
            if self._session is not None:
                return
            if self._closed:
                with self._open_session(self.session_id):  # whoever was late hears why, too
                    return
            session = self._open()
            # Entries without markers are counted at once; the rows behind that many are as many as there are markers.
            entries = session.count_entries()
            self.total = entries + sum(1 for _ in session.iter_lines(entries))
            last = self._rows(session, max(0, self.total - BATCH - 1), self.total)
            ids = [row.entry_id for row in last]
            if entry_id in ids:
                self.total -= len(ids) - ids.index(entry_id)
                ids = ids[: ids.index(entry_id)]
            self._last_id = ids[-1] if ids else None

    def check(self, number: int) -> None:
        """Raise if the session has not as many rows."""
        if number and not self.read(number - 1, number):
            raise InvalidQuery(f"the session has no event {number} any more", hint="load it anew, then subscribe")

    def news(self, until: str | None = None) -> News:
        """The rows behind the known ones, at most a batch, and none behind the entry `until`; costs one `lstat` if none."""
        self.begin(until)
        with self._lock:
            since = self.total
            mark = self._mark()
            if self._closed or until in self._told_ids or (mark is not None and mark == self._seen):
                return News(since, (), complete=mark == self._seen, reached=True)
            session = self._session
            if session is None or (mark and mark[0]) != self._inode:
                session = self._open()
            rows = self._behind(session, since)
            wanted = next((number for number, row in enumerate(rows, 1) if row.entry_id == until), None)
            complete = len(rows) < BATCH and wanted in (None, len(rows))
            rows = rows[:wanted]
            self._seen = mark if complete else None
            if rows:
                self.total, self._last_id, self._latest = rows[-1].number, rows[-1].entry_id, rows
                self._told_ids.extend(row.entry_id for row in rows)
            return News(since, rows, complete, reached=complete or wanted is not None)

    def _behind(self, session: Session, since: int) -> Sequence[Row]:
        """The rows behind the last known one, which must still be what it was."""
        if not since:
            return self._rows(session, 0, BATCH)
        rows = self._rows(session, since - 1, since + BATCH)
        if not rows or rows[0].entry_id != self._last_id:
            raise LeafMoved("the session was rewritten, and its events have other numbers now", hint="load it anew")
        return rows[1:]

    def latest(self, start: int, stop: int) -> Sequence[Row]:
        """The rows behind the first `start` as far as the last news hold them; never blocks."""
        rows = self._latest
        if not rows or not rows[0].number <= start + 1 <= rows[-1].number:
            return ()
        return [row for row in rows if start < row.number <= stop]

    def read(self, start: int, stop: int) -> Sequence[Row]:
        """The rows behind the first `start`, at most a batch, up to and with number `stop`."""
        stop = min(stop, start + BATCH)
        with self._lock:
            if self._session is not None:
                return self._rows(self._session, start, stop)
            with self._open_session(self.session_id) as session:  # nobody follows it any more, but this was promised
                return self._rows(session, start, stop)

    def close(self) -> None:
        """Let go of the file, for good."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def _open(self) -> Session:
        """Open the session anew. Its name is looked at before, so that a file which takes its place later is noticed."""
        if self._session is not None:
            self._session.close()
            self._session = None
        while True:
            mark = self._mark()
            session = self._open_session(self.session_id)
            if session.path == self._path:
                self._session, self._inode, self._seen = session, mark and mark[0], None
                return session
            self._path = session.path
            session.close()

    def _mark(self) -> Mark | None:
        """By what a change is noticed; `None` if there is no such file (yet, for a draft)."""
        with storage_failures(self._path, "look at the session"):
            try:
                stat = self._lstat(self._path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _rows(self, session: Session, start: int, stop: int) -> list[Row]:
        lines = islice(session.iter_lines(start), stop - start)
        return [Row(number, entry.id, self._event(number, entry)) for number, entry in enumerate(lines, start + 1)]

    def _event(self, number: int, entry: Entry) -> Event | None:
        told = shown(entry)
        return None if told is None else Event(str(EventId(self.session_id, number)), self.session_id, "entry", told)
