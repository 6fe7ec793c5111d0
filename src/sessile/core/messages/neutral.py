"""The neutral message: what a session stores, whichever API a message came from.

A message has a role and parts. On disk it has the shape of the pi family, with a few more parts:

    text {text, textSignature?, refusal?}                 thinking {thinking, thinkingSignature?, redacted?, encrypted?}
    toolCall {id, name, arguments, custom?}               image {data, mimeType} or {url} or {fileId}
    document {data|text|url|fileId, mimeType?, name?}     audio {data, mimeType, transcript?, …}
    other {api, value}: a part without a counterpart, kept whole and sent back to its API only

`custom` marks a call whose input is plain text, stored as `{"input": text}`. What only one API understands is kept in `extra`
(`core/messages/request.py`). Unknown members stay.

`neutral` takes messages of any API. The first rule that applies decides which one a value is from:

    choices, candidates, output                               a whole chat completion, Gemini answer, response
    `type` "message" with a stop reason or usage               a whole answer of Anthropic
    parts                                                      Gemini
    `type` and no content of ours                              an item of the Responses API
    role toolResult, bashExecution, custom, …                  ours
    role tool, function                                        OpenAI chat
    a member or part that one API alone has                    that API: see `_sign`
    anything else, such as a role and a text                   ours: these look the same in all APIs

In a list, a message that looks the same in all APIs belongs to the API of the others, if they have only one. Objects of the
vendors' clients are read through their `model_dump`; nothing of theirs is imported.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any, Literal, Protocol, TypedDict, TypeGuard

from sessile.core.entries import PARTS, ROLES, is_ours
from sessile.core.messages import anthropic, gemini, openai_chat, openai_responses
from sessile.core.messages.request import ALIASES, called, one_of, refused, text_at
from sessile.errors import InvalidEntry

# -- types


class TextPart(TypedDict, total=False):
    """A text; `refusal` marks one that says why the model did not answer."""

    type: Literal["text"]
    text: str
    textSignature: str
    refusal: bool
    extra: dict[str, Any]


class ThinkingPart(TypedDict, total=False):
    """A thought, with the signature or the encrypted content that its API needs to take it back."""

    type: Literal["thinking"]
    thinking: str
    thinkingSignature: str
    redacted: bool
    encrypted: str
    extra: dict[str, Any]


class ToolCallPart(TypedDict, total=False):
    """A call of a tool; `custom` marks one whose input is plain text, in `arguments["input"]`."""

    type: Literal["toolCall"]
    id: str
    name: str
    arguments: dict[str, Any]
    custom: bool
    thoughtSignature: str
    extra: dict[str, Any]


class ImagePart(TypedDict, total=False):
    """An image: base64 data and its type, or where it is."""

    type: Literal["image"]
    data: str
    mimeType: str
    url: str
    fileId: str
    extra: dict[str, Any]


class DocumentPart(TypedDict, total=False):
    """A file: its data, its text, or where it is."""

    type: Literal["document"]
    data: str
    text: str
    url: str
    fileId: str
    mimeType: str
    name: str
    extra: dict[str, Any]


class AudioPart(TypedDict, total=False):
    """A sound, with its transcript if that is known."""

    type: Literal["audio"]
    data: str
    mimeType: str
    url: str
    id: str
    transcript: str
    extra: dict[str, Any]


class OtherPart(TypedDict):
    """A part of one API that no other has, as it was."""

    type: Literal["other"]
    api: str
    value: dict[str, Any]


Part = TextPart | ThinkingPart | ToolCallPart | ImagePart | DocumentPart | AudioPart | OtherPart


class UserMessage(TypedDict, total=False):
    """What a user said; also a system or developer message."""

    role: Literal["user", "system", "developer"]
    content: str | list[Part]
    timestamp: int
    extra: dict[str, Any]


class AssistantMessage(TypedDict, total=False):
    """An answer of a model."""

    role: Literal["assistant"]
    content: str | list[Part]
    provider: str
    api: str
    model: str
    usage: dict[str, Any]
    stopReason: str
    errorMessage: str
    responseId: str
    timestamp: int
    extra: dict[str, Any]


class ToolResultMessage(TypedDict, total=False):
    """The result of a call."""

    role: Literal["toolResult"]
    toolCallId: str
    toolName: str
    content: list[Part]
    isError: bool
    timestamp: int
    extra: dict[str, Any]


Message = dict[str, Any]
"""A stored message: one of the typed ones above, or one of the family's other roles."""


