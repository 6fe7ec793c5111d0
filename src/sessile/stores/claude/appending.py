"""One transcript file and its appends: each call is one write, made knowing everything that is in the file.

Rules:

- Rows are chosen under the file's lock, after a look at what others have appended: two processes that record the same
  message write it once. What is known belongs to this file alone; a sidechain begins with copies of its parent's messages.
- A file is made by the first user or assistant row. What comes before waits in memory: no file holds metadata only.
- What is known of the file is dropped when another file has its name, or when it has become shorter.
- A failed sync is raised again by every later call: nobody knows what the disk holds.

It does not know what the rows mean, beyond their uuids and that of some only the last counts.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode
from sessile.core.id_table import IdTable
from sessile.core.lines import Item, Line, Scanner
from sessile.errors import SyncFailed, storage_failures
from sessile.formats.claude.lite import WINDOW
from sessile.formats.claude.rows import LAST_WINS, is_spoken, text_of, type_of
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile, held, make_durable, sync_name

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
