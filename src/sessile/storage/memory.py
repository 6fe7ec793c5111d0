"""A file system in memory, for in-memory sessions and most tests.

Rules: it answers as Linux does, with the same error numbers, wherever `Filesystem` shows the difference. Numbers of descriptors
and inodes are never reused, so that a stale one is noticed. Time is a counter unless a clock is given, so that a run can be
repeated exactly. One lock guards everything: any thread may call any method.

Symbolic links, permissions and relative paths are not supported. Power cuts are simulated in `faults.crashing`, which
overrides the four methods that change anything.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


@dataclass(eq=False, slots=True)
class FileNode:
    """The content of a file, which may have several names."""

    number: int
    modified: int
    content: bytearray = field(default_factory=bytearray)
    links: int = 0
    changed: int = 0


@dataclass(eq=False, slots=True)
class FolderNode:
    """The names in a folder."""

    number: int
    modified: int
    names: dict[str, Node] = field(default_factory=dict)
    parent: FolderNode | None = None
    links: int = 0
    changed: int = 0


Node = FileNode | FolderNode


class Binding(NamedTuple):
    """A change: `name` in `folder` now means `node`, or nothing."""

    folder: FolderNode
    name: str
    node: Node | None


class MemoryStat(NamedTuple):
    """The result of `lstat` and `fstat`."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int


@dataclass(eq=False, slots=True)
class _OpenFile:
    """One open file description, which locks belong to."""

    node: Node
    readable: bool
    writable: bool
    appends: bool
    position: int = 0


