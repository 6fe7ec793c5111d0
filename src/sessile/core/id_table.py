"""A compact table of ids: each text gets a number, and the number gives the text back.

A dict of a million ids takes over a hundred megabytes; here one takes its own bytes and about twenty more, so that a file
of any size can be checked. Texts are compared, not only their hashes. It does not know what the ids are for.
"""

from __future__ import annotations

from array import array

from sessile.core.hashes import sha256

_LONGEST = 128  # bytes; of a longer id, which only damage makes, its start and a hash are kept
_FIRST_SLOTS = 1024
_FREE = -1


class IdTable:
    """Numbers for texts, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._slots = array("i", [_FREE]) * _FIRST_SLOTS

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __contains__(self, text: str) -> bool:
        return self._slots[self._slot(_key(text))] != _FREE

    def number(self, text: str) -> int:
        """The number of a text, a new one if it was not seen before."""
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
        """The text with that number."""
        return self._bytes(number).decode("utf-8", "replace")

    def _bytes(self, number: int) -> bytearray:
        return self._text[self._ends[number] : self._ends[number + 1]]

    def _slot(self, key: bytes | bytearray) -> int:
        """Where the number of a key is, or must go: the first slot that holds it or is free."""
        slots, last = self._slots, len(self._slots) - 1
        slot = hash(bytes(key)) & last
        while slots[slot] != _FREE and self._bytes(slots[slot]) != key:
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        self._slots = array("i", [_FREE]) * (len(self._slots) * 2)
        for number in range(len(self)):
            self._slots[self._slot(self._bytes(number))] = number


def _key(text: str) -> bytes:
    key = text.encode("utf-8", "surrogatepass")
    if len(key) <= _LONGEST:
        return key
    return key[: _LONGEST // 2] + "…".encode() + sha256(key).hexdigest().encode()
