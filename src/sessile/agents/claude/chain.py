"""Find the rows of a transcript's conversation, from the root to the leaf, as the SDKs do.

Rows and links are numbers in columns (`Heads`); contents are read only to compare times. A row takes about fifty bytes,
plus its uuid while the file is read, so a transcript of many gigabytes needs a few hundred megabytes at most. Ids of
responses and tool calls are kept as 64-bit hashes: they are only compared.

Rules:

- Of rows with the same uuid the last counts. Rows that cannot be read are skipped (`read_row` defines what is
  readable).
- A terminal is a row that is not the parent of another row. From it the walk goes up to the nearest user or assistant
  row, the leaf, and from there to the root. It stops at a missing parent or a cycle; `logicalParentUuid` is never
  followed.
- The TypeScript SDK looks for terminals among the rows of the main conversation (no sidechain, team or progress row)
  and takes the last one in the file; a fork briefing is not a terminal. If none leads to a leaf, it does what the
  Python SDK does: look at all rows and take the last leaf in the file, preferably one of the main conversation that is
  not a meta row.
- Progress rows are links of the chain that are never shown. In a sub-agent's file the TypeScript SDK ignores progress
  and system rows, so the rows above them are lost; the Python SDK walks through them.
- The chain of a sub-agent starts at its last user or assistant row, without the corrections below.

Compaction (TypeScript SDK only): messages that a compaction preserved keep their place in the file and are read after
the summary. Every boundary is applied, in file order. `preservedMessages` links the named rows to each other and the
first one to the anchor; nothing happens if one of them is missing. The older `preservedSegment` links only the head to
the anchor. All other children of the anchor (if the anchor is null: all other roots) are then linked to the last
preserved row.

Parallel tool calls: a response with several calls is several assistant rows, and each result is the child of its own
call, so the walk follows only one of them. For each response on the chain, the missing calls and then the missing
results, each by time, are inserted after its last row. A result with another parent belongs to the response if it names
one of its rows as its source or answers one of its calls, comes from the same agent, and the call has no answer yet. A
call id that two responses use decides nothing, and responses without a message id are left alone.

Queued prompts may be in a transcript several times. Newer releases record in the queue when a prompt was delivered in
the middle of a turn, by delivery id or by the uuid of the prompt. As many copies are shown as were delivered, the last
ones. Nothing is decided if there is no such record, or if the copies differ.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.agents.claude import rows as kinds
from sessile.agents.claude.rows import QUEUE_OPERATION, UNPRINTED, Row, View, mapping_of, read_row, text_of, type_of

# -- the heads of a transcript

USER, ASSISTANT, SYSTEM, ATTACHMENT, PROGRESS = range(5)
KINDS: Mapping[str | None, int] = {
    kinds.USER: USER,
    kinds.ASSISTANT: ASSISTANT,
    kinds.SYSTEM: SYSTEM,
    kinds.ATTACHMENT: ATTACHMENT,
    kinds.PROGRESS: PROGRESS,
}

SIDECHAIN, TEAM, META, RESULT, SUMMARY, QUEUED, BOUNDARY, BRIEFING = (1 << bit for bit in range(8))
OFF_MAIN = SIDECHAIN | TEAM  # rows of another conversation

ABSENT = -1  # the parent of a root, and the row of a uuid that has none
_NO_ID = 0  # the hash of a missing id
_NAMELESS = 1  # the hash of a call that a result answers without naming it

_QUEUED_COMMAND = "queued_command"
_FORK_BRIEFING = "fork_briefing"  # the instructions of an agent that starts as a fork; not part of the conversation
_SPECIAL = (_QUEUED_COMMAND, _FORK_BRIEFING)
_SHOWN_ORIGINS = ("channel", "observer", "observer-activity", "slack-ping", "voice-call", "peer")


class _Block(msgspec.Struct, gc=False):
    type: str | None = None
    id: str | None = None
    tool_use_id: str | None = None


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    content: str | list[_Block] | None = None


class _Attachment(msgspec.Struct, gc=False):
    type: str | None = None


class _Head(msgspec.Struct, gc=False):
    type: str | None = None
    uuid: str | None = None
    parentUuid: str | None = None
    isSidechain: bool | None = None
    isMeta: bool | None = None
    isCompactSummary: bool | None = None
    teamName: str | None = None
    subtype: str | None = None
    agentId: str | None = None
    sourceToolAssistantUUID: str | None = None
    message: _Message | None = None
    attachment: _Attachment | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class Heads:
    """The columns of a transcript: feed its bytes in order, then call `finish`. There is one item per row of the chain."""

    def __init__(self, view: View = "ts") -> None:
        self.view: View = view
        self.kind = bytearray()
        self.flags = bytearray()
        self.uuid = array("i")
        self.parent = array("i")
        self.source = array(
            "i"
        )  # the source that a tool result names, or the uuid under which a queued prompt was sent
        self.response = array("q")
        self.call = array("q")  # the first tool call that a row makes or answers
        self.calls: dict[int, tuple[int, ...]] = {}  # all calls of a row, if it has several
        self.agent: dict[int, str] = {}
        self.boundaries: dict[int, Row] = {}  # the metadata of each compaction
        self.queued: dict[int, str] = {}  # the uuid under which a queued prompt was sent, or ""
        self.deliveries = Deliveries()
        self.forwarded: set[int] = set()  # meta rows that other people wrote, which are shown
        self.named: dict[int, int] = {}  # the parent that a row names, if `relink` has changed it
        self.row_of = array("i")  # the last row of each uuid
        self.unreadable = 0
        self.others = 0
        self._offset = array("Q")
        self._length = array("Q")
        self._numbers: dict[str, int] = {}
        self._at = 0
        self._pending: list[bytes] = []

    def __len__(self) -> int:
        return len(self.kind)

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the file."""
        if self.view == "python-sdk" and b"\r" in data:
            data = data.replace(b"\r", b"\n")  # this SDK opens files in text mode, where "\r" ends a line
        end = data.find(b"\n")
        if end < 0:
            self._wait_with(data)
            return
        first = b"".join((*self._pending, memoryview(data)[:end]))
        self._pending = []
        self._add_rows((first,))
        self._add_rows(_lines(data, end + 1))
        self._wait_with(data[data.rfind(b"\n") + 1 :])

    def _wait_with(self, data: bytes) -> None:
        """Keep the start of a line, but not the unprintable bytes before it: a crash may leave a very large hole."""
        if self.view == "ts" and not self._pending and not data.translate(None, UNPRINTED):
            self._at += len(data)
        else:
            self._pending.append(data)

    def finish(self) -> None:
        """Add the last row, which has no newline."""
        self._add_rows((b"".join(self._pending),))
        self._pending = []

    def live(self) -> Iterator[int]:
        """Return the rows in file order, without those that a later row with the same uuid replaces."""
        row_of, uuid = self.row_of, self.uuid
        return (row for row in range(len(self)) if row_of[uuid[row]] == row)

    def place(self, row: int) -> tuple[int, int]:
        """Return the offset and length of a row in the file."""
        return self._offset[row], self._length[row]

    def number(self, uuid: str) -> int:
        """Return the number of a uuid, adding it if it is new; not allowed after `forget_names`."""
        number = self._numbers.setdefault(uuid, len(self._numbers))
        if number == len(self.row_of):
            self.row_of.append(ABSENT)
        return number

    def forget_names(self) -> None:
        """Free the texts of the uuids, which need most of the memory, when no more lookups follow."""
        self._numbers = {}

    def parent_of(self, row: int) -> int:
        """Return the row that is the parent of this one, or `ABSENT`."""
        number = self.parent[row]
        return self.row_of[number] if number >= 0 else ABSENT

    def relink(self, links: Mapping[int, int]) -> None:
        """Change the parents of rows."""
        for row, number in links.items():
            self.named.setdefault(row, self.parent[row])
            self.parent[row] = number

    def calls_of(self, row: int) -> tuple[int, ...]:
        """Return the hashes of the tool calls that a row makes or answers."""
        first = self.call[row]
        return () if first in (_NO_ID, _NAMELESS) else self.calls.get(row, (first,))

    # -- adding rows

    def _add_rows(self, lines: Iterable[bytes | memoryview]) -> None:
        """Add consecutive rows. This loop runs for every row of the file, so it avoids function calls."""
        at, row, row_of = self._at, len(self.kind), self.row_of
        kind_of, number_of = KINDS.get, self._numbers.setdefault
        add_kind, add_flags, add_uuid, add_parent = (
            self.kind.append,
            self.flags.append,
            self.uuid.append,
            self.parent.append,
        )
        add_source, add_response, add_call = self.source.append, self.response.append, self.call.append
        add_offset, add_length = self._offset.append, self._length.append
        last, last_number = None, ABSENT
        for raw in lines:
            offset, at = at, at + len(raw) + 1
            try:
                head = _decode_head(raw)
            except (msgspec.DecodeError, ValueError, RecursionError):
                self._add_exactly(bytes(raw), offset)
                row = len(self.kind)
                continue
            kind = kind_of(head.type, ABSENT)
            uuid = head.uuid
            if kind < 0 or uuid is None:
                self.others += 1
                if head.type == kinds.QUEUE_OPERATION:
                    self.deliveries.note_operation(read_row(bytes(raw), self.view))
                continue
            flags = response = call = 0
            message = head.message
            if kind >= SYSTEM:
                if head.subtype == kinds.COMPACT_BOUNDARY or (head.attachment and head.attachment.type in _SPECIAL):
                    self._add_exactly(bytes(raw), offset)
                    row = len(self.kind)
                    continue
            elif message is not None:
                content = message.content
                if kind == ASSISTANT:
                    if message.id:
                        response = hash(message.id)
                        if type(content) is list:
                            call = self._calls_made(row, content)
                elif type(content) is list:
                    call = self._calls_answered(row, content)
                    flags = RESULT if call else 0
            if head.isSidechain:
                flags |= SIDECHAIN
            if head.isMeta:
                if b'"origin"' in bytes(raw):
                    self._add_exactly(bytes(raw), offset)
                    row = len(self.kind)
                    continue
                flags |= META
            if head.isCompactSummary:
                flags |= SUMMARY
            if head.teamName:
                flags |= TEAM
            # Nearly every row is the child of the row before it.
            parent, source = head.parentUuid, head.sourceToolAssistantUUID
            add_parent(ABSENT if not parent else last_number if parent == last else self.number(parent))
            add_source(ABSENT if not source else last_number if source == last else self.number(source))
            last = uuid
            last_number = number_of(uuid, len(row_of))
            if last_number == len(row_of):
                row_of.append(row)
            else:
                row_of[last_number] = row
            if head.agentId is not None:
                self.agent[row] = head.agentId
            add_kind(kind)
            add_flags(flags)
            add_uuid(last_number)
            add_response(response)
            add_call(call)
            add_offset(offset)
            add_length(len(raw))
            row += 1
        self._at = at

    def _calls_made(self, row: int, content: Sequence[_Block]) -> int:
        """Return the hash of the first tool call of a row; if there are several, all are stored."""
        ids = [block.id for block in content if block.type == "tool_use" and block.id is not None]
        return self._note_calls(row, ids)

    def _calls_answered(self, row: int, content: Sequence[_Block]) -> int:
        """Return the hash of the first tool call that a row answers; not zero if it holds any result."""
        results = [block.tool_use_id for block in content if block.type == "tool_result"]
        ids = [answered for answered in results if answered is not None]
        return self._note_calls(row, ids) or (_NAMELESS if results else _NO_ID)

    def _note_calls(self, row: int, ids: Sequence[str]) -> int:
        if len(ids) > 1:
            self.calls[row] = tuple(map(hash, ids))
        return hash(ids[0]) if ids else _NO_ID

    def _add_exactly(self, raw: bytes, offset: int) -> None:
        """Add a row that is rare, or that has a member of an unexpected type."""
        row = read_row(raw, self.view)
        if row is None:
            self.unreadable += bool(raw.strip())
            return
        kind = KINDS.get(text_of(row, "type") or "")
        uuid = text_of(row, "uuid")
        if kind is None or uuid is None:
            self.others += 1
            self.deliveries.note_operation(row)
            return
        place = len(self.kind)
        flags = self._flags_of(row)
        source = text_of(row, "sourceToolAssistantUUID")
        message = mapping_of(row, "message")
        response_id = text_of(message, "id") if kind == ASSISTANT else None
        if kind == USER and _blocks(message, "tool_result"):
            flags |= RESULT
        if kind == ATTACHMENT:
            attachment = mapping_of(row, "attachment")
            self.deliveries.note_copy(self.number(uuid), attachment)
            if text_of(attachment, "type") == _FORK_BRIEFING:
                flags |= BRIEFING
            if is_queued_prompt(attachment):
                flags = flags & ~META | QUEUED | (META if is_hidden_meta(attachment) else 0)
                source = text_of(attachment, "source_uuid")
                self.queued[place] = source or ""
        elif flags & META and not is_hidden_meta(row):
            self.forwarded.add(place)
        if kinds.is_compact_boundary(row):
            flags |= BOUNDARY
            self.boundaries[place] = mapping_of(row, "compactMetadata")
        if row.get("agentId") is not None:
            self.agent[place] = json.dumps(row["agentId"])
            if isinstance(row["agentId"], str):
                self.agent[place] = row["agentId"]
        calls = [text_of(block, "id") for block in _blocks(message, "tool_use")] if response_id else []
        if flags & RESULT:
            calls = [text_of(block, "tool_use_id") for block in _blocks(message, "tool_result")]
        parent = text_of(row, "parentUuid")
        number = self.number(uuid)
        self.row_of[number] = place
        self.call.append(self._note_calls(place, [call for call in calls if call is not None]))
        self.kind.append(kind)
        self.flags.append(flags)
        self.uuid.append(number)
        self.parent.append(self.number(parent) if parent else ABSENT)
        self.source.append(self.number(source) if source else ABSENT)
        self.response.append(hash(response_id) if response_id else _NO_ID)
        self._offset.append(offset)
        self._length.append(len(raw))

    def _flags_of(self, row: Row) -> int:
        flags = 0
        members = ((SIDECHAIN, "isSidechain"), (TEAM, "teamName"), (META, "isMeta"), (SUMMARY, "isCompactSummary"))
        for flag, member in members:
            if is_true(row.get(member), self.view):
                flags |= flag
        return flags


