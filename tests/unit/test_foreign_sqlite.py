"""Databases of other programs are read as they are, also while they are written, and nothing on disk changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessile.storage import foreign_sqlite
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
    assert len(made) == 1
    os.utime(path, ns=(1, 1))
    assert count(path) == (2, None)
    assert len(made) == 2


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


# -- several readers


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary folders."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


@pytest.fixture
def without_index(tmp_path: Path) -> Path:
    """A database with a log and without a `-shm`, which is read from a copy."""
    path = tmp_path / "home" / "x.db"
    path.parent.mkdir()
    with written(path, *WAL, "INSERT INTO t VALUES (2)"):
        pass
    Path(f"{path}-shm").unlink()
    return path


def test_threads_share_copies(without_index: Path, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the whole log while the file changes; old copies are removed at once, the last one at the end."""
    monkeypatch.setattr(foreign_sqlite, "_TRIES", 100)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        try:
            for _ in range(40):
                with reading(str(without_index)) as database:
                    found = list(database.rows("SELECT a FROM t")), database.problem
                    time.sleep(0.001)
                if found != ([(1,), (2,)], None):
                    wrong.append(found)
        except Exception as error:  # a thread would only print it
            wrong.append(error)

    def touch() -> None:
        moment = 0
        while not done.wait(0.003):
            moment += 1_000_000_000
            os.utime(without_index, ns=(moment, moment))

    readers = [threading.Thread(target=read) for _ in range(4)]
    toucher = threading.Thread(target=touch)
    for thread in (toucher, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    done.set()
    toucher.join()
    assert wrong == []
    assert len(list(folders.iterdir())) == 1
    foreign_sqlite._forget()
    assert list(folders.iterdir()) == []


def test_a_copy_in_use_outlives_a_newer_one(without_index: Path, folders: Path) -> None:
    """Its reader can still open it, and it is removed when that reader ends."""
    with reading(str(without_index)) as first:
        (old,) = folders.iterdir()
        os.utime(without_index, ns=(1, 1))
        with reading(str(without_index)) as second:
            assert list(first.rows("SELECT a FROM t")) == list(second.rows("SELECT a FROM t")) == [(1,), (2,)]
        assert old in folders.iterdir() and len(list(folders.iterdir())) == 2
    assert not old.exists() and len(list(folders.iterdir())) == 1


def test_a_process_leaves_no_copies(without_index: Path, folders: Path) -> None:
    """Also if threads made them at the same time, and if it ends in the middle of reading."""
    program = """
import sys, threading
from sessile.storage.foreign_sqlite import reading
together = threading.Barrier(4)
def read():
    together.wait()
    for _ in range(5):
        with reading(sys.argv[1]) as database:
            list(database.rows("SELECT * FROM t"))
threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
unfinished = reading(sys.argv[1])
unfinished.__enter__()
"""
    command = [sys.executable, "-c", program, str(without_index)]
    result = subprocess.run(command, env={**os.environ, "TMPDIR": str(folders)}, capture_output=True, check=True)
    assert (result.stderr, list(folders.iterdir())) == (b"", [])


def test_a_forked_process_leaves_the_copies_of_its_parent(without_index: Path, folders: Path) -> None:
    """It makes its own, and removes only these."""
    program = """
import os, sys
from sessile.storage.foreign_sqlite import reading
with reading(sys.argv[1]) as database:
    if not (child := os.fork()):
        with reading(sys.argv[1]) as other:
            assert len(list(other.rows("SELECT * FROM t"))) == 2
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert len(os.listdir(os.environ["TMPDIR"])) == 1
"""
    command = [sys.executable, "-c", program, str(without_index)]
    result = subprocess.run(command, env={**os.environ, "TMPDIR": str(folders)}, capture_output=True, check=False)
    assert (result.returncode, result.stderr, list(folders.iterdir())) == (0, b"", [])


def test_a_second_reader_does_not_drop_the_lock_of_the_first(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the POSIX locks that a process has on it."""
    path = tmp_path / "x.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t (a)")
    database.close()
    program = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("INSERT INTO t VALUES (1)")
except sqlite3.OperationalError as error:
    print(error)
"""

    def outside() -> str:
        command = [sys.executable, "-c", program, str(path)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    with reading(str(path)) as first:
        assert outside() == "database is locked"
        with reading(str(path)):
            assert outside() == "database is locked"
        assert outside() == "database is locked"
        assert list(first.rows("SELECT * FROM t")) == []
    assert outside() == ""
    assert count(path) == (1, None)


def test_a_database_is_closed_after_its_last_reader(tmp_path: Path) -> None:
    """Whatever the order in which they end."""
    path = tmp_path / "x.db"
    sqlite3.connect(path).close()
    before = set(os.listdir("/dev/fd"))
    first, second = reading(str(path)), reading(str(path))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(os.listdir("/dev/fd")) > before
    second.__exit__(None, None, None)
    assert set(os.listdir("/dev/fd")) == before


def test_the_schema_of_a_database_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its views may not call functions that have effects."""
    monkeypatch.setattr(foreign_sqlite, "_knows_json", lambda: True)
    path = tmp_path / "x.db"
    sqlite3.connect(path).close()
    with reading(str(path)) as database:
        assert list(database.rows("PRAGMA trusted_schema")) == [(0,)]


def test_a_schema_may_use_json(tmp_path: Path) -> None:
    """Some releases of SQLite take JSON for unsafe in a schema that is not trusted; real programs have such indexes."""
    path = tmp_path / "x.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t (a)")
    database.execute("CREATE INDEX i ON t (json_extract(a, '$.role'))")
    database.close()
    assert count(path) == (0, None)
