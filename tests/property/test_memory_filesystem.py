"""For any sequence of operations, memory behaves like the disk, and no crash loses synced data."""

from __future__ import annotations

import os
import stat
import tempfile
from random import Random
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from faults.crashing import CrashableFilesystem, CrashModel
from sessile.storage.base import Filesystem, Stat
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import get, opened, put


class Slot(NamedTuple):
    """One of the open descriptors."""

    number: int


class Operation(NamedTuple):
    """A call; paths are below the root, descriptors are slots."""

    method: str
    arguments: tuple[Any, ...]


def calls(methods: list[str], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return st.builds(Operation, st.sampled_from(methods), st.tuples(*arguments))


paths = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
slots = st.builds(Slot, st.integers(0, 3))
sizes = st.integers(0, 20)
access = st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND])
creation = st.sampled_from([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC, os.O_TRUNC, os.O_DIRECTORY])
operations = st.one_of(
    calls(["open"], paths, st.builds(int.__or__, access, creation)),
    calls(["write"], slots, st.binary(max_size=8)),
    calls(["read"], slots, sizes, sizes),
    calls(["truncate"], slots, sizes),
    calls(["close", "sync", "lock", "unlock", "fstat"], slots),
    calls(["mkdir", "unlink", "rmdir", "names", "lstat", "sync_directory"], paths),
    calls(["rename", "link"], paths, paths),
)


