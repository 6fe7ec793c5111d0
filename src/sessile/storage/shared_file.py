"""Read and replace a small file that other programs may change at any time without a lock, such as a user's editor.

Reading returns the content together with a fingerprint of the file. A new content takes its place only if the fingerprint
is still the same. There is no call between that check and the rename; only a save in that very moment is lost.

`lock_file` holds a lock in the way of other programs: a file that exists while the lock is held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sessile.errors import SessionBusy, UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat

_LOCK_PAUSE = 0.005  # seconds
_LARGEST_LOCK_FILE = 4096  # bytes; it holds one small object
_TRIES = 5  # a program that writes during each of them never stops


class Seen(NamedTuple):
    """A fingerprint that changes when the file is saved."""

    device: int
    inode: int
    size: int
    modified: int


class _Changed(Exception):
    """The file is no longer the one that was read."""


def look(fs: Filesystem, path: str) -> Seen | None:
    """Return the fingerprint of a file; `None` if there is none."""
    try:
        return _seen(fs.lstat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_failure(error, path, "look at a file") from error


def read(fs: Filesystem, path: str) -> tuple[bytes, Seen] | None:
    """Return the content of a file and its fingerprint; `None` if there is none."""
    with storage_failures(path, "read a file"):
        for _ in range(_TRIES):
            try:
                if not atomic.is_plain(fs, path):
                    raise UnsafePath(path=path, hint="symbolic links are not followed; use the file itself")
                fd = fs.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                before = _seen(fs.fstat(fd))
                data = atomic.read_open(fs, fd)
                if _seen(fs.fstat(fd)) == before:
                    break
            finally:
                fs.close(fd)
    return data, before


def replace(fs: Filesystem, path: str, data: bytes, seen: Seen | None) -> Seen | None:
    """Replace the content durably, if the fingerprint is still `seen`.

    Return the new fingerprint, or `None` if the file had changed and was left alone.
    """
    new: Seen | None = None

    def check(temp: str) -> None:
        nonlocal new
        new = look(fs, temp)  # now: under its final name another program could change it before we look
        if look(fs, path) != seen:
            raise _Changed

    try:
        atomic.replace(fs, path, (data,), before=check)
    except _Changed:
        return None
    return new


def _seen(status: Stat) -> Seen:
    return Seen(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


# -- lock files of other programs


@contextmanager
def lock_file(
    fs: Filesystem, path: str, content: bytes, *, mark: bytes, now: int, stale_after: int, patience: float
) -> Iterator[None]:
    """Hold a lock that other programs understand: a file that exists while it is held.

    The other programs create it exclusively, remove it when they are done, and break one that is older than `stale_after`. In
    addition we hold `flock` on our own file from before it gets its name until it is removed, so a file that a dead process of
    ours left is recognized and replaced at once. `mark` are bytes that only our lock files contain.

    `now` and `stale_after` are in milliseconds, `patience` is in seconds.
    """
    with storage_failures(path, "lock the store"):
        temp, fd = atomic.new_beside(fs, path)
    try:
        with storage_failures(path, "lock the store"):
            try:
                atomic.write_all(fs, fd, content)
                _publish_lock(fs, temp, path, mark, now, stale_after, patience)
            finally:
                atomic.remove(fs, temp)
        yield
    finally:
        _release_lock(fs, path, fd)


def _publish_lock(
    fs: Filesystem, temp: str, path: str, mark: bytes, now: int, stale_after: int, patience: float
) -> None:
    """Give our lock file its name as soon as that is free."""
    start = time.monotonic()
    while True:
        try:
            fs.link(temp, path)
            return
        except FileExistsError:
            waited = time.monotonic() - start
            if _break_lock(fs, path, mark, now + int(waited * 1000) - stale_after):
                continue
            if waited >= patience:
                raise SessionBusy(
                    f"another program has held the lock of the store for {waited:.0f} s",
                    path=path,
                    hint="try again; if no gateway is running, delete the lock file",
                ) from None
            time.sleep(_LOCK_PAUSE)


def _break_lock(fs: Filesystem, path: str, mark: bytes, stale_before: int) -> bool:
    """Remove an abandoned lock file; return whether to try again at once."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        status = fs.fstat(fd)
        ours = mark in fs.read(fd, _LARGEST_LOCK_FILE, 0)
        # If several processes find it abandoned, one gets the flock; the others then find another file, or none.
        if not (ours or status.st_mtime_ns // 1_000_000 < stale_before) or not fs.lock(fd):
            return False
        if _is_same_file(fs, path, status):
            fs.unlink(path)
        return True
    finally:
        fs.close(fd)


def _release_lock(fs: Filesystem, path: str, fd: int) -> None:
    """Remove our lock file. If that fails, the file counts as abandoned once it is closed."""
    try:
        try:
            if _is_same_file(fs, path, fs.fstat(fd)):
                fs.unlink(path)
        finally:
            fs.close(fd)
    except OSError as error:
        log.warning("cannot remove the lock file %s: %s", path, error)


def _is_same_file(fs: Filesystem, path: str, status: Stat) -> bool:
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)
