"""Rig R3: power cuts on real file systems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.power_cuts import DISKS, Found
from faults.processes import fast_folder
from faults.scenarios import is_root
from figures import measured

TESTS = Path(__file__).parent.parent
CUTS = 200  # per disk, in the long form


@pytest.fixture
def own_disks() -> Iterator[str]:
    """Return a folder in memory in which a process can create and mount private disks."""
    with fast_folder() as folder:
        probe = "truncate -s 4M disk && mkfs.ext4 -q -F disk && mkdir mounted && mount -o loop disk mounted"
        command = ["unshare", "-m", "sh", "-c", probe]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            trouble = done.stderr if done.returncode else ""
        except FileNotFoundError as error:
            trouble = str(error)
        if trouble or not is_root():
            pytest.skip(f"power cuts need root, loop devices and `unshare -m`: NOT PROVED on this machine ({trouble})")
        yield folder


def cut(folder: str, disk: str, cuts: int, seed: int, *without: str) -> Found:
    """Run the rig on one disk in its own mount namespace, so that all mounts end with it."""
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", "faults.power_cuts", folder, disk, str(cuts), str(seed), *without],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Found(*json.loads(done.stdout))


def check(folder: str, disk: str, cuts: int, seed: int) -> None:
    found = cut(folder, disk, cuts, seed)
    assert not found.complaints, "\n".join(found.complaints)
    measured("P2", "power cuts on real disks", cuts=found.cuts, acknowledged=found.acknowledged, lost=0)
    measured("P11", "power cuts on real disks", cuts=found.cuts, half_files=0)
    assert found.acknowledged > found.cuts, "a cut before anything was promised proves nothing"


@pytest.mark.promise("P2")
@pytest.mark.promise("P11")
def test_power_cuts_lose_nothing_acknowledged(own_disks: str) -> None:
    """After a power cut at any moment, every acknowledged entry and name is on the disk, and the store works at once."""
    check(own_disks, "ordered", cuts=5, seed=1)


@pytest.mark.promise("P2")
@pytest.mark.promise("P11")
@pytest.mark.long
@pytest.mark.parametrize("disk", DISKS)
def test_many_power_cuts_lose_nothing_acknowledged(own_disks: str, disk: str) -> None:
    """The long form: a thousand cuts, with three kinds of journals, without barriers and without a journal."""
    check(own_disks, disk, cuts=CUTS, seed=1000)


@pytest.mark.promise("P2")
def test_without_sync_the_rig_of_real_power_cuts_reports_loss(own_disks: str) -> None:
    """Without syncs, acknowledged entries are missing on the disk, and the rig reports it."""
    assert cut(own_disks, "ordered", 4, 7, "sync", "sync_directory").complaints
