"""The codec encodes any value as one line that decodes to the same value."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import Json
from sessile.core.codec import decode, encode
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.family import convert_to_llm
from sessile.core.messages.openai_chat import openai_messages
from sessile.core.text import utf16_cut, utf16_length, without_surrogates
from sessile.errors import InvalidEntry
from strategies import NASTY, as_javascript, json_objects, json_values

pytestmark = pytest.mark.promise("P10")

any_text = st.text(st.characters() | st.sampled_from(NASTY), max_size=30)


@given(json_objects)
@example({"a": 1e16, "b": 1e22, "c": -0.0, "d": [2.0]})
@example({"\ud83d\ude42": "\ud83d\ude42\ud83d"})
def test_an_encoded_value_is_one_line_and_decodes_to_an_equal_value(value: Json) -> None:
    """The line is valid UTF-8 without raw control characters, and its value equals JavaScript's."""
    line = encode(value)
    assert not any(byte < 0x20 for byte in line)
    line.decode("utf-8", "strict")
    assert as_javascript(decode(line)) == as_javascript(value)
    assert as_javascript(json.loads(line)) == as_javascript(value)


@given(json_objects)
def test_encoding_again_gives_the_same_bytes(value: Json) -> None:
    """Decoding and encoding again changes nothing."""
    once = encode(decode(encode(value)))
    assert encode(decode(once)) == once


@given(json_objects)
def test_whole_floats_and_tuples_are_written_as_javascript_writes_them(value: Json) -> None:
    """A tuple is a list, and no number ends in `.0`."""

    def tupled(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: tupled(each) for key, each in item.items()}
        return tuple(tupled(each) for each in item) if isinstance(item, list) else item

    assert encode(tupled(value)) == encode(value)
    floats: list[float] = []

    def note(digits: str) -> float:
        assert not digits.endswith(".0")
        floats.append(float(digits))
        return floats[-1]

    json.loads(encode(value), parse_float=note)


@given(json_values, st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans(), st.data())
def test_nan_and_infinity_are_refused_anywhere(value: Any, number: float, deep: bool, data: st.DataObject) -> None:
    """They are refused beside any other value, in a list or an object."""
    hidden: Any = [value, number] if deep else {"x": value, "y": number}
    with pytest.raises(InvalidEntry):
        encode({"a": hidden} if data.draw(st.booleans()) else {"b": [1, hidden, "\ud800"]})


@given(any_text)
def test_lone_surrogates_survive_as_escapes(text: str) -> None:
    """Only what JSON requires and lone surrogates are escaped."""
    line = encode({"t": text})
    assert as_javascript(decode(line)["t"]) == as_javascript(text)
    whole = as_javascript(text)
    lone = sum(0xD800 <= ord(character) <= 0xDFFF for character in whole)
    assert line.replace(b"\\\\", b"").count(b"\\ud") >= lone


@given(any_text)
def test_replacing_surrogates_changes_nothing_else(text: str) -> None:
    """The result is valid UTF-8 of the same length, and equal if there was nothing to replace."""
    clean = without_surrogates(text)
    clean.encode("utf-8", "strict")
    assert utf16_length(clean) == utf16_length(text)
    joined = as_javascript(text)
    assert clean == "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in joined)


@given(any_text, st.integers(0, 40))
def test_a_cut_is_a_prefix_of_whole_characters(text: str, units: int) -> None:
    """The cut is within the limit, at most one unit shorter than possible, and never splits a pair."""
    whole = as_javascript(text)
    cut = utf16_cut(whole, units)
    assert whole.startswith(cut)
    assert min(units, utf16_length(whole)) - 1 <= utf16_length(cut) <= units or not cut


messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(
            ["user", "assistant", "toolResult", "system", "custom", "bashExecution", "branchSummary"]
        )
    },
    optional={
        "content": json_values
        | st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["text", "thinking", "toolCall", "image", "redactedThinking"])},
                optional=dict.fromkeys(
                    ["text", "thinking", "thinkingSignature", "id", "name", "arguments", "data"], json_values
                ),
            ),
            max_size=3,
        ),
        "summary": json_values,
        "command": json_values,
        "output": json_values,
        "toolCallId": json_values,
    },
)


@given(st.lists(messages, max_size=4))
def test_any_context_can_be_sent(context: list[Json]) -> None:
    """Any messages convert to valid UTF-8 JSON."""
    assert len(convert_to_llm(context)) <= len(context)
    for shape in (anthropic_messages, openai_messages):
        json.dumps(shape(context), ensure_ascii=False, allow_nan=False).encode("utf-8", "strict")
