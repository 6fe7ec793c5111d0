"""The OpenAI chat API: messages of a context as a request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sessile.core.messages.family import Message, blocks_of, convert_to_llm, joined_text, sendable, text_block
from sessile.core.messages.request import Request, Source, given

REASONING = ("reasoning_content", "reasoning", "reasoning_text")
"""Members in which servers send thoughts. The family stores the name of the member as the signature of the thought."""


def to_openai(source: Source) -> Request:
    """Convert a context for the OpenAI chat API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, and the system prompt and tools if the session has them.

    Example:
        ```python
        client.chat.completions.create(model="gpt-5", **to_openai(session.context()))
        ```
    """
    system, tools, messages = given(source)
    prompt = [{"role": "system", "content": text} for text in sendable(system)]
    request: Message = {"messages": [*prompt, *openai_messages(messages)]}
    if tools:
        request["tools"] = [{"type": "function", "function": _function(tool)} for tool in sendable(tools)]
    return Request(request)


def _function(tool: Message) -> Message:
    return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}


def openai_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages in the shape of the OpenAI chat API."""
    return [_openai(sendable(message)) for message in convert_to_llm(messages)]


def _openai(message: Message) -> Message:
    role, content = message["role"], message.get("content")
    if role == "toolResult":
        return {"role": "tool", "tool_call_id": message.get("toolCallId"), "content": joined_text(content)}
    if role == "assistant":
        return _openai_assistant(content)
    return {"role": role, "content": _openai_parts(content)}


def _openai_assistant(content: object) -> Message:
    blocks = [text_block(content)] if isinstance(content, str) else blocks_of(content)
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("arguments") or {}, ensure_ascii=False, separators=(",", ":")),
            },
        }
        for block in blocks
        if block.get("type") == "toolCall"
    ]
    answer: Message = {"role": "assistant", "content": joined_text(blocks) or None}
    for block in blocks:
        if block.get("type") == "thinking" and block.get("thinkingSignature") in REASONING:
            member = block["thinkingSignature"]
            answer[member] = f"{answer.get(member, '')}{block.get('thinking', '')}"
    return answer | {"tool_calls": calls} if calls else answer


def _openai_parts(content: object) -> Any:
    if isinstance(content, str):
        return content
    parts: list[Message] = []
    for block in blocks_of(content):
        if block.get("type") == "text":
            parts.append(text_block(str(block.get("text", ""))))
        elif block.get("type") == "image":
            url = f"data:{block.get('mimeType')};base64,{block.get('data')}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts
