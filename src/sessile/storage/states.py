"""The states that paths of a journal have gone through, each kept once and known by its number.

Most entries change nothing, and most changes lead to a state that was there before, so a large journal has few. A state is
decoded when it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessile.core.kinds import State

UNKNOWN = -1  # stands for a state that is not kept: it has to be folded from its path
BEGINNING = 0

_MAX_SIZE = 256 * 1024  # bytes of all states; there could be as many as entries

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


class StateTable:
    """Numbers of states; the one of an empty path is `BEGINNING`. `saved` are those of an earlier table, encoded."""

    def __init__(self, saved: Sequence[bytes] = ()) -> None:
        self._saved = saved or (_encode(State()),)
        self._new: list[bytes] = []
        self._decoded: dict[int, State] = {}
        self._numbers: dict[bytes, int] | None = None
        self._size = 0

    def encoded(self) -> list[bytes]:
        """All states in the order of their numbers."""
        return [*self._saved, *self._new]

    def __getitem__(self, number: int) -> State:
        state = self._decoded.get(number)
        if state is None:
            state = self._decoded[number] = _decode(self._saved[number])
        return state

    def number_of(self, state: State) -> int:
        """The number of a state, new if it was never there."""
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
