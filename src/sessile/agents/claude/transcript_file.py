"""One transcript file: append rows to it, remove a row, restore a removed row.

Appending:

- Each call is one write. Its rows are chosen under the file's lock, after reading what other processes appended, so two
  processes that record the same message write it once. What is known belongs to this file alone: a sidechain starts
  with copies of its parent's messages.
- The first user or assistant row creates the file. Rows before it wait in memory, so no file holds only metadata.
- The known state is dropped when another file has the same name, or when the file has become shorter.
- After a failed sync every later call raises the same error, because the content of the disk is unknown.

Removing (for attempts that a stream discards):

- The row is first saved durably in our own root, so it can always be restored.
- The last 64 KB are searched first. If the row is not there, the whole file is read, up to 50 MB; a larger file is
  refused and left unchanged.
- The last row of a file is cut off; any other is removed by atomically replacing the file. A crash leaves the file with
  or without the row, and with every other row.
- Rows are decoded before they are compared: a uuid in a text or in `parentUuid` is not a match.

The module knows nothing about rows except their uuids, and the types of which only the last row counts.
"""

from __future__ import annotations

import hashlib
import posixpath
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.agents.claude.listing import WINDOW
from sessile.agents.claude.rows import LAST_WINS, Row, is_user_or_assistant, text_of, type_of, uuid_of
from sessile.core.codec import decode, encode
from sessile.core.ids import IdTable
from sessile.core.lines import Item, Line, Scanner
from sessile.errors import Damaged, SyncFailed, TooLarge, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile, held, make_durable, sync_name

_LARGEST_REPEATED = 4096  # bytes

TAIL = 64 * 1024  # bytes that are searched first for a row to remove
MAX_TOMBSTONE_REWRITE_BYTES = 50 * 1024 * 1024

TOMBSTONES = "tombstones"  # the folder of removed rows in our own root
_REMOVED_ROW = ".row"


# -- appending
class Value(NamedTuple):
    """The last row of a type of which only the last counts, and its offset; `None` if it is not in the file yet."""

    row: bytes
    offset: int | None


