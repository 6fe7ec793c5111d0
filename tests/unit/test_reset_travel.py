"""Resets of conversations over time: nights, idle hours, clock changes, heartbeats, and undo.

A journey is a series of times at which messages arrive. Its result is a string of letters: A is the first session, B
the next new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile import Store
from sessile.core.resets import previous_sessions, read_reset_config
from sessile.core.usage import Usage
from sessile.errors import Conflict
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.conversations.registry import Conversations
from sessile.storage.memory import MemoryFilesystem
from sessions import Clock, numbered
from yoyoclaw import GROUP, MAIN

pytestmark = pytest.mark.mission("Y4")

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
DAY = 24 * HOUR
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # where clocks change by half an hour
THREAD = "agent:main:discord:channel:c:thread:1"
SLACK = "agent:main:slack:channel:c"


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> int:
    """Return a wall-clock time in a zone, in milliseconds since 1970; `fold=1` is the second of two equal ones."""
    moment = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class Traveller:
    """Conversations whose clock is set to the time of each message."""

    def __init__(self, zone: tzinfo = UTC, **session: Any) -> None:
        self.clock = Clock(0)
        self.fs = MemoryFilesystem()
        self.zone = zone
        self.session = session
        self.ids: list[str] = []
        self.restart("first")

    def restart(self, seed: str) -> None:
        """Start another process on the same disk."""
        self.store = Store("/ours", fs=self.fs, clock=self.clock, random=numbered(seed), durability="process")
        resets, _ = read_reset_config(self.session)
        self.all = Conversations(
            self.store, workspace=lambda agent: f"/work/{agent}", resets=resets, zone=self.zone, hold=None
        )

    def speak(self, now: int, source: Inbound | str = MAIN) -> str:
        """Return the letter of the session that gets a message."""
        self.clock.seconds = now / 1000
        return self.letter(self.all.resolve(source, now).session_id)

    def letter(self, session_id: str) -> str:
        if session_id not in self.ids:
            self.ids.append(session_id)
        return chr(ord("A") + self.ids.index(session_id))

    def journey(self, *moments: int, source: Inbound | str = MAIN) -> str:
        return "".join(self.speak(moment, source) for moment in moments)

    def reason(self, now: int, source: Inbound | str = MAIN) -> str | None:
        """Return why a message at this time starts a new session."""
        self.clock.seconds = now / 1000
        return self.all.resolve(source, now).reason

    def resume(self, now: int, **options: Any) -> str:
        return self.letter(self.all.resume(MAIN, now=now, **options).session_id)


# -- nights


def test_a_night_begins_a_new_session_whenever_the_next_message_comes() -> None:
    """One new session starts, however many nights have passed; the next reset counts from there."""
    one = Traveller()
    evening = at("2026-03-01T22:00")
    assert one.journey(evening, evening + HOUR, evening + 6 * HOUR - 1) == "AAA"
    assert one.journey(at("2026-03-02T04:00"), at("2026-03-03T03:59:59.999")) == "BB"
    assert one.journey(at("2026-04-20T12:00"), at("2026-04-21T03:59"), at("2026-04-21T04:01")) == "CCD"
    entry = one.all.get(MAIN)
    assert entry is not None
    assert [(one.letter(row.session_id), row.reason) for row in entry.previous] == [
        ("C", "daily"),
        ("B", "daily"),
        ("A", "daily"),
    ]


@pytest.mark.parametrize("hour", [0, 4, 12, 23])
def test_the_very_millisecond_of_the_hour_is_the_new_day(hour: int) -> None:
    """A session that starts exactly at the hour lasts until the next day."""
    one = Traveller(reset={"mode": "daily", "atHour": hour})
    turn = at(f"2026-03-02T{hour:02d}:00")
    assert one.journey(turn - 1, turn, turn + DAY - 1, turn + DAY) == "ABBC"


def test_the_hour_is_that_of_the_zone_that_is_named() -> None:
    """The time zone of the channel or the base is used, otherwise the local one."""
    slack = {"slack": {"mode": "daily", "timeZone": "Australia/Lord_Howe"}}
    one = Traveller(BERLIN, reset={"timeZone": "America/New_York"}, resetByChannel=slack)
    begin = at("2026-07-01T12:00")
    for source, zone in ((MAIN, NEW_YORK), (SLACK, LORD_HOWE)):
        turn = at("2026-07-02T04:00", zone)
        assert len(set(one.journey(begin, turn - 1, source=source))) == 1
        assert one.reason(turn, source) == "daily"
    two = Traveller(BERLIN)
    turn = at("2026-07-02T04:00", BERLIN)
    assert two.journey(begin, turn - 1, turn) == "AAB"


def test_without_resets_a_conversation_lasts_for_years() -> None:
    """Neither the hour nor a long pause starts a new session."""
    one = Traveller(reset={"mode": "none"}, idleMinutes=5)
    assert one.journey(*(at("2026-01-01T00:00") + number * 100 * DAY for number in range(20))) == "A" * 20


# -- idle minutes, and both


def test_idle_minutes_count_from_the_last_message() -> None:
    """The exact number of minutes is not exceeded, and an active conversation never ends."""
    one = Traveller(reset={"mode": "idle", "idleMinutes": 30})
    now = at("2026-03-01T20:00")
    half_hours = [now + number * 30 * MINUTE for number in range(50)]
    assert one.journey(*half_hours) == "A" * 50
    last = half_hours[-1]
    assert one.journey(last + 30 * MINUTE, last + 60 * MINUTE + 1) == "AB"


def test_minutes_are_real_ones_when_the_clocks_change() -> None:
    """A skipped hour is not idle time, and a repeated hour is."""
    rules = {"mode": "idle", "idleMinutes": 30}
    spring, autumn = Traveller(BERLIN, reset=rules), Traveller(BERLIN, reset=rules)
    assert spring.journey(at("2026-03-29T01:50", BERLIN), at("2026-03-29T03:10", BERLIN)) == "AA"
    assert autumn.journey(at("2026-10-25T02:50", BERLIN), at("2026-10-25T02:55", BERLIN, fold=1)) == "AB"


@pytest.mark.parametrize(
    ("spoke", "reason"),
    [("02:00", "idle"), ("02:59:59.999", "idle"), ("03:00:00.001", "daily"), ("03:30", "daily"), ("04:00", None)],
)
def test_of_two_ends_the_first_is_told(spoke: str, reason: str | None) -> None:
    """If both the idle time and the hour have passed, the reason is the earlier one."""
    one = Traveller(reset={"mode": "daily", "idleMinutes": 60})
    one.speak(at(f"2026-03-02T{spoke}"))
    assert one.reason(at("2026-03-02T05:00")) == reason


def test_either_end_is_enough() -> None:
    """An active conversation is reset at four, and an idle one before that."""
    one = Traveller(reset={"mode": "daily", "idleMinutes": 60})
    busy = [at("2026-03-02T03:10") + number * 40 * MINUTE for number in range(3)]  # 03:10, 03:50, 04:30
    assert one.journey(*busy) == "AAB"
    assert one.journey(busy[-1] + 60 * MINUTE, busy[-1] + 2 * HOUR + 1) == "BC"


# -- types and channels


def test_each_conversation_lives_by_its_own_rules() -> None:
    """A direct chat, a group, a thread and a channel have different resets after a night and a long pause."""
    session: dict[str, Any] = {
        "reset": {"mode": "daily", "atHour": 4},
        "resetByType": {"group": {"mode": "idle", "idleMinutes": 120}, "thread": {"mode": "none"}},
        "resetByChannel": {"slack": {"mode": "daily", "atHour": 6}},
    }
    evening = at("2026-03-01T23:00")
    moments = [
        evening,
        evening + 2 * HOUR,
        evening + 4 * HOUR + 1,
        evening + 5 * HOUR,
        evening + 7 * HOUR,
        evening + DAY,
    ]
    expected = {MAIN: "AAABBB", GROUP: "AABBBC", THREAD: "AAAAAA", SLACK: "AAAABB"}
    for source, letters in expected.items():
        assert Traveller(**session).journey(*moments, source=source) == letters, source
    # Conversations in the same store do not affect each other.
    together = Traveller(**session)
    told: dict[str, list[str]] = {source: [] for source in expected}
    for moment in moments:
        for source in expected:
            told[source].append(together.speak(moment, source))
    for source, letters in expected.items():
        assert [a == b for a, b in pairwise(told[source])] == [a == b for a, b in pairwise(letters)], source


def test_a_direct_chat_lives_by_the_channel_that_the_message_comes_from() -> None:
    """The policy of the channel of the current message applies to the shared main conversation."""
    one = Traveller(reset={"mode": "none"}, resetByChannel={"slack": {"mode": "idle", "idleMinutes": 1}})
    slack, telegram = Inbound(channel="slack", peer="u"), Inbound(channel="telegram", peer="u")
    now = at("2026-03-01T12:00")
    assert one.journey(now, now + HOUR, source=telegram) == "AA"
    assert one.speak(now + HOUR + MINUTE, slack) == "A"
    assert one.speak(now + HOUR + 2 * MINUTE + 1, slack) == "B"
    assert one.speak(now + 9 * HOUR, telegram) == "B"


# -- messages of the system


def test_a_heartbeat_neither_keeps_a_session_nor_ends_it() -> None:
    """Heartbeats stay in the old session overnight; the next user message starts a new one."""
    one = Traveller(reset={"mode": "daily", "idleMinutes": 60})
    heartbeat = Inbound(session_key=MAIN, system=True)
    evening = at("2026-03-01T23:00")
    assert one.speak(evening) == "A"
    beats = [evening + number * 30 * MINUTE for number in range(1, 24)]
    assert one.journey(*beats, source=heartbeat) == "A" * 23
    for beat in beats:
        one.all.count(MAIN, one.ids[0], usage=Usage(input=1), now=beat)
    one.all.flush(now=beats[-1])
    entry = one.all.get(MAIN)
    assert entry is not None and entry.entry["updatedAt"] == beats[-1] and entry.entry["lastInteractionAt"] == evening
    assert one.reason(beats[-1] + 1) == "idle"
    assert one.speak(beats[-1] + 2, heartbeat) == "B"


def test_a_heartbeat_does_not_hide_a_night() -> None:
    """A heartbeat at four does not prevent the reset at the next user message."""
    one = Traveller()
    heartbeat = Inbound(session_key=MAIN, system=True)
    turn = at("2026-03-02T04:00")
    one.speak(turn - HOUR)
    assert one.journey(turn, turn + HOUR, source=heartbeat) == "AA"
    assert one.reason(turn + 2 * HOUR) == "daily"


# -- undo


def test_a_night_can_be_taken_back_until_the_next_one() -> None:
    """After the next night that reset can be undone, and all earlier sessions can be resumed."""
    one = Traveller()
    turn = at("2026-03-02T04:00")
    assert one.journey(turn - 1, turn) == "AB"
    assert one.resume(turn + 1, expected=one.ids[1]) == "A"
    assert one.journey(turn + 2, turn + DAY - 1, turn + DAY) == "AAC"
    with pytest.raises(Conflict):
        one.all.resume(MAIN, expected=one.ids[1], now=turn + DAY + 1)
    assert one.resume(turn + DAY + 1, expected=one.ids[2]) == "A"
    assert one.resume(turn + DAY + 2, back=2) == "B"
    found = one.all.get(MAIN)
    assert found is not None
    assert sorted(one.letter(row.session_id) for row in previous_sessions(found.entry)) == ["A", "C"]


def test_going_back_counts_as_speaking() -> None:
    """Idle time and the daily reset count from the time of the resume."""
    one = Traveller(reset={"mode": "daily", "idleMinutes": 60})
    noon = at("2026-03-01T12:00")
    assert one.journey(noon, noon + 2 * HOUR) == "AB"
    assert one.resume(noon + 3 * HOUR) == "A"
    assert one.journey(noon + 4 * HOUR, noon + 5 * HOUR + 1) == "AC"


def test_a_session_that_is_resumed_in_the_hour_that_comes_twice_is_not_ended_by_the_second() -> None:
    """There is one reset per calendar day."""
    one = Traveller(NEW_YORK, reset={"mode": "daily", "atHour": 1})
    first, second = (at("2026-11-01T01:00", NEW_YORK, fold) for fold in (0, 1))
    assert one.journey(first - 1, first) == "AB"
    assert one.resume(first + MINUTE) == "A"
    assert one.journey(second - 1, second, second + HOUR, at("2026-11-02T00:59", NEW_YORK)) == "AAAA"
    assert one.speak(at("2026-11-02T01:00", NEW_YORK)) == "C"


# -- changes of the clocks


@pytest.mark.parametrize(
    ("zone", "hour", "jump", "next_turn"),
    [
        (BERLIN, 2, "2026-03-29T03:00", "2026-03-30T02:00"),
        (NEW_YORK, 2, "2026-03-08T03:00", "2026-03-09T02:00"),
        (LORD_HOWE, 2, "2026-10-04T02:30", "2026-10-05T02:00"),
    ],
)
def test_an_hour_that_does_not_exist_is_the_moment_of_the_jump(
    zone: tzinfo, hour: int, jump: str, next_turn: str
) -> None:
    """There is one reset that night at the jump, and the next one is at the usual hour."""
    one = Traveller(zone, reset={"mode": "daily", "atHour": hour})
    moment, after = at(jump, zone), at(next_turn, zone)
    evening = moment - 5 * HOUR
    assert one.journey(evening, moment - 1, moment, moment + HOUR, after - 1, after) == "AABBBC"


@pytest.mark.parametrize(("zone", "hour", "turn"), [(BERLIN, 2, "2026-10-25T02:00"), (NEW_YORK, 1, "2026-11-01T01:00")])
def test_an_hour_that_comes_twice_ends_a_session_once(zone: tzinfo, hour: int, turn: str) -> None:
    """The first occurrence resets; a session started between both continues."""
    one = Traveller(zone, reset={"mode": "daily", "atHour": hour})
    first, second = at(turn, zone), at(turn, zone, fold=1)
    assert second - first == HOUR
    assert one.journey(first - 1, first, second - 1, second, second + 20 * HOUR) == "ABBBB"
    other = Traveller(zone, reset={"mode": "daily", "atHour": hour})
    assert other.journey(second - 1, second, second + 23 * HOUR - 1, second + 24 * HOUR) == "AAAB"


def test_half_an_hour_that_comes_twice_does_not_touch_the_full_one() -> None:
    """Lord Howe, 5 April 2026: at two the clocks go back to half past one, so two o'clock occurs twice."""
    one = Traveller(LORD_HOWE, reset={"mode": "daily", "atHour": 2})
    two = at("2026-04-05T02:00", LORD_HOWE)
    assert two - at("2026-04-04T02:00", LORD_HOWE) == DAY + 30 * MINUTE
    assert one.journey(two - HOUR, two - 30 * MINUTE, two - 1, two, two + DAY - 1, two + DAY) == "AAABBC"


