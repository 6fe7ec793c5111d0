"""The row index of a journal: the offset and parent of each entry, and the state of its path.

The index is a cache. It is never written while appending. Every line that is read through it is checked, and any mismatch
discards the index. Walking a path costs one row per step, and the state of any entry one lookup. That only holds while
parents come before their children and ids are unique; a journal where they do not is `irregular` and is read without
an index.

`RowIndex` is the index in memory. `StateTable` keeps each distinct state of a path once, by number: most entries change
nothing, so even a large journal has few. `IndexFile` is the saved form: a header, rows of fixed width, a hash table of ids,
and the states.

    id key · offset and flags · length · row of the parent · number of the state after this entry

A saved index holds the stamp that the journal had when the two were last known to agree (`storage.base.Stamp`: inode,
device, size, and both times), and a checksum of all bytes of the journal that it is made from. A journal with the same
stamp is unchanged. With any other stamp the bytes are read and their checksum compared before the index is used. Each
block of the index is checked when it is read, so a large one costs no more than the blocks that are used.
"""

from __future__ import annotations

import os
import posixpath
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, zip_longest
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from sessile.core.codec import decode
from sessile.core.ids import blake2b
from sessile.core.kinds import LABEL, MARKER, MESSAGE, STATE, TITLE, State, fold, fold_label
from sessile.core.lines import Finding, Head, Line
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stamp

NOWHERE = -1
MAX_FINDINGS = 1000  # kept in full; a file full of garbage would otherwise fill the memory
SAVE_AFTER_ROWS = 64  # scanning fewer new rows, or bytes, is cheaper than writing the index
SAVE_AFTER_BYTES = 1 << 20

_HASH = b"#"  # appended to a key that is a hash of an id

UNKNOWN = -1  # a state that is not kept: it must be computed from its path
BEGINNING = 0

_MAX_SIZE = 256 * 1024  # bytes of all states; there could be as many as there are entries

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode

ROW = struct.Struct("<8sQIii")

# Our own flags, above those of the kinds.
HASHED = 1 << 14  # the key is a hash of an id that is not eight bytes long
ORPHAN = 1 << 15  # there is a parent id, but no such entry
KIND_FLAGS = (1 << 14) - 1

_FORM = b"sessile-index-"
_MAGIC = _FORM + b"7\n"
_STAMP = struct.Struct("<QQQqqI")  # the stamp of the journal, and whether it is settled
_CHECKED = struct.Struct("<QQQqqII")  # the same with its checksum
_PREFIX = struct.Struct("<16s48sII")
_NO_STAMP = bytes(_CHECKED.size)
_BITS = (1 << 64) - 1
_TICK = 50_000_000  # nanoseconds after which the clock of any local file system has advanced
_FAR_TICK = 3_000_000_000  # the same, if the clock is that of another file system
_KEY_OF_ROW = struct.Struct("<Q20x")
_SLOT = struct.Struct("<I")
_ENDS = struct.Struct("<II")
_SLOTS_PER_ROW = 2
_BLOCK = 8 * 1024  # checked as a whole: a larger one costs more than the rows that are needed
_FIRST_READ = 64 * 1024
_PIECE = 1 << 20  # bytes written at once


class Place(NamedTuple):
    """One row."""

    key: bytes
    packed: int
    length: int
    parent: int
    state: int

    @property
    def offset(self) -> int:
        return self.packed >> 16

    @property
    def hashed(self) -> bool:
        return self.packed & HASHED != 0

    @property
    def orphan(self) -> bool:
        return self.packed & ORPHAN != 0


