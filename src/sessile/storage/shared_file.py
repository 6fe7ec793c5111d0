"""A small file that others may replace or write at any moment, without a lock: a person in an editor.

What is read comes with what the file was at that moment, and a new content takes its place only if the file is still just
that. Between the last look and the renaming there is no call; a save in that very moment is lost, and no other.
"""

from __future__ import annotations

import os
import posixpath
from typing import NamedTuple

from sessile.errors import UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat

_CHUNK = 1 << 20
_TRIES = 5  # a writer who is in the middle of each of them writes for ever


class Seen(NamedTuple):
    """What tells a file from the same file after somebody saved it."""

    device: int
    inode: int
    size: int
    modified: int


def look(fs: Filesystem, path: str) -> Seen | None:
    """What a file is now; `None` if there is none."""
    try:
        return _seen(fs.lstat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_failure(error, path, "look at a file") from error


def read(fs: Filesystem, path: str) -> tuple[bytes, Seen] | None:
    """The content of a file, and what the file was; `None` if there is none."""
    with storage_failures(path, "read a file"):
        for _ in range(_TRIES):
            try:
                if not atomic.is_plain(fs, path):
                    raise UnsafePath(path=path, hint="symbolic links are not followed; name the file itself")
                fd = fs.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                before = _seen(fs.fstat(fd))
                data = _content(fs, fd)
                if _seen(fs.fstat(fd)) == before:
                    break
            finally:
                fs.close(fd)
    return data, before


def _content(fs: Filesystem, fd: int) -> bytes:
    chunks = []
    size = 0
    while chunk := fs.read(fd, _CHUNK, size):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def replace(fs: Filesystem, path: str, data: bytes, seen: Seen | None) -> Seen | None:
    """Put a new content in place, durably, if the file is still what was seen; says what it is then, `None` if it was not."""
    temp = atomic.temp_beside(path)
    with storage_failures(path, "replace a file"):
        atomic.write_new(fs, temp, (data,))
        try:
            new = look(
                fs, temp
            )  # as it will be under its name, where somebody else may be faster with a look or a save
            if look(fs, path) != seen:
                atomic.remove(fs, temp)
                return None
            fs.rename(temp, path)
        except BaseException:
            atomic.remove(fs, temp)
            raise
        fs.sync_directory(posixpath.dirname(path))
    return new


def _seen(status: Stat) -> Seen:
    return Seen(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
