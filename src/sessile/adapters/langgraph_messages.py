"""LangChain messages as messages of a session: what people read, and beside it what gives back the very same object.

An entry holds the text, the thoughts, the calls and the results in the form that every session has. What LangChain has beyond
that stands as bytes of its serializer in the entry's member `langgraph`, without the text and the calls where they can be taken
from the message: each is stored once. Whether they can is tried out before the entry is written, not assumed.

The id of a message is no part of it here: LangGraph gives one to a message that was stored without. It does not know threads.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, FunctionMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from sessile.adapters.langgraph_plain import is_plain, showable
from sessile.core import entries as make
from sessile.core.entries import Payload

MEMBER = "langgraph"  # of an entry: what LangChain has beyond the message

_ROLES = {"human": "user", "user": "user", "system": "system", "developer": "developer", "assistant": "assistant"}
_STOPS = {
    "stop": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "toolUse",
    "tool_use": "toolUse",
}
_CALL = {"name", "args", "id", "type"}
_CALL_BLOCKS = ("tool_use", "tool_call", "function_call", "input_json_delta", "tool_call_chunk")


def is_talk(value: object) -> bool:
    """Whether a value is something that somebody said; an order to remove a message is none."""
    return isinstance(value, BaseMessage) and not isinstance(value, RemoveMessage)


def identity(message: BaseMessage) -> list[Any]:
    """What makes a message the same whatever its id; a fraction of the work of writing it down."""
    kind = type(message)
    return [kind.__module__, kind.__qualname__, {**message.__dict__, "id": None}, message.model_extra]


def message_entry(message: BaseMessage, name: str, serde: SerializerProtocol) -> Payload:
    """The entry of a message without its id."""
    message = message.model_copy(update={"id": None})
    typed = serde.dumps_typed(message)
    shown = _shown(message)
    taken = _taken(message, shown)
    if taken:
        bare = message.model_copy(update={member: type(getattr(message, member))() for member in taken})
        entry = _entry(shown, name, serde.dumps_typed(bare), taken)
        if serde.dumps_typed(message_of(entry, serde)) == typed:
            return entry
    return _entry(shown, name, typed, {})


def message_of(entry: Mapping[str, Any], serde: SerializerProtocol) -> Any:
    """The object that an entry was made of, without its id."""
    kept = entry[MEMBER]
    value = serde.loads_typed((kept["type"], b64decode(kept["bytes"])))
    if not isinstance(value, BaseMessage):  # a type that the serializer may not make: it gives its members
        return value
    content = entry["message"]["content"]
    for member, how in kept.get("taken", {}).items():
        setattr(value, member, _TAKE[how](content))
    return value


def _entry(shown: Payload, name: str, typed: tuple[str, bytes], taken: Mapping[str, str]) -> Payload:
    kept = {"part": name, "type": typed[0], "bytes": b64encode(typed[1]).decode("ascii")}
    return make.message(shown) | {MEMBER: kept | ({"taken": dict(taken)} if taken else {})}


def _taken(message: BaseMessage, shown: Payload) -> dict[str, str]:
    """The members of a message that its entry tells word for word, each with the way to take it from there."""
    taken = {}
    content = shown["content"]
    if isinstance(message.content, str):
        if message.content:
            taken["content"] = "text"
    elif message.content and message.content == content and is_plain(content):
        taken["content"] = "blocks"
    calls: list[Any] = message.tool_calls if isinstance(message, AIMessage) else []
    if calls and all(call.keys() == _CALL and call["type"] == "tool_call" and is_plain(call["args"]) for call in calls):
        taken["tool_calls"] = "calls"
    return taken


def _text(content: Any) -> str:
    return content if isinstance(content, str) else str(content[0]["text"])


def _calls(content: Any) -> list[dict[str, Any]]:
    blocks = [block for block in content if block["type"] == "toolCall"]
    return [{"name": b["name"], "args": deepcopy(b["arguments"]), "id": b["id"], "type": "tool_call"} for b in blocks]


_TAKE: dict[str, Callable[[Any], Any]] = {"text": _text, "blocks": deepcopy, "calls": _calls}


# -- what people read


def _shown(message: BaseMessage) -> Payload:
    """A message in the form that every session has; what is not known is left out."""
    if isinstance(message, ToolMessage | FunctionMessage):
        call = getattr(message, "tool_call_id", None)
        failed = getattr(message, "status", None) == "error"
        return {
            "role": "toolResult",
            **({"toolCallId": call} if call else {}),
            **({"toolName": message.name} if message.name else {}),
            "content": list(_blocks(message.content)),
            "isError": failed,
        }
    if isinstance(message, AIMessage):
        return {"role": "assistant", "content": [*_blocks(message.content), *_tool_calls(message)], **_origin(message)}
    spoken = message.role if isinstance(message, ChatMessage) else message.type
    content: Any = message.content if isinstance(message.content, str) else list(_blocks(message.content))
    if spoken in _ROLES:
        return {"role": _ROLES[spoken], "content": content}
    return {"role": "custom", "customType": spoken, "content": content, "display": True}


def _blocks(content: Any) -> Iterator[Payload]:
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, str):
            if block:
                yield {"type": "text", "text": block}
            continue
        kind = block.get("type")
        if kind in ("thinking", "reasoning"):
            thought = block.get("thinking") or block.get("reasoning") or ""
            yield {"type": "thinking", "thinking": thought if isinstance(thought, str) else ""}
        elif kind in ("image", "image_url"):
            yield _image(block)
        elif kind not in _CALL_BLOCKS:
            yield showable(block | {"type": str(kind)})


def _image(block: Mapping[str, Any]) -> Payload:
    """A picture in any of the forms that providers have; one that is only named stays a name."""
    source = block["source"] if isinstance(block.get("source"), Mapping) else block
    data = source.get("data") or source.get("base64")
    mime = source.get("mime_type") or source.get("media_type")
    place = block.get("image_url")
    url = place.get("url") if isinstance(place, Mapping) else place or source.get("url")
    if data is None and isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        mime, data = url.removeprefix("data:").split(";base64,", 1)
    if not isinstance(data, str):
        return {"type": "text", "text": f"[image {url}]" if isinstance(url, str) else "[image]"}
    return {"type": "image", "data": data, "mimeType": str(mime or "image/png")}


def _tool_calls(message: AIMessage) -> Iterator[Payload]:
    for call in message.tool_calls:
        yield {"type": "toolCall", "id": call["id"], "name": call["name"], "arguments": showable(call["args"])}


def _origin(message: AIMessage) -> Payload:
    """Which model answered, why it stopped, and what was spent."""
    told = message.response_metadata
    model, provider = told.get("model_name") or told.get("model"), told.get("model_provider")
    stop = _STOPS.get(str(told.get("finish_reason") or told.get("stop_reason")))
    origin: Payload = {"provider": provider, "model": model, "stopReason": stop}
    if (usage := message.usage_metadata) is not None:
        details = usage.get("input_token_details") or {}
        origin["usage"] = {
            "input": usage["input_tokens"],
            "output": usage["output_tokens"],
            **({"cacheRead": details["cache_read"]} if "cache_read" in details else {}),
            **({"cacheWrite": details["cache_creation"]} if "cache_creation" in details else {}),
            "totalTokens": usage["total_tokens"],
        }
    return {name: value for name, value in origin.items() if isinstance(value, str | dict)}
