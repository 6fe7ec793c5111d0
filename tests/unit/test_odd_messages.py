"""Odd messages: what they are paired with, what is refused by name, and what a request notes instead of losing it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import Json
from sessile import Session, to_anthropic, to_google, to_openai, to_responses
from sessile.core.context import SessionContext
from sessile.core.conversation import time_of
from sessile.core.messages.neutral import neutral
from sessile.core.providers import Dialect
from sessile.core.sending import request_for
from sessile.errors import InvalidEntry
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.search import _Whole

pytestmark = pytest.mark.mission("N1")

SHAPES = (to_anthropic, to_openai, to_responses, to_google)
IMAGE: Json = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
DEEP = '{"a":' * 50_000


def nested(levels: int) -> Json:
    """Return an object in an object in an object."""
    value: Json = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def call(name: str, **members: Any) -> Json:
    """Return a content of Gemini with one call."""
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}, **members}}]}


def result(name: str, **members: Any) -> Json:
    """Return a content of Gemini with one result."""
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"output": "x"}, **members}}]}


def pairs(messages: list[Json]) -> list[str]:
    """Return the ids of calls and results, in their order."""
    return [
        str(message.get("toolCallId") or part.get("id"))
        for message in messages
        for part in message["content"]
        if message["role"] == "toolResult" or part["type"] == "toolCall"
    ]


# -- calls and results of Gemini


def test_a_result_without_an_id_belongs_to_the_call_that_has_one() -> None:
    """Other APIs find the call of the result; Gemini gets back what it sent."""
    contents = [call("ls", id="c1"), result("ls")]
    messages = neutral(contents)
    assert pairs(messages) == ["c1", "c1"]
    sent = to_anthropic(messages)["messages"]
    assert sent[0]["content"][0]["id"] == sent[1]["content"][0]["tool_use_id"] == "c1"
    assert to_google(messages)["contents"] == contents
    assert pairs(neutral(result("ls"), neutral(call("ls", id="c1")))) == ["c1"]


def test_a_result_with_an_id_leaves_the_other_call_to_the_one_without() -> None:
    """In one content, the order of the results does not matter then."""
    parts = [*result("ls")["parts"], *result("ls", id="c1")["parts"]]
    messages = neutral([call("ls", id="c1"), call("ls", id="c2"), {"role": "user", "parts": parts}])
    assert pairs(messages) == ["c1", "c2", "c2", "c1"]


def test_a_call_that_was_never_answered_does_not_take_a_later_result() -> None:
    """A result belongs to the latest turn that has an open call of its name; there, to the first."""
    words = {"role": "user", "parts": [{"text": "again"}]}
    messages = neutral([call("ls", id="old"), words, call("ls", id="a"), call("ls"), result("ls"), result("ls")])
    assert pairs(messages) == ["old", "a", "ls_1", "a", "ls_1"]


def test_many_calls_of_gemini_take_linear_time() -> None:
    """Four times as many take about four times as long, not sixteen times."""

    def taken(count: int) -> float:
        contents = [content for _ in range(count) for content in (call("ls"), result("ls"))]
        started = time.process_time()
        assert pairs(neutral(contents))[-1] == f"ls_{count}"
        return time.process_time() - started

    assert taken(2_000) < 10 * max(min(taken(500), taken(500)), 0.005)


# -- stored values of other types than ours


@pytest.mark.parametrize("tools", [5, [5], [{}], "x", {"a": 1}, [[1]], [{"name": {}}]], ids=repr)
@pytest.mark.parametrize("member", ["toolsAdded", "toolsRemoved"])
def test_stored_tools_that_cannot_be_read_are_ignored(member: str, tools: Any) -> None:
    """A context with them is read, and a request has only the tools that are understood."""
    with Session.in_memory() as session:
        added = {"role": "system", "content": "be brief", "toolsAdded": [{"name": "ls"}]}
        session.append_entry({"type": "message", "message": added})
        session.append_entry({"type": "message", "message": {"role": "system", "content": "", member: tools}})
        session.append_message({"role": "user", "content": "hi"})
        context = session.context()
    assert context.tools == [{"name": "ls"}] and context.system == "be brief"
    for api in ("anthropic", "openai", "responses", "google"):
        assert "ls" in str(request_for(context, api)["tools"])
    prefixed = request_for(context, "anthropic", Dialect("x", prefix="my_"))
    assert [tool["name"] for tool in prefixed["tools"]] == ["my_ls"]


MARKS = (
    "$without",
    "$form",
    "$part",
    "$message",
    "$item",
    "$arguments",
    "$answer",
    "$parts",
    "source",
    "parts",
)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("value", [5, "x", None, [5], [{}], {"a": 1}, {"$without": 5}, -1.5, True], ids=repr)
def test_stored_marks_of_other_types_are_no_failure(mark: str, value: Any) -> None:
    """A file may say anything in `extra`; every message is still sent."""
    extra = {"extra": {api: {mark: value} for api in ("anthropic", "openai", "responses", "google")}}
    parts: list[Json] = [
        {"type": "text", "text": "one", **extra},
        {"type": "text", "text": "two", **extra},
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "{}", **extra},
        {"type": "toolCall", "id": "c", "name": "ls", "arguments": {}, **extra},
        {"type": "other", "api": "anthropic", "value": 5},
    ]
    media = [IMAGE | extra, {"type": "document", "text": "t", **extra}, {"type": "audio", "data": "UklG", **extra}]
    messages: list[Json] = [
        {"role": "user", "content": [parts[0], *media], **extra},
        {"role": "assistant", "content": parts, **extra},
        {"role": "toolResult", "toolCallId": "c", "content": [parts[0], media[0]], **extra},
        {"role": "toolResult", "toolCallId": "d", "content": "text", **extra},
        {"role": "user", "content": "bye", **extra},
    ]
    for shape in SHAPES:
        assert "one" in str(dict(shape(messages)))


def test_a_signature_that_is_nested_too_deeply_is_left_out() -> None:
    """Nor does the text of a result or the id of a text make a request fail."""
    messages: list[Json] = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "thinkingSignature": DEEP}]},
        {"role": "assistant", "content": [{"type": "text", "text": "x", "textSignature": DEEP + '"msg_1"'}]},
        {
            "role": "toolResult",
            "toolCallId": "c",
            "content": [{"type": "text", "text": DEEP}],
            "extra": {"google": {"$form": "json"}},
        },
    ]
    request = to_responses(messages)
    assert [note.did for note in request.notes] == ["dropped"]
    assert request["input"][0]["content"][0]["text"] == "x"
    assert to_google(messages)["contents"][-1]["parts"][0]["functionResponse"]["response"] == {"output": DEEP}


# -- what is refused


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"candidates": [{"content": "x"}]}, "candidates[0].content 'x': use a content"),
        ({"candidates": [{"content": result("ls")}]}, "candidates[0].content.role 'user': use one of \"model\""),
        (
            {"candidates": [{"content": {"parts": [{"text": "x"}]}}], "usageMetadata": [1]},
            "usageMetadata: use an object",
        ),
        ({"role": "user", "parts": [{1: 2}]}, "parts[0] '1': use a part with one of text"),
        ({"role": "user", "parts": [{"text": "x", "more": nested(5000)}]}, "parts: nested too deeply"),
        ([{"role": "user", "parts": [{"text": "x"}], "more": nested(5000)}], "[0].more: nested too deeply"),
        ({"role": "user", "content": [{"type": "image", "source": nested(5000)}]}, "content: nested too deeply"),
        ({"role": "system", "content": "x", "toolsAdded": 5}, "toolsAdded 5: use a list of objects with a name"),
        ({"role": "system", "content": "x", "toolsAdded": [5]}, "toolsAdded[0] 5: use a list of objects"),
        ({"role": "system", "content": "x", "toolsAdded": [{}]}, "toolsAdded[0].name None: use a text"),
        ({"role": "system", "content": "x", "toolsRemoved": [{}]}, "toolsRemoved[0]: use a list of names"),
        ([{"role": "system", "content": "x", "toolsRemoved": "ls"}], "[0].toolsRemoved 'ls': use a list of names"),
    ],
    ids=range(12),
)
def test_odd_values_are_refused_by_name(value: Any, message: str) -> None:
    """Nothing is written, and the error names the member and the rule."""
    with Session.in_memory() as session:
        with pytest.raises(InvalidEntry) as caught:
            session.append_message(value)
        assert message in str(caught.value)
        assert session.count_entries() == 0


def test_an_answer_of_gemini_without_parts_is_empty() -> None:
    """So it is when thinking used up the tokens."""
    (message,) = neutral({"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]})
    assert (message["content"], message["stopReason"]) == ([], "length")


@pytest.mark.parametrize(
    "several",
    [deque, lambda found: dict(enumerate(found)).values(), lambda found: {"a": found}["a"], iter],
    ids=["deque", "values", "list", "iterator"],
)
def test_messages_come_in_any_iterable(several: Callable[[list[Json]], Any]) -> None:
    """They are written in its order."""
    messages: list[Json] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with Session.in_memory() as session:
        assert len(session.append_messages(several(messages))) == 2
        assert session.context().messages == messages


# -- what a request cannot have


def test_several_refusals_are_sent_as_one() -> None:
    """None is lost, and a note says so."""
    parts = [{"type": "text", "text": text, "refusal": True} for text in ("no", "never")]
    request = to_openai([{"role": "assistant", "content": parts}])
    assert request["messages"][0]["refusal"] == "no\nnever"
    assert [note.did for note in request.notes] == ["merged"]


@pytest.mark.parametrize("shape", [to_anthropic, to_google])
def test_an_image_of_a_developer_message_at_the_start_is_noted(shape: Callable[[SessionContext], Any]) -> None:
    """The message is part of the system prompt, which is text."""
    with Session.in_memory() as session:
        receipt = session.append_message({"role": "developer", "content": [{"type": "text", "text": "be"}, IMAGE]})
        session.append_message({"role": "user", "content": "hi"})
        request = shape(session.context())
    ((entry, did, text),) = request.notes
    assert (entry, did) == (receipt.id, "dropped") and text.startswith("an image, which the system prompt of")
    assert "be" in str(request.get("system") or request["systemInstruction"])


@pytest.mark.parametrize("shape", [to_anthropic, to_google, to_responses])
def test_an_image_of_the_system_prompt_is_noted(shape: Callable[[Any], Any]) -> None:
    """One that a later snapshot replaces is not: it would not be sent anyway."""
    prompt: Json = {"role": "system", "content": [{"type": "text", "text": "be"}, IMAGE]}
    words: Json = {"role": "user", "content": "hi"}
    (note,) = shape([prompt, words]).notes
    assert (note.did, note.text) == ("dropped", "an image in a system message: the system prompt is text")
    assert not shape([prompt, {"role": "system", "content": "new", "replaces": True}, words]).notes


@pytest.mark.parametrize("shape", [to_openai, to_responses])
def test_a_failed_result_is_noted_where_results_cannot_fail(shape: Callable[[Any], Any]) -> None:
    """The note says that the model is not told."""
    failed: Json = {
        "role": "toolResult",
        "toolCallId": "c",
        "content": [{"type": "text", "text": "x"}],
        "isError": True,
    }
    (note,) = shape([failed]).notes
    assert note.text.startswith("the result is marked as failed, which the OpenAI ")
    assert not shape([failed | {"isError": False}]).notes


def test_members_of_answers_are_kept_on_every_message_of_anthropic() -> None:
    """They are stored, but no request has them."""
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    outcome = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
    about = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}}
    said, asked, told = neutral(
        [
            {"role": "assistant", "content": [block], "id": "msg_1"},
            {"role": "user", "content": [block], **about},
            {"role": "user", "content": [outcome], **about},
        ]
    )
    assert said["extra"]["anthropic"]["$answer"] == {"id": "msg_1"}
    assert asked["extra"]["anthropic"]["$answer"] == told["extra"]["anthropic"]["$answer"] == about
    assert "msg_1" not in str(to_anthropic([said, asked, told]))


@pytest.mark.parametrize("at", [10**18, 1e300, float("inf"), 253_402_300_800_000, -1, True, "x"])
def test_a_time_that_no_date_can_tell_is_none(at: Any) -> None:
    """Times from the year 10000 on are ignored."""
    assert time_of({"timestamp": at}) is None
    assert time_of({"timestamp": 253_402_300_799_999}) == 253_402_300_799_999


@pytest.mark.parametrize("name", ["a\u0000b", "\ud800", "folder", "pipe", "missing"])
def test_a_search_passes_over_outputs_that_are_no_files(tmp_path: Path, name: str) -> None:
    """The entry is searched as it is; nothing waits for a pipe."""
    path = tmp_path / "s.jsonl"
    (tmp_path / "s" / "folder").mkdir(parents=True)
    os.mkfifo(tmp_path / "s" / "pipe")
    (tmp_path / "s" / "file").write_text("whole")
    whole = _Whole(PosixFilesystem(), str(path), lambda digest: None)

    def entry(output: str) -> Json:
        return {"message": {"role": "toolResult", "content": "cut", "details": {"fullOutput": output}}}

    assert whole(entry("file"))["message"]["content"] == [{"type": "text", "text": "whole"}]
    assert whole(entry(name)) == entry(name)
