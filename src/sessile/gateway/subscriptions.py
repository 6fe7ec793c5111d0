"""The events of one client: what waits for it, and how far it has come in each session.

Rules: entries do not wait here, only the number up to which a session can be read; so what a slow client costs is bounded.
Nothing is counted as told before it is handed out, and waiting can be cancelled at any moment. A client that is dropped
gets one last event that says why.

It does not know who else listens, nor when sessions grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import anyio

from sessile.errors import LeafMoved, NotFound, SessileError
from sessile.gateway.feeds import Event, EventId, Feed, Row


class Reach(NamedTuple):
    """In a backlog: the session has so many rows now; `since` is how many it had for those who do not know it."""

    feed: Feed
    since: int
    total: int


class Subscription:
    """The events of one client, one after the other. `close` it, or use it with `with`; closing never waits."""

    def __init__(
        self,
        session_id: str | None,
        backlog: int,
        on_thread: Callable[[Callable[[], Sequence[Row]]], Awaitable[Sequence[Row]]],
        leave: Callable[[Subscription], None],
    ) -> None:
        self.session_id = session_id
        # When it took its last event; `None` while it waits for one.
        self.idle_since: float | None = anyio.current_time()
        self._on_thread = on_thread
        self._leave = leave
        self._limit = backlog
        self._begun = self._over = False
        self._backlog: deque[Event | Reach] = deque()
        self._read: deque[tuple[EventId, Event | None]] = deque()
        self._numbers: dict[str, int] = {}  # how far it has come in each session
        self._farewell: Event | None = None
        self._stirred = anyio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event. May be cancelled: nothing is lost by that."""
        self.idle_since = None
        try:
            while not self._over:
                event = self._take()
                if event is not None:
                    return event
                if self._backlog:
                    await self._fetch()
                else:
                    self._stirred = anyio.Event()
                    await self._stirred.wait()
        finally:
            self.idle_since = anyio.current_time()
        farewell, self._farewell = self._farewell, None
        if farewell is None:
            raise StopAsyncIteration
        return farewell

    def _take(self) -> Event | None:
        """The next event that need not be read first."""
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
        """Read the next rows up to where the first item of the backlog says; take the item away when they are told."""
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
        """Start with an event, and in a session behind so many rows."""
        self._begun = True
        self._backlog.append(first)
        if reach is not None:
            self._backlog.append(reach)
            if number is not None:
                self._numbers[reach.feed.session_id] = number

    def offer(self, item: Event | Reach) -> None:
        """Put something at the end of the backlog. If there is no room the client is dropped."""
        if self._over or not self._begun:
            return
        last = self._backlog[-1] if self._backlog else None
        if isinstance(last, Reach) and isinstance(item, Reach) and last.feed is item.feed:
            self._backlog[-1] = last._replace(total=item.total)
        elif len(self._backlog) >= self._limit:
            self.end("slow", "you are too slow; connect again, and go on behind the last event")
        else:
            self._backlog.append(item)
        self._stirred.set()

    def fail(self, error: SessileError) -> None:
        """End because the session cannot be read any more."""
        if isinstance(error, LeafMoved):
            # An empty id makes the client forget its own, which means another entry now.
            self.end("rewritten", "the session was rewritten; load it anew", event_id="")
        elif isinstance(error, NotFound):
            self.end("gone", "the session is not there any more")
        else:
            self.end("failed", f"the session cannot be read: {error.message}")

    def end(self, notice: str, text: str, *, event_id: str | None = None) -> None:
        """Drop what waits; one last event says why."""
        if not self._over:
            self._farewell = Event(event_id, self.session_id, "notice", {"notice": notice, "text": text})
            self.close()

    def close(self) -> None:
        """Listen no more."""
        self._over = True
        self._backlog.clear()
        self._read.clear()
        self._leave(self)
        self._stirred.set()
