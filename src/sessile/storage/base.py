"""The protocols of the storage layer: file system, blobs and journals.

All disk access goes through `Filesystem`. Its methods are as thin as system calls, so that a crash or a failing disk can
be simulated under everything else; they raise plain `OSError`. Paths are absolute strings.

`Blobs` stores large content by its hash. A `Journal` holds the entries of one session, and `Journals` are all journals of
a store. Positions in a journal are opaque, so a database can be a journal too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sessile.core.kinds import State
from sessile.core.lines import Finding, Item
from sessile.errors import SessileError

NATIVE = "native"  # the format of our own files
CHUNK = 1 << 20  # bytes of a file that are read at once


class Stat(Protocol):
    """The part of `os.stat_result` that Sessile uses."""

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
    @property
    def st_ctime_ns(self) -> int: ...


Stamp = tuple[int, int, int, int, int]
"""What identifies one state of a file: inode, device, size, time of the last modification, time of the last change.

No program can set the time of the last change (ctime), so an edit that keeps the size and restores the modification time still
has another stamp. On a file system whose clock advances only every few milliseconds, a change right after the stamp was taken may
go unnoticed: `RowIndex.stamp` notes whether that is possible.
"""

stamp_of: Callable[[Stat], Stamp] = attrgetter("st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns")
"""Return the stamp of a file. Every append takes two of them."""


class Filesystem(Protocol):
    """Files, names and locks. Every method is one system call, or behaves like one."""

    def open(self, path: str, flags: int) -> int:
        """Open `path` with the `os.O_…` flags, never following a symbolic link; a created file has mode 0600."""
        ...

    def temporary(self) -> int:
        """Open a new file without a name for reading and writing; it is deleted when it is closed."""
        ...

    def close(self, fd: int) -> None: ...

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Return at most `size` bytes from `offset` (`pread`)."""
        ...

    def write(self, fd: int, data: bytes) -> int:
        """Write once, at the end if opened with `O_APPEND`. Return how much was written, which may be less than asked."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make the content and size of the file durable (`fdatasync`)."""
        ...

    def lock(self, fd: int) -> bool:
        """Try to take the exclusive lock of this open file (`flock`), without waiting. Return whether we have it."""
        ...

    def unlock(self, fd: int) -> None: ...

    def lock_holder(self, fd: int) -> int | None:
        """Return the process that holds the lock of this file, where the system shows it."""
        ...

    def fstat(self, fd: int) -> Stat: ...

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        """Set the modification time of a file."""
        ...

    def lstat(self, path: str) -> Stat:
        """Return the status of `path` itself; a symbolic link is not followed."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one folder with mode 0700."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, atomically replacing `target` if it exists."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; fails if `target` exists."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...


class Blob(NamedTuple):
    """A stored blob: its hash, its path, and how entries refer to it."""

    hash: str
    path: str
    ref: str


class Blobs(Protocol):
    """Large content by its hash. Anything that is not a hash raises `InvalidId`."""

    @property
    def folder(self) -> str:
        """The place of the blobs, for messages."""
        ...

    def of_session(self, path: str) -> Blobs:
        """Return the blobs that the entries of a session file refer to."""
        ...

    def path(self, digest: str) -> str:
        """Return the path of a blob, stored or not."""
        ...

    def put(self, data: bytes) -> Blob:
        """Store bytes durably. Storing them again changes nothing."""
        ...

    def put_pieces(self, pieces: Callable[[], Iterator[bytes]]) -> Blob:
        """Store bytes of any size. `pieces` is called twice: to compute the hash, and to write."""
        ...

    def pieces(self, digest: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes of a blob, unchecked. Raise `NotFound` if there is none."""
        ...

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of a blob; `None` if they are missing or do not match the hash."""
        ...

    def has(self, digest: str) -> bool:
        """Return whether something is stored under that hash."""
        ...

    def remove(self, digest: str) -> None:
        """Remove a blob for good, if there is one. Only erasing a session does that."""
        ...


Position = Any
"""Where a line is; only the journal that returned it understands it."""


class Row(NamedTuple):
    """What a journal knows about an entry without reading its body."""

    id: str
    parent_id: str | None
    flags: int
    position: Position


class News(Protocol):
    """What other writers have appended since this journal last looked."""

    def rows(self) -> Sequence[Row]: ...

    def child_of(self, entry_id: str) -> bool:
        """Return whether one of the new entries is a child of `entry_id`."""
        ...


Revise = Callable[[News], Sequence[bytes]]
"""Called under the journal's lock, if others appended first, to choose the lines to write. May raise to write nothing."""


