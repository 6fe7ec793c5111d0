"""The Gemini API: messages of a context as a request.

The results of one turn share a content, because Gemini counts them against the calls. A thought is sent only with its
signature. The name of a result must be that of its call.
"""

from __future__ import annotations

from collections.abc import Iterable

from sessile.core.messages.family import Message, blocks_of, convert_to_llm, joined_text, sendable
from sessile.core.messages.request import Request, Source, given


def to_google(source: Source) -> Request:
    """Convert a context for the Gemini API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, and the system prompt and tools if the session has them.

    Example:
        ```python
        request = to_google(session.context())
        client.models.generate_content(model="gemini-2.5-pro", contents=request["contents"])
        ```
    """
    system, tools, messages = given(source)
    request: Message = {"systemInstruction": {"parts": [{"text": text} for text in sendable(system)]}} if system else {}
    request["contents"] = google_contents(messages)
    if tools:
        request["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in sendable(tools)]}]
    return Request(request)


def _declaration(tool: Message) -> Message:
    declared = {name: tool[name] for name in ("name", "description") if name in tool}
    return declared | ({"parametersJsonSchema": tool["parameters"]} if "parameters" in tool else {})


def google_contents(messages: Iterable[Message]) -> list[Message]:
    """Return the messages in the shape of the Gemini API."""
    contents: list[Message] = []
    after_results = False
    for message in convert_to_llm(messages):
        if message["role"] == "toolResult":
            if after_results:
                contents[-1]["parts"].append(_response(message))
            else:
                contents.append({"role": "user", "parts": [_response(message)]})
            after_results = True
            continue
        after_results = False
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
