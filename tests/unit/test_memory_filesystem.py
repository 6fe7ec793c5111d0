"""The memory file system beyond the contract, and its crashable variant after a kill or a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import FaultyFilesystem
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import error, get, opened, put

APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND
EVERY_MODEL = pytest.mark.parametrize("model", list(CrashModel))


def save(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Append to the file and sync it, but not its name."""
    with opened(filesystem, path, APPEND) as fd:
        filesystem.write(fd, data)
        filesystem.sync(fd)


def found(filesystem: Filesystem, path: str) -> bytes | None:
    """Return the content of a file, or `None` if it is missing."""
    return None if error(filesystem.lstat, path) == errno.ENOENT else get(filesystem, path)


def states(
    filesystem: CrashableFilesystem, path: str, model: CrashModel = CrashModel.ORDERED, samples: int = 300
) -> set[bytes | None]:
    """Return the contents of `path` in many crash states, `None` where it is missing."""
    return {found(filesystem.crash(Random(seed), model), path) for seed in range(samples)}


class TestMemoryFilesystem:
    """Properties of the memory file system alone."""

    def test_the_root_is_there_and_cannot_be_touched(self) -> None:
        """`/` always exists; it cannot be created, removed, renamed or replaced."""
        filesystem = MemoryFilesystem()
        assert filesystem.names("/") == []
        filesystem.mkdir("/d")
        assert error(filesystem.mkdir, "/") == errno.EEXIST
        assert error(filesystem.rmdir, "/") == errno.EBUSY
        assert error(filesystem.unlink, "/") == errno.EISDIR
        assert error(filesystem.rename, "/", "/d/e") == errno.EBUSY
        assert error(filesystem.rename, "/d", "/") == errno.EBUSY
        assert filesystem.names("/") == ["d"]

    @pytest.mark.parametrize("path", ["", "a", "a/b", "/.", "/..", "/d/.."])
    def test_paths_that_are_not_plain_are_refused(self, path: str) -> None:
        """There is no current folder, so relative paths and dots raise EINVAL."""
        filesystem = MemoryFilesystem()
        filesystem.mkdir("/d")
        assert error(filesystem.mkdir, path) == errno.EINVAL
        assert error(filesystem.open, path, APPEND) == errno.EINVAL

    def test_errors_carry_the_path(self) -> None:
        """An `OSError` has the path of one or both files."""
        filesystem = MemoryFilesystem()
        with pytest.raises(FileNotFoundError) as missing:
            filesystem.lstat("/missing")
        assert missing.value.filename == "/missing"
        with pytest.raises(FileNotFoundError) as unmoved:
            filesystem.rename("/missing", "/target")
        assert (unmoved.value.filename, unmoved.value.filename2) == ("/missing", "/target")

    def test_descriptors_and_inodes_are_never_used_twice(self) -> None:
        """A closed descriptor stays invalid, and a new file never has the inode of a deleted one."""
        filesystem = MemoryFilesystem()
        seen = set()
        for _ in range(3):
            with opened(filesystem, "/a", APPEND) as fd:
                seen.add((fd, filesystem.fstat(fd).st_ino))
            filesystem.unlink("/a")
        assert len({fd for fd, _ in seen}) == len({inode for _, inode in seen}) == 3

    def test_time_is_the_clock_that_was_given(self) -> None:
        """Modification times come from the injected clock, in nanoseconds."""
        now = 7
        filesystem = MemoryFilesystem(clock=lambda: now)
        put(filesystem, "/a", b"")
        assert filesystem.lstat("/a").st_mtime_ns == 7
        now = 9
        put(filesystem, "/a", b"x")
        assert filesystem.lstat("/a").st_mtime_ns == 9
        assert filesystem.lstat("/").st_mtime_ns == 7

    def test_without_a_clock_every_change_is_later_than_the_last(self) -> None:
        """The default clock is a counter, so times are reproducible and unique."""

        def run() -> list[int]:
            filesystem = MemoryFilesystem()
            put(filesystem, "/a", b"1")
            put(filesystem, "/b", b"2")
            put(filesystem, "/a", b"3")
            return [filesystem.lstat(path).st_mtime_ns for path in ("/", "/b", "/a")]

        assert run() == sorted(set(run()))

    def test_two_memories_are_two_devices(self) -> None:
        """Device and inode together identify a file across memory file systems."""
        one, two = MemoryFilesystem(), MemoryFilesystem()
        assert one.lstat("/").st_dev != two.lstat("/").st_dev


