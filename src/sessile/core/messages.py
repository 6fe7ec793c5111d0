"""Convert the messages of a context for models: the wrappers of the pi family, then the shape of a provider's API.

`convert_to_llm` leaves only `user`, `assistant`, `toolResult`, `system` and `developer` messages: summaries and custom
messages become user messages, shell and Python runs become text. `to_anthropic`, `to_openai` and `to_google` return the
messages of a request. Tool calls must be paired and turns ordered before, by `core/hygiene.py`.

Gemini: the results of one turn share a content, because Gemini counts them against the calls. A thought is sent only with its
signature. The name of a result must be that of its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sessile.core.text import without_surrogates

Message = dict[str, Any]

COMPACTION_PREFIX = (
    "The conversation history before this point was compacted into the following summary:\n\n<summary>\n"
)
COMPACTION_SUFFIX = "\n</summary>"
BRANCH_PREFIX = "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n"
BRANCH_SUFFIX = "</summary>"
PRUNED = "[Output truncated]"

_PASSED = ("user", "assistant", "toolResult", "system", "developer")


def convert_to_llm(messages: Iterable[Message]) -> list[Message]:
    """Convert messages of a context to plain user, assistant and tool result messages.

    Messages of other roles become user messages, or are left out if the model should not see them.

    Args:
        messages: The messages of a `SessionContext`.

    Example:
        ```python
        messages = convert_to_llm(session.context().messages)
        ```
    """
    return [converted for message in messages if (converted := _convert(message)) is not None]


def _convert(message: Message) -> Message | None:
    role = message.get("role")
    if role == "toolResult" and message.get("prunedAt"):
        return {**message, "content": [_text(joined_text(message.get("content")) or PRUNED)]}
    if role in _PASSED:
        return message
    convert = _CONVERSIONS.get(role) if isinstance(role, str) else None
    content = convert(message) if convert else None
    if content is None:
        return None
    return {"role": "user", "content": content, "timestamp": message.get("timestamp")}


def _custom(message: Message) -> list[Message]:
    content = message.get("content")
    return [_text(content)] if isinstance(content, str) else blocks_of(content)


def _compaction(message: Message) -> list[Message]:
    return [_text(f"{COMPACTION_PREFIX}{message.get('summary') or ''}{COMPACTION_SUFFIX}")]


def _branch(message: Message) -> list[Message]:
    return [_text(f"{BRANCH_PREFIX}{message.get('summary') or ''}{BRANCH_SUFFIX}")]


def _bash(message: Message) -> list[Message] | None:
    if message.get("excludeFromContext"):
        return None
    text = f"Ran `{message.get('command', '')}`\n{_fenced(message.get('output'))}"
    text += _outcome(message, "(command cancelled)", "Command exited with code")
    if message.get("truncated") and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return [_text(text)]


def _python(message: Message) -> list[Message] | None:
    if message.get("excludeFromContext"):
        return None
    output = message.get("output")
    text = (
        f"Ran Python:\n```python\n{message.get('code', '')}\n```\n" + ("Output:\n" if output else "") + _fenced(output)
    )
    return [_text(text + _outcome(message, "(execution cancelled)", "Execution failed with code"))]


def _fenced(output: object) -> str:
    return f"```\n{output}\n```" if output else "(no output)"


def _outcome(message: Message, cancelled: str, failed: str) -> str:
    if message.get("cancelled"):
        return f"\n\n{cancelled}"
    code = message.get("exitCode")
    return f"\n\n{failed} {code}" if code else ""


def _files(message: Message) -> list[Message]:
    files = blocks_of(message.get("files"))
    blocks = [f'<file path="{file.get("path", "")}">\n{file.get("content") or ""}\n</file>' for file in files]
    images = [file["image"] for file in files if isinstance(file.get("image"), dict)]
    body = "\n\n".join(blocks)
    return [_text(f"<system-reminder>\n{body}\n</system-reminder>"), *images]


_CONVERSIONS = {
    "custom": _custom,
    "hookMessage": _custom,
    "compactionSummary": _compaction,
    "branchSummary": _branch,
    "bashExecution": _bash,
    "pythonExecution": _python,
    "fileMention": _files,
}


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def blocks_of(content: object) -> list[Message]:
    """Return the blocks of a content, without invalid ones."""
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def joined_text(content: object) -> str:
    """Return the text of a content, one line per block."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in blocks_of(content) if block.get("type") == "text")


def sendable(value: Any) -> Any:
    """Return the value without lone surrogates in any text, which no provider accepts."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {sendable(name): sendable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [sendable(item) for item in value]
    return value


def to_anthropic(messages: Iterable[Message]) -> list[Message]:
    """Convert messages of a context for the Anthropic API. The tool results of one turn share a user message.

    Args:
        messages: The messages of a `SessionContext`.

    Example:
        ```python
        client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, messages=to_anthropic(context.messages))
        ```
    """
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
        return [_text(content)] if content else []
    blocks = []
    for block in blocks_of(content):
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            blocks.append(_text(block["text"]))
        elif kind == "thinking" and block.get("thinkingSignature"):
            signed = {"thinking": block.get("thinking", ""), "signature": block["thinkingSignature"]}
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


def to_openai(messages: Iterable[Message]) -> list[Message]:
    """Convert messages of a context for the OpenAI chat API.

    Args:
        messages: The messages of a `SessionContext`.

    Example:
        ```python
        client.chat.completions.create(model="gpt-5", messages=to_openai(context.messages))
        ```
    """
    return [_openai(sendable(message)) for message in convert_to_llm(messages)]


def _openai(message: Message) -> Message:
    role, content = message["role"], message.get("content")
    if role == "toolResult":
        return {"role": "tool", "tool_call_id": message.get("toolCallId"), "content": joined_text(content)}
    if role == "assistant":
        return _openai_assistant(content)
    return {"role": role, "content": _openai_parts(content)}


def _openai_assistant(content: object) -> Message:
    blocks = [_text(content)] if isinstance(content, str) else blocks_of(content)
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
    return answer | {"tool_calls": calls} if calls else answer


def _openai_parts(content: object) -> Any:
    if isinstance(content, str):
        return content
    parts: list[Message] = []
    for block in blocks_of(content):
        if block.get("type") == "text":
            parts.append(_text(str(block.get("text", ""))))
        elif block.get("type") == "image":
            url = f"data:{block.get('mimeType')};base64,{block.get('data')}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def to_google(messages: Iterable[Message]) -> list[Message]:
    """Convert messages of a context to contents for the Gemini API.

    Args:
        messages: The messages of a `SessionContext`.

    Example:
        ```python
        client.models.generate_content(model="gemini-2.5-pro", contents=to_google(context.messages))
        ```
    """
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
