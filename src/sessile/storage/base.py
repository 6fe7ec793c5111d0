"""The seams of the storage layer: what a file system, blobs and a journal must offer.

`Filesystem` is the one door to the disk. Its methods are as thin as system calls, so that a crash or a failing disk can
be simulated under everything else; they raise plain `OSError`. Paths are absolute strings.

`Blobs` is large content by its hash. `Journal` is what a session stands on, and `Journals` are those of a store. Nothing in
them is byte-shaped: positions are opaque, so that a database can be a journal too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sessile.core.kinds import State
from sessile.core.lines import Finding, Item

NATIVE = "native"  # the format of our own files
CHUNK = 1 << 20  # bytes of a file that are read at once


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

    def temporary(self) -> int:
        """Open a new file without a name for reading and writing; it goes when it is closed."""
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

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        """Give a file the time of modification of the one that it takes the place of."""
        ...

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


class Blob(NamedTuple):
    """A stored blob: its hash, where it lies, and how entries refer to it."""

    hash: str
    path: str
    ref: str


class Blobs(Protocol):
    """Large content by its hash. Whatever names no hash raises `InvalidId`."""

    @property
    def folder(self) -> str:
        """Where they lie, for messages."""
        ...

    def of_session(self, path: str) -> Blobs:
        """The blobs that the entries of a session file mean."""
        ...

    def path(self, digest: str) -> str:
        """Where a blob lies, or would."""
        ...

    def put(self, data: bytes) -> Blob:
        """Store bytes; they are durable when this returns. Storing them again changes nothing."""
        ...

    def put_pieces(self, pieces: Callable[[], Iterator[bytes]]) -> Blob:
        """Store bytes of any size: `pieces` gives them twice, once to name them and once to write them."""
        ...

    def pieces(self, digest: str, size: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a blob, piece by piece; whoever has them all can check them. Raises `NotFound`."""
        ...

    def get(self, digest: str) -> bytes | None:
        """The bytes of a blob; `None` if they are missing or are not what the hash says."""
        ...

    def has(self, digest: str) -> bool:
        """Whether something is stored under that hash."""
        ...


Position = Any
"""Where a line is; only the journal that gave it understands it."""


class Row(NamedTuple):
    """What a journal knows of an entry without reading its body."""

    id: str
    parent_id: str | None
    flags: int
    position: Position


class News(Protocol):
    """What other writers have appended since this journal last looked."""

    def rows(self) -> Sequence[Row]: ...

    def child_of(self, entry_id: str) -> bool:
        """Whether one of the new entries hangs from `entry_id`."""
        ...


Revise = Callable[[News], Sequence[bytes]]
"""Asked under the journal's lock, when others were faster, for the lines to write instead. May raise to write nothing."""


class Appended(NamedTuple):
    """What an append did: where each line lies, and the mark to `commit`."""

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
        """The line before the header in which oh-my-pi keeps the title, if there is one."""
        ...

    def last(self) -> Row | None:
        """The last entry of any kind."""
        ...

    def find(self, entry_id: str) -> Row | None:
        """The entry with that id; of duplicates the later."""
        ...

    def read(self, row: Row) -> bytes:
        """The exact bytes of an entry."""
        ...

    def read_many(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """The exact bytes of several entries, in that order."""
        ...

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Every entry in order, or those behind the first `start` of them."""
        ...

    def count(self) -> int:
        """How many entries there are, leaf markers left out."""
        ...

    def up(self, row: Row) -> Iterator[Row]:
        """From an entry to its root, child before parent. Ends at a missing parent and at a circle."""
        ...

    def state(self, row: Row) -> State:
        """What the path to an entry has set."""
        ...

    def labels(self) -> Mapping[str, str]:
        """The label of each entry that has one."""
        ...

    def title(self) -> Row | None:
        """The last entry that names the session."""
        ...

    def entry_before(self, offset: int) -> str | None:
        """The id of the last entry before the place of a finding."""
        ...

    def findings(self) -> Sequence[Finding]:
        """What is not as it should be."""
        ...

    def close(self) -> None: ...


class Journal(ReadableJournal, Protocol):
    """The lines of one session, append-only, shared by many writers."""

    @property
    def failed(self) -> bool:
        """Whether an error is latched: every append raises it until `reopen`."""
        ...

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        """Write lines at the end, all or none of them acknowledged."""
        ...

    def follow(self) -> Row | None:
        """The last entry of any kind; what others have appended up to there is no news for the next append."""
        ...

    def commit(self, mark: Any) -> None:
        """Return when everything up to the mark is durable."""
        ...

    def flush(self) -> None:
        """Make everything durable that was appended."""
        ...

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Put the result of `edit` in place of each line, at once; `None` keeps a line as it is.

        With `keep` the journal as it was stays reachable under that name.
        """
        ...

    def reopen(self) -> None:
        """Begin anew after a failure."""
        ...


class ReadableOwnJournal(ReadableJournal, Protocol):
    """The lines of a session of a store's own."""

    def items(self) -> Iterator[Item]:
        """Every line, header and slot among them, and everything that is none."""
        ...


@runtime_checkable
class OwnJournal(Journal, ReadableOwnJournal, Protocol):
    """A journal of a store's own, which also has a name there."""

    def rename(self, path: str) -> None:
        """Give the journal another name."""
        ...

    def hold(self) -> None:
        """Keep the journal locked until `release`, so that others see that its writer lives."""
        ...

    def release(self) -> None:
        """Let others write again."""
        ...


class Journals(Protocol):
    """All journals of a store, by their paths."""

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new journal with just these bytes, whole and durable, in pieces of any size; raises `SessionExists`."""
        ...

    def obtain(self, path: str, header: bytes) -> None:
        """A new journal with that header, unless there is one with lines already; of many who ask at once, one makes it."""
        ...

    def open(self, path: str, *, patience: float | None = None) -> OwnJournal:
        """The journal for writing; `patience` is how many seconds it waits for others, if not as long as the store does."""
        ...

    def read(self, path: str) -> ReadableOwnJournal:
        """The journal for reading only."""
        ...
