"""Planned faults occur exactly where they are planned."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from faults.crashing import CrashableFilesystem
from faults.failing import (
    METHODS,
    Call,
    DropUnsynced,
    Fail,
    Fault,
    FaultyFilesystem,
    Kill,
    Killed,
    Meddle,
    ShortWrite,
)
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import error, get, opened, put

APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND


def save(filesystem: Filesystem, path: str, data: bytes) -> None:
    """A small protocol of six calls that cleans up after itself."""
    fd = filesystem.open(path, APPEND)
    try:
        filesystem.lock(fd)
        filesystem.write(fd, data)
        filesystem.sync(fd)
    finally:
        filesystem.unlock(fd)
        filesystem.close(fd)


class TestCounting:
    """Calls are counted."""

    def test_every_call_is_listed_with_its_path_or_descriptor(self) -> None:
        """`calls` has method and subject in order."""
        filesystem = FaultyFilesystem(MemoryFilesystem())
        filesystem.mkdir("/d")
        fd = filesystem.open("/d/a", APPEND)
        filesystem.write(fd, b"x")
        filesystem.close(fd)
        filesystem.rename("/d/a", "/d/b")
        assert filesystem.calls == [
            ("mkdir", "/d"),
            ("open", "/d/a"),
            ("write", fd),
            ("close", fd),
            ("rename", "/d/a"),
        ]
        assert filesystem.calls[0] == Call(method="mkdir", subject="/d")

    def test_the_methods_are_those_of_the_seam(self) -> None:
        """Every method of `Filesystem` is counted."""
        passed_on = {name for name in vars(FaultyFilesystem) if not name.startswith("_")} - {"heal"}
        assert passed_on == METHODS

    def test_a_failed_call_is_counted_too(self) -> None:
        """A call that the inner file system refuses is counted."""
        filesystem = FaultyFilesystem(MemoryFilesystem())
        assert error(filesystem.lstat, "/missing") == errno.ENOENT
        assert filesystem.calls == [("lstat", "/missing")]


class TestFail:
    """A call raises."""

    def test_the_numbered_call_fails_once(self) -> None:
        """Only that call raises; the error has the path, and nothing is done."""
        fault = Fail(errno.EACCES, at=2, on={"mkdir"})
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[fault])
        filesystem.mkdir("/a")
        assert filesystem.names("/") == ["a"]
        with pytest.raises(PermissionError) as refused:
            filesystem.mkdir("/b")
        assert refused.value.filename == "/b"
        filesystem.mkdir("/c")
        assert filesystem.names("/") == ["a", "c"]
        assert filesystem.struck == [fault]

    def test_a_fault_may_last_until_it_is_healed(self) -> None:
        """`forever` also fails every later call until `heal`."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EROFS, at=2, on={"mkdir"}, forever=True)])
        filesystem.mkdir("/a")
        assert error(filesystem.mkdir, "/b") == errno.EROFS
        assert error(filesystem.mkdir, "/b") == errno.EROFS
        filesystem.heal()
        filesystem.mkdir("/b")
        assert filesystem.names("/") == ["a", "b"]

    def test_faults_count_independently(self) -> None:
        """Each fault of a plan has its own methods and its own count."""
        plan = [Fail(errno.EIO, at=2, on={"mkdir"}), Fail(errno.ENOSPC, at=3)]
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=plan)
        filesystem.mkdir("/a")
        assert error(filesystem.mkdir, "/b") == errno.EIO
        assert error(filesystem.lstat, "/a") == errno.ENOSPC
        assert error(filesystem.lstat, "/a") is None

    def test_a_failing_close_closes(self) -> None:
        """As on Linux, the descriptor is closed and its lock is released."""
        inner = MemoryFilesystem()
        filesystem = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"close"})])
        fd = filesystem.open("/a", APPEND)
        assert filesystem.lock(fd)
        assert error(filesystem.close, fd) == errno.EIO
        assert error(inner.fstat, fd) == errno.EBADF
        with opened(inner, "/a", APPEND) as other:
            assert inner.lock(other)

    def test_failing_each_call_in_turn_ends_when_nothing_struck(self) -> None:
        """As in SQLite's tests, the failing call is numbered from 1 until the scenario passes."""
        failed = 0
        while True:
            filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, at=failed + 1)])
            outcome = error(save, filesystem, "/a", b"x")
            if not filesystem.struck:
                break
            assert outcome == errno.EIO
            failed += 1
        assert failed == len(filesystem.calls) == 6

    @pytest.mark.parametrize("fault", [{"at": 0}, {"on": {"fsync"}}])
    def test_a_fault_that_can_never_strike_is_refused(self, fault: dict[str, object]) -> None:
        """A misspelt method or number would test nothing."""
        with pytest.raises(ValueError, match="never strikes"):
            Fail(errno.EIO, **fault)  # type: ignore[arg-type]


