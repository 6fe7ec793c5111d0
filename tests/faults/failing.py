"""A file system that fails as planned, to test how the code above it reacts.

    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.EIO, at=2, on={"sync"})])

Rules:
- Every call is recorded in `calls` before it is made.
- A fault counts the calls of the methods in `on` (default: all methods) and strikes at call number `at`, counted from 1. With
  `forever` it also strikes at every later call. The faults of a plan count independently.
- `struck` lists the faults that struck, so a loop over `at` can end when nothing struck.
- After a `Kill` no call is passed on, not even from `finally` blocks: a dead process does not clean up.
- Methods in `without` do nothing and report success. A test that does not notice proves nothing.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from faults.crashing import CrashableFilesystem
from sessile.storage.base import Filesystem, Stat

METHODS = frozenset(name for name in vars(Filesystem) if not name.startswith("_"))
REMOVABLE = frozenset({"lock", "sync", "sync_directory"})


class Killed(BaseException):
    """The process was killed at this call."""


class Call(NamedTuple):
    """One call: the method and its path (the source, if there are two) or descriptor."""

    method: str
    subject: str | int


@dataclass(frozen=True)
class Fault:
    """Something that happens before call number `at` of the methods `on`. Subclasses define what."""

    at: int = field(default=1, kw_only=True)
    on: Collection[str] = field(default=METHODS, kw_only=True)

    def __post_init__(self) -> None:
        if self.at < 1 or not METHODS.issuperset(self.on):
            raise ValueError(f"fault never strikes: {self}")

    def due(self, since: int) -> bool:
        """Return whether the fault strikes at the call that is `since` calls after number `at`."""
        return since == 0

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        """Make the fault happen. Return the maximum number of bytes to write, or None for no limit."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fail(Fault):
    """The call raises the `OSError` number `code` and is not made, except `close`, which on Linux always is."""

    code: int
    forever: bool = field(default=False, kw_only=True)

    def due(self, since: int) -> bool:
        return since == 0 or self.forever

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        if call.method == "close" and isinstance(call.subject, int):
            filesystem.close(call.subject)
        raise OSError(self.code, os.strerror(self.code), call.subject if isinstance(call.subject, str) else None)


@dataclass(frozen=True)
class ShortWrite(Fail):
    """The disk is full: a write stores and reports its first `written` bytes, and the next one raises."""

    code: int = errno.ENOSPC
    written: int = field(kw_only=True)
    on: Collection[str] = field(default=frozenset({"write"}), init=False)

    def due(self, since: int) -> bool:
        return since <= 1 or self.forever

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        if since == 0 and self.written:
            return self.written
        return super().strike(filesystem, call, since)


@dataclass(frozen=True)
class DropUnsynced(Fail):
    """The sync raises and the data never reaches the disk, but the next sync succeeds ("fsyncgate").

    Requires a `CrashableFilesystem` as the inner file system; its next `crash` shows the loss.
    """

    code: int = errno.EIO
    on: Collection[str] = field(default=frozenset({"sync"}), init=False)

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        if not isinstance(filesystem, CrashableFilesystem):
            raise TypeError("DropUnsynced needs a CrashableFilesystem")
        if isinstance(call.subject, int):
            filesystem.drop_unsynced(call.subject)
        return super().strike(filesystem, call, since)


@dataclass(frozen=True)
class Kill(Fault):
    """The process dies before the call: this call and every later one raise `Killed`."""

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        raise Killed(call)


@dataclass(frozen=True)
class Meddle(Fault):
    """Run `action` before the call: another process replaces or removes a file between two of our steps."""

    action: Callable[[], object]

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        self.action()
        return None


class FaultyFilesystem:
    """Pass every call on to `inner`, except where `plan` or `without` say otherwise."""

    def __init__(self, inner: Filesystem, *, plan: Iterable[Fault] = (), without: Collection[str] = ()) -> None:
        if not REMOVABLE.issuperset(without):
            raise ValueError(f"only {sorted(REMOVABLE)} can be left out, not {sorted(without)}")
        self.inner = inner
        self.calls: list[Call] = []
        self.struck: list[Fault] = []
        self._without = frozenset(without)
        self._guard = threading.RLock()
        self._armed = [(fault, count(1)) for fault in plan]
        self._killed = False

    def heal(self) -> None:
        """Remove all faults that have not struck yet, as if space had been freed. A killed process stays dead."""
        with self._guard:
            self._armed.clear()

    def open(self, path: str, flags: int) -> int:
        self._before("open", path)
        return self.inner.open(path, flags)

    def temporary(self) -> int:
        self._before("temporary", "")
        return self.inner.temporary()

    def close(self, fd: int) -> None:
        self._before("close", fd)
        self.inner.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._before("read", fd)
        return self.inner.read(fd, size, offset)

    def write(self, fd: int, data: bytes) -> int:
        limit = self._before("write", fd)
        return self.inner.write(fd, data[:limit])

    def truncate(self, fd: int, size: int) -> None:
        self._before("truncate", fd)
        self.inner.truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._before("sync", fd)
        if "sync" not in self._without:
            self.inner.sync(fd)

    def lock(self, fd: int) -> bool:
        self._before("lock", fd)
        return "lock" in self._without or self.inner.lock(fd)

    def unlock(self, fd: int) -> None:
        self._before("unlock", fd)
        self.inner.unlock(fd)

    def lock_holder(self, fd: int) -> int | None:
        self._before("lock_holder", fd)
        return self.inner.lock_holder(fd)

    def fstat(self, fd: int) -> Stat:
        self._before("fstat", fd)
        return self.inner.fstat(fd)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        self._before("set_modified", fd)
        self.inner.set_modified(fd, nanoseconds)

    def lstat(self, path: str) -> Stat:
        self._before("lstat", path)
        return self.inner.lstat(path)

    def names(self, path: str) -> list[str]:
        self._before("names", path)
        return self.inner.names(path)

    def mkdir(self, path: str) -> None:
        self._before("mkdir", path)
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._before("rename", source)
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._before("link", source)
        self.inner.link(source, target)

    def unlink(self, path: str) -> None:
        self._before("unlink", path)
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self._before("rmdir", path)
        self.inner.rmdir(path)

    def sync_directory(self, path: str) -> None:
        self._before("sync_directory", path)
        if "sync_directory" not in self._without:
            self.inner.sync_directory(path)

    def _before(self, method: str, subject: str | int) -> int | None:
        """Count the call, trigger the faults that are due, and return the maximum number of bytes to write."""
        call = Call(method, subject)
        with self._guard:
            if self._killed:
                if method == "close":
                    return None  # from an object that is dropped: the process would be gone
                raise Killed(call)
            self.calls.append(call)
            due = [
                (fault, since)
                for fault, counter in self._armed
                if method in fault.on and (since := next(counter) - fault.at) >= 0 and fault.due(since)
            ]
        # Outside the guard, because a fault may use this file system.
        limits = [self._strike(fault, call, since) for fault, since in due]
        return min((limit for limit in limits if limit is not None), default=None)

    def _strike(self, fault: Fault, call: Call, since: int) -> int | None:
        self.struck.append(fault)
        try:
            return fault.strike(self.inner, call, since)
        except Killed:
            self._killed = True
            raise
