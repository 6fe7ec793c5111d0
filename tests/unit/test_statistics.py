"""Usage tables: names, sums, unknown values, and days of every time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import assistant, entry
from sessile.core.digest import Digest
from sessile.core.statistics import (
    SessionUsage,
    StatRow,
    Table,
    Usage,
    by_model,
    by_project,
    by_session,
    by_tool,
    daily,
    weekly,
)
from sessile.core.usage import QUARTER, UNDATED, Spending

BERLIN, KOLKATA, KATHMANDU = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Asia/Kathmandu")
ZONES = [UTC, BERLIN, KOLKATA, KATHMANDU, ZoneInfo("America/St_Johns"), ZoneInfo("Australia/Lord_Howe")]
PRICED = {"input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1, "totalTokens": 18, "cost": {"total": 0.25}}
UNPRICED = {"input": 1, "totalTokens": 1}


def quarter(moment: str) -> str:
    """Return the quarter-hour of a time in UTC."""
    return str(int(datetime.fromisoformat(f"{moment}+00:00").timestamp() * 1000) // QUARTER)


def session(
    spending: Spending, name: str = "s1", project: str | None = "/app", title: str | None = None
) -> SessionUsage:
    return SessionUsage(name, project, title, spending.encode() or b"{}")


def answers_at(*moments: str, usage: object = PRICED) -> Spending:
    """Return one answer with one call at each time."""
    spending = Spending()
    for moment in moments:
        spending.add_answer("p/m", moment if moment == UNDATED else quarter(moment), usage, ["read"])
    return spending


def named(table: Table) -> dict[str, StatRow]:
    return {row.name: row for row in table.rows}


def answers(table: Table) -> dict[str, int | None]:
    return {row.name: row.answers for row in table.rows}


# -- days and weeks


def test_a_day_is_that_of_the_zone() -> None:
    """Zones may have offsets of half or three quarters of an hour."""
    moments = ["2026-02-15T18:14", "2026-02-15T18:15", "2026-02-15T18:30", "2026-02-15T23:00"]
    usage = Usage([session(answers_at(*moments))])
    assert answers(daily(usage, UTC)) == {"2026-02-15": 4}
    assert answers(daily(usage, BERLIN)) == {"2026-02-15": 3, "2026-02-16": 1}
    assert answers(daily(usage, KOLKATA)) == {"2026-02-15": 2, "2026-02-16": 2}  # +05:30
    assert answers(daily(usage, KATHMANDU)) == {"2026-02-15": 1, "2026-02-16": 3}  # +05:45


@pytest.mark.parametrize(
    ("day", "first", "last", "hours"),
    [
        ("2026-03-29", "2026-03-28T23:00", "2026-03-29T21:45", 23),
        ("2026-10-25", "2026-10-24T22:00", "2026-10-25T22:45", 25),
    ],
)
def test_days_on_which_clocks_are_changed_are_shorter_or_longer(day: str, first: str, last: str, hours: int) -> None:
    """In Berlin they have 23 and 25 hours, and no quarter-hour is lost or counted twice."""
    begin, end = int(quarter(first)), int(quarter(last))
    spending = Spending()
    for number in range(begin - 8, end + 9):
        spending.add_answer("p/m", str(number), PRICED, [])
    found = answers(daily(Usage([session(spending)]), BERLIN))
    assert found[day] == hours * 4 == end - begin + 1
    assert list(found.values()) == [8, hours * 4, 8]


def test_weeks_begin_on_monday() -> None:
    """ISO weeks; the first days of January may belong to the previous year."""
    usage = Usage([session(answers_at("2026-12-27T12:00", "2026-12-28T12:00", "2027-01-03T12:00", "2027-01-04T12:00"))])
    assert answers(weekly(usage, UTC)) == {"2026-W52": 1, "2026-W53": 2, "2027-W01": 1}
    sunday = Usage([session(answers_at("2026-03-29T21:59", "2026-03-29T22:00"))])  # midnight in Berlin's summer
    assert answers(weekly(sunday, BERLIN)) == {"2026-W13": 1, "2026-W14": 1}


def test_what_is_undated_comes_last_and_no_range_holds_it() -> None:
    """It has its own row, or is counted as left out."""
    usage = Usage([session(answers_at(UNDATED, "2026-02-16T10:00", UNDATED))])
    assert answers(daily(usage, UTC)) == {"2026-02-16": 1, UNDATED: 2}
    assert list(answers(weekly(usage, UTC))) == ["2026-W08", UNDATED]
    table = daily(usage._replace(since=0), UTC)
    assert (answers(table), table.total.answers, table.undated) == ({"2026-02-16": 1}, 1, 2)
    assert daily(usage, UTC).undated == 0


def test_a_range_holds_its_beginning_and_not_its_end() -> None:
    """Usage outside of it is in no row and no total."""
    spending = answers_at("2026-02-16T10:00", "2026-02-16T10:15", "2026-02-16T10:30")
    spending.add_run("bash", quarter("2026-02-16T10:30"), failed=False)
    begin = int(quarter("2026-02-16T10:00"))
    table = by_tool(Usage([session(spending)], since=begin, until=begin + 2))
    assert (table.total.answers, table.total.calls, table.rows[0].calls, table.shell) == (2, 2, 2, [])
    assert by_tool(Usage([session(spending)], since=begin + 1)).shell[0].calls == 1
    assert by_session(Usage([session(spending)], until=begin)) == Table(
        [], StatRow("total", 0, 0, unpriced=0, calls=0, failures=0, listed=0), [], 0
    )


@given(st.integers(0, 10_000_000), st.sampled_from(ZONES))
def test_every_quarter_hour_is_in_the_day_in_which_it_begins(number: int, zone: tzinfo) -> None:
    """This holds for time zones of all kinds."""
    spending = Spending()
    spending.add_answer("p/m", str(number), None, [])
    begins = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number * QUARTER)).astimezone(zone)
    assert answers(daily(Usage([session(spending)]), zone)) == {begins.date().isoformat(): 1}


# -- other tables


def test_a_row_holds_all_that_is_known() -> None:
    """Tokens of every kind, cost, calls and failures."""
    spending = answers_at("2026-02-16T10:00", "2026-02-16T11:00")
    spending.add_failure("read", quarter("2026-02-16T11:00"))
    wanted = StatRow("2026-02-16", 1, 2, 20, 10, 4, 2, 36, 0.5, 0, 2, 1, listed=0)
    table = daily(Usage([session(spending)]), UTC)
    assert table.rows == [wanted]
    assert table.total == wanted._replace(name="total")


def test_a_cost_is_that_of_the_answers_that_have_a_price() -> None:
    """Unknown without any; the number of unpriced answers is always known."""
    unpriced = answers_at("2026-02-16T10:00", usage=UNPRICED)
    untold = answers_at("2026-02-17T10:00", usage=None)
    table = daily(Usage([session(unpriced), session(untold)]), UTC)
    assert [(row.total, row.cost, row.unpriced) for row in table.rows] == [(1, None, 1), (None, None, 1)]
    assert (table.total.total, table.total.cost, table.total.unpriced) == (1, None, 2)
    both = by_project(Usage([session(unpriced), session(answers_at("2026-02-16T10:00"))]))
    assert (both.total.cost, both.total.unpriced, both.total.total) == (0.25, 1, 19)


def test_models_are_told_apart_and_the_dearest_comes_first() -> None:
    """Then models without a price by tokens; failures have no model."""
    spending = Spending()
    for model, usage in (
        ("cheap", PRICED),
        ("dear", PRICED),
        ("dear", PRICED),
        ("", UNPRICED),
        ("free", PRICED | {"cost": 0}),
    ):
        spending.add_answer(model, UNDATED, usage, ["read"])
    spending.add_failure("read", UNDATED)
    table = by_model(Usage([session(spending)]))
    assert [row.name for row in table.rows] == ["dear", "cheap", "free", "unknown"]
    assert [(row.calls, row.failures) for row in table.rows] == [(2, None), (1, None), (1, None), (1, None)]
    assert (table.total.calls, table.total.failures, table.total.sessions) == (5, 1, 1)


def test_sessions_of_a_project_are_added_up() -> None:
    """A session counts once in each row and once in the total."""
    at = answers_at("2026-02-16T10:00", "2026-02-17T10:00")
    usage = Usage([session(at, "a"), session(at, "b"), session(at, "c", "/other"), session(at, "d", None)])
    found = named(by_project(usage))
    assert {name: (row.sessions, row.answers) for name, row in found.items()} == {
        "/app": (2, 4),
        "/other": (1, 2),
        "unknown": (1, 2),
    }
    assert [row.sessions for row in daily(usage, UTC).rows] == [4, 4]
    assert daily(usage, UTC).total.sessions == 4


def test_each_session_has_a_row() -> None:
    """A copy with the same id has its own row; a session without usage in the range has none."""
    at = answers_at("2026-02-16T10:00")
    usage = Usage([session(at, "a", title="First"), session(at, "a"), session(Spending(), "empty")])
    rows = by_session(usage).rows
    assert sorted((row.name, row.title or "") for row in rows) == [("a", ""), ("a", "First")]
    assert by_session(usage).total.sessions == 2


def test_tools_come_by_calls_and_what_users_ran_is_apart() -> None:
    """Rows of tools have no answers and tokens."""
    spending = Spending()
    spending.add_answer("p/m", UNDATED, PRICED, ["read", "bash", "bash", ""])
    spending.add_failure("bash", UNDATED)
    spending.add_run("bash", UNDATED, failed=True)
    table = by_tool(Usage([session(spending)]))
    assert table.rows == [
        StatRow("bash", 1, calls=2, failures=1),
        StatRow("read", 1, calls=1, failures=0),
        StatRow("unknown", 1, calls=1, failures=0),
    ]
    assert table.shell == [StatRow("bash", 1, calls=1, failures=1)]
    assert (table.total.calls, table.total.failures, table.total.answers) == (4, 1, 1)


TABLES: list[Callable[[Usage], Table]] = [
    lambda usage: daily(usage, KATHMANDU),
    lambda usage: weekly(usage, BERLIN),
    by_model,
    by_project,
    by_session,
    by_tool,
]
moments = st.sampled_from(["2026-03-28T23:30:00.000Z", "2026-03-29T00:45:00.000Z", "2026-10-25T01:00:00.000Z", None])
talks = st.lists(
    st.tuples(
        moments,
        st.sampled_from(["m", "n", ""]),
        st.sampled_from([None, PRICED, UNPRICED]),
        st.lists(st.sampled_from(["read", "bash"]), max_size=2),
    ),
    max_size=5,
)


def talked(talk: list[tuple[str | None, str, object, list[str]]], name: str = "") -> Digest:
    digest = Digest()
    for number, (at, model, usage, tools) in enumerate(talk):
        message = assistant("x", "p", model) | {"usage": usage}
        message["content"] += [{"type": "toolCall", "name": tool} for tool in tools]
        digest.add(entry("message", f"{name}e{number}", None, message=message) | {"timestamp": at})
    return digest


@given(st.lists(talks, max_size=4))
def test_every_table_has_the_total_that_the_sessions_have(
    stories: list[list[tuple[str | None, str, object, list[str]]]],
) -> None:
    """The rows add up to the total."""
    digests = [talked(talk, f"s{number}") for number, talk in enumerate(stories)]
    usage = Usage([session(digest.spending, f"s{n}", f"/p{n % 2}") for n, digest in enumerate(digests)])
    tables = [table(usage) for table in TABLES]
    (total,) = {table.total for table in tables}
    counts = [digest.counts() for digest in digests]
    costs = [count.cost for count in counts if count.cost is not None]
    assert total.cost == (sum(costs) if costs else None)
    assert total.unpriced == sum(count.unpriced for count in counts)
    assert total.calls == sum(count.tool_calls for count in counts)
    assert total.sessions == sum(bool(talk) for talk in stories)
    for table in tables:
        for column in ("answers", "total", "cost", "unpriced", "calls"):
            told = [value for row in table.rows if (value := getattr(row, column)) is not None]
            if told or column == "calls":
                assert sum(told) == getattr(total, column)


@pytest.mark.mission("N6")
@given(talks, talks, talks)
def test_what_a_fork_copied_counts_once(shared: list[Any], own: list[Any], other: list[Any]) -> None:
    """The total of a session and its fork is that of their different entries."""
    told = [(at or "2026-03-28T23:30:00.000Z", *rest) for at, *rest in shared]
    once = talked(told + [(at, *rest) for at, *rest in own], "s")
    fork = talked(told, "s")
    for number, (at, model, usage, tools) in enumerate(other):
        message = assistant("x", "p", model) | {"usage": usage}
        message["content"] += [{"type": "toolCall", "name": tool} for tool in tools]
        fork.add(entry("message", f"f{number}", None, message=message) | {"timestamp": at})
    both = by_model(Usage([session(once.spending, "a"), session(fork.spending, "b")])).total
    apart = by_model(Usage([session(once.spending, "a"), session(talked(other, "f").spending, "b")])).total
    assert both._replace(sessions=0, cost=round(both.cost or 0, 6)) == apart._replace(
        sessions=0, cost=round(apart.cost or 0, 6)
    )
