"""Result trimming: the gateway's view of old tool results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json, assistant, user
from sessile.core.result_trimming import (
    IMAGE_CHARS,
    MINUTE,
    OTHER_CHARS,
    SETTINGS,
    Trimmed,
    Trims,
    TrimSettings,
    apply_trims,
    count_chars,
    has_prompt_cache,
    is_trim_due,
    may_trim,
    parse_ttl,
    read_trims,
    trim_results,
)

pytestmark = pytest.mark.mission("Y8")

CLEARED = "[Old tool result content cleared]"


def result(chars: int, tool: str = "bash", **members: Any) -> Json:
    content = [{"type": "text", "text": "x" * chars}]
    return {"role": "toolResult", "toolCallId": "c", "toolName": tool, "content": content, **members}


def trimmed(messages: list[Json], window: int, kept: Trims | None = None, **settings: Any) -> Trimmed:
    sources = [f"e{number}" for number in range(len(messages))]
    return trim_results(messages, sources, window, kept or {}, SETTINGS._replace(**settings))


def text(message: Json) -> str:
    return str(message["content"][0]["text"])


ANSWERS = [assistant("1"), assistant("2"), assistant("3")]


def test_a_context_that_is_not_full_stays() -> None:
    """Below 30 % of the window nothing happens; from there on long results are trimmed."""
    messages = [user("q" * 2000), result(10_000), *ANSWERS]
    size = 2000 + 10_000 + 3
    assert trimmed(messages, 10_011).messages == messages  # 12,003 of 40,044 characters
    assert trimmed(messages, 10_002).trimmed == ("e1",)  # 12,003 of 40,008
    assert size / (10_011 * 4) < 0.3 <= size / (10_002 * 4)


def test_a_long_result_keeps_head_and_tail() -> None:
    """A note with the counts is added, and characters are not split."""
    long = result(0) | {
        "content": [
            {"type": "text", "text": "a" * 1499 + "🙂" + "b" * 3000},
            {"type": "text", "text": "🙂" + "c" * 1499},
        ]
    }
    found = trimmed([user("q"), long, *ANSWERS], 1000, hard_clear=False)
    assert text(found.messages[1]) == (
        "a" * 1499
        + "\n...\n"
        + "c" * 1499
        + "\n\n[Trimmed: the first 1500 and the last 1500 of 6003 characters are shown.]"
    )
    assert found.trims == {"e1": (1500, 1500)}
    assert found.messages[1]["toolCallId"] == "c"


@pytest.mark.parametrize(("chars", "is_trimmed"), [(4000, False), (4001, True)])
def test_only_long_results_are_trimmed(chars: int, is_trimmed: bool) -> None:
    """Over 4000 characters, and longer than the head and tail together."""
    assert bool(trimmed([user("q"), result(chars), *ANSWERS], 100, hard_clear=False).trimmed) is is_trimmed
    assert not trimmed([user("q"), result(chars), *ANSWERS], 100, hard_clear=False, head_chars=3000).trimmed


def test_what_stands_before_the_first_question_or_behind_the_last_answers_stays() -> None:
    """The last three answers and later messages are protected."""
    long = result(9000)
    messages = [long, user("q"), long, assistant("1"), long, assistant("2"), assistant("3"), long]
    assert trimmed(messages, 100, hard_clear=False).trimmed == ("e2",)
    assert trimmed(messages, 100, hard_clear=False, keep_last_assistants=2).trimmed == ("e2", "e4")
    assert trimmed(messages, 100, hard_clear=False, keep_last_assistants=0).trimmed == ("e2", "e4", "e7")
    assert trimmed(messages, 100, hard_clear=False, keep_last_assistants=4).trimmed == ()
    assert trimmed([long, *ANSWERS], 100).trimmed == ()


def test_results_with_images_and_other_tools_stay() -> None:
    """Images and denied tools are not trimmed."""
    image = result(0) | {"content": [{"type": "text", "text": "x" * 9000}, {"type": "image", "data": "AA"}]}
    messages = [user("q"), image, result(9000, "Memory_Get"), result(9000, "exec"), *ANSWERS]
    assert trimmed(messages, 100, min_prunable_chars=0).cleared == ("e2", "e3")
    assert trimmed(messages, 100, min_prunable_chars=0, deny=("memory_*",)).cleared == ("e3",)
    assert trimmed(messages, 100, min_prunable_chars=0, allow=("*GET",)).cleared == ("e2",)


def test_results_are_cleared_oldest_first_until_there_is_room() -> None:
    """Clearing stops when the context is below half of the window."""
    messages = [user("q"), *[result(4000)] * 20, *ANSWERS]
    found = trimmed(messages, 30_000)  # 80,004 of 120,000 characters
    assert found.trimmed == ()
    assert found.cleared == tuple(f"e{number}" for number in range(1, 7))
    assert [text(message) for message in found.messages[1:8]] == [CLEARED] * 6 + ["x" * 4000]
    assert sum(map(count_chars, found.messages)) < 60_000
    assert trimmed(messages, 30_000, hard_clear=False).cleared == ()
    assert trimmed(messages, 30_000, placeholder="gone").trims["e1"] == "gone"


def test_nothing_is_cleared_for_little() -> None:
    """Clearing needs at least 50,000 characters of results, counted after trimming."""
    few = [user("q"), *[result(4000)] * 12, *ANSWERS]
    assert trimmed(few, 10_000).cleared == ()
    assert trimmed([*few[:-3], result(4000), *ANSWERS], 10_000).cleared
    long = [user("q"), *[result(30_000)] * 12, *ANSWERS]
    found = trimmed(long, 10_000)
    assert len(found.trimmed) == 12
    assert found.cleared == ()


def test_a_trimmed_result_may_be_cleared_later() -> None:
    """A result is cleared when the context has grown, and stays cleared."""
    messages = [user("q"), result(9000), result(100), *ANSWERS]
    first = trimmed(messages, 6000)
    assert first.trims == {"e1": (1500, 1500)}
    second = trimmed(messages, 50, first.trims, min_prunable_chars=0)
    assert second.trimmed == ()
    assert second.trims == {"e1": CLEARED, "e2": CLEARED}
    assert trimmed(messages, 50, second.trims, min_prunable_chars=0) == Trimmed(second.messages, second.trims)


def test_what_was_done_is_done_again_byte_for_byte() -> None:
    """The result is the same after a restart, with other settings, and with more messages."""
    messages = [user("q"), result(9000), *[result(4000)] * 14, *ANSWERS]
    sources = [f"e{number}" for number in range(len(messages))]
    first = trim_results(messages, sources, 20_000, {})
    assert first.trimmed and first.cleared
    stored = read_trims(json.loads(json.dumps(first.trims)))
    assert stored == first.trims
    assert apply_trims(messages, sources, stored) == first.messages
    other = SETTINGS._replace(head_chars=5, tail_chars=5, max_chars=20, placeholder="other", soft_trim_ratio=1)
    assert trim_results(messages, sources, 10**9, stored, other).messages == first.messages
    assert apply_trims([*messages, user("more")], [*sources, None], stored)[:-1] == first.messages


def test_what_cannot_be_remembered_is_left_alone() -> None:
    """A message without an entry; arguments are not changed."""
    messages = [user("q"), result(9000), *ANSWERS]
    found = trim_results(messages, [None] * 5, 100, {}, TrimSettings(min_prunable_chars=0))
    assert found == Trimmed(messages, {})
    kept: Trims = {}
    trim_results(messages, list("abcde"), 100, kept)
    assert kept == {}
    assert messages[1] == result(9000)


def test_a_stored_projection_that_is_damaged_is_left_out() -> None:
    """Only valid trims count."""
    stored = {"a": [1, 2], "b": "gone", "c": [1], "d": [-1, 2], "e": ["1", 2], "f": None, "g": [True, 2]}
    assert read_trims(stored) == {"a": (1, 2), "b": "gone"}
    assert read_trims(None) == read_trims([]) == {}
    assert apply_trims([user("q"), result(2)], ["b", "a"], read_trims(stored)) == [user("q"), result(2)]


def test_an_unknown_window_trims_nothing() -> None:
    """Zero or less is not a window."""
    messages = [user("q"), result(9000), *ANSWERS]
    for window in (0, -5):
        assert trimmed(messages, window) == Trimmed(messages, {})


@pytest.mark.parametrize(
    ("message", "chars"),
    [
        (user("abc🙂"), 5),
        (
            {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "image", "data": "A"}]},
            2 + IMAGE_CHARS,
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hmm"},
                    {"type": "toolCall", "name": "long name", "arguments": {"a": 1}},
                    {"type": "toolCall", "name": "x"},
                    {"type": "text", "text": 5},
                    {"type": "odd"},
                ],
            },
            3 + 7 + 2,
        ),
        (result(7), 7),
        ({"role": "compactionSummary", "summary": "long"}, OTHER_CHARS),
        ({"role": "toolResult", "content": None}, 0),
    ],
)
def test_how_many_characters_a_message_counts(message: Json, chars: int) -> None:
    """Texts, thoughts and arguments by length, images and other roles by a fixed number."""
    assert count_chars(message) == chars


@pytest.mark.parametrize(
    ("touch", "now", "ttl", "due"),
    [
        (None, 10**9, 1, False),
        (0, 5 * MINUTE - 1, 5 * MINUTE, False),
        (0, 5 * MINUTE, 5 * MINUTE, True),
        (0, 10**9, 0, False),
        (0, 10**9, -1, False),
        (100, 50, 10, False),
    ],
)
def test_trimming_waits_until_the_cache_is_cold(touch: int | None, now: int, ttl: int, due: bool) -> None:
    """The last request must be old enough; a clock that was set back is not due."""
    assert is_trim_due(touch, now, ttl) is due


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("5m", 5 * MINUTE),
        ("1h", 60 * MINUTE),
        (" 1.5 H ", 90 * MINUTE),
        ("30s", 30_000),
        ("250ms", 250),
        ("2d", 2880 * MINUTE),
        (5, 5 * MINUTE),
        ("7", 7 * MINUTE),
        ("0", 0),
        ("-1m", None),
        ("soon", None),
        (None, None),
        (True, None),
    ],
)
def test_durations_are_read(value: object, milliseconds: int | None) -> None:
    """The default unit is minutes; an invalid duration is `None`."""
    assert parse_ttl(value) == milliseconds


@pytest.mark.parametrize(
    ("provider", "model", "applies"),
    [
        ("anthropic", "claude", True),
        ("Anthropic", "claude", True),
        ("openrouter", "anthropic/claude", True),
        ("openrouter", "openai/gpt", False),
        ("openai", "anthropic/x", False),
    ],
)
def test_trimming_is_for_caches_of_claude(provider: str, model: str, applies: bool) -> None:
    """Other caches have other rules."""
    assert has_prompt_cache(provider, model) is applies


@pytest.mark.parametrize(
    ("tool", "allow", "deny", "may"),
    [
        ("read", (), (), True),
        ("read", ("READ",), (), True),
        ("read", ("re*",), (), True),
        ("read", ("*",), ("r*d",), False),
        ("read", ("write",), (), False),
        ("read", (" ",), (), True),
        ("read", (), (" ", "reader"), True),
        ("a.b", ("a?b", "a.*"), (), True),
        ("axb", ("a.b",), (), False),
    ],
)
def test_tools_are_matched_by_patterns(tool: str, allow: tuple[str, ...], deny: tuple[str, ...], may: bool) -> None:
    """Only `*` is special, case is ignored; deny wins, no pattern allows all."""
    assert may_trim(tool, allow, deny) is may


@given(
    st.lists(
        st.sampled_from([user("q" * 50), assistant("a" * 40), result(90), result(300), result(30, "keep")]), max_size=14
    ),
    st.integers(1, 500),
)
def test_trimming_again_changes_nothing(messages: list[Json], window: int) -> None:
    """The next request starts with the same bytes, and fresh or denied messages are never changed."""
    settings = TrimSettings(
        keep_last_assistants=1, min_prunable_chars=100, max_chars=200, head_chars=50, tail_chars=20, deny=("keep",)
    )
    sources = [f"e{number}" for number in range(len(messages))]
    once = trim_results(messages, sources, window, {}, settings)
    again = trim_results(messages, sources, window, once.trims, settings)
    assert again == Trimmed(once.messages, once.trims)
    for message, shown in zip(messages, once.messages, strict=True):
        assert shown is message or (message["role"] == "toolResult" and message["toolName"] == "bash")
