"""Kills, power cuts and failing disks at every step of writing memory notes."""

from __future__ import annotations

import errno
from collections.abc import Collection
from datetime import UTC
from itertools import count
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import DropUnsynced, Fail, FaultyFilesystem, Kill, Killed, ShortWrite
from sessile.errors import SessileError
from sessile.gateway.conversations.notes import append_notes
from sessile.storage.atomic import exists, make_folders, read_all, write_new
from sessile.storage.base import Filesystem

pytestmark = pytest.mark.mission("Y10", "B4")

NOW = 1_794_787_200_000 + 60_000  # a minute after midnight
TODAY, YESTERDAY = "/home/work/memory/2026-11-16.md", "/home/work/memory/2026-11-15.md"
NOTES = "Paris is booked.\n" * 100
BEFORE = [None, b"", b"# Day\n", b"# Day\nno newline", b"# Day\n" * 2000]


def disk_with(content: bytes | None) -> CrashableFilesystem:
    """Return a disk with a workspace and, if given, a file of the day."""
    disk = CrashableFilesystem()
    make_folders(disk, "/home/work")
    if content is not None:
        make_folders(disk, "/home/work/memory")
        write_new(disk, TODAY, [content])
        disk.sync_directory("/home/work/memory")
    return disk


def note(fs: Filesystem, key: str = "s:0", now: int = NOW, reply: str = NOTES) -> str | None:
    return append_notes(fs, "/home/work", reply, key=key, now=now, zone=UTC)


def check(fs: Filesystem, content: bytes | None, *, whole: bool = True) -> None:
    """Check that the block is there once, after the old content. Unless `whole`, a torn part of it may precede it."""
    found = read_all(fs, TODAY)
    before = content or b""
    assert found.startswith(before)
    assert found.endswith(NOTES.encode() + b"\n<!-- sessile.flush s:0 -->\n")
    assert found.count(b"<!-- sessile.flush s:0 -->") == 1
    if whole:
        assert found.count(b"## 00:01") == 1
        assert len(found) - len(before) < len(NOTES) + 60


@pytest.mark.parametrize("content", BEFORE)
def test_a_flush_that_died_before_any_call_is_noted_once_when_it_is_repeated(content: bytes | None) -> None:
    """After a kill, repeating the flush stores the notes once, and they survive a power cut."""
    for number in count(1):
        disk = disk_with(content)
        faulty = FaultyFilesystem(disk, plan=[Kill(at=number)])
        try:
            note(faulty)
        except Killed:
            pass
        survivor = disk.kill()
        note(survivor)
        assert note(survivor) is None
        check(survivor, content)
        for model in CrashModel:
            check(survivor.crash(Random(number), model), content)
        if not faulty.struck:
            break
    assert number > 10


@pytest.mark.parametrize("content", BEFORE)
def test_a_power_cut_before_any_call_loses_nothing(content: bytes | None) -> None:
    """After a power cut, a part of the notes may be left; the repetition writes all of them on new lines."""
    torn = 0
    for number in count(1):
        disk = disk_with(content)
        faulty = FaultyFilesystem(disk, plan=[Kill(at=number)])
        try:
            note(faulty)
        except Killed:
            pass
        for sample in range(10):
            survivor = disk.crash(Random(f"{number} {sample}"), CrashModel.ORDERED)
            left = read_all(survivor, TODAY) if exists(survivor, TODAY) else b""
            note(survivor)
            if read_all(survivor, TODAY) == left:
                continue  # everything had reached the disk, except perhaps the last newline
            check(survivor, content, whole=False)
            rest = read_all(survivor, TODAY).removeprefix(left)
            assert rest.startswith((b"\n## 00:01", b"\n\n## 00:01") if left else b"## 00:01")
            torn += left != (content or b"")
        if not faulty.struck:
            break
    assert torn


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_the_rig_notices_a_missing_sync(missing: str) -> None:
    """With one kind of sync left out, a power cut loses acknowledged notes."""

    def is_lost(without: Collection[str], sample: int) -> bool:
        disk = disk_with(None)
        note(FaultyFilesystem(disk, without=without))
        try:
            check(disk.crash(Random(sample), CrashModel.ORDERED), None)
        except (FileNotFoundError, AssertionError):
            return True
        return False

    assert any(is_lost({missing}, sample) for sample in range(20))
    assert not any(is_lost((), sample) for sample in range(20))


def test_a_flush_that_died_before_midnight_is_made_durable_by_its_repetition_after() -> None:
    """Notes in the file of the day before are found, made durable and not written twice."""
    for number in count(1):
        disk = disk_with(None)
        faulty = FaultyFilesystem(disk, plan=[Kill(at=number)])
        try:
            note(faulty, now=NOW - 120_000)
        except Killed:
            pass
        survivor = disk.kill()
        note(survivor)
        for model in CrashModel:
            left = survivor.crash(Random(number), model)
            files = [read_all(left, path) for path in (YESTERDAY, TODAY) if exists(left, path)]
            assert b"".join(files).count(b"<!-- sessile.flush s:0 -->") == 1
            assert b"".join(files).count(NOTES.encode()) == 1
        if not faulty.struck:
            break
    assert number > 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("content", BEFORE)
def test_a_failing_disk_raises_and_loses_nothing(content: bytes | None, code: int) -> None:
    """At every call, once or permanently, an error is raised, and the flush can be repeated."""
    for forever in (False, True):
        for number in count(1):
            disk = disk_with(content)
            faulty = FaultyFilesystem(disk, plan=[Fail(code, at=number, forever=forever)])
            try:
                note(faulty)
            except SessileError as error:
                assert error.path is not None and error.hint is not None
            if not faulty.struck:
                break
            note(disk)
            check(disk, content)
            check(disk.crash(Random(number), CrashModel.ORDERED), content)
        assert number > 10


@pytest.mark.parametrize("written", [0, 1, 700])
def test_a_disk_that_fills_up_in_the_middle_leaves_the_file_as_it_was(written: int) -> None:
    """A partial write of notes is undone."""
    disk = disk_with(b"# Day\n")
    with pytest.raises(SessileError):
        note(FaultyFilesystem(disk, plan=[ShortWrite(written=written)]))
    assert read_all(disk, TODAY) == b"# Day\n"
    note(disk)
    check(disk, b"# Day\n")


def test_notes_that_the_disk_did_not_confirm_are_written_again() -> None:
    """Notes whose sync failed are written again, because the kernel may have dropped them."""
    disk = disk_with(b"# Day\n")
    with pytest.raises(SessileError):
        note(FaultyFilesystem(disk, plan=[DropUnsynced()]))
    note(disk)
    check(disk.crash(Random(0), CrashModel.ORDERED), b"# Day\n")
