"""The OpenAI chat API: its messages as neutral ones, and a context as a request.

Arguments of calls are text there and an object here. How the text was written is kept, so that it comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sessile.core.codec import plain
from sessile.core.messages.family import (
    ATTACHED,
    SEE_BELOW,
    Message,
    blocks_of,
    joined_text,
    sendable,
    text_block,
)
from sessile.core.messages.request import (
    REASONING,
    Notes,
    Request,
    Source,
    absent_of,
    as_text,
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
from sessile.core.usage import Usage, usage_of
from sessile.errors import InvalidEntry

API = "openai"
ROLES = ("user", "assistant", "system", "developer", "tool", "function")
PARTS = ("text", "image_url", "input_audio", "file", "refusal")
KEPT = ("video_url", "audio_url", "input_video")
"""Types of parts that other servers have added; they are kept whole."""
MEMBERS = ("tool_calls", "function_call", "refusal", "audio", "name", "reasoning_details", *REASONING)
"""Members that only messages of this API have."""

_TARGET = "the OpenAI chat API"
_STOPS = {"stop": "stop", "length": "length", "tool_calls": "toolUse", "function_call": "toolUse"}
_STOPS |= {"content_filter": "error"}
_FORMATS = {"audio/wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3", "audio/x-wav": "wav"}


# -- arguments of calls

_STYLES: dict[str, dict[str, Any]] = {
    "compact": {"ensure_ascii": False, "separators": (",", ":")},
    "spaced": {"ensure_ascii": False},
    "compact ascii": {"separators": (",", ":")},
    "spaced ascii": {},
}


def read_arguments(text: str) -> tuple[Message, Message]:
    """Return the arguments of a call, and what is needed to write them as they were.

    Text that is not a JSON object becomes the member `arguments` of one.
    """
    arguments = read_object(text)
    for style, options in _STYLES.items():
        if arguments is not None and json.dumps(arguments, **options) == text:
            return arguments, {} if style == "compact" else {"$form": style}
    if arguments is None:
        arguments = {"arguments": text} if text else {}
    return arguments, {"$arguments": text}


def written_arguments(part: Message, api: str) -> str:
    """Return the arguments of a call as text; as they were if the API wrote them and they have not changed since."""
    arguments, extra = part.get("arguments") or {}, extra_of(part, api)
    text = extra.get("$arguments")
    if isinstance(text, str) and read_arguments(text)[0] == arguments:
        return text
    return json.dumps(arguments, **_STYLES.get(str(extra.get("$form")), _STYLES["compact"]))


def read_object(text: str) -> Message | None:
    """Return a JSON object as it is stored; `None` if the text is no such object."""
    try:
        value = plain(json.loads(text, parse_constant=_refuse)).value
    except (ValueError, RecursionError, InvalidEntry):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def input_of(part: Message) -> str:
    """Return the text of a call whose input is plain text."""
    arguments = part.get("arguments")
    text = arguments.get("input") if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else json.dumps(arguments, **_STYLES["compact"])


# -- from the API


def from_completion(completion: Message, at: str = "") -> list[Message]:
    """Return the neutral message of a whole completion, which must have one choice."""
    where = f"{at}." if at else ""
    choices = completion.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else 0
        raise refused(f"{where}choices", f"{count} of them", "append the message of one choice: choices[0].message")
    said = choices[0].get("message")
    if not isinstance(said, dict):
        raise refused(f"{where}choices[0].message", said, "use a message")
    (message,) = from_openai(said, f"{where}choices[0].message")
    reason = str(choices[0].get("finish_reason") or "")
    told = {**completion, **choices[0]}
    members = ("finish_reason", "logprobs", "usage", "service_tier", "system_fingerprint", "created")
    message |= answered(completion, "openai-completions", _STOPS.get(reason, reason) or None, message)
    return [with_answer(message, API, told, *members)]


def answered(answer: Message, api: str, stop: object, message: Message) -> Message:
    """Return the neutral members of an OpenAI answer: model, usage and stop reason. Cached tokens are no input."""
    reported = answer.get("usage")
    usage = usage_of(reported)
    if isinstance(reported, Mapping) and usage is not None:
        details = reported.get("prompt_tokens_details") or reported.get("input_tokens_details")
        details = details if isinstance(details, Mapping) else {}
        cached = (
            usage_of({"cacheRead": details.get("cached_tokens"), "cacheWrite": details.get("cache_write_tokens")})
            or Usage()
        )
        fresh = None if usage.input is None else usage.input - (cached.cache_read or 0) - (cached.cache_write or 0)
        fresh = None if fresh is None else max(fresh, 0)
        usage = Usage(fresh, usage.output, cached.cache_read, cached.cache_write, usage.total)
    calls = any(part.get("type") == "toolCall" for part in blocks_of(message.get("content")))
    known: Message = {
        "provider": "openai",
        "api": api,
        "model": answer.get("model"),
        "responseId": answer.get("id"),
        "stopReason": "toolUse" if stop == "stop" and calls else stop,
        "usage": None if usage is None else usage.stored(),
    }
    return {name: value for name, value in known.items() if value is not None}


def from_openai(message: Message, at: str = "") -> list[Message]:
    """Return the neutral message of one message of this API."""
    role = message.get("role")
    where = f"{at}." if at else ""
    if role not in ROLES:
        raise refused(f"{where}role", role, one_of(ROLES))
    if role in ("tool", "function"):
        return [_result(message, where)]
    if role == "assistant":
        return [_answer(message, where)]
    content = message.get("content")
    if isinstance(content, list):
        content = [_part(part, f"{where}content[{number}]") for number, part in enumerate(content)]
    elif not isinstance(content, str):
        raise refused(f"{where}content", content, "use a text or a list of parts")
    return [with_extra({"role": role, "content": content}, API, rest_of(message, "role", "content"))]


def _result(message: Message, where: str) -> Message:
    content = message.get("content")
    legacy = message["role"] == "function"
    id_name = "name" if legacy else "tool_call_id"
    extra = rest_of(message, "role", "content", id_name) or {}
    if isinstance(content, list):
        extra["$form"] = "parts"
        parts = [_part(part, f"{where}content[{number}]") for number, part in enumerate(content)]
    elif isinstance(content, str) or content is None:
        if content is None:
            extra["$form"] = "null" if "content" in message else "absent"
        parts = [] if content is None else [text_block(content)]
    else:
        raise refused(f"{where}content", content, "use a text or a list of parts")
    call_id = text_at(message, id_name, where.rstrip("."))
    named = {"toolName": call_id} if legacy else {}
    if legacy:
        extra["$item"] = "function"
    result = {"role": "toolResult", "toolCallId": call_id, **named, "content": parts, "isError": False}
    return with_extra(result, API, extra or None)


def _answer(message: Message, where: str) -> Message:
    content = message.get("content")
    reasoning = next((name for name in REASONING if isinstance(message.get(name), str)), None)
    taken = ["role", "content", *([reasoning] if reasoning else [])]
    parts: list[Message] = []
    extra: Message = {}
    if reasoning:
        parts.append({"type": "thinking", "thinking": message[reasoning], "thinkingSignature": reasoning})
    if isinstance(content, list):
        extra["$form"] = "parts"
        parts += [_part(part, f"{where}content[{number}]", inside=True) for number, part in enumerate(content)]
    elif content == "":
        extra["$form"] = "empty"
    elif isinstance(content, str):
        parts.append(text_block(content))
    elif content is not None:
        raise refused(f"{where}content", content, "use a text or a list of parts")
    elif "content" not in message:
        extra["$form"] = "absent"
    if isinstance(message.get("refusal"), str):
        taken.append("refusal")
        parts.append({**text_block(message["refusal"]), "refusal": True})
    if isinstance(message.get("audio"), dict):
        taken.append("audio")
        parts.append(_spoken(message["audio"]))
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        taken.append("tool_calls")
        parts += [_call(call, f"{where}tool_calls[{number}]") for number, call in enumerate(calls)]
    elif calls not in (None, []):
        raise refused(f"{where}tool_calls", calls, "use a list of calls")
    function = message.get("function_call")
    if isinstance(function, dict):
        taken.append("function_call")
        name = text_at(function, "name", f"{where}function_call")
        arguments, style = read_arguments(text_at(function, "arguments", f"{where}function_call"))
        call = {"type": "toolCall", "id": name, "name": name, "arguments": arguments}
        parts.append(with_extra(call, API, style | {"$item": "function_call"}))
    extra = (rest_of(message, *taken) or {}) | extra
    plain_text = isinstance(content, str) and content and len(parts) == 1 and not extra
    return (
        {"role": "assistant", "content": content}
        if plain_text
        else with_extra({"role": "assistant", "content": parts}, API, extra or None)
    )


def _spoken(audio: Message) -> Message:
    known = {name: audio[name] for name in ("id", "data", "transcript") if isinstance(audio.get(name), str)}
    return with_extra({"type": "audio", **known}, API, rest_of(audio, *known) or {})


def _call(call: Any, at: str) -> Message:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    if kind not in ("function", "custom") or not isinstance(call.get(kind), dict):
        raise refused(f"{at}.type", kind, one_of(("function", "custom")))
    made, call_id = call[kind], text_at(call, "id", at)
    extra = rest_of(call, "type", "id", kind) or {}
    named: Message = {"type": "toolCall", "id": call_id, "name": text_at(made, "name", f"{at}.{kind}")}
    if kind == "custom":
        named |= {"arguments": {"input": text_at(made, "input", f"{at}.custom")}, "custom": True}
        unknown = rest_of(made, "name", "input")
    else:
        arguments, style = read_arguments(text_at(made, "arguments", f"{at}.function"))
        named["arguments"] = arguments
        extra |= style
        unknown = rest_of(made, "name", "arguments")
    extra |= {"$item": unknown} if unknown else {}
    extra |= {"$without": ["type"]} if "type" not in call else {}
    return with_extra(named, API, extra or None)


def _part(part: Any, at: str, *, inside: bool = False) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return with_extra(text_block(text_at(part, "text", at)), API, rest_of(part, "type", "text"))
    if kind == "refusal":
        refusal = {**text_block(text_at(part, "refusal", at)), "refusal": True}
        return with_extra(
            refusal, API, (rest_of(part, "type", "refusal") or {}) | ({"$form": "part"} if inside else {})
        )
    if kind in KEPT:
        return {"type": "other", "api": API, "value": part}
    if kind not in PARTS:
        if not isinstance(part, dict):
            raise refused(at, part, "use a part: an object with a type")
        raise refused(f"{at}.type", kind, one_of(PARTS))
    value = part.get(kind)
    if kind == "image_url" and isinstance(value, str):  # some servers take it so
        return with_extra(
            {"type": "image", **media(value)}, API, (rest_of(part, "type", kind) or {}) | {"$form": "text"}
        )
    if not isinstance(value, dict):
        raise refused(f"{at}.{kind}", value, "use an object")
    extra = rest_of(part, "type", str(kind)) or {}
    if kind == "image_url":
        made = {"type": "image", **media(text_at(value, "url", f"{at}.image_url"))}
        unknown = rest_of(value, "url")
    elif kind == "input_audio":
        form = text_at(value, "format", f"{at}.input_audio")
        made = {"type": "audio", "data": text_at(value, "data", f"{at}.input_audio"), "mimeType": f"audio/{form}"}
        unknown = rest_of(value, "data", "format")
    else:
        made, unknown = read_file(value, f"{at}.file"), rest_of(value, "file_data", "file_id", "filename")
        extra |= {} if "fileId" not in made else {"$form": "id"}
    extra |= {"$item": unknown} if unknown else {}
    return with_extra(made, API, extra or None)


def read_file(value: Message, at: str) -> Message:
    """Return the document of a file: its data or the id under which OpenAI has it."""
    named = {"name": value["filename"]} if isinstance(value.get("filename"), str) else {}
    if isinstance(value.get("file_id"), str):
        return {"type": "document", "fileId": value["file_id"], **named}
    data = text_at(value, "file_data", at)
    found = media(data)
    return {"type": "document", **(found if "data" in found else {"data": data}), **named}


def written_file(part: Message) -> Message:
    """Return the members of a file for a document that has data."""
    data = media_url(part) if isinstance(part.get("mimeType"), str) else part["data"]
    named = {"filename": part["name"]} if isinstance(part.get("name"), str) else {}
    return {"file_data": data, **named}


# -- to the API


def to_openai(source: Source) -> Request:
    """Convert a context for the OpenAI chat API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, with the system prompt if the session has one, and its tools. Its `notes`
        name what the API does not take.

    Example:
        ```python
        client.chat.completions.create(model="gpt-5", **to_openai(session.context()))
        ```
    """
    notes = Notes()
    system, tools, messages, sources = given(source, API, in_place=True, notes=notes)
    prompt = [{"role": "system", "content": text} for text in sendable(system)]
    request: Message = {"messages": [*prompt, *openai_messages(messages, sources, notes)]}
    if tools:
        request["tools"] = [{"type": "function", "function": _function(tool)} for tool in sendable(tools)]
    return Request(request, notes)


def _function(tool: Message) -> Message:
    return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}


def openai_messages(
    messages: Iterable[Message], sources: Sequence[str | None] = (), notes: Notes | None = None
) -> list[Message]:
    """Return the messages in the shape of the OpenAI chat API."""
    notes = Notes() if notes is None else notes
    result: list[Message] = []
    attached: list[Message] = []  # parts of results, which follow the last result of the turn
    for message in conversation(list(messages), sources, notes):
        message = sendable(message)
        if message["role"] == "toolResult":
            result.append(_sent_result(message, attached, notes))
            continue
        if attached:
            result.append({"role": "user", "content": [text_block(ATTACHED), *attached]})
            attached = []
        if message["role"] == "assistant":
            result.append(_sent_answer(message, notes))
        else:
            parts = _sent_parts(message.get("content"), notes)
            result.append({"role": message["role"], "content": parts} | sent_back(message, API))
    return [*result, {"role": "user", "content": [text_block(ATTACHED), *attached]}] if attached else result


def _sent_result(message: Message, attached: list[Message], notes: Notes) -> Message:
    content, extra = message.get("content"), extra_of(message, API)
    back = sent_back(message, API)
    call_id = message.get("toolCallId")
    failed_note(message, notes, _TARGET)
    named = {"role": "function", "name": call_id} if extra.get("$item") == "function" else None
    result: Message = named or {"role": "tool", "tool_call_id": call_id}
    if extra.get("$form") == "parts":
        return {**result, "content": _sent_parts(content, notes)} | back
    if extra.get("$form") in ("null", "absent") and not content:
        return {**result, **({"content": None} if extra["$form"] == "null" else {})} | back
    moved = [part for part in blocks_of(content) if part.get("type") != "text"]
    parts = _sent_parts(moved, notes)
    if parts:
        notes.add("moved", f"parts of a tool result ({len(parts)}) were moved after the results")
        attached += parts
    return {**result, "content": joined_text(content) or (SEE_BELOW if parts else "")} | back


def _sent_answer(message: Message, notes: Notes) -> Message:
    content, extra = message.get("content"), extra_of(message, API)
    back = sent_back(message, API)
    if isinstance(content, str):
        return {"role": "assistant", "content": content or None, **back}
    answer: Message = {"role": "assistant", "content": None}
    calls: list[Message] = []
    said: list[Message] = []
    for part in blocks_of(content):
        kind = part.get("type")
        if kind == "thinking":
            _add_thought(answer, part, message, notes)
        elif kind == "toolCall":
            if extra_of(part, API).get("$item") == "function_call" and "function_call" not in answer:
                answer["function_call"] = {"name": part.get("name"), "arguments": written_arguments(part, API)}
            else:
                calls.append(_sent_call(part))
        elif kind == "audio" and came_from(part, API) and isinstance(part.get("id"), str) and "audio" not in answer:
            answer["audio"] = {"id": part["id"]}
        elif kind == "text" and part.get("refusal") and extra_of(part, API).get("$form") != "part":
            if "refusal" in answer:
                notes.add("merged", f"several refusals are sent as one: {_TARGET} has one in an answer")
            answer["refusal"] = "\n".join(
                [*([answer["refusal"]] if "refusal" in answer else []), str(part.get("text", ""))]
            )
        elif kind == "text" or (kind == "other" and others(part, API) is not None):
            if calls and part.get("text"):
                notes.add("moved", f"a text after a call is sent before it: {_TARGET} has calls at the end")
            said.append(part)
        elif (text := as_text(part, notes, f"an answer in {_TARGET}")) is not None:
            said.append(text_block(text))
    if extra.get("$form") == "parts":
        answer["content"] = _sent_parts(said, notes)
    else:
        answer["content"] = joined_text(said) or ("" if extra.get("$form") == "empty" else None)
        if extra.get("$form") == "absent" and answer["content"] is None:
            del answer["content"]
    return answer | ({"tool_calls": calls} if calls else {}) | back


def _add_thought(answer: Message, part: Message, message: Message, notes: Notes) -> None:
    member = part.get("thinkingSignature")
    if member in REASONING and isinstance(part.get("thinking"), str) and may_sign(message, part, API):
        answer[member] = answer.get(member, "") + part["thinking"]
    else:
        notes.add("dropped", f"a thought, which {_TARGET} does not take")


def _sent_call(part: Message) -> Message:
    kind = "custom" if part.get("custom") else "function"
    made: Message = {"name": part.get("name")}
    made |= {"input": input_of(part)} if kind == "custom" else {"arguments": written_arguments(part, API)}
    typed = {} if "type" in absent_of(part, API) else {"type": kind}
    return {"id": part.get("id"), **typed, kind: made | item_of(part, API)} | sent_back(part, API)


def _sent_parts(content: object, notes: Notes) -> Any:
    if isinstance(content, str):
        return content
    return [part for block in blocks_of(content) if (part := _sent_part(block, notes)) is not None]


def _sent_part(part: Message, notes: Notes) -> Message | None:
    kind, back = part.get("type"), sent_back(part, API)
    form, inner = form_of(part, API), item_of(part, API)
    if kind == "text" and part.get("refusal") and came_from(part, API):
        return {"type": "refusal", "refusal": part.get("text"), **back}
    if kind == "text":
        return text_block(str(part.get("text", ""))) | back
    if kind == "image" and (url := media_url(part)) is not None:
        if form == "text":
            return {"type": "image_url", "image_url": url, **back}
        return {"type": "image_url", "image_url": {"url": url, **inner}, **back}
    if kind == "audio" and isinstance(part.get("data"), str):
        mime = str(part.get("mimeType"))
        kept = mime.removeprefix("audio/")
        coded = kept if came_from(part, API) else _FORMATS.get(mime, kept)
        if came_from(part, API) or coded in _FORMATS.values():
            return {"type": "input_audio", "input_audio": {"data": part["data"], "format": coded, **inner}, **back}
    if kind == "document" and isinstance(part.get("data"), str):
        return {"type": "file", "file": {**written_file(part), **inner}, **back}
    if kind == "document" and isinstance(part.get("fileId"), str) and form == "id":
        named = {"filename": part["name"]} if "name" in part else {}
        return {"type": "file", "file": {"file_id": part["fileId"], **named, **inner}, **back}
    if kind == "other" and (value := others(part, API)) is not None:
        return dict(value)
    text = as_text(part, notes, _TARGET)
    return None if text is None else text_block(text)
