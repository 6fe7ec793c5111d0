"""Answers of models, put together from their streams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.vendors.answers import Answer, AnthropicAnswer, OpenAIAnswer, assistant_message

pytestmark = pytest.mark.mission("Y13")

WORDS = st.lists(st.text(min_size=1, max_size=8), max_size=6)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=6), st.none()), max_size=3)
NAMES = st.sampled_from(
    [
        "type",
        "index",
        "delta",
        "choices",
        "content",
        "text",
        "thinking",
        "tool_calls",
        "function",
        "arguments",
        "id",
        "name",
        "usage",
        "finish_reason",
        "message",
        "content_block",
        "partial_json",
        "signature",
        "stop_reason",
        "prompt_tokens",
        "input_tokens",
        "prompt_tokens_details",
        "input",
        "data",
    ]
)
KINDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "text_delta",
        "thinking_delta",
        "signature_delta",
        "input_json_delta",
        "text",
        "thinking",
        "tool_use",
        "redacted_thinking",
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=3), KINDS)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=5)),
    max_leaves=12,
)


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(index: int | None, arguments: str, **named: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": named.pop("name")} if "name" in named else {})
    return chunk({"tool_calls": [({} if index is None else {"index": index}) | named | {"function": function}]})


def told(answer: Answer, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message; the text returned piece by piece must be its text."""
    said = "".join([answer.add(event) for event in events])
    assert said == answer.text and answer.length == len(said)
    return assistant_message(answer, provider="p", model="m")


def cuts(text: str, places: list[int]) -> list[str]:
    at = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in pairwise(at)]


@given(WORDS, WORDS, ARGUMENTS, st.lists(st.integers(0, 99), max_size=5))
def test_an_openai_answer_is_the_same_however_its_stream_was_cut(
    thoughts: list[str], words: list[str], arguments: dict[str, Any], places: list[int]
) -> None:
    """Thoughts, text and arguments are the sum of their pieces."""
    events = [chunk({"reasoning_content": piece}) for piece in thoughts] + [
        chunk({"content": piece}) for piece in words
    ]
    events += [call(0, "", id="c1", name="look")]
    events += [call(0, piece) for piece in cuts(json.dumps(arguments), places)] + [chunk({}, "tool_calls")]
    content = told(OpenAIAnswer(), events)["content"]
    expected = [{"type": "thinking", "thinking": "".join(thoughts)}] if thoughts else []
    expected += [{"type": "text", "text": "".join(words)}] if words else []
    assert content == [*expected, {"type": "toolCall", "id": "c1", "name": "look", "arguments": arguments}]


@given(WORDS, WORDS, ARGUMENTS, st.lists(st.integers(0, 99), max_size=5))
def test_an_anthropic_answer_is_the_same_however_its_stream_was_cut(
    thoughts: list[str], words: list[str], arguments: dict[str, Any], places: list[int]
) -> None:
    """Thoughts keep their signature, which comes in pieces too."""

    def block(index: int, begun: dict[str, Any], deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        start = {"type": "content_block_start", "index": index, "content_block": begun}
        return [start, *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)]

    thinking = [{"type": "thinking_delta", "thinking": piece} for piece in thoughts]
    signing = [{"type": "signature_delta", "signature": piece} for piece in cuts("signed", places)]
    events = block(0, {"type": "thinking", "thinking": "", "signature": ""}, thinking + signing)
    events += block(1, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in words])
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in cuts(json.dumps(arguments), places)]
    events += block(2, {"type": "tool_use", "id": "c1", "name": "look", "input": {}}, pieces)
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}]
    message = told(AnthropicAnswer(), events)
    assert message["stopReason"] == "toolUse"
    expected: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "".join(thoughts), "thinkingSignature": "signed"},
        {"type": "text", "text": "".join(words)},
        {"type": "toolCall", "id": "c1", "name": "look", "arguments": arguments},
    ]
    assert message["content"] == [block for block in expected if block.get("text") != ""]


