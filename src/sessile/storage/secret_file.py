"""A secret in a file of its own: made once, of 256 random bits, and given only to the user whom the file belongs to.

Rules: a file that is a link, that belongs to another user or that others may read is refused, not mended: somebody may have read
it. Of several processes that begin at once, one makes the secret and all get the same. A file that holds something else is
refused, never overwritten; only an empty one, as a crash leaves it, is filled. A file that is not made here holds a copy of a
secret: to delete it does not make it anew, and hints say so.
"""

from __future__ import annotations

import base64
import os
import posixpath
import re
import stat
from collections.abc import Callable

from sessile.core.secret import Secret
from sessile.errors import InvalidConfig, NotFound, PermissionRefused, UnsafePath, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.filesystem import PosixFilesystem

_RANDOM_BYTES = 32
_SHAPE = re.compile(rb"[A-Za-z0-9_-]{43,512}")  # 43 characters of base64 hold 256 bits
_MOST = 1024  # bytes that are looked at
_OTHERS = 0o077
_ANEW = "delete it, and a new one is made at the next start"
_COPIED = (
    "copy the token of the gateway into it (gateway.token in its store, made anew if it is deleted), and chmod 600 it"
)
_NEEDED = "43 or more letters, digits, - and _ are needed"


def keep_secret(
    path: str, *, make: bool = True, fs: Filesystem | None = None, random: Callable[[int], bytes] = os.urandom
) -> Secret:
    """The secret that a file holds; one that is missing is made, unless `make` says that somebody else does that."""
    fs = fs if fs is not None else PosixFilesystem()
    remedy = _ANEW if make else _COPIED
    found = _content(fs, path, remedy)
    if not found and make:
        atomic.make_folders(fs, posixpath.dirname(path))
        secret = base64.urlsafe_b64encode(random(_RANDOM_BYTES)).rstrip(b"=")
        atomic.fill_blank(fs, path, secret + b"\n")
        found = _content(fs, path, remedy)
    if found is None:
        raise NotFound("there is no such file of a secret", path=path, hint=f"{remedy}; {_NEEDED}")
    secret = found.strip()
    if not _SHAPE.fullmatch(secret):
        raise InvalidConfig("the file holds no secret of 256 bits", path=path, hint=f"{_NEEDED}; {remedy}")
    return Secret(secret.decode("ascii"))


def _content(fs: Filesystem, path: str, remedy: str) -> bytes | None:
    """What is in the file, if it is ours alone; `None` if there is none."""
    with storage_failures(path, "read a secret"):
        try:
            fd = fs.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            _check(fs.fstat(fd), path, remedy)
            return fs.read(fd, _MOST, 0)
        finally:
            fs.close(fd)


def _check(status: Stat, path: str, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePath("a secret is kept in a plain file", path=path, hint=remedy)
    if status.st_uid != os.getuid():
        raise PermissionRefused("the file of the secret belongs to another user", path=path, hint=remedy)
    if status.st_mode & _OTHERS:
        hint = f"chmod 600 it if nobody has read it; else {remedy}"
        raise PermissionRefused("others may read or change the file of the secret", path=path, hint=hint)