class Modelled(Protocol):
    """An object of a vendor's client: a pydantic model."""

    def model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...


MessageLike = UserMessage | AssistantMessage | ToolResultMessage | Mapping[str, Any] | Modelled
"""A message of ours or of any supported API, as a dict or an object of its client."""


# -- from any shape


def neutral(value: object, before: Sequence[Message] = ()) -> list[Message]:
    """Return the neutral messages of a message, a whole answer, or a list of them.

    Args:
        value: What to read.
        before: The messages before it. A result gets the name of its tool from them, a call without an id a new one.

    Raises:
        InvalidEntry: Something is not understood; the error names the member and the rule.
    """
    try:
        return _neutral(value, before)
    except RecursionError:
        raise InvalidEntry(f"{_too_deep(value)}: nested too deeply", hint="store a deep value as text") from None


def _neutral(value: object, before: Sequence[Message]) -> list[Message]:
    several = is_several(value)
    values = [plain_value(item) for item in value] if is_several(value) else [plain_value(value)]
    places = [f"[{number}]" for number in range(len(values))] if several else [""]
    signs = [_shape(*pair) for pair in zip(values, places, strict=True)]
    apis = {sign for sign in signs if sign in ALIASES}
    usual = apis.pop() if len(apis) == 1 and _OURS not in signs else _ANY
    roles = _USUAL_ROLES.get(usual, ())
    found: list[Message] = []
    names = gemini.Names(before) if any(sign.startswith(gemini.API) for sign in signs) else None
    marked = [
        (usual if sign == _ANY and item["role"] in roles else sign, item, at)
        for sign, item, at in zip(signs, values, places, strict=True)
    ]
    for sign, group in groupby(marked, lambda row: row[0]):
        for messages in _read(sign, [(item, at) for _, item, at in group], names):
            found += messages
            if names is not None:
                names.see(messages)
    return _with_tool_names(found, before)


_ANY, _OURS = "any", "ours"
_USUAL_ROLES = {api.API: api.ROLES for api in (anthropic, openai_chat, openai_responses)}  # with a role and a content
_SHARED = ("user", "assistant", "system", "developer")  # roles of ours that other APIs have, too


def _read(sign: str, rows: list[tuple[Message, str]], names: gemini.Names | None) -> Iterator[list[Message]]:
    """Yield the neutral messages of values of one shape."""
    if sign == "responses":  # adjacent items may be one answer
        yield openai_responses.from_responses([item for item, _ in rows], [at for _, at in rows])
        return
    for item, at in rows:
        if sign in (_ANY, _OURS):
            yield [_own(item, at)]
        elif names is not None and sign == "google":
            yield gemini.from_google(item, names, at)
        elif names is not None and sign == "google answer":
            yield gemini.from_answer(item, names, at)
        else:
            yield _READERS[sign](item, at)


_READERS = {
    "anthropic": anthropic.from_anthropic,
    "openai": openai_chat.from_openai,
    "openai answer": openai_chat.from_completion,
    "responses answer": openai_responses.from_response,
}


def _shape(value: Any, at: str) -> str:
    """Return which API a value is from: `any` if it looks the same in all, `ours` if it is surely not of another."""
    if not isinstance(value, dict):
        raise InvalidEntry(
            f"{at or 'message'} of type {type(value).__name__}: use a dict with a role, or an object of a vendor's client"
        )
    where = f"{at}." if at else ""
    if "choices" in value:
        return "openai answer"
    if "candidates" in value:
        return "google answer"
    if isinstance(value.get("output"), list) and value.get("type") is None:
        return "responses answer"
    kind, role = value.get("type"), value.get("role")
    if kind == "message" and role == "assistant" and ("stop_reason" in value or "usage" in value):
        return "anthropic"
    if "parts" in value or role == "model":
        return "google"
    if kind is not None and (role is None or role in _SHARED):
        if openai_responses.is_item(kind):
            return "responses"
        if role is None and (kind in PARTS or anthropic.is_block(kind) or kind in openai_chat.PARTS):
            raise refused(f"{where}type", kind, 'a part is no message; put it into one: {"role": …, "content": [part]}')
        raise refused(f"{where}type", kind, one_of(openai_responses.ITEMS))
    if role in ("tool", "function"):
        return "openai"
    if not isinstance(role, str) or role not in ROLES:
        raise refused(f"{where}role", role, one_of(ROLES))
    return _sign(value) if role in _SHARED else _OURS


