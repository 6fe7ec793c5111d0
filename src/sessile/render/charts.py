"""Charts as SVG, each with the table of its values.

    chart = bars("costs", "Cost per day", days, [Series("opus", [1.2, None, 0.4])], money)
    chart.svg, chart.columns, chart.rows

    activity(…) costs(…) tokens(…) cache_hits(…) models(…) projects(…) sessions(…) tools(…)     charts of usage

Rules:

- An unknown value is not drawn, and is `None` in the table.
- Nothing depends on colour alone: marks have their numbers as titles, and the table has them all. Shapes use the colour of the
  text around them, in steps of opacity, so that a chart is readable in any theme and with forced colours. Style sheets can refine
  it by class: `chart`, `series-1` … `series-6`, `level-0` … `level-4`, `failed`, `axis`, `tick`, `line`.
- An SVG has no script, style or reference, and all text is escaped.
- A time axis has every day or week from the first to the last, including those without usage. Usage without a price is not part
  of the cost; the tables of `core.statistics` say how much that is. Rankings draw the first dozen and list `MAX_ROWS` rows.
- No clock is read: the days to show are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta, tzinfo
from typing import NamedTuple

from sessile.core import statistics
from sessile.core.statistics import StatRow, Table, Usage
from sessile.core.usage import UNDATED, amount
from sessile.core.visible import cut
from sessile.render.html import escape_line
from sessile.render.wording import money

Value = float | int | None
Cell = str | float | int | None
Format = Callable[[float], str]

MAX_SERIES = 6  # that can be told apart

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 24  # room for the axes
_LEGEND = 20  # height of a row of the legend
_ROW = 24  # height of a horizontal bar
_NAME = 220  # width of its name
_WORDS = 130  # width of the numbers after it
_DAY = 24  # maximum size of a day in a calendar, with the gap to the next
_DAYS = 36  # width of the names of its rows
_LEVELS = 4
_TICKS = 4
_LABELS = 8  # below an axis
_MAX_NAME = 34  # characters
_SHADES = (".08", ".3", ".5", ".75", "1")  # of the levels of a calendar
_OPACITIES = ("1", ".72", ".5", ".34", ".22", ".12")


class Chart(NamedTuple):
    """A chart and its table."""

    name: str
    title: str
    svg: str
    columns: list[str]
    rows: list[list[Cell]]


class Series(NamedTuple):
    """Values of one kind, one for each place on the axis."""

    name: str
    values: Sequence[Value]


def folded(series: Sequence[Series], other: str = "other") -> list[Series]:
    """Return at most `MAX_SERIES` series: the first ones, and the sum of the rest."""
    if len(series) <= MAX_SERIES:
        return list(series)
    rest = [_sum(values) for values in zip(*(one.values for one in series[MAX_SERIES - 1 :]), strict=True)]
    return [*series[: MAX_SERIES - 1], Series(other, rest)]


# -- over time


def bars(
    name: str, title: str, places: Sequence[str], series: Sequence[Series], write: Format, first: str = "day"
) -> Chart:
    """Return a chart of vertical bars, one for each place, with stacked series."""
    shown = folded(series)
    tops = [_sum(values) or 0 for values in zip(*(one.values for one in shown), strict=True)] or [0.0] * len(places)
    frame = _Frame(places, max(tops, default=0), write, len(shown))
    return _chart(name, title, frame.height, [*frame.around(shown), *_stacks(frame, shown)], places, series, first)


def _stacks(frame: _Frame, shown: Sequence[Series]) -> Iterator[str]:
    for place, label in enumerate(frame.places):
        bottom = 0.0
        for number, one in enumerate(shown):
            value = one.values[place]
            if value:
                x, width = frame.bar(place)
                y, height = frame.y(bottom + value), frame.y(bottom) - frame.y(bottom + value)
                tip = _titled(f"{label}, {one.name}: {frame.write(value)}")
                yield f'<rect {_series(number)} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{tip}</rect>'
                bottom += value


def lines(
    name: str, title: str, places: Sequence[str], series: Sequence[Series], write: Format, first: str = "day"
) -> Chart:
    """Return a line chart; an unknown value is a gap in its line."""
    shown = list(series[:MAX_SERIES])
    most = max((value for one in shown for value in one.values if value is not None), default=0)
    frame = _Frame(places, most, write, len(shown))
    drawn = [piece for number, one in enumerate(shown) for piece in _line(frame, number, one)]
    return _chart(name, title, frame.height, [*frame.around(shown), *drawn], places, series, first)


def _line(frame: _Frame, number: int, one: Series) -> Iterator[str]:
    run: list[str] = []
    for place, value in enumerate((*one.values, None)):
        if value is not None:
            run.append(f"{frame.middle(place):.1f},{frame.y(value):.1f}")
        elif run:
            points = " ".join(run)
            yield f'<polyline {_series(number, "line")} points="{points}"/>'
            run = []
    for place, value in enumerate(one.values):
        if value is not None:
            tip = _titled(f"{frame.places[place]}, {one.name}: {frame.write(value)}")
            at = f'cx="{frame.middle(place):.1f}" cy="{frame.y(value):.1f}"'
            yield f'<circle {_series(number)} {at} r="2.5">{tip}</circle>'


class _Frame:
    """The axes of a chart: places from left to right, values from bottom to top."""

    def __init__(self, places: Sequence[str], most: float, write: Format, names: int) -> None:
        self.places, self.write = places, write
        self.legend = _LEGEND * math.ceil(names / 3) if names > 1 else 0
        self.height = _HEIGHT + self.legend
        self._step = _nice(most / _TICKS)
        self._top = self._step * max(1, math.ceil(most / self._step)) if most > 0 else self._step
        self._each = (_WIDTH - _LEFT - _RIGHT) / max(1, len(places))

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / self._top

    def middle(self, place: int) -> float:
        return _LEFT + self._each * (place + 0.5)

    def bar(self, place: int) -> tuple[float, float]:
        width = min(self._each * 0.8, 40)
        return self.middle(place) - width / 2, width

    def around(self, shown: Sequence[Series]) -> Iterator[str]:
        """Yield axes, ticks and the legend."""
        for tick in range(round(self._top / self._step) + 1):
            y = self.y(tick * self._step)
            grid = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line class="axis" stroke="currentColor" stroke-opacity="{".5" if tick == 0 else ".15"}" {grid}/>'
            yield _text(_LEFT - 6, y + 4, self.write(tick * self._step), "end")
        every = max(1, math.ceil(len(self.places) / _LABELS))
        for place in range(0, len(self.places), every):
            yield _text(self.middle(place), _HEIGHT - 6, self.places[place], "middle")
        if len(shown) > 1:
            yield from self._legend(shown)

    def _legend(self, shown: Sequence[Series]) -> Iterator[str]:
        width = (_WIDTH - _LEFT - _RIGHT) / 3
        for number, one in enumerate(shown):
            x, y = _LEFT + width * (number % 3), _HEIGHT + _LEGEND * (number // 3)
            yield f'<rect {_series(number)} x="{x:.1f}" y="{y + 4}" width="10" height="10"/>'
            yield _text(x + 15, y + 13, cut(one.name, _MAX_NAME - 6))


# -- by name


def ranking(name: str, title: str, places: Sequence[str], series: Sequence[Series], write: Format, first: str) -> Chart:
    """Return a chart of horizontal bars for the first series; a second series is the part that failed."""
    whole, part = series[0], series[1] if len(series) > 1 else None
    most = max((value for value in whole.values if value is not None), default=0)
    scale = (_WIDTH - _NAME - _WORDS) / most if most > 0 else 0
    drawn: list[str] = []
    for place, label in enumerate(places):
        value, failed = whole.values[place], None if part is None else part.values[place]
        drawn += _horizontal_bar(place, label, value, failed, scale, write, "" if part is None else part.name)
    return _chart(name, title, _ROW * len(places) + 8, drawn, places, series, first)


def _horizontal_bar(
    place: int, label: str, value: Value, failed: Value, scale: float, write: Format, failing: str
) -> Iterator[str]:
    y = 4 + _ROW * place
    words = "unknown" if value is None else write(value)
    words += f", {write(failed)} {failing}" if failed else ""
    yield _text(_NAME - 8, y + 15, cut(label, _MAX_NAME), "end")
    width = (value or 0) * scale
    tip = _titled(f"{label}: {words}")
    yield f'<rect {_series(1)} x="{_NAME}" y="{y}" width="{width:.1f}" height="{_ROW - 6}">{tip}</rect>'
    if failed:
        yield f'<rect class="failed" fill="currentColor" x="{_NAME}" y="{y}" width="{failed * scale:.1f}" height="{_ROW - 6}"/>'
    yield _text(_NAME + width + 6, y + 15, words)


# -- days


def heatmap(name: str, title: str, first: date, last: date, days: Mapping[str, int], what: str = "answers") -> Chart:
    """Return a calendar with one column per week, from Monday to Sunday; busier days are darker. Keys are ISO 8601 dates."""
    monday = first - timedelta(days=first.weekday())
    each = min(_DAY, (_WIDTH - _DAYS) / ((last - monday).days // 7 + 1))
    most = max(days.values(), default=0)
    drawn = [
        _text(_DAYS - 6, _LEGEND + (row + 0.65) * each, word, "end")
        for row, word in ((0, "Mon"), (2, "Wed"), (4, "Fri"))
    ]
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        x, y = _DAYS + (day - monday).days // 7 * each, _LEGEND + day.weekday() * each
        if day.day == 1:
            drawn.append(_text(x, _LEGEND - 6, f"{day:%b}"))
        count = days.get(day.isoformat(), 0)
        # Logarithmic: one day with a thousand must not make all others look alike.
        level = 0 if not count else math.ceil(_LEVELS * math.log1p(count) / math.log1p(most))
        at = f'x="{x:.1f}" y="{y:.1f}" width="{each - 3:.1f}" height="{each - 3:.1f}" rx="2"'
        tip = _titled(f"{day.isoformat()}: {count:,} {what}")
        drawn.append(
            f'<rect class="level-{level}" fill="currentColor" fill-opacity="{_SHADES[level]}" {at}>{tip}</rect>'
        )
    rows: list[list[Cell]] = [[day, days[day]] for day in sorted(days, reverse=True) if days[day]]
    summary = f"{len(rows):,} of {(last - first).days + 1:,} days have {what}"
    svg = _svg(name, title, summary, _WIDTH, math.ceil(_LEGEND + 7 * each), drawn)
    return Chart(name, title, svg, ["day", what], rows)


# -- pieces


def _chart(
    name: str,
    title: str,
    height: int,
    drawn: Sequence[str],
    places: Sequence[str],
    series: Sequence[Series],
    first: str,
) -> Chart:
    rows: list[list[Cell]] = [
        [place, *values]
        for place, values in zip(places, zip(*(one.values for one in series), strict=True), strict=False)
        if any(value is not None for value in values)
    ]
    summary = f"{len(rows):,} rows; all numbers are in the table below" if rows else "no data"
    svg = _svg(name, title, summary, _WIDTH, height, drawn)
    return Chart(name, title, svg, [first, *(one.name for one in series)], rows)


def _svg(name: str, title: str, summary: str, width: int, height: int, drawn: Sequence[str]) -> str:
    named = escape_line(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart chart-{named}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-labelledby="chart-{named}-title chart-{named}-summary"><title id="chart-{named}-title">{escape_line(title)}'
        f'</title><desc id="chart-{named}-summary">{escape_line(summary)}</desc>{"".join(drawn)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="tick" fill="currentColor" font-size="11" {where}>{escape_line(text)}</text>'


def _titled(text: str) -> str:
    return f"<title>{escape_line(text)}</title>"


def _series(number: int, kind: str = "") -> str:
    """Return the attributes of a shape of a series: filled, or as a line."""
    classes = f'class="{f"{kind} " if kind else ""}series-{number + 1}"'
    if kind:
        return f'{classes} fill="none" stroke="currentColor" stroke-width="2" stroke-opacity="{_OPACITIES[number]}"'
    return f'{classes} fill="currentColor" fill-opacity="{_OPACITIES[number]}"'


def _sum(values: Sequence[Value]) -> Value:
    """Return the sum of the known values; `None` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999999)


