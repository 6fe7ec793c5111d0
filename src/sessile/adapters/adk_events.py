"""Events of Google's Agent Development Kit as entries of ours, and back.

    content with parts        a message of the user or of the assistant; blocks in our shapes
    function responses        tool results, one for each
    everything else           a custom entry

Rules: an event is what its JSON says, with the names that it has on the wire. What the message tells anyway need not be kept
beside it: `rest_of` gives what is missing to the event, `whole` puts it together again.
"""

from __future__ import annotations

from typing import Any, cast

from sessile.core.codec import encode
from sessile.core.entries import Payload

Json = dict[str, Any]

_PLAIN, _URL_SAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")


def entries_of(event: Json) -> list[Payload]:
    """The entries that an event becomes: of several tool results one for each, and always at least one."""
    messages = _messages(event)
    return [{"type": "message", "message": message} for message in messages] or [
        {"type": "custom", "customType": "adk.event"}
    ]


def rest_of(event: Json, entry: Payload) -> tuple[Json, str | None]:
    """What is left of an event if the entry tells its content, and how it does; the whole event if it does not."""
    for how in ("parts", "response"):
        rest = _without_content(event, how)
        if rest is not None and "message" in entry and whole(rest, how, entry) == event:
            return rest, how
    return event, None


def whole(rest: Json, how: str, entry: Payload) -> Json:
    """The event again, of its rest and its entry."""
    content, told = rest["content"], entry["message"]["content"]
    if how == "parts":
        return {**rest, "content": {**content, "parts": [_part(block) for block in told]}}
    (part,) = content["parts"]
    response = dict.fromkeys(part["functionResponse"]["response"], told[0]["text"])
    return {**rest, "content": {**content, "parts": [_answering(part, response)]}}


def _without_content(event: Json, how: str) -> Json | None:
    """An event without what its message tells: all parts, or the text of its only tool result."""
    content = event.get("content", {})
    if how == "parts":
        return {**event, "content": {name: value for name, value in content.items() if name != "parts"}}
    parts = content.get("parts") or []
    response = parts[0].get("functionResponse", {}).get("response") or {} if len(parts) == 1 else {}
    if len(response) != 1:
        return None
    return {**event, "content": {**content, "parts": [_answering(parts[0], dict.fromkeys(response))]}}


def _answering(part: Json, response: Json) -> Json:
    return {**part, "functionResponse": {**part["functionResponse"], "response": response}}


def _messages(event: Json) -> list[Json]:
    parts = event.get("content", {}).get("parts") or []
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    blocks = [_block(part) for part in parts if "functionResponse" not in part]
    at = {"timestamp": int(event["timestamp"] * 1000)}
    if results:
        messages = [{**_result(result), **at} for result in results]
        messages[-1]["content"] += blocks
        return messages
    if not blocks and "errorCode" not in event:
        return []
    if "user" in (event.get("author"), event.get("content", {}).get("role")):
        return [{"role": "user", "content": blocks, **at}]
    return [{**_answer(event, blocks), **at}]


def _answer(event: Json, blocks: list[Json]) -> Json:
    answer: Json = {"role": "assistant", "content": blocks, "api": "google-generative-ai", "provider": "google"}
    answer |= {"model": event.get("modelVersion") or "unknown", "usage": _usage(event.get("usageMetadata") or {})}
    calls = any(block["type"] == "toolCall" for block in blocks)
    answer["stopReason"] = "length" if event.get("finishReason") == "MAX_TOKENS" else "toolUse" if calls else "stop"
    if "errorCode" in event:
        answer |= {"stopReason": "error", "errorMessage": event.get("errorMessage") or event["errorCode"]}
    return answer


def _usage(counted: Json) -> Json:
    """Tokens as we count them: those from the cache are no input, thoughts are output; what nobody counted is left out."""
    cached = counted.get("cachedContentTokenCount")
    usage = {"cacheRead": cached, "totalTokens": counted.get("totalTokenCount")}
    if "promptTokenCount" in counted:
        usage["input"] = counted["promptTokenCount"] - (cached or 0)
    if "candidatesTokenCount" in counted:
        usage["output"] = counted["candidatesTokenCount"] + (counted.get("thoughtsTokenCount") or 0)
    return {name: count for name, count in usage.items() if count is not None}


def _result(result: Json) -> Json:
    response = result.get("response") or {}
    name, told = next(iter(response.items()), ("", "")) if len(response) == 1 else ("", None)
    text = told if isinstance(told, str) else encode(response).decode()
    message = {"role": "toolResult", "toolCallId": result.get("id") or "", "toolName": result.get("name") or ""}
    return {**message, "content": [{"type": "text", "text": text}], "isError": name == "error"}


def _block(part: Json) -> Json:
    """A part as one of our blocks; what we have none for stays as it is."""
    sealed = {"thoughtSignature": part["thoughtSignature"]} if "thoughtSignature" in part else {}
    if part.get("thought") and "text" in part:
        return {"type": "thinking", "thinking": part["text"], **sealed}
    if "text" in part:
        return {"type": "text", "text": part["text"], **sealed}
    if "functionCall" in part:
        call = part["functionCall"]
        return {
            "type": "toolCall",
            "id": call.get("id"),
            "name": call.get("name"),
            "arguments": call.get("args"),
            **sealed,
        }
    if str(part.get("inlineData", {}).get("mimeType")).startswith("image/"):
        picture = part["inlineData"]
        return {"type": "image", "data": picture["data"].translate(_PLAIN), "mimeType": picture["mimeType"], **sealed}
    return {"type": next(iter(part), "nothing"), "part": part}


def _part(block: Json) -> Json:
    """The part that `_block` has made a block of."""
    sealed = {"thoughtSignature": block["thoughtSignature"]} if "thoughtSignature" in block else {}
    kind = block["type"]
    if kind == "thinking":
        return {"text": block["thinking"], "thought": True, **sealed}
    if kind == "text":
        return {"text": block["text"], **sealed}
    if kind == "toolCall":
        call = {"id": block["id"], "name": block["name"], "args": block["arguments"]}
        return {"functionCall": {name: value for name, value in call.items() if value is not None}, **sealed}
    if kind == "image":
        return {"inlineData": {"data": block["data"].translate(_URL_SAFE), "mimeType": block["mimeType"]}, **sealed}
    return cast(Json, block["part"])
