"""Session files as bytes: read whole, replaced under their lock, copied exactly, and surveyed below a folder.

For checks, repairs and backups, which must not fail on the damage that they look for: nothing here needs a header or an
index.

- `RawFile` reads one file, and replaces it. The file is the old one or the new one, whole; the old one is kept under
  another name.
- `copy_file` makes an exact copy of a file that other programs write, including its modification time. No byte of an
  earlier copy is lost: it is replaced only by a file that starts with it; otherwise it is first put aside, under a name
  that is made from its hash and does not end in `.jsonl`.
- `journals`, `below`, `references` and others list what is below a folder. They report symbolic links but do not follow
  them, except for a project folder that is one. A file that vanishes during the survey is left out.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from sessile.core.ids import sha256
from sessile.errors import LeafMoved, SessionBusy, UnsafePath, storage_failures
from sessile.storage import atomic
from sessile.storage.base import CHUNK, Filesystem, Stat
from sessile.storage.layout import session_files
from sessile.storage.locks import acquire

_TRIES = 3  # a file that changes during each of them is being written
_DIGITS = 16  # of the hash in the name of a copy that is put aside
_REFERENCE = re.compile(rb"blob:sha256:([0-9a-f]{64})")
_OVERLAP = len(b"blob:sha256:") + 64 - 1  # a reference may cross the end of a chunk
_GONE = (FileNotFoundError, NotADirectoryError)


# -- one file


class RawFile(atomic.Descriptor):
    """One regular file, open for reading. Its size is the one at the time when it was opened or locked."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self._fs = fs
        with storage_failures(path, "open the file"):
            self._fd = fs.open(path, os.O_RDONLY)
        try:
            self.stat = self._look()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RawFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor, and with it release the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with storage_failures(self.path, "close the file"):
                self._fs.close(fd)

    @property
    def size(self) -> int:
        return self.stat.st_size

    def _look(self) -> Stat:
        with storage_failures(self.path, "look at the file"):
            status = self._fs.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("not a regular file", path=self.path)
        return status

    def peek(self, offset: int, length: int) -> bytes:
        """Return a few bytes."""
        with storage_failures(self.path, "read the file"):
            return self._fs.read(self._fd, length, offset)

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes between two offsets, or all of them, in pieces."""
        end = self.size if end is None else end
        while start < end and (chunk := self.peek(start, min(CHUNK, end - start))):
            yield chunk
            start += len(chunk)

    def is_unchanged(self) -> bool:
        """Return whether the file is still as it was when it was opened. It may have lost its name."""
        now = self._look()
        return (now.st_size, now.st_mtime_ns) == (self.stat.st_size, self.stat.st_mtime_ns)

    # -- the lock

    def is_held(self) -> bool:
        """Return whether another handle holds the lock of the file. Asking takes a free lock for an instant."""
        with storage_failures(self.path, "look at the lock of the session"):
            if not self._fs.lock(self._fd):
                return True
            self._fs.unlock(self._fd)
        return False

    def hold(self, patience: float) -> None:
        """Hold the lock until the file is closed. Raise `LeafMoved` if the path no longer means this file."""
        acquire(self._fs, self._fd, self.path, patience)
        with storage_failures(self.path, "look at the file"):
            named = self._fs.lstat(self.path)
        self.stat = self._look()
        if (named.st_ino, named.st_dev) != (self.stat.st_ino, self.stat.st_dev):
            raise LeafMoved("another program has replaced the file", path=self.path, hint="try again")

    # -- replacing

    def replace(self, content: Iterable[bytes], keep: str) -> None:
        """Replace the content of the file, which must be held. The old file stays reachable as `keep`.

        The new file gets the modification time of the old one, because the conversation has not changed.
        """
        fs = self._fs
        opened: list[int] = []

        def check(temp: str) -> None:
            # The new file is locked before any other process can know it, so none writes before we are done.
            if self._look().st_size != self.size:
                raise LeafMoved(
                    "another program wrote into the session during the repair; nothing was changed",
                    path=self.path,
                    hint="try again",
                )
            fs.set_modified(opened[0], self.stat.st_mtime_ns)

        try:
            doing = "repair the session"
            atomic.replace(fs, self.path, content, keep_as=keep, before=check, held=opened, doing=doing)
            with storage_failures(self.path, "repair the session"):
                fs.close(opened.pop())
        except BaseException:
            for fd in opened:
                atomic.close_quietly(fs, fd)
            raise


def is_held(fs: Filesystem, path: str) -> bool:
    """Return whether any process holds the lock of a file, which must exist."""
    with RawFile(fs, path) as file:
        return file.is_held()


def digest_of(fs: Filesystem, path: str) -> str:
    """Return the SHA-256 of a file of any size."""
    digest = sha256()
    with RawFile(fs, path) as file:
        for chunk in file.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def is_kept(fs: Filesystem, path: str, kept: str) -> bool:
    """Return whether two names mean one file, or a file and a copy of it."""
    one, two = fs.lstat(path), fs.lstat(kept)
    if (one.st_ino, one.st_dev) == (two.st_ino, two.st_dev):
        return True
    comparable = stat.S_ISREG(one.st_mode) and stat.S_ISREG(two.st_mode) and one.st_size == two.st_size
    return comparable and digest_of(fs, path) == digest_of(fs, kept)


def references(fs: Filesystem, path: str) -> set[str]:
    """Return the hashes of all blobs that the bytes of a file refer to."""
    found: set[str] = set()
    rest = b""
    with RawFile(fs, path) as file:
        for chunk in file.chunks():
            data = rest + chunk
            found.update(match.decode() for match in _REFERENCE.findall(data))
            rest = data[-_OVERLAP:]
    return found


# -- below a folder


def journals(fs: Filesystem, sessions: str) -> Iterator[tuple[str, bool]]:
    """Yield every session file and draft in the project folders of a store, and whether its folder is a link."""
    for project in _names(fs, sessions):
        folder = f"{sessions}/{project}"
        names = _names(fs, folder)
        with storage_failures(folder, "list the sessions"):
            try:
                linked = not stat.S_ISDIR(fs.lstat(folder).st_mode)
            except _GONE:
                continue
        for name in session_files(names):
            yield f"{folder}/{name}", linked


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "list the sessions"):
        try:
            return fs.names(folder)
        except _GONE:
            return []


def below(fs: Filesystem, top: str) -> Iterator[tuple[str, Stat]]:
    """Yield a path and, if it is a folder, everything in it, each folder before its content."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        with storage_failures(path, "look at a file"):
            try:
                status = fs.lstat(path)
                names = fs.names(path) if stat.S_ISDIR(status.st_mode) else []
            except _GONE:
                continue
        yield path, status
        waiting.extend(posixpath.join(path, name) for name in reversed(names))


