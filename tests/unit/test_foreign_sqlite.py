"""Databases of other programs are read as they are, also while they are written, and nothing on disk changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessile.storage.foreign_sqlite import reading

WRITER = """
import sqlite3, sys
path, *steps = sys.argv[1:]
database = sqlite3.connect(path, isolation_level=None)
for step in steps:
    database.execute(step)
print("ready", flush=True)
sys.stdin.readline()
import os; os._exit(0)
"""
WAL = ["PRAGMA journal_mode = wal", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)", "PRAGMA wal_checkpoint(TRUNCATE)"]


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Return time and content of every file."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in folder.iterdir()
    }


@contextmanager
def written(path: Path, *steps: str) -> Iterator[None]:
    """Another process that has done these steps, and has the database open."""
    command = [sys.executable, "-c", WRITER, str(path), *steps]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield
        assert process.stdin is not None
        process.stdin.write(b"\n")


def count(path: Path) -> tuple[int, str | None]:
    """Read the rows of a database; fail if that changed, created or removed a file."""
    before = state(path.parent)
    with reading(str(path)) as database:
        ((found,),) = database.rows("SELECT count(*) FROM t")
        problem = database.problem
    assert state(path.parent) == before
    return found, problem


def test_a_log_of_a_living_program_is_read(tmp_path: Path) -> None:
    """What was committed counts; what is being written does not."""
    path = tmp_path / "x.db"
    with written(path, *WAL, "INSERT INTO t VALUES (2)", "BEGIN IMMEDIATE", "INSERT INTO t VALUES (3)"):
        assert count(path) == (2, None)


def test_a_log_of_a_killed_program_is_read(tmp_path: Path) -> None:
    """Its three files are still there, and nobody holds them."""
    path = tmp_path / "x.db"
    with written(path, *WAL, "INSERT INTO t VALUES (2)"):
        pass
    assert {"x.db-wal", "x.db-shm"} < state(tmp_path).keys()
    assert count(path) == (2, None)


@pytest.mark.parametrize("shared", [None, b"", b"\xff" * 32768])
def test_a_log_is_read_without_a_usable_index(tmp_path: Path, shared: bytes | None) -> None:
    """A copied home may lack the `-shm`, or have one that fits nothing."""
    path = tmp_path / "x.db"
    with written(path, *WAL, "INSERT INTO t VALUES (2)"):
        pass
    (tmp_path / "x.db-shm").unlink()
    if shared is not None:
        (tmp_path / "x.db-shm").write_bytes(shared)
    assert count(path) == (2, None)


def test_a_database_that_is_locked_exclusively_is_read(tmp_path: Path) -> None:
    """A program with exclusive locks uses no `-shm`; its log is read from a copy."""
    path = tmp_path / "x.db"
    with written(path, "PRAGMA locking_mode = exclusive", *WAL, "INSERT INTO t VALUES (2)"):
        assert count(path) == (2, None)


def test_a_database_without_a_log_is_read(tmp_path: Path) -> None:
    """In WAL mode, and in rollback mode, also while another program has begun to write."""
    path = tmp_path / "x.db"
    database = sqlite3.connect(path, isolation_level=None)
    for step in WAL:
        database.execute(step)
    database.close()
    assert state(tmp_path).keys() == {"x.db"}
    assert count(path) == (1, None)
    other = tmp_path / "rollback" / "y.db"
    other.parent.mkdir()
    with written(
        other, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)", "BEGIN IMMEDIATE", "INSERT INTO t VALUES (2)"
    ):
        assert count(other) == (1, None)


def test_a_database_that_cannot_be_locked_is_read_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remark says that the state may not be the last one."""
    monkeypatch.setattr("sessile.storage.foreign_sqlite._PATIENCE", 0.1)
    path = tmp_path / "x.db"
    with written(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)", "BEGIN EXCLUSIVE"):
        assert count(path) == (1, "another program has locked it")


def test_a_log_that_cannot_be_copied_leaves_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the database is read."""
    path = tmp_path / "x.db"
    with written(path, *WAL, "INSERT INTO t VALUES (2)"):
        pass
    (tmp_path / "x.db-shm").unlink()

    def full(*given: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    found, problem = count(path)
    assert found == 1 and problem is not None and "write-ahead log" in problem


def test_a_copy_is_made_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening many sessions of one database must not copy it each time."""
    path = tmp_path / "x.db"
    with written(path, *WAL, "INSERT INTO t VALUES (2)"):
        pass
    (tmp_path / "x.db-shm").unlink()
    made: list[object] = []
    copyfile = shutil.copyfile

    def counted(*given: Any, **options: Any) -> object:
        made.append(given)
        return copyfile(*given, **options)

    monkeypatch.setattr(shutil, "copyfile", counted)
    assert count(path) == count(path) == (2, None)
    assert len(made) == 2
    os.utime(path, ns=(1, 1))
    assert count(path) == (2, None)
    assert len(made) == 4


def test_what_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    """So is a file that is missing, and a damaged one when it is asked."""
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database, but long enough to have a header" * 10)
    with pytest.raises(OSError, match="not a SQLite database"), reading(str(path)):
        pass
    with pytest.raises(FileNotFoundError), reading(str(tmp_path / "none.db")):
        pass
    path.write_bytes(b"SQLite format 3\0" + b"\x10\x00\x01\x01" + bytes(200))
    with pytest.raises((OSError, ValueError)), reading(str(path)) as database:
        list(database.rows("SELECT * FROM t"))
