"""Ids of sessions and entries, a compact table of ids, and hashes.

Session ids are UUIDv7; in files of other agents, any safe name. Entry ids are eight letters and digits: eight hex digits would
collide about six times in 237,000 entries. Randomness and time are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from sessile.errors import InvalidId

if TYPE_CHECKING:
    from hashlib import _Hash


# -- hashes


def sha256(data: bytes = b"") -> _Hash:
    """Return the SHA-256 hash of `data`; more bytes can be added."""
    state: _Hash = _hashlib().sha256(data)
    return state


def blake2b(data: bytes, size: int) -> bytes:
    """Return the BLAKE2b hash of `data` with `size` bytes: faster, for hashes that stay inside Sessile."""
    state = _blake2b(size).copy()  # takes half the time of a new one
    state.update(data)
    digest: bytes = state.digest()
    return digest


@cache
def _blake2b(size: int) -> Any:
    return _hashlib().blake2b(digest_size=size)


def sha1(data: bytes) -> _Hash:
    """Return the SHA-1 hash of `data`, for names that other programs derive the same way; not for security."""
    state: _Hash = _hashlib().sha1(data, usedforsecurity=False)
    return state


@cache
def _hashlib() -> Any:
    import hashlib  # slow to load, and a listing needs no hashes

    return hashlib


# -- ids

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ENTRY_ID_LENGTH = 8

# 256 is not a multiple of 62, so eight of the letters are a little more frequent; this costs 0.01 bits per letter.
_LETTER_OF_BYTE = "".join(LETTERS[byte % len(LETTERS)] for byte in range(256)).encode("ascii")

# A session id becomes part of a file name: the first and last character are letters or digits, so neither `..` nor a
# hidden file nor a trailing space can be made from one. 128 keeps the name under every file system's limit.
_SESSION_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")

_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

Random = Callable[[int], bytes]
"""Return that many random bytes, as `os.urandom` does."""


def new_session_id(milliseconds: int, random: Random) -> str:
    """Return a new UUIDv7, which sorts by time."""
    number = int.from_bytes(random(10), "big")
    value = (milliseconds & 0xFFFFFFFFFFFF) << 80 | number
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_uuid(name: str) -> bool:
    """Return whether a name is a whole UUID. Most session ids are, and no title is."""
    return _UUID.fullmatch(name) is not None


def is_plain_id(session_id: str) -> bool:
    """Return whether an id may be part of a file name or a command; files of other agents may contain any id."""
    return _SESSION_ID.fullmatch(session_id) is not None


def check_session_id(session_id: str) -> str:
    """Return the id; raise if it may not be part of a file name."""
    if not is_plain_id(session_id):
        raise InvalidId(
            f"invalid session id {session_id[:80]!r}",
            hint="use at most 128 letters and digits, with . _ - allowed between them",
        )
    return session_id


def new_entry_id(random: Random) -> str:
    """Return a new entry id."""
    return _letters(random(ENTRY_ID_LENGTH))


def derived_entry_id(*parts: object) -> str:
    """Return an entry id computed from `parts`, so that links survive rereading and retries."""
    digest = sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return _letters(digest[:ENTRY_ID_LENGTH])


def _letters(drawn: bytes) -> str:
    return drawn.translate(_LETTER_OF_BYTE).decode("ascii")


# -- the table of ids

_LONGEST = 128  # bytes; of a longer id, a sign of damage, only the start and a hash are kept
_FIRST_SLOTS = 1024
_FREE = -1


class IdTable:
    """Number texts in the order in which they are added.

    A dict of a million ids takes over a hundred megabytes. Here an id takes its own bytes and about twenty more, so that a
    file of any size can be checked. Texts are compared, not only their hashes.
    """

    def __init__(self) -> None:
        from array import array  # saves start-up time: few programs need a table

        self._array = array
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._slots = array("i", [_FREE]) * _FIRST_SLOTS

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __contains__(self, text: str) -> bool:
        return self._slots[self._slot(_key(text))] != _FREE

    def number(self, text: str) -> int:
        """Return the number of a text; add it if it is new."""
        key = _key(text)
        slot = self._slot(key)
        number = self._slots[slot]
        if number != _FREE:
            return number
        number = self._slots[slot] = len(self)
        self._text += key
        self._ends.append(len(self._text))
        if len(self) * 2 > len(self._slots):
            self._grow()
        return number

    def text(self, number: int) -> str:
        """Return the text of a number."""
        return self._bytes(number).decode("utf-8", "replace")

    def _bytes(self, number: int) -> bytearray:
        return self._text[self._ends[number] : self._ends[number + 1]]

    def _slot(self, key: bytes | bytearray) -> int:
        """Return the slot of a key: the first that holds it or is free."""
        slots, last = self._slots, len(self._slots) - 1
        slot = hash(bytes(key)) & last
        while slots[slot] != _FREE and self._bytes(slots[slot]) != key:
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        self._slots = self._array("i", [_FREE]) * (len(self._slots) * 2)
        for number in range(len(self)):
            self._slots[self._slot(self._bytes(number))] = number


def _key(text: str) -> bytes:
    key = text.encode("utf-8", "surrogatepass")
    if len(key) <= _LONGEST:
        return key
    return key[: _LONGEST // 2] + "…".encode() + sha256(key).hexdigest().encode()