@pytest.mark.parametrize(
    ("zone", "day", "length"),
    [
        (BERLIN, "2026-03-29", DAY - HOUR),
        (BERLIN, "2026-10-25", DAY + HOUR),
        (NEW_YORK, "2026-03-08", DAY - HOUR),
        (NEW_YORK, "2026-11-01", DAY + HOUR),
        (LORD_HOWE, "2026-10-04", DAY - 30 * MINUTE),
        (LORD_HOWE, "2026-04-05", DAY + 30 * MINUTE),
    ],
)
def test_four_in_the_morning_is_four_in_the_morning(zone: tzinfo, day: str, length: int) -> None:
    """The length of the previous day does not matter."""
    one = Traveller(zone)
    turn = at(f"{day}T04:00", zone)
    assert one.journey(turn - length - 1, turn - length, turn - 1, turn) == "ABBC"


def hours_of(zone: tzinfo, first: int, last: int, hour: int) -> Iterator[int]:
    """Return the times at which a date reaches an hour, found by checking a clock every minute."""
    seen = set()
    for moment in range(first - DAY, last, MINUTE):
        local = datetime.fromtimestamp(moment / 1000, zone)
        if local.hour >= hour and local.date() not in seen:
            seen.add(local.date())
            if moment > first - DAY:  # otherwise the date had reached it before the first check
                yield moment


