"""Which values a journal gives back exactly as they were, when they are members of an entry.

Almost all. But the working members of half-received tool calls are dropped on the way, a count of lines is corrected where a
text is cut, and what looks like a reference to a blob is taken for one. Whoever keeps values of another program, and owes it
every bit of them, stores such a value as text: text is never looked into.
"""

from __future__ import annotations

from sessile.core.large import DROPPED

_TOUCHED = (*(f'"{name}"'.encode() for name in (*DROPPED, "lineCount")), b'"blob:sha256:')


def survives(raw: bytes) -> bool:
    """Whether an encoded value comes back as it is; one that does not has to be stored as text."""
    return not any(mark in raw for mark in _TOUCHED)
