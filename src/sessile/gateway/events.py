"""Live events of sessions, for every connected client.

    Feed            the rows of one session as events; reads its journal
    Subscription    the events that wait for one client
    Hub             all clients, and the sessions that they follow

Rules:
- Durable entries are not pushed. Clients learn how far a journal reaches, and read it by row number from where they
  are. So each client gets every entry once and in order, also across a restart, and a slow client needs no memory for
  entries.
- An entry is identified by its row number, counted from 1, and the id of an event is the place to continue from. Leaf
  markers have numbers, but no events. Numbers are valid as long as no rows are removed from the journal; that is
  detected by the id of the last row.
- Events without an entry (deltas, typing, notices) are queued in the order of publication, in their place between the
  entries.
- A client whose queue is full is dropped. Its last event says so, and it can reconnect with the id of the event before.
  Nothing counts as sent before it is handed out, and waiting can be cancelled at any time.
- Entries of other processes are found by checking each followed file four times a second.
- A client that listens to all sessions gets events of those that `publish` names while it listens. Resuming is best
  effort then, and the first event says so.

The hub runs on the event loop, and reads on its own threads. Feeds block, and may be used from several threads. Nothing
here knows HTTP.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import anyio
from anyio import to_thread

from sessile.core.ids import check_session_id
from sessile.errors import Invalid, InvalidQuery, LeafMoved, NotFound, SessileError, TooMany, storage_failures
from sessile.gateway.turns.replies import shown
from sessile.storage.base import Stamp, Stat, stamp_of

if TYPE_CHECKING:
    from sessile.core.entries import Entry
    from sessile.session import Session


BATCH = 64  # rows read at once, so that a long session neither fills the memory nor blocks others

T = TypeVar("T")

_CLIENTS = 100
_BACKLOG = 256  # events that wait for one client, a few hundred bytes each; entries do not wait here
_INTERVAL = 0.25  # seconds between checks; with the browser's own delay an entry of another process is shown within one
_STALLED = 1.0  # seconds after which an idle client may be dropped in favour of another
_FOLLOWED = 100  # sessions that are followed for listeners to all sessions only; each is an open file
_THREADS = 4  # the hub must not wait for turns, nor turns for the hub

Kind = Literal["entry", "delta", "typing", "turn", "notice", "compaction", "reset"]

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


class Event(NamedTuple):
    """An event. One without an entry has no id; one about no session has no session id."""

    id: str | None
    session_id: str | None
    kind: Kind
    data: dict[str, Any]


class EventId(NamedTuple):
    """A position in a session: a number of rows."""

    session_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Parse an id that a client sends as Last-Event-ID."""
        session_id, _, number = text.rpartition(":")
        if not _NUMBER.fullmatch(number):
            raise InvalidQuery(f"invalid event id {text[:80]!r}", hint="send the id of a received event")
        return cls(check_session_id(session_id), int(number))


class Row(NamedTuple):
    """A row of a journal. A leaf marker has no event."""

    number: int
    entry_id: str
    event: Event | None


class News(NamedTuple):
    """New rows. `complete` if there are no more, `reached` if they include the requested entry."""

    since: int
    rows: Sequence[Row]
    complete: bool
    reached: bool


OpenSession = Callable[[str], "Session"]
"""Opens the session with an id for reading."""

LStat = Callable[[str], Stat]
"""Stats a path, as `os.lstat` does."""


