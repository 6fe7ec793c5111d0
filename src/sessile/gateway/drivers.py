"""Tasks that drive turns, one turn after the other each.

To begin a task costs as much as many a turn has to do on the loop; so one that is done with its turn takes up the next. A few of
them wait for that, the others end; and all end with their task group.

Rules: a turn that was handed over is driven, also if the task group ends at that moment: then it is driven as one that is
cancelled.

It does not know what a turn is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from anyio.abc import TaskGroup

Job = TypeVar("Job")

_WAITING = 64  # tasks that have nothing to do


class Drivers(Generic[Job]):
    """The tasks of one group; everything happens on the loop."""

    def __init__(self, tasks: TaskGroup, drive: Callable[[Job], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._drive = drive
        self._idle: list[asyncio.Future[Job]] = []

    def go(self, job: Job) -> None:
        """Let a job be driven."""
        while self._idle:
            handed = self._idle.pop()  # the one that was busy last
            if not handed.done():  # else it was cancelled meanwhile
                handed.set_result(job)
                return
        self._tasks.start_soon(self._run, job)

    async def _run(self, job: Job) -> None:
        await self._drive(job)
        while len(self._idle) < _WAITING:
            handed: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
            self._idle.append(handed)
            try:
                await handed
            except asyncio.CancelledError:
                if handed.done() and not handed.cancelled():
                    await self._drive(handed.result())
                raise
            await self._drive(handed.result())
