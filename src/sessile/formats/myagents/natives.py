"""Messages of MyAgents as messages of ours, and entries of ours that a row carries so that it can be read back as them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessile.core.text import parse_timestamp
from sessile.formats.myagents import blocks
from sessile.formats.myagents.types import Json, Message, Usage

MEMBER = "sessile"  # of a row that was made of entries of ours: these entries
ROLES = ("user", "assistant")
USAGE = (
    ("input", "inputTokens"),
    ("output", "outputTokens"),
    ("cacheRead", "cacheReadTokens"),
    ("cacheWrite", "cacheCreationTokens"),
)


def natives_of(message: Message) -> list[Json]:
    """A message as ours, and one for each tool result in it; none of a row that nobody has said."""
    if message.role not in ROLES:
        return []
    at = parse_timestamp(message.timestamp)
    content = blocks.to_native(message.content)
    native: Json = {"role": message.role, "content": content}
    if message.role == "assistant":
        native["content"] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        native |= {} if message.usage is None else _native_usage(message.usage)
    attachments = message.value.get("attachments")
    if isinstance(attachments, list) and attachments:
        native["attachments"] = attachments
    if at is not None:
        native["timestamp"] = at
    return [native, *blocks.results_in(message.content, at)]


def _native_usage(usage: Usage) -> Json:
    told = {ours: usage.value.get(theirs) for ours, theirs in USAGE}
    counts = {name: count for name, count in told.items() if isinstance(count, int)}
    named = {"provider": usage.provider_id, "model": usage.model}
    total = {"totalTokens": sum(counts.values())} if counts else {}
    return {name: text for name, text in named.items() if text is not None} | {"usage": counts | total}


def kept_entries(row: Mapping[str, Any]) -> Sequence[Json]:
    """The entries that a row was made of; none if it was not made of any, or is not whole any more."""
    kept = row.get(MEMBER)
    if not isinstance(kept, list) or not all(_is_entry(entry) for entry in kept):
        return ()
    natives = iter(natives_of(Message(row)))
    entries = []
    for entry in kept:
        if entry["type"] == "message" and "message" not in entry:
            message = next(natives, None)
            if message is None:
                return ()
            entry = {**entry, "message": message}
        entries.append(entry)
    return entries


def _is_entry(entry: object) -> bool:
    """One that was written in place does not say what it hangs from: from what stands before it."""
    if not isinstance(entry, Mapping):
        return False
    return isinstance(entry.get("type"), str) and isinstance(entry.get("id"), str)
