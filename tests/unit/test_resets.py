"""When a conversation starts a new session by itself: the configuration, and the exact times."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.openclaw.keys import parse_key
from sessile.core.resets import (
    Freshness,
    ResetPolicy,
    Times,
    conversation_type,
    daily_reset_after,
    daily_reset_before,
    freshness,
    read_reset_config,
    resolve_policy,
    times_of,
)
from sessile.errors import InvalidConfig

pytestmark = pytest.mark.mission("Y4")

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
BERLIN, NEW_YORK, APIA = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("Pacific/Apia")
ST_JOHNS, HAVANA, LORD_HOWE = (
    ZoneInfo("America/St_Johns"),
    ZoneInfo("America/Havana"),
    ZoneInfo("Australia/Lord_Howe"),
)
ZONES: list[tzinfo] = [UTC, BERLIN, NEW_YORK, APIA, ST_JOHNS, HAVANA, LORD_HOWE, ZoneInfo("Asia/Kathmandu")]

DAILY = ResetPolicy(at_hour=4, idle_minutes=None)
IDLE = ResetPolicy(at_hour=None, idle_minutes=60)
FRESH = Freshness(None, None)


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> int:
    """Return a local time in a zone, in milliseconds since 1970."""
    moment = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def policy(session: dict[str, Any], kind: Any = "direct", channel: str | None = None) -> ResetPolicy:
    return resolve_policy(read_reset_config(session)[0], kind, channel)


# -- what the configuration says


def test_without_a_word_sessions_are_reset_daily_at_four() -> None:
    """The default is local time for every type of conversation, without an idle limit."""
    for kind in ("direct", "group", "thread"):
        assert policy({}, kind) == ResetPolicy(at_hour=4, idle_minutes=None, time_zone=None)


def test_none_is_one_line() -> None:
    """It turns everything off, also the older idle minutes."""
    off = ResetPolicy(at_hour=None, idle_minutes=None)
    assert policy({"reset": {"mode": "none"}}) == off
    assert policy({"reset": {"mode": "none", "atHour": 3, "idleMinutes": 5}, "idleMinutes": 7}) == off
    assert freshness(Times(started=0, interacted=0), off, at("2030-01-01"), UTC) == FRESH


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ({"reset": {"mode": "daily", "atHour": 6}}, (6, None)),
        ({"reset": {"atHour": 6, "idleMinutes": 90}}, (6, 90)),
        ({"reset": {"mode": "idle"}}, (None, 60)),
        ({"reset": {"mode": "idle", "idleMinutes": 5}}, (None, 5)),
        ({"reset": {"mode": "idle", "idleMinutes": 0}}, (None, None)),
        ({"idleMinutes": 30}, (None, 30)),
        ({"idleMinutes": 30, "reset": {}}, (4, 30)),
        ({"idleMinutes": 30, "resetByType": {"group": {"mode": "idle"}}}, (4, 30)),
        ({"idleMinutes": 30, "reset": {"idleMinutes": 10}}, (4, 10)),
        ({"reset": {"atHour": 23.9}}, (23, None)),
        ({"reset": {"atHour": 24}}, (23, None)),
        ({"reset": {"atHour": -1}}, (0, None)),
        ({"reset": {"atHour": math.inf}}, (4, None)),
        ({"reset": {"idleMinutes": 1.9}}, (4, 1)),
        ({"reset": {"idleMinutes": -3}}, (4, None)),
        ({"reset": {"idleMinutes": math.nan}}, (4, None)),
        ({"reset": None, "resetByType": None, "resetByChannel": None, "idleMinutes": None}, (4, None)),
    ],
)
def test_the_base_says_when(session: dict[str, Any], expected: tuple[int | None, int | None]) -> None:
    """Idle minutes apply in addition to the hour; the older setting alone means idle; numbers are floored and clamped."""
    found = policy(session)
    assert (found.at_hour, found.idle_minutes) == expected


def test_the_type_fills_in_before_the_base() -> None:
    """Member by member, under both names of direct chats."""
    session = {
        "reset": {"mode": "daily", "atHour": 5, "idleMinutes": 10, "timeZone": "Europe/Berlin"},
        "resetByType": {"dm": {"atHour": 7}, "group": {"mode": "idle"}, "thread": {"timeZone": "UTC"}},
    }
    assert policy(session, "direct") == ResetPolicy(7, 10, "Europe/Berlin")
    assert policy(session, "group") == ResetPolicy(None, 10, "Europe/Berlin")
    assert policy(session, "thread") == ResetPolicy(5, 10, "UTC")
    assert policy({"resetByType": {"direct": {"atHour": 1}}}) == ResetPolicy(1, None)


def test_a_type_with_wishes_of_its_own_is_not_silenced_by_the_base() -> None:
    """An hour means daily, minutes alone mean idle, even if the base is `none`."""
    session = {
        "reset": {"mode": "none"},
        "resetByType": {"group": {"idleMinutes": 9}, "thread": {"atHour": 2}, "dm": {}},
    }
    assert policy(session, "group") == ResetPolicy(None, 9)
    assert policy(session, "thread") == ResetPolicy(2, None)
    assert policy(session, "direct") == ResetPolicy(None, None)


def test_the_channel_wins_outright() -> None:
    """Only the time zone still comes from the base."""
    session = {
        "reset": {"mode": "idle", "idleMinutes": 10, "timeZone": "Europe/Berlin"},
        "resetByType": {"direct": {"mode": "none"}},
        "resetByChannel": {"Telegram": {"atHour": 9}, "signal": {"mode": "none"}, "slack": {}},
        "idleMinutes": 3,
    }
    assert policy(session, channel=" telegram ") == ResetPolicy(9, None, "Europe/Berlin")
    assert policy(session, channel="signal") == ResetPolicy(None, None, "Europe/Berlin")
    assert policy(session, channel="slack") == ResetPolicy(4, None, "Europe/Berlin")
    assert policy(session, channel="discord") == ResetPolicy(None, None, "Europe/Berlin")
    assert policy(session, channel=None) == policy(session, channel="discord")


def test_unknown_keys_are_told_and_change_nothing() -> None:
    """The key is reported with its place; keys that are not about resets are ignored."""
    session = {
        "scope": "per-sender",
        "reset": {"atHour": 5, "hour": 6},
        "resetByType": {"dm": {"atHour": 1}, "direct": {"atHour": 2}, "room": {}, "group": {"x": 1}},
        "resetByChannel": {"telegram": {"mood": "daily"}},
    }
    config, remarks = read_reset_config(session)
    assert [remark.place for remark in remarks] == [
        "session.reset.hour",
        "session.resetByType.dm",
        "session.resetByType.room",
        "session.resetByType.group.x",
        "session.resetByChannel.telegram.mood",
    ]
    assert resolve_policy(config, "direct", None).at_hour == 2
    assert read_reset_config({"reset": {"mode": "daily"}})[1] == ()


@pytest.mark.parametrize(
    ("session", "place"),
    [
        ({"reset": {"mode": "weekly"}}, "session.reset.mode"),
        ({"reset": {"mode": ["daily"]}}, "session.reset.mode"),
        ({"reset": []}, "session.reset"),
        ({"reset": {"atHour": "4"}}, "session.reset.atHour"),
        ({"reset": {"atHour": True}}, "session.reset.atHour"),
        ({"reset": {"atHour": 10**400}}, "session.reset.atHour"),
        ({"resetByType": {"group": {"idleMinutes": "1h"}}}, "session.resetByType.group.idleMinutes"),
        ({"resetByChannel": {"x": "daily"}}, "session.resetByChannel.x"),
        ({"resetByChannel": 3}, "session.resetByChannel"),
        ({"idleMinutes": "30"}, "session.idleMinutes"),
        ({"reset": {"timeZone": ""}}, "session.reset.timeZone"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_place(session: dict[str, Any], place: str) -> None:
    """A guess could reset a session at the wrong time."""
    with pytest.raises(InvalidConfig) as refused:
        read_reset_config(session)
    assert refused.value.message.startswith(f"{place} ")
    assert refused.value.hint


# -- the type of a conversation


@pytest.mark.parametrize(
    ("key", "facts", "expected"),
    [
        ("agent:main:main", {}, "direct"),
        ("agent:main:telegram:group:-100", {}, "group"),
        ("agent:main:slack:channel:c1", {}, "group"),
        ("agent:main:slack:room:c1", {}, "group"),
        ("agent:main:telegram:group:-100:topic:7", {}, "thread"),
        ("agent:main:main:thread:5", {}, "thread"),
        ("agent:main:direct:a%3Agroup%3Ab", {}, "direct"),
        ("agent:main:signal:direct:x:group:y", {}, "direct"),
        ("agent:main:main", {"in_thread": True}, "thread"),
        ("agent:main:main", {"chat_type": "group"}, "group"),
        ("agent:main:main", {"chat_type": " Channel "}, "group"),
        ("agent:main:main", {"chat_type": "dm"}, "direct"),
        ("agent:main:main", {"chat_type": "direct"}, "direct"),
        ("agent:main:main", {"in_group": True}, "group"),
        ("agent:main:slack:channel:c1", {"chat_type": "direct"}, "group"),
        ("cron:nightly", {}, "direct"),
    ],
)
def test_the_type_comes_from_the_structure_of_the_key_and_the_message(
    key: str, facts: dict[str, Any], expected: str
) -> None:
    """`:group:` inside an id does not make a group."""
    assert conversation_type(parse_key(key), **facts) == expected


# -- freshness


def test_a_session_begun_at_the_very_hour_is_fresh() -> None:
    """One that started a millisecond earlier is not."""
    boundary = at("2026-11-16T04:00", BERLIN)
    assert freshness(Times(started=boundary), DAILY, boundary, BERLIN) == FRESH
    assert freshness(Times(started=boundary), DAILY, boundary + DAY - 1, BERLIN) == FRESH
    assert freshness(Times(started=boundary - 1), DAILY, boundary - 1, BERLIN) == FRESH
    assert freshness(Times(started=boundary - 1), DAILY, boundary, BERLIN) == Freshness("daily", boundary)


def test_a_session_idle_for_just_so_long_is_fresh() -> None:
    """A millisecond later it is stale."""
    end = 1_000 + 60 * MINUTE
    assert freshness(Times(interacted=1_000), IDLE, end, UTC) == FRESH
    assert freshness(Times(interacted=1_000), IDLE, end + 1, UTC) == Freshness("idle", end)


def test_it_became_stale_at_the_first_hour_after_its_start() -> None:
    """A session is stale since the first reset after its start, not since the last one before the message."""
    started = at("2026-11-01T12:00")
    stale = freshness(Times(started=started), DAILY, at("2026-11-16T12:00"), UTC)
    assert stale == Freshness("daily", at("2026-11-02T04:00"))
    assert not stale.fresh


@pytest.mark.parametrize(
    ("interacted", "expected"),
    [
        ("2026-11-15T22:00", Freshness("idle", at("2026-11-15T23:00"))),
        ("2026-11-16T03:00", Freshness("daily", at("2026-11-16T04:00"))),
        ("2026-11-16T03:30", Freshness("daily", at("2026-11-16T04:00"))),
    ],
)
def test_whichever_comes_first_is_the_reason(interacted: str, expected: Freshness) -> None:
    """If both are at the same time, the reason is the hour, which counts a millisecond earlier."""
    both = ResetPolicy(at_hour=4, idle_minutes=60)
    times = Times(started=at("2026-11-15T12:00"), interacted=at(interacted))
    assert freshness(times, both, at("2026-11-16T12:00"), UTC) == expected


def test_one_of_both_is_enough() -> None:
    """Today's session may be idle, and a busy one may be from yesterday."""
    both = ResetPolicy(at_hour=4, idle_minutes=60)
    now = at("2026-11-16T12:00")
    assert freshness(Times(started=now - 7 * HOUR, interacted=now - 2 * HOUR), both, now, UTC).reason == "idle"
    assert freshness(Times(started=now - 9 * HOUR, interacted=now), both, now, UTC).reason == "daily"
    assert freshness(Times(started=now - 7 * HOUR, interacted=now), both, now, UTC).fresh


def test_a_time_that_is_missing_is_taken_from_the_next_best() -> None:
    """The start falls back to the last change, the interaction to the start or the last change."""
    now = at("2026-11-16T12:00")
    old, recent = now - 2 * DAY, now - MINUTE
    assert freshness(Times(updated=old), DAILY, now, UTC).reason == "daily"
    assert freshness(Times(started=recent, updated=old), DAILY, now, UTC).fresh
    assert freshness(Times(started=old, updated=recent), IDLE, now, UTC).reason == "idle"
    assert freshness(Times(updated=old), IDLE, now, UTC).reason == "idle"
    assert freshness(Times(interacted=recent, started=old), IDLE, now, UTC).fresh
    assert freshness(Times(), ResetPolicy(4, 60), now, UTC) == FRESH


@pytest.mark.promise("P27")
def test_times_in_the_future_or_before_1970_are_ignored() -> None:
    """The next best time counts, so a clock that was set back has no effect."""
    now = at("2026-11-16T12:00")
    old = now - 2 * DAY
    for wrong in (-1, now + 1, at("9999-01-01")):
        assert freshness(Times(started=wrong, updated=old), DAILY, now, UTC).reason == "daily"
        assert freshness(Times(interacted=wrong, started=old), IDLE, now, UTC).reason == "idle"
        assert freshness(Times(wrong, wrong, wrong), ResetPolicy(4, 60), now, UTC) == FRESH
        assert freshness(Times(wrong, old, wrong), DAILY, now, UTC).reason == "daily"  # the last message is known
    assert freshness(Times(started=0), DAILY, now, UTC).reason == "daily"
    assert freshness(Times(started=now, interacted=now), ResetPolicy(4, 1), now, UTC) == FRESH


