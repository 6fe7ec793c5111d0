"""Transcripts of later MyAgents versions: a log of operations, of which the committed prefix is read. They are never written.

The first line is a header; each other one is a batch with the SHA-256 of its exact bytes. Batches follow each other by
revision; a baseline counts only when its last line is there. Unlike everywhere else nothing behind a bad line is read: what
comes later would change messages that are not known. From there on all is one finding.

What the operations of a later version's transcript do to its messages: one row of a table each.

Messages are replaced, never changed in place, so that a batch whose last operation fails can be taken back as a whole. Lengths
and offsets of texts are in UTF-16 units. An operation that does not fit raises `ValueError`, and so does one that is unknown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.myagents.messages import Cut, Item, Row, cut_lines, encode_row
from sessile.agents.myagents.types import Json
from sessile.core.codec import decode, encode_plain, plain
from sessile.core.lines import Finding
from sessile.core.text import utf16_length

# --- operations

Operation = Mapping[str, Any]
_IDENTITY = {"id", "type", "tool"}  # of a block: an update may not touch these
_IN_A_TOOL = ("inputJson", "result")


class Projection:
    """The messages and turns that the operations so far have made, in the order in which they appeared."""

    def __init__(self) -> None:
        self.messages: dict[str, Json] = {}
        self.turns: dict[str, Json] = {}

    def apply(self, operations: Sequence[Operation]) -> None:
        """Apply a batch, all of it or, if anything in it is wrong, nothing."""
        before = self._before(operations)
        try:
            for operation in operations:
                _TABLE[operation["kind"]](self, operation)
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            self._take_back(before)
            raise ValueError(f"an operation that does not fit: {error!r}") from error
        except ValueError:
            self._take_back(before)
            raise

    def _before(self, operations: Sequence[Operation]) -> _Before:
        """What the batch may change. A log has many batches: only a removal is worth a copy of everything."""
        if any(_kind(operation) == "messages-remove" for operation in operations):
            return _Before(dict(self.messages), dict(self.turns), whole=True)
        messages = [_named(operation, "message", "messageId") for operation in operations]
        turns = [_named(operation, "turn", "") for operation in operations]
        return _Before(
            {name: self.messages.get(name) for name in messages if name is not None},
            {name: self.turns.get(name) for name in turns if name is not None},
            whole=False,
        )

    def _take_back(self, before: _Before) -> None:
        if before.whole:
            self.messages = {name: value for name, value in before.messages.items() if value is not None}
            self.turns = {name: value for name, value in before.turns.items() if value is not None}
            return
        for known, earlier in ((self.messages, before.messages), (self.turns, before.turns)):
            for name, value in earlier.items():
                if value is None:
                    known.pop(name, None)
                else:
                    known[name] = value


class _Before(NamedTuple):
    """What was there before a batch: everything, or what the batch names."""

    messages: Mapping[str, Json | None]
    turns: Mapping[str, Json | None]
    whole: bool


def _kind(operation: object) -> object:
    return operation.get("kind") if isinstance(operation, Mapping) else None


def _named(operation: object, whole: str, member: str) -> str | None:
    """The id of what an operation is about."""
    if not isinstance(operation, Mapping):
        return None
    value = operation.get(whole)
    name = value.get("id") if isinstance(value, Mapping) else operation.get(member)
    return name if isinstance(name, str) else None


def _create(projection: Projection, operation: Operation) -> None:
    message = dict(operation["message"])
    if message["id"] in projection.messages:
        raise ValueError(f"the message {message['id']!r} is there already")
    projection.messages[message["id"]] = message


def _update(projection: Projection, operation: Operation) -> None:
    cleared = operation.get("clear") or ()
    message = projection.messages[operation["messageId"]] | dict(operation["details"])
    projection.messages[operation["messageId"]] = {
        name: value for name, value in message.items() if name not in cleared
    }


def _confirm(projection: Projection, operation: Operation) -> None:
    _set_content(projection, operation, operation["content"])


def _set_content(projection: Projection, operation: Operation, content: Any) -> None:
    message = projection.messages[operation["messageId"]]
    projection.messages[operation["messageId"]] = message | {"content": content}


def _blocks(projection: Projection, operation: Operation) -> list[Any]:
    """The blocks of a message, to be changed; an empty text has none yet."""
    content = projection.messages[operation["messageId"]]["content"]
    if isinstance(content, str):
        if content:
            raise ValueError("a block would take the place of a text")
        return []
    return list(content)


def _upsert(items: Sequence[Any], item: Json) -> list[Any]:
    """The items with one in place of that of the same id, or at the end."""
    if any(each.get("id") == item["id"] for each in items):
        return [item if each.get("id") == item["id"] else each for each in items]
    return [*items, item]


def _upsert_block(projection: Projection, operation: Operation) -> None:
    _set_content(projection, operation, _upsert(_blocks(projection, operation), dict(operation["block"])))


def _remove_blocks(projection: Projection, operation: Operation) -> None:
    gone = operation["blockIds"]
    left = [block for block in _blocks(projection, operation) if block["id"] not in gone]
    _set_content(projection, operation, left)


def _change_block(projection: Projection, operation: Operation, change: Callable[[Json], Json]) -> None:
    """Put what `change` makes of the named block in its place."""
    blocks = _blocks(projection, operation)
    at = next(at for at, block in enumerate(blocks) if block["id"] == operation["blockId"])
    blocks[at] = change(dict(blocks[at]))
    _set_content(projection, operation, blocks)


def _change_tool(operation: Operation, change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """A change of a block's tool, or of the named call of a sub-agent inside of it."""

    def of_block(block: Json) -> Json:
        tool, nested = dict(block["tool"]), operation.get("subagentToolId")
        if not nested:
            return block | {"tool": change(tool)}
        calls = list(tool["subagentCalls"])
        at = next(at for at, call in enumerate(calls) if call.get("id") == nested)
        calls[at] = change(dict(calls[at]))
        return block | {"tool": tool | {"subagentCalls": calls}}

    return of_block


