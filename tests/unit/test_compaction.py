"""When a compaction is due, what it would do, and which results are refused."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import pytest

from builders import Json
from compacting import (
    LABEL,
    LATER,
    RESET,
    THOUGHT,
    Step,
    answered,
    chained,
    compacted,
    edited,
    instructed,
    prepared,
    ran,
    read,
    result,
    said,
    steps_of,
    words,
)
from sessile.core import entries
from sessile.core.compaction import CompactionSettings, Preparation, Result, Span, account, context_size, is_due, verify
from sessile.core.tokens import Message, Snapshot

pytestmark = pytest.mark.mission("Y9")

TURNS = (said(10), answered(10), said(10), answered(10), said(10), answered(10))


def ready(keep: float, *payloads: Json) -> Preparation[Step]:
    preparation = prepared(chained(*payloads), keep)
    assert preparation is not None
    return preparation


def sizes(messages: Iterable[Message]) -> list[int]:
    """Return the sizes of texts; 0 for blocks."""
    return [len(message["content"]) // 4 if isinstance(message["content"], str) else 0 for message in messages]


# -- settings


def test_the_reserve_is_the_larger_of_both() -> None:
    """The floor raises the default, and 0 turns it off."""
    assert CompactionSettings().reserve(200_000) == 20_000
    assert CompactionSettings(reserve_tokens_floor=0).reserve(200_000) == 16_384
    assert CompactionSettings(reserve_tokens=30_000).reserve(200_000) == 30_000
    assert CompactionSettings().reserve(None) == 20_000


def test_small_models_keep_half_their_window() -> None:
    """Otherwise a small window would always be due."""
    assert CompactionSettings().reserve(8_192) == 4_096
    assert CompactionSettings().reserve(40_000) == 20_000
    assert CompactionSettings().reserve(0) == 0
    assert is_due(4_097, 8_192, CompactionSettings())
    assert not is_due(4_096, 8_192, CompactionSettings())


@pytest.mark.parametrize("wrong", [-1, math.inf, -math.inf, math.nan])
def test_a_number_that_makes_no_sense_is_the_default(wrong: float) -> None:
    """Every setting falls back to its default."""
    assert CompactionSettings(reserve_tokens=wrong, reserve_tokens_floor=0).reserve(200_000) == 16_384
    assert CompactionSettings(reserve_tokens_floor=wrong).reserve(200_000) == 20_000
    assert CompactionSettings(keep_recent_tokens=wrong).keep(200_000) == 20_000


def test_what_is_kept_leaves_something_to_sum_up() -> None:
    """At most half of the usable part is kept."""
    assert CompactionSettings().keep(200_000) == 20_000
    assert CompactionSettings().keep(None) == 20_000
    assert CompactionSettings().keep(8_192) == 2_048
    assert prepared(chained(*TURNS), 20_000, window=64) is not None
    assert prepared(chained(*TURNS), 20_000) is None


def test_settings_are_read_under_their_documented_names() -> None:
    """Settings are in camel case, as in configuration files."""
    read_back = msgspec.convert({"enabled": False, "reserveTokens": 1, "keepRecentTokens": 2}, CompactionSettings)
    assert read_back == CompactionSettings(enabled=False, reserve_tokens=1, keep_recent_tokens=2)


def test_compaction_is_due_above_the_threshold_and_not_at_it() -> None:
    """The context must be larger than the window without the reserve."""
    assert not is_due(180_000, 200_000, CompactionSettings())
    assert is_due(180_001, 200_000, CompactionSettings())
    assert not is_due(199_999, 200_000, CompactionSettings(enabled=False))


@pytest.mark.parametrize(("tokens", "window"), [(10**9, None), (None, 1000), (10**9, 0), (10**9, -5)])
def test_nothing_is_due_when_nobody_knows(tokens: int | None, window: int | None) -> None:
    """An unknown window or size is never due."""
    assert not is_due(tokens, window, CompactionSettings())


# -- preparation


def test_a_preparation_says_what_stays_and_what_is_summed_up() -> None:
    """A preparation has the messages in order, and the first and last entry of each part."""
    found = ready(15, *TURNS)
    assert found.first_kept_id == "e4"
    assert found.kept_tokens == 20
    assert not found.is_split_turn
    assert [message["role"] for message in found.history()] == ["user", "assistant"] * 2
    assert list(found.turn_prefix()) == []
    assert len(list(found.kept())) == 2
    assert found.history_span == Span("e0", "e3")
    assert found.turn_prefix_span is None
    assert (found.previous, found.previous_summary, found.preserve_data, found.system_message) == (None,) * 4


def test_a_split_turn_is_told_apart_from_the_history() -> None:
    """The turn prefix goes from the start of the turn to the cut."""
    found = ready(3, said(10), answered(10), said(3), answered(10, "c"), result(100, "c"), answered(5))
    assert found.is_split_turn
    assert found.history_span == Span("e0", "e1")
    assert found.turn_prefix_span == Span("e2", "e4")
    assert [message["role"] for message in found.turn_prefix()] == ["user", "assistant", "toolResult"]
    alone = ready(3, said(10), answered(10), answered(5))
    assert alone.history_span is None
    assert list(alone.history()) == []


def test_the_second_compaction_carries_on_the_first() -> None:
    """Its summary is updated, its kept entries are summarized, and older entries are not read."""
    found = ready(
        5, said(1), answered(1), said(2), answered(2), compacted("e2", 7), said(3), answered(3), said(4), answered(4)
    )
    assert found.previous_summary == words(7)
    assert found.history_span == Span("e2", "e6")
    assert sizes(found.history()) == [2, 0, 3, 0]


def test_a_preparation_knows_what_a_summary_would_stand_for() -> None:
    """The messages of both parts and the previous summary."""
    assert ready(5, *TURNS).replaced_tokens() == 50
    assert ready(5, *TURNS, compacted("e4", 7), said(10), answered(10)).replaced_tokens() == 7 + 30
    assert ready(5, *TURNS).replaced_tokens(lambda message: 1) == 5


def test_a_summary_that_was_taken_out_is_not_carried_on() -> None:
    """The model does not see it either."""
    found = ready(5, *TURNS, compacted("e4", 7), said(10), answered(10), edited("e6", None))
    assert found.previous is not None
    assert found.previous_summary is None
    assert found.tokens_before == Snapshot(40, "estimate")


def test_data_of_the_compaction_before_is_carried_on() -> None:
    """A provider's own history is not carried on, because it covers other entries."""
    sealed = {"openaiRemoteCompaction": {"provider": "p", "replacementHistory": []}}
    kept = compacted("e4", preserveData={"mine": 1, **sealed})
    found = ready(5, *TURNS, kept, said(10), answered(10))
    assert found.preserve_data == {"mine": 1}
    assert found.history_span == Span("e4", "e6")
    assert ready(5, *TURNS, compacted("e4", preserveData=sealed), said(10), answered(10)).preserve_data is None