def test_the_times_of_an_entry_are_its_documented_members() -> None:
    """Values of another type are unknown."""
    entry = {"sessionStartedAt": 5, "lastInteractionAt": 6.9, "updatedAt": 7}
    assert times_of(entry) == Times(5, 6, 7)
    wrong = {"sessionStartedAt": "5", "lastInteractionAt": True, "updatedAt": math.nan}
    assert times_of(wrong) == Times(None, None, None) == times_of({})
    assert freshness(times_of({"updatedAt": 10**400}), ResetPolicy(4, 60), at("2026-11-16"), UTC) == FRESH


# -- clocks


@pytest.mark.promise("P27")
def test_an_hour_that_the_clocks_skip_is_the_moment_they_jump() -> None:
    """New York, 8 March 2026: 03:00 follows 01:59. There is one reset that day, at the jump."""
    jump = at("2026-03-08T03:00", NEW_YORK)
    assert daily_reset_before(jump, 2, NEW_YORK) == jump
    assert daily_reset_before(jump - 1, 2, NEW_YORK) == at("2026-03-07T02:00", NEW_YORK)
    assert daily_reset_after(jump, 2, NEW_YORK) == at("2026-03-09T02:00", NEW_YORK)
    half = at("2026-10-04T02:30", LORD_HOWE)
    assert daily_reset_before(half, 2, LORD_HOWE) == half


