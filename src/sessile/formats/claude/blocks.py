"""Content of messages as Claude Code stores it, and as we do; unknown blocks pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessile.formats.claude.rows import OBJECT, mapping_of, text_of

Block = dict[str, Any]


def blocks_of(content: object) -> list[Mapping[str, Any]]:
    """The blocks of a content that has any."""
    return [block for block in content if isinstance(block, OBJECT)] if isinstance(content, list) else []


def plain(content: object) -> str:
    """The text of a content, without its other blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(text for block in blocks_of(content) if (text := text_of(block, "text")))


def from_content(content: object) -> Any:
    """Their content as ours."""
    return content if isinstance(content, str) else from_blocks(content)


def from_blocks(content: object) -> list[Block]:
    """Their blocks as ours."""
    return [_from(block) for block in blocks_of(content)]


def to_blocks(content: object) -> list[Block]:
    """Our content as their blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_to(block) for block in blocks_of(content)]


def _from(block: Mapping[str, Any]) -> Block:
    kind = block.get("type")
    source = mapping_of(block, "source")
    if kind == "thinking":
        return {"type": "thinking", "thinking": block.get("thinking"), "thinkingSignature": block.get("signature")}
    if kind == "redacted_thinking":
        return {"type": "thinking", "thinking": "", "redacted": True, "thinkingSignature": block.get("data")}
    if kind == "tool_use":
        return {"type": "toolCall", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
    if kind == "image" and isinstance(source.get("data"), str):
        return {"type": "image", "data": source["data"], "mimeType": text_of(source, "media_type") or "image/png"}
    if kind == "tool_result":
        return {"type": "text", "text": plain(block.get("content"))}
    return dict(block)


def _to(block: Mapping[str, Any]) -> Block:
    kind = block.get("type")
    if kind == "thinking" and block.get("redacted"):
        return {"type": "redacted_thinking", "data": block.get("thinkingSignature") or ""}
    if kind == "thinking":
        sealed = block.get("thinkingSignature") or ""
        return {"type": "thinking", "thinking": block.get("thinking") or "", "signature": sealed}
    if kind == "toolCall":
        return {"type": "tool_use", "id": block.get("id"), "name": block.get("name"), "input": block.get("arguments")}
    if kind == "image" and isinstance(block.get("data"), str):
        source = {"type": "base64", "media_type": block.get("mimeType"), "data": block["data"]}
        return {"type": "image", "source": source}
    return dict(block)
