"""Rig R1: processes killed at random moments keep everything that they acknowledged."""

from __future__ import annotations

import copy
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from faults.ledger import CWD, message, verify
from faults.playing import BEGIN, END, noted, play, prepared_at
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.scenarios import SCENARIOS, Scenario
from faults.test_many_processes import lines_of_their_own
from figures import measured
from sessile import Store
from sessile.errors import SessionBusy

LONGEST = 0.004  # maximum lifetime of a process in seconds, once it is ready
MANY = 200  # maximum number of receipts before a kill, in the long form
DAY = 86_400.0
BATCH = 20  # kills on one session before it is checked: it grows by hundreds of entries per kill


def append_for_ever(root: str, session_id: str, tell: Tell) -> None:
    """Append lines of up to five pages until killed: the kernel tears a write between pages."""
    rng = Random(os.getpid())
    session = Store(root, durability="process").open(session_id)
    tell(BEGIN)
    for number in count():
        text = f"{os.getpid()} {number} " + "x" * rng.choice((0, 100, 1_000, 20_000))
        tell(session.append_message(message(text)).id)


def check_appends(
    seed: int, kills: int, writer: Callable[[str, str, Tell], None] = append_for_ever, receipts: int = 20
) -> tuple[int, int]:
    """Kill processes that append to one session. Return the numbers of acknowledged entries and torn lines."""
    rng = Random(seed)
    acknowledged = torn = 0
    for _ in range(kills // BATCH):
        with fast_folder() as root:
            store = Store(root, durability="process")
            session = store.create(CWD, publish=True)
            session.close()
            ids: list[str] = []
            for _ in range(BATCH):
                lived, words = rng.uniform(0, LONGEST), 1 + rng.randint(0, receipts)
                ids += killed_after(lived, partial(writer, root, session.id), words)[1:]
            session = store.open(session.id)
            entries = session.get_entries()
            present = [entry.id for entry in entries]
            lost = set(ids) - lines_of_their_own(session.path)
            assert not lost, f"lost {len(lost)} of {len(ids)}"
            assert len(set(present)) == len(present)
            assert {entry.parent_id for entry in entries} - {None} <= set(present)
            receipt = session.append_message(message("and on"))
            session.close()
            assert store.open(session.id, readonly=True).leaf_id == receipt.id
            acknowledged += len(ids)
            torn += len(session_findings(store, session.id))
    measured("P1", "kills at random", kills=kills, acknowledged=acknowledged, torn_lines=torn, lost=0)
    return acknowledged, torn


def session_findings(store: Store, session_id: str) -> list[str]:
    session = store.open(session_id, readonly=True)
    try:
        return [finding.code for finding in session.findings]
    finally:
        session.close()


def check_scenario(scenario: Scenario, seed: int, kills: int) -> int:
    """Kill processes in the middle of a scenario. Return how many reached its end."""
    rng = Random(f"{scenario.name} {seed}")
    finished = 0
    with fast_folder() as folder:
        base = f"{folder}/base"
        ledger = prepared_at(base, scenario)
        for number in range(kills):
            root = f"{folder}/{number}"
            shutil.copytree(base, root)
            told = killed_after(rng.uniform(0, LONGEST), partial(play, root, ledger, scenario.act, "process"))
            finished += END in told
            verify(Store(root, durability="process"), noted(copy.deepcopy(ledger), told), whole=False)
            shutil.rmtree(root)
    measured("P1", "kills at random in every writing verb", kills=kills, finished=finished, lost=0)
    return finished


@pytest.mark.promise("P1")
def test_killed_writers_lose_nothing_that_they_acknowledged() -> None:
    """Every receipt of a process killed while appending has its stored entry, and the next append works."""
    acknowledged, _ = check_appends(seed=1, kills=40)
    assert acknowledged > 100


@pytest.mark.promise("P1")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_killed_processes_leave_a_store_that_opens(scenario: Scenario) -> None:
    """A process killed at a random moment of any scenario leaves all acknowledged entries and nothing partial."""
    check_scenario(scenario, seed=1, kills=2)


@pytest.mark.promise("P1")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_thousands_of_killed_writers_lose_nothing(seed: int) -> None:
    """The long form of the test above: 10,000 kills, each after about a hundred receipts."""
    acknowledged, _ = check_appends(seed, kills=1_000, receipts=MANY)
    assert acknowledged > 80_000


@pytest.mark.promise("P1")
@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_thousands_of_killed_processes_leave_a_store_that_opens(scenario: Scenario) -> None:
    """The long form of the test above: 5,000 kills over all scenarios; some reach the end and most do not."""
    finished = check_scenario(scenario, seed=2, kills=5_000 // len(SCENARIOS) + 1)
    assert finished < 5_000 // len(SCENARIOS)


def check_locks(folder: Path, kills: int) -> None:
    """Kill processes in the middle of their appends, and check that the next writer does not wait for a lock."""
    rng = Random(3)
    store = Store(folder, durability="process")
    session = store.create(CWD, publish=True)
    stale = 0
    for number in range(kills):
        if number % BATCH == 0:
            session.close()
            session = store.create(CWD, publish=True)
        killed_after(rng.uniform(0, 0.003), partial(append_for_ever, str(folder), session.id))
        begin = time.perf_counter()
        session.append_message(message("mine"))
        stale += time.perf_counter() - begin > store.patience / 2
    session.close()
    measured("P23", "killed holders of a lock", kills=kills, stale=stale)
    assert not stale, "a lock outlived its holder"


@pytest.mark.promise("P23")
def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    """After kill -9 of a process in the middle of its appends, the next writer does not wait."""
    check_locks(tmp_path, kills=20)


@pytest.mark.promise("P23")
@pytest.mark.long
def test_the_locks_of_a_thousand_killed_holders_are_free_at_once() -> None:
    """The long form of the test above."""
    with fast_folder() as folder:
        check_locks(Path(folder), kills=1_000)


def stopped_holder(path: str) -> Child:
    """Run a process that holds the lock of a file and is stopped."""

    def hold(tell: Tell) -> None:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            tell("held")
            signal.pause()

    holder = Child(hold)
    holder.wait_for_word()
    os.kill(holder.pid, signal.SIGSTOP)
    return holder


@pytest.mark.promise("P23")
def test_a_live_holder_is_never_robbed_and_is_named(tmp_path: Path) -> None:
    """While a stopped process holds the lock, an append waits and then raises `SessionBusy` with its process id."""
    store = Store(tmp_path, durability="process")
    session = store.create(CWD, publish=True)
    before = Path(session.path).read_bytes()
    holder = stopped_holder(session.path)
    other = Store(tmp_path, durability="process", patience=0.1).open(session.id)
    with pytest.raises(SessionBusy, match=str(holder.pid)):
        other.append_message(message("not now"))
    assert Path(session.path).read_bytes() == before
    holder.kill()
    holder.finish()
    assert other.append_message(message("now")).id
    measured("P23", "stopped holders of a lock", holders=1, robbed=0)


@pytest.mark.promise("P23")
@pytest.mark.parametrize("jump", [-DAY, DAY], ids=["a day back", "a day on"])
def test_a_clock_that_jumps_neither_frees_a_lock_nor_prolongs_the_wait(
    tmp_path: Path, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system time jumps during a wait, the wait ends with `SessionBusy` and the holder keeps its lock."""
    session = Store(tmp_path, durability="process").create(CWD, publish=True)
    before = Path(session.path).read_bytes()
    holder = stopped_holder(session.path)
    jumps = count()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + next(jumps) * jump)
    other = Store(tmp_path, durability="process", patience=0.1, clock=time.time).open(session.id)
    with pytest.raises(SessionBusy):
        other.append_message(message("not now"))
    assert Path(session.path).read_bytes() == before
    holder.kill()
    holder.finish()
    assert other.append_message(message("now")).id
    measured("P23", "stopped holders of a lock, clock jumps", holders=1, robbed=0)


@pytest.mark.promise("P1")
def test_a_draft_of_a_killed_process_comes_back(tmp_path: Path) -> None:
    """Messages sent before the first answer are recovered by the next `create` or `continue_recent`, or by opening it."""
    for how in ("create", "continue_recent", "open"):
        store = Store(tmp_path / how, durability="process")

        def begin(tell: Tell, store: Store = store) -> None:
            session = store.create(CWD)
            tell([session.id, [session.append_message(message(f"thought {n}")).id for n in range(3)]])
            signal.pause()

        child = Child(begin)
        child.wait_for_word()
        child.kill()
        ((session_id, ids),) = child.finish()
        assert [(info.id, info.draft) for info in store.list_all()] == [(session_id, True)]
        assert [entry.id for entry in store.open(session_id, readonly=True).get_entries()] == ids
        session = store.open(session_id) if how == "open" else getattr(store, how)(CWD)
        assert (session.id == session_id) == (how != "create")
        assert [(info.id, info.draft) for info in store.list_all()] == [(session_id, False)]
        assert [entry.id for entry in store.open(session_id, readonly=True).get_entries()] == ids
        session.close()
