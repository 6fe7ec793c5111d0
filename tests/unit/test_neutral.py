"""The neutral message: every shape that is taken, what is refused, and what other APIs make of it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import MessageParam
from google.genai import types as google
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.responses import Response, ResponseInputItemParam

from builders import Json
from sessile import Session, Store, to_anthropic, to_google, to_openai, to_responses
from sessile.core.messages.neutral import UserMessage, neutral
from sessile.errors import InvalidEntry

pytestmark = pytest.mark.mission("N1")

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def stored(*values: Any) -> list[Json]:
    """Return what a session stores of these values, appended one by one."""
    with Session.in_memory() as session:
        for value in values:
            session.append_message(value)
        return session.context().messages


# -- objects of clients, and whole answers


def test_an_answer_of_anthropic_is_stored_with_its_usage() -> None:
    """The object of the client gives model, usage, stop reason and calls, and the request has it back."""
    answer = AnthropicMessage.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "text", "text": "look", "citations": None},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2},
        }
    )
    (message,) = stored(answer)
    assert (message["provider"], message["model"], message["responseId"]) == ("anthropic", "claude-x", "msg_1")
    assert message["usage"] == {"input": 7, "output": 3, "cacheRead": 2, "totalTokens": 12}
    assert message["stopReason"] == "toolUse"
    assert message["content"][2] == {"type": "toolCall", "id": "t1", "name": "ls", "arguments": {"path": "."}}
    (sent,) = to_anthropic([message])["messages"]
    assert sent == {"role": "assistant", "content": answer.model_dump(exclude_unset=True)["content"]}


def test_blocks_of_a_client_in_a_message_are_read() -> None:
    """As in Anthropic's own examples: a dict with the content of the answer."""
    answer = AnthropicMessage.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "c",
            "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    messages = stored({"role": "assistant", "content": answer.content})
    assert messages[0]["content"][0]["type"] == "toolCall"


def test_a_completion_is_stored_with_its_usage() -> None:
    """Cached tokens are no input; the message alone has no usage."""
    said = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}],
    }
    completion = ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-x",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": said}],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 6},
            },
        }
    )
    (message,) = stored(completion)
    assert message["usage"] == {"input": 4, "output": 4, "cacheRead": 6, "totalTokens": 14}
    assert (message["model"], message["stopReason"]) == ("gpt-x", "toolUse")
    assert to_openai([message])["messages"] == [said]
    assert "usage" not in stored(ChatCompletionMessage.model_validate(said))[0]


def test_a_completion_with_two_choices_is_refused() -> None:
    """Which one the session goes on with is for the caller to say."""
    choice = {"message": {"role": "assistant", "content": "a"}}
    with pytest.raises(InvalidEntry, match=r"choices '2 of them': append the message of one choice"):
        stored({"choices": [choice, choice]})


def test_a_response_is_one_answer() -> None:
    """Reasoning, message and calls are parts of one message; a search of OpenAI's is kept whole."""
    output: list[Json] = [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "look", "annotations": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "c1",
            "name": "ls",
            "arguments": "{}",
            "status": "completed",
        },
    ]
    response = Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-x",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "completed",
            "usage": {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2},
                "total_tokens": 15,
            },
        }
    )
    (message,) = stored(response)
    assert [part["type"] for part in message["content"]] == ["thinking", "other", "text", "toolCall"]
    assert message["stopReason"] == "toolUse"
    assert message["usage"] == {"input": 5, "output": 5, "cacheRead": 4, "cacheWrite": 1, "totalTokens": 15}
    assert to_responses([message])["input"] == output


