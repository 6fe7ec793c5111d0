"""Translate between rows of a MyAgents session and our entries.

Reading:

    user, assistant      a message, followed by one per tool result: a call and its result are one block in MyAgents
    any other row        a custom entry that holds the whole row

- Rows form one chain without parents, and their ids are small numbers that a damaged file may repeat, so entries are
  named by the offset of their row. Title and folder of a session are in MyAgents' index.
- A row that was rendered from our entries contains them, and is read as these entries.

Writing:

    messages on the path to the leaf     rows; tool results go into the blocks of their calls
    everything else                      stored in the row before it, where MyAgents ignores it

- MyAgents has neither branches nor compactions. Each row stores the entries that it stands for, without what the row
  itself expresses, so reading the file gives the same tree; `counts` holds the number of entries without a counterpart.
  Entries before the first message are stored in its row.
- Blocks of unknown kinds are unchanged, and blocks are never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sessile.agents.base import NOTHING_TOLD, Chain, Entry, Glimpse, Known, Look, offset_of, placed, row_of
from sessile.agents.myagents.messages import encode_row
from sessile.agents.myagents.types import Content, Json, Message, Usage, decode_content
from sessile.core.codec import encode_plain, plain
from sessile.core.kinds import LEAF_MARKER, MARKER, flags_of
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.core.text import parse_timestamp
from sessile.storage.formats import Told

NAME = "myagents"
_FIRST_LINES = 20  # lines that are checked to recognise a file


class MyAgents:
    """The format of MyAgents."""

    name = NAME
    nested = True

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner for rows without a type."""
        return Scanner(offset, untyped=True)

    def recognises(self, first: bytes) -> bool:
        """Return whether the first row has an id, a role and a content, and no type."""
        for line in first.split(b"\n")[:_FIRST_LINES]:
            row = row_of(line)
            if row:
                return "type" not in row and isinstance(row.get("role"), str) and {"id", "content"} <= row.keys()
        return False

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return a header: id from the file name, time of the first rows, the rest from MyAgents' index."""
        times = (Message(row_of(line)).timestamp for line in first.split(b"\n"))
        header = {"type": "session", "version": 3, "id": stem, "timestamp": next(filter(None, times), None)}
        header |= {"cwd": told.cwd or "", "title": told.title or None, "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return the first prompt, and the role of the last message."""
        messages = (Message(row_of(line)) for line in first.split(b"\n"))
        prompt = next((text for message in messages if message.role == "user" and (text := message.text)), "")
        ends = [row["role"] for line in last.split(b"\n") if isinstance((row := row_of(line)).get("role"), str)]
        return Glimpse(first_text=prompt, last_role=ends[-1] if ends else "")

    def translator(self, saved: Any = None) -> Rows:
        """Return a translator for the start of a file, or for a saved state."""
        return Rows(saved)

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """Return the offset of a row, with a number for results."""
        return [str(entry.get("id")) for entry in _entries(raw, offset)]

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """Return a row as one of our entries."""
        entry = next(entry for entry in _entries(raw, offset_of(entry_id)) if entry.get("id") == entry_id)
        return entry if "parentId" in entry else entry | {"parentId": parent_id}


class Rows(Chain):
    """The translator of one session."""

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entries of the next row."""
        return [self._known(entry) for entry in _entries(line.raw, line.offset)]

    def _known(self, entry: Mapping[str, Any]) -> Known:
        message, custom = entry.get("message"), entry.get("customType")
        parent = entry.get("parentId", self.kept.last)
        speaker = (
            MessageHead(*map(message.get, ("role", "provider", "model"))) if isinstance(message, Mapping) else None
        )
        head = Head(str(entry["type"]), str(entry["id"]), parent, custom, speaker)
        # Our marker names the entry at which the conversation continues.
        is_marker = custom == LEAF_MARKER and flags_of(head) & MARKER
        self.kept.last = parent if is_marker else head.id
        return Known(head)


def _entries(raw: bytes, offset: int) -> Sequence[Entry]:
    """Return the entries of a row; those that it was rendered from have their parents."""
    row = row_of(raw)
    kept = kept_entries(row)
    if kept:
        return kept
    base = {"timestamp": Message(row).timestamp}
    natives = natives_of(Message(row))
    if not natives:
        return [{"type": "custom", "id": placed(offset), **base, "customType": "myagents.row", "data": row}]
    ids = (placed(offset, number) for number in range(len(natives)))
    return [
        {"type": "message", "id": entry_id, **base, "message": native}
        for entry_id, native in zip(ids, natives, strict=True)
    ]


# -- messages

MEMBER = "sessile"  # the member of a row that holds the entries it was rendered from
ROLES = ("user", "assistant")
USAGE = (
    ("input", "inputTokens"),
    ("output", "outputTokens"),
    ("cacheRead", "cacheReadTokens"),
    ("cacheWrite", "cacheCreationTokens"),
)


def natives_of(message: Message) -> list[Json]:
    """Return a message in our format, and one per tool result in it; none for a row of another role."""
    if message.role not in ROLES:
        return []
    at = parse_timestamp(message.timestamp)
    content = to_native(message.content)
    native: Json = {"role": message.role, "content": content}
    if message.role == "assistant":
        native["content"] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        native |= {} if message.usage is None else _native_usage(message.usage)
    attachments = message.value.get("attachments")
    if isinstance(attachments, list) and attachments:
        native["attachments"] = attachments
    if at is not None:
        native["timestamp"] = at
    return [native, *results_in(message.content, at)]


def _native_usage(usage: Usage) -> Json:
    known = {ours: usage.value.get(theirs) for ours, theirs in USAGE}
    counts = {name: count for name, count in known.items() if isinstance(count, int)}
    named = {"provider": usage.provider_id, "model": usage.model}
    total = {"totalTokens": sum(counts.values())} if counts else {}
    return {name: text for name, text in named.items() if text is not None} | {"usage": counts | total}


def kept_entries(row: Mapping[str, Any]) -> Sequence[Json]:
    """Return the entries that a row was rendered from; none if there are none, or if the row was changed."""
    kept = row.get(MEMBER)
    if not isinstance(kept, list) or not all(_is_entry(entry) for entry in kept):
        return ()
    natives = iter(natives_of(Message(row)))
    entries = []
    for entry in kept:
        if entry["type"] == "message" and "message" not in entry:
            message = next(natives, None)
            if message is None:
                return ()
            entry = {**entry, "message": message}
        entries.append(entry)
    return entries


def _is_entry(entry: object) -> bool:
    """Return whether a value is an entry. One that was appended in place has no parent: it follows the one before it."""
    if not isinstance(entry, Mapping):
        return False
    return isinstance(entry.get("type"), str) and isinstance(entry.get("id"), str)


# -- blocks


def to_native(content: Content | None) -> str | list[Any]:
    """Return content as our messages have it."""
    if isinstance(content, list):
        return [_to_block(block) for block in content]
    return content or ""


def _to_block(block: Any) -> Any:
    tool = _tool_of(block)
    if tool is None:
        return block
    arguments = tool.get("input")
    return {
        "type": "toolCall",
        "id": tool.get("id"),
        "name": tool.get("name"),
        "arguments": arguments if isinstance(arguments, Mapping) else {},
    }


def _tool_of(block: Any) -> Mapping[str, Any] | None:
    """Return the tool of a block: below `tool` as MyAgents writes it, or the block itself as the model returned it."""
    if not isinstance(block, Mapping) or block.get("type") != "tool_use":
        return None
    tool = block.get("tool")
    return tool if isinstance(tool, Mapping) else block


def results_in(content: Content | None, timestamp: int | None) -> list[Json]:
    """Return the messages that answer the tool calls in a content."""
    found = []
    for block in content if isinstance(content, list) else ():
        tool = _tool_of(block)
        if tool is None or not isinstance(tool.get("result"), str):
            continue
        message: Json = {
            "role": "toolResult",
            "toolCallId": tool.get("id"),
            "toolName": tool.get("name"),
            "content": [{"type": "text", "text": tool["result"]}],
            "isError": tool.get("isError") is True,
        }
        found.append(message if timestamp is None else message | {"timestamp": timestamp})
    return found


def to_stored(content: object, results: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return our content as MyAgents stores it: plain text if it is only that, else its blocks as JSON."""
    blocks = (
        content
        if isinstance(content, list)
        else [{"type": "text", "text": content if isinstance(content, str) else ""}]
    )
    if all(_is_text(block) for block in blocks) and len(blocks) <= 1:
        text = "".join(block["text"] for block in blocks)
        if isinstance(decode_content(text), str):
            return text  # a text that looks like blocks would be read as blocks
    answers = {result.get("toolCallId"): result for result in results}
    return encode_plain(plain([_from_block(block, answers) for block in blocks]).value).decode("utf-8")


def _is_text(block: object) -> bool:
    return isinstance(block, Mapping) and block.keys() == {"type", "text"} and isinstance(block["text"], str)


def _from_block(block: Any, answers: Mapping[Any, Mapping[str, Any]]) -> Any:
    if not isinstance(block, Mapping) or block.get("type") != "toolCall":
        return block
    tool = {"id": block.get("id"), "name": block.get("name"), "input": block.get("arguments")}
    answer = answers.get(block.get("id"))
    if answer is not None:
        tool |= {"result": _text_of(answer.get("content")), "isError": answer.get("isError") is True}
    return {"type": "tool_use", "tool": tool}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content if isinstance(content, list) else ()
    return "\n".join(block["text"] for block in blocks if isinstance(block, Mapping) and "text" in block)


# -- entries as rows


class Rendering:
    """Render the rows of one session; message ids are numbers that continue after `last`."""

    def __init__(self, is_on_path: Callable[[str], bool], last: int = -1) -> None:
        self.counts: dict[str, int] = {}
        self._is_on_path = is_on_path
        self._number = last
        # The entries of the next row, each with whether the row itself expresses it.
        self._group: list[tuple[Mapping[str, Any], bool]] = []
        self._message: Mapping[str, Any] | None = None
        self._results: list[Mapping[str, Any]] = []

    def rows(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
        """Yield the rows of entries in file order."""
        for entry in entries:
            message = entry.get("message")
            spoken = message if entry.get("type") == "message" and isinstance(message, Mapping) else {}
            on_path = bool(spoken) and self._is_on_path(str(entry.get("id")))
            is_message = on_path and spoken.get("role") in ROLES
            is_result = on_path and spoken.get("role") == "toolResult" and self._is_called(spoken.get("toolCallId"))
            if is_message:
                if self._message is not None:
                    yield self._row()
                self._message = spoken
            elif is_result:
                self._results.append(spoken)
            elif entry.get("customType") != LEAF_MARKER:
                kind = str(entry.get("type")) if not spoken or on_path else "message on another branch"
                self.counts[kind] = self.counts.get(kind, 0) + 1
            self._group.append((entry, is_message or is_result))
        if self._message is not None:
            yield self._row()

    def _is_called(self, call_id: object) -> bool:
        return any(block.get("id") == call_id for block in _calls(self._message or {}))

    def _row(self) -> bytes:
        message, results, group = self._message or {}, self._results, self._group
        self._message, self._results, self._group = None, [], []
        self._number += 1
        row: Json = {"id": str(self._number), "role": message.get("role")}
        row["content"] = to_stored(message.get("content"), results)
        row["timestamp"] = next(entry.get("timestamp") for entry, _ in group if entry.get("message") is message)
        if message.get("role") == "assistant":
            row |= _usage_of(message) | {"toolCount": len(_calls(message))}
        attachments = message.get("attachments")
        if isinstance(attachments, list):
            row["attachments"] = attachments
        exact = natives_of(Message(row)) == [message, *results]
        row[MEMBER] = [_without_message(entry) if exact and expressed else dict(entry) for entry, expressed in group]
        return encode_row(row)


def _without_message(entry: Mapping[str, Any]) -> Json:
    return {name: value for name, value in entry.items() if name != "message"}


def _usage_of(message: Mapping[str, Any]) -> Json:
    usage = message.get("usage")
    if not isinstance(usage, Mapping):
        return {}
    counts = {theirs: usage[ours] for ours, theirs in USAGE if isinstance(usage.get(ours), int)}
    named = {"model": message.get("model"), "providerId": message.get("provider")}
    return {"usage": counts | {name: text for name, text in named.items() if isinstance(text, str)}}


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    found = content if isinstance(content, list) else ()
    return [block for block in found if isinstance(block, Mapping) and block.get("type") == "toolCall"]


class MessageNumbers:
    """Watch the rows of a file: `last` is the highest number among the ids of their messages."""

    def __init__(self) -> None:
        self.last = -1

    def watch(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged."""
        scanner = Scanner(untyped=True)
        for piece in pieces:
            for item in scanner.feed(piece):
                if isinstance(item, Line):
                    self.last = next_number(item.head.id, self.last + 1) - 1
            yield piece


def next_number(message_id: str | None, number: int) -> int:
    """Return the number after a message; an id that is not a number does not count."""
    found = message_id or ""
    return max(number, int(found) + 1) if found.isascii() and found.isdigit() and len(found) < 16 else number