def _lines(data: bytes, start: int) -> Iterator[memoryview]:
    """Yield the complete lines from `start` on, without copying them."""
    view = memoryview(data)
    end = data.find(b"\n", start)
    while end >= 0:
        yield view[start:end]
        start = end + 1
        end = data.find(b"\n", start)


def is_true(value: object, view: View) -> bool:
    """Return whether a value is true: an empty list or object is in JavaScript, but not in Python."""
    return bool(value) or (view == "ts" and isinstance(value, list | dict))


def is_queued_prompt(attachment: Row) -> bool:
    """Return whether an attachment is a prompt typed while the agent worked, and not forwarded to another agent."""
    return (
        text_of(attachment, "type") == _QUEUED_COMMAND
        and isinstance(attachment.get("prompt"), str | list)
        and not text_of(attachment.get("forwardedIntent"), "lineage")
    )


def is_hidden_meta(row: Row) -> bool:
    """Return whether a row or an attachment is meta and was not written by people elsewhere."""
    return is_true(row.get("isMeta"), "ts") and text_of(mapping_of(row, "origin"), "kind") not in _SHOWN_ORIGINS


def _blocks(message: Row, kind: str) -> list[Row]:
    content = message.get("content")
    return [block for block in content if text_of(block, "type") == kind] if isinstance(content, list) else []


