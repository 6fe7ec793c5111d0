"""Read and replace a small file that other programs may change at any time without a lock, such as a user's editor.

Reading returns the content together with a fingerprint of the file. A new content takes its place only if the fingerprint
is still the same. There is no call between that check and the rename; only a save in that very moment is lost.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from sessile.errors import UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat

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
