"""Messages of pydantic-ai as entries of a session, and back, exactly.

A response is one `message` entry. A request is one entry for each of its parts: what a user said, what a tool gave back; a part
that nobody said is a `custom` entry. The member `pydantic_ai` of each entry holds the JSON of its parts, that of the first one
also the rest of the message. A text is stored once: where the message of ours holds it, the JSON has `null`, and `taken` says
where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.conversation_store import ConversationEntry
from pydantic_ai.messages import ModelMessagesTypeAdapter

from sessile.adapters.taken import Path, compact, put, values_of, without
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload, custom, message
from sessile.core.plain import plain

MEMBER = "pydantic_ai"

_TO_THE_MODEL = ("user-prompt", "retry-prompt", "retry-feedback")

Part = tuple[Payload, Path | None]
"""A part of a message of ours, and where in the parts of the framework's it stands; `None` if it stands there too."""


def entries_of(entry: ConversationEntry, now: int) -> list[Payload]:
    """The entries for one message of a conversation."""
    value: Payload = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")[0]
    parts, rest = value["parts"], {name: told for name, told in value.items() if name != "parts"}
    groups = [parts] if value["kind"] == "response" or not parts else [[part] for part in parts]
    made = []
    for number, group in enumerate(groups):
        shown = _shown(value, group)
        taken = [path for _, path in shown]
        kept = {"entry": entry.id, "parent": entry.parent_id, "parts": without(group, map(_place, taken))}
        kept |= {"taken": taken} if any(taken) else {}
        kept |= {"rest": rest, "pieces": len(groups)} if number == 0 else {}
        made.append({**_told(value, group, [part for part, _ in shown], now), MEMBER: kept})
    return made


def message_of(pieces: Sequence[Mapping[str, Any]]) -> ConversationEntry:
    """The message of a conversation that some entries hold together."""
    parts = []
    for piece in pieces:
        kept = piece[MEMBER]
        for path, value in zip(kept.get("taken", ()), values_of(piece), strict=False):
            if path is not None:
                put(kept["parts"], _place(path) or [], compact(value) if path[0] == "json" else value)
        parts += kept["parts"]
    first = pieces[0][MEMBER]
    told = ModelMessagesTypeAdapter.validate_python([{**first["rest"], "parts": parts}])[0]
    return ConversationEntry(id=first["entry"], parent_id=first["parent"], message=told)


def _place(path: Path | None) -> Path | None:
    """A path without the mark that says that a text of JSON stands there."""
    return path[1:] if path and path[0] == "json" else path


def _told(value: Payload, group: Sequence[Payload], content: Sequence[Payload], now: int) -> Payload:
    if value["kind"] == "response":
        calls = any(part["type"] == "toolCall" for part in content)
        told = {"role": "assistant", "content": content, "provider": value.get("provider_name")}
        told |= {"model": value.get("model_name"), "usage": _usage(value.get("usage") or {})}
        told = {name: known for name, known in told.items() if known is not None}
        return message({**told, "stopReason": "toolUse" if calls else "stop", "timestamp": now})
    part = group[0] if group else {"part_kind": "request"}
    kind = part["part_kind"]
    if kind in ("tool-return", "retry-prompt") and part.get("tool_name"):
        told = {"role": "toolResult", "toolCallId": part.get("tool_call_id") or "", "toolName": part["tool_name"]}
        failed = kind == "retry-prompt" or part.get("outcome", "success") != "success"
        return message({**told, "content": content, "isError": failed, "timestamp": now})
    if kind in _TO_THE_MODEL:
        return message({"role": "user", "content": content, "timestamp": now})
    return custom(f"pydantic_ai.{kind}")


def _usage(told: Mapping[str, Any]) -> Payload | None:
    names = {"input": "input_tokens", "output": "output_tokens"}
    names |= {"cacheRead": "cache_read_tokens", "cacheWrite": "cache_write_tokens"}
    return {ours: told[theirs] for ours, theirs in names.items() if isinstance(told.get(theirs), int)} or None


def _shown(value: Payload, group: Sequence[Payload]) -> list[Part]:
    return [shown for number, part in enumerate(group) for shown in _parts(part, [number])]


def _parts(part: Payload, at: Path) -> Iterable[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "thinking":
        if isinstance(content, str):
            yield {"type": "thinking", "thinking": content}, [*at, "content"]
    elif kind.endswith("tool-call"):
        yield _call(part, at)
    elif kind == "text" or kind.endswith("tool-return") or kind in _TO_THE_MODEL:
        yield from _said(content, [*at, "content"])


def _said(content: Any, at: Path) -> Iterable[Part]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}, at
    elif isinstance(content, list) and any(isinstance(said, str) for said in content):
        for number, said in enumerate(content):
            if isinstance(said, str):
                yield {"type": "text", "text": said}, [*at, number]
            elif isinstance(said, dict):
                yield _file(said), None
    elif content is not None:  # what a tool gave back, as the model gets it
        yield {"type": "text", "text": encode({"": content})[4:-1].decode()}, None


def _file(said: Mapping[str, Any]) -> Payload:
    """A picture or a document beside a text: for people, where it is or what it is."""
    name = said.get("url") or said.get("identifier") or said.get("media_type") or ""
    return {"type": "text", "text": f"[{said.get('kind') or 'file'} {name}]"}


def _call(part: Mapping[str, Any], at: Path) -> Part:
    given = part.get("args")
    call = {"type": "toolCall", "id": part.get("tool_call_id") or "", "name": part.get("tool_name") or ""}
    if isinstance(given, dict):
        return call | {"arguments": given}, [*at, "args"]
    try:
        arguments = decode(given.encode("utf-8", "surrogatepass")) if isinstance(given, str) else None
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return call | {"arguments": {} if given is None else {"input": given}}, None
    # Only a text that writing the arguments gives again may be left out.
    return call | {"arguments": arguments}, ["json", *at, "args"] if compact(plain(arguments).value) == given else None
