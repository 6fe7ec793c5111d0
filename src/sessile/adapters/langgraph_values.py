"""LangGraph values as JSON that shares parts with earlier values.

A channel holds its whole list at every version. Here a value is a tree whose larger parts are stored once, under a name derived
from their content; the next version refers to them. A packed value is an array that starts with one of these marks:

    ["=", value]           a JSON value
    ["~", type, bytes]     bytes of the serializer, in base64
    ["#", name]            a packed value that is stored as a part
    ["@", name, id]        a message, stored as an entry of its own, and its id
    ["[", item, …]         a list of packed values
    ["{", item, …]         a dict; its items are [":", key, packed value]
    ["*", name]            as an item: several items, stored as a part

Rules:

- Where long lists are divided depends on the items alone, so that two lists that differ in one place share everything else. The
  names of parts are divided in the same way: a version of a list of n items costs log n.
- A serializer other than LangGraph's own may encrypt: then everything goes through it, item by item.
- A LangChain message becomes a message entry. What LangChain has beyond that is stored as bytes of its serializer in the member
  `langgraph`, without text and calls where they can be restored from the message; that is tried before the entry is written.
  The id is not part of a message here, because LangGraph assigns ids to messages that were stored without one.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Protocol

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, FunctionMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sessile.core import entries as make
from sessile.core.codec import encode_plain
from sessile.core.entries import Payload
from sessile.core.ids import blake2b
from sessile.core.large import DROPPED

Packed = list[Any]

SAME, TYPED, PART, TALK, LIST, DICT, PAIR, RUN = "=~#@[{:*"

INLINE = 160  # bytes; a shorter value is stored in place
WIDTH = 12  # items in the list itself
SHORTEST, LONGEST = 4, 64  # items of a run

_PLAIN = JsonPlusSerializer(allowed_msgpack_modules=None)
_ENDS = frozenset("AIQYgow4")  # one name in eight starts with one of these


class Known(Protocol):
    """What is stored already."""

    def has(self, name: str) -> bool:
        """Return whether a part of this name is stored."""
        ...

    def claim(self, name: str, message_id: str | None) -> bool:
        """Return whether a message has an entry that is not used by a message of another id."""
        ...

    @property
    def hidden(self) -> dict[str, str]:
        """The names of encrypted parts by their content; never stored."""
        ...


class Packer:
    """Packs the values of one call, and collects the parts and messages that are not stored yet."""

    def __init__(self, serde: SerializerProtocol, known: Known) -> None:
        self.messages: list[Payload] = []
        self.parts: dict[str, Any] = {}
        self.hidden: dict[str, str] = {}  # like `Known.hidden`, for new parts
        self._serde = serde
        self._known = known
        self._open = isinstance(serde, JsonPlusSerializer)  # else values may be encrypted
        self._said: set[tuple[str, str | None]] = set()

    def pack(self, value: Any, depth: int = 0) -> Packed:
        """Return a value as packed JSON."""
        if self._open and is_talk(value):
            return self._talk(value)
        if depth < DEPTH and type(value) is list and not self._is_short(value):
            return [LIST, *self._fold([self.pack(item, depth + 1) for item in value])]
        if depth < DEPTH and self._open and is_dict(value) and not self._is_short(value):
            return [DICT, *self._fold([[PAIR, key, self.pack(item, depth + 1)] for key, item in value.items()])]
        if not self._open and depth:
            return [PART, self._hidden(value)]
        packed = self.whole(value)
        return [PART, self._stored(packed)] if len(encode_plain(packed)) > INLINE else packed

    def whole(self, value: Any) -> Packed:
        """Return a value as packed JSON in one piece."""
        if self._open and is_plain(value):
            return [SAME, value]
        kind, data = self._serde.dumps_typed(value)
        return [TYPED, kind, b64encode(data).decode("ascii")]

    def _is_short(self, value: Any) -> bool:
        return self._open and len(value) <= WIDTH and is_plain(value) and len(encode_plain(value)) <= INLINE

    def _talk(self, message: Any) -> Packed:
        name = _name(self._serde.dumps_typed(identity(message))[1])
        if (name, message.id) not in self._said and not self._known.claim(name, message.id):
            self.messages.append(message_entry(message, name, self._serde))
        self._said.add((name, message.id))
        return [TALK, name, message.id]

    def _hidden(self, value: Any) -> str:
        """Return the name of an item that the serializer may write differently each time."""
        content = content_of(value)
        name = self._known.hidden.get(content) or self.hidden.get(content) if content else None
        if name is None:
            name = self._stored(self.whole(value))
            if content:
                self.hidden[content] = name
        return name

    def _stored(self, part: Any) -> str:
        name = _name(encode_plain(part))
        if not self._known.has(name):
            self.parts[name] = part
        return name

    def _fold(self, items: list[Any]) -> list[Any]:
        """Return the items; many items become runs, and many runs become runs of runs."""
        tails: list[Any] = []
        while len(items) > WIDTH:
            runs, tail = _divided(items)
            if not runs:
                break
            items, tails = [[RUN, self._stored(run)] for run in runs], tail + tails
        return items + tails


def _divided(items: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Divide items into runs after those whose content ends a run; return the runs and the rest."""
    runs, run = [], []
    for item in items:
        run.append(item)
        if len(run) >= LONGEST or (len(run) >= SHORTEST and _ends_run(item)):
            runs.append(run)
            run = []
    return runs, run


def _ends_run(item: Any) -> bool:
    name = item[1] if item[0] in (PART, TALK, RUN) else _name(encode_plain(item))
    return name[0] in _ENDS


