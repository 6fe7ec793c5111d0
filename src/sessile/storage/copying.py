"""Byte-exact copies of files that others write: each is its original as it was at one moment, with its time of modification.

Rules:

- The original is only read. A copy appears whole or not at all, under a name of its own until it is durable.
- A copy that has the size and the time of its original is that original, and nothing is written.
- No byte of a copy is ever lost: it is replaced by an original that begins with it, and else put aside first, under a name
  made of what it holds, which does not end in `.jsonl`: no listing shows it.
- An original that somebody changes while it is read is read again; one that does not come to rest is told. One that is
  deleted meanwhile is copied all the same.

It does not know what the files hold, nor which belong together.
"""

from __future__ import annotations

import posixpath
from itertools import zip_longest
from typing import NamedTuple

from sessile.errors import SessionBusy, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.raw_file import RawFile
from sessile.storage.survey import digest_of

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