def files_below(fs: Filesystem, top: str) -> Iterator[tuple[str, Stat]]:
    """Yield the regular files of `below`."""
    return ((path, status) for path, status in below(fs, top) if stat.S_ISREG(status.st_mode))


def bytes_below(fs: Filesystem, top: str) -> int:
    """Return the total size of the regular files of `below`."""
    return sum(status.st_size for _, status in files_below(fs, top))


# -- copies


class Copied(NamedTuple):
    """What copying a file did."""

    written: bool
    size: int
    aside: str | None = None  # where the earlier copy is, if the new one does not start with its bytes


class _Changed(Exception):
    """The original has changed while it was copied."""


def copy_file(fs: Filesystem, source: str, target: str) -> Copied:
    """Make `target`, in an existing folder, an exact copy of `source`.

    A copy with the size and modification time of its original is left alone. An original that changes during the copy is
    read again, a few times.
    """
    for _ in range(_TRIES):
        with RawFile(fs, source) as original:
            copied = _copy(fs, original, target)
        if copied is not None:
            return copied
    raise SessionBusy(
        "another program is writing the file; it was not copied", path=source, hint="try again in a moment"
    )


def _copy(fs: Filesystem, original: RawFile, target: str) -> Copied | None:
    """Copy an open file; `None` if it changed during the copy, and nothing was done."""
    aside = None
    if atomic.exists(fs, target):
        with RawFile(fs, target) as old:
            if (old.size, old.stat.st_mtime_ns) == (original.size, original.stat.st_mtime_ns):
                return _up_to_date(fs, target, original.size)
            if not _starts_with(original, old):
                aside = f"{target}.{digest_of(fs, target)[:_DIGITS]}.old"
                if not _write(fs, old, aside):
                    return None
            elif old.size == original.size:
                atomic.set_modified(fs, target, original.stat.st_mtime_ns)
                return _up_to_date(fs, target, original.size)
    return Copied(True, original.size, aside) if _write(fs, original, target) else None


def _up_to_date(fs: Filesystem, target: str, size: int) -> Copied:
    """Write nothing, but sync the name: the process that wrote the copy may have died before it was durable."""
    with storage_failures(target, "make the name of a copy durable"):
        fs.sync_directory(posixpath.dirname(target))
    return Copied(False, size)


def _starts_with(file: RawFile, start: RawFile) -> bool:
    """Return whether a file starts with all bytes of another."""
    if start.size > file.size:
        return False
    return all(mine == its for mine, its in zip_longest(file.chunks(0, start.size), start.chunks()))


def _write(fs: Filesystem, file: RawFile, target: str) -> bool:
    """Put a copy of an open file in place. Return `False`, and change nothing, if the file changed during the copy."""

    def check(temp: str) -> None:
        if fs.lstat(temp).st_size != file.size or not file.is_unchanged():
            raise _Changed
        atomic.set_modified(fs, temp, file.stat.st_mtime_ns)

    try:
        atomic.replace(fs, target, file.chunks(), before=check, doing="copy the file")
    except _Changed:
        return False
    return True