def content_of(value: Any) -> str | None:
    """Return a name for the content of a value; `None` if only its own serializer can write it."""
    try:
        return _name(_PLAIN.dumps_typed(value)[1])
    except TypeError:
        return None


def _name(data: bytes) -> str:
    return urlsafe_b64encode(blake2b(data, 16)).rstrip(b"=").decode("ascii")


def mentions(packed: Any) -> Iterator[Packed]:
    """Yield the references of a packed value or part: parts, messages and runs."""
    waiting = [packed]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) or not value:  # the entry of a message, an empty run
            continue
        if value[0] in (PART, TALK, RUN):
            yield value
        elif value[0] in (LIST, DICT):
            waiting += value[1:]
        elif value[0] == PAIR:
            waiting.append(value[2])
        elif isinstance(value[0], list):  # the items of a run
            waiting += value


class Unpacker:
    """Unpacks values, given their parts; the names of encrypted parts are added to `hidden`."""

    def __init__(self, parts: Mapping[str, Any], serde: SerializerProtocol, hidden: dict[str, str]) -> None:
        self._parts = parts
        self._serde = serde
        self._hidden = None if isinstance(serde, JsonPlusSerializer) else hidden

    def unpack(self, packed: Packed) -> Any:
        """Return the value; nothing of it is shared with another one."""
        mark = packed[0]
        if mark == SAME:
            return deepcopy(packed[1])
        if mark == TYPED:
            return self._serde.loads_typed((packed[1], b64decode(packed[2])))
        if mark == PART:
            return self._part(packed[1])
        if mark == TALK:
            return _with_id(message_of(self._parts[packed[1]], self._serde), packed[2])
        if mark == LIST:
            return [self.unpack(item) for item in self._items(packed[1:])]
        return {key: self.unpack(value) for _, key, value in self._items(packed[1:])}

    def _part(self, name: str) -> Any:
        value = self.unpack(self._parts[name])
        if self._hidden is not None and (content := content_of(value)):
            self._hidden[content] = name
        return value

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        waiting = [*items][::-1]
        while waiting:
            item = waiting.pop()
            if item[0] == RUN:
                waiting += self._parts[item[1]][::-1]
            else:
                yield item


def _with_id(message: Any, message_id: str | None) -> Any:
    if isinstance(message, dict):
        return message | {"id": message_id}
    message.id = message_id
    return message


# -- messages

MEMBER = "langgraph"  # the member of an entry with the rest of the LangChain message

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
    """Return whether a value is a message; a `RemoveMessage` is not."""
    return isinstance(value, BaseMessage) and not isinstance(value, RemoveMessage)


def identity(message: BaseMessage) -> list[Any]:
    """Return what identifies a message apart from its id; much cheaper than serializing it."""
    kind = type(message)
    return [kind.__module__, kind.__qualname__, {**message.__dict__, "id": None}, message.model_extra]


def message_entry(message: BaseMessage, name: str, serde: SerializerProtocol) -> Payload:
    """Return the entry of a message, without its id."""
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
    """Return the message of an entry, without its id."""
    kept = entry[MEMBER]
    value = serde.loads_typed((kept["type"], b64decode(kept["bytes"])))
    if not isinstance(value, BaseMessage):  # a type that is not allowed: the serializer returns its members
        return value
    content = entry["message"]["content"]
    for member, how in kept.get("taken", {}).items():
        setattr(value, member, _TAKE[how](content))
    return value


def _entry(shown: Payload, name: str, typed: tuple[str, bytes], taken: Mapping[str, str]) -> Payload:
    kept = {"part": name, "type": typed[0], "bytes": b64encode(typed[1]).decode("ascii")}
    return make.message(shown) | {MEMBER: kept | ({"taken": dict(taken)} if taken else {})}


def _taken(message: BaseMessage, shown: Payload) -> dict[str, str]:
    """Return the members of a message that can be restored from its entry, and how."""
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


def _shown(message: BaseMessage) -> Payload:
    """Return a message in the native form; unknown values are omitted."""
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
    """Return an image block for any provider's form; an image without data becomes a placeholder."""
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
    """Return model, stop reason and usage of an answer."""
    facts = message.response_metadata
    model, provider = facts.get("model_name") or facts.get("model"), facts.get("model_provider")
    stop = _STOPS.get(str(facts.get("finish_reason") or facts.get("stop_reason")))
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


# -- plain values

DEPTH = 12  # levels of lists and dicts; deeper values are left to the serializer
LONG_TEXT = 200_000  # characters; a longer text would be moved to a blob, which changes its neighbours

_NOT_PLAIN = frozenset((*DROPPED, "lineCount"))  # members that storing large content would touch


def is_dict(value: Any) -> bool:
    """Return whether a value is a plain dict with string keys."""
    return type(value) is dict and all(type(key) is str for key in value)


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether JSON preserves a value; floats are excluded, because whole ones become integers."""
    kind = type(value)
    if kind is str:
        return len(value) < LONG_TEXT and not value.startswith("blob:")
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is list:
        return depth < DEPTH and all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        named = is_dict(value) and _NOT_PLAIN.isdisjoint(value)
        return named and depth < DEPTH and all(is_plain(item, depth + 1) for item in value.values())
    return value is None or kind is bool


def showable(value: Any, depth: int = 0) -> Any:
    """Return a value as readable JSON; values without a JSON form become text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < 2**63 else str(value)
    if isinstance(value, dict) and depth < DEPTH:
        return {str(key): showable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth < DEPTH:
        return [showable(item, depth + 1) for item in value]
    return str(value)
