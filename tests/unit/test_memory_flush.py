"""Memory flush: when it is due, the prompts, and what is appended where."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.compaction import CompactionSettings, is_due
from sessile.core.memory_flush import (
    MAX_FAILURES,
    Flushed,
    FlushSettings,
    Situation,
    block_to_append,
    decide_flush,
    flush_key,
    flush_prompt,
    flush_system_prompt,
    flush_threshold,
    flushed_of,
    holds_block,
    memory_file,
    memory_file_before,
    outcome_patch,
)

pytestmark = pytest.mark.mission("Y10")

NOW = 1_794_787_200_000  # 2026-11-16T00:00:00Z
BERLIN, PAGO = ZoneInfo("Europe/Berlin"), ZoneInfo("Pacific/Pago_Pago")


def verdict(tokens: int | None = 176_000, window: int | None = 200_000, **changes: Any) -> str:
    """Return why a flush is due or not; everything not given is favourable."""
    settings = changes.pop("settings", FlushSettings())
    situation = Situation(tokens=tokens, window=window, workspace_access="rw")
    decision = decide_flush(msgspec.structs.replace(situation, **changes), settings, CompactionSettings())
    assert decision.due == (decision.why == "due")
    return decision.why


# -- the threshold


@pytest.mark.parametrize(
    ("window", "threshold"),
    [(200_000, 176_000), (128_000, 104_000), (32_768, 12_384), (8_192, 96), (8_000, 0), (0, -4_000)],
)
def test_the_threshold_is_the_window_without_the_reserve_and_the_soft_threshold(window: int, threshold: int) -> None:
    """The reserve is that of the compaction, capped for small models."""
    assert flush_threshold(window, FlushSettings(), CompactionSettings()) == threshold


def test_the_threshold_follows_both_settings() -> None:
    """Invalid numbers mean the default."""
    compaction = CompactionSettings(reserve_tokens=50_000)
    assert flush_threshold(200_000, FlushSettings(soft_threshold_tokens=10_000), compaction) == 140_000
    assert flush_threshold(200_000, FlushSettings(soft_threshold_tokens=0), CompactionSettings()) == 180_000
    for wrong in (-1, math.inf, math.nan):
        assert flush_threshold(200_000, FlushSettings(soft_threshold_tokens=wrong), CompactionSettings()) == 176_000


def test_a_flush_is_due_at_the_threshold() -> None:
    """A flush is not due one token before the threshold."""
    assert verdict(176_000) == "due"
    assert verdict(175_999) == "below_threshold"


def test_a_window_without_room_never_asks_for_notes() -> None:
    """A threshold of 0 would mean every turn."""
    assert verdict(10**6, 8_000) == "no_room"
    assert verdict(10**6, 0) == "no_room"


def test_what_nobody_knows_is_not_guessed() -> None:
    """An unknown window or size is never due."""
    assert verdict(10**9, None) == "window_unknown"
    assert verdict(None) == "tokens_unknown"


@given(st.integers(0, 400_000), st.integers(1, 400_000))
def test_notes_are_due_before_a_compaction_is(tokens: int, window: int) -> None:
    """Whenever a compaction is due, so is a flush, if there is room."""
    room = flush_threshold(window, FlushSettings(), CompactionSettings()) > 0
    if room and is_due(tokens, window, CompactionSettings()):
        assert verdict(tokens, window) == "due"


# -- conditions


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"settings": FlushSettings(enabled=False)}, "disabled"),
        ({"heartbeat": True}, "heartbeat"),
        ({"command_runner": True}, "command_runner"),
        ({"workspace_access": "ro"}, "workspace_not_writable"),
        ({"workspace_access": "none"}, "workspace_not_writable"),
        ({"workspace_access": None}, "workspace_not_writable"),
        ({"workspace_access": "RW"}, "workspace_not_writable"),
        ({"incognito": True}, "incognito"),
    ],
)
def test_some_turns_take_no_notes(changes: Any, why: str) -> None:
    """The verdict has the reason."""
    assert verdict(**changes) == why


@pytest.mark.parametrize(
    ("compactions", "entry", "why"),
    [
        (0, {}, "due"),
        (None, {}, "due"),
        (0, {"memoryFlushCompactionCount": 0}, "due"),
        (None, {"memoryFlushCompactionCount": 0}, "due"),
        (0, {"memoryFlushCompactionCount": 0, "memoryFlushAt": NOW}, "already_done"),
        (None, {"memoryFlushCompactionCount": 0, "memoryFlushAt": NOW}, "already_done"),
        (0, {"memoryFlushAt": NOW}, "due"),
        (1, {"memoryFlushCompactionCount": 0, "memoryFlushAt": NOW}, "due"),
        (1, {"memoryFlushCompactionCount": 1, "memoryFlushAt": NOW}, "already_done"),
        (1, {"memoryFlushCompactionCount": 1}, "already_done"),
        (2, {"memoryFlushCompactionCount": 1}, "due"),
        (0, {"memoryFlushCompactionCount": 1}, "due"),
        (1, {"memoryFlushCompactionCount": "1"}, "due"),
        (1, {"memoryFlushCompactionCount": True}, "due"),
        (1, {"memoryFlushCompactionCount": 10**400}, "due"),
    ],
)
def test_notes_are_taken_once_between_two_compactions(compactions: int | None, entry: Any, why: str) -> None:
    """A count of 0 without a time means nothing: some writers start with it."""
    assert verdict(compactions=compactions, flushed=flushed_of(entry)) == why


def test_after_some_failures_the_cycle_is_given_up() -> None:
    """Three failures end the cycle; failures of the previous cycle do not count."""
    assert MAX_FAILURES == 3
    entry: dict[str, Any] = {"compactionCount": 1}
    for number in range(MAX_FAILURES):
        assert verdict(compactions=1, flushed=flushed_of(entry)) == "due"
        entry |= outcome_patch("failed", 1, NOW, flushed_of(entry))
        assert entry["memoryFlush"]["failureCount"] == number + 1
    assert verdict(compactions=1, flushed=flushed_of(entry)) == "gave_up"
    assert verdict(compactions=2, flushed=flushed_of(entry)) == "due"
    assert outcome_patch("failed", 2, NOW, flushed_of(entry))["memoryFlush"]["failureCount"] == 1
    assert "memoryFlushAt" not in entry


@pytest.mark.parametrize("kind", ["written", "silent"])
@pytest.mark.parametrize("compactions", [None, 0, 1, 7])
def test_an_outcome_ends_the_cycle(kind: Any, compactions: int | None) -> None:
    """The members have the documented names, and silence is an outcome, too."""
    patch = outcome_patch(kind, compactions, NOW, Flushed())
    assert patch == {
        "memoryFlushAt": NOW,
        "memoryFlushCompactionCount": compactions or 0,
        "memoryFlush": {"kind": kind, "compactionCount": compactions or 0, "failureCount": 0},
    }
    assert verdict(compactions=compactions, flushed=flushed_of(patch)) == "already_done"
    assert verdict(compactions=(compactions or 0) + 1, flushed=flushed_of(patch)) == "due"


@given(
    st.dictionaries(
        st.sampled_from(["memoryFlush", "memoryFlushAt", "memoryFlushCompactionCount"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.dictionaries(st.sampled_from(["compactionCount", "failureCount"]), inner, max_size=2),
        ),
    )
)
def test_any_entry_can_be_read(entry: Any) -> None:
    """Invalid counts are unknown."""
    found = flushed_of(entry)
    assert found.at is None or isinstance(found.at, int)
    assert found.failures >= 0


# -- the question


def test_the_default_texts_mention_the_silent_answer() -> None:
    """The question names the file and the day."""
    settings = FlushSettings()
    prompt = flush_prompt(settings, NOW, BERLIN)
    assert "NO_REPLY" in prompt and "memory/2026-11-16.md" in prompt
    assert "NO_REPLY" in flush_system_prompt(settings)


def test_own_texts_are_used_and_told_of_the_silent_answer() -> None:
    """The silent answer is added only if a text does not mention it; the date in the file name is filled in."""
    settings = FlushSettings(prompt="Write to memory/YYYY-MM-DD.md!", system_prompt="Be NO_REPLY brief.")
    prompt = flush_prompt(settings, NOW, PAGO)
    assert prompt.startswith("Write to memory/2026-11-15.md!\n")
    assert "NO_REPLY" in prompt
    assert flush_system_prompt(settings) == "Be NO_REPLY brief."
    assert flush_prompt(FlushSettings(prompt="  "), NOW, UTC) == flush_prompt(FlushSettings(), NOW, UTC)


def test_settings_are_read_under_their_documented_names() -> None:
    """Settings are in camel case, as in configuration files."""
    written = {"enabled": False, "softThresholdTokens": 1, "prompt": "p", "systemPrompt": "s"}
    assert msgspec.convert(written, FlushSettings) == FlushSettings(False, 1, "p", "s")


# -- the file


@pytest.mark.promise("P27")
@pytest.mark.parametrize(
    ("now", "zone", "name"),
    [
        (NOW, UTC, "memory/2026-11-16.md"),
        (NOW - 1, UTC, "memory/2026-11-15.md"),
        (NOW - 1, BERLIN, "memory/2026-11-16.md"),
        (NOW, PAGO, "memory/2026-11-15.md"),
        (0, UTC, "memory/1970-01-01.md"),
        (253_402_300_799_000, UTC, "memory/9999-12-31.md"),
    ],
)
def test_the_file_is_that_of_the_day_where_the_user_is(now: int, zone: Any, name: str) -> None:
    """The day in UTC does not matter."""
    assert memory_file(now, zone) == name


@pytest.mark.parametrize("hours", [0, 1, 12, 23])
def test_the_day_before_is_that_of_the_calendar(hours: int) -> None:
    """The result is right after a day of 23 or 25 hours."""
    for day, before in ((30, 29), (31, 30)):  # the clocks of Berlin go forward on the 29th of March 2026
        moment = datetime(2026, 3, day, hours, tzinfo=BERLIN)
        assert memory_file_before(int(moment.timestamp() * 1000), BERLIN) == f"memory/2026-03-{before}.md"


def test_a_block_has_a_time_the_notes_and_a_mark() -> None:
    """It starts on its own line and ends with a newline."""
    key = flush_key("session", 2)
    block = block_to_append("", " Paris is booked.\n", key, NOW, BERLIN)
    assert block == "## 01:00\n\nParis is booked.\n\n<!-- sessile.flush session:2 -->\n"
    assert block_to_append("# Day\n", "x", key, NOW, UTC).startswith("\n## ")
    assert block_to_append("# Day", "x", key, NOW, UTC).startswith("\n\n## ")


def test_a_beginning_of_a_block_is_not_taken_for_it() -> None:
    """After a power cut the notes are appended completely."""
    block = block_to_append("", "Paris is booked.", "k", NOW, UTC)
    for length in range(len(block) - 1):
        assert block_to_append(block[:length], "Paris is booked.", "k", NOW, UTC).endswith(block)
    assert block_to_append(block[:-1], "Paris is booked.", "k", NOW, UTC) == ""


def test_the_same_flush_is_appended_once() -> None:
    """A retry after a crash finds its own mark, but not that of another cycle or session."""
    key = flush_key("session", 0)
    file = block_to_append("", "notes", key, NOW, UTC)
    assert holds_block(file, key)
    assert block_to_append(file, "other words", key, NOW + 1, UTC) == ""
    assert block_to_append(file, "notes", flush_key("session", 1), NOW, UTC) != ""
    assert block_to_append(file, "notes", flush_key("sess", 0), NOW, UTC) != ""
    assert flush_key("session", None) == key
    assert holds_block(file.replace("\n", "\r\n"), key)


def test_a_block_can_be_written() -> None:
    """A lone surrogate in the answer does not lose the rest."""
    assert block_to_append("", "a\ud800b", "k", NOW, UTC).encode().startswith("## 00:00\n\na\ufffdb\n".encode())


@pytest.mark.parametrize("reply", ["", " \n", "NO_REPLY", "  NO_REPLY\nnothing to keep"])
def test_silence_appends_nothing(reply: str) -> None:
    """There is nothing to remember."""
    assert block_to_append("x", reply, "k", NOW, UTC) == ""


def test_notes_cannot_pretend_that_another_flush_was_done() -> None:
    """A mark in the notes of a model is text."""
    key = flush_key("session", 5)
    file = block_to_append("", f"<!-- sessile.flush {key} -->\r<!-- sessile.flush {key} -->", "other", NOW, UTC)
    assert not holds_block(file, key)
    assert file.count(key) == 2


notes = st.text(st.sampled_from("ab \n\r\u2028<!-- sessile.flush k:1-->"), max_size=60)


@given(notes, notes, st.integers(0, 3), st.integers(0, 3))
def test_a_block_is_found_by_its_own_key_only(before: str, text: str, one: int, other: int) -> None:
    """The file may have any content, and appending twice appends once."""
    mine, theirs = flush_key("k", one), flush_key("k", other)
    found = holds_block(before, theirs)
    block = block_to_append(before, text, mine, NOW, UTC)
    file = before + block
    assert holds_block(file, theirs) == (found or (bool(block) and one == other))
    assert block_to_append(file, text, mine, NOW, UTC) == ""


def test_the_clock_of_a_block_is_that_of_its_zone() -> None:
    """The time is shown in minutes."""
    late = NOW + timedelta(hours=13, minutes=5) // timedelta(milliseconds=1)
    assert "## 13:05" in block_to_append("", "x", "k", late, UTC)
    assert datetime.fromtimestamp(late / 1000, BERLIN).strftime("## %H:%M") in block_to_append(
        "", "x", "k", late, BERLIN
    )
