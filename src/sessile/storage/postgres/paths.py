"""Paths as they are kept in a database: the bytes of a folder and of a name in it.

Rules: a path is absolute and has no `.` or `..` in it; a name is at most 255 bytes long as on a disk, and a path as long
as the index of a database takes. `/` is the name without bytes in the folder without bytes.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

_LONGEST_NAME = 255
_LONGEST_PATH = 2000  # an index of PostgreSQL holds 2,700 bytes in a row


class Key(NamedTuple):
    """Where a name is."""

    folder: bytes
    base: bytes

    @property
    def path(self) -> bytes:
        """The path that this is the key of, as the names below it have it for a folder."""
        if not self.base:
            return b"/"
        return self.folder.rstrip(b"/") + b"/" + self.base


ROOT = Key(b"", b"")


def keys(path: str) -> list[Key]:
    """The keys of everything on the way from `/` to a path, and of the path itself."""
    try:
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise failure(errno.EILSEQ, path) from None
    parts = [part for part in encoded.split(b"/") if part]
    if not encoded.startswith(b"/") or b"\0" in encoded or b"." in parts or b".." in parts:
        raise failure(errno.EINVAL, path)
    if len(encoded) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in parts):
        raise failure(errno.ENAMETOOLONG, path)
    found = [ROOT]
    for part in parts:
        found.append(Key(found[-1].path, part))
    return found


def key(path: str) -> Key:
    """The key of a path."""
    return keys(path)[-1]


def decoded(base: bytes) -> str:
    """A name as programs see it."""
    return base.decode("utf-8", "surrogateescape")


def failure(code: int, path: str | None = None, target: str | None = None) -> OSError:
    """What the system call would raise."""
    return OSError(code, os.strerror(code), path, None, target)