class RowIndex:
    """The rows of one journal: those of a cache file, if there is one, and those added since."""

    def __init__(self) -> None:
        self.covered = 0
        self.checked = 0  # bytes of the journal that the checksum is made from: at least those that are covered
        self.checksum = 0
        self.irregular = False
        self.entries = 0
        self.labels: dict[str, str] = {}
        self.title = NOWHERE
        self.findings: list[Finding] = []
        self.found = 0
        self.extra: Any = None  # data that the translator of another format keeps here
        self._file: IndexFile | None = None
        self._saved = 0  # rows of the cache file; those in memory come after them
        self._kept = (0, 0)  # rows and bytes of the journal that the cache file covers
        self._bound: tuple[int, int] | None = None  # checked bytes and checksum in the cache file
        self.stamped: Stamp | None = None  # the stamp in the cache file
        self._tail = bytearray()
        self._tail_states = array("i")
        self._numbers: dict[bytes, int] = {}  # by key, because the text of a million ids would use most of the memory
        self._last = ("", NOWHERE, BEGINNING)  # id, number and state of the previous entry, which is the parent of most
        self._missing: set[str] = set()
        self._states = StateTable()
        self._answers: dict[tuple[int, str | None, str | None], int] = {}

    def __len__(self) -> int:
        return self._saved + len(self._tail_states)

    @property
    def worth_saving(self) -> bool:
        """Whether scanning what the cache file does not cover costs more than writing it."""
        rows, covered = self._kept
        new = self.covered - covered
        enough = len(self) - rows >= SAVE_AFTER_ROWS or new >= SAVE_AFTER_BYTES
        return enough and new >= self.covered >> 8

    @property
    def has_orphans(self) -> bool:
        """Whether the parent of some entry is missing."""
        return bool(self._missing)

    def note(self, offset: int, data: bytes) -> None:
        """Add bytes of the journal to the checksum. Those that are in it already are left out."""
        new = offset + len(data) - self.checked
        if new > 0:
            self.checksum = zlib.crc32(data if new == len(data) else memoryview(data)[-new:], self.checksum)
            self.checked += new

    def report(self, finding: Finding) -> None:
        """Add a finding."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def add(self, line: Line, head: Head, flags: int, entry: bytes | None = None) -> int:
        """Add the next entry of the journal and return the number of its parent.

        `head` and `entry` are the translated line, if it is not native.
        """
        offset, raw, _ = line
        number = len(self._tail_states) + self._saved
        numbers, saved = self._numbers, self._file
        entry_id, parent_id = str(head.id), head.parentId
        key, hashed = key_of(entry_id)
        name = key + _HASH if hashed else key
        marks = HASHED if hashed else 0
        last_id, parent, state = self._last
        if not parent_id:
            parent, state = NOWHERE, BEGINNING
        elif parent_id != last_id:
            found = self.find(parent_id)
            if found is None:
                parent, state = NOWHERE, BEGINNING
                marks |= ORPHAN
                self._missing.add(parent_id)
            else:
                parent, state = found, self._state_number(found)
        if name in numbers or entry_id in self._missing or (saved and saved.find(entry_id) is not None):
            self.irregular = True
        if flags & STATE and state != UNKNOWN:
            state = self._state_after(state, flags, head, entry or raw)
        self._tail += ROW.pack(key, offset << 16 | flags | marks, len(raw), parent, state)
        self._tail_states.append(state)
        numbers[name] = number
        self._last = (entry_id, number, state)
        if not flags & MARKER:
            self.entries += 1
        if flags & LABEL:
            fold_label(self.labels, decode(entry or raw))
        elif flags & TITLE:
            self.title = number
        return parent

    def _state_number(self, number: int) -> int:
        in_memory = number - self._saved
        return self._tail_states[in_memory] if in_memory >= 0 else self.place(number).state

    def _state_after(self, before: int, flags: int, head: Head, entry: bytes) -> int:
        if not flags & MESSAGE:
            return self._states.number_of(fold(self._states[before], decode(entry)))
        # The head of a message has all that matters here, so the body is not decoded. Most answers repeat their model.
        message = head.message
        assert message is not None
        answer = (before, message.provider, message.model)
        number = self._answers.get(answer)
        if number is None:
            number = self._states.number_of(fold(self._states[before], {"type": "message", "message": asdict(message)}))
            self._answers[answer] = number
        return number

    def place(self, number: int) -> Place:
        """Return the row of an entry."""
        if number >= self._saved:
            return Place._make(ROW.unpack_from(self._tail, (number - self._saved) * ROW.size))
        assert self._file is not None
        return self._file.place(number)

    def places(self, start: int, stop: int) -> list[Place]:
        """Return the rows of consecutive entries."""
        found = self._file.places(start, min(stop, self._saved)) if self._file and start < self._saved else []
        tail = self._tail[max(0, start - self._saved) * ROW.size : max(0, stop - self._saved) * ROW.size]
        return found + list(map(Place._make, ROW.iter_unpack(tail)))

    def find(self, entry_id: str) -> int | None:
        """Return the number of an entry; `None` if there is none with that id."""
        number = self._numbers.get(_name(entry_id))
        if number is None and self._file is not None:
            number = self._file.find(entry_id)
        return number

    def state(self, number: int) -> State | None:
        """Return the state after an entry; `None` if it must be computed from its path."""
        state = self._state_number(number)
        return None if state == UNKNOWN else self._states[state]

    def save(self, fs: Filesystem, path: str) -> None:
        """Write the whole index to the cache, without a stamp. The open file that it was loaded from stays valid."""
        rows = bytearray(self._file.read(0, self._saved * ROW.size) if self._file else b"")
        rows += self._tail
        header = Header(
            covered=self.covered,
            checked=self.checked,
            checksum=self.checksum,
            entries=self.entries,
            labels=self.labels,
            title=self.title,
            missing=sorted(self._missing),
            findings=self.findings,
            found=self.found,
            extra=self.extra,
        )
        write(fs, path, header, rows, self._states.encoded())
        self._kept = (len(self), self.covered)
        self._bound, self.stamped = (self.checked, self.checksum), None

    def stamp(self, fs: Filesystem, path: str, journal: Stamp) -> None:
        """Note in the cache file that it agrees with the journal in this state.

        The stamp is written in place, because a large index would take long to write again. A stamp that is cut short
        has a wrong checksum and counts for nothing.
        """
        if self._bound is None or self.stamped == journal:
            return
        fd = fs.open(path, os.O_RDWR)
        try:
            header = _read_header(fs, fd)[0]
            if (header.checked, header.checksum) != self._bound:
                return  # another process has saved its own
            # Two changes of a file that is looked at in between tell how fine the clock of the file system is.
            inode, device, size, modified, changed = journal
            fields = (inode & _BITS, device & _BITS, size, modified, changed)
            fs.write(fd, _MAGIC)
            first = fs.fstat(fd)
            fs.write(fd, struct.pack("<Q", fields[0]))
            second = fs.fstat(fd)
            here = second.st_dev == device
            fine = here and first.st_ctime_ns != second.st_ctime_ns
            settled = fine or second.st_ctime_ns - changed > (_TICK if here else _FAR_TICK)
            packed = _STAMP.pack(*fields, settled)
            fs.write(fd, packed[8:] + struct.pack("<I", zlib.crc32(packed)))
            self.stamped = journal
        finally:
            fs.close(fd)

    @classmethod
    def load(
        cls, fs: Filesystem, path: str, journal: Stamp, is_unchanged: Callable[[Stamp | None, int, int], bool]
    ) -> RowIndex | None:
        """Return the saved index; `None` if there is none that matches the journal.

        `is_unchanged` is called with the stamp in the cache file, if that is another one: it returns whether so many
        first bytes of the journal still have that checksum.
        """
        try:
            file = IndexFile(fs, path)
        except NewerIndex:
            raise
        except NO_CACHE:
            return None
        index = cls()
        try:
            header, stamped = file.header, file.stamp
            if stamped == journal or (
                header.checked <= journal[2] and is_unchanged(stamped, header.checked, header.checksum)
            ):
                index._adopt(file)
                index.stamped = stamped
                return index
        except NO_CACHE:
            pass
        file.close()
        return None

    def differences(self, right: RowIndex) -> list[str]:
        """Return how this index, as saved, differs from one that was made from the same bytes just now."""
        found = []
        rows = self._file.read(0, self._saved * ROW.size) if self._file is not None else bytes(self._tail)
        if rows != right._tail:
            pairs = zip_longest(ROW.iter_unpack(rows), ROW.iter_unpack(right._tail))
            number = next(number for number, (mine, its) in enumerate(pairs) if mine != its)
            found.append(f"row {number} is wrong")
        if self._states.encoded() != right._states.encoded():
            found.append("the states of the paths are wrong")
        for name in ("entries", "labels", "title", "found", "findings", "has_orphans", "extra"):
            mine, its = (msgspec.json.encode(getattr(index, name)) for index in (self, right))
            if mine != its:
                found.append(f"{name.replace('_', ' ')}: {mine.decode()[:80]} instead of {its.decode()[:80]}")
        if right.irregular:
            found.append("ids are not unique, or parents come after their children")
        return found

    def _adopt(self, file: IndexFile) -> None:
        header = file.header
        self._states = StateTable(file.states())
        self._file = file
        self._saved = header.rows
        self._kept = (header.rows, header.covered)
        self.covered = header.covered
        self.checked, self.checksum = self._bound = (header.checked, header.checksum)
        self.entries = header.entries
        self.labels = header.labels
        self.title = header.title
        self._missing = set(header.missing)
        self.findings = header.findings
        self.found = header.found
        self.extra = header.extra

    def close(self) -> None:
        """Close the cache file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _name(entry_id: str) -> bytes:
    """Return the key of an id in memory. A hash is marked, because it may equal another id."""
    key, hashed = key_of(entry_id)
    return key + _HASH if hashed else key


