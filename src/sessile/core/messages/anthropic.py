"""The Anthropic Messages API: its messages as neutral ones, and a context as a request.

A user message with results becomes several neutral ones: one for each result, one for each run of other blocks. `part` numbers
them, so that they become one message again. The results of one turn share a user message.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from typing import Any

from sessile.core.messages.family import Message, blocks_of, joined_text, sendable, text_block
from sessile.core.messages.request import (
    Notes,
    Request,
    Source,
    absent_of,
    as_text,
    came_from,
    conversation,
    extra_of,
    form_of,
    given,
    leading,
    may_sign,
    one_of,
    others,
    refused,
    rest_of,
    sent_back,
    text_at,
    with_answer,
    with_extra,
)
from sessile.core.usage import usage_of

API = "anthropic"
ROLES = ("user", "assistant", "system")
PARTS = ("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result")
KEPT = (
    *("search_result", "server_tool_use", "container_upload", "tool_reference", "compaction", "fallback"),
    *("tool_addition", "tool_removal", "mid_conv_system"),
)
"""Types of blocks that have no neutral form and are kept whole."""
KEPT_ENDINGS = ("_tool_use", "_tool_result", "_tool_listing")

_ANSWER = (
    *("id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container", "diagnostics"),
    "context_management",
)
"""Members of an answer that a request does not have."""
_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "toolUse"}
_STOPS |= {"refusal": "stop", "pause_turn": "stop", "model_context_window_exceeded": "length"}
_TARGET = "the Anthropic API"


# -- from the API


def is_block(kind: object) -> bool:
    """Return whether a type is one of a content block of this API."""
    return isinstance(kind, str) and (kind in PARTS or kind in KEPT or kind.endswith(KEPT_ENDINGS))


def from_anthropic(message: Message, at: str = "") -> list[Message]:
    """Return the neutral messages of one message of this API, or of a whole answer."""
    role, content = message.get("role"), message.get("content")
    where = f"{at}." if at else ""
    if role not in ROLES:
        raise refused(f"{where}role", role, one_of(ROLES))
    kept = rest_of(message, "role", "content", *_ANSWER)
    if role == "system" and kept is None:
        kept = {}  # as a message in its place, not the system prompt
    said: Message = {"role": role}
    if isinstance(content, str):
        return [_answered(with_extra(said | {"content": content}, API, kept), message)]
    if not isinstance(content, list):
        raise refused(f"{where}content", content, "use a text or a list of blocks")
    if role != "user" or not any(isinstance(block, dict) and block.get("type") == "tool_result" for block in content):
        parts = [_part(block, f"{where}content[{number}]") for number, block in enumerate(content)]
        return [_answered(with_extra(said | {"content": parts}, API, kept), message)]
    pieces: list[Message] = []
    for number, block in enumerate(content):
        place = f"{where}content[{number}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            pieces.append(_result(block, place))
        elif pieces and pieces[-1]["role"] == "user":
            pieces[-1]["content"].append(_part(block, place))
        else:
            pieces.append({"role": "user", "content": [_part(block, place)]})
    for number, piece in enumerate(pieces):
        mine = extra_of(piece, API) | {"$part": number}
        piece["extra"] = {API: mine if number else mine | ({"$message": kept} if kept else {})}
    return [_answered(pieces[0], message), *pieces[1:]]


def _answered(said: Message, message: Message) -> Message:
    """Return a message with what its answer tells: model, usage and stop reason."""
    placed = ("id", "type", "model") if said["role"] == "assistant" and "model" in message else ("type",)
    said = with_answer(said, API, message, *(name for name in _ANSWER if name not in placed))
    if "id" not in placed:
        return said
    usage = usage_of(message.get("usage"))
    reason = message.get("stop_reason")
    known: Message = {
        "provider": "anthropic",
        "api": "anthropic-messages",
        "model": message["model"],
        "responseId": message.get("id"),
        "stopReason": _STOPS.get(reason, reason) if isinstance(reason, str) else None,
        "usage": None if usage is None else usage.stored(),
    }
    return said | {name: value for name, value in known.items() if value is not None}


def _result(block: Message, at: str) -> Message:
    content = block.get("content")
    extra: Message = rest_of(block, "type", "tool_use_id", "content", "is_error") or {}
    absent = [name for name in ("content", "is_error") if name not in block]
    if absent:
        extra["$without"] = absent
    if isinstance(content, str):
        extra["$form"] = "text"
        parts = [text_block(content)]
    elif content is None:
        parts = []
    elif isinstance(content, list):
        parts = [_part(part, f"{at}.content[{number}]") for number, part in enumerate(content)]
    else:
        raise refused(f"{at}.content", content, "use a text or a list of blocks")
    failed = bool(block.get("is_error"))
    call_id = text_at(block, "tool_use_id", at)
    return with_extra({"role": "toolResult", "toolCallId": call_id, "content": parts, "isError": failed}, API, extra)


def _part(block: Any, at: str) -> Message:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return with_extra(text_block(text_at(block, "text", at)), API, rest_of(block, "type", "text"))
    if kind == "thinking":
        signed = {"thinkingSignature": block["signature"]} if "signature" in block else {}
        thought = {"type": "thinking", "thinking": text_at(block, "thinking", at), **signed}
        return with_extra(thought, API, rest_of(block, "type", "thinking", "signature") or {})
    if kind == "redacted_thinking":
        sealed = {"type": "thinking", "thinking": "", "thinkingSignature": text_at(block, "data", at), "redacted": True}
        return with_extra(sealed, API, rest_of(block, "type", "data") or {})
    if kind == "tool_use":
        if not isinstance(block.get("input"), dict):
            raise refused(f"{at}.input", block.get("input"), "use an object")
        call = {"type": "toolCall", "id": text_at(block, "id", at), "name": text_at(block, "name", at)}
        return with_extra(call | {"arguments": block["input"]}, API, rest_of(block, "type", "id", "name", "input"))
    if kind in ("image", "document"):
        return _media(block, at)
    if is_block(kind) and kind != "tool_result":
        return {"type": "other", "api": API, "value": block}
    if not isinstance(block, dict):
        raise refused(at, block, "use a block: an object with a type")
    raise refused(f"{at}.type", kind, one_of(PARTS))


def _media(block: Message, at: str) -> Message:
    kind, source = str(block["type"]), block.get("source")
    form = source.get("type") if isinstance(source, dict) else None
    extra = rest_of(block, "type", "source", *(("title",) if isinstance(block.get("title"), str) else ())) or {}
    named = {"name": block["title"]} if isinstance(block.get("title"), str) else {}
    if isinstance(source, dict) and form == "content":  # blocks in a block
        return {"type": "other", "api": API, "value": block}
    if not isinstance(source, dict) or form not in ("base64", "url", "file", "text"):
        raise refused(f"{at}.source.type", form, one_of(("base64", "url", "file", "text", "content")))
    member, name = {"base64": ("data", "data"), "url": ("url", "url"), "file": ("file_id", "fileId")}.get(
        form, ("data", "text")
    )
    part = {"type": kind, name: text_at(source, member, f"{at}.source")}
    if isinstance(source.get("media_type"), str):
        part["mimeType"] = source["media_type"]
    unknown = rest_of(source, "type", member, *(("media_type",) if "mimeType" in part else ()))
    if unknown:
        extra["source"] = unknown
    return with_extra(part | named, API, extra or ({} if name == "fileId" else None))


# -- to the API


def to_anthropic(source: Source) -> Request:
    """Convert a context for the Anthropic Messages API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, and the system prompt and tools if the session has them. Its `notes` name
        what the API does not take.

    Example:
        ```python
        client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, **to_anthropic(session.context()))
        ```
    """
    notes = Notes()
    system, tools, messages, sources = given(source, API, notes=notes)
    developers = leading(messages, sources, notes, _TARGET)
    first = len(developers)
    system = system + [text for texts in developers for text in texts]
    request: Message = {"system": [text_block(text) for text in sendable(system)]} if system else {}
    request["messages"] = anthropic_messages(messages[first:], sources[first:], notes)
    if tools:
        request["tools"] = [_tool(tool) for tool in sendable(tools)]
    return Request(request, notes)


def _tool(tool: Message) -> Message:
    described: Message = {name: tool[name] for name in ("name", "description") if name in tool}
    return {**described, "input_schema": tool.get("parameters") or {"type": "object"}}


def anthropic_messages(
    messages: Iterable[Message], sources: Sequence[str | None] = (), notes: Notes | None = None
) -> list[Message]:
    """Return the messages in the shape of the Anthropic Messages API."""
    notes = Notes() if notes is None else notes
    result: list[Message] = []
    for message in conversation(list(messages), sources, notes):
        role = message["role"]
        kept = extra_of(message, API)
        if role == "toolResult":
            made: Message = {"role": "user", "content": [_sent_result(message, notes)]}
            joins = kept["$part"] > 0 if isinstance(kept.get("$part"), int) else _holds_results(result)
        else:
            made = _sent_message(message, role, notes)
            joins = isinstance(kept.get("$part"), int) and kept["$part"] > 0
        if joins and result and result[-1]["role"] == made["role"] == "user":
            last = result[-1]
            before = last["content"]
            last["content"] = [*([text_block(before)] if isinstance(before, str) else before), *made["content"]]
            continue
        members = kept.get("$message") if "$part" in kept else sent_back(message, API)
        made |= (rest_of(members, *made) or {}) if isinstance(members, dict) else {}
        if made["content"] or len(made) > 2:
            result.append(made)
        else:
            notes.add("dropped", f"an empty {role} message, which {_TARGET} does not take")
    return [sendable(message) for message in result]


def _holds_results(result: list[Message]) -> bool:
    last = result[-1]["content"] if result and result[-1]["role"] == "user" else None
    return isinstance(last, list) and all(block.get("type") == "tool_result" for block in last)


def _sent_message(message: Message, role: str, notes: Notes) -> Message:
    content = message.get("content")
    if role == "developer":
        notes.add("changed", f"a developer message is sent as a user message: {_TARGET} has no such role")
    if role not in ROLES:
        role = "user"
    if isinstance(content, str):
        return {"role": role, "content": content}
    blocks = [block for part in blocks_of(content) if (block := _block(part, message, role, notes)) is not None]
    return {"role": role, "content": blocks}


def _sent_result(message: Message, notes: Notes) -> Message:
    content = message.get("content")
    block: Message = {"type": "tool_result", "tool_use_id": message.get("toolCallId")}
    if form_of(message, API) == "text" and isinstance(content, list):
        block["content"] = joined_text(content)
    elif isinstance(content, str):
        block["content"] = [text_block(content)] if content else []
    else:
        found = (_block(part, message, "toolResult", notes) for part in blocks_of(content))
        block["content"] = [part for part in found if part is not None]
    block["is_error"] = bool(message.get("isError"))
    for name in absent_of(message, API):
        if not block.get(name):
            block.pop(name, None)
    return block | sent_back(message, API)


def _block(part: Message, message: Message, role: str, notes: Notes) -> Message | None:
    kind = part.get("type")
    back = sent_back(part, API)
    if kind == "text":
        if part.get("refusal"):
            notes.add("changed", f"a refusal is sent as text: {_TARGET} has no refusals in messages")
        return {**text_block(str(part["text"])), **back} if part.get("text") else None
    if kind in ("thinking", "redactedThinking") and role == "assistant":
        return _thought(part, message, notes)
    if kind == "image" and role != "assistant":
        source = _source(part)
        return {"type": "image", "source": source, **_without_source(back)} if source else _instead(part, notes)
    if kind == "document" and role != "assistant":
        source = _document(part)
        titled = {"title": part["name"]} if part.get("name") else {}
        block = {"type": "document", "source": source, **titled, **_without_source(back)}
        return block if source else _instead(part, notes)
    if kind == "toolCall" and role == "assistant":
        if part.get("custom"):
            notes.add("changed", f"the call {part.get('id')} has a text as its input; it is sent in an object")
        call = {"id": part.get("id"), "name": part.get("name"), "input": part.get("arguments") or {}}
        return {"type": "tool_use", **call, **back}
    if kind == "other" and (value := others(part, API)) is not None:
        return dict(value)
    return _instead(part, notes)


def _instead(part: Message, notes: Notes) -> Message | None:
    text = as_text(part, notes, _TARGET)
    return None if text is None else text_block(text)


def _thought(part: Message, message: Message, notes: Notes) -> Message | None:
    signature = part.get("data") if part.get("type") == "redactedThinking" else part.get("thinkingSignature")
    sealed = part.get("redacted") or part.get("type") == "redactedThinking"
    own = came_from(part, API)
    if not own and (not signature or not may_sign(message, part, API)):
        notes.add("dropped", f"a thought without a signature of {_TARGET}")
        return None
    back = sent_back(part, API)
    if sealed:
        return {"type": "redacted_thinking", "data": signature, **back}
    signed = {"signature": signature} if "thinkingSignature" in part else {}
    return {"type": "thinking", "thinking": part.get("thinking", ""), **signed, **back}


def _without_source(members: Message) -> Message:
    return {name: value for name, value in members.items() if name != "source"}


def _unknown_of(part: Message) -> Message:
    """Return the members of a source that the neutral form has no place for."""
    unknown = extra_of(part, API).get("source")
    return unknown if isinstance(unknown, dict) else {}


def _source(part: Message) -> Message | None:
    """Return the source of an image or document; `None` if the API cannot get it."""
    unknown = _unknown_of(part)
    typed = {"media_type": part["mimeType"]} if isinstance(part.get("mimeType"), str) else {}
    if isinstance(part.get("data"), str):
        return {"type": "base64", "media_type": part.get("mimeType"), "data": part["data"], **unknown}
    if isinstance(part.get("fileId"), str) and came_from(part, API):
        return {"type": "file", "file_id": part["fileId"], **typed, **unknown}
    url = part.get("url")
    if isinstance(url, str) and (came_from(part, API) or url.startswith(("https://", "http://"))):
        return {"type": "url", "url": url, **unknown}
    return None


def _document(part: Message) -> Message | None:
    if isinstance(part.get("text"), str):
        typed = {"type": "text", "media_type": part.get("mimeType") or "text/plain"}
        return {**typed, "data": part["text"], **_unknown_of(part)}
    mime = part.get("mimeType")
    if isinstance(part.get("data"), str) and mime != "application/pdf" and not came_from(part, API):
        text = _decoded(part["data"]) if isinstance(mime, str) and mime.startswith("text/") else None
        return None if text is None else {"type": "text", "media_type": "text/plain", "data": text}
    return _source(part)


def _decoded(data: str) -> str | None:
    try:
        return binascii.a2b_base64(data).decode()
    except ValueError:
        return None
