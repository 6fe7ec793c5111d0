"""What the first and the last bytes of a session file tell, for a listing that must not read whole files.

The head gives id, folder, title and mostly the first thing that a user said; the tail who spoke last, how that ended, and a
newer name. What neither tells is unknown. Nothing here changes a file, or knows of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode
from sessile.core.digest import name_in, shown, spoken, standing_of
from sessile.core.lines import Line, Scanner, scan
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import without_surrogates
from sessile.storage.base import Filesystem

HEAD = 4096
_FURTHER = 64 * 1024  # read at most for a first prompt that is long, or comes late
_LONGEST_HEADER = 1 << 20
_TAIL = 4096

_PROMPT = b'"role":"user"'
_NAMING = ("session_info", "title_change")

Record = dict[str, Any]


class Glance(NamedTuple):
    """What a session file says of itself at its ends."""

    id: str
    cwd: str
    title: str | None  # as the header, or the slot before it, has it
    renamed: bool  # an entry near the end has given another name, or taken it away
    name: str | None
    created: str | None  # as the header has it
    parent: str | None
    version: int
    header_at: int
    first_text: str | None
    last_role: str | None
    last_status: str | None


# Partial decoders: of lines as the family writes them, only what is looked at becomes objects. What they refuse is read
# the exact way.


class _Block(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block] = ""


class _Prompt(msgspec.Struct):
    type: str
    id: str
    message: _Message


class _LastMessage(msgspec.Struct):
    role: str
    stopReason: str | None = None
    isError: bool | None = None


class _Last(msgspec.Struct):
    type: str
    id: str
    message: _LastMessage


class _Header(msgspec.Struct):
    type: str
    id: str
    timestamp: str | None = None
    cwd: str = ""
    title: str | None = None
    parentSession: str | None = None
    version: int = 1


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_prompt = msgspec.json.Decoder(_Prompt).decode
_decode_last = msgspec.json.Decoder(_Last).decode
_REFUSED = (msgspec.MsgspecError, ValueError, RecursionError)


class _Head(NamedTuple):
    header: _Header
    at: int
    first_text: str | None


def glance(fs: Filesystem, fd: int, size: int) -> Glance | None:
    """Look at an open file; `None` if it is no session."""
    chunk = fs.read(fd, HEAD, 0)
    head = _quick_head(chunk) or _exact_head(fs, fd, size)
    if head is None:
        return None
    renamed, name, role, status = _tail(fs, fd, size, chunk)
    header, at, first_text = head
    return Glance(
        id=header.id,
        cwd=shown(header.cwd) or "",
        title=shown(header.title),
        renamed=renamed,
        name=name,
        created=header.timestamp,
        parent=shown(header.parentSession),
        version=header.version,
        header_at=at,
        first_text=first_text,
        last_role=role,
        last_status=status,
    )


def _quick_head(chunk: bytes) -> _Head | None:
    """The head of a file whose first line is a plain header and is soon followed by a prompt."""
    end = chunk.find(b"\n")
    said = chunk.find(_PROMPT, end + 1)
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
    return _Head(header, 0, text) if text and VERSION >= header.version > 1 else None


def _exact_head(fs: Filesystem, fd: int, size: int) -> _Head | None:
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
                return _Head(header, at, said)
        elif line.offset > _FURTHER:
            break
    return None if header is None else _Head(header, at, None)


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
    )


def _first_lines(fs: Filesystem, fd: int, size: int) -> Iterator[Line]:
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


def _tail(fs: Filesystem, fd: int, size: int, head: bytes) -> tuple[bool, str | None, str | None, str | None]:
    """Whether the session was renamed near its end, and how; who spoke last, and how that ended."""
    start = max(0, size - _TAIL)
    data = head if size <= len(head) else fs.read(fd, size - start, start)
    first = data.find(b"\n") + 1 if start else 0
    if start and not first:
        return False, None, None, None
    if b'"session_info"' not in data and b'"title_change"' not in data:
        # The last line is most often a message: then that is all there is to know.
        end = len(data) - data.endswith(b"\n")
        try:
            last = _decode_last(data[max(first, data.rfind(b"\n", 0, end) + 1) : end])
            if last.type == "message":
                said = last.message
                if said.role != "toolResult":
                    return False, None, said.role, said.stopReason
                return False, None, said.role, "error" if said.isError else "ok"
        except _REFUSED:
            pass
    names: list[str | None] = []
    standing: tuple[str | None, str | None] = (None, None)
    for item in scan(data[first:]):
        entry = decoded(item) if isinstance(item, Line) and item.head.type != "session" else None
        if entry is None:
            continue
        if entry["type"] in _NAMING:
            names.append(name_in(entry))
        elif entry["type"] == "message" and isinstance(entry.get("message"), dict):
            standing = standing_of(entry["message"])
    return bool(names), names[-1] if names else None, *standing


def decoded(line: Line) -> Record | None:
    """The value of a line; `None` if its body, other than its head, cannot be read."""
    try:
        value: Record = decode(line.raw)
    except ValueError:
        return None
    return value
