"""The rows of a Claude Code transcript: their types and members, and the rows beside the conversation.

Rules:

- A transcript message (user, assistant, attachment, system) is a row that a reader loads into the chain.
- A chain participant is a row that may be the parent of the next one: every row except progress. Where progress rows
  were used as parents, resuming lost real messages.
- Rows come from another program: any member may be missing or have another type, and most rows have no uuid. Reading
  functions never raise.

Members are also found in a window of a file, which may start and end in the middle of a row. A member that any row may
have is searched as text (`"key":"value"`), so a row that is cut off still shows its branch or time. A member of a
certain type of row is used only if the row parses, so text inside another row is not mistaken for it; the last such row
counts. Where the SDK does so, a row after a torn one on the same line counts too.

Rows beside the conversation (titles, tags, queue operations, snapshots, replacements) never enter the chain. Their type
is the first member, because readers look for `{"type":"tag"` at the start of a line. Empty titles and tags are refused.

The state of a session is read back from these rows in file order: the last value counts, queued prompts wait until they
are removed, each message has its newest file snapshot with later changes, and content replacements add up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import msgspec

from sessile.core.codec import decode_exactly
from sessile.core.text import clean_tag
from sessile.errors import Invalid

Row = Mapping[str, Any]
OBJECT = (dict, Mapping)  # JSON objects; nearly all are dicts, and checking for those first is faster

View = Literal["ts", "python-sdk"]
"""The SDK whose answers are given: TypeScript, or Python where it differs."""

USER = "user"
ASSISTANT = "assistant"
ATTACHMENT = "attachment"
SYSTEM = "system"
PROGRESS = "progress"  # written by old releases; it has a uuid and a parent, but is not a message

COMPACT_BOUNDARY = "compact_boundary"  # the subtype of the system row at the start of a compaction

TRANSCRIPT_MESSAGES = frozenset({USER, ASSISTANT, ATTACHMENT, SYSTEM})
USER_OR_ASSISTANT = frozenset({USER, ASSISTANT})  # the rows that cause a file to be created

# Types of which only the last row counts, and the member that holds the value.
LAST_WINS: Mapping[str, str | None] = {
    "custom-title": "customTitle",
    "ai-title": "aiTitle",
    "last-prompt": "lastPrompt",
    "tag": "tag",
    "agent-name": "agentName",
    "agent-color": "agentColor",
    "agent-setting": "agentSetting",
    "mode": "mode",
    "permission-mode": "permissionMode",
    "worktree-state": "worktreeSession",
    "pr-link": None,  # it has several members: the row itself is the value
}

CUSTOM_TITLE = "custom-title"
AI_TITLE = "ai-title"
TAG = "tag"
SUMMARY = "summary"
RELOCATED = "relocated"  # the session now works in another directory
CONTINUED_IN = "continued-in"  # the session continues under another id
QUEUE_OPERATION = "queue-operation"
FILE_HISTORY_SNAPSHOT = "file-history-snapshot"
FILE_HISTORY_DELTA = "file-history-delta"
ATTRIBUTION_SNAPSHOT = "attribution-snapshot"
CONTENT_REPLACEMENT = "content-replacement"


def type_of(row: object) -> str | None:
    """Return the type of a row, or None if it has none."""
    return text_of(row, "type")


def uuid_of(row: object) -> str | None:
    """Return the uuid of a row, or None if it has none."""
    return text_of(row, "uuid")


def parent_of(row: object) -> str | None:
    """Return the uuid of a row's parent, or None for a root."""
    return text_of(row, "parentUuid")


def is_transcript_message(row: object) -> bool:
    """Return whether a reader loads the row into the chain."""
    return type_of(row) in TRANSCRIPT_MESSAGES


def is_chain_participant(row: object) -> bool:
    """Return whether the row may be the parent of the next one."""
    return type_of(row) != PROGRESS


def is_progress(row: object) -> bool:
    """Return whether the row is the progress of a tool, which is never shown and never a parent."""
    return type_of(row) == PROGRESS


def is_user_or_assistant(row: object) -> bool:
    """Return whether the row is a user or assistant row."""
    return type_of(row) in USER_OR_ASSISTANT


