"""What lies below a folder: session files, files of any kind and their sizes, their hashes, and the blobs that they name.

Below a folder symbolic links are told but never followed; a project folder may be one, and that is told too. What vanishes
while one looks is not there. Nothing here changes anything.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterator

from sessile.core.hashes import sha256
from sessile.errors import storage_failures
from sessile.storage.base import Filesystem, Stat
from sessile.storage.layout import DRAFT, session_files
from sessile.storage.raw_file import RawFile

_REFERENCE = re.compile(rb"blob:sha256:([0-9a-f]{64})")
_OVERLAP = len(b"blob:sha256:") + 64 - 1  # a reference may lie across the end of a piece

_GONE = (FileNotFoundError, NotADirectoryError)


def journals(fs: Filesystem, sessions: str) -> Iterator[tuple[str, bool]]:
    """Every session file and draft in the project folders of a store, and whether it lies behind a link."""
    for project in _names(fs, sessions):
        folder = f"{sessions}/{project}"
        names = _names(fs, folder)
        with storage_failures(folder, "list the sessions"):
            try:
                linked = not stat.S_ISDIR(fs.lstat(folder).st_mode)
            except _GONE:
                continue
        for name in (*session_files(names), *(name for name in names if name.endswith(DRAFT))):
            yield f"{folder}/{name}", linked


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "list the sessions"):
        try:
            return fs.names(folder)
        except _GONE:
            return []


def below(fs: Filesystem, top: str) -> Iterator[tuple[str, Stat]]:
    """A name and, if it is a folder, everything in it: each folder before what it holds."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        with storage_failures(path, "look at what is there"):
            try:
                status = fs.lstat(path)
                names = fs.names(path) if stat.S_ISDIR(status.st_mode) else []
            except _GONE:
                continue
        yield path, status
        waiting.extend(posixpath.join(path, name) for name in reversed(names))


def files_below(fs: Filesystem, top: str) -> Iterator[tuple[str, Stat]]:
    """The plain files of `below`."""
    return ((path, status) for path, status in below(fs, top) if stat.S_ISREG(status.st_mode))


def bytes_below(fs: Filesystem, top: str) -> int:
    """The sizes of all plain files of `below`."""
    return sum(status.st_size for _, status in files_below(fs, top))


def digest_of(fs: Filesystem, path: str) -> str:
    """The SHA-256 of a file, of which only a piece is held at a time."""
    digest = sha256()
    with RawFile(fs, path) as file:
        for chunk in file.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def is_kept(fs: Filesystem, path: str, kept: str) -> bool:
    """Whether two names mean one file, or a file and a copy of it."""
    one, two = fs.lstat(path), fs.lstat(kept)
    if (one.st_ino, one.st_dev) == (two.st_ino, two.st_dev):
        return True
    comparable = stat.S_ISREG(one.st_mode) and stat.S_ISREG(two.st_mode) and one.st_size == two.st_size
    return comparable and digest_of(fs, path) == digest_of(fs, kept)


def references(fs: Filesystem, path: str) -> set[str]:
    """The hashes of all blobs that the bytes of a file name, whatever the file is."""
    found: set[str] = set()
    rest = b""
    with RawFile(fs, path) as file:
        for chunk in file.chunks():
            data = rest + chunk
            found.update(match.decode() for match in _REFERENCE.findall(data))
            rest = data[-_OVERLAP:]
    return found
