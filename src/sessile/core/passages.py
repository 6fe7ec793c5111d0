"""What an entry says that people look for, kept apart by field, and short excerpts of it.

    text         what users and models said, summaries, labels, tasks
    thinking     what a model thought
    tool_input   names and arguments of tool calls, commands that a user ran
    tool_result  what tools and commands gave back

Base members, images, signatures and custom data are no passages. Nothing here knows where an entry is stored, or how
passages are searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Field = Literal["text", "thinking", "tool_input", "tool_result"]
Piece = tuple[Field, str]
Span = tuple[int, int]

FIELDS: tuple[Field, ...] = ("text", "thinking", "tool_input", "tool_result")
INDEXED: tuple[Field, ...] = ("text", "thinking", "tool_input")  # results are most of the bytes and least of the sense

_BEFORE, _EXCERPT = 40, 160  # characters
_SPOKEN = {
    "compaction": ("summary",),
    "branch_summary": ("summary",),
    "label": ("label",),
    "session_init": ("task",),
    "session_info": ("name",),
    "title_change": ("title",),
}
_TALKING = ("user", "assistant", "toolResult")
_RUNS = {"bashExecution": ("command", "output"), "pythonExecution": ("code", "output")}


class Excerpt(NamedTuple):
    """A part of a passage; `marks` are the matches in it, `before` and `after` say that there is more."""

    text: str
    marks: tuple[Span, ...]
    before: bool
    after: bool


def pieces(entry: Mapping[str, Any]) -> list[Piece]:
    """Every text of an entry with its field, in the order of the entry."""
    kind = entry.get("type")
    if kind == "message":
        message = entry.get("message")
        return _of_message(message) if isinstance(message, dict) else []
    if kind == "custom_message":
        return _of_content(entry.get("content"), "text")
    return _given((entry.get(name), "text") for name in _SPOKEN.get(kind, ())) if isinstance(kind, str) else []


def passages(entry: Mapping[str, Any]) -> dict[Field, str]:
    """The texts of an entry by field, those of one field on lines of their own."""
    found = pieces(entry)
    if len(found) < 2:
        return dict(found)
    texts: dict[Field, list[str]] = {}
    for field, text in found:
        texts.setdefault(field, []).append(text)
    return {field: "\n".join(several) for field, several in texts.items()}


def _of_message(message: Mapping[str, Any]) -> list[Piece]:
    role = message.get("role")
    if role in _TALKING:
        return _of_content(message.get("content"), "tool_result" if role == "toolResult" else "text")
    if isinstance(role, str) and role in _RUNS:
        command, output = _RUNS[role]
        return _given([(message.get(command), "tool_input"), (message.get(output), "tool_result")])
    if role == "fileMention":
        files = [file for file in _list(message.get("files")) if isinstance(file, dict)]
        return _given(
            piece
            for file in files
            for piece in ((file.get("path"), "tool_input"), (file.get("content"), "tool_result"))
        )
    if role in ("branchSummary", "compactionSummary"):
        return _given([(message.get("summary"), "text")])
    return _of_content(message.get("content"), "text")


def _of_content(content: object, field: Field) -> list[Piece]:
    if isinstance(content, str):
        return [(field, content)] if content else []
    found: list[Piece] = []
    for block in _list(content):
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text" or kind == "thinking":
            text = block.get(kind)
            if isinstance(text, str) and text:
                found.append((field if kind == "text" else "thinking", text))
        elif kind == "toolCall":
            found += _given([(block.get("name"), "tool_input")])
            found += [("tool_input", text) for text in _scalars(block.get("arguments"))]
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _given(values: Iterable[tuple[object, Field]]) -> list[Piece]:
    """Those that are texts, and not empty."""
    return [(field, value) for value, field in values if isinstance(value, str) and value]


def _scalars(value: object) -> list[str]:
    """The strings and whole numbers in a value, in order; names of members say little and are left out."""
    found: list[str] = []
    waiting: list[object] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value:
                found.append(value)
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            found.append(str(value))
    return found


def excerpt(text: str, spans: Sequence[Span], width: int = _EXCERPT) -> Excerpt:
    """The part of a text around its first match."""
    first = spans[0][0] if spans else 0
    start = max(0, first - _BEFORE)
    if start:
        space = text.find(" ", start, first)  # begin with a whole word if there is one
        start = space + 1 if space >= 0 else start
    end = min(len(text), start + width)
    marks = tuple((a - start, min(b, end) - start) for a, b in spans if start <= a < end)
    return Excerpt(text[start:end], marks, start > 0, end < len(text))


def marked(part: Excerpt) -> Iterator[tuple[str, bool]]:
    """The pieces of an excerpt in order, each with whether it is a match; an ellipsis where there is more."""
    if part.before:
        yield "…", False
    at = 0
    for start, end in part.marks:
        if start >= at:
            if start > at:
                yield part.text[at:start], False
            yield part.text[start:end], True
            at = end
    if at < len(part.text):
        yield part.text[at:], False
    if part.after:
        yield "…", False
