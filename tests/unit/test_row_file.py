"""Files of rows that other programs write to as well."""

from __future__ import annotations

import os

import pytest

from faults.failing import FaultyFilesystem, Meddle
from sessile.errors import LeafMoved, SessionNotFound, StorageFailure
from sessile.storage import atomic, locks
from sessile.storage.line_file import add_rows, replace_row
from sessile.storage.memory import MemoryFilesystem

FILE = "/f.jsonl"


def file_with(data: bytes) -> MemoryFilesystem:
    fs = MemoryFilesystem()
    atomic.replace(fs, FILE, (data,))
    return fs


def write(fs: MemoryFilesystem, data: bytes) -> None:
    """What another program does, without looking."""
    fd = fs.open(FILE, os.O_WRONLY | os.O_APPEND)
    fs.write(fd, data)
    fs.close(fd)


@pytest.mark.parametrize(("before", "after"), [(b"", b"x\n"), (b"a\n", b"a\nx\n"), (b"a", b"a\nx\n")])
def test_rows_begin_on_a_line_of_their_own(before: bytes, after: bytes) -> None:
    """Whatever stands before them; where they lie is told."""
    fs = file_with(before)
    added = add_rows(fs, FILE, b"x\n")
    assert atomic.read_all(fs, FILE) == after
    assert added.offset == len(after) - 2 and added.stat.st_size == len(after)


def test_a_missing_file_is_only_made_on_demand() -> None:
    """What is deleted stays deleted."""
    fs = MemoryFilesystem()
    with pytest.raises(SessionNotFound):
        add_rows(fs, FILE, b"x\n")
    add_rows(fs, FILE, b"x\n", create=True)
    assert atomic.read_all(fs, FILE) == b"x\n"


@pytest.mark.parametrize("other", [b"y\n", b"torn", b"y\ntorn"])
def test_rows_that_another_program_wrote_before_do_not_swallow_ours(other: bytes) -> None:
    """Between our look at the end and our write; glued rows are written again."""
    inner = file_with(b"a\n")
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: write(inner, other), on={"write"})])
    added = add_rows(faulty, FILE, b"x\n")
    data = atomic.read_all(inner, FILE)
    assert data.startswith(b"a\n" + other) and b"\nx\n" in data
    assert data[added.offset :].startswith(b"x\n") and data[added.offset - 1 : added.offset] == b"\n"


def test_a_program_that_replaces_the_file_without_pause_is_told() -> None:
    """We do not try for ever."""
    inner = file_with(b"a\n")
    plan = [Meddle(lambda: atomic.replace(inner, FILE, (b"a\n",)), at=number, on={"write"}) for number in range(1, 20)]
    with pytest.raises(StorageFailure):
        add_rows(FaultyFilesystem(inner, plan=plan), FILE, b"x\n")


def test_a_row_is_replaced_and_all_other_bytes_stay() -> None:
    """Also those that are no rows; the second name is gone afterwards."""
    fs = file_with(b"a\n\0junk\nold\nb\ntorn")
    replace_row(fs, FILE, 8, b"old", b"newer", "/aside")
    assert atomic.read_all(fs, FILE) == b"a\n\0junk\nnewer\nb\ntorn"
    assert fs.names("/") == ["f.jsonl"]


def test_a_row_that_is_not_there_any_more_is_not_replaced() -> None:
    """Nothing is changed, nothing is left."""
    fs = file_with(b"other\n")
    with pytest.raises(LeafMoved):
        replace_row(fs, FILE, 0, b"row", b"new", "/aside")
    assert atomic.read_all(fs, FILE) == b"other\n" and fs.names("/") == ["f.jsonl"]


def test_processes_are_alive_or_not() -> None:
    """Numbers that no process can have are not."""
    assert locks.is_alive(locks.own_pid()) and locks.is_alive(1)
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    assert not locks.is_alive(child)
    assert not any(locks.is_alive(pid) for pid in (0, -1, 2**31))
