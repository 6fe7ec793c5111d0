"""Codex rollouts: one JSON row per line, each with a time, a type and a payload; read-only.

    session_meta                 the header, and the base instructions as a system message
    response_item                messages, reasoning, calls and their outputs: one chain
    compacted                    a compaction, with the history that replaces what was before it
    turn_context                 a model change, if the model is another one
    token_usage_record           the usage of the response before it
    event_msg, all else          markers: what the screen showed of the items

Rows have no ids, so entries are named by their offset in the file. Rows of early rollouts have no payload: the row is the item.
Rollouts whose rows have no `ordinal` tell usage in `token_count` events, which may repeat it.

A response is several rows, and its usage comes after them. The first of them gets it when it is read in a session; a catalog
counts it where it is. The file of a sub-agent may start with a copy of what its parent knew: it is read, but not counted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from sessile.agents.base import NOTHING_TOLD, Entry, Glimpse, Known, Look, Near, placed, row_of
from sessile.agents.codex import threads
from sessile.agents.codex.items import (
    CALLS,
    ITEMS,
    OUTPUTS,
    PROMPT,
    body_of,
    call_of,
    is_answer,
    is_human,
    joined,
    message_of,
    object_of,
    summary_in,
    tool_of,
)
from sessile.agents.codex.replay import replay
from sessile.agents.codex.threads import JOINT
from sessile.core.kinds import LEAF_MARKER, MARKER
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.core.text import parse_timestamp
from sessile.storage.formats import Told

__all__ = ["Codex", "replay", "threads"]

NAME = "codex"
PROVIDER = "openai"  # if a rollout names none

_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cached_input_tokens",
    "cacheWrite": "cache_write_input_tokens",
    "reasoning": "reasoning_output_tokens",
    "totalTokens": "total_tokens",
}
_MOST_ROWS = 5000  # rows that are looked at around an entry


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
        meta = object_of(row.get("payload"))
        is_meta = row.get("type") == "session_meta" and isinstance(meta.get("id"), str)
        return is_meta or ("type" not in row and "instructions" in row and isinstance(row.get("id"), str))

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return a header with id, folder and time of the first row."""
        row = row_of(first.split(b"\n", 1)[0])
        meta = object_of(row.get("payload")) or row
        header = {"type": "session", "version": 3, "id": meta.get("id") or stem, "format": NAME}
        header |= {"timestamp": meta.get("timestamp") or row.get("timestamp"), "cwd": meta.get("cwd") or ""}
        header["title"] = told.title or None
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return the first prompt of a person; a sub-agent without one has the name that Codex gave it."""
        rows = Rows()
        title = ""
        for line in first.split(b"\n"):
            row = row_of(line)
            kind, item = item_in(row)
            if kind == "session_meta" and not rows.kept.begun:
                title = " ".join(
                    text for name in ("agent_nickname", "agent_path") if isinstance(text := item.get(name), str)
                )
            if is_human(item) and not rows.is_copy(row):
                prompt = joined(" ", item.get("content")).strip()
                if prompt and not prompt.startswith("<"):
                    return Glimpse(first_text=prompt)
            rows.note(kind, item, row)
        return Glimpse(title=title)

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

    def complete(self, entry: Entry, raw: bytes, near: Near) -> None:
        """Add what other rows tell: model and usage of an answer, the tool of a result, what a compaction replaced."""
        kind, item = item_in(row_of(raw))
        message = entry.get("message")
        if kind == "turn_context":
            _name_model(entry, _provider(near), item.get("model"))
        elif kind == "compacted":
            _complete_compaction(entry, item, near)
        elif isinstance(message, dict) and message.get("role") == "toolResult":
            message["toolName"] = _tool(call_of(item), near)
        elif isinstance(message, dict) and message.get("role") == "assistant":
            _complete_answer(message, near)


class Kept(msgspec.Struct, omit_defaults=True):
    """The state of a translator."""

    last: str | None = None
    model: str | None = None
    provider: str | None = None
    begun: bool = False  # the first row was taken
    numbered: bool = False  # rows have an ordinal, and usage is in rows of its own
    copied: int = 0  # the ordinal at which a sub-agent's own rows start
    calls: dict[str, str] = {}  # the tools of calls without a result
    response: str | None = None  # the first entry of the current response
    answered: str | None = None  # its time
    ran: bool = False  # an older rollout, in which the next answer belongs to another response
    joined: bool = False  # another file of the same session follows
    used: int | None = None  # the tokens that a `token_count` told last


class Rows:
    """The translator of one rollout."""

    def __init__(self, saved: Any = None) -> None:
        self.kept = Kept() if saved is None else msgspec.convert(saved, Kept)

    @property
    def leaf(self) -> str | None:
        """The last entry."""
        return self.kept.last

    def saved(self) -> Any:
        """Return what is needed to continue later."""
        return msgspec.to_builtins(self.kept)

    def note(self, kind: str, item: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Note what the first row says of the file."""
        kept = self.kept
        if not kept.begun:
            kept.begun = True
            kept.numbered = isinstance(row.get("ordinal"), int)
            start, provider = item.get("subagent_history_start_ordinal"), item.get("model_provider")
            kept.copied = start if isinstance(start, int) else 0
            kept.provider = provider if isinstance(provider, str) and provider else PROVIDER

    def is_copy(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is a copy of one of the parent's."""
        ordinal = row.get("ordinal")
        return isinstance(ordinal, int) and 0 < ordinal < self.kept.copied

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entry of the next row."""
        row = row_of(line.raw)
        kind, item = item_in(row)
        first = not self.kept.begun
        self.note(kind, item, row)
        known = self._known(kind, item, row, placed(line.offset), first)
        if self.is_copy(row):
            known.counted = False
        return (known,)

    def _known(self, kind: str, item: Mapping[str, Any], row: Mapping[str, Any], place: str, first: bool) -> Known:
        kept = self.kept
        parent = kept.last
        if kind == "session_meta" and kept.joined:
            kept.joined = False  # the same session goes on
        elif kind == "session_meta" and _prompt(item) and (first or "history_base" in item):
            kept.last = place
            # A fork without rows of its own is not empty.
            return Known(Head("message", place, parent, None, MessageHead("system")), counted="history_base" in item)
        if kind == "turn_context" and isinstance(model := item.get("model"), str) and model != kept.model:
            kept.model, kept.last = model, place
            named: Entry = {}
            _name_model(named, kept.provider or PROVIDER, model)
            return Known(Head("model_change", place, parent), filled=named)
        if kind == JOINT:
            to = item.get("to")
            kept.last = to if isinstance(to, str) else None
            kept.response, kept.model, kept.joined = None, None, True
        if kind != "compacted" and kind not in ITEMS:
            known = Known(Head("custom", place, parent, LEAF_MARKER), MARKER)
            if (usage := self._usage(kind, item)) is not None and not self.is_copy(row):
                known.filled = self._spent(usage, row)
            return known
        kept.last = place
        if kind == "compacted":
            kept.response = None
            return Known(Head("compaction", place, parent))
        if is_answer(item):
            return self._answer(kind, item, row, place, parent)
        if kind in OUTPUTS:
            if not kept.numbered:
                kept.ran = True
            named = {"toolName": kept.calls.pop(call_of(item), "")}
            return Known(Head("message", place, parent, None, MessageHead("toolResult")), filled=named)
        kept.response = None
        body = body_of(item, None)
        if body["type"] == "message":
            return Known(Head("message", place, parent, None, MessageHead(body["message"]["role"])))
        return Known(Head("custom_message", place, parent, body["customType"]))

    def _answer(
        self, kind: str, item: Mapping[str, Any], row: Mapping[str, Any], place: str, parent: str | None
    ) -> Known:
        kept = self.kept
        if kept.response is None or kept.ran:
            kept.ran = False
            time = row.get("timestamp")
            kept.response, kept.answered = place, time if isinstance(time, str) else None
        if kind in CALLS:
            kept.calls[call_of(item)] = tool_of(item)
        named = {"provider": kept.provider or PROVIDER, "responseId": kept.response}
        head = Head("message", place, parent, None, MessageHead("assistant", kept.provider or PROVIDER, kept.model))
        return Known(head, filled=named)

    def _usage(self, kind: str, item: Mapping[str, Any]) -> Entry | None:
        """Return the usage that a row tells, once."""
        if self.kept.numbered:
            return usage_in(item) if kind == "token_usage_record" else None
        usage, total = _counted(kind, item)
        if usage is None or total == self.kept.used:
            return None
        self.kept.used = total
        return usage

    def _spent(self, usage: Entry, row: Mapping[str, Any]) -> Entry:
        kept = self.kept
        time = kept.answered if kept.response is not None else row.get("timestamp")
        told = {"usage": usage, "provider": kept.provider or PROVIDER, "model": kept.model, "timestamp": time}
        told["responseId"] = kept.response
        kept.response = None
        return told


def item_in(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind and content of a row; for a response item, those of the item."""
    kind = row.get("type")
    payload = object_of(row.get("payload"))
    if kind == "response_item" and payload:
        kind = payload.get("type")
    return (kind if isinstance(kind, str) else "unknown"), payload or row


def _body(row: Mapping[str, Any]) -> Entry:
    kind, item = item_in(row)
    at = parse_timestamp(row.get("timestamp"))
    if kind == "turn_context" and isinstance(model := item.get("model"), str):
        return {"type": "model_change", "modelId": model, "data": dict(row)}
    if kind == "session_meta" and (prompt := _prompt(item)):
        return {"type": "message", "message": _system(prompt) | {"timestamp": at}, "data": dict(row)}
    if kind == "compacted":
        return _compaction(item)
    if kind in ITEMS:
        return body_of(item, at)
    return {"customType": f"codex.{kind}", "data": dict(row)}


def _prompt(meta: Mapping[str, Any]) -> str:
    text = object_of(meta.get("base_instructions")).get("text")
    return text if isinstance(text, str) else ""


def _system(prompt: str) -> Entry:
    return {"role": "system", "content": "", "sections": {PROMPT: prompt}}


def _name_model(entry: Entry, provider: str, model: object) -> None:
    if isinstance(model, str):
        entry |= {"provider": provider, "modelId": model, "model": f"{provider}/{model}"}


# -- what other rows tell


def _rows(lines: Iterator[bytes]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for line in islice(lines, _MOST_ROWS):
        row = row_of(line)
        yield *item_in(row), row


def _provider(near: Near) -> str:
    if "provider" not in near.memory:
        name = item_in(row_of(near.first()))[1].get("model_provider")
        near.memory["provider"] = name if isinstance(name, str) and name else PROVIDER
    found: str = near.memory["provider"]
    return found


def _tool(call: str, near: Near) -> str:
    """Return the tool of a call, which is made a few rows before its result."""
    wanted = call.encode("utf-8", "surrogatepass")
    for line in islice(near.before(), _MOST_ROWS):
        if wanted and wanted in line:
            kind, item = item_in(row_of(line))
            if kind in CALLS and call_of(item) == call:
                return tool_of(item)
    return ""


def _complete_answer(message: Entry, near: Near) -> None:
    provider, _, model = (near.model or "").partition("/")
    message["provider"] = provider or _provider(near)
    if model:
        message["model"] = model
    usage, response = _response(near)
    if response is not None:
        message["responseId"] = response
    if usage is not None and _is_first(near):
        message["usage"] = usage


def _is_first(near: Near) -> bool:
    """Return whether an answer is the first row of its response."""
    for kind, item, row in _rows(near.before()):
        if is_answer(item):
            return False
        if kind in OUTPUTS and "ordinal" not in row:
            return True  # an answer to it; newer rollouts tell where a response ends
        if kind in ("token_usage_record", "compacted", "message", JOINT) or (_ends(kind, item, row)):
            return True
    return True


def _response(near: Near) -> tuple[Entry | None, str | None]:
    """Return usage and id of the response that an answer belongs to."""
    ran = False
    for kind, item, row in _rows(near.after()):
        if ran and is_answer(item):
            break
        ran = ran or (kind in OUTPUTS and "ordinal" not in row)
        if kind == "token_usage_record":
            name = item.get("response_id")
            return usage_in(item), name if isinstance(name, str) and name else None
        if _ends(kind, item, row):
            return _counted(kind, item)[0], None
        if kind in ("compacted", "turn_context", JOINT) or (kind == "message" and not is_answer(item)):
            break
    return None, None


def _ends(kind: str, item: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a row of an older rollout tells the usage of the response before it."""
    return "ordinal" not in row and _counted(kind, item)[0] is not None


def usage_in(record: Mapping[str, Any]) -> Entry | None:
    """Return the usage in a record, in our names. Tokens that the cache had are not counted as input again."""
    told = object_of(record.get("usage"))
    usage = {ours: told[theirs] for ours, theirs in _USAGE.items() if isinstance(told.get(theirs), int)}
    if "input" in usage:
        usage["input"] = max(0, usage["input"] - usage.get("cacheRead", 0))
    return usage or None


def _counted(kind: str, item: Mapping[str, Any]) -> tuple[Entry | None, int | None]:
    """Return the usage in a `token_count` event, and the total so far."""
    if kind != "event_msg" or item.get("type") != "token_count":
        return None, None
    info = object_of(item.get("info"))
    total = object_of(info.get("total_token_usage")).get("total_tokens")
    usage = usage_in({"usage": info.get("last_token_usage")})
    return usage, total if isinstance(total, int) else None


# -- compactions


def _compaction(item: Mapping[str, Any]) -> Entry:
    kept = item.get("replacement_history")
    message = item.get("message")
    summary = message if isinstance(message, str) and message else summary_in(kept) or ""
    entry: Entry = {"type": "compaction", "summary": summary, "tokensBefore": 0}
    if isinstance(kept, list):
        entry["replacement"] = [message_of(each) for each in kept if isinstance(each, dict)]
    return entry


def _complete_compaction(entry: Entry, item: Mapping[str, Any], near: Near) -> None:
    if prompt := _prompt(item_in(row_of(near.first()))[1]):
        entry["systemMessage"] = _system(prompt)
    own = item.get("compaction_response_id")
    for kind, other, row in _rows(near.before()):
        if object_of(row.get("metadata")).get("compaction_output") is True:
            text = joined("\n\n", other.get("content"))
            if text and entry["summary"].endswith(text):
                entry["summary"] = text  # without the words that introduce it to the model
            continue
        usage = (
            usage_in(other)
            if kind == "token_usage_record"
            else _counted(kind, other)[0]
            if _ends(kind, other, row)
            else None
        )
        if usage is not None and (own is None or other.get("response_id") != own):
            entry["tokensBefore"] = usage.get("totalTokens") or sum(usage.get(name, 0) for name in ("input", "output"))
            return
