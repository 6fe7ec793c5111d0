"""What the folder of a session notes of it beside its transcript: a title, and that it is archived.

Rules: a note that is broken or of another shape is none. A title is one line of at most 200 characters. A session counts as
archived until its user says something in it again; whatever programs write does not bring it back.

The TypeScript SDK reads both notes and writes one of them; the Python SDK knows neither.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from sessile.core.text import parse_timestamp
from sessile.formats.claude.first_prompt import is_prompt, trimmed
from sessile.formats.claude.parsing import parsed
from sessile.formats.claude.rows import ATTACHMENT, USER, mapping_of, text_of, type_of

TITLE_NOTE = "custom-title.json"
ARCHIVE_NOTE = "archived.json"
LONGEST_NOTE = 4096  # bytes; a larger one is none of theirs

_LONGEST_TITLE = 200
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})  # control and format characters, ends of lines and paragraphs


class Archived(NamedTuple):
    """Whether a session was archived or taken back, and when."""

    archived: bool
    at: int  # milliseconds since 1970


class Notes(NamedTuple):
    """What the folder of a session says."""

    title: str | None = None
    archived: Archived | None = None


NO_NOTES = Notes()


def notes_of(title: bytes | None, archived: bytes | None) -> Notes:
    """The notes in two files, either of which may be missing."""
    named = text_of(_value(title), "customTitle")
    said = _value(archived)
    when = parse_timestamp(text_of(said, "at"))
    flag = said.get("archived") if isinstance(said, dict) else None
    return Notes(
        title=None if named is None else _one_line(named) or None,
        archived=Archived(flag, when) if isinstance(flag, bool) and when is not None else None,
    )


def is_archived(notes: Notes, head: str, tail: str) -> bool | None:
    """Whether the session still is archived; None if nobody has said anything."""
    said = notes.archived
    if said is None or not said.archived:
        return said and said.archived
    windows = (tail,) if head == tail else (tail, head)
    return not any(moment > said.at for window in windows for moment in _prompted(window))


def _value(note: bytes | None) -> Any:
    return None if note is None else parsed(note.decode("utf-8", "replace"))


def _one_line(title: str) -> str:
    seen = "".join("\n" if unicodedata.category(char) in _UNSEEN else char for char in trimmed(title))
    return trimmed(re.sub(r"\n+", " ", seen)[:_LONGEST_TITLE])


def _prompted(window: str) -> Iterator[int]:
    """When the user said something, as far as a window tells."""
    for line in window.split("\n"):
        if '"tool_result"' in line or ('"user"' not in line and '"queued_command"' not in line):
            continue
        row = parsed(line)
        moment = parse_timestamp(text_of(row, "timestamp"))
        queued = mapping_of(row, "attachment") if type_of(row) == ATTACHMENT else {}
        said = {"type": USER, "message": {"content": queued.get("prompt")}} if queued else row
        told_by = text_of(mapping_of(queued or row, "origin"), "kind")
        if moment is not None and told_by in (None, "human") and is_prompt(said):
            yield moment
