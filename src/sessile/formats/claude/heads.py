"""The light heads of a transcript: what the chain needs of each row, in columns, without the content.

Rules:

- Bytes come in pieces of any size and are split at the newline byte only. A row that cannot be read is passed over, as both
  SDKs do; `read_row` says what counts as readable in which view.
- A row takes about fifty bytes here and its uuid once more while the file is read, so that a transcript of many gigabytes
  needs a few hundred megabytes at most. Contents are read again when they are asked for.
- A uuid is a number: its place in the order of first mention. Of rows with one uuid the last counts.
- Ids of responses and tool calls are kept as their 64-bit hashes: they are only compared, and a million of them share one
  by accident once in thirty million transcripts.

It knows neither which row is the leaf nor what any row says.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from sessile.formats.claude import rows as kinds
from sessile.formats.claude.deliveries import Deliveries
from sessile.formats.claude.parsing import UNPRINTED, read_row
from sessile.formats.claude.rows import Row, View, mapping_of, text_of

USER, ASSISTANT, SYSTEM, ATTACHMENT, PROGRESS = range(5)
KINDS: Mapping[str | None, int] = {
    kinds.USER: USER,
    kinds.ASSISTANT: ASSISTANT,
    kinds.SYSTEM: SYSTEM,
    kinds.ATTACHMENT: ATTACHMENT,
    kinds.PROGRESS: PROGRESS,
}

SIDECHAIN, TEAM, META, RESULT, SUMMARY, QUEUED, BOUNDARY, BRIEFING = (1 << bit for bit in range(8))
OFF_MAIN = SIDECHAIN | TEAM  # rows that are somebody else's conversation

NOBODY = -1  # the parent of a root, and the row of a uuid that nobody has
_NO_ID = 0  # the hash of an id that is not there
_NAMELESS = 1  # the hash of the call that a result answers without saying which

_QUEUED_COMMAND = "queued_command"
_FORK_BRIEFING = "fork_briefing"  # what an agent is told that begins as a fork; nothing of the conversation
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
    """Feed it the bytes of a transcript in order, then `finish`; the columns have one place for each row of the chain."""

    def __init__(self, view: View = "ts") -> None:
        self.view: View = view
        self.kind = bytearray()
        self.flags = bytearray()
        self.uuid = array("i")
        self.parent = array("i")
        self.source = array("i")  # what a tool result says it belongs to, or what a queued prompt was sent as
        self.response = array("q")
        self.call = array("q")  # the first tool call that a row makes or answers
        self.calls: dict[int, tuple[int, ...]] = {}  # all of them, if there are several
        self.agent: dict[int, str] = {}
        self.boundaries: dict[int, Row] = {}  # what a compaction says of itself
        self.queued: dict[int, str] = {}  # the uuid under which a queued prompt was sent, or ""
        self.deliveries = Deliveries()
        self.forwarded: set[int] = set()  # meta rows that other people wrote, and that are shown
        self.named: dict[int, int] = {}  # the parent that a row names, where `relink` has given it another
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
        """Take the next bytes of the file."""
        if self.view == "python-sdk" and b"\r" in data:
            data = data.replace(b"\r", b"\n")  # it opens files as text, where each of them ends a line
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
        """Keep the beginning of a line; a hole that a crash has left before it may be larger than any memory."""
        if self.view == "ts" and not self._pending and not data.translate(None, UNPRINTED):
            self._at += len(data)
        else:
            self._pending.append(data)

    def finish(self) -> None:
        """Take the last row, which has no newline."""
        self._add_rows((b"".join(self._pending),))
        self._pending = []

    def live(self) -> Iterator[int]:
        """The rows in file order, of duplicates the last."""
        row_of, uuid = self.row_of, self.uuid
        return (row for row in range(len(self)) if row_of[uuid[row]] == row)

    def place(self, row: int) -> tuple[int, int]:
        """Where a row lies in the file: its offset and length."""
        return self._offset[row], self._length[row]

    def number(self, uuid: str) -> int:
        """The number of a uuid, a new one if it was not seen before; not after `forget_names`."""
        number = self._numbers.setdefault(uuid, len(self._numbers))
        if number == len(self.row_of):
            self.row_of.append(NOBODY)
        return number

    def forget_names(self) -> None:
        """Free the texts of the uuids, which are most of the memory, when no more are to be looked up."""
        self._numbers = {}

    def parent_of(self, row: int) -> int:
        """The row that this one names as its parent, or `NOBODY`."""
        number = self.parent[row]
        return self.row_of[number] if number >= 0 else NOBODY

    def relink(self, links: Mapping[int, int]) -> None:
        """Give rows other parents than those they name."""
        for row, number in links.items():
            self.named.setdefault(row, self.parent[row])
            self.parent[row] = number

    def calls_of(self, row: int) -> tuple[int, ...]:
        """The hashes of the tool calls that a row makes or answers."""
        first = self.call[row]
        return () if first in (_NO_ID, _NAMELESS) else self.calls.get(row, (first,))

    # -- adding rows

    def _add_rows(self, lines: Iterable[bytes | memoryview]) -> None:
        """Add rows that follow each other. One loop almost without calls: it runs for each row of a gigabyte."""
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
        last, last_number = None, NOBODY
        for raw in lines:
            offset, at = at, at + len(raw) + 1
            try:
                head = _decode_head(raw)
            except (msgspec.DecodeError, ValueError, RecursionError):
                self._add_exactly(bytes(raw), offset)
                row = len(self.kind)
                continue
            kind = kind_of(head.type, NOBODY)
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
            # Nearly every row hangs from the one before it.
            parent, source = head.parentUuid, head.sourceToolAssistantUUID
            add_parent(NOBODY if not parent else last_number if parent == last else self.number(parent))
            add_source(NOBODY if not source else last_number if source == last else self.number(source))
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
        """The hash of the first tool call of a row; all are kept if there are several."""
        ids = [block.id for block in content if block.type == "tool_use" and block.id is not None]
        return self._note_calls(row, ids)

    def _calls_answered(self, row: int, content: Sequence[_Block]) -> int:
        """The hash of the first tool call that a row answers; not zero if it holds any result."""
        results = [block.tool_use_id for block in content if block.type == "tool_result"]
        ids = [answered for answered in results if answered is not None]
        return self._note_calls(row, ids) or (_NAMELESS if results else _NO_ID)

    def _note_calls(self, row: int, ids: Sequence[str]) -> int:
        if len(ids) > 1:
            self.calls[row] = tuple(map(hash, ids))
        return hash(ids[0]) if ids else _NO_ID

    def _add_exactly(self, raw: bytes, offset: int) -> None:
        """A row that is rare, or that the fast way refuses for a member of a type that it does not expect."""
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
        self.parent.append(self.number(parent) if parent else NOBODY)
        self.source.append(self.number(source) if source else NOBODY)
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
    """The complete lines from a place on, not copied: most of their bytes are only passed over."""
    view = memoryview(data)
    end = data.find(b"\n", start)
    while end >= 0:
        yield view[start:end]
        start = end + 1
        end = data.find(b"\n", start)


def is_true(value: object, view: View) -> bool:
    """Whether a value counts as true: in JavaScript an empty list or object does, in Python it does not."""
    return bool(value) or (view == "ts" and isinstance(value, list | dict))


def is_queued_prompt(attachment: Row) -> bool:
    """Whether an attachment is a prompt that was typed while the agent worked, and not passed on to another one."""
    return (
        text_of(attachment, "type") == _QUEUED_COMMAND
        and isinstance(attachment.get("prompt"), str | list)
        and not text_of(attachment.get("forwardedIntent"), "lineage")
    )


def is_hidden_meta(row: Row) -> bool:
    """Whether a row or an attachment is meta, and not what people elsewhere have said."""
    return is_true(row.get("isMeta"), "ts") and text_of(mapping_of(row, "origin"), "kind") not in _SHOWN_ORIGINS


def _blocks(message: Row, kind: str) -> list[Row]:
    content = message.get("content")
    return [block for block in content if text_of(block, "type") == kind] if isinstance(content, list) else []


def heads_of(data: bytes, view: View = "ts") -> Heads:
    """The heads of a whole transcript that is in memory."""
    heads = Heads(view)
    heads.feed(data)
    heads.finish()
    return heads
