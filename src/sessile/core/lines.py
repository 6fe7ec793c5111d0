"""The byte-exact line scanner: bytes in, lines and findings out.

It splits at newline bytes only. It tolerates CR, runs of NUL, a BOM, several objects on one line, torn tails and bytes that are
not UTF-8, and reports where they are. It accounts for every byte:

    bytes of lines + bytes of findings + newlines = bytes fed

Only the head of a line is decoded: type, id, parent, role. The scanner does not interpret types and holds at most one line in
memory. Formats whose rows have no type, or other heads, are supported by arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode_exactly, exact_decoder

MAX_LINE = 48 * 1024 * 1024  # longer lines are reported and skipped, which bounds memory use

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t"
_CR = 13
_SPACE = " \t\r"
_SPACES = re.compile(r"[ \t\r]*")
_SALVAGE_EFFORT = 200_000_000  # tries times bytes: each failure of Python's decoder scans the text before it
_SALVAGE_TRIES = 64  # minimum number of tries
_BRACE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')


class MessageHead(msgspec.Struct):
    """The parts of a message that are decoded with the head."""

    role: str | None = None
    provider: str | None = None
    model: str | None = None


class Head(msgspec.Struct):
    """The parts of a line that are decoded without its body."""

    type: str
    id: str | None = None
    parentId: str | None = None
    customType: str | None = None
    message: MessageHead | None = None


class Line(NamedTuple):
    """A readable record: its offset, its exact bytes, its head."""

    offset: int
    raw: bytes
    head: Head


class Finding(NamedTuple):
    """Something in a file that is damaged or irregular.

    Attributes:
        code: The kind of problem, such as "torn_tail" or "missing_parent".
        offset: Where it is in the file, in bytes; -1 if it has no position.
        length: The number of bytes that belong to no line; it may be zero.
        detail: A description.

    Example:
        ```python
        for finding in store.open(path, readonly=True).findings:
            print(finding.offset, finding.detail)
        ```
    """

    code: str
    offset: int
    length: int
    detail: str


Item = Line | Finding

Json = dict[str, Any]
_Piece = tuple[int, int]  # start and end of an entry in the text of a line


class _NotAnEntry(ValueError):
    """Valid JSON, but not an object with a type."""


class _UntypedHead(Head):
    """The head of a row that may have no type."""

    type: str = ""


DecodeHead = Callable[[bytes], Head]

_decode_head = msgspec.json.Decoder(Head).decode
_decode_untyped = msgspec.json.Decoder(_UntypedHead).decode


class Scanner:
    """Scan a file: `feed` its bytes in order, then `finish`. With `untyped`, objects without a type are lines too.

    `decode` may return richer heads for the rows of another format; lines that it refuses get a plain head.
    """

    def __init__(
        self, offset: int = 0, limit: int = MAX_LINE, *, untyped: bool = False, decode: DecodeHead | None = None
    ) -> None:
        self.offset = offset
        self.newline_bytes = 0
        self._limit = limit
        self._untyped = untyped
        self._decode = decode or (_decode_untyped if untyped else _decode_head)
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._skipping = 0

    @property
    def line_start(self) -> int:
        """The offset of the line that is not complete yet."""
        return self.offset - self._pending_size - self._skipping

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the lines and findings that `data` completes."""
        decode = self._decode
        start = 0
        end = data.find(b"\n")
        base = self.offset
        if end >= 0 and (self._pending or self._skipping):
            yield from self._complete(data[:end])
            start = end + 1
            end = data.find(b"\n", start)
        while end >= 0:
            self.newline_bytes += 1
            if end - start > self._limit:
                yield self._too_long(base + start, end - start)
            elif end > start:
                raw = data[start:end]
                try:
                    if data[end - 1] == _CR:
                        raise ValueError("the line end is not one byte")
                    head = decode(raw)
                except (msgspec.DecodeError, ValueError, RecursionError):
                    yield from self._inspect(base + start, raw, torn=False)
                else:
                    yield Line(base + start, raw, head)
                    if not raw.isascii() and _utf8(raw) is None:
                        yield _bad_utf8(base + start)
            start = end + 1
            end = data.find(b"\n", start)
        self.offset = base + len(data)
        if start < len(data):
            self._hold(data[start:] if start else data)

    def split(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the offsets and bytes of the lines that `data` completes, not decoded; `None` for a line over the limit."""
        start = 0
        end = data.find(b"\n")
        base = self.offset
        if end >= 0 and (self._pending or self._skipping):
            begin = self.line_start
            self._hold(data[:end])
            yield begin, None if self._skipping else b"".join(self._pending)
            self._pending, self._pending_size, self._skipping = [], 0, 0
            start = end + 1
            end = data.find(b"\n", start)
        while end >= 0:
            yield base + start, data[start:end] if end - start <= self._limit else None
            start = end + 1
            end = data.find(b"\n", start)
        self.offset = base + len(data)
        if start < len(data):
            self._hold(data[start:] if start else data)

    def finish(self) -> Iterator[Item]:
        """Yield the last line, which has no newline."""
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
        """Yield the held line, which ends with `data` and a newline."""
        self._hold(data)
        self.offset += len(data)
        yield from self._release(torn=False)
        self.newline_bytes += 1
        self.offset += 1

    def _release(self, *, torn: bool) -> Iterator[Item]:
        start = self.line_start
        if self._skipping:
            yield self._too_long(start, self._skipping)
        elif self._pending:
            yield from self._inspect(start, b"".join(self._pending), torn=torn)
        self._pending, self._pending_size, self._skipping = [], 0, 0

    def _too_long(self, offset: int, length: int) -> Finding:
        return Finding("too_long", offset, length, f"a line over the limit of {self._limit} bytes")

    def _inspect(self, offset: int, raw: bytes, *, torn: bool) -> Iterator[Item]:
        """Yield what can be read of a line that is not plain JSON, or may be torn."""
        body = raw.rstrip(b"\r")
        self.newline_bytes += len(raw) - len(body)
        raw = body
        if raw.startswith(_BOM):
            yield Finding("bom", offset, len(_BOM), "a byte order mark")
            offset, raw = offset + len(_BOM), raw[len(_BOM) :]
        body = raw.lstrip(b"\0")
        if len(body) < len(raw):
            yield Finding("nul_run", offset, len(raw) - len(body), "a run of NUL bytes")
            offset, raw = offset + len(raw) - len(body), body
        body = raw.rstrip(b"\0")
        if body.strip(_BLANK):
            yield from _salvage(offset, body, torn=torn, untyped=self._untyped)
        elif body:
            yield Finding("blank", offset, len(body), "a line of spaces")
        if len(body) < len(raw):
            yield Finding("nul_run", offset + len(body), len(raw) - len(body), "a run of NUL bytes")


def scan(data: bytes, *, untyped: bool = False) -> Iterator[Item]:
    """Yield every line and finding of a whole file."""
    scanner = Scanner(untyped=untyped)
    yield from scanner.feed(data)
    yield from scanner.finish()


def read_head(raw: bytes, *, untyped: bool = False) -> Head:
    """Return the head of one line; raise `ValueError` if the line is not an object with a type."""
    try:
        return (_decode_untyped if untyped else _decode_head)(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _head_of(decode_exactly(raw.decode("utf-8", "replace")), untyped)


def _salvage(offset: int, raw: bytes, *, torn: bool, untyped: bool) -> Iterator[Item]:
    """Yield the entries of a line that is not exactly one object, and findings for the bytes between them."""
    try:
        yield from _readable(offset, raw, read_head(raw, untyped=untyped))
        return
    except _NotAnEntry as error:
        yield Finding("not_an_entry", offset, len(raw), str(error))
        return
    except ValueError as error:
        problem = str(error).replace("line 1 column", "column")  # the decoder sees a single line
    text = raw.decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their positions
    pieces = _pieces(text, untyped)
    if not pieces:
        code = "torn_tail" if torn else "not_json" if _utf8(raw) is not None else "bad_utf8"
        yield Finding(code, offset, len(raw), "the last line is incomplete" if torn else problem)
        return
    done = at = 0
    for begin, end in pieces:
        first = at + _bytes(text[done:begin])
        last = first + _bytes(text[begin:end])
        if at and not text[done:begin].strip(_SPACE):
            yield Finding("glued", offset + at, first - at, "an entry follows another on the same line")
        elif first > at:
            code = _code_of(text[done:begin])
            yield Finding(code, offset + at, first - at, "a fragment before an entry on the same line")
        yield from _readable(offset + first, raw[first:last], read_head(raw[first:last], untyped=untyped))
        done, at = end, last
    if at < len(raw):
        code = "torn_tail" if torn else _code_of(text[done:])
        yield Finding(code, offset + at, len(raw) - at, "a fragment after an entry on the same line")


def _code_of(fragment: str) -> str:
    if not fragment.strip(_SPACE):
        return "blank"
    if not fragment.strip("\0"):
        return "nul_run"
    return "not_json" if _utf8(fragment.encode("utf-8", "surrogateescape")) is not None else "bad_utf8"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _readable(offset: int, raw: bytes, head: Head) -> Iterator[Item]:
    yield Line(offset, raw, head)
    if not raw.isascii() and _utf8(raw) is None:
        yield _bad_utf8(offset)


def _bad_utf8(offset: int) -> Finding:
    return Finding("bad_utf8", offset, 0, "an entry contains bytes that are not UTF-8; they are shown as U+FFFD")


def _utf8(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _pieces(text: str, untyped: bool) -> list[_Piece]:
    """Return the entries that follow each other from the start of a line, and the one that ends with it."""
    pieces: list[_Piece] = []
    whole = 0  # how many of them are certainly entries, whatever else is on the line
    at = _past_spaces(text, 0)
    while at < len(text):
        try:
            value, end = exact_decoder().raw_decode(text, at)
            _head_of(value, untyped)
        except (ValueError, RecursionError):
            break
        pieces.append((at, end))
        if whole == len(pieces) - 1 and _is_whole(value, untyped):
            whole += 1
        at = _past_spaces(text, end)
    if at == len(text):
        return pieces
    # Something else is on the line. A part of a broken entry, such as a tool call with type and id, is not an entry.
    pieces = pieces[:whole]
    last = _last_object(text, pieces[-1][1] if pieces else 0, untyped)
    return [*pieces, last] if last else pieces


def _past_spaces(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


def _is_whole(value: Json, untyped: bool) -> bool:
    """Return whether an object next to garbage is a whole entry, possibly of version 1 or of another format."""
    return _has_base(value, untyped) or (isinstance(value.get("type"), str) and isinstance(value.get("timestamp"), str))


def _has_base(value: Json, untyped: bool) -> bool:
    if untyped and isinstance(value.get("role"), str):
        return {"id", "content"} <= value.keys()
    if not isinstance(value.get("type"), str) or not isinstance(value.get("id"), str):
        return False
    return "parentId" in value or value["type"] == "session"


def _last_object(text: str, at: int, untyped: bool) -> _Piece | None:
    """Return the entry that ends with the line, after a damaged start.

    Each candidate is decoded until it fails, and the search continues from there: no entry can start before the failure,
    except in the two characters before it (a string that ends in a brace), or as the last member of an unterminated object.
    That member may also be a part of a torn row, so it must have all base members of an entry.
    """
    is_entry = _is_whole
    whole = len(text.rstrip(_SPACE))
    tries = max(_SALVAGE_TRIES, _SALVAGE_EFFORT // len(text))
    start = text.find('{"', at)
    while start >= 0 and tries:
        tries -= 1
        after = start + 1
        try:
            value, end = exact_decoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            place = getattr(error, "pos", None)  # of a `JSONDecodeError`; other errors have no position
            if place is not None and place >= whole:
                start, is_entry = _last_closed(text, start), _has_base
                continue
            after = after if place is None else max(after, place - 2)
        else:
            if end >= whole:
                return (start, end) if is_entry(value, untyped) else None
            after = max(after, end)
        start = text.find('{"', after)
    return None


def _last_closed(text: str, start: int) -> int:
    """Return the start of the object that the last brace closes, in a text that ends too early."""
    opened: list[int] = []
    closed = -1
    for match in _BRACE.finditer(text, start + 1):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}":
            closed = opened.pop() if opened else -1
    return closed


def _head_of(value: object, untyped: bool) -> Head:
    """Return the head of a decoded value, ignoring members of the wrong type."""
    if not isinstance(value, dict):
        raise _NotAnEntry("a value that is not an object")
    if not isinstance(value.get("type"), str) and not untyped:
        raise _NotAnEntry("an object without a type")
    message = value.get("message")
    parts = (_string(message.get(name)) for name in ("role", "provider", "model")) if isinstance(message, dict) else ()
    return Head(
        type=_string(value.get("type")) or "",
        id=_string(value.get("id")),
        parentId=_string(value.get("parentId")),
        customType=_string(value.get("customType")),
        message=MessageHead(*parts) if isinstance(message, dict) else None,
    )


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
