"""Lock files, and find out which processes and files are in use.

The lock is `flock` on the file's own descriptor. The kernel frees it when its holder dies, so there are no pid files and
no stale locks. It is polled, because a blocking `flock` has no timeout.

An idle session holds no lock, only a descriptor. `open_files` finds those on Linux, for processes of the same user.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sessile.errors import SessileError, SessionBusy, StorageFailure, storage_failure, storage_failures
from sessile.storage.base import Filesystem, Stat

_FIRST_PAUSE = 0.0003  # seconds; shorter pauses disturb the holder more than they gain
_LONGEST_PAUSE = 0.005
_LARGEST_PID = 0x7FFFFFFF
_PROCESSES = "/proc"


# -- locks


NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)  # of a file system without flock


def lock_failure(error: OSError, path: str) -> SessileError:
    """Return the typed error for a lock that could not be taken."""
    if error.errno not in NO_LOCKS:
        return storage_failure(error, path, "lock the session")
    return StorageFailure(
        f"the file system has no file locks (flock: {error.strerror or error}); nothing was written",
        path=path,
        hint="use a folder on a local file system, or mount this one with locks; reading works without them",
        code=error.errno,
    )


def acquire(fs: Filesystem, fd: int, path: str, patience: float) -> None:
    """Take the lock, waiting at most `patience` seconds."""
    try:
        taken = fs.lock(fd)
    except OSError as error:
        raise lock_failure(error, path) from error
    if not taken:
        wait_for(fs, fd, path, patience)


def wait_for(fs: Filesystem, fd: int, path: str, patience: float) -> None:
    """Take a lock that another process holds, waiting at most `patience` seconds."""
    deadline = time.monotonic() + patience
    pause = _FIRST_PAUSE
    try:
        while not fs.lock(fd):
            if time.monotonic() >= deadline:
                raise _busy(fs, fd, path, patience)
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    except OSError as error:
        raise lock_failure(error, path) from error


def _busy(fs: Filesystem, fd: int, path: str, patience: float) -> SessionBusy:
    try:
        holder = fs.lock_holder(fd) or 0
    except OSError:
        holder = 0  # a sandbox without /proc
    who = f"process {holder}" if holder > 0 else "another process"
    return SessionBusy(
        f"{who} has held the session's lock for over {patience:g} s",
        path=path,
        hint="wait until it is done, or end it if it hangs; that releases the lock",
    )


@contextmanager
def locked(fs: Filesystem, path: str, patience: float) -> Iterator[None]:
    """Hold the lock of a file that serves only as a lock. It is created if it is missing, and stays."""
    with storage_failures(path, "open the lock"):
        fd = fs.open(path, os.O_RDWR | os.O_CREAT)
    try:
        acquire(fs, fd, path, patience)
        yield
    finally:
        with storage_failures(path, "release the lock"):
            fs.close(fd)


def is_held(fs: Filesystem, path: str) -> bool:
    """Return whether any process holds the lock of a file; `False` if there is no file.

    Asking takes a free lock for an instant, so processes that want it must be ready to wait.
    """
    with storage_failures(path, "look at the lock"):
        try:
            fd = fs.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return not fs.lock(fd)
        finally:
            fs.close(fd)


# -- processes, for locks of foreign stores that name their holder


def own_pid() -> int:
    """Return the id of this process."""
    return os.getpid()


def own_host() -> str:
    """Return the name of this machine."""
    import socket  # saves start-up time: few programs need it

    return socket.gethostname()


def is_alive(pid: int) -> bool:
    """Return whether a process with that id exists, of any user."""
    if not 0 < pid <= _LARGEST_PID:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- open files

Identity = tuple[int, int]
"""Device and inode of a file."""


def identity(status: Stat) -> Identity:
    """Return what distinguishes a file from all others."""
    return status.st_dev, status.st_ino


def open_files(*, elsewhere: bool = False) -> frozenset[Identity] | None:
    """Return every file that a process of this user has open; `None` where the system does not show them.

    With `elsewhere`, this process does not count.
    """
    own = str(os.getpid()) if elsewhere else ""
    try:
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit() and name != own]
    except OSError:
        return None
    found = {status for process in processes for status in _descriptors(f"{_PROCESSES}/{process}/fd")}
    return frozenset(found) if found else None


def _descriptors(folder: str) -> list[Identity]:
    """Return the open files of one process; none if it belongs to another user or has ended."""
    found = []
    try:
        for name in os.listdir(folder):
            try:
                found.append(identity(os.stat(f"{folder}/{name}")))
            except OSError:
                continue  # closed since, or on a file system that does not answer
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        pass
    return found