def heads_of(data: bytes, view: View = "ts") -> Heads:
    """Return the heads of a transcript that is in memory."""
    heads = Heads(view)
    heads.feed(data)
    heads.finish()
    return heads


# -- the way from the root to the leaf

_KNOWN_IN_SUBAGENTS = (USER, ASSISTANT, ATTACHMENT)


class Conversation(NamedTuple):
    """The rows from the root to the leaf, possibly followed by results that belong to the leaf."""

    leaf: int
    rows: Sequence[int]


def conversation(heads: Heads, times: Times) -> Conversation:
    """Return the rows from the root to the leaf, with the parallel calls and results. Calls `forget_names`."""
    if heads.view == "ts":
        heads.relink(preserved_links(heads))
    heads.forget_names()
    leaf = _last_leaf(heads) if heads.view == "ts" else _best_leaf(heads, range(len(heads)))
    chain = [] if leaf == ABSENT else _up_to_root(heads, leaf, heads.row_of)
    return Conversation(leaf, with_parallel_rows(heads, chain, times))


def subagent_conversation(heads: Heads) -> Conversation:
    """Return the rows of a sub-agent's file from the root to its last user or assistant row."""
    heads.forget_names()
    known = _KNOWN_IN_SUBAGENTS if heads.view == "ts" else KINDS.values()
    row_of = array("i", [ABSENT]) * len(heads.row_of)
    for row, kind in enumerate(heads.kind):
        if kind in known:
            row_of[heads.uuid[row]] = row
    for leaf in range(len(heads) - 1, -1, -1):
        if heads.kind[leaf] in (USER, ASSISTANT):
            return Conversation(leaf, _up_to_root(heads, leaf, row_of))
    return Conversation(ABSENT, [])


