"""Worker tasks of turns: each job runs once, in parallel with others, also during shutdown."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from sessile.gateway.turns import lanes
from sessile.gateway.turns.lanes import Workers

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y13"), pytest.mark.promise("P41")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_task_that_is_done_takes_up_the_next_job() -> None:
    """An idle task is reused for the next job."""
    tasks, driven = set(), []

    async def drive(job: int) -> None:
        tasks.add(asyncio.current_task())
        driven.append(job)

    async with anyio.create_task_group() as group:
        made = Workers(group, drive)
        for job in range(5):
            made.submit(job)
            await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert driven == [0, 1, 2, 3, 4] and len(tasks) == 1


async def test_jobs_are_driven_at_once_and_a_few_tasks_stay_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in parallel, and only a few idle tasks are kept."""
    monkeypatch.setattr(lanes, "_IDLE_WORKERS", 2)
    gate = anyio.Event()
    running = 0

    async def drive(job: int) -> None:
        nonlocal running
        running += 1
        await gate.wait()
        running -= 1

    async with anyio.create_task_group() as group:
        made = Workers(group, drive)
        before = len(asyncio.all_tasks())
        for job in range(5):
            made.submit(job)
        await anyio.wait_all_tasks_blocked()
        assert running == 5
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert running == 0 and len(asyncio.all_tasks()) == before + 2
        group.cancel_scope.cancel()


async def test_a_job_that_is_handed_over_while_everything_ends_is_driven_as_one_that_is_cancelled() -> None:
    """A job submitted during shutdown is started and cancelled."""
    told: list[str] = []

    async def drive(job: str) -> None:
        told.append(job)
        try:
            await anyio.sleep(0)
        except asyncio.CancelledError:
            told.append(f"{job} was cancelled")
            raise

    async with anyio.create_task_group() as group:
        made = Workers(group, drive)
        made.submit("first")
        await anyio.wait_all_tasks_blocked()
        made.submit("last")
        group.cancel_scope.cancel()
    assert told == ["first", "last", "last was cancelled"]


async def test_a_driver_that_was_cancelled_is_handed_nothing() -> None:
    """A cancelled task gets no more jobs; the next job gets a new task."""
    driven: list[str] = []
    drivers_of: list[asyncio.Task[None] | None] = []

    async def drive(job: str) -> None:
        driven.append(job)
        drivers_of.append(asyncio.current_task())

    async with anyio.create_task_group() as group:
        made = Workers(group, drive)
        made.submit("first")
        await anyio.wait_all_tasks_blocked()
        assert drivers_of[0] is not None
        drivers_of[0].cancel()
        await anyio.wait_all_tasks_blocked()
        made.submit("second")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert driven == ["first", "second"]
