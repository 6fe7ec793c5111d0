"""Lanes: one job at a time, the others in order, with any number of threads."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.errors import TooMany
from sessile.gateway.turns.lanes import Lanes

pytestmark = [pytest.mark.mission("Y13"), pytest.mark.promise("P41")]


def test_the_first_has_the_lane_and_the_others_wait_in_their_order() -> None:
    """The first job runs, the others wait in order, and leaving returns the next job."""
    lanes: Lanes[str] = Lanes(8)
    assert [lanes.enter("s", name) for name in "abc"] == [True, False, False]
    assert lanes.enter("other", "x")
    assert lanes.of("s") == ["a", "b", "c"] and sorted(lanes.all()) == ["a", "b", "c", "x"]
    assert [lanes.leave("s") for _ in range(3)] == ["b", "c", None]
    assert lanes.of("s") == [] and lanes.enter("s", "d")


def test_one_that_goes_first_stands_behind_the_one_that_runs() -> None:
    """A job with `first` waits directly behind the running one; the latest comes first."""
    lanes: Lanes[str] = Lanes(8)
    assert lanes.enter("s", "a", first=True)
    for name, first in (("b", False), ("c", True), ("d", True)):
        assert not lanes.enter("s", name, first=first)
    assert lanes.of("s") == ["a", "d", "c", "b"]


@pytest.mark.promise("P39")
@pytest.mark.parametrize("most", [0, 1, 3])
def test_so_many_may_wait_and_no_more(most: int) -> None:
    """The running job does not count towards the limit, and a refused job changes nothing."""
    lanes: Lanes[int] = Lanes(most)
    for number in range(most + 1):
        lanes.enter("s", number)
    with pytest.raises(TooMany):
        lanes.enter("s", 99, first=True)
    assert lanes.of("s") == list(range(most + 1))
    assert not lanes.enter("s", 100, limited=False)
    lanes.leave("s")
    with pytest.raises(TooMany):
        lanes.enter("s", 99)
    lanes.leave("s")
    assert lanes.enter("s", 99) == (most == 0)


def test_a_lane_that_is_taken_cannot_be_had_alone() -> None:
    """`try_enter` succeeds only in an empty lane, and other jobs wait until it is left."""
    lanes: Lanes[str | None] = Lanes(8)
    assert lanes.try_enter("s", None)
    assert not lanes.try_enter("s", None)
    assert not lanes.enter("s", "a")
    assert lanes.leave("s") == "a"
    assert not lanes.try_enter("s", None)
    assert lanes.leave("s") is None
    assert lanes.try_enter("s", None)


def test_only_who_waits_can_be_withdrawn() -> None:
    """Only a waiting job can be withdrawn."""
    lanes: Lanes[object] = Lanes(8)
    runs, waits, last = object(), object(), object()
    for job in (runs, waits, last):
        lanes.enter("s", job)
    assert not lanes.withdraw("s", runs)
    assert lanes.withdraw("s", waits) and not lanes.withdraw("s", waits)
    assert not lanes.withdraw("other", last)
    assert lanes.leave("s") is last


@given(st.lists(st.sampled_from(["enter", "first", "leave", "withdraw", "alone"]), max_size=60), st.integers(0, 4))
def test_lanes_do_what_a_row_does(acts: list[str], most: int) -> None:
    """Lanes behave like a simple queue for any sequence of operations."""
    lanes: Lanes[int] = Lanes(most)
    row: deque[int] = deque()
    for number, act in enumerate(acts):
        if act in ("enter", "first"):
            if len(row) > most:
                with pytest.raises(TooMany):
                    lanes.enter("s", number, first=act == "first")
                continue
            assert lanes.enter("s", number, first=act == "first") == (not row)
            row.insert(1 if act == "first" and row else len(row), number)
        elif act == "alone":
            assert lanes.try_enter("s", number) == (not row)
            row.extend([] if row else [number])
        elif act == "leave" and row:
            row.popleft()
            assert lanes.leave("s") == (row[0] if row else None)
        elif act == "withdraw" and row:
            assert lanes.withdraw("s", row[-1]) == (len(row) > 1)
            if len(row) > 1:
                row.pop()
        assert lanes.of("s") == lanes.all() == list(row)


def test_of_many_threads_one_has_the_lane_at_any_time() -> None:
    """With many threads, one job runs at a time, and every job runs once."""
    lanes: Lanes[int] = Lanes(10_000)
    inside, most, served = 0, 0, []
    counting = threading.Lock()

    def run(job: int | None) -> None:
        nonlocal inside, most
        while job is not None:
            with counting:
                inside += 1
                most = max(most, inside)
                served.append(job)
            with counting:
                inside -= 1
            job = lanes.leave("s")

    def work(worker: int) -> None:
        for number in range(200):
            job = worker * 1_000 + number
            if lanes.enter("s", job):
                run(job)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and sorted(served) == sorted(
        worker * 1_000 + number for worker in range(8) for number in range(200)
    )
    for worker in range(8):
        own = [job for job in served if job // 1_000 == worker]
        assert own == sorted(own)
    assert lanes.all() == []