def _last_leaf(heads: Heads) -> int:
    """Return the leaf as the TypeScript SDK chooses it."""
    main = bytearray(
        kind != PROGRESS and not flags & (OFF_MAIN | BRIEFING)
        for kind, flags in zip(heads.kind, heads.flags, strict=True)
    )
    leaf = _leaf_among(heads, main)
    return leaf if leaf != ABSENT else _best_leaf(heads, heads.live())


def _leaf_among(heads: Heads, accepted: Sequence[int]) -> int:
    is_parent = bytearray(len(heads.row_of) + 1)  # the last item is for rows without a parent
    row_of, uuid = heads.row_of, heads.uuid
    for row, number in enumerate(heads.parent):
        if accepted[row] and row_of[uuid[row]] == row:
            is_parent[number] = True
    for row in range(len(heads) - 1, -1, -1):
        number = uuid[row]
        if row_of[number] == row and not is_parent[number] and accepted[row]:
            leaf = nearest_user_or_assistant(heads, row)
            if leaf != ABSENT:
                return leaf
    return ABSENT


def _best_leaf(heads: Heads, rows: Iterable[int]) -> int:
    """Return the leaf that is last in the file, preferably one of the main conversation, starting from these rows.

    To the Python SDK each of several rows with the same uuid is a terminal, and it walks from the first of them.
    """
    rows = list(rows)
    is_parent = bytearray(len(heads.row_of) + 1)  # the last item is for rows without a parent
    for row in rows:
        is_parent[heads.parent[row]] = True
    best = main = ABSENT
    for row in rows:
        if is_parent[heads.uuid[row]]:
            continue
        leaf = nearest_user_or_assistant(heads, row)
        if leaf == ABSENT:
            continue
        best = _later(heads, best, leaf)
        if not heads.flags[leaf] & (OFF_MAIN | META):
            main = _later(heads, main, leaf)
    return main if main != ABSENT else best


