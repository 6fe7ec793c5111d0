"""Converting a session to the messages of a model request."""

from __future__ import annotations

import json

import pytest

from builders import user
from sessile import Session, convert_to_llm
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.openai_chat import openai_messages

pytestmark = pytest.mark.mission("X13")

CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}


def story() -> Session:
    session = Session.in_memory()
    session.append_message(user("forgotten"))
    session.append_compaction("what was before", None, 100)
    session.append_message(user("question"))
    session.append_message({"role": "assistant", "content": [{"type": "text", "text": "look"}, CALL]})
    result = {
        "role": "toolResult",
        "toolCallId": "c1",
        "toolName": "bash",
        "content": [{"type": "text", "text": "a b"}],
    }
    session.append_message({**result, "isError": False})
    session.append_message({"role": "bashExecution", "command": "pwd", "output": "/x", "exitCode": 1})
    session.append_message({"role": "bashExecution", "command": "secret", "output": "", "excludeFromContext": True})
    session.append_custom_message_entry("note", "hidden note", display=False)
    return session


def test_the_context_of_a_session_converts_with_the_wrappers_of_the_family() -> None:
    """Summaries and shell runs become user messages, excluded messages are omitted, and hidden ones are sent."""
    messages = convert_to_llm(story().context().messages)
    assert [m["role"] for m in messages] == ["user", "user", "assistant", "toolResult", "user", "user"]
    assert messages[0]["content"][0]["text"] == (
        "The conversation history before this point was compacted into the following summary:\n\n"
        "<summary>\nwhat was before\n</summary>"
    )
    assert messages[4]["content"][0]["text"] == "Ran `pwd`\n```\n/x\n```\n\nCommand exited with code 1"
    assert messages[5]["content"] == [{"type": "text", "text": "hidden note"}]


def test_a_branch_summary_converts_with_its_own_wrapper() -> None:
    """The closing tag follows without a newline, as in pi."""
    session = Session.in_memory()
    session.append_message(user("one"))
    session.branch_with_summary(None, "tried A")
    (message,) = convert_to_llm(session.context().messages)
    assert message["content"][0]["text"] == (
        "The following is a summary of a branch that this conversation came back from:\n\n<summary>\ntried A</summary>"
    )


def test_both_providers_take_what_comes_out() -> None:
    """Tool calls and results are paired by id, and everything is plain JSON."""
    messages = story().context().messages
    anthropic, openai = anthropic_messages(messages), openai_messages(messages)
    call = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}}
    assert call in anthropic[2]["content"]
    assert anthropic[3]["content"][0]["tool_use_id"] == "c1"
    assert json.loads(openai[2]["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert openai[3] == {"role": "tool", "tool_call_id": "c1", "content": "a b"}
    json.dumps([anthropic, openai]).encode()
