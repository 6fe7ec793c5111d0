"""A lock that other programs understand: a file that is there while somebody holds it, in their format.

The others create it exclusively and remove it when they are done; one that was left behind by a crash is broken when it is
older than they agree upon. We moreover hold `flock` on ours from before it is seen until it is gone, so that what a dead
process of ours left is told from what a living one holds, and taken over at once. `mark` are bytes that only our claims hold.

It does not know what the lock is for. Ages are counted from `now`, which the caller gives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sessile.errors import SessionBusy, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
_PAUSE = 0.005  # seconds
_FEW = 4096  # bytes; a claim is one small object


@contextmanager
def claimed(
    fs: Filesystem, path: str, content: bytes, *, mark: bytes, now: int, stale_after: int, patience: float
) -> Iterator[None]:
    """Hold the lock file; `now` and `stale_after` are in milliseconds, `patience` in seconds."""
    temp = atomic.temp_beside(path)
    with storage_failures(path, "lock the store"):
        fd = fs.open(temp, _NEW)
    try:
        with storage_failures(path, "lock the store"):
            try:
                fs.lock(fd)  # nobody knows the file yet
                atomic.write_all(fs, fd, content)
                _publish(fs, temp, path, mark, now, stale_after, patience)
            finally:
                atomic.remove(fs, temp)
        yield
    finally:
        _release(fs, path, fd)


def _release(fs: Filesystem, path: str, fd: int) -> None:
    """Take our claim away. One that cannot be removed is nobody's as soon as the file is closed."""
    try:
        try:
            if _is(fs, path, fs.fstat(fd)):
                fs.unlink(path)
        finally:
            fs.close(fd)
    except OSError as error:
        log.warning("the lock %s stays behind: %s", path, error)


def _publish(fs: Filesystem, temp: str, path: str, mark: bytes, now: int, stale_after: int, patience: float) -> None:
    """Give the claim its name, as soon as nobody else's has it."""
    begun = time.monotonic()
    while True:
        try:
            fs.link(temp, path)
            return
        except FileExistsError:
            waited = time.monotonic() - begun
            if _cleared(fs, path, mark, now + int(waited * 1000) - stale_after):
                continue
            if waited >= patience:
                raise SessionBusy(
                    f"another program has held the lock of the store for {waited:.0f} s",
                    path=path,
                    hint="try again; if no gateway runs any more, delete the lock file",
                ) from None
            time.sleep(_PAUSE)


def _cleared(fs: Filesystem, path: str, mark: bytes, stale_before: int) -> bool:
    """Take away a claim that nobody holds any more; says whether it is worth trying again at once."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        status = fs.fstat(fd)
        ours = mark in fs.read(fd, _FEW, 0)
        # Of several who find it abandoned, one gets its lock; the others find another file of that name, or none.
        if not (ours or status.st_mtime_ns // 1_000_000 < stale_before) or not fs.lock(fd):
            return False
        if not _is(fs, path, status):
            return True
        fs.unlink(path)
        return True
    finally:
        fs.close(fd)


def _is(fs: Filesystem, path: str, status: Stat) -> bool:
    """Whether a name still means that file."""
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)
