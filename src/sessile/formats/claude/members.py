"""Finding members of rows in a window of a file that may begin and end in the middle of a row.

Rules:

- A member that any row may have is found as text (`"key":"value"`), so that a row that the window cuts can still tell its
  branch or time. One that a row of a certain type tells is believed only if the row parses, so that a decoy inside another
  row is none; of such rows the last counts.
- A row behind one that was torn, or that lost its newline, counts as well where the SDK says so: the line then begins with
  what is not JSON.
- A window is text where much of it is looked at, and bytes where rows are few and far between: to make text of 64 KB takes
  longer than to find them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from sessile.formats.claude.parsing import parsed
from sessile.formats.claude.rows import View, text_of, type_of

_INSIDE = (":", ",", "[")  # what stands before an object that is a part of another


def lines_of(window: bytes) -> Iterator[bytes]:
    """The lines of a window, each when it is asked for: most questions are answered by the first few."""
    begin = 0
    while (end := window.find(b"\n", begin)) >= 0:
        yield window[begin:end]
        begin = end + 1
    yield window[begin:]


def first_text(text: str, key: str) -> str | None:
    """The first string that stands behind a key; keys without a space behind the colon come first."""
    for pattern in _patterns(key):
        match = pattern.search(text)
        if match:
            return _unescaped(match.group(1))
    return None


def last_text(text: str, key: str, view: View = "ts") -> str | None:
    """The last string that stands behind a key; for the Python SDK, keys with a space behind the colon come last."""
    found = [match for pattern in _patterns(key) if (match := _last_match(text, pattern, key))]
    if not found:
        return None
    last = found[-1] if view == "python-sdk" else max(found, key=lambda match: match.start())
    return _unescaped(last.group(1))


def line_with(text: str, mark: str) -> str | None:
    """The first line that holds a mark."""
    at = text.find(mark)
    return None if at < 0 else text[text.rfind("\n", 0, at) + 1 : _end_of_line(text, at)]


def last_told(text: str, member: str, kind: str | None = None, *, glued: bool = False) -> str | None:
    """A member of the last row that has it as a string, of the rows of a type if one is given."""
    key = f'"{member}":'
    marks = () if kind is None else (f'"type":"{kind}"', f'"type": "{kind}"')[: 1 + glued]
    end = len(text)
    while (at := text.rfind(key, 0, end)) >= 0:
        begin = text.rfind("\n", 0, at) + 1
        line = text[begin : _end_of_line(text, at)]
        end = max(begin - 1, 0)
        if marks and not any(mark in line for mark in marks):
            continue
        row = parsed(line)
        if row is None and glued:
            row = _glued_row(line, f"{{{marks[0]}")
        told = text_of(row, member) if kind is None or type_of(row) == kind else None
        if told is not None:
            return told
    return None


def last_told_by(window: bytes, kind: str, member: str) -> str | None:
    """The same of rows of one type that may be glued, in a window that mostly holds others."""
    mark = f'"{kind}"'.encode()
    end = len(window)
    while (at := window.rfind(mark, 0, end)) >= 0:
        begin, stop = window.rfind(b"\n", 0, at) + 1, window.find(b"\n", at)
        line = window[begin : len(window) if stop < 0 else stop]
        told = last_told(line.decode("utf-8", "replace"), member, kind, glued=True)
        if told is not None:
            return told
        end = begin
    return None


def first_told(text: str, member: str) -> str | None:
    """A member of the first row that has it as a string."""
    key = f'"{member}":'
    end = 0
    while (at := text.find(key, end)) >= 0:
        end = _end_of_line(text, at)
        told = text_of(parsed(text[text.rfind("\n", 0, at) + 1 : end]), member)
        if told is not None:
            return told
    return None


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _glued_row(line: str, beginning: str) -> Any:
    """The row that ends a line, if it is not a part of another."""
    start = line.rfind(beginning)
    return None if start <= 0 or line[start - 1] in _INSIDE else parsed(line[start:])


def _last_match(text: str, pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
    """The last place where a key has a whole string; a row has the same key again and again, so the end is looked at first."""
    at = len(text)
    while (at := text.rfind(f'"{key}":', 0, at)) >= 0:
        match = pattern.match(text, at)
        if match:
            return match
    return None


@lru_cache(maxsize=32)
def _patterns(key: str) -> tuple[re.Pattern[str], ...]:
    value = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
    return tuple(re.compile(f'"{re.escape(key)}":{space}{value}', re.DOTALL) for space in ("", " "))


def _unescaped(raw: str) -> str:
    if "\\" not in raw:
        return raw
    try:
        value = json.loads(f'"{raw}"')
    except ValueError:
        return raw
    return value if isinstance(value, str) else raw
