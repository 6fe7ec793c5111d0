"""MyAgents' lock folder: taken, waited for, broken and released as MyAgents does it."""

from __future__ import annotations

import pytest

from faults.failing import FaultyFilesystem, Meddle
from myagents_folder import ROOT, Time, put
from sessile.agents.myagents.lock import DirectoryLock
from sessile.errors import SessionBusy
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("M5")

LOCK = f"{ROOT}/sessions.lock"
STALE = 30_000_000_001


class Rig:
    """A lock on a file system in memory, with a fake clock and fake processes."""

    def __init__(self, *, owner: bool = False, alive: frozenset[int] = frozenset()) -> None:
        self.time = Time()
        self.fs = MemoryFilesystem(clock=self.time)
        atomic.make_folders(self.fs, ROOT)
        self.lock = DirectoryLock(
            self.fs, LOCK, owner=owner, clock=self.time, pause=self.time.pause, alive=alive.__contains__
        )

    def taken_by_another(self, owner: bytes | None = None) -> None:
        self.fs.mkdir(LOCK)
        if owner is not None:
            put(self.fs, f"{LOCK}/owner", owner)

    def is_free(self) -> bool:
        return self.fs.names(ROOT) == []


def test_the_lock_is_a_folder_that_is_there_while_it_is_held() -> None:
    """Nothing is left behind, even if the guarded code fails."""
    rig = Rig()
    with pytest.raises(RuntimeError), rig.lock.held():
        assert atomic.is_folder(rig.fs, LOCK)
        assert rig.fs.names(LOCK) == []
        raise RuntimeError
    assert rig.is_free()


def test_a_busy_lock_is_tried_three_more_times_10_ms_apart() -> None:
    """Then it raises; the lock of the other process stays."""
    rig = Rig()
    rig.taken_by_another()
    with pytest.raises(SessionBusy), rig.lock.held():
        pass
    assert rig.time.pauses == [0.01] * 3
    assert rig.fs.names(ROOT) == ["sessions.lock"]


def test_a_lock_that_is_released_meanwhile_is_taken() -> None:
    """Waiting succeeds."""
    rig = Rig()
    rig.taken_by_another()
    lock = DirectoryLock(rig.fs, LOCK, clock=rig.time, pause=lambda seconds: rig.fs.rmdir(LOCK))
    with lock.held():
        pass
    assert rig.is_free()


@pytest.mark.parametrize(
    "owner", [None, b"renderer:1771237230000", b"node:x:1", b"node:0:1", b"", b"\xef\xbb\xbfnode:5:1"]
)
def test_a_lock_without_a_process_goes_stale_after_30_seconds(owner: bytes | None) -> None:
    """The lock is not stale a moment earlier, and an owner that does not name a process is ignored."""
    rig = Rig(alive=frozenset({5}))
    rig.taken_by_another(owner)
    rig.time.nanoseconds += STALE - 1 - 30_000_000
    with pytest.raises(SessionBusy), rig.lock.held():
        pass
    rig.time.nanoseconds += STALE
    with rig.lock.held():
        assert rig.fs.names(ROOT) == ["sessions.lock"]
    assert rig.is_free()


@pytest.mark.parametrize("owner", [b"node:42:1771237230000", b"rust:42:1", b" node:42:1 \n"])
def test_the_lock_of_a_living_process_is_never_broken(owner: bytes) -> None:
    """The age of the lock does not matter."""
    rig = Rig(alive=frozenset({42}))
    rig.taken_by_another(owner)
    rig.time.nanoseconds += 100 * STALE
    with pytest.raises(SessionBusy), rig.lock.held():
        pass
    assert rig.fs.names(LOCK) == ["owner"]


def test_the_lock_of_a_dead_process_is_broken_at_once() -> None:
    """The age of the lock does not matter."""
    rig = Rig()
    rig.taken_by_another(b"node:42:1771237230000")
    with rig.lock.held():
        pass
    assert rig.time.pauses == [] and rig.is_free()


