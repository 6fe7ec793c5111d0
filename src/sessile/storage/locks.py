"""Waiting for a file's lock.

The lock is `flock` on the journal's own descriptor: the kernel frees it when its holder dies, so there are no pid files
and nothing can go stale. It is polled, because a blocking `flock` cannot be given a deadline.

Processes and their machine: whether one is alive, for locks of foreign stores that name their holder by its number.

Which files the processes of this machine have open, where the system can tell.

An idle session holds no lock, only a descriptor. Linux shows those of the user's own processes below `/proc`; other systems
and sandboxes do not, and then the answer is `None`: unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sessile.errors import SessionBusy, storage_failure, storage_failures
from sessile.storage.base import Filesystem, Stat

# --- lock

_FIRST_PAUSE = 0.0003  # seconds; those who wait less disturb the holder more than they gain
_LONGEST_PAUSE = 0.005


def acquire(fs: Filesystem, fd: int, path: str, patience: float) -> None:
    """Take the lock, waiting `patience` seconds at most."""
    try:
        if fs.lock(fd):
            return
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while not fs.lock(fd):
            if time.monotonic() >= deadline:
                raise _busy(fs, fd, path, patience)
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    except OSError as error:
        raise storage_failure(error, path, "lock the session") from error


@contextmanager
def locked(fs: Filesystem, path: str, patience: float) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else; it is made if it is not there, and stays."""
    with storage_failures(path, "open the lock"):
        fd = fs.open(path, os.O_RDWR | os.O_CREAT)
    try:
        acquire(fs, fd, path, patience)
        yield
    finally:
        with storage_failures(path, "free the lock"):
            fs.close(fd)


def is_held(fs: Filesystem, path: str) -> bool:
    """Whether somebody holds the lock of a file. Looking takes a free one for an instant, so those who want it have patience."""
    with storage_failures(path, "look at the lock"):
        try:
            fd = fs.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return not fs.lock(fd)
        finally:
            fs.close(fd)


def _busy(fs: Filesystem, fd: int, path: str, patience: float) -> SessionBusy:
    try:
        holder = fs.lock_holder(fd) or 0
    except OSError:
        holder = 0  # a sandbox without /proc
    who = f"process {holder}" if holder > 0 else "another process"
    return SessionBusy(
        f"{who} has held the session's lock for over {patience:g} s",
        path=path,
        hint="wait until it is done, or end it if it hangs; the lock goes with it",
    )


# --- processes

_LARGEST = 0x7FFFFFFF


def own_pid() -> int:
    """The number of this process."""
    return os.getpid()


def own_host() -> str:
    """The name of this machine."""
    import socket  # most programs never ask

    return socket.gethostname()


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number, ours to signal or not."""
    if not 0 < pid <= _LARGEST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# --- handles

_PROCESSES = "/proc"

Identity = tuple[int, int]
"""Device and inode of a file."""


def identity(status: Stat) -> Identity:
    """What tells a file from all others."""
    return status.st_dev, status.st_ino


def open_files() -> frozenset[Identity] | None:
    """Every file that a process of ours has open, this one included."""
    try:
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return None
    found = {status for process in processes for status in _descriptors(f"{_PROCESSES}/{process}/fd")}
    return frozenset(found) if found else None


def _descriptors(folder: str) -> list[Identity]:
    """The files of one process; none if it is not ours, or has ended."""
    found = []
    try:
        for name in os.listdir(folder):
            try:
                found.append(identity(os.stat(f"{folder}/{name}")))
            except OSError:
                continue  # closed since, or on a file system that tells nothing
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        pass
    return found
