"""Rigs R2, R5 and R7 on real system calls: a kill before each of them, or its failure, in every scenario."""

from __future__ import annotations

import errno
import os
from collections import Counter

import pytest

from faults import system_calls
from faults.scenarios import SCENARIOS, Scenario
from faults.test_teeth import in_place, reports_loss
from figures import measured
from sessile.storage import atomic
from sessile.storage.filesystem import PosixFilesystem

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
REPLACING = {
    "create_published",
    "fork",
    "fork_from",
    "branch_off",
    "name",
    "move",
    "rewrite",
    "migrate",
    "tool_call",
    "repair",
}
ALWAYS = [errno.EIO, errno.ENOSPC]
IN_TURN = [errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EINTR]
FULL = {errno.ENOSPC, errno.EDQUOT}
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.fixture(scope="module", autouse=True)
def strace() -> None:
    if not system_calls.is_possible():
        pytest.skip("the rig on system calls needs strace and the right to trace: NOT PROVED on this machine")


def check_kills(scenario: Scenario, step: int = 1) -> int:
    kills, acknowledged = system_calls.check_kills(scenario, step=step)
    measured("P1", "kills before system calls", kills=kills, acknowledged=acknowledged, lost=0)
    if scenario.name in REPLACING:
        measured("P11", "kills before system calls", kills=kills, half_files=0)
    return kills


def check_errors(scenario: Scenario, code: int, first: int = 0, step: int = 1) -> int:
    counts = system_calls.check_errors(scenario, code, first=first, step=step)
    calls, syncs = counts.pop("calls", 0), counts.pop("syncs", 0)
    measured("P8", "system calls that fail", calls=calls, typed_errors=counts.total(), inconsistent=0, untyped=0)
    if code in FULL:
        measured("P3", "system calls on a full disk", calls=calls, reported=counts.total(), silent=0)
    if code == errno.EIO:
        measured("P7", "syncs that fail, by system call", syncs=syncs, false_receipts=0)
    return calls


@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("name", ["append", "name"])
def test_a_kill_before_a_system_call_loses_nothing_acknowledged(name: str) -> None:
    """After kill -9 before some system calls, the store opens, lists everything and holds every acknowledged entry."""
    assert check_kills(BY_NAME[name], step=13) > 3


@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
@pytest.mark.long
@every_scenario
def test_a_kill_before_every_system_call_loses_nothing_acknowledged(scenario: Scenario) -> None:
    """The long form strikes at every call of every writing verb."""
    assert check_kills(scenario) > 20


@pytest.mark.promise("P3")
@pytest.mark.promise("P7")
@pytest.mark.promise("P8")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINTR], ids=errno.errorcode.__getitem__)
def test_a_system_call_may_fail_and_nothing_is_lost_or_untyped(code: int) -> None:
    """Failing system calls raise typed errors with a path, give no false receipt, and the session works after `reopen`."""
    assert check_errors(BY_NAME["append"], code, step=10) > 3


@pytest.mark.promise("P3")
@pytest.mark.promise("P7")
@pytest.mark.promise("P8")
@pytest.mark.long
@pytest.mark.parametrize("code", ALWAYS, ids=errno.errorcode.__getitem__)
@every_scenario
def test_every_system_call_may_fail(scenario: Scenario, code: int) -> None:
    """The long form strikes at every call of every writing verb."""
    assert check_errors(scenario, code) > 20


@pytest.mark.promise("P8")
@pytest.mark.long
@every_scenario
def test_every_system_call_may_fail_with_other_errors(scenario: Scenario) -> None:
    """The long form with less common errors: each call gets one of them in turn."""
    turns = [check_errors(scenario, code, first, len(IN_TURN)) for first, code in enumerate(IN_TURN)]
    assert sum(turns) > 20


@pytest.mark.promise("P11")
def test_with_files_made_in_place_the_rig_on_kills_reports_half_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """If files are written under their final names, a kill before the write leaves an empty one, and the rig reports it."""
    monkeypatch.setattr(atomic, "replace", in_place)
    assert reports_loss(lambda: system_calls.check_kills(BY_NAME["create_published"], only={"write"}))


@pytest.mark.promise("P7")
def test_with_failed_syncs_passed_over_the_rig_on_errors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the result of a sync is ignored, the rig reports that its error was not raised."""

    def careless(fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError:
            pass

    monkeypatch.setattr(PosixFilesystem, "sync", staticmethod(careless))
    assert reports_loss(lambda: system_calls.check_errors(BY_NAME["append"], errno.EIO, only={"fdatasync"}))


def test_calls_are_counted_by_their_names() -> None:
    """The calls of strace are returned in order, each with its number among the calls of its name."""
    done = system_calls.traced(lambda tell: (os.stat("/"), os.access("/", 0), os.stat("/")))
    assert [(call.name, call.number) for call in done.calls] == [("newfstatat", 1), ("access", 1), ("newfstatat", 2)]
    assert not done.struck and not Counter(done.told)
