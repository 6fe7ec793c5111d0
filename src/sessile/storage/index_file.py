"""The saved form of a row index: a header, rows of fixed width, a hash table of ids, the states.

    id key · offset and flags · length · row of the parent · number of the state after this entry

It is checked against the journal when loaded (inode, size, hash of the last bytes covered) and block by block when read, so
that a large index costs no more than the blocks that are looked at. It does not know what the rows are for.
"""

from __future__ import annotations

import os
import posixpath
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import msgspec

from sessile.core.hashes import blake2b
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat

TAIL = 4096  # bytes before the covered end that must not have changed
ROW = struct.Struct("<8sQIii")

# Flags of our own above those of the kinds.
HASHED = 1 << 14  # the key is a hash of an id that is not eight bytes long
ORPHAN = 1 << 15  # there is a parent id, but no such entry
KIND_FLAGS = (1 << 14) - 1

_MAGIC = b"sessile-index-6\n"
_PREFIX = struct.Struct("<16sII")
_KEY_OF_ROW = struct.Struct("<Q20x")
_SLOT = struct.Struct("<I")
_ENDS = struct.Struct("<II")
_SLOTS_PER_ROW = 2
_BLOCK = 8 * 1024  # checked as a whole: a larger one costs more than the rows that are wanted
_FIRST_READ = 64 * 1024
_PIECE = 1 << 20  # bytes that are written at once


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


class Header(msgspec.Struct):
    """What the index says about the journal as a whole."""

    inode: int
    device: int
    covered: int
    entries: int
    labels: dict[str, str]
    title: int
    missing: list[str]
    findings: list[Finding]
    found: int
    tail: str = ""
    rows: int = 0
    slots: int = 0
    states: int = 0
    checksums: list[int] = []
    extra: Any = None


def write(fs: Filesystem, path: str, header: Header, tail: bytes, rows: bytearray, states: Sequence[bytes]) -> None:
    """Save an index in place of what is there. `tail` are the last bytes of the journal that it covers.

    What else is saved is put behind the rows: a large index should not be in memory twice.
    """
    header.tail = _tail_hash(tail)
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
    prefix = _PREFIX.pack(_MAGIC, len(encoded), zlib.crc32(encoded))
    atomic.make_folders(fs, posixpath.dirname(path))
    pieces = (view[at : at + _PIECE].tobytes() for at in range(0, len(view), _PIECE))
    atomic.replace(fs, path, chain((prefix + encoded,), pieces), durable=False)


class IndexDamaged(Exception):
    """The cache does not hold what was written to it; it has to be made anew."""


# A cache that cannot be read is no cache.
NO_CACHE = (IndexDamaged, OSError, ValueError, msgspec.MsgspecError, struct.error)


class IndexFile:
    """A saved index, read block by block; each block is checked when first read."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._fd = fs.open(path, os.O_RDONLY)
        self._blocks: dict[int, bytes] = {}
        try:
            start = fs.read(self._fd, _FIRST_READ, 0)
            magic, size, checksum = _PREFIX.unpack_from(start)
            encoded = start[_PREFIX.size : _PREFIX.size + size]
            if len(encoded) < size <= fs.fstat(self._fd).st_size:
                encoded = fs.read(self._fd, size, _PREFIX.size)
            if magic != _MAGIC or zlib.crc32(encoded) != checksum:
                raise ValueError("not an index of this version")
            self.header = msgspec.json.decode(encoded, type=Header)
        except BaseException:
            self.close()
            raise
        self._start = _PREFIX.size + size
        self._slots_at = self.header.rows * ROW.size
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

    def states(self) -> Sequence[bytes]:
        """The encoded states, each read when it is asked for."""
        return _SavedStates(self, self._states_at, self.header.states)

    def place(self, number: int) -> Place:
        """One row."""
        block, at = divmod(number * ROW.size, _BLOCK)
        if at + ROW.size > _BLOCK:
            return Place._make(ROW.unpack(self.read(number * ROW.size, ROW.size)))
        return Place._make(ROW.unpack_from(self._block(block), at))

    def places(self, start: int, stop: int) -> list[Place]:
        """The rows of entries that follow each other."""
        return list(map(Place._make, ROW.iter_unpack(self.read(start * ROW.size, (stop - start) * ROW.size))))

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
        """The number of an entry."""
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


class _SavedStates(Sequence[bytes]):
    """The states of a saved index: where each ends, then one after the other."""

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
    """Eight bytes that stand for an id, and whether they are a hash of it."""
    if len(entry_id) == 8 and entry_id.isascii():
        return entry_id.encode("ascii"), False
    return blake2b(entry_id.encode("utf-8", "surrogatepass"), 8), True


def _slot(key: int, slots: int) -> int:
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) % slots


def _hash_table(rows: bytearray) -> bytes:
    """Row numbers plus one at the slots of their keys."""
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


def _tail_hash(tail: bytes) -> str:
    return blake2b(tail, 16).hex()