class TestShortWrite:
    """The disk fills up."""

    def test_a_write_is_short_and_the_next_one_fails(self) -> None:
        """The first bytes are stored and counted, the next write raises ENOSPC, then there is space again."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[ShortWrite(written=3, at=2)])
        with opened(filesystem, "/a", APPEND) as fd:
            assert filesystem.write(fd, b"whole ") == 6
            assert filesystem.write(fd, b"broken") == 3
            assert error(filesystem.write, fd, b"ken") == errno.ENOSPC
            assert filesystem.write(fd, b"!") == 1
        assert get(filesystem, "/a") == b"whole bro!"

    def test_a_full_disk_fails_at_once_and_stays_full(self) -> None:
        """Without any space the write itself raises; `forever` keeps the disk full."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[ShortWrite(errno.EDQUOT, written=0, forever=True)])
        with opened(filesystem, "/a", APPEND) as fd:
            for _ in range(3):
                assert error(filesystem.write, fd, b"x") == errno.EDQUOT
            filesystem.truncate(fd, 0)
        assert get(filesystem, "/a") == b""


class TestDropUnsynced:
    """Failed syncs that drop pages (fsyncgate)."""

    def test_a_retried_sync_lies(self) -> None:
        """After the failed sync the data can be read and synced again, but is lost after the power cut."""
        inner = CrashableFilesystem()
        filesystem = FaultyFilesystem(inner, plan=[DropUnsynced(at=2)])
        with opened(filesystem, "/a", APPEND) as fd:
            filesystem.write(fd, b"first\n")
            filesystem.sync(fd)
            filesystem.sync_directory("/")
            filesystem.write(fd, b"lost\n")
            assert error(filesystem.sync, fd) == errno.EIO
            filesystem.sync(fd)
            assert filesystem.read(fd, 99, 0) == b"first\nlost\n"
        assert get(inner.crash(Random(1)), "/a") == b"first\n"

    def test_what_is_written_later_stands_behind_a_hole(self) -> None:
        """The next synced write keeps its offset, and the lost pages before it read as zeros."""
        inner = CrashableFilesystem()
        filesystem = FaultyFilesystem(inner, plan=[DropUnsynced()])
        with opened(filesystem, "/a", APPEND) as fd:
            filesystem.write(fd, b"lost\n")
            assert error(filesystem.sync, fd) == errno.EIO
            filesystem.write(fd, b"next\n")
            filesystem.sync(fd)
        filesystem.sync_directory("/")
        assert get(inner.crash(Random(1)), "/a") == bytes(5) + b"next\n"

    def test_a_file_system_that_cannot_crash_is_refused(self) -> None:
        """Only a crashable file system records unsynced data."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[DropUnsynced()])
        with opened(filesystem, "/a", APPEND) as fd, pytest.raises(TypeError, match="CrashableFilesystem"):
            filesystem.sync(fd)


class TestKill:
    """kill -9 between two calls."""

    def test_nothing_is_done_from_the_killed_call_on(self) -> None:
        """Neither the call nor the clean-up in `finally` is made; the kernel releases the lock."""
        inner = CrashableFilesystem()
        filesystem = FaultyFilesystem(inner, plan=[Kill(at=4)])
        with pytest.raises(Killed):
            save(filesystem, "/a", b"written")
        assert [call.method for call in filesystem.calls] == ["open", "lock", "write", "sync"]
        with opened(inner, "/a", APPEND) as fd:
            assert not inner.lock(fd)
        survivor = inner.kill()
        with opened(survivor, "/a", APPEND) as fd:
            assert survivor.lock(fd)
        assert get(survivor, "/a") == b"written"

    def test_the_dead_stay_dead(self) -> None:
        """Every later call of any method raises `Killed`, also after `heal`."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[Kill(on={"mkdir"})])
        for _ in range(2):
            with pytest.raises(Killed):
                filesystem.mkdir("/a")
            filesystem.heal()
            with pytest.raises(Killed):
                filesystem.names("/")

    def test_no_handler_for_exceptions_survives_a_kill(self) -> None:
        """`Killed` is not an `Exception`."""
        assert not issubclass(Killed, Exception)

    def test_every_point_of_a_scenario_can_be_killed(self) -> None:
        """Killing at each call in turn leaves the file as before or after the write."""
        contents = []
        for point in range(1, 99):
            inner = CrashableFilesystem()
            put(inner, "/a", b"")
            filesystem = FaultyFilesystem(inner, plan=[Kill(at=point)])
            try:
                save(filesystem, "/a", b"x")
            except Killed:
                contents.append(get(inner.kill(), "/a"))
            if not filesystem.struck:
                break
        assert contents == [b"", b"", b"", b"x", b"x", b"x"]