@pytest.mark.promise("P27")
def test_an_hour_that_comes_twice_resets_once() -> None:
    """New York, 1 November 2026: 01:00 occurs twice, the first one counts."""
    first, second = at("2026-11-01T01:00", NEW_YORK), at("2026-11-01T01:00", NEW_YORK, fold=1)
    assert second - first == HOUR
    for moment in (first, second - 1, second, second + HOUR):
        assert daily_reset_before(moment, 1, NEW_YORK) == first
    assert daily_reset_after(first, 1, NEW_YORK) == at("2026-11-02T01:00", NEW_YORK)
    midnight = at("2026-11-01T00:00", HAVANA)
    assert daily_reset_before(at("2026-11-01T00:30", HAVANA, fold=1), 0, HAVANA) == midnight


@pytest.mark.promise("P27")
def test_a_date_that_comes_back_does_not_undo_a_reset() -> None:
    """St John's, 2010: at 00:01 the clocks went back to 23:01 of the previous day."""
    midnight = at("2010-11-07T00:00", ST_JOHNS)
    back = at("2010-11-06T23:30", ST_JOHNS, fold=1)
    assert midnight < back
    assert daily_reset_before(back, 0, ST_JOHNS) == midnight


@pytest.mark.promise("P27")
def test_a_day_that_was_left_out_has_no_reset_of_its_own() -> None:
    """Samoa went from 29 to 31 December 2011."""
    before, after = at("2011-12-29T04:00", APIA), at("2011-12-31T04:00", APIA)
    assert daily_reset_after(before, 4, APIA) == after
    assert daily_reset_before(after - 1, 4, APIA) == before


