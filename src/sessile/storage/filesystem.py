"""The real file system (Linux and macOS).

Rules: files are created 0600 and folders 0700 (a umask can only take bits away); nothing is opened through a symbolic link in its
last component; opening a FIFO or a device never blocks.
"""

from __future__ import annotations

import fcntl
import os
import sys

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
