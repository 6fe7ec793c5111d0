"""One transcript file and its appends: each call is one write, made knowing everything that is in the file.

Rules:

- Rows are chosen under the file's lock, after a look at what others have appended: two processes that record the same
  message write it once. What is known belongs to this file alone; a sidechain begins with copies of its parent's messages.
- A file is made by the first user or assistant row. What comes before waits in memory: no file holds metadata only.
- What is known of the file is dropped when another file has its name, or when it has become shorter.
- A failed sync is raised again by every later call: nobody knows what the disk holds.

It does not know what the rows mean, beyond their uuids and that of some only the last counts.

Removing one row of a transcript, for the attempts that a stream discards, and having it back.

Rules:

- The row is kept first, durably, in our own root: nothing is removed that cannot be had again.
- The last 64 KB are searched first. A row at the very end is cut off; any other is removed by a new file that takes the place of
  the old one at once. So a kill leaves the file with the row or without it, and every other row in both.
- Where the row is not in the tail the whole file is read, up to 50 MB; a larger one is refused and stays as it is.
- A kept row can be listed, and put back where it was.
- A uuid that is quoted in a text or named as a parent is not the row: rows are decoded before they are believed.
"""

from __future__ import annotations

import hashlib
import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.agents.claude.listing import WINDOW
from sessile.agents.claude.rows import LAST_WINS, is_spoken, text_of, type_of, uuid_of
from sessile.core.codec import decode, encode
from sessile.core.ids import IdTable
from sessile.core.lines import Item, Line, Scanner
from sessile.errors import Damaged, SyncFailed, TooLarge, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile, held, make_durable, sync_name

# --- appending

Row = Mapping[str, Any]

_LARGEST_REPEATED = 4096  # bytes


class _Mark(msgspec.Struct):
    """What is read of a row without decoding its body."""

    type: str | None = None
    uuid: str | None = None


_decode_mark = msgspec.json.Decoder(_Mark).decode


class Value(NamedTuple):
    """The last row of a type of which only the last counts, and where it lies; `None` if it is not in the file yet."""

    row: bytes
    offset: int | None


class Known:
    """What the rows of one file say that its writer must know."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._uuids = IdTable()
        self._removed: set[str] = set()

    def __contains__(self, uuid: object) -> bool:
        return isinstance(uuid, str) and uuid in self._uuids and uuid not in self._removed

    def position(self, uuid: str) -> int:
        """Where a uuid stands in the order of all that are known."""
        return self._uuids.number(uuid)

    def learn(self, row: bytes, offset: int | None) -> None:
        """Take note of a row that is in the file, or waits for it."""
        kind, uuid = _mark_of(row)
        if uuid is not None:
            self._uuids.number(uuid)
            self._removed.discard(uuid)
        if kind is not None and kind in LAST_WINS:
            self.values[kind] = Value(row, offset)

    def forget(self, uuid: str) -> None:
        """Take note that a row was removed."""
        self._removed.add(uuid)


class Batch(NamedTuple):
    """Rows to write, and the answer for whoever asked."""

    rows: Sequence[Row]
    answer: Any = None


Plan = Callable[[Known], Batch]
"""Asked for the rows to write, perhaps more than once: the last answer is the one that counts."""


class Appended(NamedTuple):
    """The answer of a plan, and the rows that were written now: none if they wait."""

    answer: Any
    rows: Sequence[bytes]


class Removed(NamedTuple):
    """A row that was removed: its uuid, where it lay with its line end, and its bytes."""

    uuid: str
    offset: int
    length: int
    row: bytes


class TranscriptFile:
    """One file below a project folder, the main one of a session or that of an agent.

    With `reach`, values of which the last counts are kept within that many bytes of the end by writing them again. With
    `ends_only`, uuids are not asked for, and a file is looked at no further back than a listing does: what lies before that
    is out of reach already.
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
        self._seen = 0  # everything before this place is known

    @property
    def looked_at(self) -> bool:
        """Whether anything is known of what is in the file."""
        return self._identity is not None

    def append(self, plan: Plan, *, look: bool = True) -> Appended:
        """Write what `plan` says, at once and behind everything else, or let it wait until there is something to say.

        Without `look` the plan need not know what is in the file: a note is added to a large one without reading it.
        """
        with self._mutex:
            self._check()
            begun = self._exists()
            if not begun:
                self._forget_all()
                batch = plan(self._known)
                if not any(is_spoken(row) for row in batch.rows):
                    self._wait_with([encode(dict(row)) for row in batch.rows])
                    return Appended(batch.answer, ())
                atomic.make_folders(self._fs, posixpath.dirname(self.path), below_links=True)
            with held(self._fs, self.path, create=not begun, patience=self._patience) as file:
                if look:
                    self._catch_up(file)
                batch = plan(self._known)
                rows = [encode(dict(row)) for row in batch.rows]
                if rows:
                    rows = [*self._waiting, *rows]
                if look:
                    rows += self._out_of_reach(rows, file.size)
                if rows:
                    self._write(file, rows, look)
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
        """Let `edit` change the file in another way, under its lock; what is known of it is looked at again."""
        with self._mutex:
            self._check()
            with held(self._fs, self.path, patience=self._patience) as file:
                changed = edit(file)
            self._forget_all()
            return changed

    def reset(self) -> None:
        """Begin anew: nothing is known of the file, and a failure is over. What waits goes on waiting."""
        with self._mutex:
            self._failure = None
            self._forget_all()

    def flush(self) -> None:
        """Make everything durable that was written."""
        with self._mutex:
            self._check()
            if self._unsynced:
                self._latched(lambda: make_durable(self._fs, self.path))
                self._unsynced = False

    # -- inside

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _exists(self) -> bool:
        """Whether there is a file with something in it; an empty one is left by who died before its first row."""
        with storage_failures(self.path, "look at the session"):
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
        """Keep rows until the file is made; metadata stands first in it, and of each kind only the last."""
        for row in rows:
            self._known.learn(row, None)
        kinds = [(row, _mark_of(row).kind) for row in (*self._waiting, *rows)]
        last = {kind: row for row, kind in kinds if kind in LAST_WINS}
        self._waiting = [*last.values(), *(row for row, kind in kinds if kind not in LAST_WINS)]

    def _catch_up(self, file: HeldFile) -> None:
        """Learn what others have appended since we looked."""
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
        self._seen = scanner.line_start  # a line without its end is looked at again
        for item in scanner.finish():
            self._learn(item)

    @staticmethod
    def _beginning(file: HeldFile) -> int:
        """Where the first whole line of the part begins that listings read."""
        start = file.size - WINDOW
        if start <= 0:
            return 0
        newline = b"".join(file.chunks(start, file.size)).find(b"\n")
        return file.size if newline < 0 else start + newline + 1

    def _learn(self, item: Item) -> None:
        if isinstance(item, Line):
            self._known.learn(item.raw, item.offset)

    def _out_of_reach(self, rows: Sequence[bytes], size: int) -> list[bytes]:
        """The values that would lie too far from the end when the rows are written."""
        if self._reach is None:
            return []
        begin = size + sum(len(row) + 1 for row in rows) - self._reach
        renewed = {_mark_of(row).kind for row in rows}
        return [
            value.row
            for kind, value in self._known.values.items()
            if kind not in renewed and value.offset is not None and value.offset < begin and _repeats(value.row)
        ]

    def _write(self, file: HeldFile, rows: Sequence[bytes], looked: bool) -> None:
        size = file.size
        offset = file.append(rows)
        self._waiting.clear()
        self._unsynced = True
        if looked and offset - size <= 1:  # else others, without lock or unseen, have written before our rows
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
    """Whether a value is worth writing again: one that is large costs too much, and a cleared tag has nothing to show."""
    return len(row) <= _LARGEST_REPEATED and decode(row).get("tag") != ""


