"""Messages of a context in the shape of Google's Gemini API: `contents` with `parts`, the roles `user` and `model`.

Results of one turn share a content, as Gemini counts them against the calls. A thought goes back only with its
signature. Pairing and turns are hygiene's; the name of a result is that of its call, which Gemini compares.
"""

from __future__ import annotations

from collections.abc import Iterable

from sessile.core.llm import Message, blocks_of, convert_to_llm, joined_text, sendable


def to_google(messages: Iterable[Message]) -> list[Message]:
    """The contents of a Gemini request."""
    contents: list[Message] = []
    behind_results = False
    for message in convert_to_llm(messages):
        if message["role"] == "toolResult":
            if behind_results:
                contents[-1]["parts"].append(_response(message))
            else:
                contents.append({"role": "user", "parts": [_response(message)]})
            behind_results = True
            continue
        behind_results = False
        parts = _parts(message.get("content"))
        if parts:
            contents.append({"role": "model" if message["role"] == "assistant" else "user", "parts": parts})
    return [sendable(content) for content in contents]


def _response(message: Message) -> Message:
    member = "error" if message.get("isError") else "output"
    response: Message = {"name": message.get("toolName"), "response": {member: joined_text(message.get("content"))}}
    call_id = message.get("toolCallId")
    return {"functionResponse": {"id": call_id, **response} if call_id else response}


def _parts(content: object) -> list[Message]:
    if isinstance(content, str):
        return [{"text": content}] if content else []
    return [part for block in blocks_of(content) if (part := _part(block)) is not None]


def _part(block: Message) -> Message | None:
    kind = block.get("type")
    if kind == "text" and block.get("text"):
        return _signed({"text": block["text"]}, block.get("textSignature") or block.get("thoughtSignature"))
    if kind == "thinking" and block.get("thinkingSignature"):
        return _signed({"thought": True, "text": block.get("thinking", "")}, block["thinkingSignature"])
    if kind == "image":
        return {"inlineData": {"mimeType": block.get("mimeType"), "data": block.get("data")}}
    if kind == "toolCall":
        call = {"name": block.get("name"), "args": block.get("arguments") or {}}
        named = {"id": block["id"], **call} if block.get("id") else call
        return _signed({"functionCall": named}, block.get("thoughtSignature") or block.get("thought_signature"))
    return None


def _signed(part: Message, signature: object) -> Message:
    return {**part, "thoughtSignature": signature} if signature else part
