"""Files that appear whole or not at all, and folders that stay.

A replaced file is the old one or the new one, whole, whatever happens: temp → sync → rename → sync of the folder. Temps
never end in `.jsonl`, because the family lists every such name.

A set of names in a small file of ours, such as the sessions that somebody pinned: read whole, replaced whole, under a lock.

The file is a JSON array that people may edit. One that cannot be read is reported and never overwritten.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from sessile.errors import Damaged, SessileError, UnsafePath, storage_failure, storage_failures
from sessile.storage.base import Filesystem
from sessile.storage.locks import acquire, locked

# --- atomic

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
_PATIENCE = 10.0
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP)  # another device, or one without links
_OUR_DEPTH = 3  # <root>/sessions/<project>


def exists(fs: Filesystem, path: str) -> bool:
    """Whether there is anything of that name; nothing has one with a NUL in it."""
    if "\0" in path:
        return False
    try:
        fs.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_failure(error, path, "look at a file") from error
    return True


def is_folder(fs: Filesystem, path: str) -> bool:
    """Whether a name is a folder itself, not a link to one."""
    return stat.S_ISDIR(fs.lstat(path).st_mode)


def is_plain(fs: Filesystem, path: str) -> bool:
    """Whether a name is an ordinary file itself."""
    return stat.S_ISREG(fs.lstat(path).st_mode)


def make_folders(fs: Filesystem, path: str, known: set[str] | None = None, *, below_links: bool = False) -> None:
    """Make a folder and its parents, durably. In foreign stores a folder above may be a link: then `below_links`.

    With `known`, names that were there before are made durable too, because their maker may have died before its sync;
    folders of which that was done are remembered in it.
    """
    if known is not None and path in known and exists(fs, path):
        return
    target = path
    missing = []
    while not exists(fs, path):
        missing.append(path)
        path = posixpath.dirname(path)
    try:
        if missing and not below_links and not stat.S_ISDIR(fs.lstat(path).st_mode):
            raise UnsafePath("a folder is needed where a file or a link is", path=path)
        for folder in reversed(missing):
            try:
                fs.mkdir(folder)
            except FileExistsError:
                pass  # another process was faster, but may not have made the name durable yet
            fs.sync_directory(posixpath.dirname(folder))
        if known is not None:
            _settle(fs, path)
            known.add(target)
    except OSError as error:
        if isinstance(error, UnsafePath):
            raise
        raise storage_failure(error, path, "make a folder") from error


def _settle(fs: Filesystem, path: str) -> None:
    """Make durable the name of a folder, and those of the folders above it that may be ours."""
    for _ in range(_OUR_DEPTH):
        path = posixpath.dirname(path)
        try:
            fs.sync_directory(path)
        except PermissionError:
            return  # a folder that we cannot read is above our root


def write_all(fs: Filesystem, fd: int, data: bytes) -> None:
    """Write all of `data`, going on after short writes."""
    view = memoryview(data)
    while view:
        written = fs.write(fd, bytes(view) if len(view) < len(data) else data)
        if not written:
            raise OSError(errno.EIO, "the storage takes nothing and does not say why")
        view = view[written:]


def write_new(fs: Filesystem, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    """Create a file with this content; it must not exist. A failed one is removed."""
    fd = fs.open(path, _NEW)
    try:
        try:
            for chunk in chunks:
                write_all(fs, fd, chunk)
            if durable:
                fs.sync(fd)
        finally:
            fs.close(fd)
    except BaseException:
        remove(fs, path)
        raise


def remove(fs: Filesystem, path: str) -> None:
    """Remove a temporary file if that can be done: what went wrong before counts more."""
    try:
        fs.unlink(path)
    except OSError:
        pass


def keep(fs: Filesystem, path: str, name: str) -> None:
    """Keep a file under a second name, durably: as a link, or as a copy where no link can reach."""
    make_folders(fs, posixpath.dirname(name))
    link_or_copy(fs, path, name)
    try:
        fs.sync_directory(posixpath.dirname(name))
    except OSError:
        remove(fs, name)
        raise


def link_or_copy(fs: Filesystem, path: str, name: str) -> None:
    """Give a file a second name in a folder that the caller syncs: as a link, or as a copy where no link can reach."""
    try:
        fs.link(path, name)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        write_new(fs, name, (read_all(fs, path),))


def temp_beside(path: str) -> str:
    """A name for a temporary file in the same folder."""
    return f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.{os.urandom(6).hex()}.tmp"


def replace(fs: Filesystem, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    """Put a file with this content in place of whatever has the name."""
    temp = temp_beside(path)
    try:
        write_new(fs, temp, chunks, durable=durable)
        try:
            fs.rename(temp, path)
        except OSError:
            remove(fs, temp)
            raise
        if durable:
            fs.sync_directory(posixpath.dirname(path))
    except SessileError:
        raise  # from whoever gives the content
    except OSError as error:
        raise storage_failure(error, path, "replace a file") from error


def fill_blank(fs: Filesystem, path: str, data: bytes) -> None:
    """Give a file that is missing or empty its first bytes, all at once, unless another process is faster."""
    with storage_failures(path, "begin a file"):
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            acquire(fs, fd, path, _PATIENCE)
            blank = fs.fstat(fd)
            # Whoever was faster has put another file in its place, and nobody fills the one that we have waited for.
            if blank.st_size == 0 and fs.lstat(path).st_ino == blank.st_ino:
                replace(fs, path, (data,))
        finally:
            fs.close(fd)


def read_all(fs: Filesystem, path: str) -> bytes:
    """The content of a file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        chunks = []
        offset = 0
        while chunk := fs.read(fd, 1 << 20, offset):
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)
    finally:
        fs.close(fd)


def set_modified(fs: Filesystem, path: str, nanoseconds: int) -> None:
    """Give a file another time of modification."""
    with storage_failures(path, "date the file"):
        fd = fs.open(path, os.O_RDONLY)
        try:
            fs.set_modified(fd, nanoseconds)
        finally:
            fs.close(fd)


# --- name set

_NAME_SET_PATIENCE = 5.0  # seconds


class NameSet:
    """The names in one file, in the order in which they were added."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def names(self) -> list[str]:
        """All names; none if there is no file."""
        with storage_failures(self._path, "read the list"):
            try:
                data = read_all(self._fs, self._path)
            except (FileNotFoundError, NotADirectoryError):
                return []
        try:
            return msgspec.json.decode(data, type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(
                f"the list is no JSON array of names: {error}",
                path=self._path,
                hint="mend it in an editor, or move it away to begin anew",
            ) from error

    def add(self, *new: str) -> bool:
        """Add some names; says whether one of them is new."""
        return self._change(lambda names: [*dict.fromkeys((*names, *new))])

    def remove(self, name: str) -> bool:
        """Take a name out; says whether it was there."""
        return self._change(lambda names: [known for known in names if known != name])

    def _change(self, change: Callable[[list[str]], list[str]]) -> bool:
        with self._locked():
            before = self.names()
            after = change(before)
            if after != before:
                encoded = msgspec.json.format(msgspec.json.encode(after), indent=1)
                replace(self._fs, self._path, (encoded + b"\n",))
            return after != before

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is a file of its own: the list itself is replaced."""
        make_folders(self._fs, posixpath.dirname(self._path))
        with locked(self._fs, f"{self._path}.lock", _NAME_SET_PATIENCE):
            yield
