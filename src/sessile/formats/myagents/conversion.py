"""MyAgents' messages as entries of ours, and back without loss.

Each message becomes a `message` entry, one for each tool result in it, and a `custom` entry that keeps the rest of its row:
either the members, where putting them together again gives the same bytes, or the row itself. On the way back a row that
nobody has touched is given out byte for byte; one whose message was changed keeps all its other members.

Entries that MyAgents has no rows for are counted in `left_out`: nothing is dropped without saying so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sessile.core import entries as make
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id
from sessile.core.kinds import LEAF_MARKER
from sessile.core.text import parse_timestamp
from sessile.errors import InvalidEntry
from sessile.formats.myagents import blocks
from sessile.formats.myagents.messages import Row, encode_row
from sessile.formats.myagents.types import Json, Message, Metadata, Usage

KEPT = "sessile.myagents"
_ROLES = ("user", "assistant")
_USAGE = (
    ("input", "inputTokens"),
    ("output", "outputTokens"),
    ("cacheRead", "cacheReadTokens"),
    ("cacheWrite", "cacheCreationTokens"),
)


class Converted(NamedTuple):
    """The rows of a session, and how many entries of each type have no counterpart among them."""

    rows: list[bytes]
    left_out: dict[str, int]


def to_header(row: Metadata, timestamp: str) -> Payload:
    """The header of the session; what MyAgents knows of it is kept in a member of its own."""
    kept = dict(row.value)
    return make.header(
        row.id, row.created_at or timestamp, row.agent_dir or "/", title=row.title or None, myagents=kept
    )


def to_entries(session_id: str, rows: Iterable[Row], timestamp: str) -> Iterator[Payload]:
    """The entries of a session, each the child of the one before; `timestamp` is for rows that have none."""
    parent = None
    for number, row in enumerate(rows):
        message = row.message
        payloads = [make.message(native) for native in _natives(message)]
        first = derived_entry_id(session_id, number, 0)
        payloads.append(make.custom(KEPT, {"of": first} | _kept(row, message)))
        for part, payload in enumerate(payloads):
            entry_id = derived_entry_id(session_id, number, part)
            yield make.with_base(payload, entry_id, parent, message.timestamp or timestamp)
            parent = entry_id


def _natives(message: Message) -> list[Json]:
    """The message as ours, and one for each tool result in it."""
    at = parse_timestamp(message.timestamp)
    content = blocks.to_native(message.content)
    native: Json = {"role": message.role or "", "content": content}
    if message.role == "assistant":
        native["content"] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message.usage is not None:
            native |= _native_usage(message.usage)
    if at is not None:
        native["timestamp"] = at
    return [native, *blocks.results_in(message.content, at)]


def _native_usage(usage: Usage) -> Json:
    told = {ours: usage.value.get(theirs) for ours, theirs in _USAGE}
    counts = {name: count for name, count in told.items() if isinstance(count, int)}
    named = {"provider": usage.provider_id, "model": usage.model}
    total = {"totalTokens": sum(counts.values())} if counts else {}
    return {name: text for name, text in named.items() if text is not None} | {"usage": counts | total}


def _kept(row: Row, message: Message) -> Json:
    """What restores the row: its members but for a plain text, or its bytes."""
    members = dict(message.value)
    if isinstance(members.get("content"), str) and isinstance(message.content, str):
        members["content"] = None
        if encode_row(members | {"content": message.content}) == row.raw:
            return {"members": members}
    try:
        return {"line": row.raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(row.raw).decode("ascii")}


def from_entries(entries: Iterable[Mapping[str, Any]]) -> Converted:
    """The rows of a path of entries, root first."""
    left_out: dict[str, int] = {}
    groups: list[_Group] = []
    by_id: dict[str, _Group] = {}
    for entry in entries:
        message = entry.get("message")
        role = message.get("role") if isinstance(message, Mapping) else None
        data = entry.get("data")
        if entry.get("type") == "message" and role == "toolResult" and groups:
            groups[-1].results.append(_mapping(message))
        elif entry.get("type") == "message" and role is not None:
            group = by_id[str(entry.get("id"))] = _Group(entry, _mapping(message), [], {})
            groups.append(group)
        elif entry.get("customType") == KEPT and isinstance(data, Mapping) and data.get("of") in by_id:
            by_id[data["of"]].kept.update(data)
        elif entry.get("type") != "session" and entry.get("customType") != LEAF_MARKER:
            kind = str(entry.get("type"))
            left_out[kind] = left_out.get(kind, 0) + 1
    rows: list[bytes] = []
    number = 0
    for group in groups:
        if not group.kept and group.message.get("role") not in _ROLES:
            left_out["message"] = left_out.get("message", 0) + 1
            continue
        raw, number = _row_of(group, number)
        rows.append(raw)
    return Converted(rows, left_out)


class _Group(NamedTuple):
    """A message entry and what belongs to it."""

    entry: Mapping[str, Any]
    message: Mapping[str, Any]
    results: list[Mapping[str, Any]]
    kept: Json


def _row_of(group: _Group, number: int) -> tuple[bytes, int]:
    """The row of a group, and the number that the next new message gets."""
    raw = _restored(group)
    if raw is None:
        return encode_row(_new_row(group, number)), number + 1
    try:
        message = Row(0, raw).message
    except ValueError as error:
        raise InvalidEntry(
            "a row that was kept is not whole any more", hint="restore the full texts of the session, then convert it"
        ) from error
    if _natives(message) != [group.message, *group.results]:
        changed = {"role": group.message.get("role"), "content": blocks.to_stored(*_said(group))}
        raw = encode_row(dict(message.value) | changed)
    return raw, next_number(message, number)


def next_number(message: Message, number: int) -> int:
    """The number after a message: ids are counted, and one that is no number does not count."""
    found = message.id or ""
    return max(number, int(found) + 1) if found.isascii() and found.isdigit() and len(found) < 16 else number


def _restored(group: _Group) -> bytes | None:
    """The bytes that a row was made from."""
    kept = group.kept
    if "base64" in kept:
        return base64.b64decode(kept["base64"])
    if "line" in kept:
        return str(kept["line"]).encode("utf-8", "surrogatepass")
    members = kept.get("members")
    if not isinstance(members, Mapping):
        return None
    content = group.message.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], Mapping):
        content = content[0].get("text")
    return encode_row({**members, "content": content if isinstance(content, str) else blocks.to_stored(*_said(group))})


def _said(group: _Group) -> tuple[object, list[Mapping[str, Any]]]:
    return group.message.get("content"), group.results


def _new_row(group: _Group, number: int) -> Json:
    """A message of ours that MyAgents has never seen."""
    message, entry = group.message, group.entry
    row: Json = {"id": str(number), "role": message.get("role"), "content": blocks.to_stored(*_said(group))}
    row["timestamp"] = entry.get("timestamp")
    if message.get("role") == "assistant":
        usage = message.get("usage")
        if isinstance(usage, Mapping):
            counts = {theirs: usage[ours] for ours, theirs in _USAGE if isinstance(usage.get(ours), int)}
            named = {"model": message.get("model"), "providerId": message.get("provider")}
            row["usage"] = counts | {name: text for name, text in named.items() if isinstance(text, str)}
        content = message.get("content")
        calls = [block for block in content if _is_call(block)] if isinstance(content, list) else []
        row["toolCount"] = len(calls)
    return row


def _is_call(block: object) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "toolCall"


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidEntry("a message that is not an object")
    return value