# -- states


class StateTable:
    """States by number; `BEGINNING` is that of an empty path. `saved` are the encoded states of an earlier table."""

    def __init__(self, saved: Sequence[bytes] = ()) -> None:
        self._saved = saved or (_encode(State()),)
        self._new: list[bytes] = []
        self._decoded: dict[int, State] = {}
        self._numbers: dict[bytes, int] | None = None
        self._size = 0

    def encoded(self) -> list[bytes]:
        """Return all states, ordered by number."""
        return [*self._saved, *self._new]

    def __getitem__(self, number: int) -> State:
        state = self._decoded.get(number)
        if state is None:
            state = self._decoded[number] = _decode(self._saved[number])
        return state

    def number_of(self, state: State) -> int:
        """Return the number of a state, adding it if it is new."""
        if self._numbers is None:
            self._numbers = {encoded: number for number, encoded in enumerate(self._saved)}
            self._size = sum(map(len, self._numbers))
        try:
            encoded = _encode(state)
        except (ValueError, OverflowError):
            return UNKNOWN  # a lone surrogate, or a huge integer
        number = self._numbers.get(encoded)
        if number is None:
            if self._size + len(encoded) > _MAX_SIZE:
                return UNKNOWN
            number = self._numbers[encoded] = len(self._saved) + len(self._new)
            self._new.append(encoded)
            self._decoded[number] = state
            self._size += len(encoded)
        return number