class Feed:
    """The rows of one session that is followed, whichever process appended them."""

    def __init__(self, session_id: str, open_session: OpenSession, lstat: LStat) -> None:
        self.session_id = session_id
        self.total = 0  # number of known rows
        self._open_session = open_session
        self._lstat = lstat
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        self._path = ""
        self._inode: int | None = None
        self._seen: Stamp | None = None  # the file when its last row was read; `None` if there may be more rows
        self._last_id: str | None = None
        self._latest: Sequence[Row] = ()  # the latest rows, so that many clients cost one read
        self._recent_ids: deque[str] = deque(maxlen=BATCH)

    def begin(self, entry_id: str | None = None) -> None:
        """Open the session and count its rows, up to `entry_id` if that is one of the last entries."""
        with self._lock:
            if self._session is not None:
                return
            if self._closed:
                with self._open_session(self.session_id):  # raises the reason for late callers, too
                    return
            session = self._open()
            # Entries without markers are counted at once. The rows after that many are as many as there are markers.
            entries = session.count_entries()
            self.total = entries + sum(1 for _ in session.iter_lines(entries))
            last = self._rows(session, max(0, self.total - BATCH - 1), self.total)
            ids = [row.entry_id for row in last]
            if entry_id in ids:
                self.total -= len(ids) - ids.index(entry_id)
                ids = ids[: ids.index(entry_id)]
            self._last_id = ids[-1] if ids else None

    def check(self, number: int) -> None:
        """Raise if the session has fewer rows."""
        if number and not self.read(number - 1, number):
            raise InvalidQuery(f"the session has no event {number}", hint="reload the session, then subscribe again")

    def news(self, until: str | None = None) -> News:
        """Return new rows, at most a batch, up to the entry `until`. Costs one `lstat` if there are none."""
        self.begin(until)
        with self._lock:
            since = self.total
            mark = self._mark()
            if self._closed or until in self._recent_ids or (mark is not None and mark == self._seen):
                return News(since, (), complete=mark == self._seen, reached=True)
            session = self._session
            if session is None or (mark and mark[0]) != self._inode:
                session = self._open()
            rows = self._rows_after(session, since)
            wanted = next((number for number, row in enumerate(rows, 1) if row.entry_id == until), None)
            complete = len(rows) < BATCH and wanted in (None, len(rows))
            rows = rows[:wanted]
            self._seen = mark if complete else None
            if rows:
                self.total, self._last_id, self._latest = rows[-1].number, rows[-1].entry_id, rows
                self._recent_ids.extend(row.entry_id for row in rows)
            return News(since, rows, complete, reached=complete or wanted is not None)

    def _rows_after(self, session: Session, since: int) -> Sequence[Row]:
        """Return the rows after the last known one, which must be unchanged."""
        if not since:
            return self._rows(session, 0, BATCH)
        rows = self._rows(session, since - 1, since + BATCH)
        if not rows or rows[0].entry_id != self._last_id:
            raise LeafMoved("the session was rewritten, so event ids have changed", hint="reload the session")
        return rows[1:]

    def latest(self, start: int, stop: int) -> Sequence[Row]:
        """Return the rows after `start`, as far as the latest news contains them. Never blocks."""
        rows = self._latest
        if not rows or not rows[0].number <= start + 1 <= rows[-1].number:
            return ()
        return [row for row in rows if start < row.number <= stop]

    def read(self, start: int, stop: int) -> Sequence[Row]:
        """Return the rows after `start` up to number `stop`, at most a batch."""
        stop = min(stop, start + BATCH)
        with self._lock:
            if self._session is not None:
                return self._rows(self._session, start, stop)
            with self._open_session(self.session_id) as session:  # no longer followed, but these rows were announced
                return self._rows(session, start, stop)

    def close(self) -> None:
        """Close the session for good."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def _open(self) -> Session:
        """Reopen the session. Its path is checked before, so that a file that replaces it later is noticed."""
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

    def _mark(self) -> Stamp | None:
        """Return what shows changes of the file; `None` if there is no file (yet, for a draft)."""
        with storage_failures(self._path, "check the session"):
            try:
                stat = self._lstat(self._path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return stamp_of(stat)

    def _rows(self, session: Session, start: int, stop: int) -> list[Row]:
        lines = islice(session.iter_lines(start), stop - start)
        return [Row(number, entry.id, self._event(number, entry)) for number, entry in enumerate(lines, start + 1)]

    def _event(self, number: int, entry: Entry) -> Event | None:
        data = shown(entry.stored)  # kept for clients that reconnect: images are fetched by those that want them
        return None if data is None else Event(str(EventId(self.session_id, number)), self.session_id, "entry", data)


# -- clients


class Reach(NamedTuple):
    """An item of a backlog: the session has `total` rows now. `since` is the start for clients that do not know it yet."""

    feed: Feed
    since: int
    total: int


class Subscription:
    """The events of one client. `close` it, or use it as a context manager. Closing never waits."""

    def __init__(
        self,
        session_id: str | None,
        backlog: int,
        on_thread: Callable[[Callable[[], Sequence[Row]]], Awaitable[Sequence[Row]]],
        leave: Callable[[Subscription], None],
    ) -> None:
        self.session_id = session_id
        # When the client took its last event; `None` while it waits for one.
        self.idle_since: float | None = anyio.current_time()
        self._on_thread = on_thread
        self._leave = leave
        self._limit = backlog
        self._begun = self._over = False
        self._backlog: deque[Event | Reach] = deque()
        self._read: deque[tuple[EventId, Event | None]] = deque()
        self._numbers: dict[str, int] = {}  # the client's position in each session
        self._last_event: Event | None = None
        self._changed = anyio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. May be cancelled without losing events."""
        self.idle_since = None
        try:
            while not self._over:
                event = self._take()
                if event is not None:
                    return event
                if self._backlog:
                    await self._fetch()
                else:
                    self._changed = anyio.Event()
                    await self._changed.wait()
        finally:
            self.idle_since = anyio.current_time()
        last, self._last_event = self._last_event, None
        if last is None:
            raise StopAsyncIteration
        return last

    def _take(self) -> Event | None:
        """Return the next event that need not be read from a file."""
        while self._read:
            place, event = self._read.popleft()
            self._numbers[place.session_id] = place.number
            if event is not None:
                return event
        if self._backlog and isinstance(self._backlog[0], Event):
            event = self._backlog[0]
            self._backlog.popleft()
            return event
        return None

    async def _fetch(self) -> None:
        """Read rows up to the first item of the backlog, and remove the item when all are delivered."""
        item = self._backlog[0]
        if isinstance(item, Event):
            return
        feed = item.feed
        start = self._numbers.setdefault(feed.session_id, item.since)
        if start >= item.total:
            self._backlog.popleft()
            return
        rows = feed.latest(start, item.total)
        if not rows:
            try:
                rows = await self._on_thread(partial(feed.read, start, item.total))
            except SessileError as error:
                self.fail(error)
                return
        if self._over:
            return
        if rows:
            self._read.extend((EventId(feed.session_id, row.number), row.event) for row in rows)
        else:
            self.fail(LeafMoved())

    def begin(self, first: Event, reach: Reach | None, number: int | None) -> None:
        """Start with an event, and in a session after `number` rows."""
        self._begun = True
        self._backlog.append(first)
        if reach is not None:
            self._backlog.append(reach)
            if number is not None:
                self._numbers[reach.feed.session_id] = number

    def offer(self, item: Event | Reach) -> None:
        """Add an item to the backlog. Drop the client if it is full."""
        if self._over or not self._begun:
            return
        last = self._backlog[-1] if self._backlog else None
        if isinstance(last, Reach) and isinstance(item, Reach) and last.feed is item.feed:
            self._backlog[-1] = last._replace(total=item.total)
        elif len(self._backlog) >= self._limit:
            self.end("slow", "this client is too slow; reconnect to continue after the last event")
        else:
            self._backlog.append(item)
        self._changed.set()

    def fail(self, error: SessileError) -> None:
        """End because the session cannot be read."""
        if isinstance(error, LeafMoved):
            # An empty id makes the client forget its own, which is invalid now.
            self.end("rewritten", "the session was rewritten; reload it", event_id="")
        elif isinstance(error, NotFound):
            self.end("gone", "the session no longer exists")
        else:
            self.end("failed", f"the session cannot be read: {error.message}")

    def end(self, notice: str, text: str, *, event_id: str | None = None) -> None:
        """Drop the backlog. One last event says why."""
        if not self._over:
            self._last_event = Event(event_id, self.session_id, "notice", {"notice": notice, "text": text})
            self.close()

    def close(self) -> None:
        """Stop listening."""
        self._over = True
        self._backlog.clear()
        self._read.clear()
        self._leave(self)
        self._changed.set()


