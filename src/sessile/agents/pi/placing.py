"""A conversation as a session file that pi, oh-my-pi or xcsh resumes: a header and one chain of entries.

Images and texts are whole in the file: pi has no blobs, and the others find blobs only in their own folder. A summary of what
was compacted is a compaction that keeps everything after it. Answers have every member that the programs read without a check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessile.agents.base import Entry, Placed
from sessile.agents.pi import Family
from sessile.core.codec import encode_plain
from sessile.core.conversation import Conversation, Takes, family, time_of, told
from sessile.core.ids import sha256
from sessile.core.messages.family import blocks_of
from sessile.core.providers import MISSING, Policy
from sessile.core.text import iso_timestamp
from sessile.storage.layout import file_name

_TAKES = Takes(Policy("pi", "images", "paired", MISSING))
_COSTS = ("input", "output", "cacheRead", "cacheWrite")
_APIS = {"anthropic": "anthropic-messages", "google": "google-generative-ai", "openai": "openai-responses"}
_USER = ("role", "content", "timestamp")
_ANSWER = ("content", "usage", "stopReason", "responseId", "timestamp")
_RESULT = ("role", "toolCallId", "toolName", "content", "details", "isError", "timestamp")
_COMMAND = (
    "role",
    "command",
    "output",
    "exitCode",
    "cancelled",
    "truncated",
    "fullOutputPath",
    "excludeFromContext",
    "timestamp",
)


def place(agent: Family, conversation: Conversation, home: str, environ: Mapping[str, str]) -> Placed:
    """Return the session file of a conversation."""
    session_id = conversation.new_id(agent.name)
    stamp = conversation.times()
    cleaned = family(conversation, _TAKES)
    header: Entry = {"type": "session", "version": 3, "id": session_id, "timestamp": stamp, "cwd": conversation.cwd}
    name = conversation.title.strip() if conversation.title else ""
    entries = list(_entries(conversation, cleaned.messages, session_id, agent.thinking_as_text))
    if name:
        last = entries[-1]["id"] if entries else None
        info = {"type": "session_info", "id": _id(session_id, "name"), "parentId": last, "timestamp": stamp}
        entries.append({**info, "name": name})
        header["title"] = name
    lines = [encode_plain(row) + b"\n" for row in (header, *entries)]
    sessions = agent.sources(home, environ, lambda folder: ())[0].sessions
    path = f"{sessions}/{agent.folder(conversation.cwd, home, environ)}/{file_name(stamp, session_id)}"
    return Placed(session_id, path, lines, told(cleaned))


def _id(session_id: str, part: str) -> str:
    return sha256(f"{session_id}\0{part}".encode()).hexdigest()[:8]


def _entries(
    conversation: Conversation, messages: list[dict[str, Any]], session_id: str, thinking_as_text: bool
) -> Iterator[Entry]:
    ids: list[str] = []
    for number in range(len(messages) + 1):
        made = _id(session_id, str(number))
        ids.append(made if made not in ids else _id(session_id, f"{number} again"))
    at, parent = conversation.created, None
    for number, message in enumerate(messages):
        at = time_of(message) or at
        base: Entry = {"id": ids[number], "parentId": parent, "timestamp": iso_timestamp(at)}
        yield _entry(message, base, at, ids[number + 1], thinking_as_text)
        parent = ids[number]


def _entry(message: Mapping[str, Any], base: Entry, at: int, following: str, thinking_as_text: bool) -> Entry:
    role = message.get("role")
    if role == "compactionSummary":
        told = {"summary": message.get("summary") or "", "firstKeptEntryId": following}
        return {"type": "compaction", **base, **told, "tokensBefore": message.get("tokensBefore") or 0}
    if role == "branchSummary":
        summary = {"fromId": base["parentId"] or "root", "summary": message.get("summary") or ""}
        return {"type": "branch_summary", **base, **summary}
    if role in ("custom", "hookMessage"):
        named = {"customType": message.get("customType") or "message", "content": message.get("content")}
        return {"type": "custom_message", **base, **named, "display": message.get("display") is not False}
    if role == "assistant":
        return {"type": "message", **base, "message": _answer(message, at, thinking_as_text)}
    known = {"toolResult": _RESULT, "bashExecution": _COMMAND}.get(str(role), _USER)
    kept = {name: message[name] for name in known if message.get(name) is not None}
    if role == "toolResult":
        kept["isError"] = message.get("isError") is True
    return {"type": "message", **base, "message": {**kept, "timestamp": at}}


def _answer(message: Mapping[str, Any], at: int, thinking_as_text: bool) -> Entry:
    """Return an answer with the members that the programs read without a check."""
    usage = message.get("usage")
    counted = dict(usage) if isinstance(usage, Mapping) else {}
    counts = {name: counted[name] if isinstance(counted.get(name), int) else 0 for name in _COSTS}
    cost = counted.get("cost")
    costs = dict.fromkeys((*_COSTS, "total"), 0) | (dict(cost) if isinstance(cost, Mapping) else {})
    provider = str(message.get("provider") or "unknown")
    api = str(message.get("api") or _APIS.get(provider, "unknown"))
    origin = {"api": api, "provider": provider, "model": str(message.get("model") or "unknown")}
    content = [each for block in blocks_of(message.get("content")) for each in _part(block, api, thinking_as_text)]
    calls = any(block.get("type") == "toolCall" for block in content)
    kept = {name: message[name] for name in _ANSWER if message.get(name) is not None}
    return {
        "role": "assistant",
        **kept,
        **origin,
        "content": content,
        "usage": {**counts, "totalTokens": counted.get("totalTokens") or sum(counts.values()), "cost": costs},
        "stopReason": "toolUse" if calls else message.get("stopReason") or "stop",
        "timestamp": at,
    }


def _part(block: Entry, api: str, thinking_as_text: bool) -> Iterator[Entry]:
    if block.get("type") != "thinking":
        yield {name: value for name, value in block.items() if name not in ("extra", "custom")}
        return
    thought = block.get("thinking")
    signed = api.startswith("anthropic") and block.get("thinkingSignature")
    if signed or (thought and not thinking_as_text):
        yield {name: value for name, value in block.items() if name not in ("extra", "encrypted")}
    elif thought:
        yield {"type": "text", "text": f"<thinking>\n{thought}\n</thinking>"}
