"""Rig: after kills at random moments of every writing verb, every byte of the store has an account."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from faults.failing import FaultyFilesystem, Kill, Killed
from faults.ledger import CWD, Ledger, Run, message, store_on
from faults.playing import prepared_at
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.scenarios import SCENARIOS, Scenario
from figures import measured
from sessile import Store
from sessile.storage import atomic
from sessile.storage.filesystem import RootedFilesystem
from sessile.upkeep.disk import disk_usage
from sessile.upkeep.sweep import leftovers

ROUNDS = 4  # kills on one store before it is checked
WRITING = [scenario for scenario in SCENARIOS if scenario.name not in ("append", "resume", "reopen")]
DEAD = b"x" * 100  # bytes that are nowhere else


def bytes_on_disk(root: str) -> int:
    """Return the size of all files below a folder; one with two names counts once."""
    seen = {}
    for folder, _, names in os.walk(root):
        for name in names:
            status = os.lstat(f"{folder}/{name}")
            if not os.path.islink(f"{folder}/{name}"):
                seen[status.st_ino, status.st_dev] = status.st_size
    return sum(seen.values())


def temps(root: str) -> set[str]:
    """Return all temporary files below a folder, found without the code under test."""
    found = set()
    for folder, folders, names in os.walk(root):
        found |= {f"{folder}/{name}" for name in (*folders, *names) if name.endswith(".tmp") and name.startswith(".")}
    return found


def check(root: str) -> int:
    """Check the accounts of a store, and that the next writers remove what is spare. Return the number of leftovers."""
    store = Store(root, durability="process")
    usage = disk_usage(store)
    assert usage.total == bytes_on_disk(root)
    others = (f"{root}/claude/", f"{root}/second/")  # other stores of the scenarios
    assert all(path.startswith(others) for path in usage.other_paths), usage.other_paths
    left = list(leftovers(store))
    assert {each.path for each in left} == temps(root)
    assert usage.leftovers == len(left) and usage.temporary == 0
    for folder in {os.path.dirname(each.path) for each in left if each.spare}:
        atomic.replace(store.fs, f"{folder}/next", (b"",))  # the next writer in each folder, whoever it is
        os.unlink(f"{folder}/next")
    cached = (store.layout.cache, f"{root}/terminal-sessions")
    for each in left:
        stays = each.path in temps(root)
        assert stays != each.spare or each.path.startswith(cached), each
    assert disk_usage(store).total == bytes_on_disk(root)
    return len(left)


def check_scenario(scenario: Scenario, seed: int, kills: int) -> int:
    """Kill processes before random calls of a scenario, several on one store. Return how many files they left."""
    rng = Random(f"{scenario.name} {seed}")
    left = 0
    with fast_folder() as folder:
        base = f"{folder}/base"
        ledger = prepared_at(base, scenario)
        shutil.copytree(base, f"{folder}/first")
        (calls,) = Child(partial(_play, f"{folder}/first", copy.deepcopy(ledger), scenario, None)).finish()
        for number in range(0, kills, ROUNDS):
            root = f"{folder}/{number}"
            shutil.copytree(base, root)
            for _ in range(min(ROUNDS, kills - number)):
                Child(partial(_play, root, copy.deepcopy(ledger), scenario, rng.randint(1, calls))).finish()
            left += check(root)
            shutil.rmtree(root)
    measured("P47", "kills at random in every writing verb", kills=kills, leftovers=left, unnamed=0)
    return left


def _play(root: str, ledger: Ledger, scenario: Scenario, at: int | None, tell: Tell) -> None:
    """Play a scenario and die with kill -9 before call number `at`; without it, tell how many calls there are."""
    fs = FaultyFilesystem(RootedFilesystem(root), plan=[] if at is None else [Kill(at=at)])
    try:
        scenario.act(Run(store_on(fs, root, 2, "process"), ledger))
    except Killed:
        os.kill(os.getpid(), signal.SIGKILL)
    except Exception:
        pass  # a process before it has finished the work already
    if at is None:
        tell(len(fs.calls))


@pytest.mark.promise("P47")
@pytest.mark.parametrize("scenario", WRITING, ids=lambda scenario: scenario.name)
def test_every_byte_has_an_account_after_kills(scenario: Scenario) -> None:
    """Kinds add up to the disk, leftovers are named, and the next writer removes those whose bytes are elsewhere."""
    check_scenario(scenario, seed=1, kills=4)


@pytest.mark.promise("P47")
@pytest.mark.long
@pytest.mark.parametrize("scenario", WRITING, ids=lambda scenario: scenario.name)
def test_every_byte_has_an_account_after_thousands_of_kills(scenario: Scenario) -> None:
    """The long form of the test above."""
    check_scenario(scenario, seed=2, kills=4_000 // len(WRITING) // ROUNDS * ROUNDS)


def rewrite_for_ever(root: str, session_id: str, tell: Tell) -> None:
    """Rewrite a session of some megabytes until killed."""
    session = Store(root, durability="process").open(session_id)
    tell("begin")
    for number in range(1_000_000):
        session.rewrite_entries(lambda entry, n=number: {**entry, "x": n})  # type: ignore[misc]


@pytest.mark.promise("P47")
@pytest.mark.parametrize("kills", [8, pytest.param(400, marks=pytest.mark.long)])
def test_rewrites_that_were_killed_do_not_pile_up(kills: int) -> None:
    """Temporary files of killed rewrites never take more than a few times the size of the session."""
    rng = Random(kills)
    swept = 0
    with fast_folder() as root:
        store = Store(root, durability="process")
        with store.create(CWD, publish=True) as session:
            for number in range(200):
                session.append_message(message(f"{number} " + "x" * 5_000))
        size = os.path.getsize(session.path)
        for _ in range(kills):
            killed_after(rng.uniform(0, 0.02), partial(rewrite_for_ever, root, session.id))
            left = temps(root)
            store.create(CWD, publish=True).close()
            swept += len(left - temps(root))
            assert sum(map(os.path.getsize, temps(root))) <= size
            shutil.rmtree(f"{root}/originals", ignore_errors=True)
        assert disk_usage(store).total == bytes_on_disk(root)
    assert swept
    measured("P47", "killed rewrites of one session", kills=kills, swept=swept, left=0)


@pytest.mark.promise("P47")
def test_the_commands_name_what_is_left(tmp_path: Path) -> None:
    """`du`, `doctor`, `check --all` and `prune` name the bytes that a dead process left and that are nowhere else."""
    root = tmp_path / "root"
    with Store(root).create(CWD, publish=True) as session:
        session.append_message(message("hello"))
    temp = atomic.temp_beside(session.path)
    Path(temp).write_bytes(DEAD)
    env = {**os.environ, "HOME": str(tmp_path), "SESSILE_ROOT": str(root), "SESSILE_CACHE": str(tmp_path / "cache")}

    def sessile(*arguments: str) -> str:
        command = [sys.executable, "-m", "sessile", "--root", str(root), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    assert "left by dead processes" in sessile("du")
    for verb in (("doctor",), ("check", "--all"), ("prune", "--leftovers")):
        assert os.path.basename(temp) in sessile(*verb).replace("\n", ""), verb
    assert "moved to the trash" in sessile("prune", "--leftovers", "--apply")
    assert not os.path.exists(temp)
