"""Codex rollouts: one JSON row per line, each with a time, a type and a payload; read-only.

    session_meta                 the header
    response_item                messages, reasoning, calls and their outputs: one chain
    compacted                    a compaction
    turn_context                 a model change, if the model is another one
    event_msg, all else          markers: what the screen showed of the items

Rows have no ids, so entries are named by their offset in the file. Rows of early rollouts have no payload: the row is
the item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessile.agents.base import NOTHING_TOLD, Chain, Entry, Glimpse, Known, Look, placed, row_of
from sessile.core.codec import decode
from sessile.core.kinds import LEAF_MARKER, MARKER
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.core.text import parse_timestamp
from sessile.storage.formats import Told

NAME = "codex"
_PROVIDER = "openai"
_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")
_INSTRUCTIONS = ("<environment_context>", "<user_instructions>", "<INSTRUCTIONS>", "# AGENTS.md instructions")
_ITEMS = ("message", "reasoning", *_CALLS, *_OUTPUTS)


class Codex:
    """The format of Codex."""

    name = NAME
    nested = True

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner; the first row of an early rollout and its state rows have no type."""
        return Scanner(offset, untyped=True)

    def recognises(self, first: bytes) -> bool:
        """Return whether the first row describes a session; an early one has an id and instructions."""
        row = row_of(first.split(b"\n", 1)[0])
        meta = _object(row.get("payload"))
        is_meta = row.get("type") == "session_meta" and isinstance(meta.get("id"), str)
        return is_meta or ("type" not in row and "instructions" in row and isinstance(row.get("id"), str))

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return a header with id, folder and time of the first row."""
        row = row_of(first.split(b"\n", 1)[0])
        meta = _object(row.get("payload")) or row
        header = {"type": "session", "version": 3, "id": meta.get("id") or stem, "format": NAME}
        header |= {"timestamp": meta.get("timestamp") or row.get("timestamp"), "cwd": meta.get("cwd") or ""}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return the first prompt of the user; texts that programs put before it start with a tag."""
        for line in first.split(b"\n"):
            kind, item = _item(row_of(line))
            if kind == "message" and item.get("role") == "user":
                prompt = _joined(" ", item.get("content")).strip()
                if prompt and not prompt.startswith("<"):
                    return Glimpse(first_text=prompt)
        return Glimpse()

    def translator(self, saved: Any = None) -> Rows:
        """Return a translator for the start of a file, or for a saved state."""
        return Rows(saved)

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """Return the id of a row, which is its offset."""
        return (placed(offset),)

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """Return a row as one of our entries."""
        row = row_of(raw)
        base = {"id": entry_id, "parentId": parent_id, "timestamp": row.get("timestamp")}
        return {"type": "custom", **base, **_body(row)}


class Rows(Chain):
    """The translator of one rollout."""

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entry of the next row."""
        return (self._known(line),)

    def _known(self, line: Line) -> Known:
        row = row_of(line.raw)
        kind, item = _item(row)
        place, parent = placed(line.offset), self.kept.last
        model = item.get("model")
        if kind == "turn_context" and isinstance(model, str) and model != self.kept.model:
            self.kept.model, self.kept.last = model, place
            return Known(Head("model_change", place, parent))
        if kind != "compacted" and kind not in _ITEMS:
            return Known(Head("custom", place, parent, LEAF_MARKER), MARKER)
        self.kept.last = place
        if kind == "compacted":
            return Known(Head("compaction", place, parent))
        role = item.get("role")
        if kind in _CALLS or kind == "reasoning" or role == "assistant":
            return Known(Head("message", place, parent, None, MessageHead("assistant", _PROVIDER, self.kept.model)))
        return Known(Head("message", place, parent, None, MessageHead("toolResult" if kind in _OUTPUTS else "user")))


def _item(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind and content of a row; for a response item, those of the item."""
    kind = row.get("type")
    payload = _object(row.get("payload"))
    if kind == "response_item" and payload:
        kind = payload.get("type")
    return (kind if isinstance(kind, str) else "unknown"), payload or row


def _body(row: Mapping[str, Any]) -> Entry:
    kind, item = _item(row)
    at = parse_timestamp(row.get("timestamp"))
    if kind == "turn_context" and isinstance(model := item.get("model"), str):
        named = {"provider": _PROVIDER, "modelId": model, "model": f"{_PROVIDER}/{model}"}
        return {"type": "model_change", **named, "data": dict(row)}
    if kind == "compacted":
        return {"type": "compaction", "summary": str(item.get("message") or ""), "tokensBefore": 0}
    if kind in _OUTPUTS:
        return {"type": "message", "message": _output(item, at)}
    if kind in _CALLS or kind == "reasoning" or (kind == "message" and item.get("role") == "assistant"):
        message = {"role": "assistant", "content": _blocks(kind, item), "provider": _PROVIDER}
        return {"type": "message", "message": {**message, "stopReason": "stop", "timestamp": at}}
    if kind == "message":
        content = _texts(item.get("content"))
        if item.get("role") in ("developer", "system") or _is_instructions(content):
            return {"type": "custom_message", "customType": "codex.instructions", "content": content, "display": False}
        return {"type": "message", "message": {"role": "user", "content": content, "timestamp": at}}
    return {"customType": f"codex.{kind}", "data": dict(row)}


def _is_instructions(content: list[Entry]) -> bool:
    """Return whether a user message was written by Codex itself before the first prompt."""
    text = content[0].get("text") if content else None
    return isinstance(text, str) and text.lstrip().startswith(_INSTRUCTIONS)


def _blocks(kind: str, item: Mapping[str, Any]) -> list[Entry]:
    if kind == "message":
        return _texts(item.get("content"))
    if kind == "reasoning":
        text = _joined("\n", item.get("summary"))
        return [{"type": "thinking", "thinking": text, "redacted": not text}]
    name = item.get("name") or {"local_shell_call": "shell", "web_search_call": "web_search"}.get(kind, kind)
    given = item.get("arguments", item.get("input", item.get("action")))
    call_id = item.get("call_id") or item.get("id") or ""
    return [{"type": "toolCall", "id": call_id, "name": name, "arguments": _arguments(given)}]


def _arguments(given: object) -> object:
    """Return the arguments of a tool call, which usually are JSON in a string."""
    if isinstance(given, str):
        try:
            return decode(given.encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            return {"input": given}
    return given if given is not None else {}


def _output(item: Mapping[str, Any], at: int | None) -> Entry:
    output = item.get("output")
    inner = _arguments(output) if isinstance(output, str) and output.startswith("{") else output
    text, failed = output, False
    if isinstance(inner, dict) and "output" in inner:
        text = inner["output"]
        code = _object(inner.get("metadata")).get("exit_code")
        failed = isinstance(code, int) and code != 0
    content = (
        _texts(text) if isinstance(text, list) else [{"type": "text", "text": text if isinstance(text, str) else ""}]
    )
    message = {"role": "toolResult", "toolCallId": item.get("call_id") or "", "toolName": "", "content": content}
    return {**message, "isError": failed, "timestamp": at}


def _joined(between: str, content: object) -> str:
    """Return the text of a content."""
    texts = (part.get("text") for part in _texts(content))
    return between.join(text for text in texts if isinstance(text, str) and text)


def _texts(content: object) -> list[Entry]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return [_block(block) for block in blocks]


def _block(block: Mapping[str, Any]) -> Entry:
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    address = block.get("image_url")
    if isinstance(address, str) and address.startswith("data:") and ";base64," in address:
        kind, _, data = address.removeprefix("data:").partition(";base64,")
        return {"type": "image", "mimeType": kind, "data": data}
    return dict(block)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