class TestKill:
    """After kill -9."""

    def test_everything_written_survives_and_locks_are_free(self) -> None:
        """Unsynced content and names exist, old descriptors are invalid, and the lock is free."""
        filesystem = CrashableFilesystem()
        fd = filesystem.open("/a", APPEND)
        filesystem.write(fd, b"unsynced")
        assert filesystem.lock(fd)
        survivor = filesystem.kill()
        assert get(survivor, "/a") == b"unsynced"
        assert error(survivor.fstat, fd) == errno.EBADF
        with opened(survivor, "/a", APPEND) as other:
            assert survivor.lock(other)

    def test_what_was_unsynced_can_still_be_lost_to_a_power_cut(self) -> None:
        """A kill makes nothing durable, but a sync by the next process does."""
        filesystem = CrashableFilesystem()
        put(filesystem, "/a", b"data")
        survivor = filesystem.kill()
        assert None in states(survivor, "/a")
        save(survivor, "/a", b"!")
        survivor.sync_directory("/")
        assert states(survivor, "/a") == {b"data!"}

    def test_the_survivor_and_the_original_go_separate_ways(self) -> None:
        """Changes in one are not visible in the other."""
        filesystem = CrashableFilesystem()
        put(filesystem, "/a", b"both")
        survivor = filesystem.kill()
        put(survivor, "/a", b" new")
        filesystem.unlink("/a")
        assert filesystem.names("/") == []
        assert get(survivor, "/a") == b"both new"