def test_instructions_are_carried_on() -> None:
    """A compaction hides the system messages before it, so it carries them, newest last; they are not summarized."""
    old = {"role": "system", "content": "old"}
    start = (*TURNS, compacted("e4", systemMessage=old))
    carried = ready(5, *start, said(10), answered(10))
    assert carried.system_message == old
    assert old not in carried.history()
    newer = instructed(1)
    both = ready(12, *start, said(10), answered(10), said(1), newer, answered(10)).system_message
    assert both is not None and both["content"] == f"old\n\n{newer['message']['content']}"
    removed = ready(5, *start, said(10), answered(10), edited("e6", None))
    assert removed.system_message is None
    assert old not in removed.history()
    hidden = ready(5, said(1), instructed(50), answered(1), compacted("e0", systemMessage=old), said(10), answered(10))
    assert [message["role"] for message in hidden.history()] == ["user", "assistant"]


def test_carried_instructions_are_those_that_are_in_force() -> None:
    """Sections and tools that later system messages change or remove are carried as they are then."""
    first = {"sections": {"a": "A", "b": "B"}, "toolsAdded": [{"name": "t"}, {"name": "u"}]}
    second = {"sections": {"a": "new", "b": None}, "toolsRemoved": ["t"]}
    messages = [{"role": "system", "content": "", **changes} for changes in (first, second)]
    path = (*({"type": "message", "message": message} for message in messages), *TURNS)
    carried = ready(5, *path).system_message
    assert carried is not None
    assert (carried["sections"], carried["toolsAdded"]) == ({"a": "new"}, [{"name": "u"}])


@pytest.mark.mission("Y7")
def test_the_provider_is_believed_about_the_context() -> None:
    """The size is the last reported one plus later messages."""
    path = chained(said(10), answered(13, usage=1001), said(5), answered(3))
    assert ready(4, *path).tokens_before == Snapshot(1009, "provider", "e1")
    assert context_size(steps_of(path), read) == Snapshot(1009, "provider", "e1")
    assert context_size(steps_of([]), read) == Snapshot(0, "estimate")


@pytest.mark.mission("Y7")
def test_the_provider_is_not_believed_about_what_changed_since() -> None:
    """After a compaction or an edit everything is estimated."""
    compact = (said(10), answered(13, usage=1001, at=LATER), compacted("e0", 2), said(5), answered(3))
    assert context_size(steps_of(chained(*compact)), read) == Snapshot(2 + 10 + 13 + 5 + 3, "estimate")
    edit = (said(10), answered(13, usage=1001), said(5), edited("e0", None))
    assert context_size(steps_of(chained(*edit)), read) == Snapshot(18, "estimate")
    before = (said(10), said(10), edited("e0", None), answered(13, usage=1001), said(5))
    assert context_size(steps_of(chained(*before)), read) == Snapshot(1006, "provider", "e3")


