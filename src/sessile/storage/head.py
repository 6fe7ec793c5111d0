"""What the first and the last bytes of a session file tell, for a listing that must not read whole files.

The head gives id, folder, title and mostly the first thing that a user said; the tail who spoke last, how that ended, and a
newer name. What neither tells is unknown. Nothing here changes a file, or knows of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from sessile.core.codec import decode
from sessile.core.digest import name_in, shown, spoken, standing_of
from sessile.core.lines import Line, Scanner, scan
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import without_surrogates

HEAD = 4096
_FURTHER = 64 * 1024  # read at most for a first prompt that is long, or comes late
_LONGEST_HEADER = 1 << 20
_TAIL = 4096

_PROMPT = b'"role":"user"'
_NAMING = ("session_info", "title_change")
_PLAIN = b'{"type":"'
_PLAIN_NAMING = tuple(_PLAIN + kind.encode() for kind in _NAMING)

Record = dict[str, Any]


class Bytes(Protocol):
    """The part of a file system that a look needs."""

    def read(self, fd: int, size: int, offset: int) -> bytes: ...


class Glance(msgspec.Struct, gc=False):
    """What a session file says of itself at its ends, by the catalog's columns; what is unknown is an empty text."""

    id: str
    cwd: str
    title: str  # an entry near the end may have given another one than the header's, or taken it away
    created: str  # as the header has it
    parent: str
    first_text: str
    last_role: str
    last_status: str
    header_title: str  # as the header, or the slot before it, has it
    header_at: int
    version: int
    origin: str = ""  # the file of another agent that it was imported from


# Partial decoders: of lines as the family writes them, only what is looked at becomes objects. What they refuse is read
# the exact way.


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[_Block] = ""


class _Prompt(msgspec.Struct, gc=False):
    type: str
    id: str
    message: _Message


class _LastMessage(msgspec.Struct, gc=False):
    role: str
    stopReason: str | None = None
    isError: bool | None = None


class _Last(msgspec.Struct, gc=False):
    type: str
    id: str
    message: _LastMessage


class _Source(msgspec.Struct, gc=False):
    path: str | None = None


class _Header(msgspec.Struct, gc=False):
    type: str
    id: str
    timestamp: str | None = None
    cwd: str = ""
    title: str | None = None
    parentSession: str | None = None
    version: int = 1
    source: _Source | None = None


class _Typed(msgspec.Struct, gc=False):
    type: str


_decode_type = msgspec.json.Decoder(_Typed).decode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_prompt = msgspec.json.Decoder(_Prompt).decode
_decode_last = msgspec.json.Decoder(_Last).decode
_REFUSED = (msgspec.MsgspecError, ValueError, RecursionError)


_Head = tuple[_Header, int, str]
"""The header, where it begins, and the first thing that a user said."""


def glance(fs: Bytes, fd: int, size: int) -> Glance | None:
    """Look at an open file; `None` if it is no session."""
    chunk = fs.read(fd, HEAD, 0)
    head = _quick_head(chunk) or (None if _is_foreign(chunk) else _exact_head(fs, fd, size))
    if head is None:
        return None
    header, at, first_text = head
    title = shown(header.title) or "" if header.title else ""
    seen = Glance(
        header.id,
        shown(header.cwd) or "",
        title,
        header.timestamp or "",
        shown(header.parentSession) or "" if header.parentSession else "",
        first_text,
        "",
        "",
        title,
        at,
        header.version,
        shown(header.source.path) or "" if header.source is not None else "",
    )
    complete = size <= len(chunk)
    tail = chunk if complete else fs.read(fd, _TAIL, max(0, size - _TAIL))
    if not _quick_tail(tail, seen):
        _exact_tail(tail if complete else tail.partition(b"\n")[2], seen)
    return seen


def _quick_head(chunk: bytes) -> _Head | None:
    """The head of a file whose first line is a plain header and is soon followed by a prompt."""
    end = chunk.find(b"\n")
    said = chunk.find(_PROMPT, end)
    stop = chunk.find(b"\n", said)
    if end < 0 or said < 0 or stop < 0:
        return None
    try:
        header = _decode_header(chunk[:end])
        entry = _decode_prompt(chunk[chunk.rfind(b"\n", end, said) + 1 : stop])
    except _REFUSED:
        return None
    if header.type != "session" or entry.type != "message" or entry.message.role != "user" or not header.id:
        return None
    content = entry.message.content
    if not isinstance(content, str):
        content = " ".join(block.text for block in content if block.type == "text" and block.text)
    text = spoken(content)
    return (header, 0, text) if text and VERSION >= header.version > 1 else None