class TestPowerCut:
    """After a power cut."""

    @EVERY_MODEL
    def test_synced_content_under_a_synced_name_survives(self, model: CrashModel) -> None:
        """Content needs `sync`, names need `sync_directory`; this holds in every model, whatever else is unsynced."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"durable")
        filesystem.sync_directory("/")
        put(filesystem, "/a", b" maybe")
        put(filesystem, "/b", b"maybe")
        for content in states(filesystem, "/a", model):
            assert content is not None
            assert content.startswith(b"durable")

    @EVERY_MODEL
    def test_syncing_a_file_does_not_make_its_name_durable(self, model: CrashModel) -> None:
        """A synced file may be missing until its folder is synced, but is never incomplete."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"data")
        assert states(filesystem, "/a", model) == {None, b"data"}

    @EVERY_MODEL
    def test_syncing_a_folder_does_not_make_content_durable(self, model: CrashModel) -> None:
        """The name survives, but the content may not, as in git before 2.36."""
        filesystem = CrashableFilesystem()
        put(filesystem, "/a", b"data")
        filesystem.sync_directory("/")
        contents = states(filesystem, "/a", model)
        assert {b"", b"data"} <= contents
        assert None not in contents

    @EVERY_MODEL
    def test_a_file_needs_the_names_of_all_folders_above(self, model: CrashModel) -> None:
        """After syncing only the inner folder, the file survives only if the outer name does."""
        filesystem = CrashableFilesystem()
        filesystem.mkdir("/d")
        save(filesystem, "/d/a", b"data")
        filesystem.sync_directory("/d")
        assert states(filesystem, "/d/a", model) == {None, b"data"}
        filesystem.sync_directory("/")
        assert states(filesystem, "/d/a", model) == {b"data"}

    def test_ordered_content_is_a_prefix_torn_anywhere(self) -> None:
        """Exactly the prefixes of the written bytes are possible."""
        filesystem = CrashableFilesystem()
        filesystem.sync_directory("/")
        for line in (b"ab", b"cd", b"ef"):
            put(filesystem, "/a", line)
        filesystem.sync_directory("/")
        assert states(filesystem, "/a") == {b"abcdef"[:length] for length in range(7)}

    def test_ordered_truncation_happens_or_not(self) -> None:
        """A truncation keeps its place in the order and is never partial."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"0123")
        filesystem.sync_directory("/")
        with opened(filesystem, "/a", os.O_RDWR | os.O_TRUNC) as fd:
            filesystem.write(fd, b"x")
        assert states(filesystem, "/a") == {b"0123", b"", b"x"}

    def test_weak_content_has_holes_of_whole_sectors(self) -> None:
        """Any sectors or pages may survive; a missing one before a surviving one reads as zeros."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"s" * 100)
        filesystem.sync_directory("/")
        put(filesystem, "/a", b"u" * 9000)
        holes = 0
        for content in states(filesystem, "/a", CrashModel.WEAK):
            assert content is not None
            assert content[:100] == b"s" * 100
            for start in range(0, len(content), 512):
                assert len(set(content[max(start, 100) : start + 512])) <= 1
            holes += b"\0" in content.rstrip(b"\0")
        assert holes

    def test_weak_growth_may_bring_nothing_but_zeros(self) -> None:
        """The size may survive without the bytes, as with ext4's delayed allocation."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"line\n")
        filesystem.sync_directory("/")
        put(filesystem, "/a", b"more\n")
        assert states(filesystem, "/a", CrashModel.WEAK) == {b"line\n", b"line\nmore\n", b"line\n" + bytes(5)}

    def test_adversarial_garbage_stays_inside_what_was_not_synced(self) -> None:
        """A torn sector may have any content, but never replaces a synced byte."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"durable")
        filesystem.sync_directory("/")
        put(filesystem, "/a", b"maybe")
        contents = states(filesystem, "/a", CrashModel.ADVERSARIAL)
        assert all(content is not None and content.startswith(b"durable") for content in contents)
        assert any(content is not None and set(content[7:]) - set(b"maybe\0") for content in contents)

    def test_names_keep_their_order_unless_the_model_is_adversarial(self) -> None:
        """A prefix of the changes of a folder survives; in the adversarial model any of them."""
        filesystem = CrashableFilesystem()
        for path in ("/a", "/b", "/c"):
            put(filesystem, path, b"")

        def listings(model: CrashModel) -> set[str]:
            return {"".join(filesystem.crash(Random(seed), model).names("/")) for seed in range(300)}

        assert listings(CrashModel.ORDERED) == listings(CrashModel.WEAK) == {"", "a", "ab", "abc"}
        assert listings(CrashModel.ADVERSARIAL) == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}

    def test_a_lost_rename_stops_both_of_its_folders(self) -> None:
        """Later changes of both folders are lost, too, unless the model is adversarial."""
        filesystem = CrashableFilesystem()
        filesystem.mkdir("/d")
        filesystem.mkdir("/e")
        put(filesystem, "/d/moved", b"")
        for folder in ("/d", "/e", "/"):
            filesystem.sync_directory(folder)
        filesystem.rename("/d/moved", "/e/moved")
        put(filesystem, "/e/later", b"")

        def listings(model: CrashModel) -> set[str]:
            return {" ".join(filesystem.crash(Random(seed), model).names("/e")) for seed in range(300)}

        assert listings(CrashModel.ORDERED) == listings(CrashModel.WEAK) == {"", "moved", "later moved"}
        assert listings(CrashModel.ADVERSARIAL) == {"", "moved", "later", "later moved"}

    @EVERY_MODEL
    def test_changes_of_one_name_keep_their_order(self, model: CrashModel) -> None:
        """A file that was renamed twice has one of its three names in every model."""
        filesystem = CrashableFilesystem()
        put(filesystem, "/a", b"")
        filesystem.sync_directory("/")
        filesystem.rename("/a", "/b")
        filesystem.rename("/b", "/c")
        listings = {tuple(filesystem.crash(Random(seed), model).names("/")) for seed in range(300)}
        assert listings == {("a",), ("b",), ("c",)}

    @EVERY_MODEL
    def test_a_removal_that_was_not_synced_may_come_undone(self, model: CrashModel) -> None:
        """An unlinked file may exist again after the crash, with its full content."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"data")
        filesystem.sync_directory("/")
        filesystem.unlink("/a")
        assert states(filesystem, "/a", model) == {None, b"data"}
        filesystem.sync_directory("/")
        assert states(filesystem, "/a", model) == {None}

    @EVERY_MODEL
    @pytest.mark.parametrize("target", ["/b", "/d/b", "/new/b"])
    @pytest.mark.parametrize("synced", [(), ("/",), ("target",)])
    def test_a_rename_is_atomic_and_loses_nothing(
        self, model: CrashModel, target: str, synced: tuple[str, ...]
    ) -> None:
        """The file has the old or the new name, also between folders and into a new folder."""
        filesystem = CrashableFilesystem()
        filesystem.mkdir("/d")
        save(filesystem, "/a", b"data")
        filesystem.sync_directory("/")
        if target == "/new/b":
            filesystem.mkdir("/new")
        filesystem.rename("/a", target)
        for folder in synced:
            filesystem.sync_directory(target[:-2] or "/" if folder == "target" else folder)
        places = set()
        for seed in range(200):
            after = filesystem.crash(Random(seed), model)
            places.add((found(after, "/a"), found(after, target)))
        moved = (None, b"data")
        assert places == ({moved} if synced else {moved, (b"data", None)})

    @EVERY_MODEL
    def test_a_removed_folder_takes_nothing_with_it_that_was_moved_out(self, model: CrashModel) -> None:
        """The removal of a folder never survives without the rename that emptied it."""
        filesystem = CrashableFilesystem()
        filesystem.mkdir("/old")
        filesystem.mkdir("/new")
        save(filesystem, "/old/a", b"data")
        filesystem.sync_directory("/old")
        filesystem.sync_directory("/")
        filesystem.rename("/old/a", "/new/a")
        filesystem.rmdir("/old")
        for seed in range(200):
            after = filesystem.crash(Random(seed), model)
            assert b"data" in (found(after, "/old/a"), found(after, "/new/a"))
        filesystem.sync_directory("/")
        assert states(filesystem, "/new/a", model) == {b"data"}

    @EVERY_MODEL
    def test_hard_links_still_share_one_file(self, model: CrashModel) -> None:
        """Two names of one file still share it after the crash."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"data")
        filesystem.link("/a", "/b")
        filesystem.sync_directory("/")
        put(filesystem, "/a", b" maybe")
        after = filesystem.crash(Random(1), model)
        assert after.lstat("/a").st_ino == after.lstat("/b").st_ino
        assert after.lstat("/a").st_nlink == 2
        assert get(after, "/a") == get(after, "/b")

    @EVERY_MODEL
    def test_a_seed_gives_its_state_again(self, model: CrashModel) -> None:
        """The same seed returns the same state, and the original does not change."""
        filesystem = CrashableFilesystem()
        for number in range(5):
            put(filesystem, f"/{number}", b"x" * 2000)

        def snapshot(seed: int) -> dict[str, bytes]:
            after = filesystem.crash(Random(seed), model)
            return {name: get(after, f"/{name}") for name in after.names("/")}

        assert [snapshot(seed) for seed in range(20)] == [snapshot(seed) for seed in range(20)]
        assert filesystem.names("/") == ["0", "1", "2", "3", "4"]

    @EVERY_MODEL
    def test_what_a_crash_left_is_durable_and_works_on(self, model: CrashModel) -> None:
        """A second crash loses nothing more, and new changes are unsynced."""
        filesystem = CrashableFilesystem()
        save(filesystem, "/a", b"x" * 2000)
        filesystem.sync_directory("/")
        put(filesystem, "/a", b"y" * 2000)
        after = filesystem.crash(Random(3), model)
        assert states(after, "/a", model) == {get(after, "/a")}
        put(after, "/b", b"new")
        assert None in states(after, "/b", model)


