"""Rows of a Claude Code transcript as entries of ours.

    user, assistant              a message; with one tool result, a tool result; blocks in our shapes
    user that sums up            a compaction; what it kept is told by the boundary before it
    system, attachment, meta     custom entries: nothing of them is lost
    progress, rows without uuid  markers; a title names the session

Rules:

- The results of parallel calls hang from their calls, each on a twig of its own. Here they form one chain behind the last
  call, so that a path holds all of them, as the model saw it.
- A compaction hangs from what it summed up (`logicalParentUuid`): there it is a root, here nothing is cut off.
- Of rows that share a `message.id` only usage of the first counts; all of them name it (`responseId`).

What the agent itself would show at a leaf is in `chain`; this is for trees, searches and exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.core.codec import decode
from sessile.core.kinds import CHAIN, LEAF_MARKER, MARKER, TITLE, flags_of
from sessile.core.lines import Head, Line, MessageHead
from sessile.core.text import parse_timestamp
from sessile.formats.base import Entry, Glimpse, Known, Look
from sessile.formats.claude.blocks import blocks_of, from_blocks, from_content, plain
from sessile.formats.claude.lite import LiteFile, session_info
from sessile.formats.claude.rendering import MEMBER, entry_of
from sessile.formats.claude.rows import mapping_of, text_of

NAME = "claude"
_PROVIDER = "anthropic"
_OPEN = 16  # answers whose results may still come; more calls than that are never open at once
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
    "refusal": "error",
}
_TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
_TYPES = (b'"type":"user"', b'"type":"assistant"', b'"type":"summary"', b'"type":"file-history-snapshot"')


class _Message(msgspec.Struct):
    role: str | None = None
    id: str | None = None
    model: str | None = None


class _Row(msgspec.Struct):
    type: str
    uuid: str | None = None
    parentUuid: str | None = None
    logicalParentUuid: str | None = None
    subtype: str | None = None
    isSidechain: bool | None = None
    isMeta: bool | None = None
    isCompactSummary: bool | None = None
    teamName: str | None = None
    message: _Message | None = None
    sessile: Head | None = None  # what we have made the row of


_decode_row = msgspec.json.Decoder(_Row).decode
_MARKER = Head("custom", None, None, LEAF_MARKER)


class Claude:
    """The format of Claude Code."""

    name = NAME

    def recognises(self, first: bytes) -> bool:
        """Its rows have a session id, and a uuid or one of its types; ours begin with a header."""
        for line in first.split(b"\n")[:20]:
            row = _lenient(line)
            if row.get("type") == "session":
                return False
            if isinstance(row.get("sessionId"), str) and ("uuid" in row or "type" in row):
                return True
            if row.get("type") == "summary" and isinstance(row.get("leafUuid"), str):
                return True
        return False

    def header(self, stem: str, first: bytes) -> Entry:
        """Id from the name of the file; folder and time from the first rows that tell them."""
        rows = [_lenient(line) for line in first.split(b"\n")]
        cwd = next((row["cwd"] for row in rows if isinstance(row.get("cwd"), str)), "")
        at = next((row["timestamp"] for row in rows if isinstance(row.get("timestamp"), str)), None)
        header = {"type": "session", "version": 3, "id": stem, "timestamp": at, "cwd": cwd, "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Title and first prompt as Claude Code itself tells them."""
        info = session_info(stem, LiteFile(first, last, 0, len(first)))
        if info is None:
            return Glimpse()
        return Glimpse(info.custom_title or "", info.first_prompt or info.summary)

    def translator(self, saved: Any = None) -> Rows:
        """From the beginning of a file, or from where one was saved."""
        return Rows(msgspec.convert(saved, _Saved) if saved is not None else _Saved())

    def id_of(self, raw: bytes, offset: int) -> str | None:
        """The uuid of a row; its place if it has none."""
        row = _head(raw)
        return (row.sessile and row.sessile.id) or row.uuid or _placed(offset)

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries."""
        row: dict[str, Any] = decode(raw)
        base = {"id": entry_id, "parentId": parent_id, "timestamp": row.get("timestamp")}
        entry = {"type": "custom", **base, **_body(row, parent_id, look)}
        return entry_of(row, entry) or entry


class _Saved(msgspec.Struct):
    """What a translator keeps between rows."""

    leaf: str | None = None
    named: int = 0  # 0 nobody, 1 by a summary, 2 by a model, 3 by a person
    ends: dict[str, str] = {}  # of the last answers: where their results hang, by message id
    answers: dict[str, str] = {}  # the message id of each row of these answers


class Rows:
    """Goes through the rows of one transcript."""

    def __init__(self, saved: _Saved) -> None:
        self._saved = saved

    @property
    def leaf(self) -> str | None:
        """The last row of the main conversation."""
        return self._saved.leaf

    def saved(self) -> Any:
        """What is needed to go on later."""
        return msgspec.to_builtins(self._saved)

    def take(self, line: Line) -> Known:
        """What the next row is."""
        row = _head(line.raw)
        if row.uuid is None:
            return self._unchained(row, line.offset)
        if row.sessile is not None:
            return self._returned(row, row.sessile)
        parent = row.parentUuid
        if row.type == "progress":
            return Known(Head("custom", row.uuid, parent, LEAF_MARKER), MARKER)
        if row.subtype == "compact_boundary":
            parent = parent or row.logicalParentUuid
        parent = self._behind_results(row, parent)
        if not (row.isSidechain or row.teamName):
            self._saved.leaf = row.uuid
        if row.isCompactSummary:
            return Known(Head("compaction", row.uuid, parent))
        if row.type in ("user", "assistant") and not row.isMeta:
            message = row.message or _Message()
            role = row.type if row.type == "assistant" else "user"
            return Known(Head("message", row.uuid, parent, None, MessageHead(role, _PROVIDER, message.model)))
        return Known(Head("custom", row.uuid, parent, f"claude.{row.type}"), CHAIN)

    def _returned(self, row: _Row, ours: Head) -> Known:
        """A row that was made of an entry of ours is that entry."""
        if ours.id is None:
            return Known(Head("custom", row.uuid, self._saved.leaf, LEAF_MARKER), MARKER)
        # A marker of ours says where the conversation goes on.
        self._saved.leaf = ours.parentId if flags_of(ours) & MARKER else ours.id
        return Known(ours)

    def _unchained(self, row: _Row, offset: int) -> Known:
        """A row beside the conversation; the title that counts most is the session's."""
        rank = ("summary", "ai-title", "custom-title").index(row.type) + 1 if row.type in _TITLES else 0
        names = rank and rank >= self._saved.named
        if names:
            self._saved.named = rank
        kind, custom = ("session_info", None) if names else ("custom", LEAF_MARKER)
        head = Head(kind, _placed(offset), self._saved.leaf, custom)
        return Known(head, MARKER | TITLE if names else MARKER)

    def _behind_results(self, row: _Row, parent: str | None) -> str | None:
        """The parent of a row: of a result, the last row of the answer that it belongs to."""
        saved = self._saved
        answer = saved.answers.get(parent or "")
        if row.type == "assistant" and row.message is not None and row.message.id is not None:
            own = row.message.id
            if answer == own:
                parent = saved.ends[own]
            self._note(row.uuid or "", own)
        elif row.type == "user" and answer is not None:
            parent = saved.ends[answer]
            if parent != row.uuid:
                self._note(row.uuid or "", answer)
        return parent

    def _note(self, uuid: str, answer: str) -> None:
        saved = self._saved
        saved.ends.pop(answer, None)
        saved.ends[answer] = uuid
        saved.answers[uuid] = answer
        if len(saved.ends) > _OPEN:
            oldest = next(iter(saved.ends))
            del saved.ends[oldest]
            saved.answers = {row: kept for row, kept in saved.answers.items() if kept != oldest}