def test_files_are_collected_from_what_is_summed_up() -> None:
    """Files of the previous compaction are included; those of kept entries are not."""
    reads = {"type": "toolCall", "id": "c", "name": "read", "arguments": {"path": "a"}}
    writes = {"type": "toolCall", "id": "d", "name": "write", "arguments": {"path": "b"}}
    early, late = (
        {"type": "message", "message": {"role": "assistant", "content": [call, {"type": "text", "text": words(20)}]}}
        for call in (reads, writes)
    )
    found = ready(15, *TURNS, compacted("e4", details={"modifiedFiles": ["z"]}), early, said(1), late)
    assert found.files().details() == {"readFiles": ["a"], "modifiedFiles": ["z"]}


# -- the account


def test_every_entry_is_accounted_for() -> None:
    """Entries are listed newest first, each with its fate."""
    path = chained(
        said(5),  # e0
        RESET,
        said(1),
        answered(2),
        compacted("e2"),
        answered(4),  # e5
        compacted("e5"),
        THOUGHT,
        said(3),
        edited("e5", None),
        answered(6),  # e10
        ran(9, excludeFromContext=True),
        answered(7),
        LABEL,
        entries.leaf_marker(),
    )
    preparation = prepared(path, 5)
    assert preparation is not None
    assert dict(account(steps_of(path), preparation)) == {
        "e0": "cleared",
        "e1": "silent",
        "e2": "earlier",
        "e3": "earlier",
        "e4": "earlier",
        "e5": "removed",
        "e6": "earlier",
        "e7": "silent",
        "e8": "turn_prefix",
        "e9": "silent",
        "e10": "turn_prefix",
        "e11": "silent",
        "e12": "kept",
        "e13": "silent",
    }


def test_what_was_cleared_is_said_to_be() -> None:
    """Entries before a reset are "cleared", not summarized."""
    path = chained(said(5), THOUGHT, RESET, *TURNS)
    preparation = prepared(path, 15)
    assert preparation is not None
    fates = dict(account(steps_of(path), preparation))
    assert [fates[f"e{number}"] for number in range(4)] == ["cleared", "silent", "silent", "history"]


# -- verification

LONG = (said(100), answered(100), said(10), answered(10))


def reasons(outcome: Result, preparation: Preparation[Step], replaced: int | None = None) -> list[str]:
    return [objection.reason for objection in verify(outcome, preparation, replaced_tokens=replaced)]


def test_a_good_result_passes() -> None:
    """It is complete and shorter than what it replaces."""
    assert reasons(Result("short", "e2", "stop"), ready(15, *LONG), 200) == []


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Result(" \n", "e2"), "empty"),
        (Result("short", "e2", "length"), "cut_off"),
        (Result("short", "e2", "toolUse", tool_calls=1), "calls_tools"),
        (Result("short", "unknown"), "not_on_path"),
        (Result(words(200), "e2"), "does_not_shrink"),
        (Result(words(10), "e0"), "does_not_shrink"),
    ],
)
def test_a_bad_result_is_refused_with_its_reason(outcome: Result, reason: str) -> None:
    """Each problem has its reason."""
    assert reasons(outcome, ready(15, *LONG)) == [reason]


def test_all_reasons_are_told() -> None:
    """All reasons are returned, not only the first one."""
    assert reasons(Result("", "unknown", "length"), ready(15, *LONG)) == ["empty", "cut_off", "not_on_path"]


def test_a_supplied_cut_may_not_part_a_pair() -> None:
    """An extension may cut elsewhere, but not between a call and its result."""
    preparation = ready(5, said(100), answered(100, "c"), result(10, "c"), answered(10))
    assert reasons(Result("short", "e2"), preparation) == ["parts_a_pair"]
    assert reasons(Result("short", "e1"), preparation) == []
    assert reasons(Result("short", None), preparation) == []


def test_a_cut_before_the_live_part_is_not_on_it() -> None:
    """It would bring back entries that an earlier compaction removed."""
    preparation = ready(5, *TURNS, compacted("e2"), said(10), answered(10))
    assert reasons(Result("short", "e0"), preparation) == ["not_on_path"]


def test_a_summary_must_be_shorter_than_what_it_replaces() -> None:
    """This holds even if the provider's count includes instructions."""
    preparation = ready(15, said(100), answered(100, usage=90_000), said(10), answered(10))
    assert reasons(Result(words(300), "e2"), preparation) == []
    assert reasons(Result(words(300), "e2"), preparation, 200) == ["does_not_shrink"]
    assert reasons(Result(words(199), "e2"), preparation, 200) == []


def test_instructions_that_are_carried_on_count() -> None:
    """They are part of the new context."""
    instructions = {"role": "system", "content": words(50)}
    preparation = ready(5, *TURNS, compacted("e4", 1, systemMessage=instructions), said(10), answered(10))
    assert preparation.tokens_before.tokens == 50 + 1 + 40
    assert reasons(Result(words(30), "e8"), preparation) == []
    assert reasons(Result(words(31), "e8"), preparation) == ["does_not_shrink"]