def _is_foreign(chunk: bytes) -> bool:
    """Whether the first line is plain, and one of another agent: then it is needless to look any closer."""
    try:
        return _decode_type(chunk[: chunk.find(b"\n") + 1]).type not in ("session", "title")
    except _REFUSED:
        return False


def _exact_head(fs: Bytes, fd: int, size: int) -> _Head | None:
    """The header, and the first thing that a user said, if it is not too far."""
    slot: Record | None = None
    header: _Header | None = None
    at = 0
    for line in _first_lines(fs, fd, size):
        head = line.head
        if header is None:
            record = decoded(line)
            if head.type == "session" and head.id is not None and record is not None:
                header, at = _header_of(record, slot), line.offset
            elif head.type == "title" and head.id is None:
                slot = record
            else:
                return None
        elif head.message is not None and head.message.role == "user":
            said = _said(decoded(line))
            if said:
                return header, at, said
        elif line.offset > _FURTHER:
            break
    return None if header is None else (header, at, "")


def _header_of(record: Record, slot: Record | None) -> _Header:
    """A header that may hold anything, and the title slot before it."""
    return _Header(
        type="session",
        id=without_surrogates(record["id"]),
        timestamp=shown(record.get("timestamp")),
        cwd=shown(record.get("cwd")) or "",
        title=shown((record if slot is None else slot).get("title")),
        parentSession=shown(record.get("parentSession")),
        version=min(version_of(record), VERSION),
        source=_source_of(record.get("source")),
    )


def _source_of(told: object) -> _Source | None:
    path = told.get("path") if isinstance(told, dict) else None
    return _Source(path) if isinstance(path, str) else None


def _first_lines(fs: Bytes, fd: int, size: int) -> Iterator[Line]:
    """The lines of a file from its beginning, read as far as somebody asks; no further than a header may reach."""
    scanner = Scanner()
    step = HEAD
    while scanner.offset < min(size, _LONGEST_HEADER):
        chunk = fs.read(fd, step, scanner.offset)
        if not chunk:
            break
        yield from (item for item in scanner.feed(chunk) if isinstance(item, Line))
        step = _FURTHER
    if scanner.offset >= size:
        yield from (item for item in scanner.finish() if isinstance(item, Line))


def _said(entry: Record | None) -> str | None:
    message = entry.get("message") if entry is not None else None
    return spoken(message.get("content")) or None if isinstance(message, dict) else None


def _quick_tail(tail: bytes, seen: Glance) -> bool:
    """Note who spoke last, and how that ended, if the lines that begin here are plain and none of them names the session."""
    end = len(tail) - tail.endswith(b"\n")
    start = last = tail.rfind(b"\n", 0, end) + 1
    while start and tail.startswith(_PLAIN, start) and not tail.startswith(_PLAIN_NAMING, start):
        start = tail.rfind(b"\n", 0, start - 1) + 1
    if start or not last:
        return False
    try:
        entry = _decode_last(tail[last:end])
    except _REFUSED:
        return False
    said = entry.message
    if entry.type != "message":
        return False
    seen.last_role = said.role
    seen.last_status = ("error" if said.isError else "ok") if said.role == "toolResult" else said.stopReason or ""
    return True


def _exact_tail(lines: bytes, seen: Glance) -> None:
    """Note the last name that these lines give the session; who spoke last, and how that ended."""
    for item in scan(lines):
        entry = decoded(item) if isinstance(item, Line) and item.head.type != "session" else None
        if entry is None:
            continue
        if entry["type"] in _NAMING:
            seen.title = name_in(entry) or ""
        elif entry["type"] == "message" and isinstance(entry.get("message"), dict):
            role, status = standing_of(entry["message"])
            seen.last_role, seen.last_status = without_surrogates(role or ""), without_surrogates(status or "")


def decoded(line: Line) -> Record | None:
    """The value of a line; `None` if its body, other than its head, cannot be read."""
    try:
        value: Record = decode(line.raw)
    except ValueError:
        return None
    return value
