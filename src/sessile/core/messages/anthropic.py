"""The Anthropic Messages API: messages of a context as a request."""

from __future__ import annotations

from collections.abc import Iterable

from sessile.core.messages.family import Message, blocks_of, convert_to_llm, sendable, text_block
from sessile.core.messages.request import Request, Source, given


def to_anthropic(source: Source) -> Request:
    """Convert a context for the Anthropic Messages API.

    Args:
        source: A `SessionContext`, or its messages.

    Returns:
        The members of a request: the messages, and the system prompt and tools if the session has them.

    Example:
        ```python
        client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, **to_anthropic(session.context()))
        ```
    """
    system, tools, messages = given(source)
    request: Message = {"system": [text_block(text) for text in sendable(system)]} if system else {}
    request["messages"] = anthropic_messages(messages)
    if tools:
        request["tools"] = [_tool(tool) for tool in sendable(tools)]
    return Request(request)


def _tool(tool: Message) -> Message:
    described: Message = {name: tool[name] for name in ("name", "description") if name in tool}
    return {**described, "input_schema": tool.get("parameters") or {"type": "object"}}


def anthropic_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages in the shape of the Anthropic Messages API."""
    result: list[Message] = []
    for message in convert_to_llm(messages):
        role = message["role"]
        if role == "toolResult":
            block = {
                "type": "tool_result",
                "tool_use_id": message.get("toolCallId"),
                "content": _anthropic_blocks(message.get("content")),
                "is_error": bool(message.get("isError")),
            }
            if result and result[-1]["role"] == "user" and _holds_results(result[-1]):
                result[-1]["content"].append(block)
            else:
                result.append({"role": "user", "content": [block]})
            continue
        blocks = _anthropic_blocks(message.get("content"))
        if blocks:
            result.append({"role": "assistant" if role == "assistant" else "user", "content": blocks})
    return [sendable(message) for message in result]


def _holds_results(message: Message) -> bool:
    return all(block.get("type") == "tool_result" for block in message["content"])


def _anthropic_blocks(content: object) -> list[Message]:
    if isinstance(content, str):
        return [text_block(content)] if content else []
    blocks = []
    for block in blocks_of(content):
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            blocks.append(text_block(block["text"]))
        elif kind == "thinking" and (block.get("thinkingSignature") or block.get("unsigned")):
            signed = {"thinking": block.get("thinking", ""), "signature": block.get("thinkingSignature") or ""}
            blocks.append({"type": "thinking", **signed})
        elif kind == "redactedThinking":
            blocks.append({"type": "redacted_thinking", "data": block.get("data")})
        elif kind == "image":
            source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
            blocks.append({"type": "image", "source": source})
        elif kind == "toolCall":
            call = {"id": block.get("id"), "name": block.get("name"), "input": block.get("arguments") or {}}
            blocks.append({"type": "tool_use", **call})
    return blocks
