"""An hour of load on a gateway: memory, descriptors, threads, tasks and files stay flat, and nothing is lost.

`SESSILE_LOAD_SECONDS` sets the length of the long form.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from faults.gateway_load import Census, Load, loaded
from faults.processes import fast_folder
from figures import measured

pytestmark = pytest.mark.promise("P53")

HOUR = 3600.0
ROUND = 30.0  # seconds of a round in the long form
WARM_UP = 2  # the first half of the rounds is not judged, nor those before this many sessions: caches fill up
SESSIONS = 300
SHORT = "\n".join(
    (
        "from sessile.gateway import handles, service",
        "from sessile.gateway.turns import admission, engine",
        "handles.Handles.__init__.__defaults__ = (12,)",  # limits that a few seconds reach
        "admission._MAX_KNOWN = engine._MAX_KNOWN = 20",
    )
)

# How much each number may grow in all rounds that are judged, by the slope of the measurements.
MAY_GROW = {
    "memory": 24 << 20,  # bytes: the pages of the catalog that SQLite keeps, and what the allocator does not give back
    "objects": 4_000,
    "descriptors": 4,
    "threads": 4,  # threads and idle tasks are kept, as many as were ever needed at once
    "tasks": 4,
    "files": 2,
}
IN_SECONDS = MAY_GROW | {"memory": 32 << 20, "objects": 8_000, "threads": 12, "tasks": 12}


def growth(values: Sequence[float]) -> float:
    """Return the growth from the first to the last value, by the line that fits best."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return slope / sum((at - middle) ** 2 for at in range(count)) * (count - 1)


def check_flat(found: Sequence[Census], may_grow: dict[str, int], sessions: int) -> dict[str, int]:
    """Check that no number grows beyond its limit after the warm-up. Return the growth of each."""
    judged = [one for one in found[len(found) // WARM_UP :] if one.sessions >= sessions]
    assert len(judged) > len(found) // 3, f"too slow: only {found[-1].sessions} sessions in {len(found)} rounds"
    grown = {name: round(growth([getattr(one, name) for one in judged])) for name in may_grow}
    too_much = {name: value for name, value in grown.items() if value > may_grow[name]}
    assert not too_much, (
        f"{too_much} in {len(judged)} rounds, of {[getattr(one, next(iter(too_much))) for one in judged]}"
    )
    return grown


def check_load(
    rounds: int, seconds: float, may_grow: dict[str, int], weakness: str = "", keys: int = 24, sessions: int = 0
) -> tuple[Load, dict[str, int]]:
    """Run rounds of load, and check that all numbers stay flat and every acknowledged turn is there."""
    with fast_folder() as folder:

        async def run(load: Load) -> list[Census]:
            return [await load.round(seconds) for _ in range(rounds)]

        with loaded(Path(folder), rounds, weakness, keys) as load:
            found = anyio.run(run, load)
        load.check_turns()
        assert found[-1].sessions >= found[0].sessions
        return load, check_flat(found, may_grow, sessions)


def test_a_gateway_under_load_keeps_nothing_of_what_is_over() -> None:
    """The short form: every kind of client, and limits that are reached within seconds."""
    load, grown = check_load(6, 0.5, IN_SECONDS, SHORT, keys=8)
    assert load.acknowledged and load.counts["cut requests"] and load.counts["streams"]
    record("seconds of load", 3, load, grown)


def record(name: str, seconds: float, load: Load, grown: Mapping[str, int]) -> None:
    """Record the figures of a run."""
    measured(
        "P53",
        name,
        seconds=round(seconds),
        requests=load.counts["requests"],
        acknowledged=len(load.acknowledged),
        streams=load.counts["streams"],
        cut_requests=load.counts["cut requests"],
        kilobytes_grown=max(0, grown["memory"] >> 10),
        descriptors_grown=max(0, grown["descriptors"]),
        failed_requests=0,
        lost=0,
    )


@pytest.mark.long
def test_after_an_hour_of_load_a_gateway_is_as_it_was() -> None:
    """The long form: an hour, or `SESSILE_LOAD_SECONDS`."""
    seconds = float(os.environ.get("SESSILE_LOAD_SECONDS", HOUR))
    rounds = max(8, round(seconds / ROUND))
    load, grown = check_load(rounds, seconds / rounds, MAY_GROW, sessions=SESSIONS)
    record("an hour of load", seconds, load, grown)


WEAKNESSES = {
    "descriptors": """
from sessile.gateway.http import chat
made, left = chat.sent_of, []
def sent_of(turn):
    left.append(os.open("/dev/null", os.O_RDONLY))
    return made(turn)
chat.sent_of = sent_of
""",
    "tasks": """
from sessile.gateway.http import chat
made, left = chat.sent_of, []
def sent_of(turn):
    left.append(asyncio.get_running_loop().create_task(asyncio.sleep(3600)))
    return made(turn)
chat.sent_of = sent_of
""",
    "memory": """
from sessile.gateway.http import chat
made, left = chat.sent_of, []
def sent_of(turn):
    left.append(bytearray(b"x" * 1_000_000))
    return made(turn)
chat.sent_of = sent_of
""",
}


@pytest.mark.parametrize(
    "what", ["descriptors", *(pytest.param(one, marks=pytest.mark.long) for one in ("tasks", "memory"))]
)
def test_a_gateway_that_keeps_something_of_every_turn_is_noticed(what: str) -> None:
    """The rig reports a descriptor, a task or a piece of memory that is left by each turn."""
    with pytest.raises(AssertionError, match=rf"'{what}': \d+"):
        check_load(6, 0.5, IN_SECONDS, SHORT + WEAKNESSES[what], keys=8)