# -- usage

MAX_ROWS = 200  # of a table; a longer one is not useful
_RANKED = 12  # names in a chart


def time_axis(first: date, last: date, *, weeks: bool = False) -> list[str]:
    """Return the names of all days or weeks between two dates, as `core.statistics` names them."""
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    named = ("{:04d}-W{:02d}".format(*day.isocalendar()[:2]) if weeks else day.isoformat() for day in days)
    return list(dict.fromkeys(named))


def activity(usage: Usage, zone: tzinfo, first: date, last: date) -> Chart:
    """Return a calendar of answers per day."""
    days = {row.name: row.answers or 0 for row in statistics.daily(usage, zone).rows if row.name != UNDATED}
    return heatmap("activity", "Answers per day", first, last, days)


def costs(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """Return the cost per day or week by model, the most expensive model first."""
    axis = time_axis(first, last, weeks=weeks)
    found = statistics.models_by_time(usage, zone, weeks=weeks)
    models = [row.name for row in statistics.by_model(usage).rows if row.cost is not None]
    series = [Series(model, [_cost(found.get(at, {}).get(model)) for at in axis]) for model in models]
    return bars("costs", f"Cost per {_word(weeks)}, by model", axis, series, money, _word(weeks))


def tokens(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """Return the tokens per day or week by kind."""
    kinds: dict[str, Callable[[StatRow], int | None]] = {
        "cache read": lambda row: row.cache_read,
        "input": lambda row: row.input,
        "cache write": lambda row: row.cache_write,
        "output": lambda row: row.output,
    }
    axis, rows = _over_time(usage, zone, first, last, weeks)
    series = [Series(kind, [None if row is None else count(row) for row in rows]) for kind, count in kinds.items()]
    return bars("tokens", f"Tokens per {_word(weeks)}", axis, series, _tokens, _word(weeks))


def cache_hits(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """Return the share of input tokens that came from a cache."""
    axis, rows = _over_time(usage, zone, first, last, weeks)
    series = [Series("cache hits", [None if row is None else _hit_rate(row) for row in rows])]
    return lines("cache", f"Cache hit rate per {_word(weeks)}", axis, series, _percent, _word(weeks))


def models(usage: Usage) -> Chart:
    """Return the most expensive models, or the most used if none has a price."""
    return _ranked("models", "Models", statistics.by_model(usage), "model")


def projects(usage: Usage) -> Chart:
    """Return the most expensive projects."""
    return _ranked("projects", "Projects", statistics.by_project(usage), "project")


def sessions(usage: Usage) -> Chart:
    """Return the most expensive sessions, by title."""
    return _ranked("sessions", "Sessions", statistics.by_session(usage), "session")


def tools(usage: Usage) -> Chart:
    """Return the most called tools, and how often they failed."""
    rows = statistics.by_tool(usage).rows
    top = rows[:_RANKED]
    calls, failures = [row.calls for row in top], [row.failures for row in top]
    names = [row.name for row in top]
    chart = ranking("tools", "Tool calls", names, [Series("calls", calls), Series("failed", failures)], _count, "tool")
    table = [[row.name, row.calls, row.failures, _rate(row.failures, row.calls), row.sessions] for row in rows]
    return chart._replace(columns=["tool", "calls", "failed", "failure rate", "sessions"], rows=table)


def _ranked(name: str, title: str, table: Table, first: str) -> Chart:
    rows = table.rows
    priced = any(row.cost for row in rows)
    rows = rows if priced else sorted(rows, key=lambda row: -(row.total or 0))
    top = rows[:_RANKED]
    labels = [row.title or _end_of(row.name) for row in top]
    values: list[Value] = [row.cost if priced else row.total for row in top]
    write, what = (money, "cost") if priced else (_tokens, "tokens")
    chart = ranking(name, f"{title} by {what}", labels, [Series(what, values)], write, first)
    cells = [
        [row.title or row.name, row.sessions, row.answers, row.input, row.output, row.cache_read, row.total, row.cost]
        for row in rows[:MAX_ROWS]
    ]
    columns = [first, "sessions", "answers", "input", "output", "cache read", "tokens", "cost"]
    return chart._replace(columns=columns, rows=cells)


def _end_of(path: str) -> str:
    """Shorten a path to its last two names; return any other name as it is."""
    return path if path.count("/") < 3 else "…/" + "/".join(path.split("/")[-2:])


def _over_time(
    usage: Usage, zone: tzinfo, first: date, last: date, weeks: bool
) -> tuple[list[str], Sequence[StatRow | None]]:
    table = statistics.weekly(usage, zone) if weeks else statistics.daily(usage, zone)
    rows = {row.name: row for row in table.rows}
    axis = time_axis(first, last, weeks=weeks)
    return axis, [rows.get(at) for at in axis]


def _word(weeks: bool) -> str:
    return "week" if weeks else "day"


def _cost(row: StatRow | None) -> float | None:
    return None if row is None else row.cost


def _hit_rate(row: StatRow) -> float | None:
    """Return the cached share of the input; `None` if caching is unknown."""
    if row.cache_read is None:
        return None
    return _rate(row.cache_read, (row.input or 0) + row.cache_read + (row.cache_write or 0))


def _rate(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def _tokens(count: float) -> str:
    return amount(round(count))


def _percent(rate: float) -> str:
    return f"{rate * 100:.0f}%"


def _count(number: float) -> str:
    return f"{number:,.0f}"
