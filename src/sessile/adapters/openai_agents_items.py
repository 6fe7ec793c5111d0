"""Items of the OpenAI Agents SDK as entries of a session, and back, exactly.

An item that somebody said, thought, called or got back is a `message` entry, so that every verb of ours can read it; what else
there is (compactions, approvals, references) is a `custom` entry. The item itself lies in the member `openai` of the entry:

    {"type": "message", "message": {"role": "user", "content": "hello"},
     "openai": {"item": {"role": "user", "content": null}, "taken": [["content"]]}}

Rules: a text is stored once: where the message holds it, the item has `null`, and `taken` says for each part of the message
where it belongs. An item that our lines cannot hold as it is (NaN, whole floats, members that lines drop) is stored as a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sessile.adapters.taken import Path, compact, put, values_of, without
from sessile.core.codec import decode, encode_plain
from sessile.core.entries import Payload, custom, custom_message, message
from sessile.core.plain import plain
from sessile.errors import SessileError

MEMBER = "openai"

Part = tuple[Payload, Path | None]
"""A part of a message, and where in the item its text stands; `None` if it stands there too."""

_ARGUMENTS = {"function_call": "arguments", "mcp_call": "arguments", "custom_tool_call": "input"}
_SUSPECT = re.compile(r"NaN|Infinity|\.0|partialJson|jsonlEvents|[eE][+-]?\d")
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/]+={0,2})")


def written(item: Any) -> str:
    """The item as JSON; raises `TypeError` or `ValueError` if it has no such form."""
    return json.dumps(item)


def entry_of(item: Any, text: str, now: int) -> Payload:
    """The entry for an item, whose JSON is `text`."""
    if _SUSPECT.search(text) and not _survives(item, text):
        shown = [part if part["type"] != "toolCall" else part | {"arguments": {}} for part, _ in _parts(item)]
        return {**_told(item, shown, now), MEMBER: {"json": text}}
    parts = _parts(item)
    payload = _told(item, [part for part, _ in parts], now)
    taken = [path for _, path in parts]
    kept: Payload = {"item": without(item, taken)}
    return {**payload, MEMBER: kept | ({"taken": taken} if any(taken) else {})}


def text_of(entry: Mapping[str, Any]) -> bytes | None:
    """The JSON of the item that an entry holds; `None` if it holds none."""
    kept = entry.get(MEMBER)
    if not isinstance(kept, dict):
        return None
    if isinstance(kept.get("json"), str):
        return str(kept["json"]).encode()
    if "item" not in kept:
        return None
    item = kept["item"]
    for path, value in zip(kept.get("taken", ()), values_of(entry), strict=False):
        if path is not None:
            put(item, path, compact(value) if isinstance(value, dict) else value)
    return encode_plain(item)


def items_of(texts: Sequence[bytes]) -> list[Any]:
    """The items of some JSON texts, each a value of its own that the caller may change."""
    joined = b"[" + b",".join(texts) + b"]"
    try:
        return list(decode(joined))
    except ValueError:  # NaN and infinity, which are no JSON but which the SDK writes
        return list(json.loads(joined))


def _survives(item: Any, text: str) -> bool:
    """Whether a line gives the item back as it was; whole floats and infinity, for example, do not come back."""
    if "partialJson" in text or "jsonlEvents" in text:
        return False
    try:
        return json.dumps(decode(encode_plain(plain(item).value))) == text
    except SessileError:
        return False


# -- what people see of an item


def _told(item: Any, parts: Sequence[Payload], now: int) -> Payload:
    kind, role = _kind(item), item.get("role") if isinstance(item, dict) else None
    content: Any = list(parts)
    if role in ("user", "assistant", "system", "developer") and kind == "message":
        if role == "user":
            one = content[0]["text"] if len(content) == 1 and isinstance(item.get("content"), str) else content
            return message({"role": "user", "content": one, "timestamp": now})
        if role == "assistant":
            return message(_answer(content, "stop", now))
        return custom_message("openai.instructions", content, display=False)
    if kind == "reasoning":
        return message(_answer(content, "stop", now))
    if content and kind.endswith("_call"):
        return message(_answer(content, "toolUse", now))
    if content and kind.endswith("_call_output"):
        call = {"role": "toolResult", "toolCallId": str(item.get("call_id") or ""), "toolName": ""}
        return message({**call, "content": content, "isError": False, "timestamp": now})
    return custom(f"openai.{kind}")


def _answer(content: Sequence[Payload], stop: str, now: int) -> Payload:
    return {"role": "assistant", "content": content, "stopReason": stop, "timestamp": now}


def _kind(item: Any) -> str:
    kind = item.get("type", "message" if "role" in item else "item") if isinstance(item, dict) else "item"
    return kind if isinstance(kind, str) and kind else "item"


def _parts(item: Any) -> list[Part]:
    """What a message for the item holds, part by part."""
    kind = _kind(item)
    if not isinstance(item, dict):
        return []
    if kind == "message":
        return _said(item.get("content"), ["content"])
    if kind == "reasoning":
        thoughts = [*_said(item.get("summary"), ["summary"]), *_said(item.get("content"), ["content"])]
        return [({"type": "thinking", "thinking": part["text"]}, path) for part, path in thoughts if "text" in part]
    if kind.endswith("_call"):
        return [_call(item, kind)]
    if kind.endswith("_call_output"):
        return _said(item.get("output"), ["output"])
    return []


def _said(content: Any, at: Path) -> list[Part]:
    if isinstance(content, str):
        return [({"type": "text", "text": content}, at)]
    blocks = enumerate(content) if isinstance(content, list) else ()
    return [part for number, block in blocks for part in _block(block, [*at, number])]


def _block(block: Any, at: Path) -> Iterable[Part]:
    if not isinstance(block, dict):
        return
    name = next((name for name in ("text", "refusal") if isinstance(block.get(name), str)), None)
    if name is not None:
        yield {"type": "text", "text": block[name]}, [*at, name]
    url = block.get("image_url")
    image = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if image is not None:
        yield {"type": "image", "mimeType": image[1], "data": image[2]}, [*at, "image_url"]


def _call(item: Mapping[str, Any], kind: str) -> Part:
    member = _ARGUMENTS.get(kind, "action")
    given = item.get(member)
    call = {"type": "toolCall", "id": str(item.get("call_id") or item.get("id") or ""), "name": _name(item, kind)}
    if not isinstance(given, str):
        return call | {"arguments": given if isinstance(given, dict) else {}}, None
    try:
        arguments = decode(given.encode("utf-8", "surrogatepass"))
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return call | {"arguments": {"input": given}}, None
    # Only a text that writing the arguments gives again may be left out of the item.
    return call | {"arguments": arguments}, [member] if compact(plain(arguments).value) == given else None


def _name(item: Mapping[str, Any], kind: str) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else kind.removesuffix("_call")
