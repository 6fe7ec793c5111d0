"""When an agent deletes its sessions: the configured period and the deadline."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.base import DAY, Period, deadline, period_of
from sessile.agents.claude import ClaudeCode

CLAUDE = ClaudeCode.expiry


def period(user: Any = None, local: Any = None) -> Period:
    """Return the period of Claude Code's settings; bytes are the content of a file, numbers the value in it."""
    said = {"settings.json": user, "settings.local.json": local}
    files = {
        name: value if isinstance(value, bytes) else json.dumps({"cleanupPeriodDays": value, "model": "x"}).encode()
        for name, value in said.items()
        if value is not None
    }
    assert CLAUDE is not None
    return period_of(CLAUDE, files)


@pytest.mark.parametrize(
    ("user", "local", "days"),
    [
        (None, None, 30),
        (b"{}", None, 30),
        (b'{"cleanupPeriodDays": null}', None, 30),
        (90, None, 90),
        (1, None, 1),
        (1.5, None, 1.5),
        (90, b"{}", 90),
        (90, 10, 10),
        (10, 90, 10),
        (None, 10, 10),
        (None, 90, 30),
        (99999, None, 99999),
    ],
)
def test_the_shortest_period_counts_and_30_days_where_the_user_says_none(user: Any, local: Any, days: float) -> None:
    """The local file applies to one folder only; elsewhere the user's file or the default of Claude Code applies."""
    assert period(user, local) == Period(int(days * DAY))


@pytest.mark.parametrize(
    "bad",
    [0, 0.5, -1, True, b'{"cleanupPeriodDays": "30"}', b'{"cleanupPeriodDays": 1e999}', b"[]", b"", b"{", b'"x"', b"3"],
)
def test_a_period_that_cannot_be_told_is_unknown_and_says_which_file(bad: Any) -> None:
    """Claude Code refuses less than a day, and its releases treat a broken file differently."""
    for answer, name in ((period(user=bad), "settings.json"), (period(60, bad), "settings.local.json")):
        assert answer.length is None
        assert answer.problem is not None and answer.problem.startswith(f"{name}: ")
        assert deadline(5, answer) is None


@given(st.integers(0, 2**42), st.integers(1, 10**6))
def test_the_deadline_is_the_last_change_and_the_period(modified: int, days: int) -> None:
    """The deadline is exact to the millisecond."""
    assert deadline(modified, period(days)) == modified + days * 24 * 3600 * 1000