class MemoryFilesystem:
    """Files that exist as long as this object. `clock` returns modification times in nanoseconds."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._guard = threading.RLock()
        self._clock = clock or count(1).__next__
        self._numbers = count(1)
        self._descriptors = count(3)
        self._open: dict[int, _OpenFile] = {}
        self._locks: dict[Node, _OpenFile] = {}
        self._root = FolderNode(next(self._numbers), self._clock(), links=1)
        self._user = os.getuid()

    # -- files

    def open(self, path: str, flags: int) -> int:
        with self._guard:
            if flags & os.O_CREAT and flags & os.O_DIRECTORY:
                raise _failure(errno.EINVAL, path)
            folder, name, node = self._locate(path)
            if node is None:
                if not flags & os.O_CREAT:
                    raise _failure(errno.ENOENT, path)
                node = FileNode(next(self._numbers), self._clock())
                self._rebind(Binding(folder, name, node))
            elif flags & os.O_CREAT and flags & os.O_EXCL:
                raise _failure(errno.EEXIST, path)
            elif isinstance(node, FolderNode):
                if flags & (os.O_CREAT | os.O_TRUNC | _ACCESS):
                    raise _failure(errno.EISDIR, path)
            elif flags & os.O_DIRECTORY:
                raise _failure(errno.ENOTDIR, path)
            elif flags & os.O_TRUNC:
                self._resize(node, 0)
            access = flags & _ACCESS
            fd = next(self._descriptors)
            self._open[fd] = _OpenFile(
                node, access != os.O_WRONLY, access != os.O_RDONLY, appends=bool(flags & os.O_APPEND)
            )
            return fd

    def temporary(self) -> int:
        with self._guard:
            fd = next(self._descriptors)
            node = FileNode(next(self._numbers), self._clock())
            self._open[fd] = _OpenFile(node, True, True, appends=False)
            return fd

    def close(self, fd: int) -> None:
        with self._guard:
            self._release(self._opened(fd))
            del self._open[fd]

    def read(self, fd: int, size: int, offset: int) -> bytes:
        with self._guard:
            opened = self._opened(fd)
            if not opened.readable:
                raise _failure(errno.EBADF)
            if isinstance(opened.node, FolderNode):
                raise _failure(errno.EISDIR)
            if offset < 0:
                raise _failure(errno.EINVAL)
            return bytes(memoryview(opened.node.content)[offset : offset + size])

    def write(self, fd: int, data: bytes) -> int:
        with self._guard:
            opened = self._opened(fd)
            node = opened.node
            if not opened.writable or isinstance(node, FolderNode):
                raise _failure(errno.EBADF)
            if data:
                offset = len(node.content) if opened.appends else opened.position
                self._store(node, offset, data)
                opened.position = offset + len(data)
            return len(data)

    def truncate(self, fd: int, size: int) -> None:
        with self._guard:
            opened = self._opened(fd)
            if size < 0 or not opened.writable or isinstance(opened.node, FolderNode):
                raise _failure(errno.EINVAL)
            self._resize(opened.node, size)

    def sync(self, fd: int) -> None:
        with self._guard:
            self._settle(self._opened(fd).node)

    def lock(self, fd: int) -> bool:
        with self._guard:
            opened = self._opened(fd)
            return self._locks.setdefault(opened.node, opened) is opened

    def unlock(self, fd: int) -> None:
        with self._guard:
            self._release(self._opened(fd))

    def lock_holder(self, fd: int) -> int | None:
        with self._guard:
            return os.getpid() if self._opened(fd).node in self._locks else None

    def fstat(self, fd: int) -> MemoryStat:
        with self._guard:
            return self._stat(self._opened(fd).node)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        with self._guard:
            node = self._opened(fd).node
            node.modified, node.changed = nanoseconds, self._clock()

    # -- names

    def lstat(self, path: str) -> MemoryStat:
        with self._guard:
            return self._stat(self._existing(path)[2])

    def names(self, path: str) -> list[str]:
        with self._guard:
            return sorted(self._folder(path).names)

    def mkdir(self, path: str) -> None:
        with self._guard:
            folder, name, node = self._locate(path)
            if node is not None:
                raise _failure(errno.EEXIST, path)
            self._rebind(Binding(folder, name, FolderNode(next(self._numbers), self._clock())))

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            old_folder, old_name, node = self._locate(source)
            new_folder, new_name, replaced = self._locate(target)
            if node is None:
                raise _failure(errno.ENOENT, source, target)
            if self._root in (node, replaced):
                raise _failure(errno.EBUSY, source, target)
            if node in _upwards(new_folder):
                raise _failure(errno.EINVAL, source, target)
            if replaced is not None and replaced in _upwards(old_folder):
                raise _failure(errno.ENOTEMPTY, source, target)
            if replaced is node:
                return  # two names of one file: both stay, as POSIX requires
            if isinstance(replaced, FolderNode):
                if isinstance(node, FileNode):
                    raise _failure(errno.EISDIR, source, target)
                if replaced.names:
                    raise _failure(errno.ENOTEMPTY, source, target)
            elif replaced is not None and isinstance(node, FolderNode):
                raise _failure(errno.ENOTDIR, source, target)
            self._rebind(Binding(old_folder, old_name, None), Binding(new_folder, new_name, node))

    def link(self, source: str, target: str) -> None:
        with self._guard:
            node = self._existing(source)[2]
            folder, name, taken = self._locate(target)
            if taken is not None:
                raise _failure(errno.EEXIST, source, target)
            if isinstance(node, FolderNode):
                raise _failure(errno.EPERM, source, target)
            self._rebind(Binding(folder, name, node))

    def unlink(self, path: str) -> None:
        with self._guard:
            folder, name, node = self._existing(path)
            if isinstance(node, FolderNode):
                raise _failure(errno.EISDIR, path)
            self._rebind(Binding(folder, name, None))

    def rmdir(self, path: str) -> None:
        with self._guard:
            folder, name, node = self._existing(path)
            if node is self._root:
                raise _failure(errno.EBUSY, path)
            if isinstance(node, FileNode):
                raise _failure(errno.ENOTDIR, path)
            if node.names:
                raise _failure(errno.ENOTEMPTY, path)
            self._rebind(Binding(folder, name, None))

    def sync_directory(self, path: str) -> None:
        with self._guard:
            self._settle(self._folder(path))

    # -- the four methods that change anything; the guard is held

    def _store(self, file: FileNode, offset: int, data: bytes) -> None:
        overlay(file.content, offset, data)
        file.modified = file.changed = self._clock()

    def _resize(self, file: FileNode, size: int) -> None:
        resize(file.content, size)
        file.modified = file.changed = self._clock()

    def _rebind(self, *bindings: Binding) -> None:
        """Change one or several names, atomically."""
        now = self._clock()
        for folder, name, node in bindings:
            old = folder.names.pop(name, None)
            if old is not None:
                old.links -= 1
                old.changed = now
            if node is not None:
                folder.names[name] = node
                node.links += 1
                node.changed = now
                if isinstance(node, FolderNode):
                    node.parent = folder
            folder.modified = folder.changed = now

    def _settle(self, node: Node) -> None:
        """Make `node` durable: nothing to do in memory."""

    # -- lookups; the guard is held

    def _opened(self, fd: int) -> _OpenFile:
        try:
            return self._open[fd]
        except KeyError:
            raise _failure(errno.EBADF) from None

    def _locate(self, path: str) -> tuple[FolderNode, str, Node | None]:
        """Return the folder and name that `path` means, and what is there now."""
        *above, name = path.rstrip("/").split("/")
        if not path.startswith("/") or name in (".", ".."):
            raise _failure(errno.EINVAL, path)
        folder = self._root
        for part in above:
            if part:
                node = folder.names.get(part)
                if node is None:
                    raise _failure(errno.ENOENT, path)
                if isinstance(node, FileNode):
                    raise _failure(errno.ENOTDIR, path)
                folder = node
        return folder, name, folder.names.get(name) if name else self._root

    def _existing(self, path: str) -> tuple[FolderNode, str, Node]:
        folder, name, node = self._locate(path)
        if node is None:
            raise _failure(errno.ENOENT, path)
        return folder, name, node

    def _folder(self, path: str) -> FolderNode:
        node = self._existing(path)[2]
        if isinstance(node, FileNode):
            raise _failure(errno.ENOTDIR, path)
        return node

    def _release(self, opened: _OpenFile) -> None:
        if self._locks.get(opened.node) is opened:
            del self._locks[opened.node]

    def _stat(self, node: Node) -> MemoryStat:
        mode, size = (
            (stat.S_IFREG | 0o600, len(node.content)) if isinstance(node, FileNode) else (stat.S_IFDIR | 0o700, 0)
        )
        # The device number distinguishes this object from all others that exist.
        return MemoryStat(mode, node.number, id(self), node.links, self._user, size, node.modified, node.changed)


def overlay(content: bytearray, offset: int, data: bytes) -> None:
    """Write `data` at `offset`, filling a gap before it with zeros."""
    if offset > len(content):
        resize(content, offset)
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Truncate, or extend with zeros, to `size`."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _upwards(folder: FolderNode) -> list[Node]:
    """Return a folder and all folders above it."""
    chain: list[Node] = [folder]
    while folder.parent is not None:
        folder = folder.parent
        chain.append(folder)
    return chain


def _failure(code: int, path: str | None = None, target: str | None = None) -> OSError:
    return OSError(code, os.strerror(code), path, None, target)
