"""What a listing tells of a session, from the first and last 64 KB of its transcript.

Rules:

- A gigabyte is never parsed to list it. Members are found as text (`"key":"value"`), so that a row that the window cuts can
  still tell its branch or time.
- Titles, tags and the last prompt are taken from rows of their type by the TypeScript SDK; one that was glued to a torn row
  counts, one inside another row does not. The Python SDK takes any `customTitle` that it sees, and tags only from lines
  that begin as it writes them.
- What is not in a window is unknown. A session that tells nothing of itself is not listed, nor is one that begins as a
  sidechain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sessile.core.text import parse_timestamp
from sessile.formats.claude.first_prompt import first_prompt
from sessile.formats.claude.heads import View, read_row
from sessile.formats.claude.rows import AI_TITLE, CUSTOM_TITLE, TAG, text_of, type_of

WINDOW = 65_536  # bytes at each end; both SDKs look no further

_PROGRAMS = frozenset({"sdk-cli", "sdk-ts", "sdk-py"})
_DAEMONS = frozenset({"daemon", "daemon-worker"})
_INSIDE = (":", ",", "[")  # what stands before an object that is a part of another


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session of a listing; what its windows do not tell is None."""

    session_id: str
    summary: str
    last_modified: int  # milliseconds since 1970
    file_size: int
    custom_title: str | None = None
    first_prompt: str | None = None
    git_branch: str | None = None
    cwd: str | None = None
    tag: str | None = None
    created_at: int | None = None
    is_programmatic: bool = False  # begun by an SDK or a daemon; the terminal's own list leaves it out


@dataclass(frozen=True, slots=True)
class LiteFile:
    """The two ends of a transcript, and what the file system says of it."""

    head: bytes
    tail: bytes
    modified_ns: int
    size: int


def session_info(
    session_id: str, file: LiteFile, project_path: str | None = None, view: View = "ts"
) -> SessionInfo | None:
    """What a listing tells of a session, or None if it is not listed."""
    head = file.head.decode("utf-8", "replace")
    tail = head if file.tail == file.head else file.tail.decode("utf-8", "replace")
    first_line = head.split("\n", 1)[0]
    if '"isSidechain":true' in first_line or '"isSidechain": true' in first_line:
        return None
    title = _title(head, tail, view)
    prompt = first_prompt(head, view)
    summary = title or _last_prompt(tail, view) or _summary(tail, view) or prompt
    if not summary:
        return None
    is_program = first_text(head, "entrypoint") in _PROGRAMS or first_text(head, "sessionKind") in _DAEMONS
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=_milliseconds(file.modified_ns, view),
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch") or first_text(head, "gitBranch") or None,
        cwd=first_text(head, "cwd") or project_path or None,
        tag=_tag(tail, view),
        created_at=_created(first_text(head, "timestamp"), view),
        is_programmatic=is_program,
    )


def first_text(text: str, key: str) -> str | None:
    """The first string that stands behind a key; keys without a space behind the colon come first."""
    return next(_values(text, key), None)


def last_text(text: str, key: str) -> str | None:
    """The last string that stands behind a key; keys with a space behind the colon come last."""
    value = None
    for value in _values(text, key):  # noqa: B007
        pass
    return value


def _values(text: str, key: str) -> Iterator[str]:
    for pattern in _patterns(key):
        for match in pattern.finditer(text):
            yield _unescaped(match.group(1))


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


def _title(head: str, tail: str, view: View) -> str | None:
    """The title that the user gave, else the one that was made up; a newer one first."""
    for kind, member in ((CUSTOM_TITLE, "customTitle"), (AI_TITLE, "aiTitle")):
        for window in (tail, head):
            found = last_text(window, member) if view == "python-sdk" else _last_of_type(window, kind, member)
            if found:
                return found
    return None


def _last_prompt(tail: str, view: View) -> str | None:
    if view == "python-sdk":
        return last_text(tail, "lastPrompt")
    return _last_of_type(tail, "last-prompt", "lastPrompt", glued=False)


def _summary(tail: str, view: View) -> str | None:
    """The last summary that a row of any type tells; to the Python SDK, one inside a row as well."""
    if view == "python-sdk":
        return last_text(tail, "summary")
    for line in reversed(tail.split("\n")):
        row = read_row(line.encode("utf-8", "surrogatepass")) if '"summary"' in line else None
        told = text_of(row, "summary")
        if told is not None:
            return told
    return None


def _tag(tail: str, view: View) -> str | None:
    if view == "ts":
        return _last_of_type(tail, TAG, "tag") or None
    lines = (line for line in reversed(tail.split("\n")) if line.startswith('{"type":"tag"'))
    return last_text(next(lines, ""), "tag") or None


def _last_of_type(text: str, kind: str, member: str, *, glued: bool = True) -> str | None:
    """A member of the last row of a type that has it as a string."""
    for line in reversed(text.split("\n")):
        if f'"{kind}"' not in line:
            continue
        row = read_row(line.encode("utf-8", "surrogatepass"))
        if row is None and glued:
            row = _glued_row(line, kind)
        if type_of(row) == kind:
            value = text_of(row, member)
            if value is not None:
                return value
    return None


def _glued_row(line: str, kind: str) -> dict[str, object] | None:
    """The row that ends a line, behind one that was torn or lost its newline."""
    start = line.rfind(f'{{"type":"{kind}"')
    if start < 0 or line[:start].rstrip().endswith(_INSIDE):
        return None
    return read_row(line[start:].encode("utf-8", "surrogatepass"))


def _milliseconds(nanoseconds: int, view: View) -> int:
    return int(nanoseconds / 1e9 * 1000) if view == "python-sdk" else nanoseconds // 1_000_000


def _created(timestamp: str | None, view: View) -> int | None:
    """When the first row was written; the Python SDK counts in floating point, and may lose a millisecond."""
    if timestamp is None or view == "ts":
        return parse_timestamp(timestamp)
    exact = parse_timestamp(timestamp)
    if exact is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    return exact if moment.tzinfo is None else int(moment.timestamp() * 1000)
