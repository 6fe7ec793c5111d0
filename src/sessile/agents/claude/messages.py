"""The messages that a reader is given: which rows of a chain are shown, and what is told of each.

The rows to show are known from their heads, so that a page of a long conversation decodes no more than the page.

Prompts that were typed while the agent worked: which of them the TypeScript SDK shows, where, and under which uuid.

Rules:

- A queued prompt in the chain is shown if the agent went on behind it: with an assistant row, a tool result or the word that
  it was stopped. If the next thing that was said is a prompt of the user, it was sent again there. Meta rows, compact
  summaries and commands of the terminal itself say nothing of it. What the queue notes of a prompt counts more.
- Behind the leaf, all that hang from it are shown, children by time and before the next sibling; not those from which the
  main conversation went on elsewhere.
- A prompt that was sent under another uuid has that one; it is shown once, even if that once is in somebody else's
  conversation. One that is meta is shown of sub-agents only, unless other people wrote it.

The Python SDK shows none.

The state of a session beside its conversation, read back from the rows that carry it.

Rules: rows are applied in file order. A value of which a session has one is the last that was said; queued prompts wait until
they are taken; of each message the newest snapshot of files counts, with the changes that later rows add; of attributions
only the last; replacements of contents add up. What a row does not say is left as it was, and a queue operation that we do
not know changes nothing and is kept.

It does not know the chain, nor rows of other types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sessile.agents.claude import rows as kinds
from sessile.agents.claude.chain import (
    ASSISTANT,
    META,
    NOBODY,
    OFF_MAIN,
    QUEUED,
    RESULT,
    SUMMARY,
    SYSTEM,
    USER,
    Conversation,
    Heads,
    Times,
    is_true,
)
from sessile.agents.claude.rows import LAST_WINS, Row, View, mapping_of, text_of, type_of

# --- queued

Contents = Callable[[int], Row]
"""A row with everything that it says."""

_NOTHING = ""
_CAVEAT = "<local-command-caveat>"
_COMMAND = "<command-name>"
_OUTPUTS = ("<local-command-stdout>", "<local-command-stderr>")
_INTERRUPTIONS = (
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    "[Request interrupted: the session ended",
    "[Agent call interrupted: the process",
    "[Tool call did not complete: the turn",
    "[Tool call interrupted: the session ended",
    "[Tool call result not in this copy: ",
    "[Tool call skipped: the turn",
    "The user doesn't want to take this action right now.",
)


def shown_prompts(
    heads: Heads, chain: Sequence[int], behind: Sequence[int], contents: Contents, *, of_subagent: bool = False
) -> set[int]:
    """The queued prompts that are shown, of a chain and of what hangs behind its leaf."""
    everything = [*chain, *behind]
    went_on = _continued(heads, chain, contents) | set(behind)
    noted = {} if of_subagent else heads.deliveries.verdicts(heads.uuid[row] for row in everything)
    known = {heads.uuid[row] for row in everything}
    shown = set()
    for row in everything:
        own, sent_as = heads.uuid[row], heads.source[row]
        if not heads.flags[row] & QUEUED or not noted.get(own, row in went_on):
            continue
        if heads.flags[row] & META and not of_subagent:
            continue
        if sent_as != NOBODY:
            if sent_as != own and sent_as in known:
                continue
            known.add(sent_as)
        shown.add(row)
    return shown


def _continued(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """The queued prompts of a chain behind which the agent went on."""
    commands = _local_commands(heads, chain, contents)
    found = set()
    went_on = False
    for row in reversed(chain):
        flags = heads.flags[row]
        if heads.kind[row] == ASSISTANT:
            went_on = True
        elif heads.kind[row] == USER:
            answered = flags & RESULT and heads.parent[row] != NOBODY
            if answered or _is_interruption(contents(row)):
                went_on = True
            elif not flags & (META | SUMMARY) and row not in commands:
                went_on = False
        elif flags & QUEUED and went_on:
            found.add(row)
    return found


def _local_commands(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """The rows of commands that the terminal ran by itself: behind a caveat the command, then its output."""
    found = set()
    state = _NOTHING
    for row in chain:
        if heads.kind[row] == ASSISTANT:
            state = _NOTHING
        if heads.kind[row] != USER:
            continue
        text = _told_by_terminal(contents(row))
        if heads.flags[row] & META:
            state = _CAVEAT if text.startswith(_CAVEAT) else state
        elif (state == _CAVEAT and text.startswith(_COMMAND)) or (state == _COMMAND and text.startswith(_OUTPUTS)):
            state = _COMMAND
            found.add(row)
        else:
            state = _NOTHING
    return found


def _told_by_terminal(row: Row) -> str:
    """The last text of a row that nobody typed into a prompt."""
    if "promptSource" in row:
        return ""
    content = mapping_of(row, "message").get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = [block for block in content if type_of(block) == "text"]
    return (text_of(texts[-1], "text") if texts else None) or ""


def _is_interruption(row: Row) -> bool:
    """Whether a row says nothing but that the agent was stopped."""
    content = mapping_of(row, "message").get("content")
    if isinstance(content, str):
        return content.startswith(_INTERRUPTIONS)
    return isinstance(content, list) and bool(content) and all(_is_stop(block) for block in content)


def _is_stop(block: object) -> bool:
    kind = type_of(block)
    failed = isinstance(block, Mapping) and kind == "tool_result" and block.get("is_error") is True
    text = text_of(block, "text") if kind == "text" else text_of(block, "content") if failed else None
    return text is not None and text.startswith(_INTERRUPTIONS)


def behind_the_leaf(heads: Heads, leaf: int, chain: Sequence[int], times: Times) -> list[int]:
    """The queued prompts that hang from the leaf, in the order in which they are shown; replaced rows hang there as well."""
    on_chain = {heads.uuid[row] for row in chain}
    waiting = [row for row in heads.queued if heads.uuid[row] not in on_chain]
    below = _ways_down(heads, leaf, waiting) if waiting else {}
    if not below:
        return []
    left = _left_behind(heads, on_chain)
    shown = []
    stack = [leaf]
    seen = set(on_chain)
    while stack:
        row = stack.pop()
        if row != leaf:
            if heads.uuid[row] in seen:
                continue
            seen.add(heads.uuid[row])
            if heads.flags[row] & QUEUED and heads.uuid[row] not in left:
                shown.append(row)
        children = sorted(below.get(heads.uuid[row], ()))
        stack.extend(reversed(sorted(children, key=times) if len(children) > 1 else children))
    return shown


def _named_parent(heads: Heads, row: int) -> int:
    """The number of the uuid that a row names as its parent, whatever a compaction has made of it."""
    return heads.named.get(row, heads.parent[row])


def _ways_down(heads: Heads, leaf: int, waiting: Sequence[int]) -> dict[int, set[int]]:
    """The children, by the uuid of their parent, on the ways from the leaf to these rows over rows that nobody spoke."""
    replaced: dict[int, list[int]] = {}
    for row in range(len(heads)):
        if heads.row_of[heads.uuid[row]] != row:
            replaced.setdefault(heads.uuid[row], []).append(row)
    below: dict[int, set[int]] = {}
    seen = set()
    stack = list(waiting)
    while stack:
        row = stack.pop()
        if row in seen or heads.kind[row] in (USER, ASSISTANT):
            continue
        seen.add(row)
        live = heads.row_of[heads.uuid[row]]
        for number in {_named_parent(heads, row), heads.parent[live]} - {NOBODY}:
            below.setdefault(number, set()).add(row)
            stack.extend(replaced.get(number, ()))
            if heads.row_of[number] != NOBODY:
                stack.append(heads.row_of[number])
    return below if heads.uuid[leaf] in below else {}


def _left_behind(heads: Heads, on_chain: set[int]) -> set[int]:
    """The uuids below which the main conversation went on beside the chain, by the parents that rows name."""
    left: set[int] = set()
    for spoken in range(len(heads)):
        if heads.kind[spoken] not in (USER, ASSISTANT) or heads.flags[spoken] & OFF_MAIN:
            continue
        number = _named_parent(heads, spoken) if heads.uuid[spoken] not in on_chain else NOBODY
        while number != NOBODY and heads.row_of[number] != NOBODY and number not in left and number not in on_chain:
            left.add(number)
            number = _named_parent(heads, heads.row_of[number])
    return left


# --- messages

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


# --- state

STATE_TYPES = frozenset(
    {
        *LAST_WINS,
        kinds.SUMMARY,
        kinds.QUEUE_OPERATION,
        kinds.FILE_HISTORY_SNAPSHOT,
        kinds.FILE_HISTORY_DELTA,
        kinds.ATTRIBUTION_SNAPSHOT,
        kinds.CONTENT_REPLACEMENT,
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
        elif kind == kinds.SUMMARY:
            leaf, summary = text_of(row, "leafUuid"), text_of(row, "summary")
            if leaf is not None and summary is not None:
                self.summaries[leaf] = summary
        elif kind == kinds.QUEUE_OPERATION:
            self._operate(row)
        elif kind == kinds.FILE_HISTORY_SNAPSHOT:
            self._snapshot(row)
        elif kind == kinds.FILE_HISTORY_DELTA:
            self._change(row)
        elif kind == kinds.ATTRIBUTION_SNAPSHOT:
            self.attribution = row
        elif kind == kinds.CONTENT_REPLACEMENT:
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
