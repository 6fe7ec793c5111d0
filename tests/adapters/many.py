"""Run many processes that write through an adapter at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from faults.processes import Child, Tell

PROCESSES = 4
APPENDS = 100
TEXTS = [f"writer {writer} says {number}" for writer in range(PROCESSES) for number in range(APPENDS)]

Work = Callable[[list[str]], object]


def texts_of(writer: int) -> list[str]:
    """Return the texts of one writer in order; `TEXTS` has the texts of all."""
    return TEXTS[writer * APPENDS : (writer + 1) * APPENDS]


def write_at_once(work: Work) -> None:
    """Call `work(texts)` in four forked processes, each with its own hundred texts; raise if one fails.

    All start together after the last fork. `work` must open what it uses itself: no open resource is shared.
    """
    gate, key = os.pipe()
    children = [Child(partial(_wait_and_work, gate, key, work, texts_of(writer))) for writer in range(PROCESSES)]
    os.close(gate)
    os.close(key)
    for child in children:
        child.finish()


def _wait_and_work(gate: int, key: int, work: Work, texts: list[str], tell: Tell) -> None:
    os.close(key)
    os.read(gate, 1)  # returns when all copies of the other end are closed
    work(texts)
    tell("done")


def assert_all_survived(found: list[str]) -> None:
    """Assert that every text is there once, and that each writer's texts are in order."""
    assert sorted(found) == sorted(TEXTS)
    for writer in range(PROCESSES):
        mine = set(texts_of(writer))
        assert [text for text in found if text in mine] == texts_of(writer)
