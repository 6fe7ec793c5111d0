"""The rows beside the conversation: titles, tags, queue operations, snapshots, replacements. None of them enters the chain.

Rules: the type is the first member, because readers look for `{"type":"tag"` at the start of a line. A title is trimmed; a
tag is also freed of characters that nobody can see, because people filter by it. An empty one is refused, not written: to
clear a tag is a call of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessile.core.text import clean_tag
from sessile.errors import Invalid
from sessile.formats.claude.rows import (
    ATTRIBUTION_SNAPSHOT,
    CONTENT_REPLACEMENT,
    CUSTOM_TITLE,
    FILE_HISTORY_SNAPSHOT,
    LAST_WINS,
    QUEUE_OPERATION,
    TAG,
)

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
