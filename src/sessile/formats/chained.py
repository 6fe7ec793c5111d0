"""Formats whose rows have no parents: each row hangs from the one before, and its place in the file names it."""

from __future__ import annotations

from typing import Any

import msgspec

from sessile.core.codec import decode


class Saved(msgspec.Struct):
    """What a translator keeps between rows: the last entry, and the model that was chosen last."""

    last: str | None = None
    model: str | None = None


class Chain:
    """Where the chain of one file ends so far (`kept.last`); it goes on from what was saved."""

    def __init__(self, saved: Any = None) -> None:
        self.kept = Saved() if saved is None else msgspec.convert(saved, Saved)

    @property
    def leaf(self) -> str | None:
        """The last entry."""
        return self.kept.last

    def saved(self) -> Any:
        """What is needed to go on later."""
        return msgspec.to_builtins(self.kept)


def placed(offset: int, part: int = 0) -> str:
    """The id of a row at an offset, or of a later entry of it."""
    return f"@{offset:x}/{part}" if part else f"@{offset:x}"


def offset_of(entry_id: str) -> int:
    """Where the row of such an id lies; 0 if it is none."""
    return int(entry_id[1:].partition("/")[0], 16) if entry_id.startswith("@") else 0


def row_of(raw: bytes) -> dict[str, Any]:
    """A decoded row; empty if it is none."""
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
