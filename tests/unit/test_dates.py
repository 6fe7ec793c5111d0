"""Dates as users write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.dates import parse_moment, parse_span
from sessile.errors import InvalidQuery

BERLIN = ZoneInfo("Europe/Berlin")
NOW = int(datetime(2026, 11, 15, 14, 30, tzinfo=BERLIN).timestamp() * 1000)  # a Sunday


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("14d", datetime(2026, 11, 1, 14, 30, tzinfo=BERLIN)),
        ("2 weeks ago", datetime(2026, 11, 1, 14, 30, tzinfo=BERLIN)),
        ("90min", datetime(2026, 11, 15, 13, 0, tzinfo=BERLIN)),
        ("3h", datetime(2026, 11, 15, 11, 30, tzinfo=BERLIN)),
        ("today", datetime(2026, 11, 15, tzinfo=BERLIN)),
        ("Yesterday", datetime(2026, 11, 14, tzinfo=BERLIN)),
        ("this week", datetime(2026, 11, 9, tzinfo=BERLIN)),
        ("last  week", datetime(2026, 11, 2, tzinfo=BERLIN)),
        ("last month", datetime(2026, 10, 1, tzinfo=BERLIN)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=BERLIN)),
        ("2026-11-01T09:30", datetime(2026, 11, 1, 9, 30, tzinfo=BERLIN)),
        ("2026-11-01T09:30:00Z", datetime(2026, 11, 1, 9, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_in_the_zone_of_the_person(text: str, moment: datetime) -> None:
    """Durations count back from now, days start at midnight, ISO times may have their own zone."""
    assert parse_moment(text, NOW, BERLIN) == int(moment.timestamp() * 1000)


def test_a_day_begins_at_midnight_across_a_change_of_clocks() -> None:
    """The last Sunday of October has 25 hours in Berlin."""
    monday = int(datetime(2026, 10, 26, 12, tzinfo=BERLIN).timestamp() * 1000)
    sunday = int(datetime(2026, 10, 25, tzinfo=BERLIN).timestamp() * 1000)
    assert parse_moment("yesterday", monday, BERLIN) == sunday


@given(st.text())
def test_any_text_is_a_moment_or_refused_with_examples(text: str) -> None:
    """Only the typed error is raised."""
    try:
        assert isinstance(parse_moment(text, NOW, UTC), int)
    except InvalidQuery as error:
        assert "14d" in (error.hint or "")


def test_spans() -> None:
    """A duration is a number and a unit."""
    assert parse_span("90d") == 90 * 86_400_000
    assert parse_span("36h") == 36 * 3_600_000
    with pytest.raises(InvalidQuery):
        parse_span("soon")