def test_where_later_versions_are_at_home_we_name_ourselves() -> None:
    """Our owner file has their format, so they notice at once when our process is dead."""
    rig = Rig(owner=True)
    with rig.lock.held():
        kind, pid, start = atomic.read_all(rig.fs, f"{LOCK}/owner").split(b":")
        assert kind == b"node" and int(pid) > 0 and int(start) == rig.time.nanoseconds // 1_000_000
    assert rig.is_free()


@pytest.mark.parametrize("owner", [False, True])
def test_a_lock_that_was_broken_while_we_slept_is_not_released(owner: bool) -> None:
    """It belongs to another process, and writing is refused."""
    rig = Rig(owner=owner)
    with rig.lock.held():
        rig.fs.rename(LOCK, f"{ROOT}/broken")
        rig.time.nanoseconds += 1
        rig.taken_by_another()
        with pytest.raises(SessionBusy):
            rig.lock.check()
    assert "sessions.lock" in rig.fs.names(ROOT)


def test_a_lock_that_changed_hands_before_it_was_broken_stays() -> None:
    """If two processes find a stale lock, the slower one does not break the new lock of the faster one."""
    rig = Rig()
    rig.taken_by_another()
    rig.time.nanoseconds += STALE

    def another_is_faster() -> None:
        rig.fs.rmdir(LOCK)
        rig.taken_by_another()

    # mkdir fails, the lock is looked at (lstat, owner), then once more before it is broken: there the other comes in.
    faulty = FaultyFilesystem(rig.fs, plan=[Meddle(another_is_faster, at=2, on={"lstat"})])
    lock = DirectoryLock(faulty, LOCK, clock=rig.time, pause=rig.time.pause)
    with pytest.raises(SessionBusy), lock.held():
        pass
    assert faulty.struck and rig.fs.names(ROOT) == ["sessions.lock"]


def test_a_lock_that_was_taken_in_the_very_moment_of_breaking_is_given_back() -> None:
    """Between the last check and the rename another process has broken the stale lock and taken it."""
    rig = Rig()
    rig.taken_by_another()
    rig.time.nanoseconds += STALE

    def another_is_faster() -> None:
        rig.fs.rmdir(LOCK)
        rig.taken_by_another(b"node:42:1")

    faulty = FaultyFilesystem(rig.fs, plan=[Meddle(another_is_faster, on={"rename"})])
    lock = DirectoryLock(faulty, LOCK, clock=rig.time, pause=rig.time.pause, alive={42}.__contains__)
    with pytest.raises(SessionBusy), lock.held():
        pass
    assert faulty.struck and rig.fs.names(ROOT) == ["sessions.lock"]
    assert atomic.read_all(rig.fs, f"{LOCK}/owner") == b"node:42:1"


def test_breaking_a_stale_lock_costs_an_attempt_and_no_time() -> None:
    """As in MyAgents, the next attempt follows at once, and the last attempt breaks it for the next process."""
    rig = Rig()
    rig.taken_by_another()
    rig.time.nanoseconds += STALE
    with pytest.raises(SessionBusy), rig.lock.held(retries=0):
        pass
    assert rig.time.pauses == [] and rig.is_free()


def test_a_lock_that_goes_away_while_one_looks_costs_an_attempt_and_no_time() -> None:
    """It was just released; four processes that are as fast make a busy lock."""
    rig = Rig()
    meddling = [Meddle(rig.taken_by_another, at=number, on={"mkdir"}) for number in range(1, 5)]
    meddling += [Meddle(lambda: rig.fs.rmdir(LOCK), at=number, on={"lstat"}) for number in range(1, 5)]
    faulty = FaultyFilesystem(rig.fs, plan=meddling)
    lock = DirectoryLock(faulty, LOCK, clock=rig.time, pause=rig.time.pause)
    with pytest.raises(SessionBusy), lock.held():
        pass
    assert len(faulty.struck) == 8 and rig.time.pauses == []
