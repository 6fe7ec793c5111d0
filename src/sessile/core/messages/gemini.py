"""The Gemini API: its contents as neutral messages, and a context as a request.

The results of one turn share a content, because Gemini counts them against the calls. The name of a result must be that of its
call. Calls often have no id there: they get one made of their name and a number, which is not sent back. Members may be
written in camel case or, as Python's client does, in snake case; they are sent in camel case.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sessile.core.messages.family import Message, blocks_of, joined_text, sendable, text_block
from sessile.core.messages.openai_chat import read_object
from sessile.core.messages.request import (
    Notes,
    Request,
    Source,
    absent_of,
    as_text,
    called,
    came_from,
    conversation,
    extra_of,
    form_of,
    given,
    item_of,
    leading,
    may_sign,
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
from sessile.core.usage import usage_of

API = "google"
ROLES = ("user", "model", "function")
PARTS = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
KEPT = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse", "audioTranscription")
"""Parts that have no neutral form and are kept whole."""

_TARGET = "the Gemini API"
_STOPS = {"STOP": "stop", "MAX_TOKENS": "length"}
_SIGNATURE = "thoughtSignature"
_SNAKE = re.compile(r"_([a-z])")
_ELSEWHERE = (
    *("candidates", "content", "modelVersion", "responseId", "sdkHttpResponse", "parsed", "index"),
    "automaticFunctionCallingHistory",
)
_FREE = ("args", "response", "partMetadata")  # objects whose members are not those of the API


# -- from the API


def from_answer(answer: Message, names: Names, at: str = "") -> list[Message]:
    """Return the neutral message of a whole answer, which must have one candidate."""
    where = f"{at}." if at else ""
    answer = _camel(answer)
    candidates = answer.get("candidates")
    if not isinstance(candidates, list) or len(candidates) != 1 or not isinstance(candidates[0], dict):
        count = len(candidates) if isinstance(candidates, list) else 0
        raise refused(f"{where}candidates", f"{count} of them", "append the content of one: candidates[0].content")
    content, counted = candidates[0].get("content", {}), answer.get("usageMetadata", {})
    place = f"{where}candidates[0].content"
    if not isinstance(content, dict):
        raise refused(place, content, "use a content: an object with parts")
    if content.get("role", "model") != "model":
        raise refused(f"{place}.role", content["role"], one_of(("model",)))
    if not isinstance(counted, dict):
        raise refused(f"{where}usageMetadata", counted, "use an object")
    (message,) = from_google({"role": "model", "parts": [], **content}, names, place)
    cached, output = counted.get("cachedContentTokenCount"), counted.get("candidatesTokenCount")
    thoughts = counted.get("thoughtsTokenCount")
    read = counted.get("promptTokenCount")
    usage = usage_of(
        {
            "input": read - cached if isinstance(read, int) and isinstance(cached, int) else read,
            "output": output + thoughts if isinstance(output, int) and isinstance(thoughts, int) else output,
            "cacheRead": cached,
            "total": counted.get("totalTokenCount"),
        }
    )
    reason = candidates[0].get("finishReason")
    calls = any(part.get("type") == "toolCall" for part in message["content"])
    stop = _STOPS.get(reason, "error") if isinstance(reason, str) else None
    known: Message = {
        "provider": "google",
        "api": "google-generative-ai",
        "model": answer.get("modelVersion"),
        "responseId": answer.get("responseId"),
        "stopReason": "toolUse" if stop == "stop" and calls else stop,
        "errorMessage": f"the model stopped: {reason}" if stop == "error" else None,
        "usage": None if usage is None else usage.stored(),
    }
    message |= {name: value for name, value in known.items() if value is not None}
    told = {**answer, **candidates[0]}
    return [with_answer(message, API, told, *(name for name in told if name not in _ELSEWHERE))]


def from_google(content: Message, names: Names, at: str = "") -> list[Message]:
    """Return the neutral messages of one content; `names` knows the calls before it."""
    where = f"{at}." if at else ""
    content = _camel(content)
    role, parts = content.get("role"), content.get("parts")
    if role not in (*ROLES, None):
        raise refused(f"{where}role", role, one_of(ROLES))
    if not isinstance(parts, list):
        raise refused(f"{where}parts", parts, "use a list of parts")
    kept = rest_of(content, "role", "parts") or {}
    if "role" not in content:
        kept["$without"] = ["role"]
    elif role == "function":
        kept["role"] = role
    if role == "model":
        found = [_part(part, f"{where}parts[{number}]", names) for number, part in enumerate(parts)]
        return [with_extra({"role": "assistant", "content": found}, API, kept or None)]
    if not any(isinstance(part, dict) and "functionResponse" in part for part in parts):
        found = [_part(part, f"{where}parts[{number}]", names) for number, part in enumerate(parts)]
        return [with_extra({"role": "user", "content": found}, API, kept or None)]
    pieces: list[Message] = []
    for part in parts:
        made = part.get("functionResponse") if isinstance(part, dict) else None
        names.answer(made.get("id") if isinstance(made, dict) else None)
    for number, part in enumerate(parts):
        place = f"{where}parts[{number}]"
        if isinstance(part, dict) and "functionResponse" in part:
            pieces.append(_result(part, place, names))
        elif pieces and pieces[-1]["role"] == "user":
            pieces[-1]["content"].append(_part(part, place, names))
        else:
            pieces.append({"role": "user", "content": [_part(part, place, names)]})
    for number, piece in enumerate(pieces):
        mine = extra_of(piece, API) | {"$part": number}
        piece["extra"] = {API: mine if number else mine | ({"$message": kept} if kept else {})}
    return pieces


class Names:
    """The calls of a conversation: ids for those that have none, and the call that a result without an id belongs to.

    A new id is the name of the function and a number.
    """

    def __init__(self, before: Iterable[Message] = ()) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self._turn = 0
        self._last_role: object = None
        # By name: the open calls of each turn that has any, which the latest ends. The answers to one request are a turn.
        self._open: dict[str, dict[int, dict[str, None]]] = defaultdict(dict)
        self._places: dict[str, tuple[str, int]] = {}
        self.see(before)

    def see(self, messages: Iterable[Message]) -> None:
        """Take note of the calls and results of messages."""
        for message in messages:
            role = message.get("role")
            if role == "assistant" and self._last_role != "assistant":
                self._turn += 1
            self._last_role = role
            if role == "toolResult":
                self.answer(message.get("toolCallId"))
            for call_id, call in called([message]).items():
                self._taken.add(call_id)
                name = str(call.get("name"))
                self.answer(call_id)
                self._open[name].setdefault(self._turn, {})[call_id] = None
                self._places[call_id] = name, self._turn

    def answer(self, call_id: object) -> None:
        """Take note of the result of a call."""
        name, turn = self._places.pop(call_id, (None, 0)) if isinstance(call_id, str) else (None, 0)
        if name is not None:
            calls = self._open[name][turn]
            del calls[str(call_id)]
            if not calls:
                del self._open[name][turn]

    def of_call(self, name: str) -> str:
        number = self._next.get(name, 1)
        while f"{name}_{number}" in self._taken:
            number += 1
        self._next[name] = number + 1
        self._taken.add(f"{name}_{number}")
        return f"{name}_{number}"

    def of_result(self, name: str) -> str:
        """Return the id of the first open call of that name in the latest turn that has one."""
        turns = self._open.get(name)
        if not turns:
            return self.of_call(name)
        call_id = next(iter(turns[next(reversed(turns))]))
        self.answer(call_id)
        return call_id


def _camel(value: Any, *, free: bool = False) -> Any:
    """Return an object of the API with members in camel case, without empty ones."""
    if isinstance(value, list):
        return [_camel(item, free=free) for item in value]
    if not isinstance(value, dict) or free:
        return value
    members = {_camel_name(name): item for name, item in value.items()}
    return {name: _camel(item, free=name in _FREE) for name, item in members.items() if item is not None}


def _camel_name(name: Any) -> Any:
    return _SNAKE.sub(lambda match: match[1].upper(), name) if isinstance(name, str) else name


def _part(part: Any, at: str, names: Names) -> Message:
    if not isinstance(part, dict):
        raise refused(at, part, "use a part: an object with one of " + ", ".join(PARTS))
    signature = part.get(_SIGNATURE)
    signed = {_SIGNATURE: signature} if _SIGNATURE in part else {}
    if "text" in part and part.get("thought"):
        thought = {"type": "thinking", "thinking": text_at(part, "text", at)}
        kept = rest_of(part, "text", "thought", _SIGNATURE)
        return with_extra(thought | ({"thinkingSignature": signature} if signed else {}), API, kept or {})
    if "text" in part:
        said = text_block(text_at(part, "text", at)) | ({"textSignature": signature} if signed else {})
        kept = rest_of(part, "text", _SIGNATURE)
        return with_extra(said, API, kept if kept or not signed else {})
    if isinstance(call := part.get("functionCall"), dict):
        name = text_at(call, "name", f"{at}.functionCall")
        arguments = call.get("args", {})
        if not isinstance(arguments, dict):
            raise refused(f"{at}.functionCall.args", arguments, "use an object")
        absent = [member for member in ("id", "args") if member not in call]
        call_id = call["id"] if isinstance(call.get("id"), str) else names.of_call(name)
        kept = _inner(part, call, "functionCall", ("id", "name", "args"), absent)
        made = {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments, **signed}
        return with_extra(made, API, kept or ({} if signed else None))
    if isinstance(data := part.get("inlineData"), dict):
        return _media(part, data, "inlineData", "data", at)
    if isinstance(data := part.get("fileData"), dict):
        return _media(part, data, "fileData", "fileUri", at)
    if any(name in part for name in KEPT) or part.keys() == {_SIGNATURE}:
        return {"type": "other", "api": API, "value": part}
    raise refused(at, ", ".join(map(str, part)) or "an empty part", "use a part with one of " + ", ".join(PARTS))


def _inner(part: Message, inner: Message, name: str, known: Sequence[str], absent: Sequence[str] = ()) -> Message:
    """Return what is kept of a part and of the object in it."""
    kept = rest_of(part, name, _SIGNATURE) or {}
    unknown = rest_of(inner, *known)
    return kept | ({"$item": unknown} if unknown else {}) | ({"$without": list(absent)} if absent else {})


def _media(part: Message, data: Message, name: str, member: str, at: str) -> Message:
    mime = data.get("mimeType")
    kind = str(mime).partition("/")[0]
    known: Message = {"mimeType": mime} if isinstance(mime, str) else {}
    known |= {"data" if member == "data" else "url": text_at(data, member, f"{at}.{name}")}
    if isinstance(data.get("displayName"), str):
        known["name"] = data["displayName"]
    kept = _inner(part, data, name, (member, "mimeType", "displayName"))
    kept |= {_SIGNATURE: part[_SIGNATURE]} if _SIGNATURE in part else {}
    made = {"type": kind if kind in ("image", "audio") else "document", **known}
    return with_extra(made, API, kept or ({} if member == "fileUri" else None))


_PLAIN = ("output", "result", "content", "error")


def _result(part: Message, at: str, names: Names) -> Message:
    made = part["functionResponse"]
    if not isinstance(made, dict):
        raise refused(f"{at}.functionResponse", made, "use an object")
    name, response = text_at(made, "name", f"{at}.functionResponse"), made.get("response", {})
    if not isinstance(response, dict):
        raise refused(f"{at}.functionResponse.response", response, "use an object")
    absent = [member for member in ("id", "response") if member not in made]
    kept = _inner(part, made, "functionResponse", ("id", "name", "response", "parts"), absent)
    kept |= {_SIGNATURE: part[_SIGNATURE]} if _SIGNATURE in part else {}
    member = next(iter(response)) if len(response) == 1 else None
    if member in _PLAIN and isinstance(response[member], str):
        content = [text_block(response[member])]
        kept |= {} if member in ("output", "error") else {"$form": member}
    else:
        content = [] if "response" in absent else [text_block(json.dumps(response, ensure_ascii=False))]
        kept |= {"$form": "json"}
    if isinstance(made.get("parts"), list):
        kept["$parts"] = True
        content += [
            _part(one, f"{at}.functionResponse.parts[{number}]", names) for number, one in enumerate(made["parts"])
        ]
    call_id = made["id"] if isinstance(made.get("id"), str) else names.of_result(name)
    result = {"role": "toolResult", "toolCallId": call_id, "toolName": name, "content": content}
    return with_extra(result | {"isError": member == "error"}, API, kept)


# -- to the API


def to_google(source: Source) -> Request:
    """Convert a context for the Gemini API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, and the system prompt and tools if the session has them. Its `notes` name
        what the API does not take.

    Example:
        ```python
        request = to_google(session.context())
        client.models.generate_content(model="gemini-2.5-pro", contents=request["contents"])
        ```
    """
    notes = Notes()
    system, tools, messages, sources = given(source, API, notes=notes)
    developers = leading(messages, sources, notes, _TARGET)
    first = len(developers)
    system = system + ["\n".join(texts) for texts in developers if texts]
    request: Message = {"systemInstruction": {"parts": [{"text": text} for text in sendable(system)]}} if system else {}
    request["contents"] = google_contents(messages[first:], sources[first:], notes)
    if tools:
        request["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in sendable(tools)]}]
    return Request(request, notes)


def _declaration(tool: Message) -> Message:
    declared = {name: tool[name] for name in ("name", "description") if name in tool}
    return declared | ({"parametersJsonSchema": tool["parameters"]} if "parameters" in tool else {})


def google_contents(
    messages: Iterable[Message], sources: Sequence[str | None] = (), notes: Notes | None = None
) -> list[Message]:
    """Return the messages in the shape of the Gemini API."""
    notes = Notes() if notes is None else notes
    messages = list(messages)
    calls = called(messages)
    contents: list[Message] = []
    after_results = False
    for message in conversation(messages, sources, notes):
        role, kept = message["role"], extra_of(message, API)
        number = kept.get("$part")
        if role == "toolResult":
            parts = _sent_result(message, calls.get(str(message.get("toolCallId"))), notes)
            joins = number > 0 if isinstance(number, int) else after_results
        else:
            if role in ("system", "developer"):
                notes.add("changed", f"a {role} message is sent as a user message: {_TARGET} has no such role")
            parts = _parts(message, notes)
            joins = isinstance(number, int) and number > 0
        after_results = role == "toolResult"
        named: Message = {"role": "model" if role == "assistant" else "user", "parts": parts}
        if joins and contents and contents[-1].get("role", "user") in ("user", "function"):
            contents[-1]["parts"] += parts
            continue
        members = kept.get("$message") if number is not None else kept
        of_api: Message = {"extra": {API: members}}
        if "role" in absent_of(of_api, API):
            del named["role"]
        named |= rest_of(sent_back(of_api, API), "parts") or {}
        if parts or came_from(message, API):
            contents.append(named)
        else:
            notes.add("dropped", f"an empty {role} message, which {_TARGET} does not take")
    return [sendable(content) for content in contents]


def _sent_result(message: Message, call: Message | None, notes: Notes) -> list[Message]:
    content, kept = message.get("content"), extra_of(message, API)
    absent, form = absent_of(message, API), form_of(message, API)
    text = joined_text(content)
    response: Any = {"error" if message.get("isError") else "output": text}
    if form == "json":
        written = read_object(text)
        response = response if written is None else written
    elif form is not None:
        response = {form: text}
    name = message.get("toolName") or (call or {}).get("name")
    made: Message = {"name": name, "response": response}
    if "response" in absent and not text:
        del made["response"]
    call_id = message.get("toolCallId")
    if call_id and "id" not in absent and "id" not in absent_of(call or {}, API):
        made = {"id": call_id, **made}
    beside = [part for part in blocks_of(content) if part.get("type") != "text"]
    inside = [sent for part in beside if (sent := _part_of(part, message, "toolResult", notes)) is not None]
    made |= item_of(message, API)
    back = sent_back(message, API)
    if kept.get("$parts"):
        return [{"functionResponse": {**made, "parts": inside}, **back}]
    if inside:
        notes.add("moved", f"parts of a tool result ({len(inside)}) were moved after it")
    return [{"functionResponse": made, **back}, *inside]


def _parts(message: Message, notes: Notes) -> list[Message]:
    content, role = message.get("content"), str(message["role"])
    if isinstance(content, str):
        return [{"text": content}] if content else []
    found = (_part_of(part, message, role, notes) for part in blocks_of(content))
    return [part for part in found if part is not None]


def _part_of(part: Message, message: Message, role: str, notes: Notes) -> Message | None:
    kind, item = part.get("type"), item_of(part, API)
    back = sent_back(part, API)
    own = came_from(part, API)
    signs = own or may_sign(message, part, API)
    if kind == "text":
        if part.get("refusal"):
            notes.add("changed", f"a refusal is sent as text: {_TARGET} has no refusals in messages")
        signature = (part.get("textSignature") or part.get(_SIGNATURE)) if signs else None
        if not part.get("text") and not own:
            return {"text": "", **back} if "text" in part and signature else None
        return _signed({"text": part.get("text", ""), **back}, signature)
    if kind in ("thinking", "redactedThinking"):
        signature = part.get("thinkingSignature")
        if own or (signature and signs and kind == "thinking"):
            return _signed({"thought": True, "text": part.get("thinking", ""), **back}, signature)
        notes.add("dropped", f"a thought without a signature of {_TARGET}")
        return None
    if kind == "toolCall" and role == "assistant":
        if part.get("custom"):
            notes.add("changed", f"the call {part.get('id')} has a text as its input; it is sent in an object")
        absent = absent_of(part, API)
        call = {"name": part.get("name")} | ({} if "args" in absent else {"args": part.get("arguments") or {}})
        named = {"id": part["id"], **call} if part.get("id") and "id" not in absent else call
        signature = (part.get(_SIGNATURE) or part.get("thought_signature")) if signs else None
        return _signed({"functionCall": named | item, **back}, signature)
    if kind in ("image", "audio", "document"):
        return _sent_media(part, item, back) or _instead(part, notes)
    if kind == "other" and (value := others(part, API)) is not None:
        return dict(value)
    return _instead(part, notes)


def _sent_media(part: Message, item: Message, back: Message) -> Message | None:
    typed = {"mimeType": part["mimeType"]} if isinstance(part.get("mimeType"), str) else {}
    named = {"displayName": part["name"]} if isinstance(part.get("name"), str) else {}
    if isinstance(part.get("data"), str):
        return {"inlineData": {**typed, "data": part["data"], **named, **item}, **back}
    url = media_url(part)
    return None if url is None else {"fileData": {**typed, "fileUri": url, **named, **item}, **back}


def _instead(part: Message, notes: Notes) -> Message | None:
    text = as_text(part, notes, _TARGET)
    return None if text is None else {"text": text}


def _signed(part: Message, signature: object) -> Message:
    return {**part, _SIGNATURE: signature} if signature else part
