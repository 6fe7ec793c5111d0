"""The shared library: one user at a time, short waits, and refreshed regularly."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from sessile import Library
from sessile.errors import StorageFailure
from sessile.gateway.handles import Shelf


class Slow:
    """A library with a number of work slices left; each uses all the time it is given."""

    def __init__(self, slices: int, fails_at: int | None = None) -> None:
        self.left, self.fails_at = slices, fails_at
        self.asked = 0
        self.closed = False
        self.users = 0

    def catch_up(self, depth: str, *, deadline: float) -> Any:
        """Work until the deadline if any work is left."""
        assert depth == "index"
        self.users += 1
        assert self.users == 1, "two threads at once"
        self.asked += 1
        try:
            if self.asked == self.fails_at:
                raise StorageFailure("the cache is gone")
            if self.left:
                self.left -= 1
                time.sleep(max(0.0, deadline - time.monotonic()) + 0.001)
        finally:
            self.users -= 1
        return type("CaughtUp", (), {"unindexed": self.left})

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_AT_ONCE": 0.01, "_SLICE": 0.02, "_PAUSE": 0.005, "_FRESH": 0.2}.items():
        monkeypatch.setattr(f"sessile.gateway.handles.{name}", seconds)


def shelf_with(library: Slow) -> Shelf:
    return Shelf(lambda: cast(Library, library))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def test_the_library_is_made_when_it_is_first_asked_and_looked_at_now_and_then() -> None:
    """The library is opened on first use and refreshed only after a while."""
    library = Slow(0)
    shelf = shelf_with(library)
    assert library.asked == 0
    for _ in range(3):
        with shelf.asked() as found:
            assert cast(object, found) is library
    assert library.asked == 1
    time.sleep(0.25)
    with shelf.asked():
        assert library.asked == 2
    shelf.close()
    assert library.closed


def test_what_was_written_is_looked_at_at_once() -> None:
    """After a write, the next request refreshes the library."""
    library = Slow(0)
    shelf = shelf_with(library)
    with shelf.asked():
        pass
    shelf.touched()
    with shelf.asked():
        assert library.asked == 2
    shelf.close()


def test_long_work_goes_on_between_the_requests_until_it_is_done() -> None:
    """Indexing continues in the background between requests, and its thread ends when it is done."""
    library = Slow(20)
    shelf = shelf_with(library)
    with shelf.asked():
        assert shelf.pending == 19
    waits = []
    while shelf.pending:
        began = time.monotonic()
        with shelf.asked():
            waits.append(time.monotonic() - began)
        time.sleep(0.01)
    assert len(waits) > 3 and max(waits) < 1.0
    wait_for(lambda: not any(thread.name == "sessile-index" for thread in threading.enumerate()))
    shelf.close()


def test_what_goes_wrong_in_between_is_told_to_whoever_asks_next() -> None:
    """A failure ends the background thread, and the next request tries again."""
    library = Slow(50, fails_at=3)
    shelf = shelf_with(library)
    with shelf.asked():
        pass
    wait_for(lambda: shelf._worker is None)
    library.fails_at = library.asked + 1
    with pytest.raises(StorageFailure), shelf.asked():
        pass
    with shelf.asked():
        assert library.left < 50
    shelf.close()


def test_closing_ends_the_work_soon() -> None:
    """Closing stops the background work soon, however much is left."""
    library = Slow(100_000)
    shelf = shelf_with(library)
    with shelf.asked():
        pass
    began = time.monotonic()
    shelf.close()
    assert time.monotonic() - began < 20 and library.closed
    assert not any(thread.name == "sessile-index" for thread in threading.enumerate())


def test_the_library_is_lent_in_the_order_of_the_requests() -> None:
    """A request that waits is not overtaken by newer ones, however many there are."""
    shelf = shelf_with(Slow(0))
    order: list[int] = []

    def ask(number: int) -> None:
        with shelf.asked():
            order.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    with shelf.asked():
        for waiting, thread in enumerate(threads):
            thread.start()
            while len(shelf._lock._waiting) <= waiting:
                time.sleep(0.001)
    for _ in range(100):  # they come later
        with shelf.asked():
            order.append(-1)
    for thread in threads:
        thread.join()
    assert [number for number in order if number >= 0] == list(range(8))
    assert order[:8] == list(range(8))
