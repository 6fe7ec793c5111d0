"""What a row of a Claude Code transcript is: the one definition of a message, and the one of a chain participant.

Rules:

- A transcript message (user, assistant, attachment, system) is what a reader loads into the chain.
- A chain participant is what a writer may hang the next row from: everything but progress. Progress is the state of a
  screen; where it was a parent, resuming cut real messages off.
- Rows are other people's JSON: any member may be missing or of another type, and most rows have no uuid. Nothing here
  raises, whatever a row is.

It does not know files, and no row but the one that it is asked about.

One line as JSON, in the two ways in which each SDK does it: with patience for messages, strictly for a listing.

Finding members of rows in a window of a file that may begin and end in the middle of a row.

Rules:

- A member that any row may have is found as text (`"key":"value"`), so that a row that the window cuts can still tell its
  branch or time. One that a row of a certain type tells is believed only if the row parses, so that a decoy inside another
  row is none; of such rows the last counts.
- A row behind one that was torn, or that lost its newline, counts as well where the SDK says so: the line then begins with
  what is not JSON.
- A window is text where much of it is looked at, and bytes where rows are few and far between: to make text of 64 KB takes
  longer than to find them.

The rows beside the conversation: titles, tags, queue operations, snapshots, replacements. None of them enters the chain.

Rules: the type is the first member, because readers look for `{"type":"tag"` at the start of a line. A title is trimmed; a
tag is also freed of characters that nobody can see, because people filter by it. An empty one is refused, not written: to
clear a tag is a call of its own.
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

# --- rows

Row = Mapping[str, Any]
OBJECT = (dict, Mapping)  # what is an object of JSON; nearly all are dicts, which is told sooner

View = Literal["ts", "python-sdk"]
"""Whose answers are given: those of the TypeScript SDK, or those of the Python SDK where they differ."""

USER = "user"
ASSISTANT = "assistant"
ATTACHMENT = "attachment"
SYSTEM = "system"
PROGRESS = "progress"  # of old releases; has a uuid and a parent, but is no message

COMPACT_BOUNDARY = "compact_boundary"  # the subtype of the system row that a compaction begins with

TRANSCRIPT_MESSAGES = frozenset({USER, ASSISTANT, ATTACHMENT, SYSTEM})
SPOKEN = frozenset({USER, ASSISTANT})  # what a conversation consists of, and what makes a file worth creating

# Rows of which a session has one value: the last says it. The member that holds the value stands beside the type.
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
    "pr-link": None,  # three members and a time: the row itself is the value
}

CUSTOM_TITLE = "custom-title"
AI_TITLE = "ai-title"
TAG = "tag"
SUMMARY = "summary"
RELOCATED = "relocated"  # the session works in another directory now
CONTINUED_IN = "continued-in"  # the session goes on under another id
QUEUE_OPERATION = "queue-operation"
FILE_HISTORY_SNAPSHOT = "file-history-snapshot"
FILE_HISTORY_DELTA = "file-history-delta"
ATTRIBUTION_SNAPSHOT = "attribution-snapshot"
CONTENT_REPLACEMENT = "content-replacement"


def type_of(row: object) -> str | None:
    """The type of a row, or None if it says none."""
    return text_of(row, "type")


def uuid_of(row: object) -> str | None:
    """The uuid of a row, or None if it has none."""
    return text_of(row, "uuid")


def parent_of(row: object) -> str | None:
    """The uuid that a row names as its parent, or None for a root."""
    return text_of(row, "parentUuid")


def is_transcript_message(row: object) -> bool:
    """Whether a reader loads the row into the chain."""
    return type_of(row) in TRANSCRIPT_MESSAGES


def is_chain_participant(row: object) -> bool:
    """Whether the next row may have this one as its parent."""
    return type_of(row) != PROGRESS


def is_progress(row: object) -> bool:
    """Whether the row is progress of a tool, which is nobody's parent and in no answer."""
    return type_of(row) == PROGRESS


def is_spoken(row: object) -> bool:
    """Whether the row is a part of the conversation: user or assistant."""
    return type_of(row) in SPOKEN


