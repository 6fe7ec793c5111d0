"""Rig R3: power cuts on real file systems, run by `test_power_cuts` where nobody else sees the disks.

    python -m faults.power_cuts <folder> <disk> <cuts> <seed> [<what is left out> …]

The disk is a file in memory. Whoever copies it at some moment has what the disk had received by then, and nothing of what the
kernel held back: that is what a power cut leaves. The process that works on the disk is stopped for the copy, so that the copy
is of one moment. The copy is mounted, and the store on it is held against what the process had been promised.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import NamedTuple

from faults import caring, scenarios
from faults.failing import FaultyFilesystem
from faults.ledger import Ledger, Run, store_on, verify
from faults.playing import END, noted
from faults.processes import Child, Tell
from sessile.storage.filesystem import PosixFilesystem

SIZE = 32 << 20
LONGEST = 0.05  # seconds between two cuts


def delete_and_undo(run: Run) -> None:
    scenarios.delete(run)
    scenarios.undo(run)


WORK: list[scenarios.Act] = [
    scenarios.create,
    scenarios.publish,
    scenarios.append,
    scenarios.many,
    scenarios.branch,
    scenarios.fork,
    scenarios.branch_off,
    scenarios.name,
    scenarios.rewrite,
    scenarios.large,
    caring.every_kind,
    caring.put_a_blob,
    caring.obtain,
]
MOVES = [scenarios.move, delete_and_undo]


class Disk(NamedTuple):
    """How a file system is made and mounted, and what its own check is, if it has no journal and needs one after a cut.

    Without a journal a cut can leave a file that was moved to another folder under both names, or a folder that was removed
    as something else: on such a disk nothing is moved.
    """

    make: tuple[str, ...]
    options: str = "loop"
    check: tuple[str, ...] = ()


EXT4 = ("mkfs.ext4", "-q", "-F", "-b", "1024")
DISKS = {
    "ordered": Disk(EXT4, "loop,commit=600,data=ordered"),
    "writeback": Disk(EXT4, "loop,commit=600,data=writeback"),
    "journal": Disk(EXT4, "loop,commit=600,data=journal"),
    "nobarrier": Disk(EXT4, "loop,commit=600,nobarrier"),
    "ext2": Disk(("mkfs.ext2", "-q", "-F", "-b", "1024"), check=("e2fsck", "-f", "-y")),
}


class Found(NamedTuple):
    """What the rig counted, and the first complaints."""

    cuts: int
    acknowledged: int
    complaints: list[str]


def work(root: str, seed: int, acts: list[scenarios.Act], without: Collection[str], tell: Tell) -> None:
    """Do everything that people do, in some order, telling what was promised."""
    filesystem = FaultyFilesystem(PosixFilesystem(), without=without)
    run = Run(store_on(filesystem, root, seed), Ledger(), tell)
    scenarios.one_session(run)
    for act in Random(seed).sample(acts, len(acts)):
        act(run)
    tell(END)


@contextmanager
def mounted(disk: Disk, image: str, folder: str) -> Iterator[None]:
    os.makedirs(folder, exist_ok=True)
    _run("mount", "-o", disk.options, image, folder)
    try:
        yield
    finally:
        _run("umount", folder)


def _run(*command: str, fine: Collection[int] = (0,)) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in fine, f"{command}: {done.stderr}"


def one_life(folder: str, disk: Disk, cuts: int, seed: int, without: Collection[str]) -> Found:
    """A new disk, a process that works on it, and up to that many cuts meanwhile."""
    image, rng = f"{folder}/disk", Random(seed)
    with open(image, "wb") as file:
        file.truncate(SIZE)
    _run(*disk.make, image)
    number = acknowledged = 0
    complaints = []
    with mounted(disk, image, f"{folder}/mounted"):
        acts = WORK if disk.check else [*WORK, *MOVES]
        worker = Child(partial(work, f"{folder}/mounted/store", seed, acts, without))
        try:
            alive = True
            while alive and number < cuts:
                alive = worker.listen(rng.uniform(0, LONGEST))
                worker.stop()
                shutil.copyfile(image, f"{folder}/copy")
                told = worker.told()
                worker.go_on()
                number += 1
                ledger = noted(Ledger(), told)
                ledger.leaves.clear()  # whoever goes on says so only when it is done
                acknowledged += sum(map(len, ledger.texts.values()))
                try:
                    check(folder, disk, ledger)
                except Exception as error:
                    complaints.append(f"cut {number} of life {seed}: {error!r}")
        finally:
            worker.kill()
            worker.finish()
    return Found(number, acknowledged, complaints)


def check(folder: str, disk: Disk, ledger: Ledger) -> None:
    """Mount what the cut left, and hold it against what was promised."""
    if disk.check:
        _run(*disk.check, f"{folder}/copy", fine=(0, 1))
    with mounted(disk, f"{folder}/copy", f"{folder}/left"):
        verify(store_on(None, f"{folder}/left/store", 10_000), copy.deepcopy(ledger), whole=False)


def main(folder: str, disk: str, cuts: int, seed: int, without: Collection[str] = ()) -> Found:
    found = Found(0, 0, [])
    while found.cuts < cuts:
        life = one_life(folder, DISKS[disk], cuts - found.cuts, seed + found.cuts, without)
        found = Found(
            found.cuts + life.cuts, found.acknowledged + life.acknowledged, found.complaints + life.complaints
        )
    return found


if __name__ == "__main__":
    place, kind, number_of_cuts, first_seed, *left_out = sys.argv[1:]
    print(json.dumps(main(place, kind, int(number_of_cuts), int(first_seed), left_out)))
