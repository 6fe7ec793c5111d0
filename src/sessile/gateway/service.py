"""The gateway: one process that owns conversations, put together from its parts.

    gateway = make_gateway(store, config)
    async with anyio.create_task_group() as tasks:
        await tasks.start(gateway.run)
        turn = await gateway.turns.turns.send(Message(text="hello", source="main"))

Surfaces (HTTP, the command line) ask this object and nothing behind it. The engine blocks: `call` runs it on threads.

Threads for what every turn does: the engine blocks, and the loop must not.

    done = await threads.run(work)

Rules: a thread that is done leaves its result and tells the loop once, however many others are done until the loop comes to
it; so the busier a gateway is, the less a call costs. Calls beyond the number of threads wait in their order. Work may tell the
loop something, but not ask it. What was begun comes to its end, also if whoever waits for it is gone.

It does not know what the work is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
from anyio import to_thread
from anyio.abc import TaskStatus

from sessile import __version__
from sessile.config import local_zone
from sessile.gateway.conversations.conversations import Conversations
from sessile.gateway.conversations.inbound import agent_workspace, routing_of
from sessile.gateway.conversations.maintenance import Upkeep
from sessile.gateway.conversations.presence import shared_turns
from sessile.gateway.events import Event, Hub
from sessile.gateway.handles import Handles, Shelf, open_for_appending
from sessile.gateway.pages.sessions import Tags
from sessile.gateway.pages.viewing import Views
from sessile.gateway.turns.line import Line, LocalLine, SharedLine
from sessile.gateway.turns.runners import Answerers
from sessile.gateway.turns.turn import model_override_of
from sessile.gateway.turns.turns import Turns
from sessile.library import Library
from sessile.storage.turn_log import TurnLog
from sessile.vendors.models import Models

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from sessile.config import Config
    from sessile.gateway.conversations.bindings import Bound
    from sessile.session import Session
    from sessile.storage.layout import Source
    from sessile.store import Store


# --- threads


class Threads:
    """At most so many threads, for one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(most, name)
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._told = False

    async def run(self, work: Callable[[], T]) -> T:
        """What the work gives, or raises."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        self._pool.submit(work).add_done_callback(partial(self._leave, loop, waiting))
        return await waiting

    def close(self) -> None:
        """Let the threads end when there is nothing more to do."""
        self._pool.shutdown(wait=False)

    def _leave(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[T], done: Future[T]) -> None:
        """Leave what was done for the loop; on the thread that did it."""
        self._done.append((waiting, done))
        if not self._told:  # else the loop has not come here yet, and will see this, too
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """Tell those who wait."""
        self._told = False  # before looking: who is done from now on tells again
        while self._done:
            waiting, done = self._done.popleft()
            if waiting.done():
                continue  # nobody waits any more
            error = done.exception()
            if error is None:
                waiting.set_result(done.result())
            else:
                waiting.set_exception(error)


# --- service

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32  # of the engine; most of their time they wait for the disk


class Gateway:
    """All that a gateway is; made by `make_gateway`."""

    def __init__(
        self, store: Store, config: Config, zone: tzinfo, sources: Sequence[Source] = (), cache: str | None = None
    ) -> None:
        self.store = store
        self.config = config
        self.zone = zone
        self.started_at = store.now()
        self.version = __version__
        self.models = Models(config.models.figures())
        self.conversations = Conversations(
            store,
            workspace=self.workspace,
            routing=routing_of(config),
            resets=config.session.resets,
            zone=zone,
            parent_fork_max_tokens=config.session.parent_fork_max_tokens,
        )
        self.answerers = Answerers(config, self.models, self.workspace)
        self.hub = Hub(self._read, store.fs.lstat, clients=config.limits.event_clients)
        self.turns = Turns(self, self._line())
        self.upkeep = Upkeep(self)
        self.shelf = Shelf(lambda: Library(store, sources, cache=cache or store.layout.cache, auto_catch_up=False))
        self.views = Views(store, self.shelf)
        self.tags = Tags()
        self._handles = Handles(partial(open_for_appending, store))
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._turn_threads = Threads(_THREADS, "turns")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Be there until cancelled. What an earlier gateway left undone is settled before anybody can ask."""
        self._loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.hub.run)
                await self.turns.run(tasks)
                tasks.start_soon(self.upkeep.run)
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._turn_threads.close()
            with anyio.CancelScope(shield=True):
                await self.call(self._close)

    def _close(self) -> None:
        """Let go of everything, each thing whatever became of the others; what failed is raised then."""
        with ExitStack() as stack:  # the last one is closed first
            for one in (self.turns, self.conversations, self.shelf, self.views, self._handles):
                stack.callback(one.close)

    def _line(self) -> Line:
        """Who may begin a turn: in a folder this gateway says that, in a database all of them together."""
        table, most = shared_turns(self.store), self.config.limits.queued_turns
        if table is None:
            return LocalLine(TurnLog(self.store.fs, self.store.layout.root), most)
        return SharedLine(table, self.call, most)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks."""
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._threads)

    async def call_for_turn(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what every turn does, at less than half the price: it may tell the loop something, but not ask it."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        work = partial(function, *args, **kwargs)
        with anyio.CancelScope(shield=True):
            result = await self._turn_threads.run(work)
        return result  # noqa: RET504 - for all that types tell, a scope may swallow what is raised in it

    def tell_loop(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the loop do something, from a thread: before whoever waits for what the thread does goes on."""
        assert self._loop is not None, "the gateway does not run"
        self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))

    def tell_reset(self, bound: Bound) -> None:
        """Tell those who listen to a session that its conversation has another one now. To be called on the loop."""
        if bound.previous_id is not None:
            told = {"key": bound.text, "sessionId": bound.session_id, "previousId": bound.previous_id}
            self.hub.publish(Event(None, bound.previous_id, "reset", told))

    # -- sessions; these block

    def opened(self, path: str) -> AbstractContextManager[Session]:
        """The session of a file, open for appending."""
        return self._handles.opened(path)

    def let_go(self, path: str) -> None:
        """The file of a session was moved away."""
        self._handles.drop(path)
        self.views.drop(path)

    def _read(self, session_id: str) -> Session:
        return self.store.open(session_id, readonly=True)

    # -- agents

    def workspace(self, agent: str) -> str:
        """The folder in which an agent works."""
        return agent_workspace(self.config, self.store.layout.root, agent)

    def model_of(self, agent: str, entry: Mapping[str, Any]) -> str | None:
        """The model of the next turn, as "provider/model"."""
        return self.answerers.model_name(agent, model_override_of(entry))

    def window_of(self, agent: str, entry: Mapping[str, Any]) -> int | None:
        """How many tokens that model can read."""
        return self.answerers.window(agent, model_override_of(entry))


def make_gateway(
    store: Store,
    config: Config,
    *,
    zone: tzinfo | None = None,
    sources: Sequence[Source] = (),
    cache: str | None = None,
) -> Gateway:
    """A gateway for a store; raises `InvalidConfig` if somebody who is to answer cannot.

    `sources` are folders of other agents, whose sessions the page shows, and `cache` is the folder for the catalog of all.
    """
    return Gateway(store, config, zone or local_zone(config.user.time_zone), sources, cache)