def test_an_answer_of_gemini_is_stored_with_its_usage() -> None:
    """Bytes become base64, a call without an id gets one that is not sent back."""
    answer = google.GenerateContentResponse.model_validate(
        {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [
                            {"text": "hm", "thought": True},
                            {"function_call": {"name": "ls", "args": {"a_b": 1}}, "thought_signature": b"sig"},
                        ],
                    },
                    "finish_reason": "STOP",
                }
            ],
            "model_version": "gemini-x",
            "usage_metadata": {
                "prompt_token_count": 9,
                "cached_content_token_count": 4,
                "candidates_token_count": 2,
                "thoughts_token_count": 1,
                "total_token_count": 12,
            },
        }
    )
    first, second = stored(
        answer,
        google.Content(role="user", parts=[google.Part.from_function_response(name="ls", response={"result": "x"})]),
    )
    assert first["usage"] == {"input": 5, "output": 3, "cacheRead": 4, "totalTokens": 12}
    assert (first["model"], first["stopReason"]) == ("gemini-x", "toolUse")
    call = first["content"][1]
    assert call["thoughtSignature"] == base64.b64encode(b"sig").decode()
    assert (second["toolCallId"], second["toolName"]) == (call["id"], "ls")
    assert to_google([first, second])["contents"] == [
        {
            "role": "model",
            "parts": [
                {"thought": True, "text": "hm"},
                {"functionCall": {"name": "ls", "args": {"a_b": 1}}, "thoughtSignature": "c2ln"},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"result": "x"}}}]},
    ]


def test_calls_of_gemini_without_ids_get_different_ones() -> None:
    """Two calls of one tool in two turns are two pairs."""
    call = {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {}}}]}
    result = {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "x"}}}]}
    messages = stored(call, result, call, result)
    assert [message.get("toolCallId") or message["content"][0]["id"] for message in messages] == [
        *("ls_1", "ls_1"),
        *("ls_2", "ls_2"),
    ]


# -- what the shapes have besides


def test_members_in_snake_case_are_sent_in_camel_case() -> None:
    """Names inside arguments and responses are not the API's."""
    content = {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": base64.b64decode(PNG)}}]}
    (message,) = stored(content)
    assert message["content"] == [{"type": "image", "mimeType": "image/png", "data": PNG}]
    assert to_google([message])["contents"][0]["parts"] == [{"inlineData": {"mimeType": "image/png", "data": PNG}}]


def test_a_message_with_results_becomes_several_and_one_again() -> None:
    """Two results and a text are three messages in one write; the last receipt is the leaf."""
    call = {"type": "tool_use", "name": "ls", "input": {}}
    answer = {"role": "assistant", "content": [{**call, "id": "a"}, {**call, "id": "b"}]}
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True},
            {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
        ],
    }
    with Session.in_memory() as session:
        session.append_message(answer)
        receipt = session.append_message(results, key="k")
        assert receipt.id == session.leaf_id
        assert session.append_message(results, key="k").repeated
        messages = session.context().messages
    assert [message["role"] for message in messages] == ["assistant", "toolResult", "toolResult", "user"]
    assert [message.get("toolName") for message in messages[1:3]] == ["ls", "ls"]
    assert to_anthropic(messages)["messages"] == [answer, results]


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
            {"type": "document", "data": "JVBE", "mimeType": "application/pdf"},
        ),
        (
            {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            {"type": "document", "text": "x", "mimeType": "text/plain", "name": "notes"},
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
            {"type": "image", "url": "https://a/b.png"},
        ),
        (
            {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
            {
                "type": "other",
                "api": "anthropic",
                "value": {
                    "type": "search_result",
                    "source": "s",
                    "title": "t",
                    "content": [{"type": "text", "text": "x"}],
                },
            },
        ),
    ],
    ids=["pdf", "text", "url", "search result"],
)
def test_parts_of_anthropic(part: Json, kept: Json) -> None:
    """Each has a neutral form and comes back as it was."""
    (message,) = stored({"role": "user", "content": [part, {"type": "text", "text": "?"}]})
    assert message["content"][0] == kept
    assert to_anthropic([message])["messages"][0]["content"][0] == part


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf"}}, "document"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "document"),
        ({"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}, "image"),
    ],
)
def test_parts_of_chat(part: Json, kind: str) -> None:
    """Audio, files and images by URL are stored under their kind and come back as they were."""
    given = {"role": "user", "content": [part, {"type": "text", "text": "?"}]}
    (message,) = stored(given)
    assert message["content"][0]["type"] == kind
    assert to_openai([message])["messages"] == [given]


