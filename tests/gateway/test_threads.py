"""Worker threads of turns: results, errors, limits, wake-ups and shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from sessile.gateway.service import Threads

pytestmark = [pytest.mark.mission("Y13"), pytest.mark.promise("P41")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def alive(name: str) -> int:
    """Return the number of threads with this name."""
    return sum(thread.name.startswith(f"{name}_") for thread in threading.enumerate())


@pytest.mark.anyio
async def test_work_gives_its_result_and_raises_its_error() -> None:
    """A call runs in another thread and returns its result or raises its error."""
    threads = Threads(2, "given")

    def fail() -> None:
        raise KeyError("gone")

    try:
        assert await threads.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(KeyError, match="gone"):
            await threads.run(fail)
        assert await threads.run(lambda: "still there") == "still there"
    finally:
        threads.close()


@pytest.mark.anyio
async def test_a_call_beyond_the_limit_waits_and_is_done_as_well() -> None:
    """Calls beyond the thread limit wait and are then run."""
    threads = Threads(3, "counted")
    gate = threading.Event()
    try:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(threads.run(partial(gate.wait, 10))) for _ in range(5)]
            await asyncio.sleep(0)
            assert alive("counted") == 3
            gate.set()
        assert all(call.result() for call in calls)
    finally:
        gate.set()
        threads.close()


@pytest.mark.anyio
async def test_those_who_are_done_before_the_loop_comes_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is woken once for all calls that finish before it runs."""
    threads = Threads(4, "told")
    loop = asyncio.get_running_loop()
    told: list[object] = []
    done = threading.Barrier(5)
    wake = loop.call_soon_threadsafe

    def noting(callback: Callable[..., Any], *args: Any) -> object:
        told.append(callback)
        return wake(callback, *args)

    try:
        calls = [asyncio.ensure_future(threads.run(lambda: done.wait(10))) for _ in range(4)]
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "call_soon_threadsafe", noting)
        done.wait(10)
        while len(threads._done) < 4:  # block the loop until all calls are done
            threading.Event().wait(0.001)
        monkeypatch.undo()
        await asyncio.gather(*calls)
        assert len(told) == 1
    finally:
        threads.close()


@pytest.mark.anyio
async def test_work_comes_to_its_end_though_nobody_waits_for_it() -> None:
    """A cancelled call runs to its end, and its thread takes the next call."""
    threads = Threads(1, "left")
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(10)
        ended.set()

    try:
        waiting = asyncio.ensure_future(threads.run(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        assert await threads.run(ended.is_set)
    finally:
        gate.set()
        threads.close()


def test_a_thread_whose_loop_has_gone_ends_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose event loop has closed ends without an error."""
    threads = Threads(1, "orphaned")
    begun, gate = threading.Event(), threading.Event()
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    def work() -> None:
        begun.set()
        gate.wait(10)

    async def leave() -> None:
        waiting = asyncio.ensure_future(threads.run(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()

    asyncio.run(leave())
    threads.close()
    gate.set()
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("orphaned_")]:
        thread.join(10)
    assert not alive("orphaned") and complaints == []


@pytest.mark.anyio
async def test_threads_end_when_they_are_closed_and_take_nothing_more() -> None:
    """Closed threads end and accept no more calls."""
    threads = Threads(2, "closed")
    assert await threads.run(lambda: 7) == 7
    threads.close()
    with anyio.fail_after(10):
        while alive("closed"):
            await anyio.sleep(0.001)
    with pytest.raises(RuntimeError, match="shutdown"):
        await threads.run(lambda: 7)
