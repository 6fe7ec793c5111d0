"""Entries of ours as rows of a MyAgents session.

    messages on the path to the leaf     rows; results go into the blocks of their calls
    everything else                      carried by the row before it, where MyAgents passes over it

Rules: MyAgents has neither branches nor compactions. Each row carries the entries that it stands for, without what the row
tells by itself, so that reading the file gives the same tree again; `counts` says how many have no counterpart. What comes
before the first message is carried by that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sessile.core.kinds import LEAF_MARKER
from sessile.core.lines import Line, Scanner
from sessile.formats.myagents import blocks
from sessile.formats.myagents.messages import encode_row
from sessile.formats.myagents.natives import MEMBER, ROLES, USAGE, natives_of
from sessile.formats.myagents.types import Json, Message


class Rendering:
    """Makes the rows of one session; ids of messages are numbers that go on behind `last`."""

    def __init__(self, is_on_path: Callable[[str], bool], last: int = -1) -> None:
        self.counts: dict[str, int] = {}
        self._is_on_path = is_on_path
        self._number = last
        self._group: list[tuple[Mapping[str, Any], bool]] = []  # the entries of the next row, and whether it tells them
        self._message: Mapping[str, Any] | None = None
        self._results: list[Mapping[str, Any]] = []

    def rows(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
        """The rows of entries in the order of their file."""
        for entry in entries:
            message = entry.get("message")
            said = message if entry.get("type") == "message" and isinstance(message, Mapping) else {}
            on_path = bool(said) and self._is_on_path(str(entry.get("id")))
            speaks = on_path and said.get("role") in ROLES
            answers = on_path and said.get("role") == "toolResult" and self._is_called(said.get("toolCallId"))
            if speaks:
                if self._message is not None:
                    yield self._row()
                self._message = said
            elif answers:
                self._results.append(said)
            elif entry.get("customType") != LEAF_MARKER:
                kind = str(entry.get("type")) if not said or on_path else "message on another branch"
                self.counts[kind] = self.counts.get(kind, 0) + 1
            self._group.append((entry, speaks or answers))
        if self._message is not None:
            yield self._row()

    def _is_called(self, call_id: object) -> bool:
        return any(block.get("id") == call_id for block in _calls(self._message or {}))

    def _row(self) -> bytes:
        message, results, group = self._message or {}, self._results, self._group
        self._message, self._results, self._group = None, [], []
        self._number += 1
        row: Json = {"id": str(self._number), "role": message.get("role")}
        row["content"] = blocks.to_stored(message.get("content"), results)
        row["timestamp"] = next(entry.get("timestamp") for entry, _ in group if entry.get("message") is message)
        if message.get("role") == "assistant":
            row |= _usage_of(message) | {"toolCount": len(_calls(message))}
        attachments = message.get("attachments")
        if isinstance(attachments, list):
            row["attachments"] = attachments
        exact = natives_of(Message(row)) == [message, *results]
        row[MEMBER] = [_without_message(entry) if exact and told else dict(entry) for entry, told in group]
        return encode_row(row)


def _without_message(entry: Mapping[str, Any]) -> Json:
    return {name: value for name, value in entry.items() if name != "message"}


def _usage_of(message: Mapping[str, Any]) -> Json:
    usage = message.get("usage")
    if not isinstance(usage, Mapping):
        return {}
    counts = {theirs: usage[ours] for ours, theirs in USAGE if isinstance(usage.get(ours), int)}
    named = {"model": message.get("model"), "providerId": message.get("provider")}
    return {"usage": counts | {name: text for name, text in named.items() if isinstance(text, str)}}


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    found = content if isinstance(content, list) else ()
    return [block for block in found if isinstance(block, Mapping) and block.get("type") == "toolCall"]


class Counting:
    """Watches the rows of a file go by: `last` is the highest number among the ids of their messages."""

    def __init__(self) -> None:
        self.last = -1

    def passed(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces as they are."""
        scanner = Scanner(untyped=True)
        for piece in pieces:
            for item in scanner.feed(piece):
                if isinstance(item, Line):
                    self.last = next_number(item.head.id, self.last + 1) - 1
            yield piece


def next_number(message_id: str | None, number: int) -> int:
    """The number after a message: ids are counted, and one that is no number does not count."""
    found = message_id or ""
    return max(number, int(found) + 1) if found.isascii() and found.isdigit() and len(found) < 16 else number
