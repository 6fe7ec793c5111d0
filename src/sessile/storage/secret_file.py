"""A secret in its own file: 256 random bits, created once, readable only by its owner.

Rules: a file that is a link, belongs to another user, or that others may read is refused and not repaired, because the secret may
have leaked. If several processes start at once, one creates the secret and all use it. A file with any other content is refused
and never overwritten; only an empty one, left by a crash, is filled. A file that is not created here holds a copy of a
secret, so deleting it does not create a new one; the hints say so.
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
_MAX_BYTES = 1024  # that are read
_OTHERS = 0o077
_NEW = "delete it; a new one is created at the next start"
_COPIED = (
    "copy the gateway's token into it (gateway.token in its store, created again if it is deleted), and chmod 600 it"
)
_NEEDED = "a secret is 43 or more letters, digits, - and _"


def keep_secret(
    path: str, *, make: bool = True, fs: Filesystem | None = None, random: Callable[[int], bytes] = os.urandom
) -> Secret:
    """Return the secret in a file. With `make`, create it if the file is missing or empty."""
    fs = fs if fs is not None else PosixFilesystem()
    remedy = _NEW if make else _COPIED
    found = _content(fs, path, remedy)
    if not found and make:
        atomic.make_folders(fs, posixpath.dirname(path))
        secret = base64.urlsafe_b64encode(random(_RANDOM_BYTES)).rstrip(b"=")
        atomic.fill_blank(fs, path, secret + b"\n")
        found = _content(fs, path, remedy)
    if found is None:
        raise NotFound("secret file not found", path=path, hint=f"{remedy}; {_NEEDED}")
    secret = found.strip()
    if not _SHAPE.fullmatch(secret):
        raise InvalidConfig("the file does not hold a 256-bit secret", path=path, hint=f"{_NEEDED}; {remedy}")
    return Secret(secret.decode("ascii"))


def _content(fs: Filesystem, path: str, remedy: str) -> bytes | None:
    """Return the content of the file, if it is private; `None` if there is no file."""
    with storage_failures(path, "read the secret"):
        try:
            fd = fs.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            _check(fs.fstat(fd), path, remedy)
            return fs.read(fd, _MAX_BYTES, 0)
        finally:
            fs.close(fd)


def _check(status: Stat, path: str, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePath("not a regular file", path=path, hint=remedy)
    if status.st_uid != os.getuid():
        raise PermissionRefused("the secret file belongs to another user", path=path, hint=remedy)
    if status.st_mode & _OTHERS:
        hint = f"if nobody has read it, chmod 600 it; otherwise {remedy}"
        raise PermissionRefused("other users may read or change the secret file", path=path, hint=hint)
