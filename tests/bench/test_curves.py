"""The page on speed and its curves match the measured result and are readable."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.curves import MEASURED, PICTURES, load, main, pages
from bench.drawing import Axis, Line, chart
from bench.measure import Measured, Rival, Row
from bench.tables import table
from bench.worker import SUBJECTS

AXIS = Axis("size", lambda value: f"{value:g}")
NAMES = "{http://www.w3.org/2000/svg}"


def measured(*rows: Row) -> Measured:
    return Measured("2026-01-01", "3.11.7", "Linux", 2, [10, 1], {"pi": "0.87.1"}, list(rows))


SAMPLE = measured(
    Row(
        "S1",
        "resume 1 MB",
        0.001,
        baseline="decode",
        baseline_median=0.0005,
        rivals={"pi": Rival(0.01, 10)},
        curve="resume",
        at=1,
    ),
    Row(
        "S1",
        "resume 10 MB",
        0.002,
        baseline="decode",
        baseline_median=0.001,
        rivals={"pi": Rival(0.1, 50, 100)},
        curve="resume",
        at=10,
    ),
    Row("S4", "append", 1e-5, baseline_median=1e-6, curve="append", at=1),
    Row("S4", "append", 2e-5, baseline_median=1e-6, curve="append", at=10),
    Row("S7", "list, warm", 0.1, baseline_median=0.01, ratio=10, limit=3, curve="list", at=1),
    Row("S7", "list, warm", 0.2, baseline_median=0.01, curve="list", at=10),
)


def test_the_committed_page_and_curves_are_what_was_measured() -> None:
    """`python -m tests.bench.curves` generates them again."""
    for path, text in pages(load()).items():
        assert path.read_text() == text, f"python -m tests.bench.curves makes {path.name} again"


def test_what_is_committed_names_no_machine_and_no_folder() -> None:
    """The committed result has no paths or host names."""
    text = MEASURED.read_text()
    assert not re.search(r'"[^"]*/(?:home|root|work|tmp|Users)/', text)
    assert os.uname().nodename not in text and len(text) < 64 * 1024


def test_what_is_committed_is_of_a_whole_run() -> None:
    """Every subject has a row with full-size sessions, not those of a smoke run."""
    assert load().sizes_mb == [1000, 100, 10, 1]
    assert {row.id for row in load().rows} >= set(SUBJECTS)


def test_the_table_of_a_whole_run_fits_a_wide_terminal() -> None:
    """No line is wider than 160 columns."""
    assert max(map(len, table(load().rows).splitlines())) <= 160


def test_figures_of_small_sessions_do_not_become_a_page(tmp_path: Path) -> None:
    """The result of a smoke run is refused."""
    (tmp_path / "small.json").write_bytes(msgspec.json.encode(SAMPLE))
    with pytest.raises(SystemExit, match="full size"):
        main(str(tmp_path / "small.json"))


def test_a_curve_and_its_table_have_the_times_of_ours_of_the_peers_and_of_the_limit() -> None:
    """The table below a chart has the same figures as the chart."""
    made = {path.name: text for path, text in pages(SAMPLE).items()}
    assert set(made) == {"speed.md", *(f"{name}.svg" for name in PICTURES)}
    assert "| Sessile | 1.00 ms | 2.00 ms |" in made["speed.md"]
    assert "| pi | 10.00 ms | 100 ms |" in made["speed.md"]
    assert "| limit: decode what is live | 500.0 µs | 1.00 ms |" in made["speed.md"]
    for name in ("Sessile", "pi", "limit: decode what is live"):
        assert f">{name}</text>" in made["resume.svg"]
    assert "oh-my-pi" not in made["resume.svg"]


def test_the_page_says_which_targets_are_missed_and_by_how_much() -> None:
    """Each missed target is listed with its ratio."""
    page = next(text for path, text in pages(SAMPLE).items() if path.name == "speed.md")
    assert "**S1, resume 10 MB**: 50.0 times as fast as pi (target: 100)." in page
    assert "**S7, list, warm**: 10.00 (target: ≤ 3)." in page
    assert "No target is missed." not in page


@pytest.mark.parametrize("name", PICTURES)
def test_a_curve_is_whole_and_readable_on_light_and_dark_ground(name: str) -> None:
    """The SVG is well-formed, and has a title, a description, axis labels and colours for both backgrounds."""
    text = (MEASURED.parent / "curves" / f"{name}.svg").read_text()
    picture = ElementTree.fromstring(text)
    texts = [element.text for element in picture.iter(f"{NAMES}text")]
    assert picture.find(f"{NAMES}title") is not None and picture.find(f"{NAMES}desc") is not None
    assert {PICTURES[name].across.name, "time"} <= set(texts)
    assert "prefers-color-scheme:dark" in text and "href" not in text


def test_names_at_the_end_of_curves_do_not_lie_upon_each_other() -> None:
    """This also holds if all curves end at one point at the bottom."""
    lines = [Line(f"line {number}", "peer", [(1, 1), (10, 1 + number / 1000)]) for number in range(6)]
    picture = ElementTree.fromstring(chart("t", "d", AXIS, AXIS, [*lines, Line("high", "ours", [(1, 1), (10, 900)])]))
    heights = sorted(
        float(element.attrib["y"])
        for element in picture.iter(f"{NAMES}text")
        if (element.text or "").startswith("line")
    )
    assert len(heights) == 6
    assert all(below - above >= 15.9 for above, below in pairwise(heights))
    assert max(heights) < 440


def test_steep_curves_rise_to_the_right() -> None:
    """A decade has the same length everywhere on an axis."""
    picture = ElementTree.fromstring(chart("t", "d", AXIS, AXIS, [Line("one", "ours", [(1, 1), (10, 10), (100, 100)])]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in picture.iter(f"{NAMES}circle")]
    steps = [(right[0] - left[0], left[1] - right[1]) for left, right in pairwise(dots)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2) and min(steps[0]) > 50


def test_the_page_lies_where_it_says() -> None:
    """The linked pictures exist beside the page."""
    page = next(text for path, text in pages(load()).items() if path.name == "speed.md")
    linked = re.findall(r"\]\(([\w/.]+)\)", page)
    assert linked and all((MEASURED.parent / each).exists() for each in linked)
