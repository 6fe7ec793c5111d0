"""Create and replace files atomically: a file has its old content or its new content, whole, whatever happens.

`replace` writes a temporary file beside the target, syncs it, renames it and syncs the folder. Every replacement in the
package goes through it, with hooks for callers that must lock, date or check something before the rename. Temporary
names never end in `.jsonl`, because agents of the pi family list every such name as a session.

A temporary file is locked until it has its final name. The kernel releases the lock when the writer dies, so a free lock
means a dead writer. The next writer in the folder removes such a file (`sweep`) if its bytes are elsewhere: in the file that
it was meant to replace, or if the folder is a cache. Otherwise it stays, and `sessile doctor` and `sessile du` name it.

`NameSet` is a list of names in one small JSON file, for example the pinned sessions.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

import msgspec

from sessile.errors import Damaged, SessileError, UnsafePath, storage_failure, storage_failures
from sessile.storage.base import CHUNK, Filesystem, Stat
from sessile.storage.locks import NO_LOCKS, acquire, locked

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
_PATIENCE = 10.0  # seconds to wait for the lock of a file that is being created
_LIST_PATIENCE = 5.0  # seconds to wait for the lock of a name list
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP)  # other device, or no hard links on this one
_OUR_DEPTH = 3  # <root>/sessions/<project>
_TEMP = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_MAX_SWEPT = 32  # temporary files that one writer looks at
_MAX_COMPARED = 64 << 20  # bytes of them that it reads, beside as many as it has written
_JOURNAL, _DRAFT, _LOCK = ".jsonl", ".draft", ".lock"
_HEADERS = (b'{"type":"session"', b'{"type":"title"')
_ENTRY = re.compile(rb'\{"type":"[^"\\]*","id":("[^"\\]*")')  # base members come first
_START = b'{"type":"'
_BEFORE_CONTENT = 64  # bytes of an incomplete line that cannot reach beyond its id


# -- replacing


def replace(
    fs: Filesystem,
    path: str,
    chunks: Iterable[bytes],
    *,
    durable: bool = True,
    keep_as: str | None = None,
    before: Callable[[str], object] | None = None,
    after: Callable[[], object] | None = None,
    held: list[int] | None = None,
    sweeps: bool = True,
    cache: bool = False,
    doing: str = "replace the file",
) -> None:
    """Put a file with this content in place of whatever has the name.

    With `keep_as` the old file stays reachable under that name. `before` is called with the temporary name right before
    the rename; if it raises, everything stays as it was. `after` is called right after the rename. `held` receives the
    descriptor of the new file before `before` is called: it is locked and open for appending, and the caller closes it.
    Without `sweeps`, the folder is not searched for files that dead writers left; `cache` is whether all of those can
    be removed. `doing` describes the operation in error messages.
    """
    with storage_failures(path, doing):
        put_in_place(
            fs,
            path,
            chunks,
            durable=durable,
            keep_as=keep_as,
            before=before,
            after=after,
            held=held,
            sweeps=sweeps,
            cache=cache,
        )


def put_in_place(
    fs: Filesystem,
    path: str,
    chunks: Iterable[bytes],
    *,
    durable: bool = True,
    keep_as: str | None = None,
    before: Callable[[str], object] | None = None,
    after: Callable[[], object] | None = None,
    held: list[int] | None = None,
    sweeps: bool = True,
    cache: bool = False,
) -> None:
    """Do what `replace` does, but raise plain `OSError`."""
    temp, fd = new_beside(fs, path)
    made = [temp]
    written = 0
    try:
        try:
            for chunk in chunks:
                write_all(fs, fd, chunk)
                written += len(chunk)
            if durable:
                fs.sync(fd)
            if keep_as is not None:
                keep(fs, path, keep_as)
                made.append(keep_as)
            if held is not None:
                held.append(fd)
            if before is not None:
                before(temp)
            fs.rename(temp, path)
            if after is not None:
                after()
        finally:
            if held is None or fd not in held:
                fs.close(fd)
        if durable:
            fs.sync_directory(posixpath.dirname(path))
    except BaseException:
        # Ask the disk, not a flag: an interruption can come between the rename and the next line.
        if _may_exist(fs, temp):
            for name in made:
                remove(fs, name)
        raise
    if sweeps:
        sweep(fs, posixpath.dirname(path), cache=cache, compared=_MAX_COMPARED + written)


def new_beside(fs: Filesystem, path: str) -> tuple[str, int]:
    """Create a temporary file in the same folder; return its name and descriptor, which has its lock."""
    while True:
        temp = temp_beside(path)
        fd = fs.open(temp, _NEW)
        try:
            # A sweep may take the file for that of a dead writer before it is locked.
            if _locks(fs, fd) and fs.fstat(fd).st_nlink:
                return temp, fd
        except BaseException:
            close_quietly(fs, fd)
            remove(fs, temp)
            raise
        fs.close(fd)
        remove(fs, temp)


def _locks(fs: Filesystem, fd: int) -> bool:
    """Take a lock. Return `True` as well where there are none: then nothing is swept."""
    try:
        return fs.lock(fd)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return True


def temp_beside(path: str) -> str:
    """Return a new name for a temporary file in the same folder."""
    return f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.{os.urandom(6).hex()}.tmp"


def _may_exist(fs: Filesystem, path: str) -> bool:
    try:
        fs.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def prepared(fs: Filesystem, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> Iterator[str]:
    """Yield the name of a temporary file with this content beside `path`. It is removed unless the caller renames it."""
    temp, fd = new_beside(fs, path)
    try:
        for chunk in chunks:
            write_all(fs, fd, chunk)
        if durable:
            fs.sync(fd)
        yield temp
    finally:
        remove(fs, temp)
        fs.close(fd)


def write_new(fs: Filesystem, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    """Create a file with this content; fail if it exists. Remove it again if writing fails."""
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


def write_all(fs: Filesystem, fd: int, data: bytes) -> None:
    """Write all of `data`, continuing after short writes."""
    view = memoryview(data)
    while view:
        written = fs.write(fd, bytes(view) if len(view) < len(data) else data)
        if not written:
            raise OSError(errno.EIO, "the storage wrote nothing and reported no error")
        view = view[written:]


def fill_blank(fs: Filesystem, path: str, data: bytes) -> None:
    """Give a missing or empty file its first bytes, atomically, unless another process does it first."""
    with storage_failures(path, "create the file"):
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            acquire(fs, fd, path, _PATIENCE)
            blank = fs.fstat(fd)
            # A process that was faster has put another file in its place; the one that we locked stays empty.
            if blank.st_size == 0 and fs.lstat(path).st_ino == blank.st_ino:
                replace(fs, path, (data,))
        finally:
            fs.close(fd)


# -- what dead writers left


def target_of(name: str) -> str | None:
    """Return the name of the file that a temporary file was meant to replace; `None` if it is not a temporary name."""
    match = _TEMP.fullmatch(name)
    return None if match is None else match[1]


def sweep(
    fs: Filesystem,
    folder: str,
    names: Iterable[str] | None = None,
    *,
    cache: bool = False,
    compared: int = _MAX_COMPARED,
) -> None:
    """Remove temporary files of dead writers from a folder, if their bytes are elsewhere or the folder is a `cache`.

    At most `compared` bytes are read. Nothing is raised: whoever calls has other work to do.
    """
    with suppress(OSError, SessileError):
        ended = (name for name in (fs.names(folder) if names is None else names) if name.endswith(".tmp"))
        found = [name for name in ended if _TEMP.fullmatch(name)]
        for name in found[:_MAX_SWEPT]:
            with suppress(OSError, SessileError):
                compared -= _sweep_one(fs, f"{folder}/{name}", cache, compared)


def _sweep_one(fs: Filesystem, path: str, cache: bool, compared: int) -> int:
    """Remove a temporary file if nothing is lost with it. Return how many bytes were compared."""
    if not is_plain(fs, path):
        return 0
    fd = fs.open(path, os.O_RDONLY)
    try:
        size = 0 if cache else fs.fstat(fd).st_size
        # With the lock, nobody else writes the file or removes it.
        if size <= compared and fs.lock(fd) and (cache or is_spare(fs, path)):
            fs.unlink(path)
        return size
    finally:
        fs.close(fd)


def is_spare(fs: Filesystem, path: str) -> bool:
    """Return whether the bytes of a dead writer's temporary file are elsewhere, or it holds none that matter.

    That is so if the file that it was meant to replace starts with them. A journal has only to have the same entries: a
    rewrite that did not finish was never acknowledged. A header without entries holds nothing that anyone said.
    """
    folder, name = posixpath.split(path)
    target = target_of(name)
    if target is None:
        return False
    if not fs.lstat(path).st_size or target.endswith(_LOCK):
        return True
    names = [target]
    if target.endswith(_DRAFT):
        names.append(target.removesuffix(_DRAFT) + _JOURNAL)  # it may have been published since
    there = [f"{folder}/{name}" for name in names if exists(fs, f"{folder}/{name}")]
    journal = target.endswith((_JOURNAL, _DRAFT))
    if not there:
        with reading(fs, path) as fd:
            return journal and all(map(_says_nothing, lines(fs, fd)))
    return any(starts_with(fs, each, path) or (journal and _has_entries(fs, each, path)) for each in there)


def starts_with(fs: Filesystem, path: str, start: str) -> bool:
    """Return whether a file starts with all bytes of another."""
    with reading(fs, path) as whole, reading(fs, start) as beginning:
        offset = 0
        while piece := fs.read(beginning, CHUNK, offset):
            if fs.read(whole, len(piece), offset) != piece:
                return False
            offset += len(piece)
    return True


def _has_entries(fs: Filesystem, path: str, temp: str) -> bool:
    """Return whether a journal has all entries of a temporary file, in their order."""
    with reading(fs, path) as journal, reading(fs, temp) as left:
        theirs = lines(fs, journal)
        for line in lines(fs, left):
            if _says_nothing(line):
                continue
            entry, whole = _ENTRY.match(line), line.endswith(b"\n")
            for other in theirs:
                if other == line or (not whole and other.startswith(line)) or (entry and other.startswith(entry[0])):
                    break
            else:
                return False
    return True


def _says_nothing(line: bytes) -> bool:
    """Return whether a line is a header, or ends before its content."""
    if line.startswith(_HEADERS):
        return True
    return line[: len(_START)] == _START[: len(line)] and len(line) < _BEFORE_CONTENT and not line.endswith(b"\n")


@contextmanager
def reading(fs: Filesystem, path: str) -> Iterator[int]:
    """Open a file for reading."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        fs.close(fd)


