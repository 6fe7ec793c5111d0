"""Charts: shapes for known values, tables with all values, and escaped text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.statistics import SessionUsage, Usage
from sessile.core.usage import Spending
from sessile.render import charts
from sessile.render.charts import MAX_SERIES, Chart, Series, bars, folded, heatmap, lines, ranking
from sessile.render.wording import money

DAYS = ["2026-02-14", "2026-02-15", "2026-02-16"]
EVIL = '</text><script>alert(1)</script><rect onload="x" style="y">&\u202e'
ALLOWED = {"svg", "title", "desc", "g", "rect", "line", "polyline", "circle", "text"}
SVG = "{http://www.w3.org/2000/svg}"


def shapes(chart: Chart, name: str) -> list[ET.Element]:
    """Return the elements with a tag name, in order."""
    return ET.fromstring(chart.svg).findall(f".//{SVG}{name}")


def tips(chart: Chart, name: str) -> list[str]:
    """Return the titles of the shapes of a chart."""
    return [shape.findtext(f"{SVG}title", "") for shape in shapes(chart, name) if shape.find(f"{SVG}title") is not None]


def test_bars_stand_upon_each_other_and_what_is_unknown_is_no_bar() -> None:
    """Each known value has a shape of its height, above the previous series."""
    chart = bars("costs", "Cost", DAYS, [Series("a", [1.0, None, 2.0]), Series("b", [1.0, 0.5, None])], money)
    drawn = [shape for shape in shapes(chart, "rect") if shape.find(f"{SVG}title") is not None]
    assert tips(chart, "rect") == [
        "2026-02-14, a: $1.00",
        "2026-02-14, b: $1.00",
        "2026-02-15, b: $0.50",
        "2026-02-16, a: $2.00",
    ]
    first, second, half, double = drawn
    assert float(second.attrib["y"]) + float(second.attrib["height"]) == pytest.approx(
        float(first.attrib["y"]), abs=0.2
    )
    assert float(half.attrib["height"]) == pytest.approx(float(first.attrib["height"]) / 2, abs=0.2)
    assert float(double.attrib["height"]) == pytest.approx(float(first.attrib["height"]) * 2, abs=0.2)


def test_the_table_has_every_series_and_says_what_is_unknown() -> None:
    """A chart merges series that exceed the number of colours; the table has all of them."""
    series = [Series(f"m{number}", [float(number), None]) for number in range(MAX_SERIES + 3)]
    chart = bars("costs", "Cost", DAYS[:2], series, money)
    assert chart.columns == ["day", *(one.name for one in series)]
    assert chart.rows == [["2026-02-14", *(float(number) for number in range(MAX_SERIES + 3))]]
    assert len([tip for tip in tips(chart, "rect") if "other" in tip]) == 1
    assert folded(series)[-1] == Series("other", [sum(range(MAX_SERIES - 1, MAX_SERIES + 3)), None])


def test_a_line_has_a_gap_where_a_value_is_unknown() -> None:
    """Unknown values leave a gap."""
    chart = lines("cache", "Cache", [*DAYS, "2026-02-17"], [Series("hits", [0.5, 0.6, None, 0.7])], str)
    assert [len(line.attrib["points"].split()) for line in shapes(chart, "polyline")] == [2, 1]
    assert len(shapes(chart, "circle")) == 3


def test_a_rank_tells_what_failed_in_words_too() -> None:
    """The failed part has its own shape, and a number in the text."""
    chart = ranking(
        "tools", "Tools", ["bash", "read"], [Series("calls", [10, 4]), Series("failed", [2, 0])], str, "tool"
    )
    assert [shape.attrib["class"] for shape in shapes(chart, "rect")] == ["series-2", "failed", "series-2"]
    assert "10, 2 failed" in [text.text for text in shapes(chart, "text")]
    assert chart.rows == [["bash", 10, 2], ["read", 4, 0]]


def test_a_calendar_has_every_day_in_the_row_of_its_weekday() -> None:
    """Empty days have the lowest level; the busiest day is the darkest, and a tenth of it is still visible."""
    chart = heatmap("activity", "Days", date(2026, 2, 11), date(2026, 2, 17), {"2026-02-14": 1000, "2026-02-16": 10})
    days = shapes(chart, "rect")
    assert [day.attrib["class"] for day in days] == [f"level-{level}" for level in (0, 0, 0, 4, 0, 2, 0)]
    assert len({day.attrib["y"] for day in days}) == 7 and len({day.attrib["x"] for day in days}) == 2
    assert days[0].attrib["y"] > days[6].attrib["y"]  # Wednesday is below the Tuesday after it
    assert tips(chart, "rect")[3] == "2026-02-14: 1,000 answers"
    assert chart.rows == [["2026-02-16", 10], ["2026-02-14", 1000]]


def test_nothing_at_all_is_an_empty_chart_with_axes() -> None:
    """Without data there is a chart with a title, and a table without rows."""
    for chart in (
        bars("costs", "Cost", [], [], money),
        lines("cache", "Cache", DAYS, [], money),
        ranking("tools", "Tools", [], [Series("calls", [])], str, "tool"),
        heatmap("activity", "Days", date(2026, 2, 16), date(2026, 2, 16), {}),
    ):
        assert chart.rows == []
        assert ET.fromstring(chart.svg).findtext(f"{SVG}title") == chart.title


@pytest.mark.promise("P36")
@given(st.text(), st.lists(st.none() | st.floats(0, 1e12), min_size=3, max_size=3))
def test_no_text_becomes_markup(name: str, values: list[float | None]) -> None:
    """Any name of a model or tool gives only known shapes, without styles, handlers or references."""
    named = name + EVIL
    for chart in (
        bars("costs", named, DAYS, [Series(named, values), Series("b", values)], money),
        lines("cache", named, [named, *DAYS[1:]], [Series(named, values), Series("b", values)], money),
        ranking("tools", named, [named] * 3, [Series("calls", values), Series(named, values)], money, "tool"),
    ):
        for element in ET.fromstring(chart.svg).iter():
            assert element.tag.removeprefix(SVG) in ALLOWED
            assert not {key for key in element.attrib if key.startswith("on") or "href" in key or key == "style"}
        assert "\u202e" not in chart.svg and "<script" not in chart.svg


def test_every_mark_takes_the_colour_of_the_text() -> None:
    """Forced colours and both themes work without a style sheet."""
    chart = bars("costs", "Cost", DAYS, [Series("a", [1, 2, 3]), Series("b", [1, 2, 3])], money)
    for element in ET.fromstring(chart.svg).iter():
        colours = {element.attrib[name] for name in ("fill", "stroke") if name in element.attrib}
        assert colours <= {"currentColor", "none"}
        if element.tag.removeprefix(SVG) in ("rect", "text", "line"):
            assert "currentColor" in colours


# -- what sessions used


def used(*answers: tuple[str, str, float | None]) -> Usage:
    """Return the usage of a session: model, day and cost of each answer."""
    spending = Spending()
    for model, day, cost in answers:
        quarter = str(int((date.fromisoformat(day) - date(1970, 1, 1)).days * 96 + 40))
        tokens = {"input": 100, "output": 10, "cacheRead": 300, "cacheWrite": 0, "totalTokens": 410}
        price = {} if cost is None else {"cost": {"total": cost}}
        spending.add_answer(model, quarter, {**tokens, **price}, ["bash"])
    spending.add_failure("bash", "undated")
    raw = spending.encode()
    assert raw is not None
    return Usage([SessionUsage("s1", "/work/team/app", "A session", raw)])


def test_costs_are_by_day_and_model_the_dearest_first() -> None:
    """Days without costs are on the axis but not in the table."""
    usage = used(
        ("p/cheap", DAYS[0], 0.1), ("p/dear", DAYS[2], 2.0), ("p/cheap", DAYS[2], 0.2), ("p/free", DAYS[1], None)
    )
    chart = charts.costs(usage, UTC, date(2026, 2, 14), date(2026, 2, 16))
    assert chart.columns == ["day", "p/dear", "p/cheap"]
    assert chart.rows == [["2026-02-14", None, 0.1], ["2026-02-16", 2.0, 0.2]]


def test_weeks_are_named_as_statistics_name_them() -> None:
    """The axis of weeks matches its data."""
    chart = charts.tokens(used(("p/m", DAYS[2], 1.0)), UTC, date(2026, 2, 2), date(2026, 2, 17), weeks=True)
    assert charts.time_axis(date(2026, 2, 2), date(2026, 2, 17), weeks=True) == [
        "2026-W06",
        "2026-W07",
        "2026-W08",
    ]
    assert chart.rows == [["2026-W08", 300, 100, 0, 10]]


def test_the_cache_rate_is_unknown_where_nobody_tells_of_caches() -> None:
    """It is the cached share of the input."""
    chart = charts.cache_hits(used(("p/m", DAYS[0], 1.0)), UTC, date(2026, 2, 14), date(2026, 2, 16))
    assert chart.rows == [["2026-02-14", 0.75]]


def test_ranks_are_by_tokens_where_nothing_has_a_price() -> None:
    """The cost of a local model is unknown; it is shown anyway."""
    chart = charts.models(used(("local/a", DAYS[0], None)))
    assert chart.title == "Models by tokens"
    assert chart.rows == [["local/a", 1, 1, 100, 10, 300, 410, None]]
    assert charts.projects(used(("p/m", DAYS[0], 1.0))).rows[0][0] == "/work/team/app"
    assert charts.sessions(used(("p/m", DAYS[0], 1.0))).rows[0][0] == "A session"


def test_tools_tell_how_often_they_failed() -> None:
    """The rate is in the table."""
    chart = charts.tools(used(("p/m", DAYS[0], 1.0), ("p/m", DAYS[1], 1.0)))
    assert chart.rows == [["bash", 2, 1, 0.5, 1]]
