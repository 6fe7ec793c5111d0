"""The row index: where each entry of a journal lies, what it hangs from, and the state of its path.

It is a cache. It is never written while appending, it is checked against the journal when loaded (inode, size, hash of the
last bytes covered) and block by block when read; whoever reads a line through it checks that line too, and any mismatch
throws the index away. Rows have a fixed width:

    id key · offset and flags · length · row of the parent · number of the state after this entry

so that a path costs one row a step and the state of any entry costs one look-up. That only holds while parents come before
their children and ids are unique: a journal where they do not is `irregular`, and is read without an index.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from array import array
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from sessile.core.codec import decode
from sessile.core.kinds import LABEL, MESSAGE, STATE, TITLE, State, flags_of, fold
from sessile.core.lines import Finding, Line
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat

NOWHERE = -1
MAX_FINDINGS = 1000  # kept in full; a file of garbage would otherwise fill the memory
TAIL = 4096  # bytes before the covered end that must not have changed
SAVE_AFTER_ROWS = 64  # fewer new rows, or bytes, are scanned again sooner than the index is written again
SAVE_AFTER_BYTES = 1 << 20

_MAGIC = b"sessile-index-1\n"
_PREFIX = struct.Struct("<16sII")
_ROW = struct.Struct("<8sQIii")
_KEY_OF_ROW = struct.Struct("<Q20x")
_SLOT = struct.Struct("<I")
_BLOCK = 32 * 1024
_SLOTS_PER_ROW = 2
_MAX_STATES = 256 * 1024  # bytes of all states; paths beyond are folded when asked for
_STATE_UNKNOWN = -1

# Flags of our own above those of the kinds.
_HASHED = 1 << 14  # the key is a hash of an id that is not eight bytes long
_ORPHAN = 1 << 15  # there is a parent id, but no such entry
_FLAGS = (1 << 14) - 1

_encode_states = msgspec.json.Encoder().encode
_decode_states = msgspec.json.Decoder(list[State]).decode


class Place(NamedTuple):
    """One row of the index."""

    key: bytes
    hashed: bool
    orphan: bool
    offset: int
    length: int
    flags: int
    parent: int
    state: int


class _Header(msgspec.Struct):
    inode: int
    device: int
    covered: int
    tail: str
    rows: int
    slots: int
    states: int
    messages: int
    labels: list[int]
    title: int
    missing: list[str]
    findings: list[Finding]
    found: int
    checksums: list[int]


class RowIndex:
    """The rows of one journal: those of a cache file, if there is one, and those added since."""

    def __init__(self) -> None:
        self.covered = 0
        self.irregular = False
        self.messages = 0
        self.labels: list[int] = []
        self.title = NOWHERE
        self.findings: list[Finding] = []
        self.found = 0
        self._file: _IndexFile | None = None
        self._saved = 0  # the rows of the cache file; those in memory come after them
        self._kept = (0, 0)  # the rows and bytes of the journal that some cache file covers
        self._tail = bytearray()
        self._tail_states = array("i")
        self._numbers: dict[str, int] = {}
        self._missing: set[str] = set()
        self._states = [State()]
        self._states_size = 0
        self._state_numbers: dict[bytes, int] = {_encode_states(State()): 0}
        self._answers: dict[tuple[int, str | None, str | None], int] = {}

    def __len__(self) -> int:
        return self._saved + len(self._tail_states)

    @property
    def worth_saving(self) -> bool:
        """Whether scanning what no cache file covers costs more than writing one."""
        rows, covered = self._kept
        new = self.covered - covered
        enough = len(self) - rows >= SAVE_AFTER_ROWS or new >= SAVE_AFTER_BYTES
        return enough and new >= self.covered >> 8

    @property
    def has_orphans(self) -> bool:
        """Whether some entry hangs from one that is not there."""
        return bool(self._missing)

    def report(self, finding: Finding) -> None:
        """Note something that is not as it should be."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def add(self, line: Line, entry_id: str) -> None:
        """Add the next entry of the journal."""
        offset, raw, head = line
        number = len(self._tail_states) + self._saved
        numbers, saved = self._numbers, self._file
        flags = flags_of(head)
        parent_id = head.parentId
        parent = NOWHERE
        state = marks = 0
        if parent_id:
            found = numbers.get(parent_id)
            if found is None and saved is not None:
                found = saved.find(parent_id)
            if found is None:
                marks = _ORPHAN
                self._missing.add(parent_id)
            else:
                parent = found
                state = self._state_number(parent)
        if entry_id in numbers or entry_id in self._missing or (saved and saved.find(entry_id) is not None):
            self.irregular = True
        if flags & STATE and state != _STATE_UNKNOWN:
            state = self._state_after(state, flags, line)
        key, hashed = _key(entry_id)
        if hashed:
            marks |= _HASHED
        self._tail += _ROW.pack(key, offset << 16 | flags | marks, len(raw), parent, state)
        self._tail_states.append(state)
        numbers[entry_id] = number
        if flags & MESSAGE:
            self.messages += 1
        elif flags & LABEL:
            self.labels.append(number)
        elif flags & TITLE:
            self.title = number

    def _state_number(self, number: int) -> int:
        in_memory = number - self._saved
        return self._tail_states[in_memory] if in_memory >= 0 else self.place(number).state

    def _state_after(self, before: int, flags: int, line: Line) -> int:
        if not flags & MESSAGE:
            return self._number_of(fold(self._states[before], decode(line.raw)))
        # Of a message the head says all that counts: its body is not decoded, and most answers repeat their model.
        message = line.head.message
        assert message is not None
        answer = (before, message.provider, message.model)
        number = self._answers.get(answer)
        if number is None:
            number = self._number_of(fold(self._states[before], {"type": "message", "message": asdict(message)}))
            self._answers[answer] = number
        return number

    def _number_of(self, state: State) -> int:
        try:
            encoded = _encode_states(state)
        except (ValueError, OverflowError):
            return _STATE_UNKNOWN  # a lone surrogate, or a huge integer
        number = self._state_numbers.get(encoded)
        if number is None:
            if self._states_size + len(encoded) > _MAX_STATES:
                return _STATE_UNKNOWN
            number = len(self._states)
            self._states.append(state)
            self._states_size += len(encoded)
            self._state_numbers[encoded] = number
        return number

    def place(self, number: int) -> Place:
        """The row of an entry."""
        if number >= self._saved:
            row = _ROW.unpack_from(self._tail, (number - self._saved) * _ROW.size)
        else:
            assert self._file is not None
            row = _ROW.unpack(self._file.read(number * _ROW.size, _ROW.size))
        key, packed, length, parent, state = row
        flags = packed & 0xFFFF
        return Place(
            key, flags & _HASHED != 0, flags & _ORPHAN != 0, packed >> 16, length, flags & _FLAGS, parent, state
        )

    def find(self, entry_id: str) -> int | None:
        """The number of an entry."""
        number = self._numbers.get(entry_id)
        if number is None and self._file is not None:
            number = self._file.find(entry_id)
        return number

    def state(self, number: int) -> State | None:
        """The state after an entry; `None` if it has to be folded."""
        state = self._state_number(number)
        return None if state == _STATE_UNKNOWN else self._states[state]

    def save(self, fs: Filesystem, path: str, journal: Stat, tail: bytes) -> None:
        """Write the whole index to the cache; the file that this one was loaded from stays as good as it was."""
        rows = (self._file.read(0, self._saved * _ROW.size) if self._file else b"") + bytes(self._tail)
        slots = _hash_table(rows)
        states = _encode_states(self._states)
        payload = memoryview(rows + slots + states)
        header = _Header(
            inode=journal.st_ino,
            device=journal.st_dev,
            covered=self.covered,
            tail=_tail_hash(tail),
            rows=len(self),
            slots=len(slots) // _SLOT.size,
            states=len(states),
            messages=self.messages,
            labels=self.labels,
            title=self.title,
            missing=sorted(self._missing),
            findings=self.findings,
            found=self.found,
            checksums=[zlib.crc32(payload[at : at + _BLOCK]) for at in range(0, len(payload), _BLOCK)],
        )
        encoded = msgspec.json.encode(header)
        prefix = _PREFIX.pack(_MAGIC, len(encoded), zlib.crc32(encoded))
        atomic.make_folders(fs, os.path.dirname(path))
        atomic.replace(fs, path, (prefix + encoded, bytes(payload)), durable=False)
        self._kept = (len(self), self.covered)

    @classmethod
    def load(cls, fs: Filesystem, path: str, journal: Stat, read_tail: Callable[[int], bytes]) -> RowIndex | None:
        """The saved index, or `None` if there is none that fits the journal."""
        try:
            file = _IndexFile(fs, path)
        except _NO_CACHE:
            return None
        index = cls()
        try:
            if file.fits(journal, read_tail):
                index._adopt(file)
                return index
        except _NO_CACHE:
            pass
        file.close()
        return None

    def _adopt(self, file: _IndexFile) -> None:
        header = file.header
        self._states = _decode_states(file.states())
        self._state_numbers = {_encode_states(state): number for number, state in enumerate(self._states)}
        self._states_size = sum(map(len, self._state_numbers))
        self._file = file
        self._saved = header.rows
        self._kept = (header.rows, header.covered)
        self.covered = header.covered
        self.messages = header.messages
        self.labels = header.labels
        self.title = header.title
        self._missing = set(header.missing)
        self.findings = header.findings
        self.found = header.found

    def close(self) -> None:
        """Let go of the cache file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class IndexDamaged(Exception):
    """The cache does not hold what was written to it; it has to be made anew."""


# A cache that cannot be read is no cache.
_NO_CACHE = (IndexDamaged, OSError, ValueError, msgspec.MsgspecError, struct.error)


class _IndexFile:
    """A saved index, read block by block; each block is checked when first read."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._fd = fs.open(path, os.O_RDONLY)
        self._blocks: dict[int, bytes] = {}
        try:
            start = fs.read(self._fd, 2 * _BLOCK, 0)
            magic, size, checksum = _PREFIX.unpack_from(start)
            encoded = start[_PREFIX.size : _PREFIX.size + size]
            if len(encoded) < size <= fs.fstat(self._fd).st_size:
                encoded = fs.read(self._fd, size, _PREFIX.size)
            if magic != _MAGIC or zlib.crc32(encoded) != checksum:
                raise ValueError("not an index of this version")
            self.header = msgspec.json.decode(encoded, type=_Header)
        except BaseException:
            self.close()
            raise
        self._start = _PREFIX.size + size
        self._slots_at = self.header.rows * _ROW.size
        self._states_at = self._slots_at + self.header.slots * _SLOT.size

    def close(self) -> None:
        try:
            self._fs.close(self._fd)
        except OSError:
            pass  # only read from

    def fits(self, journal: Stat, read_tail: Callable[[int], bytes]) -> bool:
        """Whether this is the index of that journal, and the journal has only grown since."""
        header = self.header
        return (
            (header.inode, header.device) == (journal.st_ino, journal.st_dev)
            and header.covered <= journal.st_size
            and header.tail == _tail_hash(read_tail(header.covered))
        )

    def states(self) -> bytes:
        return self.read(self._states_at, self.header.states)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the payload; raises IndexDamaged if they are not what was written."""
        number, at = divmod(offset, _BLOCK)
        if at + size <= _BLOCK:
            return self._block(number)[at : at + size]
        last = (offset + size - 1) // _BLOCK
        joined = b"".join(self._block(n) for n in range(number, last + 1))
        return joined[at : at + size]

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            try:
                block = self._fs.read(self._fd, _BLOCK, self._start + number * _BLOCK)
            except OSError as error:
                raise IndexDamaged(str(error)) from error
            checksums = self.header.checksums
            if number >= len(checksums) or zlib.crc32(block) != checksums[number]:
                raise IndexDamaged(f"block {number}")
            self._blocks[number] = block
        return block

    def find(self, entry_id: str) -> int | None:
        slots = self.header.slots
        if not slots:
            return None
        key, hashed = _key(entry_id)
        slot = _slot(int.from_bytes(key, "little"), slots)
        while row := _SLOT.unpack(self.read(self._slots_at + slot * _SLOT.size, _SLOT.size))[0]:
            packed = self.read((row - 1) * _ROW.size, _ROW.size)
            if packed.startswith(key) and bool(_ROW.unpack(packed)[1] & _HASHED) == hashed:
                return int(row) - 1
            slot = (slot + 1) % slots
        return None


def _key(entry_id: str) -> tuple[bytes, bool]:
    """Eight bytes that stand for an id, and whether they are a hash of it."""
    if len(entry_id) == 8 and entry_id.isascii():
        return entry_id.encode("ascii"), False
    return hashlib.blake2b(entry_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), True


def _slot(key: int, slots: int) -> int:
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) % slots


def _hash_table(rows: bytes) -> bytes:
    """Row numbers plus one at the slots of their keys."""
    count = len(rows) // _ROW.size
    slots = count * _SLOTS_PER_ROW + 1 if count else 0
    table = [0] * slots
    for number, (key,) in enumerate(_KEY_OF_ROW.iter_unpack(rows), 1):
        slot = _slot(key, slots)
        while table[slot]:
            slot = slot + 1 if slot + 1 < slots else 0
        table[slot] = number
    return struct.pack(f"<{slots}I", *table)


def _tail_hash(tail: bytes) -> str:
    return hashlib.blake2b(tail, digest_size=16).hexdigest()
