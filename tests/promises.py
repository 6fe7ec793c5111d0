"""Update docs/explanation/promises.md and docs/mission.md: `python tests/promises.py`.

The texts of promises and requirements, and the states of requirements, are written by hand in these pages. The tests of a row
come from the marks in the tests. The figures come from the last `make faults` and are stored in docs/explanation/figures.json.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from figures import collected

ROOT = Path(__file__).parents[1]
PROMISES = ROOT / "docs" / "explanation" / "promises.md"
MISSION = ROOT / "docs" / "mission.md"
FIGURES = ROOT / "docs" / "explanation" / "figures.json"
MEASURED = ROOT / ".cache" / "figures"
MOST = 4  # maximum number of tests named in a row

_PROMISE = re.compile(r"^\| (P\d+) \| ([^|]*) \|.*\|$", re.M)
_MISSION = re.compile(r"^\| ([XCMYBN]\d+) \| (\w+) \|[^|]*\| ([^|]*) \|$", re.M)


def marks(kind: str) -> dict[str, set[str]]:
    """Return every id of a kind of mark, with the files of the marked tests."""
    return _all_marks().get(kind, {})


@cache
def _all_marks() -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = str(path.relative_to(ROOT / "tests"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        found.setdefault(node.func.attr, {}).setdefault(str(argument.value), set()).add(name)
    return found


def promises() -> list[tuple[str, str]]:
    """Return the id and text of every promise of the page."""
    return _PROMISE.findall(PROMISES.read_text())


def mission() -> list[tuple[str, str, str]]:
    """Return the id, state and text of every requirement."""
    return _MISSION.findall(MISSION.read_text())


def figures() -> dict[str, dict[str, Any]]:
    """Return the last figures: day and counts by promise and rig."""
    found: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text())
    return found


def pages() -> dict[Path, str]:
    """Return the text that each page should have."""
    promised, wanted, measured = marks("promise"), marks("mission"), figures()
    return {
        PROMISES: _PROMISE.sub(
            lambda row: (
                f"| {row[1]} | {row[2]} | {_names(promised.get(row[1], ()))} | {_figures_text(measured.get(row[1], {}))} |"
            ),
            PROMISES.read_text(),
        ),
        MISSION: _MISSION.sub(
            lambda row: f"| {row[1]} | {row[2]} | {_names(wanted.get(row[1], ()))} | {row[3]} |", MISSION.read_text()
        ),
    }


def take_in(folder: Path, day: str) -> None:
    """Add the figures of a run; those of other rigs stay."""
    known = figures()
    for promise, rigs in collected(folder).items():
        for rig, counts in rigs.items():
            known.setdefault(promise, {})[rig] = {"day": day, "counts": counts}
    ordered = {
        promise: dict(sorted(known[promise].items())) for promise in sorted(known, key=lambda name: int(name[1:]))
    }
    FIGURES.write_text(json.dumps(ordered, indent=1) + "\n")


def _names(tests: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(tests)[:MOST])


def _figures_text(rigs: dict[str, Any]) -> str:
    return "; ".join(
        f"{rig}: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in found["counts"].items())
        for rig, found in rigs.items()
    )


def main() -> None:
    """Add new figures, if there are any, and write the pages."""
    if MEASURED.exists() and "--keep" not in sys.argv:
        take_in(MEASURED, datetime.date.today().isoformat())
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
