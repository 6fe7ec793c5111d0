"""Rigs that play a scenario repeatedly, each time with a fault at a later call."""

from __future__ import annotations

import copy
import errno
from collections.abc import Collection, Iterator
from itertools import count
from random import Random
from typing import NamedTuple

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import METHODS, Call, Fail, FaultyFilesystem, Kill, Killed
from faults.ledger import Ledger, Run, expect, session_paths, store_on, verify
from faults.scenarios import ROOT, Scenario, prepared
from sessile import Session, Store
from sessile.errors import NotFound, SessileError, SessionNotFound, StorageFailure


class Point(NamedTuple):
    """The point at which a scenario ended: the call, the state of the disk and the promises."""

    number: int
    call: Call | None
    filesystem: CrashableFilesystem
    ledger: Ledger


def kill_points(
    scenario: Scenario, *, durability: str = "power", without: Collection[str] = (), step: int = 1
) -> Iterator[Point]:
    """Yield the scenario killed before each call in turn, and last without a kill."""
    for number in count(1, step):
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


def check_kills(scenario: Scenario, *, without: Collection[str] = (), step: int = 1) -> int:
    """Verify the store after each kill. Return the number of kills."""
    states = 0
    for point in kill_points(scenario, without=without, step=step):
        try:
            verify(store_on(point.filesystem.kill(), ROOT, 3), point.ledger)
        except Exception as error:
            raise AssertionError(f"{scenario.name}: killed before call {point.number}, {point.call}") from error
        states += 1
    return states


def check_power_cuts(
    scenario: Scenario, samples: int, *, seed: int = 0, without: Collection[str] = (), step: int = 1
) -> int:
    """Verify sampled states after a power cut at each call. Return the number of states."""
    states = 0
    for point in kill_points(scenario, without=without, step=step):
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


def check_successors(scenario: Scenario, successor: Scenario, *, seed: int = 0, step: int = 1) -> int:
    """Kill at each call, let another process work, then cut the power. Return the number of states."""
    states = 0
    for point in kill_points(scenario, step=step):
        survivor = point.filesystem.kill()
        ledger = copy.deepcopy(point.ledger)
        if ledger.trash:
            ledger.spilled.clear()  # they may still be in the trash, where the successor does not look
        run = Run(store_on(survivor, ROOT, 4), ledger)
        try:
            successor.act(run)
        except (StopIteration, IndexError, NotFound) as error:
            # There is no session for the successor to work on; but a deletion can be undone.
            assert type(error) is not NotFound or "must" not in ledger.trash.values(), point
            continue
        for model in CrashModel:
            name = f"{scenario.name} {successor.name} {seed} {point.number} {model.value}"
            try:
                verify(store_on(survivor.crash(Random(name), model), ROOT, 3), ledger, whole=False)
            except Exception as error:
                raise AssertionError(f"killed before {point.call}, then power cut, state {name!r}") from error
            states += 1
    return states


def check_errors(
    scenario: Scenario,
    code: int,
    *,
    forever: bool,
    step: int = 1,
    on: Collection[str] = METHODS,
    told: bool = False,
) -> int:
    """Let each call fail in turn until no call fails. Return the number of failed runs.

    With `told`, every failure must raise an error.
    """
    for runs, number in enumerate(count(1, step)):
        inner, ledger = prepared(scenario)
        faulty = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever, on=on)])
        run = Run(store_on(faulty, ROOT, 2), ledger)
        try:
            error_told = _play(scenario, run)
            if not faulty.struck:
                return runs
            expect(error_told or not told, "nobody heard of the failure")
            faulty.heal()
            for session in run.sessions:
                check_reopening(session, store_on(inner, ROOT, 5), run)
            verify(store_on(inner.kill(), ROOT, 3), ledger)
        except Exception as error:
            how = "from then on" if forever else "once"
            call = faulty.calls[min(number, len(faulty.calls)) - 1]
            complaint = f"{scenario.name}: {errno.errorcode[code]} {how} at call {number}, {call}"
            raise AssertionError(complaint) from error
    raise AssertionError("not reached")


def _play(scenario: Scenario, run: Run) -> bool:
    """Play the scenario. Only our errors may be raised, and they name a file. Return whether one was raised."""
    try:
        scenario.act(run)
    except SessileError as error:
        expect(error.path is not None, f"{error!r} does not say which file it is about")
        return True
    return False


def check_reopening(session: Session, store: Store, run: Run) -> None:
    """Check that memory is not ahead of the file, and that the session works again after `reopen`."""
    path = session.path if session.path in session_paths(store) else session.path.removesuffix(".jsonl") + ".draft"
    try:
        stored = store.open(path, readonly=True)
    except SessionNotFound:
        return  # moved, deleted, or a closed empty draft
    shown = [entry.id for entry in stored.get_entries()]
    stored.close()
    try:
        known = [entry.id for entry in session.get_entries()]
    except StorageFailure:
        pass  # closed
    else:
        expect(known == shown, f"the session shows {known}, its file holds {shown}")
    if not session.readonly:
        session.reopen()
        run.say(session, "after the failure")
    session.close()