def test_answers_of_chat_keep_refusals_custom_calls_and_the_old_function_call() -> None:
    """None of them has a counterpart in every API."""
    refusal: Json = {"role": "assistant", "content": None, "refusal": "I cannot"}
    custom: Json = {
        "role": "assistant",
        "content": "patching",
        "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}}],
    }
    old: Json = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": '{ "a":1 }'}}
    messages = stored(
        refusal,
        custom,
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        old,
        {"role": "function", "name": "ls", "content": "x"},
    )
    assert messages[0]["content"] == [{"type": "text", "text": "I cannot", "refusal": True}]
    call = {"type": "toolCall", "id": "c1", "name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}
    assert messages[1]["content"][1] == {**call, "custom": True}
    sent = to_openai(messages)["messages"]
    assert sent[0] == refusal and sent[1] == custom and sent[3] == old
    assert sent[4] == {"role": "function", "name": "ls", "content": "x"}
    items = to_responses(messages)["input"]
    assert {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"} in items
    assert {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"} in items


def test_changed_arguments_are_sent_as_they_are_now() -> None:
    """The text in which a model wrote its arguments counts only as long as they are the same."""
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{  "a" : 1}'}}
    (message,) = stored({"role": "assistant", "content": None, "tool_calls": [call]})
    assert to_openai([message])["messages"][0]["tool_calls"] == [call]
    message["content"][0]["arguments"] = {"a": 2}
    assert to_openai([message])["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"a":2}'


# -- the system prompt


def test_a_system_message_within_the_conversation_stays_in_its_place() -> None:
    """At the start it is the system prompt; sections change the prompt wherever they are."""
    messages: list[Json] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": "", "sections": {"skills": "juggle"}, "toolsAdded": [{"name": "ls"}]},
        {"role": "assistant", "content": "hello"},
    ]
    anthropic = to_anthropic(messages)
    assert [block["text"] for block in anthropic["system"]] == ["be kind", "juggle"]
    assert [message["role"] for message in anthropic["messages"]] == ["user", "system", "assistant"]
    assert anthropic["tools"] == [{"name": "ls", "input_schema": {"type": "object"}}]
    chat = to_openai(messages)["messages"]
    assert [message["content"] for message in chat] == ["juggle", "be kind", "hi", "be brief", "hello"]
    responses = to_responses(messages)
    assert responses["instructions"] == "be kind\n\njuggle"
    assert [item["role"] for item in responses["input"]] == ["user", "system", "assistant"]
    gemini = to_google(messages)
    assert gemini["systemInstruction"] == {"parts": [{"text": "be kind"}, {"text": "juggle"}]}
    assert [note.did for note in gemini.notes] == ["changed"]


def test_a_developer_message_at_the_start_is_the_system_prompt_where_there_is_no_such_role() -> None:
    """OpenAI gets it as it is."""
    messages: list[Json] = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert to_openai(messages)["messages"] == messages
    assert to_responses(messages)["input"] == messages
    assert to_anthropic(messages)["system"] == [{"type": "text", "text": "be kind"}]
    assert to_google(messages)["systemInstruction"] == {"parts": [{"text": "be kind"}]}


# -- what an API does not take


@pytest.mark.parametrize(
    ("shape", "part", "did"),
    [
        (to_anthropic, {"type": "audio", "data": "UklG", "mimeType": "audio/wav"}, "dropped"),
        (to_anthropic, {"type": "audio", "data": "UklG", "mimeType": "audio/wav", "transcript": "hear"}, "changed"),
        (to_anthropic, {"type": "document", "data": "UEsD", "mimeType": "application/zip"}, "dropped"),
        (to_anthropic, {"type": "other", "api": "google", "value": {"executableCode": {}}}, "dropped"),
        (to_openai, {"type": "document", "url": "https://a/b.pdf"}, "changed"),
        (to_openai, {"type": "image", "fileId": "file_1"}, "dropped"),
        (to_responses, {"type": "audio", "data": "UklG", "mimeType": "audio/wav"}, "dropped"),
        (to_responses, {"type": "document", "text": "whole"}, "changed"),
        (to_google, {"type": "document", "fileId": "file_1"}, "dropped"),
    ],
)
def test_what_an_api_does_not_take_is_text_or_has_a_note(shape: Any, part: Json, did: str) -> None:
    """The note names the entry; text that stands for the part is sent."""
    with Session.in_memory() as session:
        receipt = session.append_message({"role": "user", "content": [{"type": "text", "text": "see"}, part]})
        request = shape(session.context())
    ((entry, done, _),) = request.notes
    assert (entry, done) == (receipt.id, did)
    kept = part.get("transcript") or part.get("text") or part.get("url")
    assert did == "dropped" or str(kept) in str(dict(request))


def test_signatures_go_only_to_the_api_that_made_them() -> None:
    """A thought of Claude is left out for Gemini and OpenAI, with a note."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    messages = stored({"role": "assistant", "content": [thought, {"type": "text", "text": "yes"}]})
    assert to_anthropic(messages)["messages"][0]["content"][0] == thought
    for shape in (to_google, to_openai, to_responses):
        request = shape(messages)
        assert "c2ln" not in str(dict(request)) and [note.did for note in request.notes] == ["dropped"]


def test_images_of_results_follow_them_in_chat() -> None:
    """Chat has no images in results; a note says where they went."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    messages = stored(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image]}]},
    )
    request = to_openai(messages)
    assert [message["role"] for message in request["messages"]] == ["assistant", "tool", "user"]
    assert request["messages"][2]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    assert [note.did for note in request.notes] == ["moved"]


# -- refusals


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"role": "usr", "content": "x"}, 'role \'usr\': use one of "user", "assistant", "toolResult"'),
        ({"content": "x"}, "role None: use one of"),
        ({"role": "user"}, "content None: use a text or a list of parts"),
        ({"role": "user", "content": 5}, "content 'int': use a text"),
        ({"role": "user", "content": [{"type": "foo"}]}, "content[0].type 'foo': use one of \"text\""),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}, {"type": "foo"}]},
            'content[1].type \'foo\': use one of "text", "image", "document"',
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
            "content[0].tool_use_id None: use a text",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "foo"}]},
            'tool_calls[0].type \'foo\': use one of "function", "custom"',
        ),
        ({"role": "tool", "content": "x"}, "tool_call_id None: use a text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "content[0].image_url.url None: use a text",
        ),
        ({"type": "foo", "id": "x"}, 'type \'foo\': use one of "message", "reasoning"'),
        ({"type": "message", "role": "usr", "content": "x"}, "role 'usr': use one of"),
        ({"type": "function_call", "name": "x"}, "call_id None: use a text"),
        ({"type": "tool_use", "id": "x", "name": "ls", "input": {}}, "type 'tool_use': a part is no message"),
        ({"role": "usr", "parts": [{"text": "x"}]}, 'role \'usr\': use one of "user", "model"'),
        ({"role": "model", "parts": [{"textt": "x"}]}, "parts[0] 'textt': use a part with one of text, inlineData"),
        ({"role": "model", "content": "x"}, "parts None: use a list of parts"),
        ("hello", "message of type str: use a dict with a role"),
        (b"hello", "message of type str: use a dict with a role"),
        ([{"role": "user", "content": "x"}, {"role": "usr"}], "[1].role 'usr': use one of"),
        ([], "no message to append"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(value: Any, message: str) -> None:
    """Nothing is written, and the error names the member and the rule."""
    with Session.in_memory() as session:
        with pytest.raises(InvalidEntry) as caught:
            session.append_message(value)
        assert str(caught.value).find(message) >= 0, str(caught.value)
        assert session.count_entries() == 0


@pytest.mark.parametrize(
    "message",
    [
        {"role": "bashExecution", "command": "ls", "output": "x"},
        {"role": "custom", "customType": "x", "content": "y"},
        {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "x"}], "details": {"a": 1}},
        {"role": "system", "content": "", "sections": {"a": "b"}},
        {"role": "user", "content": [{"type": "image", "url": "https://a/b.png"}], "mine": {"a": [1]}},
    ],
    ids=lambda message: message["role"],
)
def test_our_own_messages_are_stored_as_they_are(message: Json) -> None:
    """Unknown members survive."""
    assert stored(message) == [message]
    assert neutral(message) == [message]