class _Named(NamedTuple):
    kind: str | None
    uuid: str | None


def _mark_of(row: bytes) -> _Named:
    try:
        mark = _decode_mark(row)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = decode(row)  # a member of another type, or bytes that are not UTF-8
        return _Named(type_of(value), text_of(value, "uuid"))
    return _Named(mark.type, mark.uuid)


# --- tombstones

TAIL = 64 * 1024
MAX_TOMBSTONE_REWRITE_BYTES = 50 * 1024 * 1024


TOMBSTONES = "tombstones"  # the folder of kept rows in our own root
_KEPT = ".row"


class Tombstone(NamedTuple):
    """A row that was removed, and where it is kept."""

    uuid: str
    kept: str


class KeptRow(NamedTuple):
    """A row that was removed: the transcript that it was in, where it lay there, where it is kept, and its bytes."""

    uuid: str
    path: str
    offset: int
    kept: str
    row: bytes


def kept_rows(fs: Filesystem, folder: str) -> Iterator[KeptRow]:
    """Every row that is kept below `folder`, those of one transcript in the order in which they lay in it."""
    for session in _names(fs, folder):
        names = [name for name in _names(fs, f"{folder}/{session}") if name.endswith(_KEPT)]
        yield from sorted((_kept_row(fs, f"{folder}/{session}/{name}") for name in names), key=_by_place)


def restore_row(file: TranscriptFile, kept: KeptRow) -> bool:
    """Put a kept row back, byte for byte; false if the file has a row with its uuid.

    It goes where it lay if a line begins there now, else to the end: readers follow links, but of two branches they take the
    one that is last. The kept copy stays.
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
    """Remove the last row with that uuid, keeping it below `folder`; `None` if the file has no such row."""
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
                f"the row is not in the last {TAIL // 1024} KB, and the file is too large to look further",
                path=file.path,
                hint="the row stays; nothing was changed",
            )
        found = _last_row(file, uuid, 0)
    return found


def _next_line(file: HeldFile, window: int) -> int:
    """Where the first line begins that lies whole in the window; the end of the file if there is none."""
    if window == 0 or file.peek(window - 1, 1) == b"\n":
        return window
    newline = file.peek(window, TAIL).find(b"\n")
    return window + newline + 1 if newline >= 0 else file.size


def _last_row(file: HeldFile, uuid: str, start: int) -> Removed | None:
    """The last row with that uuid behind a place where a line begins."""
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
    """Write the row into a file of its own: a line that says where it was, then its bytes."""
    digest = hashlib.sha256(removed.row).hexdigest()[:16]
    name = f"{folder}/{posixpath.basename(path).removesuffix('.jsonl')}/{digest}{_KEPT}"
    note = msgspec.json.encode({"path": path, "uuid": removed.uuid, "offset": removed.offset})
    atomic.make_folders(fs, posixpath.dirname(name))
    atomic.replace(fs, name, (note, b"\n", removed.row, b"\n"))
    return name


class _Note(msgspec.Struct):
    path: str
    uuid: str
    offset: int


def _kept_row(fs: Filesystem, kept: str) -> KeptRow:
    with storage_failures(kept, "read the kept row"):
        note, _, row = atomic.read_all(fs, kept).partition(b"\n")
    try:
        said = msgspec.json.decode(note, type=_Note)
    except msgspec.DecodeError as error:
        raise Damaged(
            "the note of the kept row cannot be read", path=kept, hint="the row is its second line"
        ) from error
    return KeptRow(said.uuid, said.path, said.offset, kept, row.removesuffix(b"\n"))


def _by_place(kept: KeptRow) -> tuple[str, int]:
    return kept.path, kept.offset


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "list the kept rows"):
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
