"""Content of MyAgents' messages as ours, and back: texts, thinking, and tools with their results.

A tool and its result are one block there, a call and a message that answers it here. Blocks of any other kind pass as they
are. Blocks are never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sessile.core.codec import encode_plain
from sessile.core.plain import plain
from sessile.formats.myagents.types import Content, Json, decode_content


def to_native(content: Content | None) -> str | list[Any]:
    """Content as our messages hold it."""
    if isinstance(content, list):
        return [_to_block(block) for block in content]
    return content or ""


def _to_block(block: Any) -> Any:
    tool = _tool_of(block)
    if tool is None:
        return block
    arguments = tool.get("input")
    return {
        "type": "toolCall",
        "id": tool.get("id"),
        "name": tool.get("name"),
        "arguments": arguments if isinstance(arguments, Mapping) else {},
    }


def _tool_of(block: Any) -> Mapping[str, Any] | None:
    """The tool of a block: below `tool` as MyAgents writes it, or in the block itself as the model gave it."""
    if not isinstance(block, Mapping) or block.get("type") != "tool_use":
        return None
    tool = block.get("tool")
    return tool if isinstance(tool, Mapping) else block


def results_in(content: Content | None, timestamp: int | None) -> list[Json]:
    """The messages that answer the tool calls in a content."""
    found = []
    for block in content if isinstance(content, list) else ():
        tool = _tool_of(block)
        if tool is None or not isinstance(tool.get("result"), str):
            continue
        message: Json = {
            "role": "toolResult",
            "toolCallId": tool.get("id"),
            "toolName": tool.get("name"),
            "content": [{"type": "text", "text": tool["result"]}],
            "isError": tool.get("isError") is True,
        }
        found.append(message if timestamp is None else message | {"timestamp": timestamp})
    return found


def to_stored(content: object, results: Sequence[Mapping[str, Any]] = ()) -> str:
    """Content of ours as a message of MyAgents stores it: plain text where it is nothing else, else its blocks as JSON."""
    blocks = (
        content
        if isinstance(content, list)
        else [{"type": "text", "text": content if isinstance(content, str) else ""}]
    )
    if all(_is_text(block) for block in blocks) and len(blocks) <= 1:
        text = "".join(block["text"] for block in blocks)
        if isinstance(decode_content(text), str):
            return text  # one that looks like blocks would be read as such
    answers = {result.get("toolCallId"): result for result in results}
    return encode_plain(plain([_from_block(block, answers) for block in blocks]).value).decode("utf-8")


def _is_text(block: object) -> bool:
    return isinstance(block, Mapping) and block.keys() == {"type", "text"} and isinstance(block["text"], str)


def _from_block(block: Any, answers: Mapping[Any, Mapping[str, Any]]) -> Any:
    if not isinstance(block, Mapping) or block.get("type") != "toolCall":
        return block
    tool = {"id": block.get("id"), "name": block.get("name"), "input": block.get("arguments")}
    answer = answers.get(block.get("id"))
    if answer is not None:
        tool |= {"result": _text_of(answer.get("content")), "isError": answer.get("isError") is True}
    return {"type": "tool_use", "tool": tool}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content if isinstance(content, list) else ()
    return "\n".join(block["text"] for block in blocks if isinstance(block, Mapping) and "text" in block)