def lines(fs: Filesystem, fd: int) -> Iterator[bytes]:
    """Yield the lines of an open file with their newlines."""
    rest: list[bytes] = []
    offset = 0
    while piece := fs.read(fd, CHUNK, offset):
        offset += len(piece)
        first, newline, after = piece.partition(b"\n")
        rest.append(first + newline)
        if newline:
            *whole, last = after.split(b"\n")
            yield from chain((b"".join(rest),), (line + b"\n" for line in whole))
            rest = [last] if last else []
    if rest:
        yield b"".join(rest)


# -- second names


def keep(fs: Filesystem, path: str, name: str) -> None:
    """Keep a file under a second name, durably: as a hard link, or as a copy where no link is possible."""
    make_folders(fs, posixpath.dirname(name))
    link_or_copy(fs, path, name)
    try:
        fs.sync_directory(posixpath.dirname(name))
    except OSError:
        remove(fs, name)
        raise


def link_or_copy(fs: Filesystem, path: str, name: str) -> None:
    """Give a file a second name, as a hard link or as a copy. The caller syncs the folder."""
    try:
        fs.link(path, name)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        write_new(fs, name, (read_all(fs, path),))


# -- small helpers


def exists(fs: Filesystem, path: str) -> bool:
    """Return whether anything has that name. No file has a name that contains NUL."""
    if "\0" in path:
        return False
    try:
        fs.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_failure(error, path, "look at a file") from error
    return True


