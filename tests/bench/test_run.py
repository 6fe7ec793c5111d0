"""A run of the benchmark keeps its results if one subject fails or only one is measured again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from bench import run as running
from bench.measure import Measured, Row
from bench.run import run, save
from bench.scale import Scale, smoke
from bench.tables import table


@pytest.fixture
def scale(tmp_path: Path) -> Scale:
    return smoke(str(tmp_path))


def saved(path: Path) -> list[Row]:
    return msgspec.json.decode(path.read_bytes(), type=Measured).rows


def test_a_subject_that_fails_is_told_and_does_not_end_the_others(
    scale: Scale, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rows of the other subjects are kept."""

    def rows_of(scale: Scale, name: str) -> list[Row]:
        if name == "S2":
            raise subprocess.CalledProcessError(1, "worker")
        return [Row(name, "work", 1.0)]

    monkeypatch.setattr(running, "subject_rows", rows_of)
    seen: list[list[str]] = []
    rows = run(scale, ["S1", "S2", "S3"], lambda rows: seen.append([row.id for row in rows]))
    assert seen == [["S1"], ["S1", "S2"], ["S1", "S2", "S3"]]
    assert [row.verdict for row in rows] == ["", "FAILED", ""] and not rows[1].ok
    assert "failed: S2 the whole subject: it ended with 1" in table(rows)
    assert "S3: 0 s" in capfd.readouterr().err


def test_what_is_measured_again_takes_the_place_of_what_was_there(scale: Scale, tmp_path: Path) -> None:
    """The rows of other subjects stay, in the order of the table."""
    path = tmp_path / "last.json"
    save(scale, [Row("S1", "old", 1.0), Row("S2", "stays", 2.0), Row("S10", "stays too", 3.0)], path)
    save(scale, [Row("S1", "new", 1.23456789)], path)
    assert [(row.id, row.work, row.median) for row in saved(path)] == [
        ("S1", "new", 1.235),
        ("S2", "stays", 2.0),
        ("S10", "stays too", 3.0),
    ]


def test_figures_of_other_sizes_are_not_mixed_in(scale: Scale, tmp_path: Path) -> None:
    """A result has figures of one corpus only."""
    path = tmp_path / "last.json"
    save(scale, [Row("S2", "of a large session", 2.0)], path)
    save(msgspec.structs.replace(scale, large_mb=7), [Row("S1", "of a small one", 1.0)], path)
    assert [row.work for row in saved(path)] == ["of a small one"]
