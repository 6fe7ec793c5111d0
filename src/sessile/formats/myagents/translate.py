"""Rows of a MyAgents session as entries of ours.

    user, assistant      a message, and behind it one for each result of its tools: there both are one block
    any other row        a custom entry: nothing of it is lost

Rules: rows form one chain; they have no parents, and their ids are small numbers that a damaged file may repeat, so their place
names them here. Title and folder of a session stand in MyAgents' own list, beside the file. A row that was made of entries of
ours carries them, and is those entries again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sessile.core.codec import decode
from sessile.core.kinds import LEAF_MARKER, MARKER, flags_of
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.formats.base import NOTHING_TOLD, Entry, Glimpse, Known, Look, Told
from sessile.formats.myagents.natives import kept_entries, natives_of
from sessile.formats.myagents.types import Message

NAME = "myagents"
_LOOKED_AT = 20  # lines in which a file says what it is


class MyAgents:
    """The format of MyAgents."""

    name = NAME
    nested = True

    def scanner(self, offset: int) -> Scanner:
        """Rows name no type."""
        return Scanner(offset, untyped=True)

    def recognises(self, first: bytes) -> bool:
        """Its rows have an id, a role and a content, and no type."""
        for line in first.split(b"\n")[:_LOOKED_AT]:
            row = _row(line)
            if row:
                return "type" not in row and isinstance(row.get("role"), str) and {"id", "content"} <= row.keys()
        return False

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Id from the name of the file, time from its first rows, the rest from MyAgents' list."""
        times = (Message(_row(line)).timestamp for line in first.split(b"\n"))
        header = {"type": "session", "version": 3, "id": stem, "timestamp": next(filter(None, times), None)}
        header |= {"cwd": told.cwd or "", "title": told.title or None, "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """The first thing that a person said, and who spoke last."""
        messages = (Message(_row(line)) for line in first.split(b"\n"))
        said = next((text for message in messages if message.role == "user" and (text := message.text)), "")
        ends = [row["role"] for line in last.split(b"\n") if isinstance((row := _row(line)).get("role"), str)]
        return Glimpse(first_text=said, last_role=ends[-1] if ends else "")

    def translator(self, saved: Any = None) -> Rows:
        """From the beginning of a file, or from where one was saved."""
        return Rows(msgspec.convert(saved, _Saved) if saved is not None else _Saved())

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """The place of a row; results have a number behind it."""
        return [str(entry.get("id")) for entry in _entries(raw, offset)]

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries."""
        offset = int(entry_id[1:].partition("/")[0], 16) if entry_id.startswith("@") else 0
        entry = next(entry for entry in _entries(raw, offset) if entry.get("id") == entry_id)
        return entry if "parentId" in entry else entry | {"parentId": parent_id}


class _Saved(msgspec.Struct):
    """What a translator keeps between rows."""

    last: str | None = None


class Rows:
    """Goes through the rows of one session: each hangs from the one before."""

    def __init__(self, saved: _Saved) -> None:
        self._saved = saved

    @property
    def leaf(self) -> str | None:
        """The last entry."""
        return self._saved.last

    def saved(self) -> Any:
        """What is needed to go on later."""
        return msgspec.to_builtins(self._saved)

    def take(self, line: Line) -> Sequence[Known]:
        """What the next row is."""
        return [self._known(entry) for entry in _entries(line.raw, line.offset)]

    def _known(self, entry: Mapping[str, Any]) -> Known:
        message, custom = entry.get("message"), entry.get("customType")
        parent = entry.get("parentId", self._saved.last)
        told = MessageHead(*map(message.get, ("role", "provider", "model"))) if isinstance(message, Mapping) else None
        head = Head(str(entry["type"]), str(entry["id"]), parent, custom, told)
        # A marker of ours says where the conversation goes on.
        is_marker = custom == LEAF_MARKER and flags_of(head) & MARKER
        self._saved.last = parent if is_marker else head.id
        return Known(head)


def _entries(raw: bytes, offset: int) -> Sequence[Entry]:
    """The entries of a row; those that it was made of know what they hang from."""
    row = _row(raw)
    kept = kept_entries(row)
    if kept:
        return kept
    base = {"timestamp": Message(row).timestamp}
    natives = natives_of(Message(row))
    if not natives:
        return [{"type": "custom", "id": f"@{offset:x}", **base, "customType": "myagents.row", "data": row}]
    ids = (f"@{offset:x}{f'/{number}' if number else ''}" for number in range(len(natives)))
    return [
        {"type": "message", "id": entry_id, **base, "message": native}
        for entry_id, native in zip(ids, natives, strict=True)
    ]


def _row(raw: bytes) -> dict[str, Any]:
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
