"""At which of its calls a piece of work is struck: at every one in `make faults`, at some of them in the default run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

_FIRST = 6  # calls that are all struck: most work begins with what is delicate
_STRIDE = 1 if os.environ.get("SESSILE_EVERY") == "1" else 3


def calls() -> Iterator[int]:
    """The numbers of calls, for ever; whoever asks stops when the work has come to its end."""
    yield from range(1, _FIRST + 1)
    yield from count(_FIRST + _STRIDE, _STRIDE)
