"""The messages of a session in its file formats: JSONL, the JSON object before that, and v2 transcripts.

JSONL has one message per line, written as JavaScript writes it. Lines end with the newline byte only. A line that
cannot be read is a finding with its offset, and reading continues; a message after a torn one on the same line is
recovered. Every byte is in a row or a finding, or is a line end or a byte order mark. Rows keep their bytes and are
decoded on demand.

A legacy file is one object with a `messages` array. A torn one gives the whole messages up to the damaged place.

A v2 transcript is a log of operations, which is only read. The first line is a header; each other line is a batch with
the SHA-256 of its exact bytes. Batches follow each other by revision; a baseline counts once its last line is there.
Nothing after a bad line is read, since it would change unknown messages: the rest of the file is one finding. A batch
is applied as a whole or not at all. Lengths and offsets of texts are in UTF-16 units.

The module does not know where the bytes come from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.agents.myagents.types import Json, Message, decode_content
from sessile.core.codec import decode, encode, encode_plain, exact_decoder, plain
from sessile.core.lines import Finding
from sessile.core.text import utf16_length

MAX_LINE = 48 * 1024 * 1024  # bytes; a longer line is reported and not kept in memory

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r"
_TRIES = 64  # positions that are tried in a damaged line
_json = exact_decoder()


class _Head(msgspec.Struct):
    """The members that show that a line is a message."""

    id: str | None = None
    role: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class Row(NamedTuple):
    """One readable line: its offset and its exact bytes."""

    offset: int
    raw: bytes

    @property
    def message(self) -> Message:
        """The decoded row."""
        return Message(decode(self.raw))


Item = Row | Finding
Given = Message | Mapping[str, Any]
"""A message of the caller: one that was read, or a new one."""


def stored_form(given: Given) -> Json:
    """Return a new message as it is stored: blocks as text, without `None` members, as JavaScript omits undefined ones.

    This applies to the message, its usage and its attachments. A message that was read stays as it is.
    """
    if isinstance(given, Message):
        return dict(given.value)
    value = _without_none(given)
    if isinstance(value.get("content"), list):
        value["content"] = encode_plain(plain(value["content"]).value).decode("utf-8")
    if isinstance(value.get("usage"), Mapping):
        usage = value["usage"] = _without_none(value["usage"])
        if isinstance(usage.get("modelUsage"), Mapping):
            parts = usage["modelUsage"].items()
            usage["modelUsage"] = {name: _part(part) for name, part in parts if part is not None}
    if isinstance(value.get("attachments"), list | tuple):
        value["attachments"] = [_part(each) for each in value["attachments"]]
    return value


def _part(value: Any) -> Any:
    return _without_none(value) if isinstance(value, Mapping) else value


def _without_none(value: Mapping[str, Any]) -> Json:
    return {name: item for name, item in value.items() if item is not None}


def late_members(stored: Message, given: Given) -> Json:
    """Return the members that a stored message has got since: new ones, or with another value."""
    now = decode(encode_row(stored_form(given)))  # compare what a line gives back: 1.0 becomes 1
    known = (stored.value, stored_form(stored.value))
    return {name: item for name, item in now.items() if not any(_holds(value, name, item) for value in known)}


def _holds(value: Mapping[str, Any], name: str, item: Any) -> bool:
    if name not in value:
        return False
    return bool(value[name] == item or (name == "content" and decode_content(value[name]) == decode_content(item)))


def encode_row(value: Mapping[str, Any]) -> bytes:
    """Return a message as one line, without its newline."""
    return encode(dict(value))


class RawLine(NamedTuple):
    """The bytes between two newlines. `raw` is `None` if they are too long to keep; `torn` means there is no newline."""

    offset: int
    size: int
    raw: bytes | None
    torn: bool


def raw_lines(chunks: Iterable[bytes], offset: int = 0) -> Iterator[RawLine]:
    """Yield the lines of a file in chunks, without empty ones, keeping only one in memory."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            if size + len(part):
                yield _raw_line(offset, held, size, part, torn=False)
            offset += size + len(part) + 1
            held, size = [], 0
        size += len(rest)
        if size > MAX_LINE:
            held = []
        elif rest:
            held.append(rest)
    if size:
        yield _raw_line(offset, held, size, b"", torn=True)


def _raw_line(offset: int, held: list[bytes], size: int, part: bytes, *, torn: bool) -> RawLine:
    size += len(part)
    raw = None if size > MAX_LINE else b"".join((*held, part)) if held else part
    return RawLine(offset, size, raw, torn)


