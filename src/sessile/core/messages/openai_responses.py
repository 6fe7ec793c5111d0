"""The OpenAI Responses API: its items as neutral messages, and a context as a request.

An answer is several items there (reasoning, message, calls) and one message here: adjacent items of the assistant become one
message. Calls whose input is plain text (`custom_tool_call`) are marked `custom`. A reasoning item is kept whole as the
signature of its thought, as the pi family does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sessile.core.messages.family import Message, blocks_of, sendable, text_block
from sessile.core.messages.openai_chat import (
    answered,
    input_of,
    read_arguments,
    read_file,
    read_object,
    written_arguments,
    written_file,
)
from sessile.core.messages.request import (
    Notes,
    Request,
    Source,
    as_text,
    called,
    came_from,
    conversation,
    extra_of,
    failed_note,
    form_of,
    given,
    item_of,
    may_sign,
    media,
    media_url,
    one_of,
    others,
    refused,
    rest_of,
    sent_back,
    text_at,
    with_answer,
    with_extra,
)

API = "responses"
ROLES = ("user", "assistant", "system", "developer")
INPUT_PARTS = ("input_text", "input_image", "input_file")
OUTPUT_PARTS = ("output_text", "refusal")
ITEMS = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
    "custom_tool_call_output",
)
KEPT = ("compaction", "item_reference", "program", "configuration_update", "compaction_trigger")
"""Types of items that have no neutral form and are kept whole."""
KEPT_ENDINGS = ("_call", "_output", "_message", "_tools", "_request", "_response", "_summary")

_TARGET = "the OpenAI Responses API"
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


# -- from the API


def is_item(kind: object) -> bool:
    """Return whether a type is one of an item of this API."""
    return isinstance(kind, str) and (kind in ITEMS or kind in KEPT or kind.endswith(KEPT_ENDINGS))


def from_response(response: Message, at: str = "") -> list[Message]:
    """Return the neutral messages of a whole response."""
    where = f"{at}." if at else ""
    output = response.get("output")
    if not isinstance(output, list):
        raise refused(f"{where}output", output, "use a list of items")
    messages = from_responses(output, [f"{where}output[{number}]" for number in range(len(output))])
    last = next((number for number in reversed(range(len(messages))) if messages[number]["role"] == "assistant"), None)
    if last is None:
        messages.append({"role": "assistant", "content": []})
        last = len(messages) - 1
    status, details = response.get("status"), response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    stop = {"completed": "stop", "cancelled": "aborted", "failed": "error"}.get(str(status))
    if status == "incomplete":
        stop = "length" if reason == "max_output_tokens" else "error"
    members = answered(response, "openai-responses", stop, messages[last])
    error = response.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        members["errorMessage"] = error["message"]
    told = ("status", "incomplete_details", "usage", "service_tier", "created_at")
    messages[last] = with_answer(messages[last] | members, API, response, *told)
    return messages


def from_responses(items: Sequence[Any], places: Sequence[str] = ()) -> list[Message]:
    """Return the neutral messages of items of this API."""
    messages: list[Message] = []
    answer: list[Message] | None = None  # the content of the answer that may continue
    for number, item in enumerate(items):
        at = places[number] if places else f"[{number}]"
        where = f"{at}." if at else ""
        if not isinstance(item, dict):
            raise refused(at or "item", item, "use an item: an object with a type")
        kind = item.get("type", "message")
        if not is_item(kind):
            raise refused(f"{where}type", kind, one_of(ITEMS))
        if kind == "message" and item.get("role") not in ROLES:
            raise refused(f"{where}role", item.get("role"), one_of(ROLES))
        if kind in _OUTPUTS:
            messages.append(_result(item, where))
            answer = None
            continue
        if kind == "message" and (item["role"] != "assistant" or item.keys() == {"role", "content"}):
            messages.append(_message(item, where))
            answer = None
            continue
        role = item.get("role") if kind not in ITEMS else "assistant"
        if role in ROLES and role != "assistant":
            messages.append({"role": role, "content": [_whole(item)]})
            answer = None
            continue
        if answer is None:
            answer = []
            messages.append({"role": "assistant", "content": answer})
        answer += _answer(item, str(kind), where)
    return messages


def _whole(item: Message) -> Message:
    return {"type": "other", "api": API, "value": item}


def _answer(item: Message, kind: str, where: str) -> list[Message]:
    """Return the parts of an item of the assistant."""
    at = where.rstrip(".")
    if kind == "reasoning":
        return [_thought(item)]
    if kind in _CALLS:
        return [_call(item, kind, at)]
    if kind != "message":
        return [_whole(item)]
    content = item.get("content")
    unknown: Message = rest_of(item, "role", "content") or {}
    if isinstance(content, str):
        return [with_extra(text_block(content), API, {"$item": unknown, "$form": "text"})]
    if not isinstance(content, list):
        raise refused(f"{where}content", content, "use a text or a list of parts")
    parts: list[Message] = []
    for number, part in enumerate(content):
        place = f"{where}content[{number}]"
        name = part.get("type") if isinstance(part, dict) else None
        if name not in (*OUTPUT_PARTS, "input_text"):
            _check_part(part, name, place)
            return [_whole(item)]
        member = "refusal" if name == "refusal" else "text"
        made = text_block(text_at(part, member, place)) | ({"refusal": True} if name == "refusal" else {})
        extra: Message = rest_of(part, "type", member) or {}
        if name == "input_text":
            extra["$form"] = name
        parts.append(with_extra(made, API, extra | ({"$part": number} if number else {"$item": unknown})))
    return parts or [_whole(item)]


def _check_part(part: Any, kind: object, at: str) -> None:
    """Raise if a part of a message is not one of this API."""
    if not isinstance(part, dict):
        raise refused(at, part, "use a part: an object with a type")
    if not isinstance(kind, str) or not (kind in INPUT_PARTS or kind.endswith(("_text", "_content", "_screenshot"))):
        raise refused(f"{at}.type", kind, one_of((*INPUT_PARTS, *OUTPUT_PARTS)))


def _thought(item: Message) -> Message:
    summary = "\n\n".join(str(part.get("text", "")) for part in blocks_of(item.get("summary")))
    said = summary or "\n\n".join(str(part.get("text", "")) for part in blocks_of(item.get("content")))
    whole = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return with_extra({"type": "thinking", "thinking": said, "thinkingSignature": whole}, API, {})


def _call(item: Message, kind: str, at: str) -> Message:
    member = _CALLS[kind]
    call = {"type": "toolCall", "id": text_at(item, "call_id", at), "name": text_at(item, "name", at)}
    extra = rest_of(item, "type", "call_id", "name", member) or {}
    text = text_at(item, member, at)
    if kind == "custom_tool_call":
        return with_extra(call | {"arguments": {"input": text}, "custom": True}, API, extra)
    arguments, style = read_arguments(text)
    return with_extra(call | {"arguments": arguments}, API, extra | style)


def _message(item: Message, where: str) -> Message:
    content, role = item.get("content"), item["role"]
    extra: Message = rest_of(item, "role", "content") or {}
    if isinstance(content, list):
        content = [_part(part, f"{where}content[{number}]") for number, part in enumerate(content)]
    elif not isinstance(content, str):
        raise refused(f"{where}content", content, "use a text or a list of parts")
    if "type" not in item and (isinstance(content, list) or role == "system"):
        extra["$without"] = ["type"]
    return with_extra({"role": role, "content": content}, API, extra or None)


def _result(item: Message, where: str) -> Message:
    output = item.get("output")
    extra = rest_of(item, "type", "call_id", "output") or {}
    if isinstance(output, list):
        extra["$form"] = "parts"
        parts = [_part(part, f"{where}output[{number}]") for number, part in enumerate(output)]
    elif isinstance(output, str):
        parts = [text_block(output)]
    else:
        raise refused(f"{where}output", output, "use a text or a list of parts")
    if item["type"] == "custom_tool_call_output":
        extra["$item"] = item["type"]
    call_id = text_at(item, "call_id", where.rstrip("."))
    named = {"toolName": item["name"]} if isinstance(item.get("name"), str) else {}
    result = {"role": "toolResult", "toolCallId": call_id, **named, "content": parts, "isError": False}
    return with_extra(result, API, extra)


def _part(part: Any, at: str) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "refusal", "text"):
        member = "refusal" if kind == "refusal" else "text"
        made = text_block(text_at(part, member, at)) | ({"refusal": True} if kind == "refusal" else {})
        extra = (rest_of(part, "type", member) or {}) | ({} if kind == "input_text" else {"$form": kind})
        return with_extra(made, API, extra or None)
    if kind == "input_image":
        if isinstance(part.get("image_url"), str):
            extra = rest_of(part, "type", "image_url") or {}
            return with_extra({"type": "image", **media(part["image_url"])}, API, extra)
        made = {"type": "image", "fileId": text_at(part, "file_id", at)}
        return with_extra(made, API, rest_of(part, "type", "file_id") or {})
    if kind == "input_file":
        named = {"name": part["filename"]} if isinstance(part.get("filename"), str) else {}
        if isinstance(part.get("file_url"), str):
            made = {"type": "document", "url": part["file_url"], **named}
            return with_extra(made, API, rest_of(part, "type", "file_url", "filename"))
        made = read_file(part, at)
        extra = rest_of(part, "type", "file_id" if "fileId" in made else "file_data", "filename") or {}
        return with_extra(made, API, extra if extra or "fileId" in made else None)
    _check_part(part, kind, at)
    return _whole(part)


# -- to the API


def to_responses(source: Source) -> Request:
    """Convert a context for the OpenAI Responses API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: `input`, and `instructions` and `tools` if the session has a system prompt and tools. Its
        `notes` name what the API does not take.

    Example:
        ```python
        client.responses.create(model="gpt-5", **to_responses(session.context()))
        ```
    """
    notes = Notes()
    system, tools, messages, sources = given(source, API, notes=notes)
    request: Message = {"instructions": "\n\n".join(sendable(system))} if system else {}
    request["input"] = responses_items(messages, sources, notes)
    if tools:
        request["tools"] = [_function(tool) for tool in sendable(tools)]
    return Request(request, notes)


def _function(tool: Message) -> Message:
    named: Message = {name: tool[name] for name in ("name", "description") if name in tool}
    return {"type": "function", **named, "parameters": tool.get("parameters"), "strict": False}


def responses_items(
    messages: Iterable[Message], sources: Sequence[str | None] = (), notes: Notes | None = None
) -> list[Message]:
    """Return the messages as items of the OpenAI Responses API."""
    notes = Notes() if notes is None else notes
    messages = list(messages)
    calls = called(messages)
    items: list[Message] = []
    for message in conversation(messages, sources, notes):
        message = sendable(message)
        role, content = message["role"], message.get("content")
        if role == "toolResult":
            items.append(_sent_result(message, calls.get(str(message.get("toolCallId"))), notes))
        elif role == "assistant" and not isinstance(content, str):
            items += _sent_answer(message, notes)
        elif (item := _sent_message(message, notes)) is not None:
            items.append(item)
    return items


def _sent_message(message: Message, notes: Notes) -> Message | None:
    role, content = message["role"], message.get("content")
    back = sent_back(message, API)
    if isinstance(content, str):
        return {"role": role, "content": content, **back}
    parts = blocks_of(content)
    alone = others(parts[0], API) if len(parts) == 1 and parts[0].get("type") == "other" else None
    if isinstance(alone, dict) and is_item(alone.get("type")):
        return dict(alone)
    sent = [part for block in parts if (part := _sent_part(block, notes)) is not None]
    if not sent and not came_from(message, API):
        notes.add("dropped", f"an empty {role} message")
        return None
    typed = {} if came_from(message, API) else {"type": "message"}
    return {**typed, "role": role, "content": sent, **back}


def _sent_answer(message: Message, notes: Notes) -> list[Message]:
    items: list[Message] = []
    for part in blocks_of(message.get("content")):
        kind = part.get("type")
        back = sent_back(part, API)
        if kind == "text":
            _add_text(items, part, back)
        elif kind in ("thinking", "redactedThinking"):
            item = _sent_thought(part, message)
            if item is None:
                notes.add("dropped", f"a thought without a signature of {_TARGET}")
            else:
                items.append(item)
        elif kind == "toolCall":
            items.append(_sent_call(part, back))
        elif kind == "other" and (value := others(part, API)) is not None:
            items.append(dict(value))
        elif (text := as_text(part, notes, f"an answer in {_TARGET}")) is not None:
            _add_text(items, text_block(text), {})
    return items


def _add_text(items: list[Message], part: Message, back: Message) -> None:
    """Add a text to the answer: as a part of the item before it if it was one, else as an item of its own."""
    text, extra, form = str(part.get("text", "")), extra_of(part, API), form_of(part, API)
    if form == "text":
        items.append({"role": "assistant", "content": text} | item_of(part, API))
        return
    if part.get("refusal"):
        said: Message = {"type": "refusal", "refusal": text, **back}
    else:
        plain: Message = {"annotations": []} if not extra else {}
        said = {"type": form or "output_text", "text": text, **plain, **back}
    before = items[-1].get("content") if items and items[-1].get("role") == "assistant" else None
    if "$part" in extra and isinstance(before, list):
        items[-1] = {**items[-1], "content": [*before, said]}
        return
    item: Message = {"role": "assistant", "content": [said]}
    if "$item" in extra:
        items.append(item | item_of(part, API))
    elif text:
        items.append({"type": "message", **item, **_message_id(part)})


def _message_id(part: Message) -> Message:
    """Return the id of a message item, which the pi family stores as the signature of its text."""
    signature = part.get("textSignature")
    if not isinstance(signature, str) or "msg_" not in signature:
        return {}
    if signature.startswith("{"):
        told = read_object(signature)
        if told is None:
            return {}
        known = {name: told[name] for name in ("id", "phase") if isinstance(told.get(name), str)}
        return known | {"status": "completed"}
    return {"id": signature, "status": "completed"}


def _sent_thought(part: Message, message: Message) -> Message | None:
    signature, sealed = part.get("thinkingSignature"), part.get("encrypted")
    if not may_sign(message, part, API):
        return None
    if isinstance(signature, str) and signature.startswith("{"):
        item = read_object(signature)
        return item if item is not None and item.get("type") == "reasoning" else None
    if isinstance(sealed, str) and sealed:
        said = part.get("thinking")
        summary = [{"type": "summary_text", "text": said}] if said else []
        return {"type": "reasoning", "summary": summary, "encrypted_content": sealed, **sent_back(part, API)}
    return None


def _sent_call(part: Message, back: Message) -> Message:
    call_id, mark, item_id = str(part.get("id")).partition("|")  # the pi family stores both ids of a call in one
    named: Message = {"call_id": call_id, "name": part.get("name")}
    named |= {"id": item_id} if mark and not came_from(part, API) else {}
    if came_from(part, API):
        named["call_id"] = part.get("id")
    if part.get("custom"):
        return {"type": "custom_tool_call", **named, "input": input_of(part), **back}
    return {"type": "function_call", **named, "arguments": written_arguments(part, API), **back}


def _sent_result(message: Message, call: Message | None, notes: Notes) -> Message:
    content, extra = message.get("content"), extra_of(message, API)
    custom = extra.get("$item") == "custom_tool_call_output" or (call is not None and bool(call.get("custom")))
    call_id = message.get("toolCallId")
    failed_note(message, notes, _TARGET)
    if not came_from(message, API):
        call_id = str(call_id).partition("|")[0]
    parts = [text_block(content)] if isinstance(content, str) else blocks_of(content)
    output: Any
    if extra.get("$form") != "parts" and all(part.get("type") == "text" for part in parts):
        output = "\n".join(str(part.get("text", "")) for part in parts)
    else:
        output = [made for part in parts if (made := _sent_part(part, notes)) is not None]
    kind = "custom_tool_call_output" if custom else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": output, **sent_back(message, API)}


def _sent_part(part: Message, notes: Notes) -> Message | None:
    kind, back = part.get("type"), sent_back(part, API)
    if kind == "text":
        form = form_of(part, API) or "input_text"
        member = "refusal" if form == "refusal" else "text"
        return {"type": form, member: part.get("text", ""), **back}
    if kind == "image" and isinstance(part.get("fileId"), str) and came_from(part, API):
        return {"type": "input_image", "file_id": part["fileId"], **back}
    if kind == "image" and (url := media_url(part)) is not None:
        detail = {} if came_from(part, API) else {"detail": "auto"}
        return {"type": "input_image", **detail, "image_url": url, **back}
    if kind == "document":
        named = {"filename": part["name"]} if isinstance(part.get("name"), str) else {}
        if isinstance(part.get("fileId"), str) and came_from(part, API):
            return {"type": "input_file", "file_id": part["fileId"], **named, **back}
        if isinstance(part.get("data"), str):
            return {"type": "input_file", **written_file(part), **back}
        if isinstance(part.get("url"), str):
            return {"type": "input_file", "file_url": part["url"], **named, **back}
    if kind == "other" and (value := others(part, API)) is not None:
        return dict(value)
    text = as_text(part, notes, _TARGET)
    return None if text is None else {"type": "input_text", "text": text}
