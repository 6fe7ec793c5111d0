"""The text of MyAgents' index: a JSON array of rows, read strictly, salvaged where it is damaged, written as they write it.

Every row keeps its text, so that writing one row again leaves all others as they are, byte for byte. A damaged index gives
the rows that are whole, and findings; it is never taken for an empty one. Rows that are no metadata are kept and not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sessile.core.codec import decode, encode_plain, exact_decoder
from sessile.core.lines import Finding
from sessile.core.plain import plain
from sessile.formats.myagents.types import Metadata

_json = exact_decoder()
_SPACES = re.compile(r"[ \t\r\n]*")
_INDENT = "  "
_BOM = b"\xef\xbb\xbf"
_TRIES = 2000  # starts behind a damaged place that may turn out to be none
_MARKS = {"agentDir", "title", "createdAt", "lastActiveAt"}  # one of them tells a row from an object inside of one


class IndexRow(NamedTuple):
    """One element of the array: its text, and its value."""

    text: str
    value: Any

    @property
    def metadata(self) -> Metadata | None:
        """The row as metadata, if it is that."""
        value = self.value
        return Metadata(value) if isinstance(value, Mapping) and isinstance(value.get("id"), str) else None


class Parsed(NamedTuple):
    """The rows of an index. One that is not `sound` was damaged: more may have been in it."""

    rows: tuple[IndexRow, ...]
    findings: tuple[Finding, ...]
    sound: bool


def row_of(value: Mapping[str, Any]) -> IndexRow:
    """A new row, or one with another value."""
    return IndexRow(_indented(plain(dict(value)).value, _INDENT), dict(value))


def _indented(value: Any, margin: str) -> str:
    """A value as `JSON.stringify` writes it two spaces deep; `plain` has seen to it that it is not nested too deeply."""
    inner = margin + _INDENT
    if isinstance(value, dict) and value:
        members = (f"{inner}{_indented(str(name), '')}: {_indented(item, inner)}" for name, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{margin}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{_indented(item, inner)}" for item in value) + f"\n{margin}]"
    return encode_plain(value).decode("utf-8")


def render(rows: Iterable[IndexRow]) -> bytes:
    """The whole index: two spaces deep, no newline at its end."""
    inner = ",\n  ".join(row.text for row in rows)
    return f"[\n  {inner}\n]".encode("utf-8", "surrogateescape") if inner else b"[]"


def parse(data: bytes) -> Parsed:
    """The rows of an index."""
    text = data.removeprefix(_BOM).decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 keep their places
    at = _past(text, 0)
    if not text.startswith("[", at):
        return _salvaged(text, 0, (), "the index does not begin with an array")
    rows: list[IndexRow] = []
    at = _past(text, at + 1)
    if not text.startswith("]", at):
        while True:
            try:
                value, end = _json.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                return _salvaged(text, at, rows, str(error))
            rows.append(_read_row(text[at:end], value))
            at = _past(text, end)
            if not text.startswith(",", at):
                break
            at = _past(text, at + 1)
    if not text.startswith("]", at) or _past(text, at + 1) != len(text):
        return _salvaged(text, at, rows, "the array does not end where it should")
    return Parsed(tuple(rows), _oddities(rows), True)


def _salvaged(text: str, at: int, rows: Iterable[IndexRow], problem: str) -> Parsed:
    """The rows before a damaged place, and the whole ones behind it; of two with one id the last."""
    offset = len(text[:at].encode("utf-8", "surrogateescape"))
    length = len(text.encode("utf-8", "surrogateescape")) - offset
    found = list(rows)
    tries = _TRIES
    at = text.find("{", at)
    while at >= 0 and tries:
        try:
            value, end = _json.raw_decode(text, at)
        except (ValueError, RecursionError):
            tries -= 1
            end = at + 1
        else:
            if isinstance(value, dict) and isinstance(value.get("id"), str) and not _MARKS.isdisjoint(value):
                found.append(_read_row(text[at:end], value))
        at = text.find("{", end)
    unique = {row.metadata.id if row.metadata else row.text: row for row in found}
    finding = Finding("damaged_index", offset, length, f"the index is damaged: {problem}")
    return Parsed(tuple(unique.values()), (finding, *_oddities(unique.values())), False)


def _read_row(text: str, value: Any) -> IndexRow:
    """A row of a file: its text gives the same bytes back, in its value bytes that are not UTF-8 are U+FFFD."""
    raw = text.encode("utf-8", "surrogateescape")
    return IndexRow(text, value if text.isascii() or _is_utf8(raw) else decode(raw))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _oddities(rows: Iterable[IndexRow]) -> tuple[Finding, ...]:
    """What is strange about rows of a sound array."""
    findings = []
    seen: set[str] = set()
    for row in rows:
        metadata = row.metadata
        if metadata is None:
            findings.append(
                Finding("not_metadata", 0, 0, f"a row without an id is kept, but not shown: {row.text[:60]}")
            )
        elif metadata.id in seen:
            findings.append(
                Finding("duplicate_row", 0, 0, f"more than one row for {metadata.id[:99]}: the last counts")
            )
        else:
            seen.add(metadata.id)
    return tuple(findings)


def _past(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at
