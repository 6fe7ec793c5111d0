"""A session on its way out to people: what an export or a page shows of it, whatever it is shown as.

The entries are those that leave, in file order, with secrets already replaced; who renders them decides nothing about that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.parts import Depth


class Gap(NamedTuple):
    """Bytes of the file that could not be read, behind an entry, or before the first if that is `None`."""

    after: str | None
    message: str


class Transcript(NamedTuple):
    """One session, or one branch of it, for people to read."""

    id: str
    title: str | None
    cwd: str
    created: int | None  # milliseconds since 1970
    entries: Iterable[
        Mapping[str, Any]
    ]  # in file order; can be gone through more than once, and need not fit in memory
    entry_count: int
    leaf: str | None  # the tip of the branch that is shown first
    labels: Mapping[str, str]
    gaps: Sequence[Gap]
    depth: Depth
    notes: Sequence[str]  # what the reader should know: what was left out, what was redacted