def replace(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Replace a file: write a temporary file, sync, rename, sync the folder."""
    save(filesystem, path + ".tmp", data)
    filesystem.rename(path + ".tmp", path)
    filesystem.sync_directory("/")


class TestTeeth:
    """The crash models find the bugs they are made for."""

    def outcomes(
        self, model: CrashModel, without: set[str], act: Callable[[Filesystem, str, bytes], None]
    ) -> set[bytes | None]:
        inner = CrashableFilesystem()
        replace(inner, "/a", b"old")
        act(FaultyFilesystem(inner, without=without), "/a", b"new")
        return states(inner, "/a", model)

    @EVERY_MODEL
    def test_a_synced_replacement_is_complete(self, model: CrashModel) -> None:
        """With both syncs only the new content is possible."""
        assert self.outcomes(model, set(), replace) == {b"new"}

    @EVERY_MODEL
    def test_a_replacement_without_sync_is_caught(self, model: CrashModel) -> None:
        """Without the sync of the file, the new name may have an empty file."""
        assert b"" in self.outcomes(model, {"sync"}, replace)

    @EVERY_MODEL
    def test_a_replacement_without_directory_sync_is_caught(self, model: CrashModel) -> None:
        """Without the sync of the folder, the old content may return."""
        assert self.outcomes(model, {"sync_directory"}, replace) == {b"old", b"new"}

    @EVERY_MODEL
    def test_rewriting_in_place_is_caught(self, model: CrashModel) -> None:
        """Truncating and rewriting in place may leave neither the old nor the new content."""

        def rewrite(filesystem: Filesystem, path: str, data: bytes) -> None:
            with opened(filesystem, path, os.O_WRONLY | os.O_TRUNC) as fd:
                filesystem.write(fd, data)

        assert b"" in self.outcomes(model, set(), rewrite)
