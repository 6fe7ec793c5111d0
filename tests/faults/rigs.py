"""The rigs that play a scenario again and again, each time with one more thing going wrong one call later."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from itertools import count
from random import Random
from typing import NamedTuple

from faults.ledger import Ledger, Run, store_on, verify
from faults.scenarios import ROOT, Scenario, prepared
from sessile.testing.crashes import CrashableFilesystem, CrashModel
from sessile.testing.faults import Call, FaultyFilesystem, Kill, Killed


class Point(NamedTuple):
    """A moment at which a scenario ended: before which call, what was on the disk, what had been promised."""

    number: int
    call: Call | None
    filesystem: CrashableFilesystem
    ledger: Ledger


def kill_points(
    scenario: Scenario, *, durability: str = "power", without: Collection[str] = (), first: int = 1, step: int = 1
) -> Iterator[Point]:
    """The scenario, killed before its first call, before its second, and so on; last the one that was not killed."""
    for number in count(first, step):
        inner, ledger = prepared(scenario)
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)], without=without)
        run = Run(store_on(faulty, ROOT, 2, durability), ledger)
        try:
            scenario.act(run)
        except Killed:
            yield Point(number, faulty.calls[-1], inner, ledger)
        else:
            yield Point(number, None, inner, ledger)
            return


def check_kills(scenario: Scenario, *, without: Collection[str] = ()) -> int:
    """Verify what is left after each kill; says how many there were."""
    states = 0
    for point in kill_points(scenario, without=without):
        try:
            verify(store_on(point.filesystem.kill(), ROOT, 3), point.ledger)
        except Exception as error:
            raise AssertionError(f"{scenario.name}: killed before call {point.number}, {point.call}") from error
        states += 1
    return states


def check_power_cuts(
    scenario: Scenario, samples: int, *, seed: int = 0, without: Collection[str] = (), first: int = 1, step: int = 1
) -> int:
    """Verify sampled states after a power cut at each call; says how many there were."""
    states = 0
    for point in kill_points(scenario, without=without, first=first, step=step):
        for model in CrashModel:
            for sample in range(samples):
                name = f"{scenario.name} {seed} {point.number} {model.value} {sample}"
                survivor = point.filesystem.crash(Random(name), model)
                try:
                    verify(store_on(survivor, ROOT, 3), point.ledger, whole=False)
                except Exception as error:
                    raise AssertionError(f"power cut before {point.call}, state {name!r}") from error
                states += 1
    return states


def check_successors(scenario: Scenario, successor: Scenario, *, seed: int = 0) -> int:
    """Kill at each call, let another process do something, then cut the power; says how many states there were."""
    states = 0
    for point in kill_points(scenario):
        survivor = point.filesystem.kill()
        ledger = copy.deepcopy(point.ledger)
        run = Run(store_on(survivor, ROOT, 4), ledger)
        try:
            successor.act(run)
        except StopIteration:
            continue  # there is no session yet that the successor could work on
        for model in CrashModel:
            name = f"{scenario.name} {successor.name} {seed} {point.number} {model.value}"
            try:
                verify(store_on(survivor.crash(Random(name), model), ROOT, 3), ledger, whole=False)
            except Exception as error:
                raise AssertionError(f"killed before {point.call}, then power cut, state {name!r}") from error
            states += 1
    return states
