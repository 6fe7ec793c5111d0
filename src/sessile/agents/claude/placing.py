"""A conversation as a transcript that Claude Code resumes: one row per message, in one chain.

The file is named by a UUID, in the folder of the project. Signatures of thinking are kept, because Claude's models accept their
own; Claude Code itself leaves out thinking of a model that is not the current one. If the last answer names no model of Claude,
Claude Code takes its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessile.agents.base import Agent, Placed
from sessile.agents.claude.paths import project_dir, session_path
from sessile.agents.claude.rows import NewRow, title_row
from sessile.agents.claude.translation import uuid_for
from sessile.core.codec import encode_plain
from sessile.core.conversation import Conversation, Takes, plain, time_of, told
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.family import text_block
from sessile.core.providers import MISSING, Policy
from sessile.core.text import iso_timestamp

_TAKES = Takes(
    Policy("claude-code", "full", "safe", MISSING, signatures="claude", results=True, bootstrap=True),
    documents=True,
    urls=True,
)
_EMPTY = "[omitted: this message was empty]"
_VERSION = "2.1.0"  # rows of this release have every member that is written here
_USAGE = {"input": "input_tokens", "output": "output_tokens"}
_USAGE |= {"cacheRead": "cache_read_input_tokens", "cacheWrite": "cache_creation_input_tokens"}


def place(agent: Agent, conversation: Conversation, home: str, environ: Mapping[str, str]) -> Placed:
    """Return the transcript of a conversation."""
    session_id = uuid_for(conversation.digest("claude").hex(), conversation.id)
    cleaned = plain(conversation, _TAKES)
    rows = [*_rows(conversation, cleaned.messages, session_id)]
    if conversation.title and conversation.title.strip():
        rows.append(title_row(session_id, conversation.title))
    path = session_path(
        project_dir(agent.sources(home, environ, lambda folder: ())[0].root, conversation.cwd), session_id
    )
    return Placed(session_id, path, [encode_plain(row) + b"\n" for row in rows], told(cleaned))


def _rows(conversation: Conversation, messages: list[dict[str, Any]], session_id: str) -> Iterator[NewRow]:
    parent, at = None, conversation.created
    for number, message in enumerate(messages):
        uuid = uuid_for(session_id, str(number))
        at = time_of(message) or at
        assistant = message.get("role") == "assistant"
        content = _content(message)
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": conversation.cwd,
            "sessionId": session_id,
            "version": _VERSION,
            "type": "assistant" if assistant else "user",
            "message": _answer(message, content, uuid) if assistant else {"role": "user", "content": content},
            "uuid": uuid,
            "timestamp": iso_timestamp(at),
        }
        parent = uuid


def _content(message: dict[str, Any]) -> Any:
    """Return the content of a message as the API takes it."""
    own = {name: value for name, value in message.items() if name != "extra"}
    made = anthropic_messages([own])
    return made[0]["content"] if made else [text_block(_EMPTY)]


def _answer(message: Mapping[str, Any], content: Any, uuid: str) -> NewRow:
    usage = message.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    used = {theirs: counts[ours] if isinstance(counts.get(ours), int) else 0 for ours, theirs in _USAGE.items()}
    calls = any(block.get("type") == "tool_use" for block in content)
    return {
        # Rows with one id are one response, so each answer has its own.
        "id": f"msg_{uuid.replace('-', '')}",
        "type": "message",
        "role": "assistant",
        "model": message.get("model") or "unknown",
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": used,
    }
