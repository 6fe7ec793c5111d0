"""The texts of `/status` and of the list of sessions, and the notices of a turn."""

from __future__ import annotations

from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.agents.openclaw.entries import FIELDS
from sessile.agents.openclaw.keys import parse_key
from sessile.core.resets import ResetPolicy
from sessile.core.visible import width
from sessile.errors import InvalidQuery
from sessile.render.status import (
    COLUMNS,
    Queue,
    Status,
    ago,
    cells_of,
    compacted_text,
    compaction_notice,
    compaction_refused,
    context_text,
    flags_of,
    listing,
    new_session_notice,
    session_kind,
    session_row,
    status_lines,
)

pytestmark = pytest.mark.mission("Y12")

NOW = 1_794_787_200_000  # 2026-11-16T00:00:00Z
MINUTE = 60_000
FULL = Status(
    version="0.6.0",
    commit="abc1234",
    now=NOW,
    zone=ZoneInfo("Europe/Berlin"),
    key="agent:main:main",
    updated_at=NOW - 5 * MINUTE,
    model="anthropic/claude-opus-4",
    auth="api-key",
    input_tokens=12_345,
    output_tokens=940,
    cost=0.1234,
    context_tokens=48_200,
    context_estimated=True,
    context_window=200_000,
    compactions=2,
    runtime="anthropic",
    thinking="high",
    verbose="on",
    reasoning="off",
    elevated="off",
    activation="mention",
    queue=Queue("collect", depth=1, debounce_ms=1000, cap=20, drop="old"),
    resets=ResetPolicy(4, 60),
    sending=False,
)


def test_the_status_tells_everything_line_by_line() -> None:
    """The lines have the documented order and signs."""
    assert status_lines(FULL) == [
        "Sessile 0.6.0 (abc1234)",
        "🕒 2026-11-16 01:00 CET",
        "🧠 Model: anthropic/claude-opus-4 · 🔑 api-key",
        "🧮 Tokens: 12.3k in / 940 out",
        "💵 Cost: $0.12",
        "📚 Context: ~48.2k/200.0k (24%) · 🧹 Compactions: 2",
        "🧵 Session: agent:main:main • updated 5 min ago",
        "⚙️ Runtime: anthropic · Think: high · Verbose: on · Reasoning: off · Elevated: off",
        "👥 Activation: mention",
        "🪢 Queue: collect (depth 1, debounce 1000 ms, cap 20, drop old)",
        "🔁 Reset: daily at 04:00 or after 60 idle minutes",
        "🔇 Delivery: blocked by the send policy",
    ]


def test_what_is_unknown_is_called_unknown() -> None:
    """Unknown values are never 0, and inapplicable lines are omitted."""
    assert status_lines(Status(version="0.6.0", now=NOW, zone=UTC, key="k")) == [
        "Sessile 0.6.0",
        "🕒 2026-11-16 00:00 UTC",
        "🧠 Model: unknown",
        "🧮 Tokens: unknown in / unknown out",
        "💵 Cost: unknown",
        "📚 Context: unknown · 🧹 Compactions: unknown",
        "🧵 Session: k • updated unknown",
        "⚙️ Runtime: unknown · Think: default · Verbose: default · Reasoning: default",
    ]


def test_zero_is_zero() -> None:
    """The usage of a new session is known to be zero."""
    changes = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cost": 0.0,
        "compactions": 0,
        "context_tokens": 0,
        "sending": True,
    }
    lines = status_lines(msgspec.structs.replace(FULL, **changes, context_estimated=False))
    assert "🧮 Tokens: 0 in / 0 out" in lines
    assert "💵 Cost: $0.00" in lines
    assert "📚 Context: 0/200.0k (0%) · 🧹 Compactions: 0" in lines
    assert not any("Delivery" in line for line in lines)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (ResetPolicy(None, None), "never"),
        (ResetPolicy(7, None, "Europe/Berlin"), "daily at 07:00 (Europe/Berlin)"),
        (ResetPolicy(None, 1), "after 1 idle minute"),
    ],
)
def test_the_status_says_when_the_session_will_end(policy: ResetPolicy, told: str) -> None:
    """Users can see the next reset."""
    assert f"🔁 Reset: {told}" in status_lines(msgspec.structs.replace(FULL, resets=policy))


