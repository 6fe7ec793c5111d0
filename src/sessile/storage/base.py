"""The seams of the storage layer: what a file system and a journal must offer.

`Filesystem` is the one door to the disk. Its methods are as thin as system calls, so that a crash or a failing disk can
be simulated under everything else; they raise plain `OSError`. Paths are absolute strings.

`Journal` is what a session stands on. Nothing in it is byte-shaped: positions are opaque, so that a database can be a
journal too.
"""

from __future__ import annotations

from typing import Protocol


class Stat(Protocol):
    """The part of `os.stat_result` that Sessile looks at."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Filesystem(Protocol):
    """Files, names and locks. Every method is one system call or behaves like one."""

    def open(self, path: str, flags: int) -> int:
        """Open `path` with the `os.O_…` flags, never following a symbolic link; a created file has mode 0600."""
        ...

    def close(self, fd: int) -> None: ...

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset` (`pread`)."""
        ...

    def write(self, fd: int, data: bytes) -> int:
        """Write once, at the end if opened with `O_APPEND`; may write less than asked, says how much."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make the content and size of the file durable (`fdatasync`)."""
        ...

    def lock(self, fd: int) -> bool:
        """Try to take the exclusive lock of this open file (`flock`); never waits."""
        ...

    def unlock(self, fd: int) -> None: ...

    def lock_holder(self, fd: int) -> int | None:
        """The process that holds the lock of this file, where the system can tell."""
        ...

    def fstat(self, fd: int) -> Stat: ...

    def lstat(self, path: str) -> Stat:
        """What `path` itself is; a symbolic link is not followed."""
        ...

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one folder with mode 0700."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing `target` at once if it exists."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; fails if `target` exists."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...
