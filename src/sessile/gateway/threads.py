"""Threads for what every turn does: the engine blocks, and the loop must not.

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
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


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
