"""Rig R3: power cuts on real file systems. `test_power_cuts` runs this in a mount namespace of its own.

    python -m faults.power_cuts <folder> <disk> <cuts> <seed> [<method to leave out> …]

The disk is a file in memory. A copy of that file holds what the disk has received so far and nothing that the kernel has only
cached, which is what a power cut leaves. The working process is stopped during the copy, so the copy shows one moment. The copy
is mounted, and the store on it is compared with the promises that the process had received.
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
LONGEST = 0.05  # maximum seconds between two cuts


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
    """How to create and mount a file system, and its check, if it has no journal and needs one after a cut.

    Without a journal, a cut can leave a moved file under both names, or turn a removed folder into something else. The rig moves
    nothing on such a disk.
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
    """The counts of the rig, and its complaints."""

    cuts: int
    acknowledged: int
    complaints: list[str]


def work(root: str, seed: int, acts: list[scenarios.Act], without: Collection[str], tell: Tell) -> None:
    """Do every kind of work in random order and report the promises."""
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
    """Create a disk, let a process work on it, and cut the power up to `cuts` times."""
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
                ledger.leaves.clear()  # a new leaf may be durable before it is reported
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
    """Mount the copy and compare the store with the promises."""
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