def _later(heads: Heads, one: int, other: int) -> int:
    """Return the row whose uuid is last in the file; the first one if both have the same uuid."""
    if one == ABSENT or heads.row_of[heads.uuid[other]] > heads.row_of[heads.uuid[one]]:
        return other
    return one


def nearest_user_or_assistant(heads: Heads, row: int) -> int:
    """Return the row itself or its nearest ancestor that is a user or assistant row."""
    seen = set()
    while row != ABSENT and row not in seen and heads.kind[row] not in (USER, ASSISTANT):
        seen.add(row)
        row = heads.parent_of(row)
    return ABSENT if row in seen else row


def _up_to_root(heads: Heads, leaf: int, row_of: Sequence[int]) -> list[int]:
    """Return the rows from the root to a leaf, each uuid once; `row_of` maps uuids to rows."""
    chain = []
    seen = bytearray(len(row_of))
    row, uuid, parent = leaf, heads.uuid, heads.parent
    while row != ABSENT and not seen[uuid[row]]:
        seen[uuid[row]] = True
        chain.append(row)
        above = parent[row]
        row = row_of[above] if above != ABSENT else ABSENT
    chain.reverse()
    return chain


# -- rows that a compaction preserved

Links = dict[int, int]
"""Row → the number of its new parent."""

