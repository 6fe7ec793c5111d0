"""Messages for models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import AT_MS, Json, assistant, user
from sessile.core.codec import encode
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.family import convert_to_llm
from sessile.core.messages.openai_chat import openai_messages

pytestmark = pytest.mark.mission("X13")


def text_of(message: Json) -> Any:
    """Return the text of the single block of the single converted message."""
    (converted,) = convert_to_llm([message])
    assert converted["role"] == "user"
    (block,) = converted["content"]
    assert block["type"] == "text"
    return block["text"]


@pytest.mark.parametrize(
    "message",
    [
        user("hi"),
        assistant("hi"),
        {"role": "toolResult", "content": []},
        {"role": "system", "content": "s"},
        {"role": "developer"},
    ],
    ids=lambda message: message["role"],
)
def test_messages_of_a_model_pass(message: Json) -> None:
    """They are returned unchanged."""
    (converted,) = convert_to_llm([message])
    assert converted is message


def test_a_compaction_is_wrapped_verbatim() -> None:
    """pi's sentence, a blank line, the tags on their own lines; the summary is not reformatted."""
    message = {"role": "compactionSummary", "summary": "a  \n\n\n- b", "tokensBefore": 9, "timestamp": AT_MS}
    assert text_of(message) == (
        "The conversation history before this point was compacted into the following summary:\n\n"
        "<summary>\na  \n\n\n- b\n</summary>"
    )
    assert convert_to_llm([message])[0]["timestamp"] == AT_MS


def test_a_branch_summary_is_wrapped_verbatim() -> None:
    """The wrapper is pi's sentence, without a newline before the closing tag."""
    assert text_of({"role": "branchSummary", "summary": "tried", "fromId": "a"}) == (
        "The following is a summary of a branch that this conversation came back from:\n\n<summary>\ntried</summary>"
    )


@pytest.mark.parametrize("role", ["custom", "hookMessage"])
def test_a_custom_message_becomes_a_user_message(role: str) -> None:
    """A text becomes one block, blocks stay; display does not matter."""
    assert text_of({"role": role, "content": "note", "display": False}) == "note"
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "AA", "mimeType": "image/png"}]
    assert convert_to_llm([{"role": role, "content": blocks}])[0]["content"] == blocks


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"output": "ok"}, "Ran `ls`\n```\nok\n```"),
        ({"output": ""}, "Ran `ls`\n(no output)"),
        ({"output": "x", "exitCode": 0}, "Ran `ls`\n```\nx\n```"),
        ({"output": "x", "exitCode": 2}, "Ran `ls`\n```\nx\n```\n\nCommand exited with code 2"),
        ({"output": "", "exitCode": 2, "cancelled": True}, "Ran `ls`\n(no output)\n\n(command cancelled)"),
        ({"output": "x", "truncated": True}, "Ran `ls`\n```\nx\n```"),
        (
            {"output": "x", "exitCode": 1, "truncated": True, "fullOutputPath": "/tmp/o"},
            "Ran `ls`\n```\nx\n```\n\nCommand exited with code 1\n\n[Output truncated. Full output: /tmp/o]",
        ),
    ],
)
def test_a_shell_run_becomes_text(members: Json, text: str) -> None:
    """Command, fenced output or none, then the exit and the path of the full output."""
    assert text_of({"role": "bashExecution", "command": "ls", **members}) == text


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"output": "2"}, "Ran Python:\n```python\n1+1\n```\nOutput:\n```\n2\n```"),
        ({"output": ""}, "Ran Python:\n```python\n1+1\n```\n(no output)"),
        ({"output": "", "cancelled": True}, "Ran Python:\n```python\n1+1\n```\n(no output)\n\n(execution cancelled)"),
        (
            {"output": "2", "exitCode": 1},
            "Ran Python:\n```python\n1+1\n```\nOutput:\n```\n2\n```\n\nExecution failed with code 1",
        ),
    ],
)
def test_a_python_run_becomes_text(members: Json, text: str) -> None:
    """Code, fenced output or none, and the exit."""
    assert text_of({"role": "pythonExecution", "code": "1+1", **members}) == text


@pytest.mark.parametrize("role", ["bashExecution", "pythonExecution"])
def test_a_run_that_is_excluded_is_left_out(role: str) -> None:
    """The user excluded it from the context."""
    assert convert_to_llm([{"role": role, "command": "x", "excludeFromContext": True}]) == []
    assert len(convert_to_llm([{"role": role, "command": "x", "excludeFromContext": False}])) == 1


def test_mentioned_files_become_one_reminder_and_their_images() -> None:
    """File blocks are separated by a blank line, images follow."""
    picture = {"type": "image", "data": "AA", "mimeType": "image/png"}
    files = [{"path": "a.py", "content": "A"}, {"path": "b.png", "content": "B", "image": picture}]
    (message,) = convert_to_llm([{"role": "fileMention", "files": files}])
    text, *images = message["content"]
    assert text["text"] == (
        '<system-reminder>\n<file path="a.py">\nA\n</file>\n\n<file path="b.png">\nB\n</file>\n</system-reminder>'
    )
    assert images == [picture]