# -- the cache file


class Header(msgspec.Struct):
    """What the saved index knows about the journal as a whole."""

    covered: int
    checked: int
    checksum: int
    entries: int
    labels: dict[str, str]
    title: int
    missing: list[str]
    findings: list[Finding]
    found: int
    rows: int = 0
    slots: int = 0
    states: int = 0
    checksums: list[int] = []
    extra: Any = None


def write(fs: Filesystem, path: str, header: Header, rows: bytearray, states: Sequence[bytes]) -> None:
    """Save an index, replacing an earlier one.

    Everything else is appended to `rows`, so that a large index is not in memory twice.
    """
    header.rows, header.states = len(rows) // ROW.size, len(states)
    slots = _hash_table(rows)
    header.slots = len(slots) // _SLOT.size
    payload = rows
    payload += slots
    payload += struct.pack(f"<{len(states) + 1}I", *accumulate(map(len, states), initial=0))
    payload += b"".join(states)
    view = memoryview(payload)
    header.checksums = [zlib.crc32(view[at : at + _BLOCK]) for at in range(0, len(view), _BLOCK)]
    encoded = msgspec.json.encode(header)
    prefix = _PREFIX.pack(_MAGIC, _NO_STAMP, len(encoded), zlib.crc32(encoded))
    atomic.make_folders(fs, posixpath.dirname(path))
    pieces = (view[at : at + _PIECE].tobytes() for at in range(0, len(view), _PIECE))
    atomic.replace(fs, path, chain((prefix + encoded,), pieces), durable=False, cache=True)


class IndexDamaged(Exception):
    """The cache does not hold what was written to it, and must be rebuilt."""


class NewerIndex(ValueError):
    """The cache file has a form that only a newer release knows. It is left alone."""


# Errors after which the cache is ignored.
NO_CACHE = (IndexDamaged, OSError, ValueError, msgspec.MsgspecError, struct.error)


