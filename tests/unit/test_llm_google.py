"""Messages for Gemini."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import Json, assistant, user
from sessile.core.codec import encode
from sessile.core.messages.gemini import google_contents

pytestmark = pytest.mark.mission("X13")


def test_the_shape_of_google() -> None:
    """Calls and responses by name, results of one turn in one content, only signed thoughts."""
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a"}, "thoughtSignature": "sig"}
    messages: list[Json] = [
        {"role": "system", "content": "be kind"},
        user("hi"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "thinkingSignature": "seal"},
                {"type": "thinking", "thinking": "unsigned"},
                {"type": "redactedThinking", "data": "zz"},
                {"type": "text", "text": "look", "textSignature": "s"},
                {"type": "text", "text": ""},
                call,
                {"type": "toolCall", "name": "list"},
            ],
        },
        {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [{"type": "text", "text": "one"}]},
        {"role": "toolResult", "toolName": "list", "content": "two", "isError": True},
        {"role": "user", "content": [{"type": "image", "data": "BB", "mimeType": "image/png"}]},
        assistant(""),
    ]
    assert google_contents(messages) == [
        {"role": "user", "parts": [{"text": "be kind"}]},
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"thought": True, "text": "hm", "thoughtSignature": "seal"},
                {"text": "look", "thoughtSignature": "s"},
                {"functionCall": {"id": "c1", "name": "read", "args": {"path": "a"}}, "thoughtSignature": "sig"},
                {"functionCall": {"name": "list", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "read", "response": {"output": "one"}}},
                {"functionResponse": {"name": "list", "response": {"error": "two"}}},
            ],
        },
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "BB"}}]},
    ]


@pytest.mark.promise("P24")
def test_no_lone_surrogate_is_sent() -> None:
    """Lone surrogates are replaced in any text."""
    bad = "x\ud83dy"
    call = {"type": "toolCall", "id": bad, "name": bad, "arguments": {bad: [bad]}}
    messages = [user(bad), {"role": "assistant", "content": [call]}, {"role": "toolResult", "content": bad}]
    assert "x\ufffdy" in json.dumps(google_contents(messages), ensure_ascii=False).encode().decode()


@pytest.mark.promise("P17")
@pytest.mark.parametrize("content", [None, 5, True, "", [], {}, [None, 5, "x", {}], [{"type": "text"}], [{"type": 5}]])
@pytest.mark.parametrize("role", ["user", "assistant", "toolResult", "system"])
def test_contents_of_the_wrong_type_raise_nothing(role: str, content: Any) -> None:
    """Any stored content can be converted."""
    assert encode({"contents": google_contents([{"role": role, "content": content}])})