class Appended(NamedTuple):
    """The position of each appended line, and the mark to `commit`."""

    positions: Sequence[Position]
    mark: Any


class ReadableJournal(Protocol):
    """The lines of one session."""

    @property
    def path(self) -> str:
        """The name of the journal, for messages and receipts."""
        ...

    def header(self) -> bytes:
        """The header line."""
        ...

    def slot(self) -> bytes | None:
        """The line before the header in which oh-my-pi stores the title, if there is one."""
        ...

    def last(self) -> Row | None:
        """The last entry of any kind."""
        ...

    def find(self, entry_id: str) -> Row | None:
        """Return the entry with that id; of duplicates the last."""
        ...

    def read(self, row: Row) -> bytes:
        """Return the exact bytes of an entry."""
        ...

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """Yield the exact bytes of several entries, in that order."""
        ...

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield every entry in order, after skipping the first `start`."""
        ...

    def count(self) -> int:
        """Return the number of entries, without leaf markers."""
        ...

    def up(self, row: Row) -> Iterator[Row]:
        """Yield an entry and its ancestors up to the root. Stop at a missing parent and at a cycle."""
        ...

    def state(self, row: Row) -> State:
        """Return the state of the path that ends at an entry."""
        ...

    def labels(self) -> Mapping[str, str]:
        """Return the label of each entry that has one."""
        ...

    def title(self) -> Row | None:
        """The last entry that names the session."""
        ...

    def entry_before(self, offset: int) -> str | None:
        """Return the id of the last entry before the offset of a finding."""
        ...

    def findings(self) -> Sequence[Finding]:
        """Return everything that is wrong in the journal."""
        ...

    def close(self) -> None: ...


class Journal(ReadableJournal, Protocol):
    """The lines of one session, append-only, shared by many writers."""

    @property
    def failure(self) -> SessileError | None:
        """The latched error, if a write failed: everything that writes or flushes raises it until `reopen`."""
        ...

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        """Append lines; either all of them are acknowledged or none."""
        ...

    def follow(self) -> Row | None:
        """Return the last entry of any kind. The next append does not report entries up to there as news."""
        ...

    def commit(self, mark: Any) -> None:
        """Return when everything up to the mark is durable."""
        ...

    def flush(self) -> None:
        """Make everything that was appended durable. Raise if an error is latched or the journal is closed."""
        ...

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Replace each line by the result of `edit`, atomically; `None` keeps a line as it is.

        With `keep` the old journal stays reachable under that name.
        """
        ...

    def reopen(self) -> None:
        """Start over after a failure."""
        ...


class ReadableOwnJournal(ReadableJournal, Protocol):
    """The lines of a native session."""

    def items(self) -> Iterator[Item]:
        """Yield every line, including header and title slot, and a finding for everything else."""
        ...


@runtime_checkable
class OwnJournal(Journal, ReadableOwnJournal, Protocol):
    """The journal of a native session, which can be renamed and held."""

    def rename(self, path: str) -> None:
        """Rename the journal."""
        ...

    def hold(self) -> None:
        """Keep the journal locked until `release`, so that others see that its writer is alive."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


class Journals(Protocol):
    """All journals of a store, by path."""

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create a journal with just these bytes, atomically and durably. Raise `SessionExists` if the path is in use."""
        ...

    def obtain(self, path: str, header: bytes) -> None:
        """Create a journal with that header, unless there is one with lines. Of many concurrent calls, one creates it."""
        ...

    def open(self, path: str, *, patience: float | None = None) -> OwnJournal:
        """Open the journal for writing. `patience`, in seconds, overrides how long it waits for other writers."""
        ...

    def read(self, path: str) -> ReadableOwnJournal:
        """Open the journal for reading."""
        ...
