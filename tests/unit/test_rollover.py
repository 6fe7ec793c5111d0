"""What a reset keeps of an entry, what it clears, and how it is undone."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.agents.openclaw.entries import FIELDS, SessionEntry
from sessile.core.resets import (
    CLEARED,
    KEPT,
    LIMIT,
    PREVIOUS,
    Previous,
    ResetPolicy,
    Times,
    freshness,
    previous_sessions,
    reset_notice,
    resume,
    roll_over,
    times_of,
    with_session,
)
from sessile.errors import SessionNotFound

pytestmark = [pytest.mark.mission("Y4"), pytest.mark.mission("Y5")]

NOW = 1_771_237_230_000
ENTRY: Json = {
    "sessionId": "one",
    "sessionFile": "one-topic-7.jsonl",
    "updatedAt": NOW - 5000,
    "sessionStartedAt": NOW - 9000,
    "lastInteractionAt": NOW - 6000,
    "label": "Work",
    "lastChannel": "telegram",
    "thinkingLevel": "high",
    "sendPolicy": "deny",
    "queueMode": "collect",
    "modelOverride": "opus",
    "providerOverride": "anthropic",
    "inputTokens": 10,
    "outputTokens": 20,
    "totalTokens": 30,
    "contextTokens": 30,
    "contextWindow": 200_000,
    "compactionCount": 3,
    "memoryFlushAt": NOW - 7000,
    "memoryFlushCompactionCount": 3,
    "systemSent": True,
    "abortedLastRun": True,
    "cliSessionIds": {"claude-cli": "c"},
    "future": {"a": [1]},
}


def rolled(entry: Json, *ids: str) -> Json:
    """Return the entry after a reset for each id, a minute apart."""
    for number, session_id in enumerate(ids):
        entry = roll_over(entry, session_id, NOW + number * 60_000, "new")
    return entry


def test_every_documented_member_is_either_kept_or_cleared() -> None:
    """A new member cannot be forgotten."""
    assert not set(KEPT) & set(CLEARED)
    assert {*KEPT, *CLEARED} == FIELDS.keys()


def test_a_reset_begins_a_new_session_with_the_settings_of_the_old_one() -> None:
    """Settings, names and routes stay; counters and marks are removed; unknown members stay."""
    new = roll_over(ENTRY, "two", NOW, "daily")
    kept = ("label", "lastChannel", "thinkingLevel", "sendPolicy", "queueMode", "modelOverride", "providerOverride")
    assert {name: new[name] for name in kept} == {name: ENTRY[name] for name in kept}
    assert new["future"] == {"a": [1]}
    assert new["contextWindow"] == 200_000
    assert new["sessionId"] == "two"
    assert new["updatedAt"] == new["sessionStartedAt"] == new["lastInteractionAt"] == NOW
    assert new["compactionCount"] == 0
    gone = set(CLEARED) - {"sessionId", "updatedAt", "sessionStartedAt", "lastInteractionAt", "compactionCount"}
    assert not gone & new.keys()


def test_a_reset_changes_nothing_in_the_entry_that_it_is_given() -> None:
    """The values of the entry do not change either."""
    entry = rolled(ENTRY, "two")
    before = repr(entry)
    new = roll_over(entry, "three", NOW, "idle")
    resume(new, 1, NOW)
    assert repr(entry) == before


def test_overrides_that_nobody_chose_end_with_the_session() -> None:
    """A fallback is not a setting of the user."""
    entry = {
        **ENTRY,
        "modelOverrideSource": "auto",
        "authProfileOverride": "p",
        "authProfileOverrideSource": "auto",
        "authProfileOverrideCompactionCount": 1,
    }
    new = roll_over(entry, "two", NOW, "daily")
    assert not {name for name in new if "Override" in name}
    chosen = {**entry, "modelOverrideSource": "user", "authProfileOverrideSource": "user"}
    kept = roll_over(chosen, "two", NOW, "daily")
    assert (kept["modelOverride"], kept["authProfileOverride"]) == ("opus", "p")


def test_the_session_before_is_remembered() -> None:
    """The record has the end, the reason and the cleared members."""
    new = roll_over(ENTRY, "two", NOW, "daily")
    (previous,) = previous_sessions(new)
    assert previous == Previous("one", NOW, "daily")
    assert new[PREVIOUS][0]["members"]["compactionCount"] == 3


def test_the_newest_comes_first_and_only_it_carries_its_members() -> None:
    """The store stays small with a reset a day."""
    entry = rolled(ENTRY, "two", "three", "four")
    assert [previous.session_id for previous in previous_sessions(entry)] == ["three", "two", "one"]
    assert ["members" in record for record in entry[PREVIOUS]] == [True, False, False]
    # A transcript with another name is always found by that name.
    assert entry[PREVIOUS][2]["sessionFile"] == "one-topic-7.jsonl"


def test_so_many_sessions_are_remembered() -> None:
    """The oldest drop off the list; their transcripts stay."""
    entry = rolled(ENTRY, *(f"s{number}" for number in range(LIMIT + 5)))
    found = previous_sessions(entry)
    assert len(found) == LIMIT
    assert found[0].session_id == f"s{LIMIT + 3}"


def test_an_entry_without_a_session_has_none_to_remember() -> None:
    """A patch may have made it."""
    new = roll_over({"label": "x"}, "one", NOW, "new")
    assert new == {
        "label": "x",
        "sessionId": "one",
        "updatedAt": NOW,
        "sessionStartedAt": NOW,
        "lastInteractionAt": NOW,
        "compactionCount": 0,
    }


@pytest.mark.parametrize("wrong", ["", 5, None])
def test_what_is_no_session_id_is_not_remembered(wrong: Any) -> None:
    """It could not be resumed."""
    assert PREVIOUS not in roll_over({"sessionId": wrong}, "one", NOW, "new")


def test_a_clock_that_went_back_does_not_set_the_time_of_change_back() -> None:
    """Elsewhere the later change wins, so the entry must not look older."""
    new = roll_over(ENTRY, "two", NOW - 60_000, "new")
    assert new["updatedAt"] == NOW - 5000
    assert new["sessionStartedAt"] == NOW - 60_000


def test_a_reset_is_taken_back_whole() -> None:
    """Cleared members come back, later settings stay, and the session that is left can be resumed."""
    new = {**roll_over(ENTRY, "two", NOW, "daily"), "thinkingLevel": "low", "inputTokens": 5}
    back = resume(new, 1, NOW + 1)
    times = {"updatedAt", "sessionStartedAt", "lastInteractionAt"}
    assert {name: value for name, value in back.items() if name not in {PREVIOUS, *times}} == {
        name: "low" if name == "thinkingLevel" else value for name, value in ENTRY.items() if name not in times
    }
    assert previous_sessions(back) == (Previous("two", NOW + 1, "resume"),)
    again = resume(back, 1, NOW + 2)
    assert (again["sessionId"], again["inputTokens"]) == ("two", 5)
    assert "sessionFile" not in again
    assert again["thinkingLevel"] == "low"


def test_a_resumed_session_is_not_reset_again_by_the_next_message() -> None:
    """Its times start again."""
    new = roll_over({**ENTRY, "sessionStartedAt": 0, "lastInteractionAt": 0}, "two", NOW, "daily")
    back = resume(new, 1, NOW + 1)
    assert times_of(back) == Times(NOW + 1, NOW + 1, NOW + 1)
    assert freshness(times_of(back), ResetPolicy(4, 1), NOW + 2, UTC).fresh


def test_an_older_session_comes_back_with_unknown_counters() -> None:
    """Nothing of the session that is left stays."""
    entry = {**rolled(ENTRY, "two", "three"), "inputTokens": 7, "sessionFile": "three.jsonl"}
    back = resume(entry, 2, NOW + 9)
    assert back["sessionId"] == "one"
    assert back["sessionFile"] == "one-topic-7.jsonl"
    assert not {"inputTokens", "compactionCount", "systemSent"} & back.keys()
    assert [previous.session_id for previous in previous_sessions(back)] == ["three", "two"]


@pytest.mark.parametrize("number", [0, -1, 2, 99])
def test_a_session_that_is_not_in_the_list_cannot_be_resumed(number: int) -> None:
    """The error has the number of sessions."""
    with pytest.raises(SessionNotFound, match=r"has 1 earlier session\n") as refused:
        resume(rolled(ENTRY, "two"), number, NOW)
    assert refused.value.hint
    with pytest.raises(SessionNotFound, match=r"has no earlier session\n"):
        resume(ENTRY, 1, NOW)
    with pytest.raises(SessionNotFound, match=r"has 2 earlier sessions\n"):
        resume(rolled(ENTRY, "two", "three"), 3, NOW)


@pytest.mark.parametrize("damage", [None, "x", 5, {}, [1, None, {}, {"sessionId": 5}, {"sessionId": ""}]])
def test_a_list_that_somebody_damaged_is_read_as_far_as_it_can_be(damage: Any) -> None:
    """Invalid records are ignored and kept."""
    entry = {**ENTRY, PREVIOUS: damage}
    assert previous_sessions(entry) == ()
    new = roll_over(entry, "two", NOW, "new")
    assert [previous.session_id for previous in previous_sessions(new)] == ["one"]
    if isinstance(damage, list):
        assert new[PREVIOUS][1:] == damage


def test_a_record_sets_nothing_that_a_reset_keeps() -> None:
    """Only members that a reset clears are restored from a record."""
    record = {"sessionId": "a", "members": {"sendPolicy": "allow", "x": 1, "inputTokens": 5, "sessionId": "b"}}
    back = resume({"sendPolicy": "deny", PREVIOUS: [record]}, 1, NOW)
    assert (back["sendPolicy"], back["inputTokens"], back["sessionId"]) == ("deny", 5, "a")
    assert "x" not in back


def test_a_record_may_lack_time_and_reason() -> None:
    """They are unknown."""
    entry = {PREVIOUS: [{"sessionId": "a"}, {"sessionId": "b", "endedAt": "x", "reason": 3}]}
    assert previous_sessions(entry) == (Previous("a", None, None), Previous("b", None, None))


def test_the_result_is_an_entry_of_the_store() -> None:
    """It has the documented types."""
    entry = SessionEntry(roll_over(ENTRY, "two", NOW, "daily"))
    assert entry.session_id == "two"
    assert entry.session_file is None
    assert entry.updated_at == NOW


# -- the notice


def test_the_first_reply_says_what_happened_and_how_to_take_it_back() -> None:
    """After an automatic reset the notice also says how to turn resets off."""
    daily = reset_notice("daily", ResetPolicy(4, None))
    assert daily == (
        "🧭 New session: the daily reset at 04:00 was due. Nothing is lost: /resume takes you back to the last one. "
        'To have no resets, set session.reset.mode to "none".'
    )
    assert "after 90 idle minutes" in reset_notice("idle", ResetPolicy(4, 90))
    assert "after 1 idle minute." in reset_notice("idle", ResetPolicy(4, 1))
    for reason in ("daily", "idle", "new", "reset"):
        assert "/resume" in reset_notice(reason)
        assert ("session.reset.mode" in reset_notice(reason)) == (reason in ("daily", "idle"))


# -- laws

members = st.dictionaries(
    st.sampled_from([*KEPT, *CLEARED, "future", "x"]), st.integers(0, 9) | st.text(max_size=3), max_size=12
).map(lambda found: {**found, "sessionId": "one"})


@given(members)
def test_taking_a_reset_back_gives_the_entry_before_it(entry: Json) -> None:
    """Only the times and the list differ."""
    back = resume(roll_over(entry, "two", NOW, "new"), 1, NOW)
    left_out = {PREVIOUS, "updatedAt", "sessionStartedAt", "lastInteractionAt"}
    assert {n: v for n, v in back.items() if n not in left_out} == {n: v for n, v in entry.items() if n not in left_out}


@given(members, st.lists(st.integers(1, 6), max_size=8))
def test_no_session_is_lost_by_resuming(entry: Json, numbers: list[int]) -> None:
    """The current session and the list contain the same sessions, each once."""
    entry = rolled(entry, "two", "three", "four")
    for number in numbers:
        if number <= 3:
            entry = resume(entry, number, NOW)
        found = [entry["sessionId"], *(previous.session_id for previous in previous_sessions(entry))]
        assert sorted(found) == ["four", "one", "three", "two"]


def test_an_earlier_session_of_an_entry_can_be_named() -> None:
    """The result has its own file and the other members of the entry."""
    entry = {"sessionId": "b", "sessionFile": "b.jsonl", "label": "x"}
    entry["previousSessions"] = [{"sessionId": "a"}, "odd"]  # type: ignore[assignment]
    earlier = with_session(entry, "a")
    assert earlier is not None
    assert (earlier["sessionId"], earlier["label"], "sessionFile" in earlier) == ("a", "x", False)
    assert with_session(entry, "b") == entry
    assert with_session(entry, "c") is None
