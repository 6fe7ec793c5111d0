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

from sessile.core.kinds import LEAF_MARKER, MARKER, flags_of
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.formats.base import NOTHING_TOLD, Entry, Glimpse, Known, Look, Told
from sessile.formats.chained import Chain, offset_of, placed, row_of
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
            row = row_of(line)
            if row:
                return "type" not in row and isinstance(row.get("role"), str) and {"id", "content"} <= row.keys()
        return False

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Id from the name of the file, time from its first rows, the rest from MyAgents' list."""
        times = (Message(row_of(line)).timestamp for line in first.split(b"\n"))
        header = {"type": "session", "version": 3, "id": stem, "timestamp": next(filter(None, times), None)}
        header |= {"cwd": told.cwd or "", "title": told.title or None, "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """The first thing that a person said, and who spoke last."""
        messages = (Message(row_of(line)) for line in first.split(b"\n"))
        said = next((text for message in messages if message.role == "user" and (text := message.text)), "")
        ends = [row["role"] for line in last.split(b"\n") if isinstance((row := row_of(line)).get("role"), str)]
        return Glimpse(first_text=said, last_role=ends[-1] if ends else "")

    def translator(self, saved: Any = None) -> Rows:
        """From the beginning of a file, or from where one was saved."""
        return Rows(saved)

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """The place of a row; results have a number behind it."""
        return [str(entry.get("id")) for entry in _entries(raw, offset)]

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries."""
        entry = next(entry for entry in _entries(raw, offset_of(entry_id)) if entry.get("id") == entry_id)
        return entry if "parentId" in entry else entry | {"parentId": parent_id}


class Rows(Chain):
    """Goes through the rows of one session."""

    def take(self, line: Line) -> Sequence[Known]:
        """What the next row is."""
        return [self._known(entry) for entry in _entries(line.raw, line.offset)]

    def _known(self, entry: Mapping[str, Any]) -> Known:
        message, custom = entry.get("message"), entry.get("customType")
        parent = entry.get("parentId", self.kept.last)
        told = MessageHead(*map(message.get, ("role", "provider", "model"))) if isinstance(message, Mapping) else None
        head = Head(str(entry["type"]), str(entry["id"]), parent, custom, told)
        # A marker of ours says where the conversation goes on.
        is_marker = custom == LEAF_MARKER and flags_of(head) & MARKER
        self.kept.last = parent if is_marker else head.id
        return Known(head)


def _entries(raw: bytes, offset: int) -> Sequence[Entry]:
    """The entries of a row; those that it was made of know what they hang from."""
    row = row_of(raw)
    kept = kept_entries(row)
    if kept:
        return kept
    base = {"timestamp": Message(row).timestamp}
    natives = natives_of(Message(row))
    if not natives:
        return [{"type": "custom", "id": placed(offset), **base, "customType": "myagents.row", "data": row}]
    ids = (placed(offset, number) for number in range(len(natives)))
    return [
        {"type": "message", "id": entry_id, **base, "message": native}
        for entry_id, native in zip(ids, natives, strict=True)
    ]
