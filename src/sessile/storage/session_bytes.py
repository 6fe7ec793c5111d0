"""A session file as bytes, whether it is a session or not: read from end to end, and replaced under its lock.

For checks and repairs, which must not stumble over what they look for: nothing here needs a header or an index. Reading
changes nothing. A replaced file is the old one or the new one, whole; the old one stays reachable under another name.

Byte-exact copies of files that others write: each is its original as it was at one moment, with its time of modification.

Rules:

- The original is only read. A copy appears whole or not at all, under a name of its own until it is durable.
- A copy that has the size and the time of its original is that original, and nothing is written.
- No byte of a copy is ever lost: it is replaced by an original that begins with it, and else put aside first, under a name
  made of what it holds, which does not end in `.jsonl`: no listing shows it.
- An original that somebody changes while it is read is read again; one that does not come to rest is told. One that is
  deleted meanwhile is copied all the same.

It does not know what the files hold, nor which belong together.

What lies below a folder: session files, files of any kind and their sizes, their hashes, and the blobs that they name.

Below a folder symbolic links are told but never followed; a project folder may be one, and that is told too. What vanishes
while one looks is not there. Nothing here changes anything.
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
from sessile.errors import LeafMoved, SessileError, SessionBusy, UnsafePath, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.layout import DRAFT, session_files
from sessile.storage.locks import acquire

# --- raw file

CHUNK = 1 << 20


class RawFile:
    """One plain file, open for reading; its size is that of the moment when it was opened or held."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._fd = -1
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
        """Free the descriptor, and with it the lock."""
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
            raise UnsafePath("this is not a plain file", path=self.path)
        return status

    def peek(self, offset: int, length: int) -> bytes:
        """A few bytes."""
        with storage_failures(self.path, "read the file"):
            return self._fs.read(self._fd, length, offset)

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes between two places, or all of them, in pieces."""
        end = self.size if end is None else end
        while start < end and (chunk := self.peek(start, min(CHUNK, end - start))):
            yield chunk
            start += len(chunk)

    def is_unchanged(self) -> bool:
        """Whether the file is still what it was when it was opened; one that lost its name meanwhile is."""
        now = self._look()
        return (now.st_size, now.st_mtime_ns) == (self.stat.st_size, self.stat.st_mtime_ns)

    # -- the lock

    def is_held(self) -> bool:
        """Whether another handle holds the lock of the file. Asking takes it for a moment."""
        with storage_failures(self.path, "look whether the session is open"):
            if not self._fs.lock(self._fd):
                return True
            self._fs.unlock(self._fd)
        return False

    def hold(self, patience: float) -> None:
        """Keep the lock until the file is closed; the path must still mean this file."""
        acquire(self._fs, self._fd, self.path, patience)
        with storage_failures(self.path, "look at the file"):
            named = self._fs.lstat(self.path)
        self.stat = self._look()
        if (named.st_ino, named.st_dev) != (self.stat.st_ino, self.stat.st_dev):
            raise LeafMoved("another program has replaced the file", path=self.path, hint="try again")

    # -- replacing

    def replace(self, content: Iterable[bytes], keep: str) -> None:
        """Put this content in place of the file, which must be held; as it was it stays under the name `keep`.

        The new file has the time of modification of the old one: nobody has said anything in it since.
        """
        fs = self._fs
        temp = atomic.temp_beside(self.path)
        temporary = [temp]
        opened: list[int] = []
        try:
            atomic.write_new(fs, temp, content)
            opened.append(fs.open(temp, os.O_RDWR))
            fs.lock(opened[0])  # before anybody can know the file, so that nobody writes before we are done
            if self._look().st_size != self.size:
                raise LeafMoved(
                    "another program wrote into the session during the repair; nothing was changed",
                    path=self.path,
                    hint="try again",
                )
            fs.set_modified(opened[0], self.stat.st_mtime_ns)
            atomic.keep(fs, self.path, keep)
            temporary.append(keep)
            fs.rename(temp, self.path)
            temporary.clear()
            fs.sync_directory(posixpath.dirname(self.path))
            fs.close(opened.pop())
        except BaseException as error:
            for name in temporary:
                atomic.remove(fs, name)
            for fd in opened:
                _close(fs, fd)
            if isinstance(error, OSError) and not isinstance(error, SessileError):
                raise storage_failure(error, self.path, "repair the session") from error
            raise


def _close(fs: Filesystem, fd: int) -> None:
    """Free a descriptor on the way out: what went wrong before counts more."""
    try:
        fs.close(fd)
    except OSError:
        pass


def is_held(fs: Filesystem, path: str) -> bool:
    """Whether somebody holds the lock of a file."""
    with RawFile(fs, path) as file:
        return file.is_held()


# --- survey

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


# --- copying

_TRIES = 3
_DIGITS = 16  # of the hash in the name of what is put aside


class Copied(NamedTuple):
    """What copying a file did."""

    written: bool
    size: int
    aside: str | None = None  # where the bytes are that the copy had, if the new ones do not begin with them


def copy_file(fs: Filesystem, source: str, target: str) -> Copied:
    """Make `target`, in a folder that exists, the copy of `source`."""
    for _ in range(_TRIES):
        with RawFile(fs, source) as original:
            copied = _copy(fs, original, target)
        if copied is not None:
            return copied
    raise SessionBusy("somebody is writing the file; it was not copied", path=source, hint="try again in a moment")


def _copy(fs: Filesystem, original: RawFile, target: str) -> Copied | None:
    """Copy an open file; `None` if it changed meanwhile, and nothing was done."""
    aside = None
    if atomic.exists(fs, target):
        with RawFile(fs, target) as old:
            if (old.size, old.stat.st_mtime_ns) == (original.size, original.stat.st_mtime_ns):
                return _settled(fs, target, original.size)
            if not _begins_with(original, old):
                aside = f"{target}.{digest_of(fs, target)[:_DIGITS]}.old"
                if not _write(fs, old, aside):
                    return None
            elif old.size == original.size:
                atomic.set_modified(fs, target, original.stat.st_mtime_ns)
                return _settled(fs, target, original.size)
    return Copied(True, original.size, aside) if _write(fs, original, target) else None


def _settled(fs: Filesystem, target: str, size: int) -> Copied:
    """Nothing is to be written; but whoever wrote the copy may have died before its name was durable."""
    with storage_failures(target, "make the name of a copy durable"):
        fs.sync_directory(posixpath.dirname(target))
    return Copied(False, size)


def _begins_with(file: RawFile, start: RawFile) -> bool:
    """Whether the first bytes of a file are all those of another."""
    if start.size > file.size:
        return False
    return all(mine == its for mine, its in zip_longest(file.chunks(0, start.size), start.chunks()))


def _write(fs: Filesystem, file: RawFile, target: str) -> bool:
    """Put a copy of an open file in place, if the file is at the end what it was at the beginning; says whether it was."""
    temp = atomic.temp_beside(target)
    with storage_failures(target, "copy a file"):
        atomic.write_new(fs, temp, file.chunks())
        try:
            if fs.lstat(temp).st_size != file.size or not file.is_unchanged():
                atomic.remove(fs, temp)
                return False
            atomic.set_modified(fs, temp, file.stat.st_mtime_ns)
            fs.rename(temp, target)
        except BaseException:
            atomic.remove(fs, temp)
            raise
        fs.sync_directory(posixpath.dirname(target))
    return True