# -- bodies


def _body(row: Mapping[str, Any], parent_id: str | None, look: Look) -> Entry:
    kind = text_of(row, "type") or "unknown"
    if kind in _TITLES and "uuid" not in row:
        return {"type": "session_info", "name": text_of(row, _TITLES[kind]) or ""}
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
    boundary = _lenient(look(parent_id) or b"") if parent_id else {}
    metadata = mapping_of(boundary, "compactMetadata")
    kept = mapping_of(metadata, "preservedMessages").get("uuids")
    first = kept[0] if isinstance(kept, list) and kept else mapping_of(metadata, "preservedSegment").get("headUuid")
    entry: Entry = {"type": "compaction", "summary": plain(mapping_of(row, "message").get("content"))}
    entry["firstKeptEntryId"] = first if isinstance(first, str) else row.get("uuid")
    tokens = metadata.get("preTokens")
    entry["tokensBefore"] = tokens if isinstance(tokens, int) else 0
    return entry | ({"tokensAfter": metadata["postTokens"]} if isinstance(metadata.get("postTokens"), int) else {})


def _said(row: Mapping[str, Any]) -> Entry:
    content = mapping_of(row, "message").get("content")
    results = [block for block in blocks_of(content) if block.get("type") == "tool_result"]
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
    answer: Entry = {"role": "assistant", "content": from_blocks(message.get("content"))}
    if isinstance(message.get("content"), str):
        answer["content"] = [{"type": "text", "text": message["content"]}]
    answer |= {"api": "anthropic-messages", "provider": _PROVIDER, "model": text_of(message, "model") or "unknown"}
    if isinstance(message.get("id"), str):
        answer["responseId"] = message["id"]
    answer["usage"] = _usage(mapping_of(message, "usage"))
    answer["stopReason"] = _REASONS.get(text_of(message, "stop_reason") or "", "stop")
    if row.get("isApiErrorMessage") is True:
        answer |= {"stopReason": "error", "errorMessage": plain(message.get("content"))}
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


# -- heads


def _head(raw: bytes) -> _Row:
    """What is looked at of a row; one whose members have other types than usual is decoded as a whole."""
    try:
        return _decode_row(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        row = _lenient(raw)
    message = mapping_of(row, "message")
    return _Row(
        type=text_of(row, "type") or "unknown",
        uuid=text_of(row, "uuid"),
        parentUuid=text_of(row, "parentUuid"),
        logicalParentUuid=text_of(row, "logicalParentUuid"),
        subtype=text_of(row, "subtype"),
        isSidechain=row.get("isSidechain") is True,
        isMeta=row.get("isMeta") is True,
        isCompactSummary=row.get("isCompactSummary") is True,
        teamName=text_of(row, "teamName"),
        message=_Message(text_of(message, "role"), text_of(message, "id"), text_of(message, "model")),
        sessile=_ours(mapping_of(row, MEMBER)),
    )


def _ours(kept: Mapping[str, Any]) -> Head | None:
    kind, message = text_of(kept, "type"), mapping_of(kept, "message")
    if kind is None:
        return None
    said = MessageHead(text_of(message, "role"), text_of(message, "provider"), text_of(message, "model"))
    return Head(
        kind, text_of(kept, "id"), text_of(kept, "parentId"), text_of(kept, "customType"), said if message else None
    )


def _lenient(raw: bytes) -> dict[str, Any]:
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _placed(offset: int) -> str:
    return f"@{offset:x}"