@pytest.mark.promise("P27")
def test_days_follow_the_calendar_when_clocks_change() -> None:
    """The day has 23 or 25 hours, and the reset stays at four."""
    spring, autumn = at("2026-03-29T04:00", BERLIN), at("2026-10-25T04:00", BERLIN)
    assert spring - daily_reset_before(spring - 1, 4, BERLIN) == 23 * HOUR  # type: ignore[operator]
    assert autumn - daily_reset_before(autumn - 1, 4, BERLIN) == 25 * HOUR  # type: ignore[operator]


@pytest.mark.promise("P27")
@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Pacific/Kiritimati"), ZoneInfo("Pacific/Pago_Pago")])
def test_the_ends_of_the_calendar_are_no_error(zone: tzinfo) -> None:
    """In 1970 and 9999 the result may be unknown; beyond them nothing is stale."""
    for moment in (0, 1, at("9999-12-31T23:59:59"), at("0001-01-01")):
        before, after = daily_reset_before(moment, 4, zone), daily_reset_after(moment, 4, zone)
        assert before is None or before <= moment
        assert after is None or after > moment
    assert freshness(Times(started=0), DAILY, 10**17, zone).reason == "daily"
    assert freshness(Times(started=10**17), DAILY, 10**17, zone) == FRESH


moments = st.integers(0, at("2100-01-01"))
zones = st.sampled_from(ZONES)
hours = st.integers(0, 23)


@pytest.mark.promise("P27")
@given(moments, hours, zones)
def test_resets_are_a_row_of_moments(now: int, hour: int, zone: tzinfo) -> None:
    """The last is not after now, the next is, and they are about a day apart."""
    before, after = daily_reset_before(now, hour, zone), daily_reset_after(now, hour, zone)
    assert before is not None and after is not None
    assert before <= now < after
    assert daily_reset_before(before, hour, zone) == before == daily_reset_before(after - 1, hour, zone)
    assert daily_reset_after(before, hour, zone) == after == daily_reset_after(after - 1, hour, zone)
    assert 22 * HOUR <= after - before <= 26 * HOUR


@pytest.mark.promise("P27")
@given(moments, st.integers(0, 400 * DAY), hours, zones)
def test_a_session_is_stale_just_if_it_began_before_the_last_reset(
    started: int, later: int, hour: int, zone: tzinfo
) -> None:
    """Both documented definitions agree at any time."""
    now = started + later
    before = daily_reset_before(now, hour, zone)
    found = freshness(Times(started=started), ResetPolicy(hour, None), now, zone)
    assert before is not None
    assert found.fresh == (started >= before)
    assert found.fresh or (found.at is not None and started < found.at <= now)


@pytest.mark.promise("P27")
@given(moments, moments, moments, st.integers(0, DAY), st.integers(1, 5000), hours, zones)
def test_what_is_stale_stays_stale(
    started: int, interacted: int, now: int, later: int, idle: int, hour: int, zone: tzinfo
) -> None:
    """Reason and time stay the same, unless a time in the future becomes valid."""
    times, both = Times(min(started, now), min(interacted, now)), ResetPolicy(hour, idle)
    found = freshness(times, both, now, zone)
    assert found.fresh or freshness(times, both, now + later, zone) == found
