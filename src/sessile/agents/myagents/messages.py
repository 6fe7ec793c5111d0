"""The rows of a session file: one message a line, read one by one and written as JavaScript writes them.

Rules: lines end with the newline byte and nothing else. A line that cannot be read is a finding with its place, and the next
one is read. What was torn and then glued to its successor gives the successor back. Every byte is in a row, in a finding, or
is a line end or a byte order mark. Rows keep their bytes; they are decoded when somebody looks.

It does not know where the bytes come from.

The form of a session before JSONL: one object with a `messages` array.

One that was torn gives the messages that are whole, in their order, up to the damaged place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from sessile.agents.myagents.types import Json, Message, decode_content
from sessile.core.codec import decode, encode, encode_plain, exact_decoder, plain
from sessile.core.lines import Finding

# --- messages

MAX_LINE = 48 * 1024 * 1024  # a longer line is reported, not held

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r"
_TRIES = 64  # starts that are tried in a damaged line
_json = exact_decoder()


class _Head(msgspec.Struct):
    """Enough to see that a line is an object with the members of a message."""

    id: str | None = None
    role: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class Row(NamedTuple):
    """One readable line: where it lies, and its exact bytes."""

    offset: int
    raw: bytes

    @property
    def message(self) -> Message:
        """The decoded row."""
        return Message(decode(self.raw))


Item = Row | Finding
Given = Message | Mapping[str, Any]
"""A message as a caller gives it: as it was read, or a new one."""


def stored_form(given: Given) -> Json:
    """A new message as it is stored: blocks as text, and no member that is `None`, as JavaScript leaves out what is undefined.

    That is so for the message, its usage and its attachments; what other members hold is nobody's business here. One that was
    read stays as it is: whoever wrote it meant it.
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
    """What a message that is stored already has got since: members that are new or have another value."""
    now = decode(encode_row(stored_form(given)))  # what a line gives back is compared: 1.0 is 1 there
    known = (stored.value, stored_form(stored.value))
    return {name: item for name, item in now.items() if not any(_holds(value, name, item) for value in known)}


def _holds(value: Mapping[str, Any], name: str, item: Any) -> bool:
    if name not in value:
        return False
    return bool(value[name] == item or (name == "content" and decode_content(value[name]) == decode_content(item)))


def encode_row(value: Mapping[str, Any]) -> bytes:
    """A message as one line, without its newline."""
    return encode(dict(value))


class Cut(NamedTuple):
    """What lies between two newlines. `raw` is `None` if that is too long to be held; `torn` is what has no newline."""

    offset: int
    size: int
    raw: bytes | None
    torn: bool


def cut_lines(chunks: Iterable[bytes], offset: int = 0) -> Iterator[Cut]:
    """The lines of a file that comes in pieces, empty ones left out; no more than one is held."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            if size + len(part):
                yield _cut(offset, held, size, part, torn=False)
            offset += size + len(part) + 1
            held, size = [], 0
        size += len(rest)
        if size > MAX_LINE:
            held = []
        elif rest:
            held.append(rest)
    if size:
        yield _cut(offset, held, size, b"", torn=True)


def _cut(offset: int, held: list[bytes], size: int, part: bytes, *, torn: bool) -> Cut:
    size += len(part)
    raw = None if size > MAX_LINE else b"".join((*held, part)) if held else part
    return Cut(offset, size, raw, torn)


def scan(chunks: Iterable[bytes], offset: int = 0) -> Iterator[Item]:
    """Every row and finding of a file that comes in pieces."""
    for cut in cut_lines(chunks, offset):
        if cut.raw is None:
            yield Finding("too_long", cut.offset, cut.size, f"a line over the limit of {MAX_LINE} bytes")
        else:
            yield from read_line(cut.offset, cut.raw, torn=cut.torn)


def read_line(offset: int, raw: bytes, *, torn: bool) -> Iterator[Item]:
    """What one line holds: nearly always one row."""
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
    """Why a line is no message, or `None` if it is one."""
    try:
        _decode_head(body)
        return None
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # a member of another type, or something that only the exact reader accepts
    try:
        value = decode(body)
    except ValueError as error:
        return str(error)
    return None if isinstance(value, dict) else "a value that is not an object"


def _pieces(body: bytes) -> list[tuple[int, int]]:
    """The messages in a line that is not one: whole ones from its start, and the one that ends with it."""
    text = body.decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their places
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
    """Whether an object that stands beside garbage is a message, and no part of one."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and {"id", "content"} <= value.keys()


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


# --- legacy

_BEGIN = re.compile(r'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_NEXT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")


def read_legacy(data: bytes) -> Iterator[Item]:
    """The messages of a legacy file as the rows that they become; raises ValueError if it cannot be read as one."""
    value = decode(data.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        raise ValueError("a legacy session is an object")
    messages = value.get("messages", [])
    if not isinstance(messages, list):
        raise ValueError("the messages of a legacy session are an array")
    offset = 0
    for message in messages:
        if isinstance(message, dict):
            raw = encode_row(message)
            yield Row(offset, raw)
            offset += len(raw) + 1
        else:
            yield Finding("not_a_message", offset, 0, "a message that is not an object")


def salvaged(data: bytes) -> Iterator[Row]:
    """The messages of a file that cannot be read as a whole, as far as they are."""
    text = data.decode("utf-8", "replace")
    place = _BEGIN.search(text)
    offset = 0
    while place is not None:
        try:
            value, end = exact_decoder().raw_decode(text, place.end())
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            raw = encode_row(value)
            yield Row(offset, raw)
            offset += len(raw) + 1
        place = _NEXT.match(text, end)


def legacy_rows(data: bytes) -> Iterator[bytes]:
    """Yield the messages of one JSON object as the rows that they become; raise `ValueError` where it is damaged."""
    try:
        for item in read_legacy(data):
            # A message that is not an object becomes a line that is not a row: the reader reports it.
            yield item.raw + b"\n" if isinstance(item, Row) else b"null\n"
    except (ValueError, RecursionError):
        yield from (row.raw + b"\n" for row in salvaged(data))
        raise