def _update_block(projection: Projection, operation: Operation) -> None:
    details = dict(operation["details"])
    if not _IDENTITY.isdisjoint(details):
        raise ValueError("an update may not change what a block is")

    def change(value: Json) -> Json:
        return value | details

    in_tool = operation["target"] != "block"
    _change_block(projection, operation, _change_tool(operation, change) if in_tool else change)


def _upsert_call(projection: Projection, operation: Operation) -> None:
    def change(block: Json) -> Json:
        tool = dict(block["tool"])
        calls = _upsert(tool.get("subagentCalls") or [], dict(operation["call"]))
        return block | {"tool": tool | {"subagentCalls": calls}}

    _change_block(projection, operation, change)


def _remove_calls(projection: Projection, operation: Operation) -> None:
    def change(block: Json) -> Json:
        tool, gone = dict(block["tool"]), operation["toolIds"]
        left = [call for call in tool["subagentCalls"] if call.get("id") not in gone]
        return block | {"tool": tool | {"subagentCalls": left}}

    _change_block(projection, operation, change)


def _append_text(projection: Projection, operation: Operation) -> None:
    field, text = operation["field"], operation["text"]

    def grown(before: Any) -> str:
        known = "" if before is None else before
        if not isinstance(known, str) or utf16_length(known) != operation["offset"]:
            raise ValueError("a text that does not continue what is there")
        return known + str(text)

    def change(value: Json) -> Json:
        return value | {field: grown(value.get(field))}

    if not operation.get("blockId"):
        content = projection.messages[operation["messageId"]]["content"]
        if field != "text" or not isinstance(content, str):
            raise ValueError("a text without a place")
        _set_content(projection, operation, grown(content))
        return
    _change_block(projection, operation, _change_tool(operation, change) if field in _IN_A_TOOL else change)


def _remove_messages(projection: Projection, operation: Operation) -> None:
    gone = operation["messageIds"]
    projection.messages = {name: value for name, value in projection.messages.items() if name not in gone}
    projection.turns = {
        name: turn for name, turn in projection.turns.items() if turn.get("rootUserMessageId") not in gone
    }


def _update_turn(projection: Projection, operation: Operation) -> None:
    projection.turns[operation["turn"]["id"]] = dict(operation["turn"])


_TABLE: dict[str, Callable[[Projection, Operation], None]] = {
    "message-create": _create,
    "message-update": _update,
    "content-confirm": _confirm,
    "block-upsert": _upsert_block,
    "blocks-remove": _remove_blocks,
    "block-update": _update_block,
    "subagent-upsert": _upsert_call,
    "subagents-remove": _remove_calls,
    "text-append": _append_text,
    "messages-remove": _remove_messages,
    "turn-update": _update_turn,
}


# --- transcript v2

_BATCH = b'{"batch":'
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{64})"\}\s*\Z')
_VERSION = 2


