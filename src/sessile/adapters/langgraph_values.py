"""Values of LangGraph as JSON that shares what it has in common with the values before it.

A channel holds its whole list at every version. Here a value is a tree whose larger parts are stored once, under a name made of
their content; the next version names them. A packed value is an array that begins with one of these marks:

    ["=", value]           a JSON value as it is
    ["~", type, bytes]     bytes of the serializer, in base64
    ["#", name]            a packed value that is stored as a part
    ["@", name, id]        a message, stored as an entry of its own, with the id that it has here
    ["[", item, …]         a list of packed values
    ["{", item, …]         a dict; its items are [":", key, packed value]
    ["*", name]            as an item: many items, stored as a part

Rules:

- Where long lists are divided depends on the items alone, so that two lists that differ in one place share all else, and the
  names of parts are divided in the same way: a version of a list of n items costs log n, not n.
- A serializer other than LangGraph's own may be there to hide what it writes: then everything goes through it, item by item.

It does not know where parts are stored.
"""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sessile.adapters.langgraph_messages import identity, is_talk, message_entry, message_of
from sessile.adapters.langgraph_plain import DEPTH, is_dict, is_plain
from sessile.core.codec import encode_plain
from sessile.core.entries import Payload
from sessile.core.hashes import blake2b

Packed = list[Any]

SAME, TYPED, PART, TALK, LIST, DICT, PAIR, RUN = "=~#@[{:*"

INLINE = 160  # bytes: a shorter value is not worth a name
WIDTH = 12  # items that stand in the list itself
SHORTEST, LONGEST = 4, 64  # items of a run, however they look

_PLAIN = JsonPlusSerializer(allowed_msgpack_modules=None)
_ENDS = frozenset("AIQYgow4")  # one name in eight begins with one of these


class Known(Protocol):
    """What has been stored already."""

    def has(self, name: str) -> bool:
        """Whether there is a part of that name."""
        ...

    def claim(self, name: str, message_id: str | None) -> bool:
        """Whether that message has an entry, and one that it does not share with a message of another id."""
        ...

    @property
    def hidden(self) -> dict[str, str]:
        """The names of parts that a serializer has made unreadable, by the content that they had; never stored."""
        ...


class Packer:
    """Packs the values of one call; gathers the parts and messages that are not stored yet."""

    def __init__(self, serde: SerializerProtocol, known: Known) -> None:
        self.messages: list[Payload] = []
        self.parts: dict[str, Any] = {}
        self.hidden: dict[str, str] = {}  # as `Known.hidden`, of parts that are not stored yet
        self._serde = serde
        self._known = known
        self._open = isinstance(serde, JsonPlusSerializer)  # else nothing may be readable
        self._said: set[tuple[str, str | None]] = set()

    def pack(self, value: Any, depth: int = 0) -> Packed:
        """The value as JSON."""
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
        """The value as JSON in one piece."""
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
        """The name of an item that the serializer may write differently each time."""
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
        """The items, the many of them as runs, the many runs as runs of runs."""
        tails: list[Any] = []
        while len(items) > WIDTH:
            runs, tail = _divided(items)
            if not runs:
                break
            items, tails = [[RUN, self._stored(run)] for run in runs], tail + tails
        return items + tails


def _divided(items: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Items cut into runs behind those whose content says so, and the rest that no such item ends."""
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
    """A name for what a value is, before a serializer hides it; `None` if only that serializer knows the value."""
    try:
        return _name(_PLAIN.dumps_typed(value)[1])
    except TypeError:
        return None


def _name(data: bytes) -> str:
    return urlsafe_b64encode(blake2b(data, 16)).rstrip(b"=").decode("ascii")


# -- and back


def mentions(packed: Any) -> Iterator[Packed]:
    """What a packed value, or a stored part, names directly: parts, messages and runs."""
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
    """Unpacks values, given the parts that they need; what a serializer has hidden is noted in `hidden`."""

    def __init__(self, parts: Mapping[str, Any], serde: SerializerProtocol, hidden: dict[str, str]) -> None:
        self._parts = parts
        self._serde = serde
        self._hidden = None if isinstance(serde, JsonPlusSerializer) else hidden

    def unpack(self, packed: Packed) -> Any:
        """The value that was packed; nothing of it is shared with another one."""
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