def is_compact_boundary(row: object) -> bool:
    """Return whether the row is the boundary of a compaction."""
    return type_of(row) == SYSTEM and text_of(row, "subtype") == COMPACT_BOUNDARY


def text_of(row: object, member: str) -> str | None:
    """Return a member of a row if it is a string."""
    value = row.get(member) if isinstance(row, OBJECT) else None
    return value if isinstance(value, str) else None


def mapping_of(row: object, member: str) -> Row:
    """Return a member of a row if it is an object, else an empty one."""
    value = row.get(member) if isinstance(row, OBJECT) else None
    return value if isinstance(value, OBJECT) else {}


# -- parsing
UNPRINTED = bytes(range(33))  # bytes that the TypeScript SDK skips before a row

_decode = msgspec.json.Decoder().decode


def read_row(raw: bytes, view: View = "ts") -> dict[str, Any] | None:
    """Return a row, or None if the bytes are not a JSON object; bytes that are not UTF-8 become U+FFFD.

    The TypeScript SDK skips NUL and other unprintable bytes before a row. The Python SDK skips what Python calls
    whitespace on both sides, and accepts NaN and Infinity.
    """
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            value = _read_exactly(raw, view)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _read_exactly(raw: bytes, view: View) -> object:
    if view == "ts":
        return decode_exactly(raw.lstrip(UNPRINTED).decode("utf-8", "replace"))
    return json.loads(raw.decode("utf-8", "replace").strip())