def is_compact_boundary(row: object) -> bool:
    """Whether a compaction begins with the row."""
    return type_of(row) == SYSTEM and text_of(row, "subtype") == COMPACT_BOUNDARY


def text_of(row: object, member: str) -> str | None:
    """A member of a row if it is a string."""
    value = row.get(member) if isinstance(row, OBJECT) else None
    return value if isinstance(value, str) else None


def mapping_of(row: object, member: str) -> Row:
    """A member of a row if it is an object, else an empty one."""
    value = row.get(member) if isinstance(row, OBJECT) else None
    return value if isinstance(value, OBJECT) else {}


# --- parsing

UNPRINTED = bytes(range(33))  # what the TypeScript SDK passes over before a row

_decode = msgspec.json.Decoder().decode


def read_row(raw: bytes, view: View = "ts") -> dict[str, Any] | None:
    """One row, or None for what is not an object in JSON; bytes that are not UTF-8 become U+FFFD.

    The TypeScript SDK passes over NUL bytes and other unprinted ones before a row. The Python SDK does so for what Python
    calls space, on both sides, and reads NaN and Infinity.
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
    """The value of a line; None if it is not JSON, which for the Python SDK has NaN and Infinity."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # lone surrogates and huge numbers are refused there
    try:
        return decode_exactly(line) if view == "ts" else json.loads(line)
    except (ValueError, RecursionError):
        return None


# --- members

_INSIDE = (":", ",", "[")  # what stands before an object that is a part of another


def lines_of(window: bytes) -> Iterator[bytes]:
    """The lines of a window, each when it is asked for: most questions are answered by the first few."""
    begin = 0
    while (end := window.find(b"\n", begin)) >= 0:
        yield window[begin:end]
        begin = end + 1
    yield window[begin:]


def first_text(text: str, key: str) -> str | None:
    """The first string that stands behind a key; keys without a space behind the colon come first."""
    for pattern in _patterns(key):
        match = pattern.search(text)
        if match:
            return _unescaped(match.group(1))
    return None


def last_text(text: str, key: str, view: View = "ts") -> str | None:
    """The last string that stands behind a key; for the Python SDK, keys with a space behind the colon come last."""
    found = [match for pattern in _patterns(key) if (match := _last_match(text, pattern, key))]
    if not found:
        return None
    last = found[-1] if view == "python-sdk" else max(found, key=lambda match: match.start())
    return _unescaped(last.group(1))


def line_with(text: str, mark: str) -> str | None:
    """The first line that holds a mark."""
    at = text.find(mark)
    return None if at < 0 else text[text.rfind("\n", 0, at) + 1 : _end_of_line(text, at)]


def last_told(text: str, member: str, kind: str | None = None, *, glued: bool = False) -> str | None:
    """A member of the last row that has it as a string, of the rows of a type if one is given."""
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
        told = text_of(row, member) if kind is None or type_of(row) == kind else None
        if told is not None:
            return told
    return None


def last_told_by(window: bytes, kind: str, member: str) -> str | None:
    """The same of rows of one type that may be glued, in a window that mostly holds others."""
    mark = f'"{kind}"'.encode()
    end = len(window)
    while (at := window.rfind(mark, 0, end)) >= 0:
        begin, stop = window.rfind(b"\n", 0, at) + 1, window.find(b"\n", at)
        line = window[begin : len(window) if stop < 0 else stop]
        told = last_told(line.decode("utf-8", "replace"), member, kind, glued=True)
        if told is not None:
            return told
        end = begin
    return None


def first_told(text: str, member: str) -> str | None:
    """A member of the first row that has it as a string."""
    key = f'"{member}":'
    end = 0
    while (at := text.find(key, end)) >= 0:
        end = _end_of_line(text, at)
        told = text_of(parsed(text[text.rfind("\n", 0, at) + 1 : end]), member)
        if told is not None:
            return told
    return None


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _glued_row(line: str, beginning: str) -> Any:
    """The row that ends a line, if it is not a part of another."""
    start = line.rfind(beginning)
    return None if start <= 0 or line[start - 1] in _INSIDE else parsed(line[start:])