def read_v2(chunks: Iterable[bytes], size: int) -> Iterator[Item]:
    """The messages of a transcript as the rows that the versions before would have, and what is wrong with it."""
    lines = cut_lines(chunks)
    log = _Log()
    damage = None
    for line in lines:
        try:
            log.add(line)
        except ValueError as error:
            code = "torn_tail" if line.torn else "damaged_transcript"
            damage = Finding(code, line.offset, size - line.offset, f"nothing is read from here on: {error}")
            break
    if damage is None and log.waits_for_baseline:
        damage = Finding("damaged_transcript", 0, 0, "the baseline is not complete")
    offset = 0
    for message in log.messages():
        raw = encode_row(message)
        yield Row(offset, raw)
        offset += len(raw) + 1
    if damage is not None:
        yield damage


class _Log:
    """The committed batches so far."""

    def __init__(self) -> None:
        self._header: Json | None = None
        self._revision = 0
        self._baseline: list[Json] = []
        self.waits_for_baseline = False
        self._projection = Projection()

    def add(self, line: Cut) -> None:
        """Take one more line; raises ValueError if it is not the next one."""
        if line.raw is None:
            raise ValueError("a line that is too long")
        if line.torn:
            raise ValueError("a line that is not complete")
        if self._header is None:
            self._begin(decode(line.raw))
            return
        batch = _batch_in(line.raw)
        operations = batch.get("operations")
        if not isinstance(operations, list):
            raise ValueError("a batch without operations")
        if batch.get("mode") == "baseline":
            self._add_baseline(batch, operations)
            return
        first, last = batch.get("fromRevision"), batch.get("revision")
        if self.waits_for_baseline:
            raise ValueError("a batch before the end of the baseline")
        if first != self._revision + 1 or not isinstance(last, int) or last < first:
            raise ValueError(f"revision {first} does not follow {self._revision}")
        self._projection.apply(operations)
        self._revision = last

    def _begin(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("kind") != "session-transcript":
            raise ValueError("this is no transcript")
        if header.get("version") != _VERSION or not isinstance(header.get("baseRevision"), int):
            raise ValueError(f"version {header.get('version')!r} is not known")
        self._header = header
        self._revision = header["baseRevision"]
        self.waits_for_baseline = header.get("baseline") is True

    def _add_baseline(self, batch: Json, operations: list[Json]) -> None:
        if not self.waits_for_baseline or batch.get("fromRevision") != 0 or batch.get("revision") != self._revision:
            raise ValueError("a baseline that does not belong here")
        self._baseline.extend(operations)
        if batch.get("baselineEnd"):
            self._projection.apply(self._baseline)
            self._baseline = []
            self.waits_for_baseline = False

    def messages(self) -> Iterator[Json]:
        """The messages as they are stored otherwise; what a turn used is told by its last answer."""
        told = {turn.get("rootUserMessageId"): turn for turn in self._projection.turns.values()}
        messages = list(self._projection.messages.values())
        turn: Json | None = None
        for at, message in enumerate(messages):
            turn = told.get(message["id"]) if message.get("role") == "user" else turn
            ends = at + 1 == len(messages) or messages[at + 1].get("role") == "user"
            extra = {name: turn[name] for name in ("usage", "durationMs") if turn and name in turn}
            spoken = extra if ends and message.get("role") == "assistant" else {}
            yield spoken | message | {"content": _stored(message.get("content"))}


def _batch_in(raw: bytes) -> Json:
    """The batch of a line whose checksum is right; its bytes are never written anew to verify them."""
    match = _CHECKSUM.search(raw)
    if match is None or not raw.startswith(_BATCH):
        raise ValueError("a line without a batch and its checksum")
    body = raw[len(_BATCH) : match.start()]
    if hashlib.sha256(body).hexdigest().encode("ascii") != match.group(1):
        raise ValueError("a batch that does not match its checksum")
    batch = decode(body)
    if not isinstance(batch, dict):
        raise ValueError("a batch that is not an object")
    return batch


def _stored(content: Any) -> Any:
    """Content as the versions before store it."""
    if not isinstance(content, list):
        return content
    return encode_plain(plain([_with_input(block) for block in content]).value).decode("utf-8")


def _with_input(block: Any) -> Any:
    """A block whose tool has all of its input as text, with that as a value."""
    tool = block.get("tool") if isinstance(block, dict) else None
    if (
        not isinstance(tool, dict)
        or tool.get("inputComplete") is not True
        or not isinstance(tool.get("inputJson"), str)
    ):
        return block
    try:
        given = decode(tool["inputJson"].encode("utf-8", "surrogatepass"))
    except ValueError:
        return block  # the text itself stays readable
    return block | {"tool": tool | {"input": given}}
