"""The byte-exact line scanner: bytes in, lines and findings out.

It splits on the newline byte only, tolerates CR, NUL runs, a BOM, glued objects, torn tails and bytes that are not UTF-8,
and says of each what it found and where. It accounts for every byte:

    bytes of lines + bytes of findings + newlines = bytes fed

A line is decoded only as far as its head: type, id, parent, role. The scanner does not know what the types mean, does not
open files, and holds no more than one line, whatever is fed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sessile.core.codec import decode_exactly

MAX_LINE = 48 * 1024 * 1024  # a longer line is reported, not held: memory stays bounded whatever a file holds

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t"
_SALVAGE_TRIES = 64  # a damaged line may hold many object starts; trying each would be quadratic


class MessageHead(msgspec.Struct):
    """What is known of a message without decoding its content."""

    role: str | None = None
    provider: str | None = None
    model: str | None = None


class Head(msgspec.Struct):
    """What is known of a line without decoding its body."""

    type: str
    id: str | None = None
    parentId: str | None = None
    customType: str | None = None
    message: MessageHead | None = None


class Line(NamedTuple):
    """One readable record: where it lies, its exact bytes, its head."""

    offset: int
    raw: bytes
    head: Head


class Finding(NamedTuple):
    """Something that is not as it should be. `length` counts the bytes that no line covers; it may be zero."""

    code: str
    offset: int
    length: int
    detail: str


Item = Line | Finding

_Piece = tuple[int, int, Head]  # the place of an entry in the text of a line


class _NotAnEntry(ValueError):
    """Valid JSON, but not an object with a type."""


_decode_head = msgspec.json.Decoder(Head).decode
_json = json.JSONDecoder(parse_constant=lambda constant: _refuse(constant))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Scanner:
    """Feed it the bytes of a file in order, then `finish`."""

    def __init__(self, offset: int = 0, limit: int = MAX_LINE) -> None:
        self.offset = offset
        self.newline_bytes = 0
        self._limit = limit
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._skipping = 0

    @property
    def line_start(self) -> int:
        """Where the line begins that is not complete yet."""
        return self.offset - self._pending_size - self._skipping

    def feed(self, data: bytes) -> Iterator[Item]:
        """The lines that `data` completes."""
        start = 0
        end = data.find(b"\n")
        base = self.offset
        if end >= 0 and (self._pending or self._skipping):
            yield from self._complete(data[:end])
            start = end + 1
            end = data.find(b"\n", start)
        while end >= 0:
            self.newline_bytes += 1
            if end > start:
                raw = data[start:end]
                try:
                    head = _decode_head(raw)
                except (msgspec.DecodeError, ValueError, RecursionError):
                    yield from self._inspect(base + start, raw, torn=False)
                else:
                    yield from _readable(base + start, raw, head)
            start = end + 1
            end = data.find(b"\n", start)
        self.offset = base + len(data)
        if start < len(data):
            self._hold(data[start:] if start else data)

    def finish(self) -> Iterator[Item]:
        """The last line, which has no newline."""
        yield from self._release(torn=True)

    def _hold(self, data: bytes) -> None:
        if self._skipping:
            self._skipping += len(data)
            return
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size > self._limit:
            self._skipping = self._pending_size
            self._pending, self._pending_size = [], 0

    def _complete(self, data: bytes) -> Iterator[Item]:
        """The held line, which ends with `data` and a newline."""
        self._hold(data)
        self.offset += len(data)
        yield from self._release(torn=False)
        self.newline_bytes += 1
        self.offset += 1

    def _release(self, *, torn: bool) -> Iterator[Item]:
        start = self.line_start
        if self._skipping:
            yield Finding("too_long", start, self._skipping, f"a line over the limit of {self._limit} bytes")
        elif self._pending:
            yield from self._inspect(start, b"".join(self._pending), torn=torn)
        self._pending, self._pending_size, self._skipping = [], 0, 0

    def _inspect(self, offset: int, raw: bytes, *, torn: bool) -> Iterator[Item]:
        """Whatever can be read of a line that is not plain JSON, or may be torn."""
        if raw.endswith(b"\r") and not torn:
            raw = raw[:-1]
            self.newline_bytes += 1
        if raw.startswith(_BOM):
            yield Finding("bom", offset, len(_BOM), "a byte order mark")
            offset, raw = offset + len(_BOM), raw[len(_BOM) :]
        body = raw.lstrip(b"\0")
        if len(body) < len(raw):
            yield Finding("nul_run", offset, len(raw) - len(body), "a run of NUL bytes")
            offset, raw = offset + len(raw) - len(body), body
        body = raw.rstrip(b"\0")
        if len(body) < len(raw):
            yield Finding("nul_run", offset + len(body), len(raw) - len(body), "a run of NUL bytes")
            raw = body
        if not raw.strip(_BLANK):
            if raw:
                yield Finding("blank", offset, len(raw), "a line of spaces")
            return
        yield from _salvage(offset, raw, torn=torn)


def scan(data: bytes) -> Iterator[Item]:
    """Every line and finding of a whole file."""
    scanner = Scanner()
    yield from scanner.feed(data)
    yield from scanner.finish()


def read_head(raw: bytes) -> Head:
    """The head of one line; raises ValueError if the line is not an object with a type."""
    try:
        return _decode_head(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _head_of(decode_exactly(raw.decode("utf-8", "replace")))


def _salvage(offset: int, raw: bytes, *, torn: bool) -> Iterator[Item]:
    """The entries of a line that is not simply one object; what lies between them is reported."""
    try:
        yield from _readable(offset, raw, read_head(raw))
        return
    except _NotAnEntry as error:
        yield Finding("not_an_entry", offset, len(raw), str(error))
        return
    except ValueError as error:
        problem = str(error)
    text = _utf8(raw)
    pieces = [] if text is None else _glued(text) or _last_object(text)
    if text is None or not pieces:
        code = "torn_tail" if torn else "bad_utf8" if text is None else "not_json"
        yield Finding(code, offset, len(raw), "the last line is incomplete" if torn else problem)
        return
    at = 0
    for begin, end, head in pieces:
        first, last = len(text[:begin].encode()), len(text[:end].encode())
        if first > at:
            yield Finding("not_json", offset + at, first - at, "a fragment before an entry on the same line")
        elif first:
            yield Finding("glued", offset + first, 0, "an entry follows another on the same line")
        yield Line(offset + first, raw[first:last], head)
        at = last
    if at < len(raw):
        yield Finding("not_json", offset + at, len(raw) - at, "bytes behind an entry on the same line")


def _readable(offset: int, raw: bytes, head: Head) -> Iterator[Item]:
    yield Line(offset, raw, head)
    if not raw.isascii() and _utf8(raw) is None:
        yield Finding("bad_utf8", offset, 0, "an entry holds bytes that are not UTF-8; they are shown as U+FFFD")


def _utf8(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _glued(text: str) -> list[_Piece]:
    """The entries that follow each other from the start of the line."""
    pieces: list[_Piece] = []
    at = 0
    while at < len(text):
        try:
            value, end = _json.raw_decode(text, at)
            pieces.append((at, end, _head_of(value)))
        except (ValueError, RecursionError):
            break
        at = end
    return pieces


def _last_object(text: str) -> list[_Piece]:
    """The entry that ends with the line, behind a damaged start."""
    start = 0
    for _ in range(_SALVAGE_TRIES):
        start = text.find('{"', start + 1)
        if start < 0:
            break
        try:
            head = _head_of(decode_exactly(text[start:]))
        except ValueError:
            continue
        if head.id is not None:
            return [(start, len(text), head)]
    return []


def _head_of(value: object) -> Head:
    """The head of a decoded value, forgiving members of the wrong type."""
    if not isinstance(value, dict):
        raise _NotAnEntry("a value that is not an object")
    if not isinstance(value.get("type"), str):
        raise _NotAnEntry("an object without a type")
    message = value.get("message")
    parts = (_string(message.get(name)) for name in ("role", "provider", "model")) if isinstance(message, dict) else ()
    return Head(
        type=value["type"],
        id=_string(value.get("id")),
        parentId=_string(value.get("parentId")),
        customType=_string(value.get("customType")),
        message=MessageHead(*parts) if isinstance(message, dict) else None,
    )


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
