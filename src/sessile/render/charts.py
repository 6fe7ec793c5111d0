"""Charts as SVG of our own, each with the table of what it shows.

    chart = bars("costs", "Cost per day", days, [Series("opus", [1.2, None, 0.4])], money)
    chart.svg, chart.columns, chart.rows

Rules: a value that is unknown is drawn as nothing and stands in the table as `None`. Nothing is told by colour alone: marks have
their numbers as titles, and the table has them all. Every shape takes the colour of the text around it, in steps of opacity, so
that a chart can be read in any theme and with forced colours; style sheets may do better by its classes:

    chart   series-1 … series-6   level-0 … level-4   failed   axis   tick   line

There is no script, no style and no reference in it, and every text is escaped. It knows no sessions, and no clock.

What sessions have used, as charts: money, tokens, caches and tools, by time and by name.

Rules: an axis of time has every day or week from the first to the last, also those on which nothing happened. What has no price
is left out of the money, and the table of `core.statistics` says how much that is. Ranks show the first dozen, and
their tables the first `MOST_ROWS`.

It reads no clock: which days are shown is an argument.
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

# --- charts

Value = float | int | None
Cell = str | float | int | None
Told = Callable[[float], str]

MOST_SERIES = 6  # that a person can tell from each other

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 24  # room for the axes
_LEGEND = 20  # the height of a row of names
_ROW = 24  # the height of a bar that lies
_NAME = 220  # the width of its name
_WORDS = 130  # the width of the numbers behind it
_DAY = 24  # the largest day of a calendar, with the gap to the next
_DAYS = 36  # the width of the names of its rows
_LEVELS = 4
_TICKS = 4
_LABELS = 8  # below an axis
_LONGEST = 34  # characters of a name
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
    """Values of one kind, one for each place of the axis."""

    name: str
    values: Sequence[Value]


def folded(series: Sequence[Series], other: str = "other") -> list[Series]:
    """As many series as can be told apart: the first ones, and the sum of the rest."""
    if len(series) <= MOST_SERIES:
        return list(series)
    rest = [_sum(values) for values in zip(*(one.values for one in series[MOST_SERIES - 1 :]), strict=True)]
    return [*series[: MOST_SERIES - 1], Series(other, rest)]


# -- along a time


def bars(
    name: str, title: str, places: Sequence[str], series: Sequence[Series], told: Told, first: str = "day"
) -> Chart:
    """Bars that stand, one for each place, with the series upon each other."""
    shown = folded(series)
    tops = [_sum(values) or 0 for values in zip(*(one.values for one in shown), strict=True)] or [0.0] * len(places)
    frame = _Frame(places, max(tops, default=0), told, len(shown))
    return _chart(name, title, frame.height, [*frame.around(shown), *_stacks(frame, shown)], places, series, first)


def _stacks(frame: _Frame, shown: Sequence[Series]) -> Iterator[str]:
    for place, label in enumerate(frame.places):
        bottom = 0.0
        for number, one in enumerate(shown):
            value = one.values[place]
            if value:
                x, width = frame.bar(place)
                y, height = frame.y(bottom + value), frame.y(bottom) - frame.y(bottom + value)
                tip = _titled(f"{label}, {one.name}: {frame.told(value)}")
                yield f'<rect {_series(number)} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{tip}</rect>'
                bottom += value


def lines(
    name: str, title: str, places: Sequence[str], series: Sequence[Series], told: Told, first: str = "day"
) -> Chart:
    """Lines from place to place; where a value is unknown, a line has a gap."""
    shown = list(series[:MOST_SERIES])
    most = max((value for one in shown for value in one.values if value is not None), default=0)
    frame = _Frame(places, most, told, len(shown))
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
            tip = _titled(f"{frame.places[place]}, {one.name}: {frame.told(value)}")
            at = f'cx="{frame.middle(place):.1f}" cy="{frame.y(value):.1f}"'
            yield f'<circle {_series(number)} {at} r="2.5">{tip}</circle>'


class _Frame:
    """The axes of a chart: places from left to right, values from the bottom up."""

    def __init__(self, places: Sequence[str], most: float, told: Told, names: int) -> None:
        self.places, self.told = places, told
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
        """Axes, ticks and the names of the series."""
        for tick in range(round(self._top / self._step) + 1):
            y = self.y(tick * self._step)
            grid = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line class="axis" stroke="currentColor" stroke-opacity="{".5" if tick == 0 else ".15"}" {grid}/>'
            yield _text(_LEFT - 6, y + 4, self.told(tick * self._step), "end")
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
            yield _text(x + 15, y + 13, cut(one.name, _LONGEST - 6))


# -- by name


def ranking(name: str, title: str, places: Sequence[str], series: Sequence[Series], told: Told, first: str) -> Chart:
    """Bars that lie, one for each name, as long as the first series says; a second one is the part of it that failed."""
    whole, part = series[0], series[1] if len(series) > 1 else None
    most = max((value for value in whole.values if value is not None), default=0)
    scale = (_WIDTH - _NAME - _WORDS) / most if most > 0 else 0
    drawn: list[str] = []
    for place, label in enumerate(places):
        value, failed = whole.values[place], None if part is None else part.values[place]
        drawn += _lying(place, label, value, failed, scale, told, "" if part is None else part.name)
    return _chart(name, title, _ROW * len(places) + 8, drawn, places, series, first)


def _lying(
    place: int, label: str, value: Value, failed: Value, scale: float, told: Told, failing: str
) -> Iterator[str]:
    y = 4 + _ROW * place
    words = "unknown" if value is None else told(value)
    words += f", {told(failed)} {failing}" if failed else ""
    yield _text(_NAME - 8, y + 15, cut(label, _LONGEST), "end")
    width = (value or 0) * scale
    tip = _titled(f"{label}: {words}")
    yield f'<rect {_series(1)} x="{_NAME}" y="{y}" width="{width:.1f}" height="{_ROW - 6}">{tip}</rect>'
    if failed:
        yield f'<rect class="failed" fill="currentColor" x="{_NAME}" y="{y}" width="{failed * scale:.1f}" height="{_ROW - 6}"/>'
    yield _text(_NAME + width + 6, y + 15, words)


# -- days


def heatmap(name: str, title: str, first: date, last: date, days: Mapping[str, int], what: str = "answers") -> Chart:
    """A calendar, a column a week from Monday to Sunday; the more on a day, the darker. Days are named as ISO 8601 does."""
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
        # By its magnitude: one day with a thousand must not make all others look alike.
        level = 0 if not count else math.ceil(_LEVELS * math.log1p(count) / math.log1p(most))
        at = f'x="{x:.1f}" y="{y:.1f}" width="{each - 3:.1f}" height="{each - 3:.1f}" rx="2"'
        tip = _titled(f"{day.isoformat()}: {count:,} {what}")
        drawn.append(
            f'<rect class="level-{level}" fill="currentColor" fill-opacity="{_SHADES[level]}" {at}>{tip}</rect>'
        )
    rows: list[list[Cell]] = [[day, days[day]] for day in sorted(days, reverse=True) if days[day]]
    told = f"{len(rows):,} of {(last - first).days + 1:,} days have {what}"
    svg = _svg(name, title, told, _WIDTH, math.ceil(_LEGEND + 7 * each), drawn)
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
    told = f"{len(rows):,} rows; the table below has all numbers" if rows else "nothing to show"
    svg = _svg(name, title, told, _WIDTH, height, drawn)
    return Chart(name, title, svg, [first, *(one.name for one in series)], rows)


def _svg(name: str, title: str, told: str, width: int, height: int, drawn: Sequence[str]) -> str:
    named = escape_line(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart chart-{named}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-labelledby="chart-{named}-title chart-{named}-told"><title id="chart-{named}-title">{escape_line(title)}'
        f'</title><desc id="chart-{named}-told">{escape_line(told)}</desc>{"".join(drawn)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="tick" fill="currentColor" font-size="11" {where}>{escape_line(text)}</text>'


def _titled(text: str) -> str:
    return f"<title>{escape_line(text)}</title>"


def _series(number: int, kind: str = "") -> str:
    """How a shape of a series is drawn: filled, or as a line."""
    classes = f'class="{f"{kind} " if kind else ""}series-{number + 1}"'
    if kind:
        return f'{classes} fill="none" stroke="currentColor" stroke-width="2" stroke-opacity="{_OPACITIES[number]}"'
    return f'{classes} fill="currentColor" fill-opacity="{_OPACITIES[number]}"'


def _sum(values: Sequence[Value]) -> Value:
    """The sum of what is known; `None` if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _nice(step: float) -> float:
    """The next number from there on that people count in: 1, 2 or 5 of some power of ten."""
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999999)


