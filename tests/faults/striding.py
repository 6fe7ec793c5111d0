"""Choose the calls to strike: every call in `make faults`, some of them in the default run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

_FIRST = 6  # always strike these: most work starts with its delicate calls
_STRIDE = 1 if os.environ.get("SESSILE_EVERY") == "1" else 3


def calls() -> Iterator[int]:
    """Yield the numbers of calls without end. The caller stops when the work is done."""
    yield from range(1, _FIRST + 1)
    yield from count(_FIRST + _STRIDE, _STRIDE)
