"""Read the first and last bytes of a session file: the one place that parses them, for listings that must not read whole files.

`read_start` returns the header, the title slot before it, and the entries in the same bytes. `glance` also looks at the end:
it returns what the catalog shows about a session. The start has the id, the folder, the title and usually the first message
of the user; the end has the last role and status, and perhaps a newer title. What neither shows is unknown. Nothing
here changes a file or knows the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.core.codec import decode
from sessile.core.digest import name_in, shown, spoken, standing_of
from sessile.core.lines import Finding, Item, Line, Scanner, scan
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import without_surrogates
from sessile.storage.base import CHUNK

HEAD = 4096  # bytes that a listing reads at the start of a file
MAX_HEADER = 1 << 20  # bytes; a header may have a long title or many folders. pi uses the same limit
_FURTHER = 64 * 1024  # bytes to search for a first prompt that is long or comes late
_TAIL = 4096

_PROMPT = b'"role":"user"'
_SYSTEM = re.compile(rb'"role"\s*:\s*"system"')
_SPEAKERS = ("user", "assistant")
_NAMING = ("session_info", "title_change")
_PLAIN = b'{"type":"'
_PLAIN_NAMING = tuple(_PLAIN + kind.encode() for kind in _NAMING)

Record = dict[str, Any]


class Bytes(Protocol):
    """The part of a file system that is needed here."""

    def read(self, fd: int, size: int, offset: int) -> bytes: ...


class Start(NamedTuple):
    """The start of a native session: the title slot (empty if there is none), the header, and entries that follow."""

    slot: Record
    header: Record
    entries: list[Record]


def read_start(fs: Bytes, fd: int, size: int, *, full: bool = False) -> Start | None:
    """Return the start of an open file, with the entries in the bytes that had to be read; `None` if it is not a session.

    The first prompt may come after a long system message; then more is read. With `full`, read the whole file.
    """
    header: Line | None = None
    spoken_to = is_hidden = False

    def goes_on(chunk: bytes) -> bool:
        nonlocal is_hidden
        is_hidden = is_hidden or _SYSTEM.search(chunk) is not None
        return full or header is None or (is_hidden and not spoken_to)

    def noted(items: Iterable[Item]) -> Iterator[Item]:
        nonlocal spoken_to
        for item in items:
            if isinstance(item, Line) and item.head.message is not None and item.head.message.role in _SPEAKERS:
                spoken_to = True
            yield item

    items = noted(_first_items(fs, fd, size, goes_on, full=full))
    header, slot = find_header(items)
    return _start(header, slot, items)


def start_of(data: bytes) -> Start | None:
    """Return the start of a whole file that was read before, with all entries; `None` if it is not a session."""
    items = scan(data)
    return _start(*find_header(items), items)


def _start(header: Line | None, slot: bytes | None, rest: Iterable[Item]) -> Start | None:
    record = None if header is None else decoded(header)
    if record is None:
        return None
    entries = [entry for item in rest if isinstance(item, Line) and (entry := decoded(item)) is not None]
    return Start(_record(slot) or {}, record, entries)


def find_header(items: Iterable[Item]) -> tuple[Line | None, bytes | None]:
    """Return the header of a native session and the title slot before it; no header if another line comes first."""
    slot = None
    for item in items:
        if isinstance(item, Finding):
            continue
        if item.head.type == "title" and item.head.id is None:
            slot = item.raw
            continue
        return (item if item.head.type == "session" and item.head.id is not None else None), slot
    return None, slot


def starts_native(first: bytes) -> bool:
    """Return whether a file that starts with these bytes is in the native format."""
    # Nearly always the first line is the header, or the second after a title slot: the other lines need no look.
    second = first.find(b"\n", first.find(b"\n") + 1) + 1
    return any(find_header(Scanner(0).feed(piece))[0] is not None for piece in (first[:second], first))


def _first_items(
    fs: Bytes, fd: int, size: int, goes_on: Callable[[bytes], bool], *, full: bool = False
) -> Iterator[Item]:
    """Yield the lines and findings of a file, reading more as long as `goes_on`; without `full`, up to `MAX_HEADER`.

    `goes_on` gets the bytes that were read last.
    """
    scanner = Scanner()
    step = HEAD
    limit = size if full else min(size, MAX_HEADER)
    chunk = b""
    while scanner.offset < limit and goes_on(chunk):
        chunk = fs.read(fd, step, scanner.offset)
        if not chunk:
            break
        yield from scanner.feed(chunk)
        step = CHUNK if full else _FURTHER
    if scanner.offset >= size:
        yield from scanner.finish()


def decoded(line: Line) -> Record | None:
    """Return the value of a line; `None` if its head can be read but its body cannot."""
    return _record(line.raw)


def _record(raw: bytes | None) -> Record | None:
    if raw is None:
        return None
    try:
        value: Record = decode(raw)
    except ValueError:
        return None
    return value


# -- a glance at both ends


class Glance(msgspec.Struct, gc=False):
    """What the two ends of a session file show, by the catalog's columns; unknown texts are empty."""

    id: str
    cwd: str
    title: str  # from the header, or changed or removed by an entry near the end
    created: str  # as in the header
    parent: str
    first_text: str
    last_role: str
    last_status: str
    header_title: str  # from the header, or the title slot before it
    header_at: int
    version: int
    origin: str = ""  # the file of another agent that it was imported from