@cache
def turns(name: str, day: str, hour: int) -> tuple[int, ...]:
    begin = at(f"{day}T00:00")
    return tuple(hours_of(ZoneInfo(name), begin - DAY, begin + 3 * DAY, hour))


CHANGES = [
    *(("Europe/Berlin", day) for day in ("2026-03-29", "2026-10-25", "2026-07-01")),
    *(("America/New_York", day) for day in ("2026-03-08", "2026-11-01")),
    *(("Australia/Lord_Howe", day) for day in ("2026-04-05", "2026-10-04")),
]


@given(
    st.sampled_from(CHANGES),
    st.integers(0, 4),
    st.none() | st.integers(1, 600),
    st.lists(st.integers(0, 2 * DAY // SECOND), min_size=2, max_size=10, unique=True),
    st.lists(st.sampled_from([-1, 0, 1]), min_size=10, max_size=10),
)
def test_every_journey_around_a_change_of_the_clocks_goes_by_the_calendar(
    change: tuple[str, str], hour: int, idle: int | None, seconds: list[int], near: list[int]
) -> None:
    """A session continues exactly if no date reached its hour since the start, and it was not idle too long."""
    name, day = change
    rules = {"mode": "daily", "atHour": hour, **({} if idle is None else {"idleMinutes": idle})}
    one = Traveller(ZoneInfo(name), reset=rules)
    ends = turns(name, day, hour)
    begin = at(f"{day}T00:00") - DAY // 2
    moments = [begin + second * SECOND for second in seconds]
    # Half of them are at a turn of the day or close to it.
    moments += [end + step for end, step in zip(ends, near, strict=False) if begin <= end + step <= begin + 2 * DAY]
    expected = ""
    started = spoken = None
    for moment in sorted(moments):
        over = started is None or any(started < end <= moment for end in ends)
        silent = idle is not None and spoken is not None and moment > spoken + idle * MINUTE
        if over or silent:
            started = moment
            expected += chr(ord(expected[-1]) + 1) if expected else "A"
        else:
            expected += expected[-1]
        spoken = moment
    assert one.journey(*sorted(moments)) == expected


# -- other clocks, other processes


def test_a_clock_that_goes_back_ends_nothing_until_it_is_right_again() -> None:
    """A time in the future is ignored and replaced. When the clock is right again, the pause looks like one of days."""
    one = Traveller(reset={"mode": "daily", "idleMinutes": 60})
    noon = at("2026-03-01T12:00")
    assert one.journey(noon, noon - 3 * DAY, noon - 3 * DAY + HOUR // 2, noon + HOUR) == "AAAB"
    assert one.journey(noon + HOUR, noon + HOUR // 2, noon + HOUR) == "BBB"  # less than an hour is no wrong clock


def test_another_process_goes_on_where_the_last_one_was() -> None:
    """The time of the last message is known, even if it was written later."""
    one = Traveller(reset={"mode": "idle", "idleMinutes": 60})
    noon = at("2026-03-01T12:00")
    assert one.journey(noon, noon + HOUR) == "AA"
    one.all.close()
    one.restart("second")
    assert one.journey(noon + 2 * HOUR, noon + 3 * HOUR + 1) == "AB"


def test_two_processes_that_wake_up_after_a_night_share_the_new_session() -> None:
    """The second process uses the session of the first one."""
    one = Traveller()
    turn = at("2026-03-02T04:00")
    one.speak(turn - HOUR)
    early = one.all
    one.restart("second")
    assert one.speak(turn + 1) == "B"
    assert one.letter(early.resolve(MAIN, turn + 2).session_id) == "B"
