"""The real file system (Linux and macOS).

Rules: files are created with mode 0600 and folders with 0700 (a umask can only remove bits). Nothing is opened through a
symbolic link in its last component. Opening a FIFO or a device never blocks.

`RootedFilesystem` also protects what is below one root: no symbolic link is followed when something is changed there. Every
folder of a path is opened from the one above it, and none through a link, so a folder that is a link, or is swapped for one
at any time, fails with ELOOP. So do pipes, sockets and devices. A file that has a second name elsewhere fails with EMLINK. The
root itself is resolved by the caller. It must belong to the user, and not be writable for everybody, who could put files there
before us. If a group may write to it, every folder on the way must belong to the user. Reading, and paths outside of the root,
work as usual.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sessile.storage.layout import DRAFT, JOURNAL

ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags that every file is opened with."""
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# On Linux a folder can be opened as a starting point, even without permission to read it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

if sys.platform == "darwin":
    # macOS has no fdatasync, and its fsync stops at the drive's cache.
    def _sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
else:
    _sync = os.fdatasync


class PosixFilesystem:
    """The files of this machine."""

    close = staticmethod(os.close)
    write = staticmethod(os.write)
    truncate = staticmethod(os.ftruncate)
    read = staticmethod(os.pread)
    sync = staticmethod(_sync)
    fstat = staticmethod(os.fstat)
    lstat = staticmethod(os.lstat)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | ALWAYS, 0o600)

    def temporary(self) -> int:
        import tempfile  # saves start-up time: only archives need it

        with tempfile.TemporaryFile(buffering=0) as file:
            return os.dup(file.fileno())

    def lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_holder(self, fd: int) -> int | None:
        if sys.platform != "linux":
            return None
        inode = f":{os.fstat(fd).st_ino}"
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for line in locks:
                fields = line.split()
                if "->" not in fields and "FLOCK" in fields and fields[5].endswith(inode):
                    return int(fields[4])
        return None

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        os.utime(fd, ns=(os.fstat(fd).st_atime_ns, nanoseconds))

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, follow_symlinks=False)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class RootedFilesystem(PosixFilesystem):
    """The files of this machine. Below `root`, changes go through real folders only."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._below = root.rstrip("/") + "/"
        self._has_modes = True

    def open(self, path: str, flags: int) -> int:
        if not flags & _CHANGING:
            return super().open(path, flags)
        with self._place(path) as (folder, name):
            fd = os.open(name, flags | ALWAYS, 0o600, dir_fd=folder)
        try:
            _check_plain(os.fstat(fd), flags, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def mkdir(self, path: str) -> None:
        with self._place(path) as (folder, name):
            os.mkdir(name, 0o700, dir_fd=folder)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        with self._place(source) as (from_folder, old), self._place(target) as (to_folder, new):
            os.replace(old, new, src_dir_fd=from_folder, dst_dir_fd=to_folder)

    def link(self, source: str, target: str) -> None:
        with self._place(source) as (from_folder, old), self._place(target) as (to_folder, new):
            os.link(old, new, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        with self._place(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        with self._place(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    @contextmanager
    def _place(self, path: str) -> Iterator[tuple[int | None, str]]:
        """Yield the open folder of a path and the name in it; for a path outside of the root, no folder and the whole path."""
        plain = posixpath.normpath(path)
        if not plain.startswith(self._below):
            yield None, path
            return
        *folders, name = plain[len(self._below) :].split("/")
        fd = os.open(self._root, _FOLDER)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the root of the store belongs to another user", self._root)
            if status.st_mode & stat.S_IWOTH:
                self._check_modes(fd)
            is_shared = status.st_mode & stat.S_IWGRP
            for folder in folders:
                fd = _entered(fd, folder)
                if is_shared and os.fstat(fd).st_uid != status.st_uid:
                    raise PermissionError(
                        errno.EPERM, f"the folder {folder} of the store belongs to another user", path
                    )
            yield fd, name
        finally:
            os.close(fd)

    def _check_modes(self, root: int) -> None:
        """Raise if every user can write to the root. On a file system without permissions every folder looks like that."""
        if not self._has_modes:
            return
        name = f".sessile-{os.getpid()}-{os.urandom(6).hex()}"
        os.mkdir(name, 0o700, dir_fd=root)
        try:
            self._has_modes = not os.lstat(name, dir_fd=root).st_mode & stat.S_IWOTH
        finally:
            os.rmdir(name, dir_fd=root)
        if self._has_modes:
            problem = "other users can write to the root of the store; run chmod o-w on it"
            raise PermissionError(errno.EPERM, problem, self._root)


def check_private(folder: str) -> None:
    """Raise if a folder, or a link to it, belongs to another user, or if every user can write to it. It may be missing."""
    for look in (os.lstat, os.stat):
        try:
            status = look(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder belongs to another user", folder)
        if status.st_mode & stat.S_IWOTH and stat.S_ISDIR(status.st_mode):
            raise PermissionError(errno.EPERM, "other users can write to the folder", folder)


def _check_plain(status: os.stat_result, flags: int, path: str) -> None:
    """Raise if this is not a regular file, or if it has a second name.

    A session has one while it is rewritten. Its journal decides, once it has the lock.
    """
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ELOOP, "not a regular file", path)
    if status.st_nlink > 1 and (flags & os.O_CREAT or not path.endswith((JOURNAL, DRAFT))):
        raise OSError(errno.EMLINK, "the file has a second name elsewhere", path)


def _entered(fd: int, name: str) -> int:
    """Open a folder inside of another, and close that one."""
    try:
        inner = os.open(name, _FOLDER, dir_fd=fd)
    except OSError as error:
        if error.errno == errno.ENOTDIR and stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from error
        raise
    os.close(fd)
    return inner


def is_announced(group: str) -> bool:
    """Return whether an installed package has an entry point of that group, without loading `importlib.metadata`."""
    header = f"[{group}]".encode()
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # an archive, or gone
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{folder or '.'}/{name}/entry_points.txt", "rb") as file:
                        if header in file.read():
                            return True
                except OSError:
                    continue  # most packages have none
    return False
