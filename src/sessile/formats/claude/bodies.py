"""What a row of a Claude Code transcript says, as the body of an entry of ours.

Rules: blocks have our shapes; what has no counterpart here becomes a custom entry that holds the whole row. A row of several
tool results is several entries, and each has one of them. Nothing here raises, whatever a row is; ids and parents are the
matter of `translate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessile.core.codec import decode
from sessile.core.text import parse_timestamp
from sessile.formats.base import Entry, Look
from sessile.formats.claude.blocks import blocks_of, from_blocks, from_content, plain
from sessile.formats.claude.rows import mapping_of, text_of

PROVIDER = "anthropic"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
    "refusal": "error",
}
TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}


def lenient(raw: bytes) -> dict[str, Any]:
    """A row, or an empty one for what is not an object."""
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def body_of(row: Mapping[str, Any], parent_id: str | None, look: Look) -> Entry:
    """The members of the entry that a row is, without its base."""
    kind = text_of(row, "type") or "unknown"
    if kind in TITLES and "uuid" not in row:
        return {"type": "session_info", "name": text_of(row, TITLES[kind]) or ""}
    if row.get("isCompactSummary") is True:
        return _compaction(row, parent_id, look)
    if kind == "user" and row.get("isMeta") is not True:
        return {"type": "message", "message": _said(row)}
    if kind == "assistant":
        return {"type": "message", "message": _answer(row)}
    if kind == "user":
        content = from_content(mapping_of(row, "message").get("content"))
        return {"type": "custom_message", "customType": "claude.meta", "content": content, "display": False}
    return {"customType": f"claude.{kind}", "data": dict(row)}


def _compaction(row: Mapping[str, Any], parent_id: str | None, look: Look) -> Entry:
    """The summary, with what the boundary before it says of sizes and of what was kept."""
    boundary = lenient(look(parent_id) or b"") if parent_id else {}
    metadata = mapping_of(boundary, "compactMetadata")
    kept = mapping_of(metadata, "preservedMessages").get("uuids")
    first = kept[0] if isinstance(kept, list) and kept else mapping_of(metadata, "preservedSegment").get("headUuid")
    entry: Entry = {"type": "compaction", "summary": plain(mapping_of(row, "message").get("content"))}
    entry["firstKeptEntryId"] = first if isinstance(first, str) else row.get("uuid")
    tokens = metadata.get("preTokens")
    entry["tokensBefore"] = tokens if isinstance(tokens, int) else 0
    return entry | ({"tokensAfter": metadata["postTokens"]} if isinstance(metadata.get("postTokens"), int) else {})


def results_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tool results that a row holds."""
    content = mapping_of(row, "message").get("content")
    return [block for block in blocks_of(content) if block.get("type") == "tool_result"]


def part_of(row: dict[str, Any], entry_id: str) -> dict[str, Any]:
    """A row of several tool results with only the one that the entry is; the last one keeps what stands beside them."""
    spoken = row.get("type") == "user" and row.get("isMeta") is not True and row.get("isCompactSummary") is not True
    results = results_of(row) if spoken else ()
    if len(results) < 2:
        return row
    _, slash, number = entry_id.rpartition("/")
    own = results[int(number) - 1 if slash and number.isdecimal() else -1]
    content = blocks_of(mapping_of(row, "message").get("content"))
    rest = [] if slash else [block for block in content if block.get("type") != "tool_result"]
    return {**row, "message": {**row["message"], "content": [own, *rest]}}


def _said(row: Mapping[str, Any]) -> Entry:
    content = mapping_of(row, "message").get("content")
    results = results_of(row)
    at = parse_timestamp(row.get("timestamp"))
    if len(results) != 1:
        return {"role": "user", "content": from_content(content), "timestamp": at}
    (result,) = results
    rest = [block for block in blocks_of(content) if block is not result]
    message: Entry = {"role": "toolResult", "toolCallId": text_of(result, "tool_use_id") or "", "toolName": ""}
    inner = from_content(result.get("content"))
    texts = [{"type": "text", "text": inner}] if isinstance(inner, str) else inner
    message |= {"content": texts + from_blocks(rest), "isError": result.get("is_error") is True, "timestamp": at}
    patch = mapping_of(row, "toolUseResult").get("structuredPatch")
    return message | ({"details": {"diff": diff}} if (diff := _diff(patch)) else {})


def _diff(patch: object) -> str:
    hunks = patch if isinstance(patch, list) else []
    lines = (line for hunk in hunks if isinstance(hunk, dict) for line in hunk.get("lines") or ())
    return "\n".join(line for line in lines if isinstance(line, str))


def _answer(row: Mapping[str, Any]) -> Entry:
    message = mapping_of(row, "message")
    content = message.get("content")
    answer: Entry = {
        "role": "assistant",
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else from_blocks(content),
        "api": "anthropic-messages",
        "provider": PROVIDER,
        "model": text_of(message, "model") or "unknown",
    }
    if isinstance(message.get("id"), str):
        answer["responseId"] = message["id"]
    answer["usage"] = _usage(mapping_of(message, "usage"))
    answer["stopReason"] = _REASONS.get(text_of(message, "stop_reason") or "", "stop")
    if row.get("isApiErrorMessage") is True:
        answer |= {"stopReason": "error", "errorMessage": plain(content)}
    answer["timestamp"] = parse_timestamp(row.get("timestamp"))
    return answer


_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_input_tokens",
    "cacheWrite": "cache_creation_input_tokens",
}


def _usage(usage: Mapping[str, Any]) -> Entry:
    counts = {ours: usage[theirs] for ours, theirs in _USAGE.items() if isinstance(usage.get(theirs), int)}
    return counts | ({"totalTokens": sum(counts.values())} if counts else {})