class IndexFile(atomic.Descriptor):
    """A saved index, read block by block; each block is checked when first read."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._fd = fs.open(path, os.O_RDONLY)
        self._blocks: dict[int, bytes] = {}
        self._whole: bytes | None = None
        try:
            self.header, self.stamp, self._start, first = _read_header(fs, self._fd)
            if len(first) < _FIRST_READ:  # that is all of it: most sessions need one descriptor, not two
                self._whole = first
                self.close()
        except BaseException:
            self.close()
            raise
        self._slots_at = self.header.rows * ROW.size
        self._states_at = self._slots_at + self.header.slots * _SLOT.size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            atomic.close_quietly(self._fs, fd)  # it was only read

    def states(self) -> Sequence[bytes]:
        """Return the encoded states, each read on access."""
        return _SavedStates(self, self._states_at, self.header.states)

    def place(self, number: int) -> Place:
        """Return one row."""
        block, at = divmod(number * ROW.size, _BLOCK)
        if at + ROW.size > _BLOCK:
            return Place._make(ROW.unpack(self.read(number * ROW.size, ROW.size)))
        return Place._make(ROW.unpack_from(self._block(block), at))

    def places(self, start: int, stop: int) -> list[Place]:
        """Return the rows of consecutive entries."""
        return list(map(Place._make, ROW.iter_unpack(self.read(start * ROW.size, (stop - start) * ROW.size))))

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the payload. Raise IndexDamaged if they are not what was written."""
        number, at = divmod(offset, _BLOCK)
        if at + size <= _BLOCK:
            return self._block(number)[at : at + size]
        last = (offset + size - 1) // _BLOCK
        joined = b"".join(self._block(n) for n in range(number, last + 1))
        return joined[at : at + size]

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            block = self._read(self._start + number * _BLOCK)
            checksums = self.header.checksums
            if number >= len(checksums) or zlib.crc32(block) != checksums[number]:
                raise IndexDamaged(f"block {number}")
            self._blocks[number] = block
        return block

    def _read(self, offset: int) -> bytes:
        if self._whole is not None:
            return self._whole[offset : offset + _BLOCK]
        try:
            return self._fs.read(self._fd, _BLOCK, offset)
        except OSError as error:
            raise IndexDamaged(str(error)) from error

    def find(self, entry_id: str) -> int | None:
        """Return the number of an entry; `None` if there is none with that id."""
        slots = self.header.slots
        if not slots:
            return None
        key, hashed = key_of(entry_id)
        slot = _slot(int.from_bytes(key, "little"), slots)
        while row := _SLOT.unpack(self.read(self._slots_at + slot * _SLOT.size, _SLOT.size))[0]:
            place = self.place(row - 1)
            if place.key == key and place.hashed == hashed:
                return int(row) - 1
            slot = (slot + 1) % slots
        return None


def _read_header(fs: Filesystem, fd: int) -> tuple[Header, Stamp | None, int, bytes]:
    """Return the header of a saved index, its stamp if it has a settled one, where the payload starts, and the first bytes."""
    start = fs.read(fd, _FIRST_READ, 0)
    magic, stamp, size, checksum = _PREFIX.unpack_from(start)
    encoded = start[_PREFIX.size : _PREFIX.size + size]
    if len(encoded) < size <= fs.fstat(fd).st_size:
        encoded = fs.read(fd, size, _PREFIX.size)
    if magic != _MAGIC or zlib.crc32(encoded) != checksum:
        digits = magic.strip().removeprefix(_FORM)
        if magic.startswith(_FORM) and digits.isdigit() and int(digits) > int(_MAGIC.removeprefix(_FORM)):
            raise NewerIndex("an index of a newer release")
        raise ValueError("not an index of this version")
    *fields, settled, checked = _CHECKED.unpack(stamp)
    is_whole = settled and zlib.crc32(stamp[: _STAMP.size]) == checked
    header = msgspec.json.decode(encoded, type=Header)
    return header, tuple(fields) if is_whole else None, _PREFIX.size + size, start


class _SavedStates(Sequence[bytes]):
    """The states of a saved index: a table of their ends, then the states."""

    def __init__(self, file: IndexFile, at: int, count: int) -> None:
        self._file = file
        self._at = at
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if number >= self._count:
            raise IndexError(number)
        start, end = _ENDS.unpack(self._file.read(self._at + number * _SLOT.size, _ENDS.size))
        return self._file.read(self._at + (self._count + 1) * _SLOT.size + start, end - start)


def key_of(entry_id: str) -> tuple[bytes, bool]:
    """Return eight bytes that represent an id, and whether they are a hash of it."""
    if len(entry_id) == 8 and entry_id.isascii():
        return entry_id.encode("ascii"), False
    return blake2b(entry_id.encode("utf-8", "surrogatepass"), 8), True


def _slot(key: int, slots: int) -> int:
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) % slots


def _hash_table(rows: bytearray) -> bytes:
    """Return a hash table of row numbers plus one, by key."""
    count = len(rows) // ROW.size
    slots = count * _SLOTS_PER_ROW + 1 if count else 0
    table = array("I", bytes(slots * _SLOT.size))
    for number, (key,) in enumerate(_KEY_OF_ROW.iter_unpack(rows), 1):
        slot = _slot(key, slots)
        while table[slot]:
            slot = slot + 1 if slot + 1 < slots else 0
        table[slot] = number
    if sys.byteorder == "big":
        table.byteswap()
    return table.tobytes()