# Partial decoders for lines as the pi family writes them: only the members that are needed become objects. Lines that they
# refuse are read in the exact way.


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
"""The header, its offset, and the first text of the user."""


def glance(fs: Bytes, fd: int, size: int) -> Glance | None:
    """Return what the two ends of an open file show; `None` if it is not a native session."""
    chunk = fs.read(fd, HEAD, 0)
    head = _quick_head(chunk) or (None if _is_foreign(chunk) else _exact_head(fs, fd, size))
    if head is None:
        return None
    header, at, first_text = head
    title = shown(header.title) or "" if header.title else ""
    found = Glance(
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
    if not _quick_tail(tail, found):
        _exact_tail(tail if complete else tail.partition(b"\n")[2], found)
    return found


def _quick_head(chunk: bytes) -> _Head | None:
    """Return the head of a file whose first line is a plain header, soon followed by a prompt; else `None`."""
    end = chunk.find(b"\n")
    prompt = chunk.find(_PROMPT, end)
    stop = chunk.find(b"\n", prompt)
    if end < 0 or prompt < 0 or stop < 0:
        return None
    try:
        header = _decode_header(chunk[:end])
        entry = _decode_prompt(chunk[chunk.rfind(b"\n", end, prompt) + 1 : stop])
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
    """Return whether the first line is plain and from another agent, so that no exact look is needed."""
    try:
        return _decode_type(chunk[: chunk.find(b"\n") + 1]).type not in ("session", "title")
    except _REFUSED:
        return False


def _exact_head(fs: Bytes, fd: int, size: int) -> _Head | None:
    """Return the header, and the first text of the user unless it is too far away."""
    items = _first_items(fs, fd, size, lambda _: True)
    line, slot = find_header(items)
    record = None if line is None else decoded(line)
    if line is None or record is None:
        return None
    header = _header_of(record, _record(slot))
    passed = 0  # bytes of system messages, which may be long
    for item in items:
        if not isinstance(item, Line):
            continue
        role = None if item.head.message is None else item.head.message.role
        if role == "user":
            text = _text_of(decoded(item))
            if text:
                return header, line.offset, text
        elif role == "system":
            passed += len(item.raw)
        elif item.offset - passed > _FURTHER:
            break
    return header, line.offset, ""


def _header_of(record: Record, slot: Record | None) -> _Header:
    """Return the header from a record that may hold anything, and the title slot before it."""
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


def _source_of(value: object) -> _Source | None:
    path = value.get("path") if isinstance(value, dict) else None
    return _Source(path) if isinstance(path, str) else None


def _text_of(entry: Record | None) -> str | None:
    message = entry.get("message") if entry is not None else None
    return spoken(message.get("content")) or None if isinstance(message, dict) else None


def _quick_tail(tail: bytes, found: Glance) -> bool:
    """Set the last role and status, if all lines that start here are plain and none of them names the session."""
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
    message = entry.message
    if entry.type != "message":
        return False
    found.last_role = message.role
    found.last_status = (
        ("error" if message.isError else "ok") if message.role == "toolResult" else message.stopReason or ""
    )
    return True


def _exact_tail(lines: bytes, found: Glance) -> None:
    """Set the last title that these lines give the session, and the last role and status."""
    for item in scan(lines):
        entry = decoded(item) if isinstance(item, Line) and item.head.type != "session" else None
        if entry is None:
            continue
        if entry["type"] in _NAMING:
            found.title = name_in(entry) or ""
        elif entry["type"] == "message" and isinstance(entry.get("message"), dict):
            role, status = standing_of(entry["message"])
            found.last_role, found.last_status = without_surrogates(role or ""), without_surrogates(status or "")
