"""Rig that ends a gateway before every single file system call, by a kill or a power cut, and starts it again.

The gateway runs in this process, on a file system in memory. One message was answered before. Then two messages arrive, the
second of which waits for the first, and the gateway is stopped. After a kill, the next gateway receives every unacknowledged
message again, because a client cannot know whether it arrived.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Call, FaultyFilesystem, Kill, Killed
from gateways import Clock, Scripted, ask, gateway_in, lines, running, scripted
from http_rig import NEVER
from sessile import Store
from sessile.gateway.service import Gateway
from sessile.gateway.turns.turn import Message
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.turn_log import TurnLog
from sessions import numbered

Act = Callable[[Gateway, Scripted, list[str]], Awaitable[None]]

ROOT = "/store"
SAID = ["first", "a", "b", "after"]


def gateway_on(fs: Filesystem, seed: str) -> tuple[Gateway, Scripted]:
    """Return a gateway on a file system, and its scripted runner."""
    store = Store(ROOT, fs=fs, clock=Clock(), random=numbered(seed), patience=60)
    gateway = gateway_in(Path(ROOT), NEVER, store=store)
    return gateway, scripted(gateway)


class Life(NamedTuple):
    """The recorded events of a gateway that has ended."""

    acknowledged: list[str]
    asked: list[str]
    killed_at: Call | None


class Point(NamedTuple):
    """The point at which a gateway ended, and the state of the disk."""

    number: int
    life: Life
    disk: CrashableFilesystem


def prepared() -> CrashableFilesystem:
    """Return a disk on which one message was answered."""
    disk = CrashableFilesystem()
    gateway, _ = gateway_on(disk, "before")

    async def once() -> None:
        async with running(gateway):
            await ask(gateway, SAID[0])

    anyio.run(once)
    return disk


def live(fs: Filesystem, seed: str, act: Act) -> Life:
    """Run a gateway with `act`. A kill is not an error."""
    gateway, runner = gateway_on(fs, seed)
    acknowledged: list[str] = []
    killed: Call | None = None

    async def run() -> None:
        async with running(gateway):
            await act(gateway, runner, acknowledged)

    try:
        anyio.run(run)
    except* Killed as deaths:
        assert isinstance(fs, FaultyFilesystem)
        killed = fs.calls[-1]
        del deaths
    return Life(acknowledged, [request.messages[-1]["content"][0]["text"] for request in runner.asked], killed)


async def two_messages(gateway: Gateway, runner: Scripted, acknowledged: list[str]) -> None:
    """Send two messages, the second before the first is answered."""
    runner.gate = anyio.Event()
    turns = []
    for text in SAID[1:3]:
        turns.append(await gateway.turns.send(Message(text=text, source="main", idempotency_key=text)))
        acknowledged.append(text)
    runner.gate.set()
    for turn in turns:
        await turn.wait()


def going_on(unknown: Collection[str]) -> Act:
    """Send the unacknowledged messages again and a new one, then repeat every message."""

    async def act(gateway: Gateway, runner: Scripted, acknowledged: list[str]) -> None:
        for text in unknown:
            await ask(gateway, text, idempotency_key=text)
        await ask(gateway, SAID[-1], idempotency_key=SAID[-1])
        for text in SAID[1:]:
            turn = await gateway.turns.send(Message(text=text, source="main", idempotency_key=text))
            assert turn.reply is not None, f"{text} is taken for another message"

    return act


def points(disk: CrashableFilesystem, *, without: Collection[str] = (), step: int = 1) -> Iterator[Point]:
    """Yield a gateway killed before each call in turn, and last without a kill."""
    for number in count(1, step):
        copy = disk.kill()
        faulty = FaultyFilesystem(copy, plan=[Kill(at=number)], without=without)
        life = live(faulty, f"life {number}", two_messages)
        yield Point(number, life, copy)
        if life.killed_at is None:
            return


def check_kills(*, step: int = 1) -> int:
    """Check the state after each kill. Return the number of kills."""
    kills = 0
    for point in points(prepared(), step=step):
        _check(point, point.disk.kill(), "killed")
        kills += 1
    return kills


def check_power_cuts(samples: int, *, without: Collection[str] = (), step: int = 1) -> int:
    """Check sampled states after a power cut at each call. Return the number of states."""
    states = 0
    for point in points(prepared(), without=without, step=step):
        for model in CrashModel:
            for sample in range(samples):
                name = f"{point.number} {model.value} {sample}"
                _check(point, point.disk.crash(Random(name), model), f"power cut, state {name!r},")
                states += 1
    return states


def _check(point: Point, disk: CrashableFilesystem, how: str) -> None:
    try:
        check_acknowledged(disk.kill(), point.life.acknowledged)
        check_next_life(disk, point)
    except Exception as error:
        raise AssertionError(f"{how} before call {point.number}, {point.life.killed_at}") from error


def check_acknowledged(disk: Filesystem, acknowledged: list[str]) -> None:
    """Check that every acknowledged message is in the session or in the turn log."""
    gateway, _ = gateway_on(disk, "reader")
    there = [text for role, text in lines(gateway) if role == "user"]
    there += [turn["text"] for left in TurnLog(disk, ROOT).left() for turn in left.turns if "text" in turn]
    assert set(acknowledged) <= set(there), f"{acknowledged} were acknowledged, {there} are there"


def check_next_life(disk: Filesystem, point: Point) -> None:
    """Start again: every message is there once and in order, and the runner was asked at most once for each."""
    unknown = [text for text in SAID[1:-1] if text not in point.life.acknowledged]
    life = live(disk, f"after {point.number}", going_on(unknown))
    gateway, _ = gateway_on(disk, "reader")
    said = lines(gateway)
    assert [text for role, text in said if role == "user"] == SAID
    assert [role for role, _ in said] == ["user", "assistant"] * len(SAID)
    asked = Counter(point.life.asked + life.asked)
    assert [text for text, times in asked.items() if times > 1] == []
    for text, (_, answer) in zip(SAID, said[1::2], strict=True):
        assert answer in (f"re: {text}", ""), "an answer is whole, or there is none"
    assert said[-1] == ("assistant", "re: after")
    assert disk.names(f"{ROOT}/gateway/turns") == []
    stored = json.loads(atomic.read_all(disk, f"{ROOT}/agents/main/sessions/sessions.json"))
    assert list(stored) == ["agent:main:main"]
