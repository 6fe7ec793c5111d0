"""The gateway: the process that owns the conversations of a store, assembled from its parts.

    gateway = make_gateway(store, config)
    async with anyio.create_task_group() as tasks:
        await tasks.start(gateway.run)
        turn = await gateway.turns.send(Message(text="hello", source="main"))

Front ends (HTTP, the command line) use this object only. The engine blocks, so `call` runs it on threads.
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
from sessile.gateway.conversations.inbound import agent_workspace, routing_of
from sessile.gateway.conversations.maintenance import MaintenanceTask
from sessile.gateway.conversations.presence import shared_turns
from sessile.gateway.conversations.registry import Conversations
from sessile.gateway.events import Event, Hub
from sessile.gateway.handles import Handles, Shelf, open_for_appending
from sessile.gateway.pages.library_view import Tags
from sessile.gateway.pages.views import Views
from sessile.gateway.turns.engine import Turns
from sessile.gateway.turns.lanes import LocalQueue, SharedQueue, TurnQueue
from sessile.gateway.turns.runners import Answerers
from sessile.gateway.turns.turn import model_override_of
from sessile.library import Library
from sessile.storage.drafts import published_path
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


P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32  # for the engine; most of the time they wait for the disk


class Threads:
    """A pool of at most `most` threads for one event loop.

    A finished thread queues its result and wakes the loop once, however many others finish before the loop runs; so the
    busier the gateway is, the less a call costs. Calls beyond the number of threads wait in order. Work may call the
    loop but must not wait for it. Work that has started is finished, even if the caller is cancelled.
    """

    def __init__(self, most: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(most, name)
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function and return its result."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        self._pool.submit(work).add_done_callback(partial(self._finished, loop, waiting))
        return await waiting

    def close(self) -> None:
        """Stop the threads when all work is done."""
        self._pool.shutdown(wait=False)

    def _finished(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[T], done: Future[T]) -> None:
        """Queue a result for the loop. Called on the thread that produced it."""
        self._done.append((waiting, done))
        if not self._woken:  # otherwise the loop will run anyway and see this result, too
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: there are no callers left
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Pass queued results to their callers."""
        self._woken = False  # before looking: later results wake the loop again
        while self._done:
            waiting, done = self._done.popleft()
            if waiting.done():
                continue  # the caller was cancelled
            error = done.exception()
            if error is None:
                waiting.set_result(done.result())
            else:
                waiting.set_exception(error)


class Gateway:
    """A gateway. Use `make_gateway` to create one."""

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
        self.turns = Turns(self, self._queue())
        self.maintenance = MaintenanceTask(self)
        self.shelf = Shelf(lambda: Library(store, sources, cache=cache or store.layout.cache, auto_catch_up=False))
        self.views = Views(store, self.shelf)
        self.tags = Tags()
        self._handles = Handles(partial(open_for_appending, store))
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._turn_threads = Threads(_THREADS, "turns")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Turns that an earlier gateway left are closed before this one is ready."""
        self._loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.hub.run)
                await self.turns.run(tasks)
                tasks.start_soon(self.maintenance.run)
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._turn_threads.close()
            with anyio.CancelScope(shield=True):
                await self.call(self._close)

    def _close(self) -> None:
        """Close everything. An error is raised after all parts are closed."""
        with ExitStack() as stack:  # in reverse order
            for one in (self.turns, self.conversations, self.shelf, self.views, self._handles):
                stack.callback(one.close)

    def _queue(self) -> TurnQueue:
        """Return the queue of turns: in memory for a folder, shared by all gateways for a database."""
        table, most = shared_turns(self.store), self.config.limits.queued_turns
        if table is None:
            return LocalQueue(TurnLog(self.store.fs, self.store.layout.root), most)
        return SharedQueue(table, self.call, most)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function on a thread."""
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._threads)

    async def call_for_turn(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function on the threads for turns, at less than half the cost.

        It may call the loop, but not wait for it.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        work = partial(function, *args, **kwargs)
        with anyio.CancelScope(shield=True):
            result = await self._turn_threads.run(work)
        return result  # noqa: RET504 - to the type checker, a scope may swallow exceptions

    def call_on_loop(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedule a call on the loop from a thread. It runs before the caller of the thread's work continues."""
        assert self._loop is not None, "the gateway is not running"
        self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))

    def publish_reset(self, bound: Bound) -> None:
        """Tell subscribers of a session that its conversation has a new one. Called on the loop."""
        if bound.previous_id is not None:
            data = {"key": bound.text, "sessionId": bound.session_id, "previousId": bound.previous_id}
            self.hub.publish(Event(None, bound.previous_id, "reset", data))

    # -- sessions (blocking)

    def opened(self, path: str) -> AbstractContextManager[Session]:
        """Return a context manager with the session of a file, open for appending."""
        return self._handles.opened(published_path(path))  # a draft is published when it is opened

    def drop(self, path: str) -> None:
        """Close a session whose file was moved."""
        self._handles.drop(path)
        self.views.drop(path)

    def _read(self, session_id: str) -> Session:
        return self.store.open(session_id, readonly=True)

    # -- agents

    def workspace(self, agent: str) -> str:
        """Return the folder in which an agent works."""
        return agent_workspace(self.config, self.store.layout.root, agent)

    def model_of(self, agent: str, entry: Mapping[str, Any]) -> str | None:
        """Return the model of the next turn, as "provider/model"."""
        return self.answerers.model_name(agent, model_override_of(entry))

    def window_of(self, agent: str, entry: Mapping[str, Any]) -> int | None:
        """Return the context window of that model, in tokens."""
        return self.answerers.window(agent, model_override_of(entry))


def make_gateway(
    store: Store,
    config: Config,
    *,
    zone: tzinfo | None = None,
    sources: Sequence[Source] = (),
    cache: str | None = None,
) -> Gateway:
    """Return a gateway for a store. Raise `InvalidConfig` if an agent's runner cannot work.

    `sources` are session folders of other agents that the page shows. `cache` is the folder of their catalog.
    """
    return Gateway(store, config, zone or local_zone(config.user.time_zone), sources, cache)