class Known:
    """What the writer of a file knows about its rows."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._uuids = IdTable()
        self._removed: set[str] = set()

    def __contains__(self, uuid: object) -> bool:
        return isinstance(uuid, str) and uuid in self._uuids and uuid not in self._removed

    def position(self, uuid: str) -> int:
        """Return the position of a uuid in the order in which uuids were learned."""
        return self._uuids.number(uuid)

    def learn(self, row: bytes, offset: int | None) -> None:
        """Record a row that is in the file, or waits to be written."""
        kind, uuid = _type_and_uuid(row)
        if uuid is not None:
            self._uuids.number(uuid)
            self._removed.discard(uuid)
        if kind is not None and kind in LAST_WINS:
            self.values[kind] = Value(row, offset)

    def forget(self, uuid: str) -> None:
        """Record that a row was removed."""
        self._removed.add(uuid)


class Batch(NamedTuple):
    """Rows to write, and the value to return to the caller."""

    rows: Sequence[Row]
    answer: Any = None


Plan = Callable[[Known], Batch]
"""Return the rows to write. It may be called more than once; the last result counts."""


class Appended(NamedTuple):
    """The answer of a plan, and the rows that were written; empty if they wait in memory."""

    answer: Any
    rows: Sequence[bytes]


class Removed(NamedTuple):
    """A row that was removed: its uuid, its offset and length with the line end, and its bytes."""

    uuid: str
    offset: int
    length: int
    row: bytes


class TranscriptFile:
    """One file below a project folder: the main transcript of a session, or that of an agent.

    With `reach`, values of which only the last counts are written again when they would be further than that many bytes
    from the end. With `ends_only`, uuids are not needed, and only the part of the file that a listing reads is loaded.
    """

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        *,
        power: bool = True,
        patience: float = 10.0,
        reach: int | None = None,
        ends_only: bool = False,
    ) -> None:
        self.path = path
        self._fs = fs
        self._power = power
        self._patience = patience
        self._reach = reach
        self._ends_only = ends_only
        self._mutex = threading.RLock()
        self._waiting: list[bytes] = []
        self._failure: SyncFailed | None = None
        self._unsynced = False
        self._name_is_durable = False
        self._known = Known()
        self._identity: tuple[int, int] | None = None
        self._seen = 0  # everything before this offset is known

    @property
    def is_loaded(self) -> bool:
        """Whether the rows of the file have been read."""
        return self._identity is not None

    def append(self, plan: Plan, *, catch_up: bool = True) -> Appended:
        """Append the rows of `plan` in one write, or keep them in memory until there is a user or assistant row.

        With `catch_up=False` the plan does not see the rows in the file, so a note is added to a large file without
        reading it.
        """
        with self._mutex:
            self._check()
            begun = self._exists()
            if not begun:
                self._forget_all()
                batch = plan(self._known)
                if not any(is_user_or_assistant(row) for row in batch.rows):
                    self._wait_with([encode(dict(row)) for row in batch.rows])
                    return Appended(batch.answer, ())
                atomic.make_folders(self._fs, posixpath.dirname(self.path), below_links=True)
            with held(self._fs, self.path, create=not begun, patience=self._patience) as file:
                if catch_up:
                    self._catch_up(file)
                batch = plan(self._known)
                rows = [encode(dict(row)) for row in batch.rows]
                if rows:
                    rows = [*self._waiting, *rows]
                if catch_up:
                    rows += self._out_of_reach(rows, file.size)
                if rows:
                    self._write(file, rows, catch_up)
            return Appended(batch.answer, rows)

    def remove(self, take_out: Callable[[HeldFile], Removed | None]) -> Removed | None:
        """Let `take_out` remove a row from the file, under its lock."""
        with self._mutex:
            self._check()
            with held(self._fs, self.path, patience=self._patience) as file:
                current = file.identity == self._identity and file.size >= self._seen
                removed = take_out(file)
                if removed is not None and current:
                    self._identity = file.identity
                    self._known.forget(removed.uuid)
                    if removed.offset < self._seen:
                        self._seen -= removed.length
            return removed

    def change(self, edit: Callable[[HeldFile], bool]) -> bool:
        """Let `edit` change the file under its lock. The file is read again by the next append."""
        with self._mutex:
            self._check()
            with held(self._fs, self.path, patience=self._patience) as file:
                changed = edit(file)
            self._forget_all()
            return changed

    def reset(self) -> None:
        """Forget what is known about the file and any failure. Rows that wait in memory are kept."""
        with self._mutex:
            self._failure = None
            self._forget_all()

    def flush(self) -> None:
        """Make everything that was written durable."""
        with self._mutex:
            self._check()
            if self._unsynced:
                self._latched(lambda: make_durable(self._fs, self.path))
                self._unsynced = False

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _exists(self) -> bool:
        """Return whether the file exists and is not empty; a crash before the first row leaves an empty file."""
        with storage_failures(self.path, "read the status of the session"):
            try:
                return self._fs.lstat(self.path).st_size > 0
            except (FileNotFoundError, NotADirectoryError):
                return False

    def _forget_all(self) -> None:
        self._known = Known()
        self._identity = None
        self._seen = 0
        for row in self._waiting:
            self._known.learn(row, None)

    def _wait_with(self, rows: Sequence[bytes]) -> None:
        """Keep rows in memory until the file is created: metadata first, and only the last row of each type."""
        for row in rows:
            self._known.learn(row, None)
        kinds = [(row, _type_and_uuid(row)[0]) for row in (*self._waiting, *rows)]
        last = {kind: row for row, kind in kinds if kind in LAST_WINS}
        self._waiting = [*last.values(), *(row for row, kind in kinds if kind not in LAST_WINS)]

    def _catch_up(self, file: HeldFile) -> None:
        """Read what other processes have appended."""
        if file.identity != self._identity or file.size < self._seen:
            self._forget_all()
            self._identity = file.identity
            self._seen = self._beginning(file) if self._ends_only else 0
        if file.size == self._seen:
            return
        scanner = Scanner(self._seen)
        for chunk in file.chunks(self._seen, file.size):
            for item in scanner.feed(chunk):
                self._learn(item)
        self._seen = scanner.line_start  # a line without a line end is read again
        for item in scanner.finish():
            self._learn(item)

    @staticmethod
    def _beginning(file: HeldFile) -> int:
        """Return the offset of the first whole line in the part of the file that listings read."""
        start = file.size - WINDOW
        if start <= 0:
            return 0
        newline = b"".join(file.chunks(start, file.size)).find(b"\n")
        return file.size if newline < 0 else start + newline + 1

    def _learn(self, item: Item) -> None:
        if isinstance(item, Line):
            self._known.learn(item.raw, item.offset)

    def _out_of_reach(self, rows: Sequence[bytes], size: int) -> list[bytes]:
        """Return the values that would be too far from the end after the rows are written."""
        if self._reach is None:
            return []
        begin = size + sum(len(row) + 1 for row in rows) - self._reach
        renewed = {_type_and_uuid(row)[0] for row in rows}
        return [
            value.row
            for kind, value in self._known.values.items()
            if kind not in renewed and value.offset is not None and value.offset < begin and _repeats(value.row)
        ]

    def _write(self, file: HeldFile, rows: Sequence[bytes], caught_up: bool) -> None:
        size = file.size
        offset = file.append(rows)
        self._waiting.clear()
        self._unsynced = True
        if caught_up and offset - size <= 1:  # else other rows are before ours that we have not read
            self._seen = file.size
            for row in rows:
                self._known.learn(row, offset)
                offset += len(row) + 1
        if self._power:
            self._latched(file.sync)
            if not self._name_is_durable:
                self._latched(lambda: sync_name(self._fs, self.path))
                self._name_is_durable = True
            self._unsynced = False

    def _latched(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except SyncFailed as error:
            self._failure = error
            raise


def _repeats(row: bytes) -> bool:
    """Return whether a value should be written again: not if it is large, or a cleared tag."""
    return len(row) <= _LARGEST_REPEATED and decode(row).get("tag") != ""


class _Mark(msgspec.Struct):
    """The members of a row that are read without decoding its body."""

    type: str | None = None
    uuid: str | None = None


_decode_mark = msgspec.json.Decoder(_Mark).decode


def _type_and_uuid(row: bytes) -> tuple[str | None, str | None]:
    try:
        mark = _decode_mark(row)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = decode(row)  # a member of another type, or bytes that are not UTF-8
        return type_of(value), text_of(value, "uuid")
    return mark.type, mark.uuid


# -- removing and restoring rows
class Tombstone(NamedTuple):
    """A removed row, and the file in which it is saved."""

    uuid: str
    kept: str


class KeptRow(NamedTuple):
    """A removed row: its transcript, its offset there, the file in which it is saved, and its bytes."""

    uuid: str
    path: str
    offset: int
    kept: str
    row: bytes


def kept_rows(fs: Filesystem, folder: str) -> Iterator[KeptRow]:
    """Yield every removed row that is saved below `folder`, those of one transcript in file order."""
    for session in _names(fs, folder):
        names = [name for name in _names(fs, f"{folder}/{session}") if name.endswith(_REMOVED_ROW)]
        yield from sorted((_kept_row(fs, f"{folder}/{session}/{name}") for name in names), key=_by_place)


def restore_row(file: TranscriptFile, kept: KeptRow) -> bool:
    """Put a removed row back, byte for byte; return false if the file has a row with its uuid.

    The row goes to its old offset if a line starts there now, otherwise to the end: readers follow links, but of two
    branches they take the last one. The saved copy is not deleted.
    """

    def put_back(held: HeldFile) -> bool:
        if _last_row(held, kept.uuid, 0) is not None:
            return False
        at, size = kept.offset, held.size
        if at >= size or (at and held.peek(at - 1, 1) != b"\n"):
            held.append([kept.row])
            held.sync()
            return True

        def whole() -> Iterator[bytes]:
            yield from held.chunks(0, at)
            yield kept.row + b"\n"
            yield from held.chunks(at, size)

        held.replace(whole())
        return True

    return file.change(put_back)


def remove_row(fs: Filesystem, file: TranscriptFile, uuid: str, folder: str) -> Tombstone | None:
    """Remove the last row with this uuid and save it below `folder`; return `None` if there is no such row."""
    kept: list[str] = []

    def take_out(held: HeldFile) -> Removed | None:
        removed = _find(held, uuid)
        if removed is not None:
            kept.append(_keep(fs, folder, held.path, removed))
            _remove(held, removed)
        return removed

    return Tombstone(uuid, kept[0]) if file.remove(take_out) is not None else None


def _find(file: HeldFile, uuid: str) -> Removed | None:
    window = max(0, file.size - TAIL)
    found = _last_row(file, uuid, _next_line(file, window))
    if found is None and window > 0:
        if file.size > MAX_TOMBSTONE_REWRITE_BYTES:
            raise TooLarge(
                f"row {uuid} is not in the last {TAIL // 1024} KB, and the file is too large to search all of it",
                path=file.path,
                hint="the file was not changed",
            )
        found = _last_row(file, uuid, 0)
    return found


def _next_line(file: HeldFile, window: int) -> int:
    """Return the offset of the first whole line in the window, or the end of the file."""
    if window == 0 or file.peek(window - 1, 1) == b"\n":
        return window
    newline = file.peek(window, TAIL).find(b"\n")
    return window + newline + 1 if newline >= 0 else file.size


def _last_row(file: HeldFile, uuid: str, start: int) -> Removed | None:
    """Return the last row with this uuid; `start` must be the start of a line."""
    found = None
    name = uuid.encode()
    for line in _lines(file, start):
        if name in line.raw and uuid_of(decode(line.raw)) == uuid:
            found = line
    if found is None:
        return None
    end = found.offset + len(found.raw)
    alone = found.offset == 0 or file.peek(found.offset - 1, 1) == b"\n"
    whole = alone and file.peek(end, 1) == b"\n"
    return Removed(uuid, found.offset, len(found.raw) + whole, found.raw)


def _lines(file: HeldFile, start: int) -> Iterator[Line]:
    scanner = Scanner(start)
    for chunk in file.chunks(start, file.size):
        yield from (item for item in scanner.feed(chunk) if isinstance(item, Line))
    yield from (item for item in scanner.finish() if isinstance(item, Line))


def _keep(fs: Filesystem, folder: str, path: str, removed: Removed) -> str:
    """Write the row to its own file: a line with its place, then its bytes."""
    digest = hashlib.sha256(removed.row).hexdigest()[:16]
    name = f"{folder}/{posixpath.basename(path).removesuffix('.jsonl')}/{digest}{_REMOVED_ROW}"
    note = msgspec.json.encode({"path": path, "uuid": removed.uuid, "offset": removed.offset})
    atomic.make_folders(fs, posixpath.dirname(name))
    atomic.replace(fs, name, (note, b"\n", removed.row, b"\n"))
    return name


class _Note(msgspec.Struct):
    path: str
    uuid: str
    offset: int


def _kept_row(fs: Filesystem, kept: str) -> KeptRow:
    with storage_failures(kept, "read the removed row"):
        note, _, row = atomic.read_all(fs, kept).partition(b"\n")
    try:
        place = msgspec.json.decode(note, type=_Note)
    except msgspec.DecodeError as error:
        raise Damaged(
            "invalid first line in a saved row", path=kept, hint="the row itself is the second line"
        ) from error
    return KeptRow(place.uuid, place.path, place.offset, kept, row.removesuffix(b"\n"))


def _by_place(kept: KeptRow) -> tuple[str, int]:
    return kept.path, kept.offset


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "list the removed rows"):
        try:
            return fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _remove(file: HeldFile, removed: Removed) -> None:
    end = removed.offset + removed.length
    if end == file.size:
        file.truncate(removed.offset)
        file.sync()
        return

    def rest() -> Iterator[bytes]:
        yield from file.chunks(0, removed.offset)
        yield from file.chunks(end, size)

    size = file.size
    file.replace(rest())
