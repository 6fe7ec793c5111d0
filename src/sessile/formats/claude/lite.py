"""What a listing tells of a session, from the first and last 64 KB of its transcript.

Rules:

- A gigabyte is never parsed to list it. What is not in a window is unknown, but for what the folder of the session notes
  beside it: a title that the user gave last, and that the session is archived.
- Titles, tags and the last prompt are taken from rows of their type by the TypeScript SDK; one that was glued to a torn row
  counts, one inside another row does not. The Python SDK takes any `customTitle` that it sees, and tags only from lines
  that begin as it writes them; it knows no notes.
- A session that tells nothing of itself is not listed, nor is one that begins as a sidechain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sessile.core.text import parse_timestamp
from sessile.formats.claude.first_prompt import first_prompt, is_prompt, without_words
from sessile.formats.claude.members import first_text, first_told, last_text, last_told, last_told_by, line_with
from sessile.formats.claude.notes import NO_NOTES, Notes, is_archived
from sessile.formats.claude.parsing import parsed
from sessile.formats.claude.rows import (
    AI_TITLE,
    ASSISTANT,
    CONTINUED_IN,
    CUSTOM_TITLE,
    RELOCATED,
    TAG,
    View,
    mapping_of,
    text_of,
    type_of,
)

WINDOW = 65_536  # bytes at each end; both SDKs look no further

_PROGRAMS = frozenset({"sdk-cli", "sdk-ts", "sdk-py"})
_DAEMONS = frozenset({"daemon", "daemon-worker"})


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
    archived: bool | None = None  # None if nobody has said so
    begun_in: str | None = None  # the working directory that its rows tell, for those who list by directory
    continued_in: str | None = None  # the id of the session in which it goes on


@dataclass(frozen=True, slots=True)
class LiteFile:
    """The two ends of a transcript, and what the file system says of it."""

    head: bytes
    tail: bytes
    modified_ns: int
    size: int


def session_info(
    session_id: str, file: LiteFile, project_path: str | None = None, view: View = "ts", notes: Notes = NO_NOTES
) -> SessionInfo | None:
    """What a listing tells of a session, or None if it is not listed."""
    if begins_as_sidechain(file.head):
        return None
    head = file.head.decode("utf-8", "replace")
    tail = head if file.tail == file.head else file.tail.decode("utf-8", "replace")
    if view == "python-sdk":
        return _as_python_tells(session_id, file, head, tail, project_path)
    title = title_of(file.head, file.tail, notes.title)
    prompt = first_prompt(file.head)
    summary = title or last_told(tail, "lastPrompt") or last_told(tail, "summary") or prompt or without_words(file.head)
    if not summary:
        return None
    moved_to = last_told(tail, "relocatedCwd", RELOCATED)
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=(file.modified_ns + 500_000) // 1_000_000,  # as JavaScript rounds
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch") or first_text(head, "gitBranch") or None,
        cwd=moved_to or first_text(head, "cwd") or project_path or None,
        tag=last_told(tail, "tag", TAG, glued=True) or None,
        created_at=parse_timestamp(first_text(head, "timestamp")),
        is_programmatic=_is_programmatic(head, tail),
        archived=is_archived(notes, head, tail),
        begun_in=first_told(head, "cwd") if moved_to is None else moved_to,
        continued_in=_continued_in(tail),
    )


def begun_in(file: LiteFile) -> str | None:
    """The working directory of a session as its rows tell it, the last one if it was moved."""
    moved_to = last_told(file.tail.decode("utf-8", "replace"), "relocatedCwd", RELOCATED)
    return first_told(file.head.decode("utf-8", "replace"), "cwd") if moved_to is None else moved_to


def begins_as_sidechain(head: bytes) -> bool:
    """Whether the first row is one of a sub-agent; no listing shows such a session."""
    end = head.find(b"\n")
    first_line = head if end < 0 else head[:end]
    return b'"isSidechain":true' in first_line or b'"isSidechain": true' in first_line


def title_of(head: bytes, tail: bytes, noted: str | None = None) -> str | None:
    """The title that the user gave, else the one that was made up; a newer one first."""
    newest = last_told_by(tail, CUSTOM_TITLE, "customTitle")
    windows = (tail,) if tail == head else (tail, head)
    return (
        newest
        or (noted if newest is None else None)
        or (last_told_by(head, CUSTOM_TITLE, "customTitle") if tail != head else None)
        or next(filter(None, (last_told_by(window, AI_TITLE, "aiTitle") for window in windows)), None)
    )


def _continued_in(tail: str) -> str | None:
    """The session in which this one goes on, unless something was said here since."""
    mark = f'"type":"{CONTINUED_IN}"'
    if mark not in tail:
        return None
    for line in reversed(tail.split("\n")):
        if mark in line or '"type":"user"' in line or '"type":"assistant"' in line:
            row = parsed(line)
            if type_of(row) == CONTINUED_IN:
                return text_of(row, "continuedInSessionId")
            if is_prompt(row) or _is_answer(row):
                return None
    return None


def _is_answer(row: object) -> bool:
    failed = isinstance(row, Mapping) and row.get("isApiErrorMessage") is True
    return type_of(row) == ASSISTANT and not failed and text_of(mapping_of(row, "message"), "stop_reason") is not None


def _is_programmatic(head: str, tail: str) -> bool:
    entry = first_text(head, "entrypoint")
    if (last_text(tail, "entrypoint") if entry is None else entry) in _PROGRAMS:
        return True
    return first_text(line_with(head, '"parentUuid":') or head, "sessionKind") in _DAEMONS


# -- the Python SDK


def _as_python_tells(
    session_id: str, file: LiteFile, head: str, tail: str, project_path: str | None
) -> SessionInfo | None:
    windows = [(window, key) for key in ("customTitle", "aiTitle") for window in (tail, head)]
    titles = (last_text(window, key, "python-sdk") for window, key in windows)
    title = next((found for found in titles if found), None)
    prompt = first_prompt(file.head, "python-sdk")
    told = (last_text(tail, key, "python-sdk") for key in ("lastPrompt", "summary"))
    summary = title or next((found for found in told if found), None) or prompt
    if not summary:
        return None
    tags = (line for line in reversed(tail.split("\n")) if line.startswith('{"type":"tag"'))
    return SessionInfo(
        session_id=session_id,
        summary=summary,
        last_modified=_modified_in_python(file.modified_ns),
        file_size=file.size,
        custom_title=title,
        first_prompt=prompt,
        git_branch=last_text(tail, "gitBranch", "python-sdk") or first_text(head, "gitBranch") or None,
        cwd=first_text(head, "cwd") or project_path or None,
        tag=last_text(next(tags, ""), "tag", "python-sdk") or None,
        created_at=_created_in_python(first_text(head, "timestamp")),
    )


def _modified_in_python(nanoseconds: int) -> int:
    """When the file was written, by way of the floating point seconds that Python tells."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return int((seconds + 1e-9 * rest) * 1000)


def _created_in_python(timestamp: str | None) -> int | None:
    """When the first row was written; it counts in floating point, and may lose a millisecond."""
    exact = parse_timestamp(timestamp)
    if exact is None or timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    return exact if moment.tzinfo is None else int(moment.timestamp() * 1000)