def test_a_pruned_result_is_its_text() -> None:
    """Its joined text, or the notice."""
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "AA"}, {"type": "text", "text": "b"}]
    (message,) = convert_to_llm([{"role": "toolResult", "content": blocks, "prunedAt": 5}])
    assert message["content"] == [{"type": "text", "text": "a\nb"}]
    (message,) = convert_to_llm([{"role": "toolResult", "content": [], "prunedAt": 5}])
    assert message["content"] == [{"type": "text", "text": "[Output truncated]"}]


@pytest.mark.parametrize("message", [{}, {"role": "later", "content": "x"}, {"role": 5}, {"role": ["user"]}])
def test_unknown_roles_are_left_out(message: Json) -> None:
    """Models do not know them."""
    assert convert_to_llm([message]) == []


CALL = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "naïve.py", "n": 1}}
TALK: list[Json] = [
    {"role": "system", "content": "be kind"},
    user("hi"),
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
            {"type": "thinking", "thinking": "unsigned"},
            {"type": "redactedThinking", "data": "zz"},
            {"type": "text", "text": "look"},
            {"type": "text", "text": ""},
            CALL,
            {**CALL, "id": "c2", "arguments": {}},
        ],
    },
    {"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "one"}], "isError": False},
    {
        "role": "toolResult",
        "toolCallId": "c2",
        "content": [{"type": "text", "text": "two"}, {"type": "image", "data": "AA", "mimeType": "image/png"}],
        "isError": True,
    },
    {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image", "data": "BB", "mimeType": "image/gif"}],
    },
    assistant(""),
]


def test_the_shape_of_anthropic() -> None:
    """Results of one turn share a user message, only signed thoughts are sent, empty messages are left out."""
    assert anthropic_messages(TALK) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "naïve.py", "n": 1}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "one"}],
                    "is_error": False,
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [
                        {"type": "text", "text": "two"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
                    ],
                    "is_error": True,
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "BB"}},
            ],
        },
    ]


def test_the_shape_of_openai() -> None:
    """Calls are functions with their arguments as text, images are data URLs; those of results follow the results."""

    def call(call_id: str, arguments: str) -> Json:
        return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": arguments}}

    assert openai_messages(TALK) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "look\n",
            "tool_calls": [call("c1", '{"path":"naïve.py","n":1}'), call("c2", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images from the tool results above:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/gif;base64,BB"}},
            ],
        },
        {"role": "assistant", "content": None},
    ]


def test_a_tool_result_that_is_a_text_keeps_it() -> None:
    """Other agents store results as plain text."""
    result = {"role": "toolResult", "toolCallId": "c", "content": "plain"}
    assert openai_messages([result]) == [{"role": "tool", "tool_call_id": "c", "content": "plain"}]
    assert anthropic_messages([result])[0]["content"][0]["content"] == [{"type": "text", "text": "plain"}]


@pytest.mark.promise("P10")
@pytest.mark.promise("P24")
@pytest.mark.parametrize("shape", [anthropic_messages, openai_messages])
def test_no_lone_surrogate_is_sent_wherever_it_hides(shape: Any) -> None:
    """Texts, thoughts, names, arguments and keys are cleaned, and the result is valid UTF-8."""
    bad = "x\ud83dy"
    blocks = [
        {"type": "text", "text": bad},
        {"type": "thinking", "thinking": bad, "thinkingSignature": bad},
        {"type": "toolCall", "id": bad, "name": bad, "arguments": {bad: [bad, {"a": bad}]}},
    ]
    messages = [
        user(bad),
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": blocks},
        {"role": "toolResult", "toolCallId": bad, "content": blocks},
        {"role": "custom", "content": bad},
        {"role": "bashExecution", "command": bad, "output": bad},
        {"role": "compactionSummary", "summary": bad},
    ]
    sent = json.dumps(shape(messages), ensure_ascii=False)
    assert sent.encode()
    assert "\\ud83d" not in sent
    assert "x\ufffdy" in sent


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    "content", [None, 5, True, "", "text", [], {}, [None, 5, "x", [], {}], [{"type": "text"}], [{"type": 5}]]
)
@pytest.mark.parametrize("role", ["user", "assistant", "toolResult", "system", "custom", "hookMessage", "fileMention"])
def test_contents_of_the_wrong_type_raise_nothing(role: str, content: object) -> None:
    """Any stored content can be converted."""
    message = {"role": role, "content": content, "files": content, "summary": content, "prunedAt": content}
    for shape in (convert_to_llm, anthropic_messages, openai_messages):
        assert encode({"messages": shape([message])})
