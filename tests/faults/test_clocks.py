"""Wrong clocks (stopped, backwards, jumping, centuries off) do not change what is stored: only positions and parents count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count, repeat
from random import Random
from typing import Any

import pytest

from faults.ledger import CWD, message, text_of
from figures import measured
from sessile import Session, Store
from sessile.storage.memory import MemoryFilesystem

DAY = 86_400.0
NOW = datetime(2026, 2, 16, 10, 20, 30, tzinfo=UTC).timestamp()
SPRING = datetime(2026, 3, 29, 0, 30, tzinfo=UTC).timestamp()  # in most of Europe, an hour is skipped soon after
AUTUMN = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()  # and here an hour is repeated
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def jumping(seed: int) -> Iterator[float]:
    """Yield times that jump by up to a day in either direction."""
    rng = Random(seed)
    now = NOW
    while True:
        now += rng.uniform(-DAY, DAY)
        yield now


CLOCKS: dict[str, Callable[[], Iterator[float]]] = {
    "stands still": lambda: repeat(NOW),
    "runs backwards": lambda: count(NOW, -1.0),
    "jumps by a day": lambda: jumping(1),
    "begins in 1970": lambda: count(0.0, 0.001),
    "ends in 9999": lambda: repeat(LAST),
    "skips an hour": lambda: count(SPRING, 300.0),
    "repeats an hour": lambda: count(AUTUMN, 300.0),
}

Shape = list[Any]


def shape_of(session: Session) -> Shape:
    """Return everything about a session except its times."""
    context = session.context()
    return [
        [(entry.id, entry.parent_id, text_of(entry)) for entry in session.get_entries()],
        session.leaf_id,
        session.title,
        sorted(entry.id for entry in session.get_heads()),
        dict(session.get_labels()),
        [{key: value for key, value in said.items() if key != "timestamp"} for said in context.messages],
    ]


def story(clock: Iterator[float], seed: int, steps: int) -> list[Shape]:
    """Play the same random steps with a clock. Return the resulting sessions as a new process sees them."""
    rng = Random(seed)
    store = Store("/store", fs=MemoryFilesystem(), clock=clock.__next__, random=Random(seed).randbytes)
    sessions: list[Session] = []
    shapes: list[Shape] = []
    for number in range(steps):
        if not sessions or rng.random() < 0.05:
            sessions.append(store.create(CWD, publish=True))
        place = rng.randrange(len(sessions))
        session = sessions[place]
        ids = [entry.id for entry in session.get_entries()]
        match rng.choice(["say", "say", "say", "answer", "branch", "label", "name", "compact", "fork", "reopen"]):
            case "branch" if ids:
                session.branch(rng.choice(ids), durable=rng.random() < 0.5)
            case "label" if ids:
                session.append_label_change(rng.choice(ids), f"label {number}")
            case "name":
                session.set_session_name(f"name {number}")
            case "compact" if session.leaf_id:
                session.append_compaction(f"summary {number}", session.leaf_id, number)
            case "fork" if len(sessions) < 8:
                sessions.append(session.fork())
            case "reopen":
                session.close()
                sessions[place] = store.open(session.path)
            case "answer":
                session.append_message(message(f"answer {number}", "assistant"))
            case _:
                session.append_message(message(f"text {number}"))
    for session in sessions:
        session.close()
        fresh = store.open(session.path, readonly=True)
        assert not fresh.findings
        shapes.append(shape_of(fresh))
        fresh.close()
    assert {info.path for info in store.list_all()} == {session.path for session in sessions}
    return shapes


@pytest.mark.promise("P27")
@pytest.mark.parametrize("runs", [1, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_whatever_the_clock_says_the_story_is_the_same(clock: Callable[[], Iterator[float]], runs: int) -> None:
    """Order, parents, leaf, branches, labels and context are the same as with a correct clock."""
    steps = 60
    for seed in range(runs):
        assert story(clock(), seed, steps) == story(count(NOW), seed, steps)
    measured("P27", "scenarios with wrong clocks", stories=runs, steps=runs * steps, differences=0)


@pytest.mark.promise("P27")
def test_times_that_are_told_are_those_of_the_clock() -> None:
    """Timestamps and file names use the store's clock; otherwise the test above would prove nothing."""
    for clock, year in ((repeat(0.0), "1970"), (repeat(LAST), "9999")):
        store = Store("/store", fs=MemoryFilesystem(), clock=clock.__next__)
        session = store.create(CWD, publish=True)
        receipt = session.append_message(message("when"))
        entry = session.get_entry(receipt.id)
        assert entry is not None
        assert str(entry["timestamp"]).startswith(year)
        assert f"/{year}-" in session.path