_NOWHERE = -2  # an anchor that has no children


class _Relink(NamedTuple):
    """The changes that one boundary asks for: `links` of (uuid, new parent), and where other children of the anchor go."""

    anchor: int
    first: int
    links: Sequence[tuple[int, int]]
    last: int


def preserved_links(heads: Heads) -> Links:
    """Return the links that the boundaries of a transcript change. Must be called before `forget_names`."""
    relinks = [relink for row in heads.boundaries if _is_live(heads, row) for relink in _relinks(heads, row)]
    if not relinks:
        return {}
    links: Links = {}
    children = _children(heads, {relink.anchor for relink in relinks})
    for relink in relinks:
        for number, parent in relink.links:
            _move(heads.row_of[number], parent, heads, links, children)
        for row in tuple(children.get(relink.anchor, ())):
            if heads.uuid[row] != relink.first:
                _move(row, relink.last, heads, links, children)
    return links


def _is_live(heads: Heads, row: int) -> bool:
    return heads.row_of[heads.uuid[row]] == row


def _children(heads: Heads, anchors: set[int]) -> dict[int, dict[int, None]]:
    """Return the children of each anchor, in file order."""
    found: dict[int, dict[int, None]] = {anchor: {} for anchor in anchors}
    for row in heads.live():
        if heads.parent[row] in found:
            found[heads.parent[row]][row] = None
    return found


def _move(row: int, parent: int, heads: Heads, links: Links, children: dict[int, dict[int, None]]) -> None:
    before = links.get(row, heads.parent[row])
    if before in children:
        children[before].pop(row, None)
    if parent in children:
        children[parent][row] = None
    links[row] = parent


def _relinks(heads: Heads, boundary: int) -> Iterator[_Relink]:
    metadata = heads.boundaries[boundary]
    if is_true(metadata.get("preservedMessages"), "ts"):
        yield from _preserved_messages(heads, mapping_of(metadata, "preservedMessages"))
    elif is_true(metadata.get("preservedSegment"), "ts"):
        yield from _preserved_segment(heads, mapping_of(metadata, "preservedSegment"))


def _preserved_messages(heads: Heads, hint: Row) -> Iterator[_Relink]:
    uuids = hint.get("uuids")
    if not isinstance(uuids, list) or not uuids:
        return
    numbers = [_number(heads, uuid) for uuid in uuids]
    rows = [number for number in numbers if number != ABSENT and heads.row_of[number] != ABSENT]
    if len(rows) < len(uuids):
        return
    anchor = _anchor(heads, hint)
    yield _Relink(anchor, rows[0], list(zip(rows, [max(anchor, ABSENT), *rows], strict=False)), rows[-1])


def _preserved_segment(heads: Heads, hint: Row) -> Iterator[_Relink]:
    anchor = _anchor(heads, hint)
    head = _number(heads, hint.get("headUuid"))
    links = [(head, max(anchor, ABSENT))] if head != ABSENT and heads.row_of[head] != ABSENT else []
    yield _Relink(anchor, head, links, _number(heads, hint.get("tailUuid")))


def _anchor(heads: Heads, hint: Row) -> int:
    """Return the number of the anchor: `ABSENT` (the roots) for null, `_NOWHERE` for anything that is not a uuid."""
    anchor = hint.get("anchorUuid", "")
    if anchor is None:
        return ABSENT
    number = _number(heads, anchor)
    return _NOWHERE if number == ABSENT else number