def parsed(line: str, view: View = "ts") -> Any:
    """Return the value of a line, or None if it is not JSON; the Python SDK accepts NaN and Infinity."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # msgspec refuses lone surrogates and huge numbers
    try:
        return decode_exactly(line) if view == "ts" else json.loads(line)
    except (ValueError, RecursionError):
        return None


# -- members in a window of a file
_INSIDE = (":", ",", "[")  # the characters before an object that is part of another


def lines_of(window: bytes) -> Iterator[bytes]:
    """Yield the lines of a window lazily: the first few usually suffice."""
    begin = 0
    while (end := window.find(b"\n", begin)) >= 0:
        yield window[begin:end]
        begin = end + 1
    yield window[begin:]


def first_text(text: str, key: str) -> str | None:
    """Return the first string value of a key; keys without a space after the colon are searched first."""
    for pattern in _patterns(key):
        match = pattern.search(text)
        if match:
            return _unescaped(match.group(1))
    return None


def last_text(text: str, key: str, view: View = "ts") -> str | None:
    """Return the last string value of a key; the Python SDK prefers keys with a space after the colon."""
    found = [match for pattern in _patterns(key) if (match := _last_match(text, pattern, key))]
    if not found:
        return None
    last = found[-1] if view == "python-sdk" else max(found, key=lambda match: match.start())
    return _unescaped(last.group(1))


def line_with(text: str, mark: str) -> str | None:
    """Return the first line that contains `mark`."""
    at = text.find(mark)
    return None if at < 0 else text[text.rfind("\n", 0, at) + 1 : _end_of_line(text, at)]


def last_member(text: str, member: str, kind: str | None = None, *, glued: bool = False) -> str | None:
    """Return a string member of the last row that has it, optionally only of rows of one type."""
    key = f'"{member}":'
    marks = () if kind is None else (f'"type":"{kind}"', f'"type": "{kind}"')[: 1 + glued]
    end = len(text)
    while (at := text.rfind(key, 0, end)) >= 0:
        begin = text.rfind("\n", 0, at) + 1
        line = text[begin : _end_of_line(text, at)]
        end = max(begin - 1, 0)
        if marks and not any(mark in line for mark in marks):
            continue
        row = parsed(line)
        if row is None and glued:
            row = _glued_row(line, f"{{{marks[0]}")
        value = text_of(row, member) if kind is None or type_of(row) == kind else None
        if value is not None:
            return value
    return None


def last_member_of_type(window: bytes, kind: str, member: str) -> str | None:
    """Return the same as `last_member`, for a window that mostly holds rows of other types, without decoding all of it."""
    mark = f'"{kind}"'.encode()
    end = len(window)
    while (at := window.rfind(mark, 0, end)) >= 0:
        begin, stop = window.rfind(b"\n", 0, at) + 1, window.find(b"\n", at)
        line = window[begin : len(window) if stop < 0 else stop]
        value = last_member(line.decode("utf-8", "replace"), member, kind, glued=True)
        if value is not None:
            return value
        end = begin
    return None


def first_member(text: str, member: str) -> str | None:
    """Return a string member of the first row that has it."""
    key = f'"{member}":'
    end = 0
    while (at := text.find(key, end)) >= 0:
        end = _end_of_line(text, at)
        value = text_of(parsed(text[text.rfind("\n", 0, at) + 1 : end]), member)
        if value is not None:
            return value
    return None


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _glued_row(line: str, beginning: str) -> Any:
    """Return the row at the end of a line, if it is not part of another one."""
    start = line.rfind(beginning)
    return None if start <= 0 or line[start - 1] in _INSIDE else parsed(line[start:])


def _last_match(text: str, pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
    """Return the last whole string value of a key, searching from the end because a key occurs many times."""
    at = len(text)
    while (at := text.rfind(f'"{key}":', 0, at)) >= 0:
        match = pattern.match(text, at)
        if match:
            return match
    return None


@lru_cache(maxsize=32)
def _patterns(key: str) -> tuple[re.Pattern[str], ...]:
    value = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
    return tuple(re.compile(f'"{re.escape(key)}":{space}{value}', re.DOTALL) for space in ("", " "))


def _unescaped(raw: str) -> str:
    if "\\" not in raw:
        return raw
    try:
        value = json.loads(f'"{raw}"')
    except ValueError:
        return raw
    return value if isinstance(value, str) else raw


# -- rows beside the conversation

NewRow = dict[str, Any]  # a row that is to be written


def title_row(session_id: str, title: str) -> NewRow:
    """Return the row that sets the title of a session."""
    title = title.strip()
    if not title:
        raise Invalid("a title must not be empty", hint="pass another title; a title cannot be removed")
    return {"type": CUSTOM_TITLE, "customTitle": title, "sessionId": session_id}


def tag_row(session_id: str, tag: str | None) -> NewRow:
    """Return the row that tags a session; `None` clears the tag."""
    cleaned = "" if tag is None else clean_tag(tag)
    if tag is not None and not cleaned:
        raise Invalid("a tag must not be empty", hint="pass None to clear the tag")
    return {"type": TAG, "tag": cleaned, "sessionId": session_id}


def value_row(session_id: str, kind: str, value: Any) -> NewRow:
    """Return a row of which only the last counts, such as `mode` or `agent-name`; for `pr-link` pass its members."""
    if kind not in LAST_WINS:
        raise Invalid(f"invalid value type {kind!r}", hint=f"use one of {', '.join(LAST_WINS)}")
    member = LAST_WINS[kind]
    members = dict(value) if member is None else {member: value}
    return {"type": kind, **members, "sessionId": session_id}


def queue_operation_row(session_id: str, operation: str, content: Any, now: str) -> NewRow:
    """Return the row for an operation on the queue of prompts; `content` is left out if it is None."""
    row: NewRow = {"type": QUEUE_OPERATION, "operation": operation, "timestamp": now, "sessionId": session_id}
    return row if content is None else row | {"content": content}


def file_history_snapshot_row(message_id: str, snapshot: Mapping[str, Any], *, is_update: bool) -> NewRow:
    """Return the row with the backups of files at a message."""
    return {
        "type": FILE_HISTORY_SNAPSHOT,
        "messageId": message_id,
        "snapshot": dict(snapshot),
        "isSnapshotUpdate": is_update,
    }


def attribution_snapshot_row(snapshot: Mapping[str, Any]) -> NewRow:
    """Return the row with the attribution of changes; only the last counts."""
    return {"type": ATTRIBUTION_SNAPSHOT} | {name: value for name, value in snapshot.items() if name != "type"}


def content_replacement_row(
    session_id: str, replacements: Sequence[Mapping[str, Any]], agent_id: str | None = None
) -> NewRow:
    """Return the row with the replacements of large contents."""
    agent = {} if agent_id is None else {"agentId": agent_id}
    return {
        "type": CONTENT_REPLACEMENT,
        "sessionId": session_id,
        **agent,
        "replacements": [dict(replacement) for replacement in replacements],
    }


# -- the state of a session

STATE_TYPES = frozenset(
    {
        *LAST_WINS,
        SUMMARY,
        QUEUE_OPERATION,
        FILE_HISTORY_SNAPSHOT,
        FILE_HISTORY_DELTA,
        ATTRIBUTION_SNAPSHOT,
        CONTENT_REPLACEMENT,
    }
)


@dataclass(slots=True)
class TranscriptState:
    """The state that the rows of a transcript describe; `apply` adds a row."""

    values: dict[str, Any] = field(default_factory=dict)  # by type: a title, a tag, a mode, …
    summaries: dict[str, str] = field(default_factory=dict)  # by the uuid of the leaf
    queue: list[Row] = field(default_factory=list)  # the operations whose content still waits
    unknown_operations: list[Row] = field(default_factory=list)
    snapshots: dict[str, Row] = field(default_factory=dict)  # by the uuid of the message
    attribution: Row | None = None
    replacements: list[Row] = field(default_factory=list)  # the rows, each with its own list

    def apply(self, row: Row) -> None:
        """Apply one row; a row of a type without state changes nothing."""
        kind = type_of(row) or ""
        if kind in LAST_WINS:
            self._set(kind, row)
        elif kind == SUMMARY:
            leaf, summary = text_of(row, "leafUuid"), text_of(row, "summary")
            if leaf is not None and summary is not None:
                self.summaries[leaf] = summary
        elif kind == QUEUE_OPERATION:
            self._operate(row)
        elif kind == FILE_HISTORY_SNAPSHOT:
            self._snapshot(row)
        elif kind == FILE_HISTORY_DELTA:
            self._change(row)
        elif kind == ATTRIBUTION_SNAPSHOT:
            self.attribution = row
        elif kind == CONTENT_REPLACEMENT:
            self.replacements.append(row)

    def replacement_of(self, tool_use_id: str) -> Any:
        """Return the newest replacement of a tool's result, or None."""
        for row in reversed(self.replacements):
            listed = row.get("replacements")
            for replacement in reversed(listed if isinstance(listed, list) else []):
                if text_of(replacement, "toolUseId") == tool_use_id:
                    return replacement.get("replacement")
        return None

    def _set(self, kind: str, row: Row) -> None:
        member = LAST_WINS[kind]
        if member is None:
            self.values[kind] = row
        elif member in row:
            self.values[kind] = row[member]

    def _operate(self, row: Row) -> None:
        operation = text_of(row, "operation")
        if operation == "enqueue":
            self.queue.append(row)
        elif operation in ("dequeue", "remove"):
            self._take(row.get("content"))
        elif operation == "popAll":
            self.queue.clear()
        else:
            self.unknown_operations.append(row)

    def _take(self, content: Any) -> None:
        """Remove the first operation with this content from the queue; without content, the first of all."""
        for place, waiting in enumerate(self.queue):
            if content is None or waiting.get("content") == content:
                del self.queue[place]
                return

    def _snapshot(self, row: Row) -> None:
        snapshot = mapping_of(row, "snapshot")
        # An update belongs to the message of its snapshot, not to the message that the row is for.
        updated = text_of(snapshot, "messageId") if row.get("isSnapshotUpdate") is True else None
        message = updated or text_of(row, "messageId") or text_of(snapshot, "messageId")
        if message is not None:
            self.snapshots[message] = snapshot

    def _change(self, row: Row) -> None:
        message = text_of(row, "snapshotMessageId") or text_of(row, "messageId")
        path = text_of(row, "trackingPath")
        if message is None or path is None:
            return
        before = self.snapshots.get(message, {"messageId": message})
        backups = {**mapping_of(before, "trackedFileBackups"), path: row.get("backup")}
        self.snapshots[message] = {**before, "trackedFileBackups": backups}