def status_of(fs: Filesystem, path: str) -> Stat:
    """Return the status of the file that a session is in; for one inside of a database, of its log if that is newer."""
    try:
        return fs.lstat(path)
    except NotADirectoryError:
        holder = posixpath.dirname(path)
        status = status_of(fs, holder)
        if not stat.S_ISREG(status.st_mode):
            raise
        try:
            log = fs.lstat(f"{holder}-wal")
        except OSError:
            return status
        return max(status, log, key=lambda each: each.st_mtime_ns)


def is_there(fs: Filesystem, path: str) -> bool:
    """Return whether there is a file at a path, or a file that may have the session inside."""
    try:
        status_of(fs, path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise storage_failure(error, path, "look at a file") from error
    return True


def is_folder(fs: Filesystem, path: str) -> bool:
    """Return whether a name is a folder itself, not a link to one."""
    return stat.S_ISDIR(fs.lstat(path).st_mode)


def is_plain(fs: Filesystem, path: str) -> bool:
    """Return whether a name is a regular file itself, not a link to one."""
    return stat.S_ISREG(fs.lstat(path).st_mode)


@contextmanager
def folders_for(fs: Filesystem, path: str, known: set[str] | None = None) -> Iterator[None]:
    """Make a folder and its parents for something new. If the block raises, those that were missing and are empty go again."""
    made = make_folders(fs, path, known)
    try:
        yield
    except BaseException:
        if made and known is not None:
            known.discard(path)
        _unmake(fs, made)
        raise


def _unmake(fs: Filesystem, made: Sequence[str]) -> None:
    for folder in reversed(made):
        with suppress(OSError):  # gone already, or another process uses it
            fs.rmdir(folder)


def make_folders(
    fs: Filesystem, path: str, known: set[str] | None = None, *, below_links: bool = False
) -> Sequence[str]:
    """Make a folder and its parents, durably, and return those that were missing, outermost first.

    With `below_links`, for foreign stores, a parent may be a symbolic link. With `known`, names that existed before are made
    durable too, because the process that made them may have died before its sync. Folders for which that was done are added
    to the set and skipped next time.
    """
    if known is not None and path in known and exists(fs, path):
        return ()
    target = path
    missing = []
    while not exists(fs, path):
        missing.append(path)
        path = posixpath.dirname(path)
    with storage_failures(path, "make a folder"):
        if missing and not below_links and not stat.S_ISDIR(fs.lstat(path).st_mode):
            raise UnsafePath("cannot make a folder below this path: it is not a folder", path=path)
        made: list[str] = []
        try:
            for folder in reversed(missing):
                try:
                    fs.mkdir(folder)
                    made.append(folder)
                except FileExistsError:
                    pass  # another process was faster, but may not have made the name durable yet
                fs.sync_directory(posixpath.dirname(folder))
            if known is not None:
                _settle(fs, path)
                known.add(target)
        except BaseException:
            _unmake(fs, made)
            raise
    return made


def _settle(fs: Filesystem, path: str) -> None:
    """Make durable the name of a folder, and those of the folders above it that may be part of the store."""
    for _ in range(_OUR_DEPTH):
        path = posixpath.dirname(path)
        try:
            fs.sync_directory(path)
        except PermissionError:
            return  # a folder that we cannot read is above the root of the store


def read_all(fs: Filesystem, path: str) -> bytes:
    """Return the content of a file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        return read_open(fs, fd)
    finally:
        fs.close(fd)


def read_open(fs: Filesystem, fd: int) -> bytes:
    """Return the content of an open file."""
    chunks = []
    offset = 0
    while chunk := fs.read(fd, CHUNK, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def remove(fs: Filesystem, path: str) -> None:
    """Remove a temporary file. Errors are ignored: the one that led here matters more."""
    try:
        fs.unlink(path)
    except OSError:
        pass


def close_quietly(fs: Filesystem, fd: int) -> None:
    """Close a descriptor. Errors are ignored: the one that led here matters more."""
    try:
        fs.close(fd)
    except OSError:
        pass


class Descriptor:
    """Base class of objects that hold a descriptor `_fd` of the file system `_fs`; -1 is closed.

    One that is dropped without being closed releases its descriptor, and with it the lock, but writes nothing: the garbage
    collector can call this in any thread, at any time.
    """

    _fs: Filesystem
    _fd = -1

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_quietly(self._fs, fd)


def set_modified(fs: Filesystem, path: str, nanoseconds: int) -> None:
    """Set the modification time of a file."""
    with storage_failures(path, "set the modification time"):
        fd = fs.open(path, os.O_RDONLY)
        try:
            fs.set_modified(fd, nanoseconds)
        finally:
            fs.close(fd)


# -- lists of names


class NameSet:
    """The names in one file, in the order in which they were added.

    The file is a JSON array that users may edit. A file that cannot be read is reported and never overwritten.
    """

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def names(self) -> list[str]:
        """Return all names; none if there is no file."""
        with storage_failures(self._path, "read the list"):
            try:
                data = read_all(self._fs, self._path)
            except (FileNotFoundError, NotADirectoryError):
                return []
        try:
            return msgspec.json.decode(data, type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(
                f"the list is not a JSON array of names: {error}",
                path=self._path,
                hint="fix it in an editor, or move it away to start with an empty list",
            ) from error

    def add(self, *new: str) -> bool:
        """Add names. Return whether any of them is new."""
        return self._change(lambda names: [*dict.fromkeys((*names, *new))])

    def remove(self, name: str) -> bool:
        """Remove a name. Return whether it was there."""
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
        """Hold the lock, which is a separate file, because the list itself is replaced."""
        make_folders(self._fs, posixpath.dirname(self._path))
        with locked(self._fs, f"{self._path}.lock", _LIST_PATIENCE):
            yield