def scan(chunks: Iterable[bytes], offset: int = 0) -> Iterator[Item]:
    """Yield every row and finding of a file in chunks."""
    for line in raw_lines(chunks, offset):
        if line.raw is None:
            yield Finding("too_long", line.offset, line.size, f"a line over the limit of {MAX_LINE} bytes")
        else:
            yield from read_line(line.offset, line.raw, torn=line.torn)


def read_line(offset: int, raw: bytes, *, torn: bool) -> Iterator[Item]:
    """Yield the rows and findings of one line: nearly always one row."""
    if raw.startswith(_BOM):
        offset, raw = offset + len(_BOM), raw[len(_BOM) :]
    body = raw.strip(_BLANK)
    if not body:
        return
    offset += raw.index(body)
    problem = _problem(body)
    if problem is None:
        yield Row(offset, body)
        return
    pieces = _pieces(body)
    at = 0
    for begin, end in pieces:
        if begin > at:
            yield Finding("not_json", offset + at, begin - at, "a fragment before a message on the same line")
        elif at:
            yield Finding("glued", offset + at, 0, "a message follows another on the same line")
        yield Row(offset + begin, body[begin:end])
        at = end
    if at < len(body):
        code = "torn_tail" if torn else "not_json"
        yield Finding(code, offset + at, len(body) - at, "the last line is incomplete" if torn else problem)


def _problem(body: bytes) -> str | None:
    """Return why a line is not a message, or `None` if it is one."""
    try:
        _decode_head(body)
        return None
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # a member of another type, or something that only the exact decoder accepts
    try:
        value = decode(body)
    except ValueError as error:
        return str(error)
    return None if isinstance(value, dict) else "a value that is not an object"


def _pieces(body: bytes) -> list[tuple[int, int]]:
    """Return the offsets of the messages in a damaged line: whole ones from its start, and the one at its end."""
    text = body.decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their offsets
    pieces: list[tuple[int, int]] = []
    at = 0
    for _ in range(_TRIES):
        start = text.find('{"', at)
        if start < 0:
            break
        try:
            value, end = _json.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 2
            continue
        at = end
        if _is_message(value):
            pieces.append((_bytes(text[:start]), _bytes(text[:end])))
    return pieces


