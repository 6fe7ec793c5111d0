"""Killed gateways lose or duplicate no acknowledged message, every turn has one reply, and listeners miss nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from faults import gateway_points
from faults.gateway_rig import CLIENTS, KEYS, LISTENERS, Weakness, check_heard, check_turns, nothing, talk
from faults.processes import fast_folder
from faults.test_teeth import reports_loss
from figures import measured
from gateways import gateway_in, lines, running, scripted
from sessile.gateway.events import Hub, Subscription
from sessile.gateway.service import Gateway
from sessile.gateway.turns.lanes import Lanes
from sessile.gateway.turns.replies import Records
from sessile.gateway.turns.turn import Job, Message
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.turn_log import TurnLog

pytestmark = pytest.mark.mission("Y13")


def rig(seed: int, kills: int, weakness: Weakness = nothing) -> tuple[int, int]:
    """Kill gateways while clients talk. Return the numbers of completed and interrupted turns."""
    with fast_folder() as folder:
        run = talk(folder, seed, kills, weakness=weakness)
        ends = check_turns(run)
    acknowledged, completed, interrupted = len(run.acknowledged), ends["complete"], ends["interrupted"]
    turns = {"answered_turns": completed, "turns_marked_interrupted": interrupted}
    if weakness is nothing:
        measured("P41", "gateways killed at random", kills=kills, acknowledged=acknowledged, **turns, lost=0, doubled=0)
    return completed, interrupted


def listening_rig(seed: int, kills: int, weakness: Weakness = nothing) -> int:
    """Kill gateways while clients talk and listen. Return the number of listener connections."""
    with fast_folder() as folder:
        run = talk(folder, seed, kills, listeners=True, weakness=weakness)
        connections = check_heard(run)
    heard = sum(len(one.ids) for one in run.heard)
    if weakness is nothing:
        counts = {"kills": kills, "connections": connections, "entries_received": heard}
        measured("P43", "listeners and killed gateways", **counts, gaps=0, repeats=0)
    return connections


# -- processes killed at random


@pytest.mark.promise("P41")
def test_killed_gateways_lose_and_double_nothing() -> None:
    """Clients repeat unacknowledged messages; in the end every message is there once, with one reply."""
    completed, interrupted = rig(seed=1, kills=10)
    assert completed > CLIENTS and interrupted > CLIENTS


@pytest.mark.promise("P43")
def test_listeners_hear_every_entry_once_across_killed_gateways() -> None:
    """Listeners reconnect with the id of their last event and receive the missed entries once and in order."""
    assert listening_rig(seed=2, kills=6) > LISTENERS * len(KEYS)  # some have connected again


@pytest.mark.promise("P41")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_killed_gateways_lose_and_double_nothing(seed: int) -> None:
    """The long form of the test above: 2,000 kills."""
    completed, interrupted = rig(seed, kills=200)
    assert completed and interrupted > 20  # otherwise nothing was tested; the number depends on the machine


@pytest.mark.promise("P43")
@pytest.mark.long
def test_listeners_hear_every_entry_once_across_a_thousand_connections() -> None:
    """The long form of the test above."""
    assert listening_rig(seed=20, kills=500) >= 1_000


# -- before every single call


@pytest.mark.promise("P41")
def test_a_gateway_that_is_killed_before_any_call_leaves_turns_that_the_next_one_settles() -> None:
    """A kill before every second call, from start to stop, leaves turns that the next gateway settles."""
    points = gateway_points.check_kills(step=2)
    measured("P41", "gateways killed before a chosen call", points=points, lost=0, doubled=0)
    assert points > 40


@pytest.mark.promise("P41")
def test_a_power_cut_before_any_call_takes_nothing_that_was_acknowledged() -> None:
    """A power cut before every fifth call loses neither a message in a session nor a waiting one."""
    states = gateway_points.check_power_cuts(1, step=5)
    measured("P41", "power cuts before a chosen call", states_of_the_disk=states, lost=0)
    assert states > 50


@pytest.mark.promise("P41")
@pytest.mark.long
def test_an_end_before_every_call_takes_nothing_that_was_acknowledged() -> None:
    """The long form of the tests above: every call, and more states of the disk."""
    points, states = gateway_points.check_kills(), gateway_points.check_power_cuts(6)
    measured("P41", "gateways killed before a chosen call", points=points, lost=0, doubled=0)
    measured("P41", "power cuts before a chosen call", states_of_the_disk=states, lost=0)
    assert points > 80 and states > 1_500


# -- gateways that stop normally


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.promise("P41")
async def test_a_message_that_waits_when_the_gateway_is_stopped_is_answered_by_the_next_one(tmp_path: Path) -> None:
    """Stopping a gateway keeps waiting messages, and the next gateway answers each of them once."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        waiting = [await gateway.turns.send(Message(text=text, source="main")) for text in ("b", "c")]
        await anext(turn.deltas())
    for one in waiting:
        reply = await one.wait()
        assert (reply.stop, reply.entry_id) == ("aborted", None) and "is stored" in (reply.error or "")
    assert lines(gateway_in(tmp_path)) == [("user", "a"), ("assistant", "re:")]
    async with answered_again(tmp_path) as (again, asked):
        assert lines(again)[2:] == [("user", "b"), ("assistant", "re: b"), ("user", "c"), ("assistant", "re: c")]
        assert asked == ["b", "c"]
        found = await again.turns.find(waiting[0].session_id, waiting[0].id)
        assert found is not None and found.reply is not None and found.reply.text == "re: b"


