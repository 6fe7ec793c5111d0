"""What an entry says that people look for, kept apart by field, and short excerpts of it.

    text         what users and models said, summaries, labels, tasks
    thinking     what a model thought
    tool_input   names and arguments of tool calls, commands that a user ran
    tool_result  what tools and commands gave back

Base members, images, signatures and custom data are no passages. Nothing here knows where an entry is stored, or how
passages are searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Field = Literal["text", "thinking", "tool_input", "tool_result"]
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
_RUNS = {"bashExecution": ("command", "output"), "pythonExecution": ("code", "output")}


class Excerpt(NamedTuple):
    """A part of a passage; `marks` are the matches in it, `before` and `after` say that there is more."""

    text: str
    marks: tuple[Span, ...]
    before: bool
    after: bool


def pieces(entry: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    """Every text of an entry with its field, in the order of the entry."""
    kind = entry.get("type")
    if kind == "message":
        message = entry.get("message")
        if isinstance(message, dict):
            yield from _of_message(message)
    elif kind == "custom_message":
        yield from _of_content(entry.get("content"), "text")
    elif isinstance(kind, str):
        for name in _SPOKEN.get(kind, ()):
            yield from _given(entry.get(name), "text")


def passages(entry: Mapping[str, Any]) -> dict[Field, str]:
    """The texts of an entry by field, those of one field on lines of their own."""
    found: dict[Field, list[str]] = {}
    for field, text in pieces(entry):
        found.setdefault(field, []).append(text)
    return {field: texts[0] if len(texts) == 1 else "\n".join(texts) for field, texts in found.items()}


def _of_message(message: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    role = message.get("role")
    if isinstance(role, str) and role in _RUNS:
        command, output = _RUNS[role]
        yield from _given(message.get(command), "tool_input")
        yield from _given(message.get(output), "tool_result")
    elif role == "fileMention":
        for file in _objects(message.get("files")):
            yield from _given(file.get("path"), "tool_input")
            yield from _given(file.get("content"), "tool_result")
    elif role in ("branchSummary", "compactionSummary"):
        yield from _given(message.get("summary"), "text")
    else:
        yield from _of_content(message.get("content"), "tool_result" if role == "toolResult" else "text")


def _of_content(content: object, field: Field) -> Iterator[tuple[Field, str]]:
    if isinstance(content, str):
        yield from _given(content, field)
        return
    for block in _objects(content):
        kind = block.get("type")
        if kind == "text":
            yield from _given(block.get("text"), field)
        elif kind == "thinking":
            yield from _given(block.get("thinking"), "thinking")
        elif kind == "toolCall":
            yield from _given(block.get("name"), "tool_input")
            for text in _scalars(block.get("arguments")):
                yield "tool_input", text


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _given(value: object, field: Field) -> Iterator[tuple[Field, str]]:
    if isinstance(value, str) and value:
        yield field, value


def _scalars(value: object) -> Iterator[str]:
    """The strings and whole numbers in a value, in order; names of members say little and are left out."""
    waiting: list[object] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value:
                yield value
        elif isinstance(value, dict):
            waiting.extend(reversed(list(value.values())))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield str(value)


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
