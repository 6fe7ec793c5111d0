"""Adding and replacing rows in files that other programs write to as well."""

from __future__ import annotations

import errno
import os

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle
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
    """Append as another program does, without the lock."""
    fd = fs.open(FILE, os.O_WRONLY | os.O_APPEND)
    fs.write(fd, data)
    fs.close(fd)


@pytest.mark.parametrize(("before", "after"), [(b"", b"x\n"), (b"a\n", b"a\nx\n"), (b"a", b"a\nx\n")])
def test_rows_begin_on_a_line_of_their_own(before: bytes, after: bytes) -> None:
    """Rows start on a new line, whatever is before them, and their offset is returned."""
    fs = file_with(before)
    added = add_rows(fs, FILE, b"x\n")
    assert atomic.read_all(fs, FILE) == after
    assert added.offset == len(after) - 2 and added.stat.st_size == len(after)


def test_a_missing_file_is_only_made_on_demand() -> None:
    """A missing file is created only with `create`."""
    fs = MemoryFilesystem()
    with pytest.raises(SessionNotFound):
        add_rows(fs, FILE, b"x\n")
    add_rows(fs, FILE, b"x\n", create=True)
    assert atomic.read_all(fs, FILE) == b"x\n"


@pytest.mark.parametrize("other", [b"y\n", b"torn", b"y\ntorn"])
def test_rows_that_another_program_wrote_before_do_not_swallow_ours(other: bytes) -> None:
    """Rows that were glued to another program's fragment are written again."""
    inner = file_with(b"a\n")
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: write(inner, other), on={"write"})])
    added = add_rows(faulty, FILE, b"x\n")
    data = atomic.read_all(inner, FILE)
    assert data.startswith(b"a\n" + other) and b"\nx\n" in data
    assert data[added.offset :].startswith(b"x\n") and data[added.offset - 1 : added.offset] == b"\n"


@pytest.mark.parametrize("other", [b"y\n", b"torn"])
def test_rows_of_an_empty_file_are_found_behind_those_of_another_program(other: bytes) -> None:
    """The start of a file is the start of a line."""
    inner = file_with(b"")
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: write(inner, other), on={"write"})])
    added = add_rows(faulty, FILE, b"x\n")
    data = atomic.read_all(inner, FILE)
    assert data.startswith(other) and data[added.offset - 1 : added.offset + 2] == b"\nx\n"
    inner = file_with(b"")
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: write(inner, other), on={"fstat"}, at=2)])
    assert add_rows(faulty, FILE, b"x\n").offset == 0
    assert atomic.read_all(inner, FILE) == b"x\n" + other


def test_a_program_that_replaces_the_file_without_pause_is_told() -> None:
    """After a few tries an error is raised."""
    inner = file_with(b"a\n")
    plan = [Meddle(lambda: atomic.replace(inner, FILE, (b"a\n",)), at=number, on={"write"}) for number in range(1, 20)]
    with pytest.raises(StorageFailure):
        add_rows(FaultyFilesystem(inner, plan=plan), FILE, b"x\n")


def test_a_row_is_replaced_and_all_other_bytes_stay() -> None:
    """All other bytes stay, and the second name is removed."""
    fs = file_with(b"a\n\0junk\nold\nb\ntorn")
    replace_row(fs, FILE, 8, b"old", b"newer", "/aside")
    assert atomic.read_all(fs, FILE) == b"a\n\0junk\nnewer\nb\ntorn"
    assert fs.names("/") == ["f.jsonl"]


def test_a_row_that_is_not_there_any_more_is_not_replaced() -> None:
    """Nothing is changed, and no file is left."""
    fs = file_with(b"other\n")
    with pytest.raises(LeafMoved):
        replace_row(fs, FILE, 0, b"row", b"new", "/aside")
    assert atomic.read_all(fs, FILE) == b"other\n" and fs.names("/") == ["f.jsonl"]


def test_a_row_that_is_added_during_a_replacement_is_carried_over() -> None:
    """Another program had the old file open when it lost its name."""
    inner = file_with(b"old\nb\n")
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: write(inner, b"late\n"), on={"rename"})])
    replace_row(faulty, FILE, 0, b"old", b"newer", "/aside")
    assert atomic.read_all(inner, FILE) == b"newer\nb\nlate\n"
    assert inner.names("/") == ["f.jsonl"] and not inner._open


def test_a_row_is_not_replaced_in_a_file_that_another_program_has_replaced() -> None:
    """The new file stays as it is, and no second name is left."""
    inner = file_with(b"old\nb\n")
    swap = Meddle(lambda: atomic.replace(inner, FILE, (b"old\nedited\n",)), on={"link"})
    with pytest.raises(LeafMoved):
        replace_row(FaultyFilesystem(inner, plan=[swap]), FILE, 0, b"old", b"newer", "/aside")
    assert atomic.read_all(inner, FILE) == b"old\nedited\n"
    assert inner.names("/") == ["f.jsonl"] and not inner._open


def test_a_replacement_that_fails_leaves_everything_as_it_was() -> None:
    """The second name and the temporary file are removed, and both descriptors are closed."""
    for method in ("open", "lock", "fstat", "link", "write", "sync", "rename"):
        inner = file_with(b"old\nb\n")
        at = 2 if method in ("open", "lock", "fstat") else 1
        faulty = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={method}, at=at)])
        with pytest.raises(StorageFailure):
            replace_row(faulty, FILE, 0, b"old", b"newer", "/aside")
        assert faulty.struck and atomic.read_all(inner, FILE) == b"old\nb\n"
        assert inner.names("/") == ["f.jsonl"] and not inner._open


def test_processes_are_alive_or_not() -> None:
    """Invalid process ids are not alive."""
    assert locks.is_alive(locks.own_pid()) and locks.is_alive(1)
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    assert not locks.is_alive(child)
    assert not any(locks.is_alive(pid) for pid in (0, -1, 2**31))
