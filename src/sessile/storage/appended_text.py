"""A text file of somebody else's to which we append: notes that a person reads, edits, and other programs write too.

Rules:
- Nothing that is there is changed. What is appended goes to the end in one write, and is durable when this returns.
- Writers of ours take turns by `flock` on the file itself, so that no lock lies about in a person's folder. Whoever waited looks
  again whether the file still has its name: an editor may have put another in its place.
- Whatever is appended is a function of what the file holds under the lock. Of nothing to append, what is there is made durable:
  it may be from somebody who died before it was.
- What could not be written whole, or was not confirmed, is cut off again, unless somebody else has appended behind it. A kill can
  leave a beginning of it only where the system does not write it at once.
- Neither the file nor its folder may be a symbolic link. A new file has mode 0600; others keep theirs.

It does not know what is appended.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable

from sessile.errors import SessionBusy, UnsafePath, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.lock import acquire

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_PATIENCE = 10.0  # seconds
_TRIES = 20  # a program that replaces the file during each of them is no person
_CHUNK = 1 << 20
_NO_LINKS = "symbolic links are not followed; put a folder and a plain file there"


def append_text(fs: Filesystem, path: str, addition: Callable[[bytes], bytes]) -> bool:
    """Append what `addition` makes of the content of a file, in a folder that exists; says whether that was anything."""
    with storage_failures(path, "append to a file"):
        for _ in range(_TRIES):
            _check_folder(fs, path)
            fd = fs.open(path, _FLAGS)
            try:
                acquire(fs, fd, path, _PATIENCE)
                _check_folder(fs, path)  # once more: a link that took its place before the file was opened is one
                if _is_named(fs, path, fd):
                    return _append(fs, path, fd, addition)
            finally:
                fs.close(fd)
    raise SessionBusy("another program replaces the file without pause", path=path, hint="end it, then try again")


def _check_folder(fs: Filesystem, path: str) -> None:
    folder = posixpath.dirname(path)
    if not atomic.is_folder(fs, folder):
        raise UnsafePath("a folder is needed where a file or a link is", path=folder, hint=_NO_LINKS)


def _is_named(fs: Filesystem, path: str, fd: int) -> bool:
    """Whether a name means the open file, which must be a plain one."""
    opened = fs.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
        raise UnsafePath("only a plain file can be appended to", path=path, hint=_NO_LINKS)
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _append(fs: Filesystem, path: str, fd: int, addition: Callable[[bytes], bytes]) -> bool:
    content = _content(fs, fd)
    new = addition(content)
    try:
        atomic.write_all(fs, fd, new)
        fs.sync(fd)
    except OSError:
        _take_back(fs, fd, len(content), len(new))
        raise
    fs.sync_directory(posixpath.dirname(path))
    return bool(new)


def _content(fs: Filesystem, fd: int) -> bytes:
    chunks = []
    size = 0
    while chunk := fs.read(fd, _CHUNK, size):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _take_back(fs: Filesystem, fd: int, size: int, most: int) -> None:
    """Cut off what was appended, if it is the end of the file; what went wrong before counts more."""
    try:
        if size < fs.fstat(fd).st_size <= size + most:
            fs.truncate(fd, size)
    except OSError:
        pass
