"""Kills and failing disks at every file system call while a session is copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import cycle
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.striding import calls
from sessile import Library, Store
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.layout import Source
from sessile.storage.session_bytes import files_below
from sessile.upkeep.keep import Keeper, Kept

CLAUDE = "/claude"
PROJECTS = f"{CLAUDE}/projects"
KEPT = "/own/kept/claude"
NAME = "-work/11111111-1111-4111-8111-111111111111"
NEW = {
    f"{NAME}.jsonl": b'{"type":"user","uuid":"a"}\n' * 40 + b'{"torn"',
    f"{NAME}/subagents/agent-1.jsonl": b'{"type":"user","uuid":"b"}\n' * 3,
    f"{NAME}/tool-results/1.txt": b"",
}
GROWN = {name: content[:20] for name, content in NEW.items()}
CHANGED = {name: b"#" + content for name, content in NEW.items()}
STATES = {"nothing": {}, "a beginning": GROWN, "something else": CHANGED}


def prepared(kept: dict[str, bytes]) -> CrashableFilesystem:
    """Return a durable session of Claude Code and its earlier copy."""
    fs = CrashableFilesystem()
    atomic.make_folders(fs, "/own")
    for folder, files in ((PROJECTS, NEW), (KEPT, kept)):
        for name, content in files.items():
            path = f"{folder}/{name}"
            atomic.make_folders(fs, os.path.dirname(path))
            atomic.replace(fs, path, (content,))
    return fs


def keep(fs: Filesystem) -> Kept:
    """Keep the session with a new library, as a new process does."""
    with Library(Store("/own", fs=fs), [Source("claude", CLAUDE, PROJECTS)]) as library:
        return Keeper(library).keep(f"{PROJECTS}/{NAME}.jsonl")


def contents(fs: Filesystem, folder: str) -> dict[str, bytes]:
    """Return the contents of all files below a folder."""
    return {path: atomic.read_all(fs, path) for path, _ in files_below(fs, folder)}


def originals(fs: Filesystem) -> dict[str, tuple[bytes, int]]:
    return {path: (atomic.read_all(fs, path), status.st_mtime_ns) for path, status in files_below(fs, CLAUDE)}


def survivors(before: CrashableFilesystem) -> Iterator[tuple[CrashableFilesystem, bool]]:
    """Yield the disk after a kill before each call, and after a power cut at that point, and whether all was done."""
    models = cycle(CrashModel)
    for number in calls():
        fs = before.kill()
        done = True
        try:
            keep(FaultyFilesystem(fs, plan=[Kill(at=number)]))
        except Killed:
            done = False
        yield fs.kill(), done
        yield fs.crash(Random(number), next(models)), done
        if done:
            assert number > 20, "a rig that kills nobody proves nothing"
            return


def check(fs: Filesystem, kept: dict[str, bytes], *, done: bool, whole: bool = True) -> None:
    """Check that every copy is whole, earlier copies are there, and a new transcript has all its files.

    The last rule applies only if no file was reported as missing.
    """
    found = contents(fs, KEPT)
    listed = {path: content for path, content in found.items() if not path.endswith((".tmp", ".old"))}
    for path, content in listed.items():
        name = path.removeprefix(f"{KEPT}/")
        assert content in (NEW[name], kept.get(name)), path
    for name, content in kept.items():
        assert any(each.startswith(content) for path, each in found.items() if name in path), name
    if done or (whole and listed.get(f"{KEPT}/{NAME}.jsonl") == NEW[f"{NAME}.jsonl"]):
        assert listed == {f"{KEPT}/{name}": content for name, content in NEW.items()}


@pytest.mark.mission("B7")
@pytest.mark.parametrize("state", STATES)
def test_a_kill_or_a_power_cut_leaves_whole_copies_and_the_next_run_makes_them_complete(state: str) -> None:
    """The original is never changed, no earlier copy is lost, and acknowledged copies are durable."""
    kept = STATES[state]
    before = prepared(kept)
    for fs, done in survivors(before):
        assert contents(fs, CLAUDE) == contents(before, CLAUDE)
        check(fs, kept, done=done)
        keep(fs)
        check(fs, kept, done=True)
        check(fs.crash(Random(1), CrashModel.ADVERSARIAL), kept, done=True)
        assert keep(fs).written == []


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_the_rig_notices_a_disk_that_is_not_told_to_write(missing: str) -> None:
    """Without one of the syncs, a power cut loses an acknowledged copy."""
    with pytest.raises(AssertionError):
        for seed in range(20):
            fs = prepared({})
            keep(FaultyFilesystem(fs, without={missing}))
            check(fs.crash(Random(seed), CrashModel.ADVERSARIAL), {}, done=True)


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("state", STATES)
def test_a_disk_that_fails_at_any_call_is_told_and_costs_nothing(state: str, code: int, forever: bool) -> None:
    """Only our errors are raised, they name a file, and the next run completes the copy."""
    kept = STATES[state]
    before = prepared(kept)
    for number in calls():
        inner = before.kill()
        fs = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever)])
        told: list[SessileError] = []
        try:
            told = keep(fs).failed
        except SessileError as error:
            told = [error]
        assert all(error.path is not None for error in told)
        if not fs.struck:
            assert number > 20
            return
        assert originals(inner) == originals(before)
        sweeping = fs.calls[number - 1].method == "names" and not told  # for what dead writers left: it may fail
        assert told or sweeping, fs.calls[number - 1]
        if not sweeping:
            check(inner, kept, done=False, whole=False)
        keep(inner)
        check(inner, kept, done=True)