def _is_message(value: object) -> bool:
    """Return whether an object in a damaged line is a message, and not part of one."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and {"id", "content"} <= value.keys()


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


# -- legacy files
_MESSAGES = re.compile(r'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_NEXT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")


def read_legacy(data: bytes) -> Iterator[Item]:
    """Yield the messages of a legacy file as rows; raise ValueError if the file is damaged."""
    value = decode(data.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        raise ValueError("a legacy session must be an object")
    messages = value.get("messages", [])
    if not isinstance(messages, list):
        raise ValueError("the messages of a legacy session must be an array")
    offset = 0
    for message in messages:
        if isinstance(message, dict):
            raw = encode_row(message)
            yield Row(offset, raw)
            offset += len(raw) + 1
        else:
            yield Finding("not_a_message", offset, 0, "a message that is not an object")


def salvaged(data: bytes) -> Iterator[Row]:
    """Yield the messages of a damaged legacy file up to the damaged place."""
    text = data.decode("utf-8", "replace")
    match = _MESSAGES.search(text)
    offset = 0
    while match is not None:
        try:
            value, end = exact_decoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            raw = encode_row(value)
            yield Row(offset, raw)
            offset += len(raw) + 1
        match = _NEXT.match(text, end)


def legacy_rows(data: bytes) -> Iterator[bytes]:
    """Yield the messages of one JSON object as the rows that they become; raise `ValueError` where it is damaged."""
    try:
        for item in read_legacy(data):
            # A message that is not an object becomes a line that is not a row: the reader reports it.
            yield item.raw + b"\n" if isinstance(item, Row) else b"null\n"
    except (ValueError, RecursionError):
        yield from (row.raw + b"\n" for row in salvaged(data))
        raise


# -- v2 transcripts

Operation = Mapping[str, Any]
_IDENTITY = {"id", "type", "tool"}  # an update may not change these members of a block
_TOOL_FIELDS = ("inputJson", "result")
_BATCH_START = b'{"batch":'
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{64})"\}\s*\Z')
_VERSION = 2


def read_v2(chunks: Iterable[bytes], size: int) -> Iterator[Item]:
    """Yield the messages of a v2 transcript as rows of the older format, and a finding if it is damaged."""
    lines = raw_lines(chunks)
    log = _Log()
    damage = None
    for line in lines:
        try:
            log.add(line)
        except ValueError as error:
            code = "torn_tail" if line.torn else "damaged_transcript"
            damage = Finding(code, line.offset, size - line.offset, f"not read from here on: {error}")
            break
    if damage is None and log.waits_for_baseline:
        damage = Finding("damaged_transcript", 0, 0, "incomplete baseline")
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

    def add(self, line: RawLine) -> None:
        """Add the next line; raise ValueError if it is invalid."""
        if line.raw is None:
            raise ValueError("line too long")
        if line.torn:
            raise ValueError("incomplete line")
        if self._header is None:
            self._begin(decode(line.raw))
            return
        batch = _batch_in(line.raw)
        operations = batch.get("operations")
        if not isinstance(operations, list):
            raise ValueError("batch without operations")
        if batch.get("mode") == "baseline":
            self._add_baseline(batch, operations)
            return
        first, last = batch.get("fromRevision"), batch.get("revision")
        if self.waits_for_baseline:
            raise ValueError("batch before the end of the baseline")
        if first != self._revision + 1 or not isinstance(last, int) or last < first:
            raise ValueError(f"revision {first} does not follow {self._revision}")
        self._projection.apply(operations)
        self._revision = last

    def _begin(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("kind") != "session-transcript":
            raise ValueError("not a transcript")
        if header.get("version") != _VERSION or not isinstance(header.get("baseRevision"), int):
            raise ValueError(f"unsupported version {header.get('version')!r}")
        self._header = header
        self._revision = header["baseRevision"]
        self.waits_for_baseline = header.get("baseline") is True

    def _add_baseline(self, batch: Json, operations: list[Json]) -> None:
        if not self.waits_for_baseline or batch.get("fromRevision") != 0 or batch.get("revision") != self._revision:
            raise ValueError("unexpected baseline")
        self._baseline.extend(operations)
        if batch.get("baselineEnd"):
            self._projection.apply(self._baseline)
            self._baseline = []
            self.waits_for_baseline = False

    def messages(self) -> Iterator[Json]:
        """Yield the messages as older versions store them; the last answer of a turn has its usage and duration."""
        turns = {turn.get("rootUserMessageId"): turn for turn in self._projection.turns.values()}
        messages = list(self._projection.messages.values())
        turn: Json | None = None
        for at, message in enumerate(messages):
            turn = turns.get(message["id"]) if message.get("role") == "user" else turn
            ends = at + 1 == len(messages) or messages[at + 1].get("role") == "user"
            extra = {name: turn[name] for name in ("usage", "durationMs") if turn and name in turn}
            members = extra if ends and message.get("role") == "assistant" else {}
            yield members | message | {"content": _stored_content(message.get("content"))}


def _batch_in(raw: bytes) -> Json:
    """Return the batch of a line after checking its checksum over the original bytes."""
    match = _CHECKSUM.search(raw)
    if match is None or not raw.startswith(_BATCH_START):
        raise ValueError("line without batch or checksum")
    body = raw[len(_BATCH_START) : match.start()]
    if hashlib.sha256(body).hexdigest().encode("ascii") != match.group(1):
        raise ValueError("wrong checksum of a batch")
    batch = decode(body)
    if not isinstance(batch, dict):
        raise ValueError("batch is not an object")
    return batch


def _stored_content(content: Any) -> Any:
    """Return content as older versions store it."""
    if not isinstance(content, list):
        return content
    return encode_plain(plain([_with_input(block) for block in content]).value).decode("utf-8")


def _with_input(block: Any) -> Any:
    """Return a block with its tool's complete input as a value instead of text."""
    tool = block.get("tool") if isinstance(block, dict) else None
    if (
        not isinstance(tool, dict)
        or tool.get("inputComplete") is not True
        or not isinstance(tool.get("inputJson"), str)
    ):
        return block
    try:
        value = decode(tool["inputJson"].encode("utf-8", "surrogatepass"))
    except ValueError:
        return block  # the text stays readable
    return block | {"tool": tool | {"input": value}}