@pytest.mark.anyio
@pytest.mark.promise("P41")
async def test_messages_that_waited_are_all_answered_though_fewer_may_wait_now(tmp_path: Path) -> None:
    """Messages that were accepted before a restart are answered even if the queue limit is lower now."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        for number in range(8):
            await gateway.turns.send(Message(text=str(number), source="main"))
    async with answered_again(tmp_path, {"limits": {"queuedTurns": 1}}) as (again, asked):
        assert asked == [str(number) for number in range(1, 8)]
        assert len(lines(again)) == 16


@asynccontextmanager
async def answered_again(
    folder: Path, config: dict[str, object] | None = None
) -> AsyncIterator[tuple[Gateway, list[str]]]:
    """Start a new gateway, wait until it has answered everything, and return the requests to its runner."""
    gateway = gateway_in(folder, config)
    runner = scripted(gateway)
    async with running(gateway):
        while gateway.turns.live():
            await anyio.sleep(0.001)
        yield gateway, [request.messages[-1]["content"][0]["text"] for request in runner.asked]
        assert TurnLog(PosixFilesystem(), str(folder)).left() == []


# -- teeth


def without_names() -> None:
    """Make gateways unable to recognize a repeated message."""
    made = Job.__init__

    def init(self: Job, bound: object, message: Message, name: str, *rest: object) -> None:
        made(self, bound, message, os.urandom(8).hex(), *rest)  # type: ignore[arg-type]

    Job.__init__ = init  # type: ignore[method-assign, assignment]


def without_log() -> None:
    """Make gateways keep waiting messages in memory only."""
    TurnLog.keep = lambda self, session_id, turn: None  # type: ignore[method-assign]


def without_marks() -> None:
    """Make gateways not mark interrupted turns."""
    Records.interrupt = lambda self, session, turn_id: None  # type: ignore[method-assign]


def without_lanes() -> None:
    """Make gateways start every turn at once."""
    enter = Lanes.enter

    def always(self: Lanes[object], session_id: str, job: object, **how: bool) -> bool:
        enter(self, session_id, job, **how)
        return True

    Lanes.enter = always  # type: ignore[method-assign, assignment]


def without_resuming() -> None:
    """Make gateways ignore the id of the last event."""
    subscribe = Hub.subscribe

    async def from_now(self: Hub, session_id: str | None, after: str | None = None) -> Subscription:
        return await subscribe(self, session_id)

    Hub.subscribe = from_now  # type: ignore[method-assign]


@pytest.mark.promise("P41")
@pytest.mark.parametrize(
    "weakness",
    [
        without_log,
        *(pytest.param(one, marks=pytest.mark.long) for one in (without_names, without_marks, without_lanes)),
    ],
)
def test_without_one_of_its_protections_the_kill_rig_reports_it(weakness: Weakness) -> None:
    """The rig reports loss if any one protection is removed."""
    assert any(reports_loss(lambda seed=seed: rig(seed, 6, weakness)) for seed in range(5))  # type: ignore[misc]


@pytest.mark.promise("P43")
def test_without_resuming_the_listening_rig_reports_gaps() -> None:
    """If the id of the last event is ignored, listeners miss the entries between two connections."""
    assert reports_loss(lambda: listening_rig(3, 6, without_resuming))


@pytest.mark.promise("P41")
@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_without_a_sync_the_power_cut_rig_reports_loss(missing: str) -> None:
    """Without a sync, some state after a power cut has lost an acknowledged message."""
    assert reports_loss(lambda: gateway_points.check_power_cuts(2, without={missing}, step=5))


@pytest.mark.promise("P41")
def test_with_a_log_that_is_not_durable_the_power_cut_rig_reports_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a durable turn log, a power cut loses waiting messages."""
    monkeypatch.setattr(TurnLog, "keep", TurnLog.note)
    assert reports_loss(lambda: gateway_points.check_power_cuts(2, step=5))


@pytest.mark.promise("P41")
@pytest.mark.parametrize("missing", [("interrupt", lambda *_: None), ("abandoned", lambda self: iter(()))])
def test_without_settling_what_was_left_the_kill_rig_reports_it(
    missing: tuple[str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a gateway ignores the turns left by its predecessor, messages are lost or have no reply."""
    monkeypatch.setattr(Records, *missing)
    assert reports_loss(lambda: gateway_points.check_kills(step=4))
