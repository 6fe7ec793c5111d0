"""A conversation as a rollout that Codex resumes, in the older form: no ordinals, so that Codex goes on in that form.

    session_meta                                id, folder and time
    response_item                               what the model sees
    event_msg user_message, agent_message       what the screen shows

The file is named by a UUIDv7 and lies in the folder of its day. Reasoning is kept only if the session comes from Codex: its
content is sealed for one account. Thinking of other models is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessile.agents.base import Agent, Entry, Placed, row_of
from sessile.core.codec import encode_plain
from sessile.core.conversation import Conversation, Takes, plain, time_of, told
from sessile.core.messages.family import blocks_of, joined_text
from sessile.core.providers import ABORTED, Policy
from sessile.core.text import iso_timestamp

_POLICY = Policy("codex", "images", "safe", ABORTED, signatures="none", results=True)
_CUT = 20_000  # bytes; Codex cuts at about twice as many
_VERSION = "0.166.0"  # a release that reads such rollouts


def place(agent: Agent, conversation: Conversation, home: str, environ: Mapping[str, str]) -> Placed:
    """Return the rollout of a conversation."""
    session_id = conversation.new_id("codex")
    stamp = conversation.times()
    cleaned = plain(conversation, Takes(_POLICY, urls=True, developer=True, thinking=conversation.origin == agent.name))
    rows = [
        _row(stamp, "session_meta", _meta(conversation, session_id, stamp)),
        *_rows(conversation, cleaned.messages),
    ]
    day = stamp[:10].replace("-", "/")
    name = f"rollout-{stamp[:19].replace(':', '-')}-{session_id}.jsonl"
    lines = [encode_plain(row) + b"\n" for row in rows]
    sessions = agent.sources(home, environ, lambda folder: ())[0].sessions
    return Placed(session_id, f"{sessions}/{day}/{name}", lines, told(cleaned))


def _meta(conversation: Conversation, session_id: str, stamp: str) -> Entry:
    meta = {"id": session_id, "session_id": session_id, "timestamp": stamp, "cwd": conversation.cwd}
    return meta | {"originator": "sessile", "cli_version": _VERSION, "source": "cli", "thread_source": "user"}


def _rows(conversation: Conversation, messages: list[dict[str, Any]]) -> Iterator[Entry]:
    at = conversation.created
    custom: set[str] = set()  # calls whose input is a text
    for message in messages:
        at = time_of(message) or at
        stamp = iso_timestamp(at)
        role = message.get("role")
        if role == "toolResult":
            item = _output(message, custom)
            size = len(encode_plain(item))
            row = _row(stamp, "response_item", item)
            # Codex cuts the output of a tool when it sends it, unless the row says how many tokens are allowed.
            yield row if size < _CUT else row | {"metadata": {"fallback_token_limit_override": size}}
        elif role == "assistant":
            for item in _items(message, custom):
                yield _row(stamp, "response_item", item)
                if item["type"] == "message":
                    yield _row(stamp, "event_msg", {"type": "agent_message", "message": item["content"][0]["text"]})
        else:
            role = "developer" if role == "developer" else "user"
            yield _row(stamp, "response_item", {"type": "message", "role": role, "content": _parts(message)})
            if role == "user":
                shown = {"type": "user_message", "message": joined_text(message.get("content")), "images": []}
                yield _row(stamp, "event_msg", shown)


def _row(stamp: str, kind: str, payload: Entry) -> Entry:
    return {"timestamp": stamp, "type": kind, "payload": payload}


def _parts(message: Mapping[str, Any]) -> list[Entry]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [_part(block) for block in blocks_of(content)]


def _part(block: Mapping[str, Any]) -> Entry:
    if block.get("type") == "image":
        url = block.get("url") or f"data:{block.get('mimeType')};base64,{block.get('data')}"
        return {"type": "input_image", "image_url": url}
    return {"type": "input_text", "text": str(block.get("text", ""))}


def _output(message: Mapping[str, Any], custom: set[str]) -> Entry:
    """Return the output of a call: a text, or parts if it has images."""
    call_id = message.get("toolCallId")
    parts = _parts(message)
    texts = all(part["type"] == "input_text" for part in parts)
    output = "\n".join(part["text"] for part in parts) if texts else parts
    kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": output}


def _items(message: Mapping[str, Any], custom: set[str]) -> Iterator[Entry]:
    """Yield the items of an answer: its texts and calls, in order."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else blocks_of(content)
    for block in blocks:
        if block.get("type") == "text":
            text = {"type": "output_text", "text": str(block.get("text", ""))}
            yield {"type": "message", "role": "assistant", "content": [text]}
        elif block.get("type") == "toolCall":
            yield _call(block, custom)
        elif (item := _reasoning(block)) is not None:
            yield item


def _reasoning(block: Mapping[str, Any]) -> Entry | None:
    """Return the reasoning item that a thought was made from; `None` if there is none."""
    sealed, signature = block.get("encrypted"), block.get("thinkingSignature")
    if isinstance(sealed, str):
        summary = [{"type": "summary_text", "text": block["thinking"]}] if block.get("thinking") else []
        return {"type": "reasoning", "summary": summary, "encrypted_content": sealed}
    item = row_of(signature.encode()) if isinstance(signature, str) and signature.startswith("{") else {}
    return item if item.get("type") == "reasoning" and item.get("encrypted_content") else None


def _call(block: Mapping[str, Any], custom: set[str]) -> Entry:
    given = block.get("arguments")
    base = {"name": block.get("name"), "call_id": block.get("id")}
    text = given.get("input") if isinstance(given, Mapping) else None
    if block.get("custom") and isinstance(text, str):
        custom.add(str(block.get("id")))
        return {"type": "custom_tool_call", "status": "completed", **base, "input": text}
    arguments = encode_plain(given if isinstance(given, dict) else {}).decode("utf-8", "replace")
    return {"type": "function_call", **base, "arguments": arguments}