class Projection:
    """The messages and turns that the operations have created so far, in order."""

    def __init__(self) -> None:
        self.messages: dict[str, Json] = {}
        self.turns: dict[str, Json] = {}

    def apply(self, operations: Sequence[Operation]) -> None:
        """Apply a batch as a whole; raise ValueError and change nothing if an operation is invalid."""
        before = self._snapshot(operations)
        try:
            for operation in operations:
                _OPERATIONS[operation["kind"]](self, operation)
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            self._restore(before)
            raise ValueError(f"invalid operation: {error!r}") from error
        except ValueError:
            self._restore(before)
            raise

    def _snapshot(self, operations: Sequence[Operation]) -> _Snapshot:
        """Return what the batch may change. A log has many batches, so only a removal copies everything."""
        if any(_kind(operation) == "messages-remove" for operation in operations):
            return _Snapshot(dict(self.messages), dict(self.turns), whole=True)
        messages = [_id_in(operation, "message", "messageId") for operation in operations]
        turns = [_id_in(operation, "turn", "") for operation in operations]
        return _Snapshot(
            {name: self.messages.get(name) for name in messages if name is not None},
            {name: self.turns.get(name) for name in turns if name is not None},
            whole=False,
        )

    def _restore(self, before: _Snapshot) -> None:
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


class _Snapshot(NamedTuple):
    """The state before a batch: everything, or what the batch names."""

    messages: Mapping[str, Json | None]
    turns: Mapping[str, Json | None]
    whole: bool


def _kind(operation: object) -> object:
    return operation.get("kind") if isinstance(operation, Mapping) else None


def _id_in(operation: object, whole: str, member: str) -> str | None:
    """Return the id of the message or turn that an operation changes."""
    if not isinstance(operation, Mapping):
        return None
    value = operation.get(whole)
    name = value.get("id") if isinstance(value, Mapping) else operation.get(member)
    return name if isinstance(name, str) else None


def _create(projection: Projection, operation: Operation) -> None:
    message = dict(operation["message"])
    if message["id"] in projection.messages:
        raise ValueError(f"message {message['id']!r} already exists")
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
    """Return a copy of the blocks of a message; an empty text has none yet."""
    content = projection.messages[operation["messageId"]]["content"]
    if isinstance(content, str):
        if content:
            raise ValueError("a block cannot replace a text")
        return []
    return list(content)


def _upsert(items: Sequence[Any], item: Json) -> list[Any]:
    """Return the items with this one instead of that with the same id, or at the end."""
    if any(each.get("id") == item["id"] for each in items):
        return [item if each.get("id") == item["id"] else each for each in items]
    return [*items, item]


def _upsert_block(projection: Projection, operation: Operation) -> None:
    _set_content(projection, operation, _upsert(_blocks(projection, operation), dict(operation["block"])))


def _remove_blocks(projection: Projection, operation: Operation) -> None:
    removed = operation["blockIds"]
    left = [block for block in _blocks(projection, operation) if block["id"] not in removed]
    _set_content(projection, operation, left)


def _change_block(projection: Projection, operation: Operation, change: Callable[[Json], Json]) -> None:
    """Replace the named block by the result of `change`."""
    blocks = _blocks(projection, operation)
    at = next(at for at, block in enumerate(blocks) if block["id"] == operation["blockId"])
    blocks[at] = change(dict(blocks[at]))
    _set_content(projection, operation, blocks)


def _change_tool(operation: Operation, change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """Return a change of a block's tool, or of the named sub-agent call inside of it."""

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
        raise ValueError("an update must not change id, type or tool of a block")

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
        tool, removed = dict(block["tool"]), operation["toolIds"]
        left = [call for call in tool["subagentCalls"] if call.get("id") not in removed]
        return block | {"tool": tool | {"subagentCalls": left}}

    _change_block(projection, operation, change)


def _append_text(projection: Projection, operation: Operation) -> None:
    field, text = operation["field"], operation["text"]

    def grown(before: Any) -> str:
        known = "" if before is None else before
        if not isinstance(known, str) or utf16_length(known) != operation["offset"]:
            raise ValueError("text at the wrong offset")
        return known + str(text)

    def change(value: Json) -> Json:
        return value | {field: grown(value.get(field))}

    if not operation.get("blockId"):
        content = projection.messages[operation["messageId"]]["content"]
        if field != "text" or not isinstance(content, str):
            raise ValueError("text without a block")
        _set_content(projection, operation, grown(content))
        return
    _change_block(projection, operation, _change_tool(operation, change) if field in _TOOL_FIELDS else change)


def _remove_messages(projection: Projection, operation: Operation) -> None:
    removed = operation["messageIds"]
    projection.messages = {name: value for name, value in projection.messages.items() if name not in removed}
    projection.turns = {
        name: turn for name, turn in projection.turns.items() if turn.get("rootUserMessageId") not in removed
    }


def _update_turn(projection: Projection, operation: Operation) -> None:
    projection.turns[operation["turn"]["id"]] = dict(operation["turn"])


_OPERATIONS: dict[str, Callable[[Projection, Operation], None]] = {
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