class Driver:
    """Runs operations on a file system and returns comparable results."""

    def __init__(self, filesystem: Filesystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = root
        self.descriptors: list[int] = []

    def run(self, operation: Operation) -> object:
        arguments = [self._actual(argument) for argument in operation.arguments]
        try:
            result = getattr(self.filesystem, operation.method)(*arguments)
        except OSError as failure:
            return failure.errno
        if operation.method == "open":
            self.descriptors.append(result)
            return None
        if operation.method == "close":
            self.descriptors.remove(arguments[0])
        return self._described(result) if operation.method in ("lstat", "fstat") else result

    def tree(self, folder: str = "") -> dict[str, object]:
        """Return every path with its type and content."""
        found: dict[str, object] = {}
        for name in self.filesystem.names(self.root + folder or "/"):
            path = f"{folder}/{name}"
            info = self.filesystem.lstat(self.root + path)
            if stat.S_ISDIR(info.st_mode):
                found[path] = self._described(info)
                found |= self.tree(path)
            else:
                found[path] = (self._described(info), get(self.filesystem, self.root + path))
        return found

    def close(self) -> None:
        for fd in self.descriptors:
            self.filesystem.close(fd)

    def _actual(self, argument: Any) -> Any:
        if isinstance(argument, Slot):
            # Without an open descriptor, use an invalid one.
            return self.descriptors[argument.number % len(self.descriptors)] if self.descriptors else 1_000_000
        return self.root + argument if isinstance(argument, str) else argument

    def _described(self, info: Stat) -> tuple[int, ...]:
        if stat.S_ISDIR(info.st_mode):
            # The size and link count of a folder depend on the file system.
            return (info.st_mode, info.st_uid)
        return (info.st_mode, info.st_uid, info.st_size, info.st_nlink)


@given(st.lists(operations, max_size=40))
def test_memory_answers_as_the_disk_does(sequence: list[Operation]) -> None:
    """Every result, every error number and the final tree are the same."""
    with tempfile.TemporaryDirectory() as folder:
        memory = MemoryFilesystem()
        memory.mkdir("/root")
        real, virtual = Driver(PosixFilesystem(), folder), Driver(memory, "/root")
        try:
            for operation in sequence:
                assert virtual.run(operation) == real.run(operation), operation
            assert virtual.tree() == real.tree()
        finally:
            real.close()
            virtual.close()


@given(st.lists(operations, max_size=40), st.integers(), st.sampled_from(CrashModel))
def test_a_synced_tree_survives_whole(sequence: list[Operation], seed: int, model: CrashModel) -> None:
    """A kill keeps the whole tree, and so does a crash after every file and folder was synced."""
    filesystem = CrashableFilesystem()
    driver = Driver(filesystem, "")
    for operation in sequence:
        driver.run(operation)
    expected = driver.tree()
    assert Driver(filesystem.kill(), "").tree() == expected
    for path in expected:
        with opened(filesystem, path, os.O_RDONLY) as fd:
            filesystem.sync(fd)
    filesystem.sync_directory("/")
    assert Driver(filesystem.crash(Random(seed), model), "").tree() == expected


@given(st.lists(operations, max_size=40), st.integers(), st.sampled_from(CrashModel))
def test_a_crash_state_is_a_sound_tree_of_things_that_were(
    sequence: list[Operation], seed: int, model: CrashModel
) -> None:
    """Every path existed before, link counts are right, and the state is a working file system."""
    filesystem = CrashableFilesystem()
    driver = Driver(filesystem, "")
    inodes = {filesystem.lstat("/").st_ino}
    for operation in sequence:
        driver.run(operation)
        inodes |= {filesystem.lstat(path).st_ino for path in driver.tree()}
    after = filesystem.crash(Random(seed), model)
    survivors = Driver(after, "")
    seen: dict[int, list[str]] = {}
    for path in survivors.tree():
        seen.setdefault(after.lstat(path).st_ino, []).append(path)
    assert seen.keys() <= inodes
    for names in seen.values():
        assert after.lstat(names[0]).st_nlink == len(names)
    for operation in sequence:
        survivors.run(operation)


class Step(NamedTuple):
    """A step of a program that writes two logs in folders that it may or may not sync."""

    action: str
    path: str
    target: str
    size: int


log_paths = st.sampled_from(["/a", "/b", "/d/a", "/e/a"])
steps = st.builds(
    Step,
    st.sampled_from(["append", "append", "append", "sync", "sync", "settle", "rename", "unlink"]),
    log_paths,
    log_paths,
    st.sampled_from([1, 7, 300, 600, 5000]),
)


class Ledger:
    """An independent model of what must survive: bytes of inodes, and certain names."""

    def __init__(self) -> None:
        self.filesystem = CrashableFilesystem()
        for folder in ("/d", "/e"):
            self.filesystem.mkdir(folder)
        self.filesystem.sync_directory("/")
        self.content: dict[int, bytes] = {}
        self.synced: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.certain: dict[str, int] = {}

    def take(self, step: Step) -> None:
        if step.action == "append":
            inode = self.names.get(step.path)
            put(self.filesystem, step.path, data := bytes(1 + number % 255 for number in range(step.size)))
            if inode is None:
                inode = self.names[step.path] = self.filesystem.lstat(step.path).st_ino
                self.certain.pop(step.path, None)
            self.content[inode] = self.content.get(inode, b"") + data
        elif step.action == "settle":
            folder = step.path.rpartition("/")[0]
            self.filesystem.sync_directory(folder or "/")
            for path in [path for path in self.certain if path.rpartition("/")[0] == folder]:
                del self.certain[path]
            self.certain |= {path: inode for path, inode in self.names.items() if path.rpartition("/")[0] == folder}
        elif step.path in self.names:
            self._change(step)

    def _change(self, step: Step) -> None:
        if step.action == "sync":
            with opened(self.filesystem, step.path, os.O_RDONLY) as fd:
                self.filesystem.sync(fd)
            self.synced[self.names[step.path]] = len(self.content[self.names[step.path]])
        elif step.action == "unlink":
            self.filesystem.unlink(step.path)
            del self.names[step.path]
            self.certain.pop(step.path, None)
        elif step.path != step.target:
            self.filesystem.rename(step.path, step.target)
            self.names[step.target] = self.names.pop(step.path)
            self.certain.pop(step.path, None)
            self.certain.pop(step.target, None)


@given(st.lists(steps, max_size=30), st.integers())
def test_no_crash_loses_what_was_synced(program: list[Step], seed: int) -> None:
    """Certain names keep their inode, synced bytes stay, and the rest is a prefix, zeros or garbage, as documented."""
    ledger = Ledger()
    for step in program:
        ledger.take(step)
    for model in CrashModel:
        after = ledger.filesystem.crash(Random(seed), model)
        for path, inode in ledger.certain.items():
            assert after.lstat(path).st_ino == inode
        for folder in ("", "/d", "/e"):
            for name in after.names(folder or "/"):
                info = after.lstat(f"{folder}/{name}")
                if stat.S_ISDIR(info.st_mode):
                    continue
                content, written = get(after, f"{folder}/{name}"), ledger.content[info.st_ino]
                durable = ledger.synced.get(info.st_ino, 0)
                assert content[:durable] == written[:durable]
                assert len(content) <= len(written)
                if model is CrashModel.ORDERED:
                    assert written.startswith(content)
                elif model is CrashModel.WEAK:
                    assert all(byte in (0, written[offset]) for offset, byte in enumerate(content))


@given(st.lists(steps, max_size=30), st.integers(), st.sampled_from(CrashModel))
def test_a_file_that_was_certain_is_still_somewhere_unless_removed(
    program: list[Step], seed: int, model: CrashModel
) -> None:
    """A rename never makes a file vanish, whatever was synced in between: it has its old name or a later one."""
    ledger = Ledger()
    put(ledger.filesystem, "/a", b"kept")
    ledger.filesystem.sync_directory("/")
    inode = ledger.filesystem.lstat("/a").st_ino
    ledger.names["/a"], ledger.content[inode] = inode, b"kept"
    for step in program:
        if step.action in ("rename", "settle") and ledger.names.get(step.target) != inode:
            ledger.take(step)
    after = ledger.filesystem.crash(Random(seed), model)
    places = [folder + "/" + name for folder in ("", "/d", "/e") for name in after.names(folder or "/")]
    assert inode in [after.lstat(path).st_ino for path in places]