def _last_match(text: str, pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
    """The last place where a key has a whole string; a row has the same key again and again, so the end is looked at first."""
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


# --- side rows

SideRow = dict[str, Any]


def title_row(session_id: str, title: str) -> SideRow:
    """The row that names a session."""
    title = title.strip()
    if not title:
        raise Invalid("a title must not be empty", hint="give the session another name; a name cannot be taken away")
    return {"type": CUSTOM_TITLE, "customTitle": title, "sessionId": session_id}


def tag_row(session_id: str, tag: str | None) -> SideRow:
    """The row that tags a session; `None` clears the tag."""
    cleaned = "" if tag is None else clean_tag(tag)
    if tag is not None and not cleaned:
        raise Invalid("a tag must not be empty", hint="use None to clear the tag")
    return {"type": TAG, "tag": cleaned, "sessionId": session_id}


def value_row(session_id: str, kind: str, value: Any) -> SideRow:
    """A row of which the last one counts, such as `mode` or `agent-name`; of `pr-link` the value is its members."""
    if kind not in LAST_WINS:
        raise Invalid(f"{kind!r} is no value of a session", hint=f"one of {', '.join(LAST_WINS)}")
    member = LAST_WINS[kind]
    members = dict(value) if member is None else {member: value}
    return {"type": kind, **members, "sessionId": session_id}


def queue_operation_row(session_id: str, operation: str, content: Any, now: str) -> SideRow:
    """The row that says what happened to the queue of prompts; without content if there is none."""
    row: SideRow = {"type": QUEUE_OPERATION, "operation": operation, "timestamp": now, "sessionId": session_id}
    return row if content is None else row | {"content": content}


def file_history_snapshot_row(message_id: str, snapshot: Mapping[str, Any], *, is_update: bool) -> SideRow:
    """The row with the backups of files at a message."""
    return {
        "type": FILE_HISTORY_SNAPSHOT,
        "messageId": message_id,
        "snapshot": dict(snapshot),
        "isSnapshotUpdate": is_update,
    }


def attribution_snapshot_row(snapshot: Mapping[str, Any]) -> SideRow:
    """The row that says who wrote what; only the last counts."""
    return {"type": ATTRIBUTION_SNAPSHOT} | {name: value for name, value in snapshot.items() if name != "type"}


def content_replacement_row(
    session_id: str, replacements: Sequence[Mapping[str, Any]], agent_id: str | None = None
) -> SideRow:
    """The row with what stands in the place of large contents."""
    agent = {} if agent_id is None else {"agentId": agent_id}
    return {
        "type": CONTENT_REPLACEMENT,
        "sessionId": session_id,
        **agent,
        "replacements": [dict(replacement) for replacement in replacements],
    }


# -- the state of a session, read back

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
    """What the rows of a transcript have said so far; `apply` adds a row."""

    values: dict[str, Any] = field(default_factory=dict)  # by type: a title, a tag, a mode, …
    summaries: dict[str, str] = field(default_factory=dict)  # by the uuid of the leaf
    queue: list[Row] = field(default_factory=list)  # the operations whose content still waits
    unknown_operations: list[Row] = field(default_factory=list)
    snapshots: dict[str, Row] = field(default_factory=dict)  # by the uuid of the message
    attribution: Row | None = None
    replacements: list[Row] = field(default_factory=list)  # the rows, each with a list of its own

    def apply(self, row: Row) -> None:
        """Take in one row; of a type that carries no state it changes nothing."""
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
        """What stands in the place of a tool's result, the newest; None if nothing does."""
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
        """Take the first with this content out of the queue; if none is named, the first of all."""
        for place, waiting in enumerate(self.queue):
            if content is None or waiting.get("content") == content:
                del self.queue[place]
                return

    def _snapshot(self, row: Row) -> None:
        snapshot = mapping_of(row, "snapshot")
        # An update says something new of the message that its snapshot was made for, from where another one stands.
        said = text_of(snapshot, "messageId") if row.get("isSnapshotUpdate") is True else None
        message = said or text_of(row, "messageId") or text_of(snapshot, "messageId")
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
