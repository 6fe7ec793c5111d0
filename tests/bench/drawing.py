"""Draw log-log curves as SVG, readable on light and dark backgrounds, with the name of each curve at its end.

All figures must be above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

Kind = Literal["ours", "peer", "limit"]
Point = tuple[float, float]

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 190, 44, 56
_APART = 16  # pixels between two names
_COLOURS = {  # on a light and on a dark background
    "ours": [("#0b6e4f", "#4fd1a1"), ("#1f9d74", "#8be3c4")],
    "peer": [("#b4441c", "#ff9d6b"), ("#7a3fa0", "#cf9df0"), ("#1d5fa8", "#7db8ff"), ("#8a6d00", "#e6c84f")],
    "limit": [("#6b6f76", "#a3a8b0"), ("#6b6f76", "#a3a8b0")],
}
_DASHES = {"ours": "", "peer": "", "limit": "5 4"}


class Line(NamedTuple):
    """A curve with its name."""

    name: str
    kind: Kind
    points: Sequence[Point]


class Axis(NamedTuple):
    """The name of an axis and the format of its figures."""

    name: str
    write: Callable[[float], str]


class _Scale(NamedTuple):
    """Maps a figure to a position between two ends of the picture."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> Iterator[float]:
        return (10.0**power for power in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1))


def chart(title: str, about: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """Return the SVG of a chart."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x = _Scale(math.log10(min(xs)), math.log10(max(xs)), _LEFT, _WIDTH - _RIGHT)
    y = _Scale(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(about)}</desc>',
        f"<style>{_style()}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
        *_grid(x, y, across, up),
        *_curves(x, y, lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style() -> str:
    light = _classes(0, ground="#ffffff", text="#24292f", grid="#d8dee4")
    dark = _classes(1, ground="#0d1117", text="#e6edf3", grid="#30363d")
    return (
        "text{font:13px system-ui,sans-serif}.title{font-size:15px;font-weight:600}"
        f"path{{fill:none;stroke-width:2}}.ours0{{stroke-width:3.5}}{light}"
        f"@media(prefers-color-scheme:dark){{{dark}}}"
    )


def _classes(which: int, *, ground: str, text: str, grid: str) -> str:
    rules = [f".ground{{fill:{ground}}}", f"text{{fill:{text}}}", f".grid{{stroke:{grid}}}"]
    for kind, colours in _COLOURS.items():
        for number, colour in enumerate(colours):
            rules.append(f"path.{kind}{number}{{stroke:{colour[which]}}}.dot.{kind}{number}{{fill:{colour[which]}}}")
            rules.append(f"text.{kind}{number}{{fill:{colour[which]}}}")
    return "".join(rules)


def _grid(x: _Scale, y: _Scale, across: Axis, up: Axis) -> Iterator[str]:
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in y.decades():
        at = f"{y.at(value):.1f}"
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>'
        yield f'<text x="{left - 8}" y="{y.at(value) + 4:.1f}" text-anchor="end">{escape(up.write(value))}</text>'
    for value in x.decades():
        at = f"{x.at(value):.1f}"
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>'
        yield f'<text x="{at}" y="{bottom + 20}" text-anchor="middle">{escape(across.write(value))}</text>'
    middle = (_TOP + bottom) / 2
    yield f'<text x="{(left + right) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(across.name)}</text>'
    yield f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(up.name)}</text>'


def _curves(x: _Scale, y: _Scale, lines: Sequence[Line]) -> Iterator[str]:
    seen: dict[str, int] = {}
    names: list[tuple[float, str, str, float]] = []
    for line in lines:
        number = seen.get(line.kind, 0)
        seen[line.kind] = number + 1
        style = f"{line.kind}{number % len(_COLOURS[line.kind])}"
        places = [(x.at(across), y.at(up)) for across, up in sorted(line.points)]
        way = " ".join(f"{'M' if place == 0 else 'L'}{px:.1f} {py:.1f}" for place, (px, py) in enumerate(places))
        dash = f' stroke-dasharray="{_DASHES[line.kind]}"' if _DASHES[line.kind] else ""
        yield f'<path class="{style}" d="{way}"{dash}/>'
        for px, py in places:
            yield f'<circle class="dot {style}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>'
        names.append((places[-1][1], line.name, style, places[-1][0]))
    names.sort()
    for at, (_, name, style, _) in zip(_spread([height for height, *_ in names]), names, strict=True):
        yield f'<text class="{style}" x="{_WIDTH - _RIGHT + 10}" y="{at + 4:.1f}">{escape(name)}</text>'


def _spread(heights: Sequence[float]) -> list[float]:
    """Move sorted heights apart so that the names do not overlap."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + _APART) if placed else height)
    too_low = placed[-1] - (_HEIGHT - _BOTTOM) if placed else 0.0
    for number in range(len(placed) - 1, -1, -1):
        highest = placed[number + 1] - _APART if number + 1 < len(placed) else placed[number] - max(0.0, too_low)
        placed[number] = min(placed[number], highest)
    return placed