# -- the hub


class _Channel:
    """A followed session: its feed, its listeners, and published events that were not passed on yet.

    An announced entry is read first. Events published after it wait in `inbox`.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.listeners: set[Subscription] = set()
        self.inbox: deque[Event] = deque()
        self.complete = True


class Hub:
    """All clients, and the sessions that they follow. `run` must be running while the hub is used."""

    def __init__(
        self,
        open_session: OpenSession,
        lstat: LStat,
        *,
        clients: int = _CLIENTS,
        backlog: int = _BACKLOG,
        interval: float = _INTERVAL,
    ) -> None:
        self._open_session = open_session
        self._lstat = lstat
        self._most_clients = clients
        self._backlog = backlog
        self._interval = interval
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._clients: set[Subscription] = set()
        self._channels: dict[str, _Channel] = {}  # in the order of their last use
        self._everywhere: set[Subscription] = set()  # clients that listen to all sessions
        self._left: list[Feed] = []  # feeds that could not be read any more
        self._woken = anyio.Event()
        self._next_look = 0.0

    # -- publishing

    def is_followed(self, session_id: str) -> bool:
        """Return whether any client follows a session."""
        return bool(self._everywhere) or session_id in self._channels

    def publish(self, event: Event) -> None:
        """Send an event to clients. Of an entry only session and id are used: it is read from the journal at once.

        Must be called on the loop. The entry must be durable. Without an id, all durable entries are meant.
        """
        session_id = event.session_id
        channel = None if session_id is None else self._channels.get(session_id)
        if event.kind != "entry" and (channel is None or not channel.inbox):
            self._tell(channel, event)
            return
        if channel is None and session_id is not None and self._everywhere:
            channel = self._channel(session_id)
        if channel is None:
            return  # no listeners
        inbox = channel.inbox
        if len(inbox) > 1 and event.kind == inbox[-1].kind == "entry":
            inbox[-1] = event  # reading up to this one includes the one before; the first says where to start
        elif len(inbox) < self._backlog:
            inbox.append(event)
        else:
            self._end_all(channel, "slow", "the session cannot be read fast enough; reconnect")
        self._woken.set()

    def _listeners(self, channel: _Channel | None) -> Sequence[Subscription]:
        return [*self._everywhere, *(() if channel is None else channel.listeners)]

    def _tell(self, channel: _Channel | None, item: Event | Reach) -> None:
        for listener in self._listeners(channel):
            listener.offer(item)

    def _end_all(self, channel: _Channel, notice: str, text: str) -> None:
        channel.inbox.clear()
        for listener in self._listeners(channel):
            listener.end(notice, text)

    # -- subscribing

    async def subscribe(self, session_id: str | None, after: str | None = None) -> Subscription:
        """Subscribe to a session, or to all, from now on or after the event with the id `after`.

        The first event says from where, and has an id to resume from. Raise if the arguments are invalid.
        """
        resume = None if after is None else EventId.parse(after)
        if session_id is not None and resume is not None and check_session_id(session_id) != resume.session_id:
            raise InvalidQuery(
                "the event id belongs to another session", hint="send it for its own session, or omit it"
            )
        self._make_room()
        subscription = Subscription(session_id, self._backlog, self._on_thread, self._leave)
        self._clients.add(subscription)
        try:
            if session_id is None:
                await self._listen_everywhere(subscription, resume)
            else:
                await self._listen(subscription, check_session_id(session_id), resume)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _make_room(self) -> None:
        """At the limit, drop the client that has been idle longest. If none is idle, raise `TooMany`."""
        if len(self._clients) < self._most_clients:
            return
        idle = [(client.idle_since, client) for client in self._clients if client.idle_since is not None]
        since, slowest = min(idle, key=lambda pair: pair[0], default=(0.0, None))
        if slowest is None or anyio.current_time() - since < _STALLED:
            raise TooMany(f"{self._most_clients} clients are connected already", hint="disconnect one of them")
        slowest.end("slow", "dropped in favour of another client, as the slowest one; reconnect")

    async def _listen(self, subscription: Subscription, session_id: str, resume: EventId | None) -> None:
        channel = self._channel(session_id)
        channel.listeners.add(subscription)
        await self._open(channel.feed, resume)
        # Nothing is awaited from here on, so that no row is missed.
        reach = Reach(channel.feed, channel.feed.total, channel.feed.total)
        number = reach.total if resume is None else resume.number
        first = {"notice": "open", "text": "every entry after this event follows once, in order", "resume": "exact"}
        place = str(EventId(session_id, number))
        subscription.begin(Event(place, session_id, "notice", first), reach, number)

    async def _listen_everywhere(self, subscription: Subscription, resume: EventId | None) -> None:
        self._everywhere.add(subscription)
        reach = None
        if resume is not None:
            feed = self._channel(resume.session_id).feed
            try:
                await self._open(feed, resume)
                reach = Reach(feed, resume.number, feed.total)
            except (NotFound, Invalid):
                pass  # then the first event names no session
        text = "entries of sessions that were not resumed may be missing; reload them"
        resumed = [] if reach is None else [reach.feed.session_id]
        first = {"notice": "open", "text": text, "resume": "best effort", "resumed": resumed}
        subscription.begin(Event(None, None, "notice", first), reach, None)

    async def _open(self, feed: Feed, resume: EventId | None) -> None:
        await self._on_thread(feed.begin)
        if resume is not None:
            await self._on_thread(partial(feed.check, resume.number))

    def _channel(self, session_id: str) -> _Channel:
        channel = self._channels.pop(session_id, None)
        if channel is None:
            channel = _Channel(Feed(check_session_id(session_id), self._open_session, self._lstat))
        self._channels[session_id] = channel
        return channel

    def _leave(self, subscription: Subscription) -> None:
        """Forget a client."""
        self._clients.discard(subscription)
        self._everywhere.discard(subscription)
        for channel in self._channels.values():
            channel.listeners.discard(subscription)
        self._woken.set()

    async def _on_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking function on a thread of the hub."""
        return await to_thread.run_sync(call, limiter=self._threads)

    # -- reading

    async def run(self) -> None:
        """Look for new entries until cancelled. Then end all subscriptions and close all files."""
        try:
            while True:
                with anyio.move_on_after(self._interval):
                    await self._woken.wait()
                self._woken = anyio.Event()
                await self._look()
        finally:
            self.close()
            with anyio.CancelScope(shield=True):
                await self._on_thread(partial(_read, (), self._unwanted()))

    def close(self) -> None:
        """End all subscriptions. Their last event says that the gateway stops."""
        for client in list(self._clients):
            client.end("closing", "the gateway is stopping; reconnect when it is back")

    async def _look(self) -> None:
        """Read announced entries, and at intervals look for others."""
        unwanted = self._unwanted()
        now = anyio.current_time()
        due = now >= self._next_look
        if due:
            self._next_look = now + self._interval
        channels = [channel for channel in self._channels.values() if due or channel.inbox or not channel.complete]
        announced = [channel.inbox[0] if channel.inbox else None for channel in channels]
        asked = [
            (channel.feed, first and first.data.get("id")) for channel, first in zip(channels, announced, strict=True)
        ]
        if not asked and not unwanted:
            return
        answers = await self._on_thread(partial(_read, asked, unwanted))
        for channel, first, answer in zip(channels, announced, answers, strict=True):
            if isinstance(answer, SessileError):
                self._give_up(channel, answer)
            else:
                self._pass_on(channel, first, answer)

    def _unwanted(self) -> Sequence[Feed]:
        """Remove sessions without listeners, and the oldest of those that are followed for `all` only."""
        alone = [session_id for session_id, channel in self._channels.items() if not channel.listeners]
        leaving = alone[: max(0, len(alone) - _FOLLOWED)] if self._everywhere else alone
        left, self._left = self._left, []
        return left + [self._channels.pop(session_id).feed for session_id in leaving]

    def _pass_on(self, channel: _Channel, announced: Event | None, news: News) -> None:
        """Announce how far the session reaches, then what waited for that."""
        channel.complete = news.complete
        if news.rows:
            self._tell(channel, Reach(channel.feed, news.since, news.rows[-1].number))
        inbox = channel.inbox
        if announced is not None and news.reached and inbox and inbox[0] is announced:
            inbox.popleft()
            while inbox and inbox[0].kind != "entry":
                self._tell(channel, inbox.popleft())
        if inbox or not news.complete:
            self._woken.set()

    def _give_up(self, channel: _Channel, error: SessileError) -> None:
        """Stop following a session that cannot be read, and tell clients."""
        session_id = channel.feed.session_id
        self._left.append(channel.feed)
        if self._channels.get(session_id) is channel:
            del self._channels[session_id]
        for listener in list(channel.listeners):
            listener.fail(error)
        self._woken.set()
        notice = {"notice": "failed", "text": f"cannot follow the session: {error.message}"}
        for listener in list(self._everywhere):
            listener.offer(Event(None, session_id, "notice", notice))


def _read(asked: Sequence[tuple[Feed, str | None]], unwanted: Sequence[Feed]) -> list[News | SessileError]:
    """Close some feeds, and read news of others up to an entry. Blocks."""
    for feed in unwanted:
        feed.close()
    answers: list[News | SessileError] = []
    for feed, until in asked:
        try:
            answers.append(feed.news(until))
        except SessileError as error:
            answers.append(error)
    return answers
