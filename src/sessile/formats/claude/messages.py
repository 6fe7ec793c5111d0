"""The messages that a reader is given: which rows of a chain are shown, and what is told of each.

The rows to show are known from their heads, so that a page of a long conversation decodes no more than the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from sessile.formats.claude import rows as kinds
from sessile.formats.claude.chain import Conversation
from sessile.formats.claude.heads import ASSISTANT, META, OFF_MAIN, SYSTEM, Heads, is_true
from sessile.formats.claude.parallel import Times
from sessile.formats.claude.queued import Contents, behind_the_leaf, shown_prompts
from sessile.formats.claude.rows import Row, View, mapping_of, text_of

PLAIN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # what the TypeScript SDK takes for the id of a call or a run
AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

_NOTIFICATION = "task-notification"


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a conversation; members that a row does not have are None."""

    type: str
    uuid: str
    session_id: Any
    message: Any
    parent_tool_use_id: str | None = None
    parent_agent_id: str | None = None
    timestamp: Any = None
    origin: Any = None
    is_meta: bool = False  # not typed here: a compact summary, or what came from elsewhere
    is_compact_summary: bool = False
    is_queued_command: bool = False


class Shown(NamedTuple):
    """The rows that are shown, in order; a queued prompt may have been sent under another uuid than that of its row."""

    rows: list[int]
    sent_as: dict[int, str]


def shown_rows(
    heads: Heads, talk: Conversation, times: Times, contents: Contents, *, include_system: bool = False
) -> Shown:
    """What is shown of a session."""
    kind, flags = heads.kind, heads.flags
    if heads.view == "python-sdk":
        return Shown([row for row in talk.rows if kind[row] <= ASSISTANT and not flags[row] & (OFF_MAIN | META)], {})
    last = SYSTEM if include_system else ASSISTANT
    everything, prompts = talk.rows, set[int]()
    if heads.queued:
        behind = behind_the_leaf(heads, talk.leaf, talk.rows, times) if talk.rows else []
        prompts = shown_prompts(heads, talk.rows, behind, contents)
        everything = [*talk.rows, *behind]
    rows = [
        row
        for row in everything
        if not flags[row] & OFF_MAIN
        and (row in prompts or (kind[row] <= last and (not flags[row] & META or row in heads.forwarded)))
    ]
    return Shown(rows, heads.queued)


def shown_subagent_rows(heads: Heads, talk: Conversation, contents: Contents) -> Shown:
    """What is shown of a sub-agent: every message, whatever its flags."""
    prompts = set[int]()
    if heads.queued and heads.view == "ts":
        prompts = shown_prompts(heads, talk.rows, (), contents, of_subagent=True)
    return Shown([row for row in talk.rows if heads.kind[row] <= ASSISTANT or row in prompts], heads.queued)


def message_of(row: Row, view: View, uuid: str | None = None) -> SessionMessage:
    """What a reader is told of a row, under its own uuid unless it was sent under another."""
    kind = text_of(row, "type") or ""
    own = text_of(row, "uuid") or ""
    if view == "python-sdk":
        return SessionMessage(kind, own, row.get("sessionId", ""), row.get("message"))
    if kind == kinds.ATTACHMENT:
        return _queued_message(row, uuid or own)
    is_summary = row.get("isCompactSummary") is True
    told = (is_summary, row.get("isMeta") is True, row.get("isVisibleInTranscriptOnly") is True)
    return SessionMessage(
        kind,
        own,
        row.get("sessionId"),
        row.get("message"),
        timestamp=row.get("timestamp"),
        origin=_origin(row.get("origin")) if is_true(row.get("origin"), view) else None,
        is_meta=any(told),
        is_compact_summary=is_summary,
    )


def _queued_message(row: Row, uuid: str) -> SessionMessage:
    attachment = mapping_of(row, "attachment")
    told = attachment.get("origin")
    origin: Any = _origin(told) if text_of(told, "kind") is not None else None
    if origin is None and attachment.get("commandMode") == _NOTIFICATION:
        origin = {"kind": _NOTIFICATION}
    if text_of(origin, "kind") == _NOTIFICATION and "runId" not in origin and _is_plain(attachment.get("runId")):
        origin = {**origin, "runId": attachment["runId"]}
    return SessionMessage(
        kinds.USER,
        uuid,
        row.get("sessionId"),
        {"role": "user", "content": attachment.get("prompt")},
        timestamp=row.get("timestamp"),
        origin=origin,
        is_meta=is_true(attachment.get("isMeta"), "ts"),
        is_queued_command=True,
    )


def _origin(origin: Any) -> Any:
    """Who a message is from; of a notification only what readers are meant to know."""
    if text_of(origin, "kind") != _NOTIFICATION:
        return origin
    told = {name: value for name, value in origin.items() if name in ("kind", "subkind", "fireReason", "producer")}
    if _is_plain(origin.get("runId")):
        told["runId"] = origin["runId"]
    return told | {"taskKind": "mcp-task"} if origin.get("taskKind") == "mcp-task" else told


def _is_plain(text: Any) -> bool:
    return isinstance(text, str) and PLAIN_ID.fullmatch(text) is not None
