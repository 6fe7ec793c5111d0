"""The hub: live events of sessions, for every client that listens.

Rules: a durable entry is never pushed. Clients are only told how far a session's journal reaches, and read it by row
number from where they are; so each gets every entry once and in order, also behind a restart, and a slow one costs no
memory for entries. What is live only (deltas, typing, notices) is queued, in the order in which it was published and in its
place between the entries. A client whose queue is full is dropped: its last event says so, and it comes back with the id of
the event before. Entries of other processes are found by looking at each followed file four times a second, in one place.

Who listens to all sessions hears of those that the gateway names with `publish` while it listens; resuming is best effort
there, and the first event says so.

Everything here runs on the loop, and reading on threads of its own. It does not know HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread

from sessile.core.ids import check_session_id
from sessile.errors import Invalid, InvalidQuery, NotFound, SessileError, TooMany
from sessile.gateway.feeds import Event, EventId, Feed, Kind, LStat, News, OpenSession
from sessile.gateway.subscriptions import Reach, Subscription

__all__ = ["Event", "EventId", "Hub", "Kind", "Subscription"]

T = TypeVar("T")

_CLIENTS = 100
_BACKLOG = 256  # events that wait for one client; at most some hundred bytes each, for entries do not wait here
_INTERVAL = 0.25  # seconds; with what the browser needs, an entry of another process is shown within one
_STALLED = 1.0  # seconds in which a client took nothing, after which its place can be given away
_FOLLOWED = 100  # sessions that are followed only for those who listen to all; each is an open file
_THREADS = 4  # the hub must not wait for turns, nor turns for the hub


class _Channel:
    """A session that is followed: its feed, who listens to it, and what was published but not passed on yet.

    An entry that is announced is read first; what is published behind it waits for that in `inbox`.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.listeners: set[Subscription] = set()
        self.inbox: deque[Event] = deque()
        self.complete = True


class Hub:
    """All clients, and the sessions that they listen to. `run` must be running, once, as long as it is used."""

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
        self._channels: dict[str, _Channel] = {}  # the one that was named last is the last
        self._everywhere: set[Subscription] = set()  # those who listen to all sessions
        self._left: list[Feed] = []  # those that could not be read any more
        self._woken = anyio.Event()
        self._next_look = 0.0

    # -- telling

    def is_followed(self, session_id: str) -> bool:
        """Whether anybody listens to a session: for those who have much to tell, and mostly to nobody."""
        return bool(self._everywhere) or session_id in self._channels

    def publish(self, event: Event) -> None:
        """Tell clients something. Of an entry only session and id count: it is read from the journal, at once.

        To be called on the loop. An entry must be durable, and an event without its id means all that are.
        """
        session_id = event.session_id
        channel = None if session_id is None else self._channels.get(session_id)
        if event.kind != "entry" and (channel is None or not channel.inbox):
            self._tell(channel, event)
            return
        if channel is None and session_id is not None and self._everywhere:
            channel = self._channel(session_id)
        if channel is None:
            return  # nobody listens
        inbox = channel.inbox
        if len(inbox) > 1 and event.kind == inbox[-1].kind == "entry":
            inbox[-1] = event  # reading as far as this one reads the one before; the first says where to begin
        elif len(inbox) < self._backlog:
            inbox.append(event)
        else:
            self._end_all(channel, "slow", "the session cannot be read fast enough; connect again")
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

    # -- listening

    async def subscribe(self, session_id: str | None, after: str | None = None) -> Subscription:
        """The events of a session, or of all, from now on or behind the event with the id `after`.

        The first event says from where, and carries an id to resume from. Raises what is wrong with the arguments.
        """
        resume = None if after is None else EventId.parse(after)
        if session_id is not None and resume is not None and check_session_id(session_id) != resume.session_id:
            raise InvalidQuery("the event id is that of another session", hint="send it for its own session, or none")
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
        """At the limit, the client goes that has taken nothing for longest; if all are quick, nobody else comes in."""
        if len(self._clients) < self._most_clients:
            return
        idle = [(client.idle_since, client) for client in self._clients if client.idle_since is not None]
        since, slowest = min(idle, key=lambda pair: pair[0], default=(0.0, None))
        if slowest is None or anyio.current_time() - since < _STALLED:
            raise TooMany(f"{self._most_clients} clients listen already", hint="close one of them")
        slowest.end("slow", "another client needed the place of the slowest; connect again")

    async def _listen(self, subscription: Subscription, session_id: str, resume: EventId | None) -> None:
        channel = self._channel(session_id)
        channel.listeners.add(subscription)
        await self._open(channel.feed, resume)
        # From here to the end nothing is awaited, so that no row comes between.
        reach = Reach(channel.feed, channel.feed.total, channel.feed.total)
        number = reach.total if resume is None else resume.number
        first = {"notice": "open", "text": "every entry behind this event follows once, in order", "resume": "exact"}
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
                pass  # the first event names no session, then
        text = "entries of sessions that were not resumed may be missing; load them anew"
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
        """Run something that blocks, on a thread of the hub's."""
        return await to_thread.run_sync(call, limiter=self._threads)

    # -- looking

    async def run(self) -> None:
        """Look for new entries until cancelled; then every client is told, and every file is let go."""
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
        """End all subscriptions; their last event says that the gateway stops."""
        for client in list(self._clients):
            client.end("closing", "the gateway stops; connect again when it is back")

    async def _look(self) -> None:
        """Read what is announced, and when it is time also what is not."""
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
        """Take out the sessions that nobody listens to, and of those that nobody listens to alone the oldest."""
        alone = [session_id for session_id, channel in self._channels.items() if not channel.listeners]
        leaving = alone[: max(0, len(alone) - _FOLLOWED)] if self._everywhere else alone
        left, self._left = self._left, []
        return left + [self._channels.pop(session_id).feed for session_id in leaving]

    def _pass_on(self, channel: _Channel, announced: Event | None, news: News) -> None:
        """Tell how far the session reaches now, and then what waited for that."""
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
        """The session cannot be followed any more: those who listen to it are told and go, the others are told."""
        session_id = channel.feed.session_id
        self._left.append(channel.feed)
        if self._channels.get(session_id) is channel:
            del self._channels[session_id]
        for listener in list(channel.listeners):
            listener.fail(error)
        self._woken.set()
        notice = {"notice": "failed", "text": f"the session cannot be followed: {error.message}"}
        for listener in list(self._everywhere):
            listener.offer(Event(None, session_id, "notice", notice))


def _read(asked: Sequence[tuple[Feed, str | None]], unwanted: Sequence[Feed]) -> list[News | SessileError]:
    """Let go of some feeds, and ask the others for news up to an entry; blocks."""
    for feed in unwanted:
        feed.close()
    answers: list[News | SessileError] = []
    for feed, until in asked:
        try:
            answers.append(feed.news(until))
        except SessileError as error:
            answers.append(error)
    return answers