def _number(heads: Heads, uuid: object) -> int:
    """Return the number of a uuid, or `ABSENT` if it is not one."""
    return heads.number(uuid) if isinstance(uuid, str) and uuid else ABSENT


# -- parallel tool calls

Times = Callable[[int], str]
"""Return the timestamp of a row, or "" if it has no text as its timestamp."""

_CONTESTED = -2  # the owner of a call id that two responses use


def with_parallel_rows(heads: Heads, chain: Sequence[int], times: Times) -> list[int]:
    """Return the chain with the calls and results of its responses that are not on it."""
    beside = _beside(heads, chain)
    if not beside:
        return list(chain)
    anchors = {heads.response[row]: row for row in chain if heads.response[row]}
    groups = _groups(heads, anchors, chain, beside)
    on_chain = {heads.uuid[row] for row in chain}
    found = _Results(heads, groups, beside)
    behind: dict[int, list[int]] = {}
    for response, anchor in anchors.items():
        calls = [row for row in groups[response] if heads.uuid[row] not in on_chain]
        results = found.of(groups[response], chain, on_chain)
        if calls or results:
            behind[anchor] = _by_time(calls, times) + _by_time(results, times)
            on_chain.update(heads.uuid[row] for row in behind[anchor])
    whole: list[int] = []
    for row in chain:
        whole.append(row)
        whole.extend(behind.get(row, ()))
    return whole


def _beside(heads: Heads, chain: Sequence[int]) -> list[int]:
    """Return the calls and results that are not on the chain: usually none, in a compacted session most of them."""
    on_chain = bytearray(len(heads.row_of))
    for row in chain:
        on_chain[heads.uuid[row]] = True
    row_of = heads.row_of
    return [
        row
        for row, (number, response, flags) in enumerate(zip(heads.uuid, heads.response, heads.flags, strict=True))
        if (response or flags & RESULT) and not on_chain[number] and row_of[number] == row
    ]


def _groups(heads: Heads, anchors: dict[int, int], chain: Sequence[int], beside: Sequence[int]) -> dict[int, list[int]]:
    """Return all rows of each response on the chain, in file order."""
    groups: dict[int, list[int]] = {response: [] for response in anchors}
    for rows in (chain, beside):
        for row in rows:
            group = groups.get(heads.response[row])
            if group is not None:
                group.append(heads.row_of[heads.uuid[row]])
    for group in groups.values():
        group.sort()
    return groups


def _by_time(rows: list[int], times: Times) -> list[int]:
    return sorted(rows, key=times) if len(rows) > 1 else rows