def test_what_an_extension_invents_is_an_entry(tmp_path: Path) -> None:
    """Any type and any role survive, and the session reads on."""
    with Store(tmp_path).create("/w") as session:
        session.append_entry({"type": "message", "message": {"role": "robot", "content": [{"type": "gesture"}]}})
        receipt = session.append_entry({"type": "bookmark", "at": {"line": 3}}, key="once")
        assert session.append_entry({"type": "bookmark", "at": {"line": 3}}, key="once").repeated
        path = session.path
    with Store(tmp_path).open(path) as session:
        assert session.get_full_entry(receipt.id)["at"] == {"line": 3}
        assert session.context().messages == [{"role": "robot", "content": [{"type": "gesture"}]}]
        (note,) = to_anthropic(session.context()).notes
        assert note.did == "dropped" and note.entry is not None


def test_several_messages_are_one_write() -> None:
    """Each gets a receipt; shapes may be mixed."""
    with Session.in_memory() as session:
        receipts = session.append_messages(
            [
                {"role": "user", "content": "hi"},
                {"role": "model", "parts": [{"text": "hello"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"role": "assistant", "content": "yes", "stopReason": "stop"},
            ]
        )
        assert [receipt.id for receipt in receipts] == [entry.id for entry in session.get_branch()]
        assert [message["role"] for message in session.context().messages] == ["user", "assistant", "user", "assistant"]


# -- types


def append_all(
    session: Session,
    anthropic: MessageParam,
    chat: ChatCompletionMessageParam,
    item: ResponseInputItemParam,
    gemini: google.Content,
    ours: UserMessage,
    anything: dict[str, object],
    answers: tuple[AnthropicMessage, ChatCompletion, Response] | None,
) -> None:
    """Append typed messages; `make lint` checks that mypy accepts each of these lines, and refuses the last."""
    session.append_message(anthropic)
    session.append_message(chat)
    session.append_message(gemini)
    session.append_message(ours)
    session.append_message(anything)
    session.append_message({"role": "user", "content": "hi"})
    session.append_messages([anthropic, anthropic])
    session.append_messages([chat, gemini])
    session.append_messages([item])
    for answer in answers or ():
        session.append_message(answer)
    with pytest.raises(InvalidEntry):
        session.append_message(5)  # type: ignore[arg-type]


def test_messages_of_the_vendors_types_are_appended() -> None:
    """The function above, run with the types of three clients."""
    with Session.in_memory() as session:
        append_all(
            session,
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
            google.Content(role="user", parts=[google.Part(text="d")]),
            {"role": "user", "content": "e"},
            {"role": "user", "content": "f"},
            None,
        )
        assert session.count_entries() == 11


def test_a_compaction_carries_system_prompt_and_tools() -> None:
    """Whoever appends a compaction need not repeat them."""
    session = Session.in_memory()
    tools = [{"name": "read", "description": "Read a file", "parameters": {"type": "object"}}]
    first = session.append_message({"role": "system", "content": "Be brief.", "toolsAdded": tools})
    session.append_message({"role": "user", "content": "one"})
    session.append_message({"role": "assistant", "content": [{"type": "text", "text": "two"}]})
    before = to_anthropic(session.context())
    session.append_compaction("sum", first.id, 10)
    after = to_anthropic(session.context())
    assert before["system"] == after["system"] and before["tools"] == after["tools"]
