"""Waiting for a file's lock.

The lock is `flock` on the journal's own descriptor: the kernel frees it when its holder dies, so there are no pid files
and nothing can go stale. It is polled, because a blocking `flock` cannot be given a deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sessile.errors import SessionBusy, storage_failure, storage_failures
from sessile.storage.base import Filesystem

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