@pytest.mark.parametrize(
    ("used", "window", "text"),
    [
        (100_000, 200_000, "100.0k/200.0k (50%)"),
        (0, 200_000, "0/200.0k (0%)"),
        (10**9, 1000, "1000.0M/1.0k (999%)"),
        (500, None, "500/unknown"),
        (None, 1000, "unknown/1.0k"),
        (None, None, "unknown"),
        (500, 0, "500/unknown"),
    ],
)
def test_a_context_is_told_with_its_window(used: int | None, window: int | None, text: str) -> None:
    """The percentage is at most 999."""
    assert context_text(used, window) == text


def test_an_estimate_is_marked() -> None:
    """A known value is marked with ~; an unknown one is not."""
    assert context_text(10, 100, estimated=True) == "~10/100 (10%)"
    assert context_text(None, 100, estimated=True) == "unknown/100"


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (None, "unknown"),
        (NOW, "just now"),
        (NOW - 59_999, "just now"),
        (NOW - MINUTE, "1 min ago"),
        (NOW - 3 * 60 * MINUTE, "3 h ago"),
        (NOW - 50 * 60 * MINUTE, "2 d ago"),
        (NOW + 1000, "just now"),
        (NOW + 2 * MINUTE, "in the future"),
    ],
)
def test_ages_are_told_in_one_unit(then: int | None, told: str) -> None:
    """Times slightly in the future are accepted, because clocks may differ."""
    assert ago(then, NOW) == told


# -- notices


def test_notices_have_the_documented_words() -> None:
    """An unknown count is left out."""
    assert compaction_notice(3) == "🧹 Auto-compaction complete (count 3)."
    assert compaction_notice(None) == "🧹 Auto-compaction complete."
    assert new_session_notice("abc") == "🧭 New session: abc"
    assert compacted_text(150_000, 30_000, 200_000) == "⚙️ Compacted (150.0k → 30.0k) • Context 30.0k/200.0k (15%)"
    assert compacted_text(None, 30_000, None) == "⚙️ Compacted (unknown → 30.0k) • Context 30.0k/unknown"
    assert compaction_refused("skipped", "nothing to sum up") == "⚙️ Compaction skipped: nothing to sum up"
    assert compaction_refused("failed", "no model") == "⚙️ Compaction failed: no model"


# -- the list


@pytest.mark.parametrize(
    ("key", "chat_type", "kind"),
    [
        ("global", None, "global"),
        ("unknown", None, "unknown"),
        ("agent:main:main", None, "direct"),
        ("agent:main:telegram:group:1", None, "group"),
        ("agent:main:slack:channel:c", None, "group"),
        ("agent:main:slack:room:c", None, "group"),
        ("agent:main:direct:x", "group", "group"),
        ("agent:main:direct:x", "channel", "group"),
        ("agent:main:direct:x", "dm", "direct"),
        ("agent:main:signal:direct:a:group:b", None, "direct"),
        ("cron:nightly", None, "direct"),
    ],
)
def test_a_kind_comes_from_the_key_or_the_chat(key: str, chat_type: str | None, kind: str) -> None:
    """The structure of the key decides."""
    assert session_kind(parse_key(key), chat_type) == kind


def test_flags_are_those_of_the_documents() -> None:
    """Flags have the documented order, and unset ones are omitted."""
    entry = {
        "sessionId": "abc",
        "thinkingLevel": "high",
        "verboseLevel": "on",
        "reasoningLevel": "stream",
        "elevatedLevel": "on",
        "responseUsage": "tokens",
        "groupActivation": "always",
        "systemSent": True,
        "abortedLastRun": True,
    }
    assert flags_of(entry) == [
        *("think:high", "verbose:on", "reasoning:stream", "elev:on", "usage:tokens", "activation:always"),
        *("system", "aborted", "id:abc"),
    ]
    assert flags_of({}) == []
    assert flags_of({"systemSent": False, "abortedLastRun": None, "thinkingLevel": 5, "sessionId": ""}) == []


