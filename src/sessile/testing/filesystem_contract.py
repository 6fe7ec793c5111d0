"""The contract of a `Filesystem`, as numbered behaviours for its tests, and helpers to write such tests.

    class TestMyFilesystem(FilesystemContract):
        @pytest.fixture
        def filesystem(self): return MyFilesystem()

        @pytest.fixture
        def root(self, tmp_path): return str(tmp_path)

`root` is an existing empty folder. Each test is independent and closes what it opens. What survives a crash is not tested here.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from sessile.storage.base import Filesystem

# -- helpers

Arguments = ParamSpec("Arguments")


@contextmanager
def opened(filesystem: Filesystem, path: str, flags: int) -> Iterator[int]:
    """Open a file for the length of a block."""
    fd = filesystem.open(path, flags)
    try:
        yield fd
    finally:
        filesystem.close(fd)


def put(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Append `data` to a file; create it if it is missing."""
    with opened(filesystem, path, _APPEND) as fd:
        assert filesystem.write(fd, data) == len(data)


def get(filesystem: Filesystem, path: str) -> bytes:
    """Return the content of a file."""
    with opened(filesystem, path, os.O_RDONLY) as fd:
        return filesystem.read(fd, filesystem.fstat(fd).st_size, 0)


def error(call: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> int | None:
    """Return the number of the `OSError` that a call raises, or None if it succeeds."""
    try:
        call(*args, **kwargs)
        return None
    except OSError as failure:
        return failure.errno


# -- the contract

_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND


class FilesystemContract:
    """The behaviours F01 to F34. Subclasses provide the fixtures `filesystem` and `root`."""

    def test_f01_creating_makes_an_empty_private_file(self, filesystem: Filesystem, root: str) -> None:
        """A created file is a regular file of this user, empty, with mode 0600 and one name."""
        with opened(filesystem, f"{root}/a", os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            info = filesystem.fstat(fd)
        assert stat.S_ISREG(info.st_mode)
        assert stat.S_IMODE(info.st_mode) == 0o600
        assert (info.st_size, info.st_nlink, info.st_uid) == (0, 1, os.getuid())

    def test_f02_a_missing_file_is_not_created_by_accident(self, filesystem: Filesystem, root: str) -> None:
        """Opening without O_CREAT fails with ENOENT and leaves nothing behind."""
        assert error(filesystem.open, f"{root}/a", os.O_RDWR) == errno.ENOENT
        assert filesystem.names(root) == []

    def test_f03_exclusive_creation_refuses_an_existing_name(self, filesystem: Filesystem, root: str) -> None:
        """O_CREAT with O_EXCL fails with EEXIST for a file and for a folder."""
        put(filesystem, f"{root}/a", b"kept")
        filesystem.mkdir(f"{root}/d")
        assert error(filesystem.open, f"{root}/a", os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EEXIST
        assert error(filesystem.open, f"{root}/d", os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EEXIST
        assert get(filesystem, f"{root}/a") == b"kept"

    def test_f04_parents_must_exist_and_be_folders(self, filesystem: Filesystem, root: str) -> None:
        """A missing parent is ENOENT and a file as parent ENOTDIR, in every method that takes a path."""
        put(filesystem, f"{root}/file", b"")
        for parent, expected in (("missing", errno.ENOENT), ("file", errno.ENOTDIR)):
            path = f"{root}/{parent}/a"
            assert error(filesystem.open, path, _APPEND) == expected
            assert error(filesystem.mkdir, path) == expected
            assert error(filesystem.lstat, path) == expected
            assert error(filesystem.unlink, path) == expected
            assert error(filesystem.rmdir, path) == expected
            assert error(filesystem.rename, f"{root}/file", path) == expected
            assert error(filesystem.link, f"{root}/file", path) == expected
            assert error(filesystem.names, path) == expected
            assert error(filesystem.sync_directory, path) == expected

    def test_f05_appending_writes_at_the_end_as_it_is_now(self, filesystem: Filesystem, root: str) -> None:
        """Two descriptors with O_APPEND never overwrite each other."""
        with opened(filesystem, f"{root}/a", _APPEND) as one, opened(filesystem, f"{root}/a", _APPEND) as two:
            assert filesystem.write(one, b"one") == 3
            assert filesystem.write(two, b"second") == 6
            assert filesystem.write(one, b"!") == 1
        assert get(filesystem, f"{root}/a") == b"onesecond!"

    def test_f06_without_append_each_descriptor_has_its_own_position(self, filesystem: Filesystem, root: str) -> None:
        """Writes without O_APPEND start at zero and continue at the descriptor's position; reads do not move it."""
        put(filesystem, f"{root}/a", b"0123456789")
        with opened(filesystem, f"{root}/a", os.O_RDWR) as fd:
            filesystem.write(fd, b"ab")
            assert filesystem.read(fd, 3, 5) == b"567"
            filesystem.write(fd, b"cd")
        assert get(filesystem, f"{root}/a") == b"abcd456789"

    def test_f07_reading_is_by_offset_and_stops_at_the_end(self, filesystem: Filesystem, root: str) -> None:
        """A read across the end is short, one after the end is empty, a negative offset is EINVAL."""
        put(filesystem, f"{root}/a", b"0123456789")
        with opened(filesystem, f"{root}/a", os.O_RDONLY) as fd:
            assert filesystem.read(fd, 4, 0) == b"0123"
            assert filesystem.read(fd, 4, 8) == b"89"
            assert filesystem.read(fd, 4, 10) == b""
            assert filesystem.read(fd, 4, 99) == b""
            assert filesystem.read(fd, 0, 0) == b""
            assert error(filesystem.read, fd, 4, -1) == errno.EINVAL

    def test_f08_access_is_what_was_asked_for(self, filesystem: Filesystem, root: str) -> None:
        """Writing to a read-only descriptor is EBADF, truncating it EINVAL, reading a write-only one EBADF."""
        put(filesystem, f"{root}/a", b"kept")
        with opened(filesystem, f"{root}/a", os.O_RDONLY) as fd:
            assert error(filesystem.write, fd, b"x") == errno.EBADF
            assert error(filesystem.truncate, fd, 0) == errno.EINVAL
        with opened(filesystem, f"{root}/a", os.O_WRONLY) as fd:
            assert error(filesystem.read, fd, 1, 0) == errno.EBADF
        assert get(filesystem, f"{root}/a") == b"kept"

    def test_f09_a_closed_descriptor_is_bad_for_everything(self, filesystem: Filesystem, root: str) -> None:
        """Every method that takes a descriptor raises EBADF after close."""
        fd = filesystem.open(f"{root}/a", _APPEND)
        filesystem.close(fd)
        assert error(filesystem.close, fd) == errno.EBADF
        assert error(filesystem.read, fd, 1, 0) == errno.EBADF
        assert error(filesystem.write, fd, b"x") == errno.EBADF
        assert error(filesystem.truncate, fd, 0) == errno.EBADF
        assert error(filesystem.sync, fd) == errno.EBADF
        assert error(filesystem.lock, fd) == errno.EBADF
        assert error(filesystem.unlock, fd) == errno.EBADF
        assert error(filesystem.fstat, fd) == errno.EBADF

    def test_f10_truncate_cuts_and_extends_with_zeros(self, filesystem: Filesystem, root: str) -> None:
        """A smaller size truncates, a larger one fills with NUL bytes, a negative one is EINVAL."""
        put(filesystem, f"{root}/a", b"0123456789")
        with opened(filesystem, f"{root}/a", os.O_RDWR) as fd:
            filesystem.truncate(fd, 4)
            assert get(filesystem, f"{root}/a") == b"0123"
            filesystem.truncate(fd, 6)
            assert error(filesystem.truncate, fd, -1) == errno.EINVAL
        assert get(filesystem, f"{root}/a") == b"0123\0\0"

    def test_f11_a_write_behind_the_end_leaves_zeros(self, filesystem: Filesystem, root: str) -> None:
        """After a truncation below a descriptor's position, its next write fills the gap with NUL bytes."""
        with opened(filesystem, f"{root}/a", os.O_CREAT | os.O_RDWR) as fd:
            filesystem.write(fd, b"0123456789")
            filesystem.truncate(fd, 2)
            filesystem.write(fd, b"x")
        assert get(filesystem, f"{root}/a") == b"01" + bytes(8) + b"x"

    def test_f12_opening_with_truncate_empties_the_file(self, filesystem: Filesystem, root: str) -> None:
        """O_TRUNC empties a file and keeps its inode."""
        put(filesystem, f"{root}/a", b"old")
        before = filesystem.lstat(f"{root}/a").st_ino
        with opened(filesystem, f"{root}/a", os.O_WRONLY | os.O_TRUNC) as fd:
            assert filesystem.fstat(fd).st_size == 0
        assert filesystem.lstat(f"{root}/a").st_ino == before

    def test_f13_sizes_and_times_follow_writes(self, filesystem: Filesystem, root: str) -> None:
        """The size is exact, and the time of modification never goes back."""
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            before = filesystem.fstat(fd)
            filesystem.write(fd, b"12345")
            after = filesystem.fstat(fd)
        assert (before.st_size, after.st_size) == (0, 5)
        assert after.st_mtime_ns >= before.st_mtime_ns
        assert filesystem.lstat(f"{root}/a").st_mtime_ns == after.st_mtime_ns

    def test_f14_path_and_descriptor_show_the_same_inode(self, filesystem: Filesystem, root: str) -> None:
        """`lstat` of the path and `fstat` of its descriptor agree on device and inode; another file differs."""
        put(filesystem, f"{root}/b", b"")
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            by_fd, by_path, other = filesystem.fstat(fd), filesystem.lstat(f"{root}/a"), filesystem.lstat(f"{root}/b")
        assert (by_fd.st_dev, by_fd.st_ino) == (by_path.st_dev, by_path.st_ino)
        assert (by_fd.st_dev, by_fd.st_ino) != (other.st_dev, other.st_ino)

    def test_f15_sync_succeeds_for_any_access(self, filesystem: Filesystem, root: str) -> None:
        """A file can be synced through a descriptor for reading or writing, a folder through its path."""
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            filesystem.sync(fd)
        with opened(filesystem, f"{root}/a", os.O_RDONLY) as fd:
            filesystem.sync(fd)
        filesystem.sync_directory(root)
        assert error(filesystem.sync_directory, f"{root}/a") == errno.ENOTDIR

    def test_f16_folders_are_private_and_made_one_at_a_time(self, filesystem: Filesystem, root: str) -> None:
        """`mkdir` creates one folder with mode 0700 and refuses an existing name."""
        filesystem.mkdir(f"{root}/d")
        mode = filesystem.lstat(f"{root}/d").st_mode
        assert stat.S_ISDIR(mode)
        assert stat.S_IMODE(mode) == 0o700
        assert error(filesystem.mkdir, f"{root}/d") == errno.EEXIST
        put(filesystem, f"{root}/a", b"")
        assert error(filesystem.mkdir, f"{root}/a") == errno.EEXIST

    def test_f17_names_are_sorted(self, filesystem: Filesystem, root: str) -> None:
        """`names` returns files and folders in order; for a file it raises ENOTDIR."""
        for name in ("b", "a", ".hidden", "C"):
            put(filesystem, f"{root}/{name}", b"")
        filesystem.mkdir(f"{root}/aa")
        assert filesystem.names(root) == [".hidden", "C", "a", "aa", "b"]
        assert error(filesystem.names, f"{root}/a") == errno.ENOTDIR
        assert error(filesystem.names, f"{root}/missing") == errno.ENOENT

    def test_f18_folders_open_for_reading_only(self, filesystem: Filesystem, root: str) -> None:
        """A folder opens with O_RDONLY only; other flags, and reading its bytes, are EISDIR."""
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC):
            assert error(filesystem.open, root, flags) == errno.EISDIR
        with opened(filesystem, root, os.O_RDONLY | os.O_DIRECTORY) as fd:
            assert stat.S_ISDIR(filesystem.fstat(fd).st_mode)
            assert error(filesystem.read, fd, 1, 0) == errno.EISDIR

    def test_f19_asking_for_a_folder_refuses_a_file(self, filesystem: Filesystem, root: str) -> None:
        """O_DIRECTORY on a file is ENOTDIR."""
        put(filesystem, f"{root}/a", b"")
        assert error(filesystem.open, f"{root}/a", os.O_RDONLY | os.O_DIRECTORY) == errno.ENOTDIR

    def test_f20_rename_moves_and_replaces(self, filesystem: Filesystem, root: str) -> None:
        """The target is replaced, the source is gone, and the inode moves along."""
        filesystem.mkdir(f"{root}/d")
        put(filesystem, f"{root}/a", b"new")
        put(filesystem, f"{root}/d/b", b"old")
        moved = filesystem.lstat(f"{root}/a").st_ino
        filesystem.rename(f"{root}/a", f"{root}/d/b")
        assert filesystem.names(root) == ["d"]
        assert get(filesystem, f"{root}/d/b") == b"new"
        assert filesystem.lstat(f"{root}/d/b").st_ino == moved

    def test_f21_rename_between_kinds_is_refused(self, filesystem: Filesystem, root: str) -> None:
        """A file never replaces a folder (EISDIR) nor a folder a file (ENOTDIR); a missing source is ENOENT."""
        filesystem.mkdir(f"{root}/d")
        put(filesystem, f"{root}/a", b"")
        assert error(filesystem.rename, f"{root}/a", f"{root}/d") == errno.EISDIR
        assert error(filesystem.rename, f"{root}/d", f"{root}/a") == errno.ENOTDIR
        assert error(filesystem.rename, f"{root}/missing", f"{root}/a") == errno.ENOENT
        assert error(filesystem.rename, f"{root}/missing", f"{root}/a/below") == errno.ENOTDIR
        assert filesystem.names(root) == ["a", "d"]

    def test_f22_a_folder_moves_with_what_is_in_it(self, filesystem: Filesystem, root: str) -> None:
        """A folder replaces an empty folder only, and never moves into itself."""
        filesystem.mkdir(f"{root}/d")
        filesystem.mkdir(f"{root}/e")
        filesystem.mkdir(f"{root}/f")
        put(filesystem, f"{root}/d/a", b"inside")
        put(filesystem, f"{root}/f/a", b"")
        assert error(filesystem.rename, f"{root}/d", f"{root}/d/e") == errno.EINVAL
        assert error(filesystem.rename, f"{root}/d", f"{root}/f") in (errno.ENOTEMPTY, errno.EEXIST)
        filesystem.rename(f"{root}/d", f"{root}/e")
        assert filesystem.names(root) == ["e", "f"]
        assert get(filesystem, f"{root}/e/a") == b"inside"

    def test_f23_renaming_a_name_to_its_own_file_changes_nothing(self, filesystem: Filesystem, root: str) -> None:
        """If both are names of one file, both stay."""
        put(filesystem, f"{root}/a", b"x")
        filesystem.link(f"{root}/a", f"{root}/b")
        filesystem.rename(f"{root}/a", f"{root}/b")
        filesystem.rename(f"{root}/a", f"{root}/a")
        assert filesystem.names(root) == ["a", "b"]

    def test_f24_a_link_is_a_second_name_for_one_file(self, filesystem: Filesystem, root: str) -> None:
        """Both names have the same inode and content and a link count of two; removing one keeps the other."""
        put(filesystem, f"{root}/a", b"one")
        # Opened before: a store does not open a file for writing that has a second name.
        with opened(filesystem, f"{root}/a", os.O_RDWR | os.O_APPEND) as fd:
            filesystem.link(f"{root}/a", f"{root}/b")
            filesystem.write(fd, b"+two")
        first, second = filesystem.lstat(f"{root}/a"), filesystem.lstat(f"{root}/b")
        assert first.st_ino == second.st_ino
        assert first.st_nlink == second.st_nlink == 2
        filesystem.unlink(f"{root}/a")
        assert get(filesystem, f"{root}/b") == b"one+two"
        assert filesystem.lstat(f"{root}/b").st_nlink == 1

    def test_f25_a_link_never_replaces(self, filesystem: Filesystem, root: str) -> None:
        """An existing target is EEXIST, a missing source ENOENT, a folder as source EPERM."""
        filesystem.mkdir(f"{root}/d")
        put(filesystem, f"{root}/a", b"a")
        put(filesystem, f"{root}/b", b"b")
        assert error(filesystem.link, f"{root}/a", f"{root}/b") == errno.EEXIST
        assert error(filesystem.link, f"{root}/missing", f"{root}/c") == errno.ENOENT
        assert error(filesystem.link, f"{root}/d", f"{root}/c") == errno.EPERM
        assert get(filesystem, f"{root}/b") == b"b"

    def test_f26_an_unlinked_file_lives_while_it_is_open(self, filesystem: Filesystem, root: str) -> None:
        """Its descriptor can still read and write, its link count is zero, and a new file of that name is another one."""
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            filesystem.write(fd, b"still")
            filesystem.unlink(f"{root}/a")
            filesystem.write(fd, b" here")
            assert filesystem.read(fd, 99, 0) == b"still here"
            assert filesystem.fstat(fd).st_nlink == 0
            put(filesystem, f"{root}/a", b"new")
            assert filesystem.lstat(f"{root}/a").st_ino != filesystem.fstat(fd).st_ino
        assert get(filesystem, f"{root}/a") == b"new"

    def test_f27_a_replaced_file_lives_while_it_is_open(self, filesystem: Filesystem, root: str) -> None:
        """A descriptor of a file that was renamed over keeps the old content."""
        put(filesystem, f"{root}/new", b"new")
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            filesystem.write(fd, b"old")
            filesystem.rename(f"{root}/new", f"{root}/a")
            assert filesystem.read(fd, 99, 0) == b"old"
            assert filesystem.fstat(fd).st_nlink == 0
        assert get(filesystem, f"{root}/a") == b"new"

    def test_f28_unlink_is_for_files_and_rmdir_for_empty_folders(self, filesystem: Filesystem, root: str) -> None:
        """`unlink` refuses folders and `rmdir` files; a folder that is not empty is ENOTEMPTY, a missing name ENOENT."""
        filesystem.mkdir(f"{root}/d")
        put(filesystem, f"{root}/d/a", b"")
        assert error(filesystem.unlink, f"{root}/d") in (errno.EISDIR, errno.EPERM)
        assert error(filesystem.rmdir, f"{root}/d/a") == errno.ENOTDIR
        assert error(filesystem.rmdir, f"{root}/d") in (errno.ENOTEMPTY, errno.EEXIST)
        filesystem.unlink(f"{root}/d/a")
        filesystem.rmdir(f"{root}/d")
        assert error(filesystem.unlink, f"{root}/d") == errno.ENOENT
        assert error(filesystem.rmdir, f"{root}/d") == errno.ENOENT
        assert filesystem.names(root) == []

    def test_f29_one_descriptor_at_a_time_holds_the_lock(self, filesystem: Filesystem, root: str) -> None:
        """The holder may lock again; other descriptors of the file are refused until it unlocks."""
        with (
            opened(filesystem, f"{root}/a", _APPEND) as one,
            opened(filesystem, f"{root}/a", _APPEND) as two,
            opened(filesystem, f"{root}/b", _APPEND) as other,
        ):
            assert filesystem.lock_holder(one) is None
            assert filesystem.lock(one)
            assert filesystem.lock(one)
            assert not filesystem.lock(two)
            assert filesystem.lock(other)
            assert filesystem.lock_holder(two) in (os.getpid(), None)
            filesystem.unlock(two)
            assert not filesystem.lock(two)
            filesystem.unlock(one)
            assert filesystem.lock(two)

    def test_f30_closing_frees_the_lock(self, filesystem: Filesystem, root: str) -> None:
        """A lock ends with its descriptor, and only with its own."""
        with opened(filesystem, f"{root}/a", _APPEND) as waiting:
            with opened(filesystem, f"{root}/a", _APPEND) as holder:
                assert filesystem.lock(holder)
                with opened(filesystem, f"{root}/a", _APPEND):
                    pass
                assert not filesystem.lock(waiting)
            assert filesystem.lock(waiting)

    def test_f31_a_lock_belongs_to_the_file_and_not_to_its_name(self, filesystem: Filesystem, root: str) -> None:
        """After a rename the lock is still held; a new file under the old name is free."""
        with opened(filesystem, f"{root}/a", _APPEND) as holder:
            assert filesystem.lock(holder)
            filesystem.rename(f"{root}/a", f"{root}/b")
            with opened(filesystem, f"{root}/b", _APPEND) as renamed, opened(filesystem, f"{root}/a", _APPEND) as fresh:
                assert not filesystem.lock(renamed)
                assert filesystem.lock(fresh)

    def test_f32_appends_of_many_threads_stay_whole(self, filesystem: Filesystem, root: str) -> None:
        """Every write of every thread is in the file once and in one piece."""
        lines = [f"{writer}:{number}\n".encode() * 50 for writer in range(4) for number in range(50)]

        def append(mine: list[bytes]) -> None:
            with opened(filesystem, f"{root}/a", _APPEND) as fd:
                for line in mine:
                    assert filesystem.write(fd, line) == len(line)

        threads = [threading.Thread(target=append, args=(lines[start::4],)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        content = get(filesystem, f"{root}/a")
        assert len(content) == sum(map(len, lines))
        assert all(content.count(b"\n" + line) or content.startswith(line) for line in lines)

    def test_f33_the_time_of_modification_can_be_set(self, filesystem: Filesystem, root: str) -> None:
        """`lstat` and `fstat` return it, the content stays, and the next write changes it."""
        at = 1_500_000_000_123_456_000
        with opened(filesystem, f"{root}/a", _APPEND) as fd:
            filesystem.write(fd, b"kept")
            filesystem.set_modified(fd, at)
            assert filesystem.fstat(fd).st_mtime_ns == filesystem.lstat(f"{root}/a").st_mtime_ns == at
            filesystem.write(fd, b"!")
            assert filesystem.fstat(fd).st_mtime_ns != at
        assert get(filesystem, f"{root}/a") == b"kept!"

    def test_f34_a_temporary_file_has_no_name(self, filesystem: Filesystem, root: str) -> None:
        """It can be written and read, and is gone after close."""
        fd = filesystem.temporary()
        assert filesystem.write(fd, b"ab") == 2 and filesystem.write(fd, b"c") == 1
        assert (filesystem.read(fd, 9, 1), filesystem.fstat(fd).st_size, filesystem.names(root)) == (b"bc", 3, [])
        filesystem.close(fd)
