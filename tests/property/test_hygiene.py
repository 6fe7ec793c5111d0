"""Every provider accepts any session after cleaning, and nothing is lost without a note."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from provider_rules import (
    refused_by_anthropic,
    refused_by_google,
    refused_by_mistral,
    refused_by_openai,
    refused_by_router,
)
from sessile.core.hygiene import Cleaned, clean
from sessile.core.messages.anthropic import to_anthropic
from sessile.core.messages.family import convert_to_llm
from sessile.core.messages.gemini import to_google
from sessile.core.messages.openai_chat import to_openai
from sessile.core.providers import DEFAULT, TABLE
from sessile.core.text import without_surrogates
from strategies import json_values, small, text

pytestmark = [pytest.mark.mission("Y6"), pytest.mark.promise("P24")]

POLICIES = [policy for policy, _ in TABLE] + [DEFAULT]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 10, 10) + bytes(5)).decode()

Check = tuple[Callable[[Any], Json], str, Callable[[list[Json]], Iterator[str]]]
ANTHROPIC: Check = (to_anthropic, "messages", refused_by_anthropic)
OPENAI: Check = (to_openai, "messages", refused_by_openai)
GOOGLE: Check = (to_google, "contents", refused_by_google)
WIRES: dict[str, Check] = {
    "anthropic": ANTHROPIC,
    "bedrock": ANTHROPIC,
    "google": GOOGLE,
    "antigravity-claude": GOOGLE,
    "mistral": (to_openai, "messages", refused_by_mistral),
    "router-gemini": (to_openai, "messages", refused_by_router),
}

# Few different ids, so that they collide, repeat and cross; ids of every provider; and invalid ids.
few = st.sampled_from(["a", "a-", "b", "call_1|fc_1", "toolu_01ABCDEFGHIJ", "x" * 45, "", "é", None, 5])
ids = st.one_of(few, few, few, few, text)
words = st.sampled_from(["", " ", "\n", "hello", "NO_REPLY", "x\ud800"]) | text
signatures = st.sampled_from([None, "", "EqQBCgIYAhIM", "msg_1", "reasoning_content", '{"id":"rs_1"}', 5])
blocks = st.one_of(
    st.builds(lambda value, sign: {"type": "text", "text": value, "textSignature": sign}, words, signatures),
    st.builds(lambda value: {"type": "text", "text": value}, words),
    st.builds(
        lambda value, sign, redacted: {
            "type": "thinking",
            "thinking": value,
            "thinkingSignature": sign,
            "redacted": redacted,
        },
        words,
        signatures,
        st.booleans(),
    ),
    st.builds(lambda data: {"type": "redactedThinking", "data": data}, signatures),
    st.builds(
        lambda kind, call_id, name, arguments, sign: {
            "type": kind,
            "id": call_id,
            "name": name,
            "arguments": arguments,
            "thoughtSignature": sign,
        },
        st.sampled_from(["toolCall", "toolCall", "toolUse"]),
        ids,
        st.sampled_from(["read", "read", "mcp.x", " pad", ""]) | text,
        st.just({}) | small,
        signatures,
    ),
    st.builds(lambda data: {"type": "image", "data": data, "mimeType": "image/png"}, st.sampled_from([PNG, "", "AA"])),
    st.sampled_from([{"type": "server"}, {}, None, "loose words"]),
)
lists = st.lists(blocks, max_size=4)
contents = st.one_of(words, lists, lists, lists, json_values)
origins = st.sampled_from([{}, {"provider": "anthropic"}, {"provider": "google"}, {"provider": "openai", "model": "m"}])
messages = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, contents),
    st.builds(
        lambda content, origin, stop: {"role": "assistant", "content": content, "stopReason": stop, **origin},
        contents,
        origins,
        st.sampled_from(["stop", "toolUse", "length", "error", "aborted"]),
    ),
    st.builds(
        lambda content, member, call_id: {
            "role": "toolResult",
            "content": content,
            member: call_id,
            "toolName": "other",
        },
        contents,
        st.sampled_from(["toolCallId", "toolCallId", "toolUseId"]),
        ids,
    ),
    st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), contents
    ),
    st.builds(lambda content: {"role": "user", "content": content, "provenance": {"kind": "inter_session"}}, contents),
    st.builds(lambda command: {"role": "bashExecution", "command": command, "output": ""}, text),
)


@st.composite
def tool_turns(draw: st.DrawFn) -> list[Json]:
    """Return valid calls, and results that are late, duplicated, missing, reordered or from another turn."""
    called = draw(st.lists(few, min_size=1, max_size=3))
    answered = draw(st.permutations(called)) if draw(st.booleans()) else draw(st.lists(few, max_size=3))
    blocks: list[Json] = [{"type": "text", "text": "look"}] if draw(st.booleans()) else []
    blocks += [{"type": "toolCall", "id": call_id, "name": "read", "arguments": {}} for call_id in called]
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    results: list[Json] = [
        {"role": "toolResult", "toolCallId": call_id, "content": [image] if draw(st.booleans()) else "ok"}
        for call_id in answered
    ]
    stop = draw(st.sampled_from(["toolUse", "toolUse", "aborted"]))
    turn: list[Json] = [{"role": "assistant", "content": blocks, "stopReason": stop}, *results]
    if draw(st.booleans()):
        turn.insert(draw(st.integers(1, len(turn))), draw(messages))
    return turn


conversations = st.lists(tool_turns() | messages.map(lambda message: [message]), max_size=6).map(
    lambda turns: convert_to_llm(message for turn in turns for message in turn)
)


@given(conversation=conversations, limit=st.none() | st.integers(1, 4))
def test_every_provider_takes_what_was_cleaned(conversation: list[Json], limit: int | None) -> None:
    """Calls are paired, turns are allowed, nothing is empty, and there is no lone surrogate."""
    for policy in POLICIES:
        shape, member, refused = WIRES.get(policy.name, OPENAI)
        request = shape(clean(conversation, policy, history_limit=limit).messages)
        assert list(refused(request[member])) == []
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode("utf-8", "strict")


@given(conversation=conversations)
def test_calls_and_results_stand_side_by_side(conversation: list[Json]) -> None:
    """Results follow their calls in order, there are no others, and ids are unique."""
    for policy in POLICIES:
        owed: list[str] = []
        seen: list[str] = []
        for message in clean(conversation, policy).messages:
            if message["role"] == "toolResult":
                assert owed.pop(0) == message["toolCallId"]
                continue
            assert not owed
            if message["role"] == "assistant":
                owed = [block["id"] for block in message["content"] if block["type"] == "toolCall"]
                seen += owed
        assert not owed
        assert len(set(seen)) == len(seen)


@given(conversation=conversations, limit=st.none() | st.integers(0, 4))
def test_cleaning_what_is_clean_changes_nothing(conversation: list[Json], limit: int | None) -> None:
    """It also adds no notes."""
    for policy in POLICIES:
        once = clean(conversation, policy, history_limit=limit)
        twice = clean(once.messages, policy, history_limit=limit)
        assert twice.messages == once.messages
        assert twice.notes == []


@given(conversation=conversations, limit=st.none() | st.integers(1, 4))
def test_nothing_is_missing_without_a_note(conversation: list[Json], limit: int | None) -> None:
    """Every text is in the request, or its message has a note."""
    conversation = [numbered(place, message) for place, message in enumerate(conversation)]
    for policy in POLICIES:
        cleaned = clean(conversation, policy, history_limit=limit)
        shape, _, _ = WIRES.get(policy.name, OPENAI)
        sent = "\n".join(strings(shape(cleaned.messages)))
        dropped = {note.place for note in cleaned.notes if note.did == "dropped"}
        for place, message in enumerate(conversation):
            for said in spoken(message):
                assert place in dropped or without_surrogates(said) in sent, (place, said)


@given(conversation=conversations)
def test_origins_and_notes_name_messages_that_were_given(conversation: list[Json]) -> None:
    """Messages without an origin are marked as synthetic, and only those."""
    for policy in POLICIES:
        cleaned: Cleaned = clean(conversation, policy)
        assert len(cleaned.origins) == len(cleaned.messages)
        assert all(0 <= note.place < len(conversation) for note in cleaned.notes)
        for message, origin in zip(cleaned.messages, cleaned.origins, strict=True):
            assert message.get("synthetic") is True if origin is None else 0 <= origin < len(conversation)


def spoken(message: Json) -> Iterator[str]:
    """Return the texts of users and models in a message."""
    if message["role"] == "toolResult":
        return
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else []:
        if isinstance(block, str):
            yield block
        elif isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]


def numbered(place: int, message: Json) -> Json:
    """Return the message with a mark in its text, so that an equal text elsewhere does not count."""
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return {**message, "content": f"{content} #{place}#"}
    if not isinstance(content, list):
        return message
    marked = [
        {**block, "text": f"{block['text']} #{place}.{number}#"}
        if isinstance(block, dict) and isinstance(block.get("text"), str) and block["text"].strip()
        else block
        for number, block in enumerate(content)
    ]
    return {**message, "content": marked}


def strings(value: Any) -> Iterator[str]:
    """Return all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