class TestMeddle:
    """An action of another program between two steps."""

    def test_an_action_runs_before_the_numbered_call(self) -> None:
        """The file is swapped after the first write, and the second one still goes to the old inode."""
        inner = MemoryFilesystem()

        def swap() -> None:
            inner.unlink("/a")
            put(inner, "/a", b"another")

        filesystem = FaultyFilesystem(inner, plan=[Meddle(swap, at=2, on={"write"})])
        with opened(filesystem, "/a", APPEND) as fd:
            filesystem.write(fd, b"one")
            filesystem.write(fd, b"two")
            assert filesystem.fstat(fd).st_nlink == 0
        assert get(inner, "/a") == b"another"

    def test_an_action_may_use_the_faulty_file_system_itself(self) -> None:
        """It runs once and its own calls are counted, without a deadlock."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), plan=[Meddle(lambda: filesystem.mkdir("/b"))])
        filesystem.mkdir("/a")
        assert filesystem.calls == [("mkdir", "/a"), ("mkdir", "/b")]

    def test_a_fault_of_ones_own_is_a_small_class(self) -> None:
        """Any class with a `strike` method can be planned."""

        class Note(Fault):
            def strike(self, filesystem: Filesystem, call: Call, since: int) -> None:
                noted.append((call.method, since, filesystem.names("/")))

        noted: list[tuple[str, int, list[str]]] = []
        FaultyFilesystem(MemoryFilesystem(), plan=[Note()]).mkdir("/a")
        assert noted == [("mkdir", 0, [])]


class TestWithout:
    """Protections can be disabled."""

    def test_without_locks_everybody_gets_the_lock(self) -> None:
        """Two descriptors both get the lock."""
        filesystem = FaultyFilesystem(MemoryFilesystem(), without={"lock"})
        with opened(filesystem, "/a", APPEND) as one, opened(filesystem, "/a", APPEND) as two:
            assert filesystem.lock(one)
            assert filesystem.lock(two)
            filesystem.unlock(one)

    @pytest.mark.parametrize(("without", "lost"), [((), False), (("sync",), True), (("sync_directory",), True)])
    def test_without_a_sync_a_power_cut_loses_data(self, without: tuple[str, ...], lost: bool) -> None:
        """The sync reports success, but a crash loses the data."""
        inner = CrashableFilesystem()
        filesystem = FaultyFilesystem(inner, without=without)
        save(filesystem, "/a", b"data")
        filesystem.sync_directory("/")
        states = [inner.crash(Random(seed)) for seed in range(50)]
        assert any(state.names("/") == [] or get(state, "/a") != b"data" for state in states) is lost

    def test_only_protections_can_be_left_out(self) -> None:
        """Any other method name is refused."""
        with pytest.raises(ValueError, match="left out"):
            FaultyFilesystem(MemoryFilesystem(), without={"fsync"})
