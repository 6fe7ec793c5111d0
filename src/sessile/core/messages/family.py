"""The wrappers of the pi family: turn the messages of a context into plain user, assistant and tool result messages.

Summaries and custom messages become user messages, shell and Python runs become text. What the model should not see is left
out.
"""

from __future__ import annotations

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
ATTACHED = "Images from the tool results above:"
SEE_BELOW = "(see the images below)"

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
    if message.get("excludeFromContext"):
        return None
    if role == "toolResult" and message.get("prunedAt"):
        return {**message, "content": [text_block(joined_text(message.get("content")) or PRUNED)]}
    if role in _PASSED:
        return message
    convert = _CONVERSIONS.get(role) if isinstance(role, str) else None
    content = convert(message) if convert else None
    if content is None:
        return None
    return {"role": "user", "content": content, "timestamp": message.get("timestamp")}


def _custom(message: Message) -> list[Message]:
    content = message.get("content")
    return [text_block(content)] if isinstance(content, str) else blocks_of(content)


def _compaction(message: Message) -> list[Message]:
    return [text_block(f"{COMPACTION_PREFIX}{message.get('summary') or ''}{COMPACTION_SUFFIX}")]


def _branch(message: Message) -> list[Message]:
    return [text_block(f"{BRANCH_PREFIX}{message.get('summary') or ''}{BRANCH_SUFFIX}")]


def _bash(message: Message) -> list[Message]:
    text = f"Ran `{message.get('command', '')}`\n{_fenced(message.get('output'))}"
    text += _outcome(message, "(command cancelled)", "Command exited with code")
    if message.get("truncated") and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return [text_block(text)]


def _python(message: Message) -> list[Message]:
    output = message.get("output")
    text = (
        f"Ran Python:\n```python\n{message.get('code', '')}\n```\n" + ("Output:\n" if output else "") + _fenced(output)
    )
    return [text_block(text + _outcome(message, "(execution cancelled)", "Execution failed with code"))]


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
    return [text_block(f"<system-reminder>\n{body}\n</system-reminder>"), *images]


_CONVERSIONS = {
    "custom": _custom,
    "hookMessage": _custom,
    "compactionSummary": _compaction,
    "branchSummary": _branch,
    "bashExecution": _bash,
    "pythonExecution": _python,
    "fileMention": _files,
}


def text_block(text: str) -> Message:
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