class _Results:
    """The tool results that are not on the chain, by the rows that they may belong to."""

    def __init__(self, heads: Heads, groups: dict[int, list[int]], beside: Sequence[int]) -> None:
        self._heads = heads
        self._members = {heads.uuid[row] for group in groups.values() for row in group}
        self._answered: set[int] | None = None
        self._below: dict[int, list[int]] = {}
        results = [row for row in beside if heads.flags[row] & RESULT and heads.parent[row] != ABSENT]
        self._owners = self._owners_of({call for row in results for call in heads.calls_of(row)})
        for row in results:
            for number in self._candidates(row):
                self._below.setdefault(number, []).append(row)

    def _candidates(self, row: int) -> Iterable[int]:
        """Yield the uuids of the assistant rows that a result may belong to."""
        heads = self._heads
        yield heads.parent[row]
        source = heads.source[row]
        if source in self._members and self._same_writer(row, heads.row_of[source]):
            yield source
        for call in heads.calls_of(row):
            owner = self._owners.get(call, _CONTESTED)
            if owner != _CONTESTED and self._same_writer(row, owner):
                yield heads.uuid[owner]

    def _owners_of(self, wanted: set[int]) -> dict[int, int]:
        """Return the assistant row that makes each of these calls."""
        heads = self._heads
        owners: dict[int, int] = {}
        if not wanted:
            return owners
        for row in heads.live():
            if not heads.response[row]:
                continue
            for call in heads.calls_of(row):
                if call in wanted:
                    before = owners.get(call)
                    mine = before is None or (before != _CONTESTED and heads.response[before] == heads.response[row])
                    owners[call] = row if mine else _CONTESTED
        return owners

    def _same_writer(self, row: int, other: int) -> bool:
        heads = self._heads
        if (heads.flags[row] ^ heads.flags[other]) & SIDECHAIN:
            return False
        return heads.agent.get(row) == heads.agent.get(other)

    def of(self, group: list[int], chain: Sequence[int], on_chain: set[int]) -> list[int]:
        """Return the results of one response that are not on the chain."""
        heads = self._heads
        members = {heads.uuid[row] for row in group}
        direct: dict[int, None] = {}
        strays: dict[int, None] = {}
        for member in group:
            for row in self._below.get(heads.uuid[member], ()):
                if heads.uuid[row] not in on_chain:
                    (direct if heads.parent[row] in members else strays)[row] = None
        if not strays:
            return list(direct)
        answered = set(self._answered_by(chain))
        answered.update(call for row in direct for call in heads.calls_of(row))
        for row in sorted(strays):
            calls = heads.calls_of(row)
            if any(self._is_open(call, answered, members) for call in calls):
                answered.update(calls)
                direct[row] = None
        return list(direct)

    def _is_open(self, call: int, answered: set[int], members: set[int]) -> bool:
        owner = self._owners.get(call, _CONTESTED)
        return call not in answered and owner != _CONTESTED and self._heads.uuid[owner] in members

    def _answered_by(self, chain: Sequence[int]) -> set[int]:
        if self._answered is None:
            heads = self._heads
            self._answered = {call for row in chain if heads.flags[row] & RESULT for call in heads.calls_of(row)}
        return self._answered


# -- deliveries of queued prompts

_TAKEN_UP = "absorbed_mid_turn"


class Deliveries:
    """The queued prompts that were delivered in the middle of a turn."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()  # number of deliveries, by delivery or prompt key
        self._delivered: dict[str, dict[int, None]] = {}  # copies of each delivery
        self._key_of: dict[int, str] = {}  # by the number of the copy's uuid
        self._copies: dict[str, str] = {}
        self._differing: set[str] = set()

    def note_operation(self, row: Any) -> None:
        """Record a queue operation; rows of other types are ignored."""
        if type_of(row) != QUEUE_OPERATION or text_of(row, "operation") != "remove":
            return
        delivery, prompt = text_of(row, "deliveryId"), text_of(row, "commandUuid")
        if text_of(row, "reason") == _TAKEN_UP and (delivery or prompt is not None):
            self._taken[f"delivery:{delivery}" if delivery else f"prompt:{prompt}"] += 1

    def note_copy(self, uuid: int, attachment: Row) -> None:
        """Record an attachment."""
        if text_of(attachment, "type") != "queued_command":
            return
        delivery, prompt = text_of(attachment, "delivery_id"), text_of(attachment, "source_uuid")
        if delivery:
            self._key_of[uuid] = f"delivery:{delivery}"
            self._delivered.setdefault(self._key_of[uuid], {})[uuid] = None
        elif prompt:
            self._key_of[uuid] = key = f"prompt:{prompt}"
            if self._copies.setdefault(key, json.dumps(attachment)) != json.dumps(attachment):
                self._differing.add(key)

    def verdicts(self, uuids: Iterable[int]) -> dict[int, bool]:
        """Return whether each copy among `uuids` (in reading order) is shown; unknown ones are left out."""
        found: dict[str, list[int]] = {}
        for uuid in uuids:
            key = self._key_of.get(uuid, "")
            if self._taken[key] and key not in self._differing:
                found.setdefault(key, []).append(uuid)
        shown: dict[int, bool] = {}
        for key, copies in found.items():
            all_copies = list(self._delivered[key]) if key in self._delivered else copies
            taken = set(all_copies[-self._taken[key] :])
            shown |= {uuid: uuid in taken for uuid in copies}
        return shown