_OUR_MEMBERS = (
    *("timestamp", "stopReason", "provider", "api", "responseId", "extra"),
    *("sections", "toolsAdded", "toolsRemoved", "replaces"),
)
_ANTHROPIC_MEMBERS = ("output_config",)
_PART_SIGNS = {
    **dict.fromkeys(("toolCall", "audio", "other", "redactedThinking"), _OURS),
    **dict.fromkeys(("image_url", "input_audio", "file", "refusal", *openai_chat.KEPT), "openai"),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), "responses"),
}


def _sign(message: Message) -> str:
    """Return the API that a message of a shared role is from, by its members and then by its parts."""
    if any(name in message for name in openai_chat.MEMBERS):
        return "openai"
    if any(name in message for name in _ANTHROPIC_MEMBERS):
        return "anthropic"
    if any(name in message for name in _OUR_MEMBERS):
        return _OURS
    content = message.get("content")
    weak = _ANY
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if isinstance(kind, str) and kind in _PART_SIGNS:
            return _PART_SIGNS[kind]
        if kind not in PARTS and anthropic.is_block(kind):
            return "anthropic"
        if "source" in part or (kind == "thinking" and "signature" in part):
            return "anthropic"
        if "thinkingSignature" in part or (kind in ("image", "document") and "source" not in part):
            return _OURS
        if "cache_control" in part or "citations" in part:
            weak = "anthropic"
    return weak


def _own(message: Message, at: str) -> Message:
    """Return a message of ours, if its parts are known."""
    where = f"{at}." if at else ""
    role, content = message["role"], message.get("content")
    if content is None and role in ("user", "assistant", "toolResult", "developer"):
        raise refused(f"{where}content", content, "use a text or a list of parts")
    if content is not None and not isinstance(content, str | list):
        raise refused(f"{where}content", type(content).__name__, "use a text or a list of parts")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        place = f"{where}content[{number}]"
        if not isinstance(part, dict):
            raise refused(place, part, "use a part: an object with a type")
        if part.get("type") not in PARTS:
            raise refused(f"{place}.type", part.get("type"), one_of(PARTS))
    if role == "system":
        _check_tools(message, where)
    return message


def _check_tools(message: Message, where: str) -> None:
    """Raise if the tools that a system message adds or removes cannot be read."""
    for name, kind, rule in (("toolsAdded", dict, "objects with a name"), ("toolsRemoved", str, "names")):
        tools = message.get(name)
        if tools is not None and not isinstance(tools, list):
            raise refused(f"{where}{name}", tools, f"use a list of {rule}")
        for number, tool in enumerate(tools or ()):
            if not isinstance(tool, kind):
                raise refused(f"{where}{name}[{number}]", tool, f"use a list of {rule}")
            if isinstance(tool, dict):
                text_at(tool, "name", f"{where}{name}[{number}]")


def _with_tool_names(messages: list[Message], before: Sequence[Message]) -> list[Message]:
    """Return the messages with the name of the tool in each result whose call is known."""
    if not any(message["role"] == "toolResult" and "toolName" not in message for message in messages):
        return messages
    calls = called([*before, *messages])
    for message in messages:
        call = calls.get(str(message.get("toolCallId"))) if message["role"] == "toolResult" else None
        if call is not None and "toolName" not in message and isinstance(call.get("name"), str):
            message["toolName"] = call["name"]
    return messages


def plain_value(value: Any) -> Any:
    """Return a value of dicts and lists: objects of clients are dumped, bytes become base64."""
    if isinstance(value, str | int | float) and not isinstance(value, Enum):
        return value
    if is_ours(value):
        return dict(value)  # a tool name may be added
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: plain_value(item) for name, item in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return binascii.b2a_base64(bytes(value), newline=False).decode("ascii")
    if is_several(value):
        return [plain_value(item) for item in value]
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return plain_value(dump(by_alias=True, exclude_unset=True, warnings=False))
    return value


def is_several(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is several values: any iterable but a text, bytes, a mapping or an object of a client."""
    if isinstance(value, list | tuple):
        return True
    if isinstance(value, Mapping | str | bytes | bytearray | memoryview | type) or hasattr(value, "model_dump"):
        return False
    return isinstance(value, Iterable)


def _too_deep(value: object) -> str:
    """Return the path of the member that cannot be read because of its depth."""
    rows = [(f"[{number}].", item) for number, item in enumerate(value)] if isinstance(value, list) else [("", value)]
    for at, message in rows:
        for name, item in message.items() if isinstance(message, Mapping) else ():
            try:
                plain_value(item)
            except RecursionError:
                return f"{at}{name}"
    return "message"