def test_a_row_has_the_documented_members_and_null_for_what_is_unknown() -> None:
    """Values of a wrong type are unknown, too."""
    row = session_row("k", "direct", {"updatedAt": NOW - 5, "sessionId": "s", "model": 7, "inputTokens": True}, NOW)
    assert (row["key"], row["kind"], row["sessionId"], row["updatedAt"], row["ageMs"]) == (
        "k",
        "direct",
        "s",
        NOW - 5,
        5,
    )
    assert row["model"] is row["inputTokens"] is row["contextTokens"] is row["contextWindow"] is None
    assert session_row("k", "direct", {}, NOW)["ageMs"] is None
    odd = session_row(
        "k", "direct", {"updatedAt": 5.0, "inputTokens": -1, "outputTokens": 0.5, "totalTokens": 10**400}, 9
    )
    assert (odd["updatedAt"], odd["ageMs"]) == (5, 4)
    assert odd["inputTokens"] is odd["outputTokens"] is odd["totalTokens"] is None
    assert row.keys() - {"key", "kind", "ageMs"} <= FIELDS.keys()


def test_the_columns_of_a_row() -> None:
    """The columns are kind, key, age, model, context and flags; keys are shortened in the middle, models at the end."""
    entry: Json = {
        "updatedAt": NOW - 2 * MINUTE,
        "sessionId": "s",
        "model": "claude-opus-4-20260101",
        "contextTokens": 50,
        "contextWindow": 100,
        "verboseLevel": "full",
    }
    key = "agent:main:telegram:group:-1001234567890"
    cells = cells_of(session_row(key, "group", entry, NOW), NOW)
    assert dict(zip(COLUMNS, cells, strict=True)) == {
        "Kind": "group",
        "Key": "agent:main:te…001234567890",
        "Age": "2 min ago",
        "Model": "claude-opus-4…",
        "Tokens (ctx %)": "50/100 (50%)",
        "Flags": "verbose:full id:s",
    }
    assert cells_of(session_row("k", "direct", {}, NOW), NOW) == ["direct", "k", "unknown", "unknown", "unknown", ""]


@given(st.text(max_size=60))
def test_a_shortened_key_fits_and_keeps_its_ends(key: str) -> None:
    """The shortened key can have any characters and never controls a terminal."""
    shown = cells_of(session_row(key, "direct", {}, NOW), NOW)[1]
    assert width(shown) <= 26
    assert "\x1b" not in shown and "\n" not in shown


def rows(*times: int | None) -> list[Json]:
    return [session_row(f"k{number}", "direct", {"updatedAt": time}, NOW) for number, time in enumerate(times)]


def test_the_list_is_sorted_and_counts_what_it_shows() -> None:
    """The newest come first; sessions of unknown time come last."""
    document = listing("/store", rows(5, None, 9, 9, 7), NOW)
    assert [row["key"] for row in document["sessions"]] == ["k2", "k3", "k4", "k0", "k1"]
    assert (document["path"], document["count"], document["activeMinutes"]) == ("/store", 5, None)


def test_only_the_active_ones_can_be_listed() -> None:
    """The exact number of minutes is included; sessions of unknown time are not."""
    edge = NOW - 10 * MINUTE
    document = listing("/store", rows(edge - 1, edge, NOW, None, NOW + 5), NOW, active_minutes=10)
    assert [row["key"] for row in document["sessions"]] == ["k4", "k2", "k1"]
    assert (document["count"], document["activeMinutes"]) == (3, 10)


@pytest.mark.parametrize("minutes", [0, -1])
def test_active_minutes_are_a_positive_number(minutes: int) -> None:
    """Anything else would list nothing."""
    with pytest.raises(InvalidQuery):
        listing("/store", [], NOW, active_minutes=minutes)


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        max_size=20,
    )
)
def test_any_entry_can_be_shown(entry: dict[str, Any]) -> None:
    """Entries may be written by other programs or edited by hand."""
    assert len(cells_of(session_row("k", "direct", entry, NOW), NOW)) == len(COLUMNS)
