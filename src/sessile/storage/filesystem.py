"""The real file system (Linux and macOS).

Rules: files are created 0600 and folders 0700 (a umask can only take bits away); nothing is opened through a symbolic link in its
last component; opening a FIFO or a device never blocks.

The real file system below one root, in which no symbolic link is followed when something is changed.

A name is reached folder by folder, each opened from the one above it and none through a link, and what is done is done relative
to the last of them. So a folder that is a link, or is swapped for one at any moment, leads nowhere: the call fails with ELOOP,
and so it does for pipes, sockets, devices, and files that have another name elsewhere.
The root itself is resolved by whoever names it, and has to belong to the user who changes something in it.

Reading is as in any other place, and so are paths outside of the root.
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

# --- filesystem

ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""What every file is opened with."""

if sys.platform == "darwin":
    # macOS has no fdatasync, and its fsync stops at the drive's cache.
    def _sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
else:
    _sync = os.fdatasync


class PosixFilesystem:
    """Files of this machine."""

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
        import tempfile  # for archives only

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


# --- rooted

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Linux can open a folder just to go on from it, also one that may not be read.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootedFilesystem(PosixFilesystem):
    """Files of this machine, of which those below `root` are changed through real folders only."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._below = root.rstrip("/") + "/"

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
        """The folder that a path lies in, open, and its name there; of one outside of the root no folder, and all of it."""
        plain = posixpath.normpath(path)
        if not plain.startswith(self._below):
            yield None, path
            return
        *folders, name = plain[len(self._below) :].split("/")
        fd = os.open(self._root, _FOLDER)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder of the store belongs to another user", self._root)
            for folder in folders:
                fd = _entered(fd, folder)
            yield fd, name
        finally:
            os.close(fd)


def _check_plain(status: os.stat_result, flags: int, path: str) -> None:
    """Refuse what is no ordinary file, and a second name of one where the file would have been made if it were missing.

    A session may have a second name: that under which it is kept while it is rewritten.
    """
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ELOOP, "this is not a plain file", path)
    if flags & os.O_CREAT and status.st_nlink > 1:
        raise OSError(errno.ELOOP, "the file has another name elsewhere", path)


def _entered(fd: int, name: str) -> int:
    """The folder of that name in another one, which is closed for it."""
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
