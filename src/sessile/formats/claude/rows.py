"""What a row of a Claude Code transcript is: the one definition of a message, and the one of a chain participant.

Rules:

- A transcript message (user, assistant, attachment, system) is what a reader loads into the chain.
- A chain participant is what a writer may hang the next row from: everything but progress. Progress is the state of a
  screen; where it was a parent, resuming cut real messages off.
- Rows are other people's JSON: any member may be missing or of another type, and most rows have no uuid. Nothing here
  raises, whatever a row is.

It does not know files, and no row but the one that it is asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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