@pytest.mark.parametrize("kind", [{}, [], None, 7])
def test_a_delta_of_no_type_says_nothing(kind: Any) -> None:
    """Later events are still read."""
    events = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": each, "text": "x"}}
        for each in (kind, "text_delta")
    ]
    assert told(AnthropicAnswer(), events)["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("make", [OpenAIAnswer, AnthropicAnswer])
@given(events=st.lists(st.dictionaries(NAMES, ANYTHING, max_size=6), max_size=5))
def test_no_event_of_whatever_shape_breaks_an_answer(make: type[Answer], events: list[dict[str, Any]]) -> None:
    """Invalid events are ignored."""
    answer = make()
    for event in events:
        answer.add(event)
    message = assistant_message(answer, provider="p", model="m")
    assert json.loads(json.dumps(message)) == message
    assert all(isinstance(block, dict) and isinstance(block["type"], str) for block in message["content"])


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "toolUse"), ("function_call", "toolUse"), ("eos", "error")],
)
def test_reasons_of_openai_become_ours(reason: str, stop: str) -> None:
    """An unknown reason is an error that names it."""
    message = told(OpenAIAnswer(), [chunk({"content": "x"}), chunk({}, reason)])
    assert message["stopReason"] == stop
    assert message.get("errorMessage") == ("m stopped: eos" if stop == "error" else None)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "toolUse"),
        ("refusal", "error"),
    ],
)
def test_reasons_of_anthropic_become_ours(reason: str, stop: str) -> None:
    """An unusual reason is an error that names it."""
    message = told(AnthropicAnswer(), [{"type": "message_delta", "delta": {"stop_reason": reason}}])
    assert message["stopReason"] == stop and ("refusal" in str(message)) == (stop == "error")


def test_an_answer_that_calls_tools_and_says_stop_stops_for_them() -> None:
    """Some endpoints always report "stop"; "length" stays."""
    assert told(OpenAIAnswer(), [call(0, "{}", id="a", name="x"), chunk({}, "stop")])["stopReason"] == "toolUse"
    cut = told(OpenAIAnswer(), [call(0, '{"a', id="a", name="x"), chunk({}, "length")])
    assert cut["stopReason"] == "length" and cut["content"][0]["partialJson"] == '{"a'


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_are_all_numbered_alike_are_told_apart_by_their_ids(index: int | None) -> None:
    """Some endpoints number every call 0, or none."""
    events = [call(index, '{"n": 1}', id="a", name="x"), call(index, '{"n":', id="b", name="y"), call(index, " 2}")]
    content = told(OpenAIAnswer(), [*events, chunk({}, "tool_calls")])["content"]
    assert [(block["id"], block["name"], block["arguments"]) for block in content] == [
        ("a", "x", {"n": 1}),
        ("b", "y", {"n": 2}),
    ]


@pytest.mark.parametrize("arguments", ["[1]", "{", "no", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_object_are_an_error_and_kept(arguments: str) -> None:
    """A tool must not run with incomplete arguments."""
    message = told(OpenAIAnswer(), [call(0, arguments, id="a", name="x"), chunk({}, "tool_calls")])
    assert message["stopReason"] == "error" and "x" in message["errorMessage"]
    assert message["content"][0] | {"id": "a"} == message["content"][0]
    assert message["content"][0]["partialJson"] == arguments and message["content"][0]["arguments"] == {}


def test_a_call_without_arguments_has_none() -> None:
    """An empty text means an empty object."""
    content = told(OpenAIAnswer(), [call(0, "", id="a", name="x"), chunk({}, "tool_calls")])["content"]
    assert content == [{"type": "toolCall", "id": "a", "name": "x", "arguments": {}}]


def test_what_openai_read_from_its_cache_is_no_part_of_the_input() -> None:
    """OpenAI's own count includes it."""
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
    message = told(OpenAIAnswer(), [chunk({"content": "x"}, "stop"), {"choices": [], "usage": usage}])
    assert message["usage"] == {"input": 40, "output": 7, "cacheRead": 60, "totalTokens": 107}


def test_what_anthropic_counts_at_the_end_adds_to_what_it_counted_at_the_beginning() -> None:
    """Cache and input are reported at the start, output at the end."""
    begun = {"input_tokens": 5, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 1}
    events = [{"type": "message_start", "message": {"usage": begun}}]
    ended = {"output_tokens": 7, "cache_read_input_tokens": None}
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ended}]
    usage = told(AnthropicAnswer(), events)["usage"]
    assert usage == {"input": 5, "output": 7, "cacheRead": 60, "cacheWrite": 30, "totalTokens": 102}


def test_tokens_that_nobody_counted_are_not_told() -> None:
    """Unknown is not zero."""
    assert "usage" not in told(OpenAIAnswer(), [chunk({"content": "x"}, "stop")])
    half = told(OpenAIAnswer(), [chunk({}, "stop", usage={"completion_tokens": 3})])
    assert half["usage"] == {"output": 3}


def test_blocks_without_a_name_of_ours_are_kept_as_they_came() -> None:
    """Hidden thoughts have a native name."""
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    other = {"type": "server_tool_use", "id": "s", "name": "web", "input": {"q": 1}}
    events = [{"type": "content_block_start", "index": n, "content_block": b} for n, b in enumerate((hidden, other))]
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]
    assert told(AnthropicAnswer(), events)["content"] == [{"type": "redactedThinking", "data": "xyz"}, other]