# --- usage charts

MOST_ROWS = 200  # of a table: who has five thousand sessions reads no table of them
_RANKED = 12  # names that a chart shows


def time_axis(first: date, last: date, *, weeks: bool = False) -> list[str]:
    """The names of all days, or all weeks, from one day to another, as `core.statistics` names them."""
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    named = ("{:04d}-W{:02d}".format(*day.isocalendar()[:2]) if weeks else day.isoformat() for day in days)
    return list(dict.fromkeys(named))


def activity(usage: Usage, zone: tzinfo, first: date, last: date) -> Chart:
    """How many answers each day had, as a calendar."""
    days = {row.name: row.answers or 0 for row in statistics.daily(usage, zone).rows if row.name != UNDATED}
    return heatmap("activity", "Answers per day", first, last, days)


def costs(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """What each day or week cost, by model, the dearest model first."""
    axis = time_axis(first, last, weeks=weeks)
    found = statistics.models_by_time(usage, zone, weeks=weeks)
    models = [row.name for row in statistics.by_model(usage).rows if row.cost is not None]
    series = [Series(model, [_cost(found.get(at, {}).get(model)) for at in axis]) for model in models]
    return bars("costs", f"Cost per {_word(weeks)}, by model", axis, series, money, _word(weeks))


def tokens(usage: Usage, zone: tzinfo, first: date, last: date, *, weeks: bool = False) -> Chart:
    """How many tokens each day or week took, by kind."""
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
    """Which part of what models read came from a cache."""
    axis, rows = _over_time(usage, zone, first, last, weeks)
    series = [Series("from the cache", [None if row is None else _hit_rate(row) for row in rows])]
    return lines("cache", f"Read from the cache per {_word(weeks)}", axis, series, _percent, _word(weeks))


def models(usage: Usage) -> Chart:
    """The models that cost most, or were used most where nothing has a price."""
    return _ranked("models", "Models", statistics.by_model(usage), "model")


def projects(usage: Usage) -> Chart:
    """The projects that cost most."""
    return _ranked("projects", "Projects", statistics.by_project(usage), "project")


def sessions(usage: Usage) -> Chart:
    """The sessions that cost most, by their titles."""
    return _ranked("sessions", "Sessions", statistics.by_session(usage), "session")


def tools(usage: Usage) -> Chart:
    """The tools that were called most, and how often they failed."""
    rows = statistics.by_tool(usage).rows
    top = rows[:_RANKED]
    calls, failures = [row.calls for row in top], [row.failures for row in top]
    names = [row.name for row in top]
    chart = ranking(
        "tools", "Calls of tools", names, [Series("calls", calls), Series("failed", failures)], _count, "tool"
    )
    table = [[row.name, row.calls, row.failures, _rate(row.failures, row.calls), row.sessions] for row in rows]
    return chart._replace(columns=["tool", "calls", "failed", "failure rate", "sessions"], rows=table)


def _ranked(name: str, title: str, table: Table, first: str) -> Chart:
    rows = table.rows
    priced = any(row.cost for row in rows)
    rows = rows if priced else sorted(rows, key=lambda row: -(row.total or 0))
    top = rows[:_RANKED]
    labels = [row.title or _end_of(row.name) for row in top]
    values: list[Value] = [row.cost if priced else row.total for row in top]
    told, what = (money, "cost") if priced else (_tokens, "tokens")
    chart = ranking(name, f"{title} by {what}", labels, [Series(what, values)], told, first)
    cells = [
        [row.title or row.name, row.sessions, row.answers, row.input, row.output, row.cache_read, row.total, row.cost]
        for row in rows[:MOST_ROWS]
    ]
    columns = [first, "sessions", "answers", "input", "output", "cache read", "tokens", "cost"]
    return chart._replace(columns=columns, rows=cells)


def _end_of(path: str) -> str:
    """The last two names of a folder, which tell more than its first ones; any other name as it is."""
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
    """The cached part of what was read; `None` where nobody tells of caches."""
    if row.cache_read is None:
        return None
    return _rate(row.cache_read, (row.input or 0) + row.cache_read + (row.cache_write or 0))


def _rate(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def _tokens(count: float) -> str:
    return amount(round(count))


def _percent(rate: float) -> str:
    return f"{rate * 100:.0f} %"


def _count(number: float) -> str:
    return f"{number:,.0f}"
