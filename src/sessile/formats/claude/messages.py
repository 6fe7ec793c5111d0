"""The messages that a reader is given: which rows of a chain are shown, and what is told of each.

The rows to show are known from their heads, so that a page of a long conversation decodes no more than the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sessile.formats.claude import rows as kinds
from sessile.formats.claude.chain import Conversation
from sessile.formats.claude.heads import ASSISTANT, META, NOBODY, OFF_MAIN, SYSTEM, Heads, View, is_true
from sessile.formats.claude.parallel import Times
from sessile.formats.claude.queued import behind_the_leaf, continued
from sessile.formats.claude.rows import Row, mapping_of, text_of


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
    is_meta: bool = False  # shown to people only: a compact summary, for one
    is_compact_summary: bool = False
    is_queued_command: bool = False


class Shown(NamedTuple):
    """The rows that are shown, in order; a queued prompt may have been sent under another uuid than that of its row."""

    rows: list[int]
    sent_as: dict[int, str]


def shown_rows(heads: Heads, talk: Conversation, times: Times, *, include_system: bool = False) -> Shown:
    """What is shown of a session."""
    kind, flags = heads.kind, heads.flags
    if heads.view == "python-sdk" or not (heads.queued or include_system):
        return Shown([row for row in talk.rows if kind[row] <= ASSISTANT and not flags[row] & (OFF_MAIN | META)], {})
    last = SYSTEM if include_system else ASSISTANT
    queued = _QueuedPrompts(heads, talk.rows)
    rows = [
        row
        for row in talk.rows
        if not flags[row] & OFF_MAIN
        and (queued.is_new(row) if row in queued.continued else kind[row] <= last and not flags[row] & META)
    ]
    behind = behind_the_leaf(heads, talk.leaf, talk.rows, times) if heads.queued and talk.rows else []
    rows += [row for row in behind if not flags[row] & OFF_MAIN and queued.is_new(row)]
    return Shown(rows, heads.queued)


def shown_subagent_rows(heads: Heads, talk: Conversation) -> Shown:
    """What is shown of a sub-agent: every message, whatever its flags."""
    queued = _QueuedPrompts(heads, talk.rows if heads.view == "ts" else ())
    rows = [
        row for row in talk.rows if (queued.is_new(row) if row in queued.continued else heads.kind[row] <= ASSISTANT)
    ]
    return Shown(rows, heads.queued)


class _QueuedPrompts:
    """The queued prompts of a chain, each shown once under the uuid with which it was sent."""

    def __init__(self, heads: Heads, chain: Sequence[int]) -> None:
        self._heads = heads
        self._known = {heads.uuid[row] for row in chain} if heads.queued else set()
        self.continued = continued(heads, chain) if heads.queued else set()

    def is_new(self, row: int) -> bool:
        """Whether what it was sent as is neither in the chain nor was asked for before."""
        sent_as = self._heads.source[row]
        if sent_as in self._known:
            return False
        if sent_as != NOBODY:
            self._known.add(sent_as)
        return True


def message_of(row: Row, view: View, uuid: str | None = None) -> SessionMessage:
    """What a reader is told of a row, under its own uuid unless it was sent under another."""
    kind = text_of(row, "type") or ""
    own = text_of(row, "uuid") or ""
    if view == "python-sdk":
        return SessionMessage(kind, own, row.get("sessionId", ""), row.get("message"))
    if kind == kinds.ATTACHMENT:
        return _queued_message(row, uuid or own)
    is_summary = is_true(row.get("isCompactSummary"), view)
    return SessionMessage(
        kind,
        own,
        row.get("sessionId"),
        row.get("message"),
        timestamp=row.get("timestamp"),
        origin=row.get("origin"),
        is_meta=is_summary or is_true(row.get("isVisibleInTranscriptOnly"), view),
        is_compact_summary=is_summary,
    )


def _queued_message(row: Row, uuid: str) -> SessionMessage:
    attachment = mapping_of(row, "attachment")
    origin = attachment.get("origin")
    if origin is None and attachment.get("commandMode") == "task-notification":
        origin = {"kind": "task-notification"}
    return SessionMessage(
        kinds.USER,
        uuid,
        row.get("sessionId"),
        {"role": "user", "content": attachment.get("prompt")},
        timestamp=row.get("timestamp"),
        origin=origin,
        is_queued_command=True,
    )
