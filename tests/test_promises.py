"""The pages of promises and requirements match the tests and the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from promises import figures, marks, mission, pages, promises, take_in

# A count above zero under one of these names means that a promise was broken.
NEVER = frozenset(
    [
        "lost",
        "originals_lost",
        "other_entries_lost",
        "doubled",
        "repeats",
        "gaps",
        "glued",
        "fragments",
        "half_entries",
        "half_files",
        "damaged_files",
        "changed",
        "crashes",
        "counter_examples",
        "differences",
        "wrong_answers",
        "wrong_bytes",
        "false_receipts",
        "silent",
        "untyped",
        "inconsistent",
        "unreachable",
        "not_found",
        "locks_left",
        "stale",
        "robbed",
        "files_without_header",
        "lines_in_a_wrong_file",
        "looser_than_private",
        "outside_the_root",
        "followed",
        "let_in",
        "leaks",
        "to_others",
        "traces_of_the_token",
        "ran",
        "control_characters",
        "sent_beyond_the_table",
        "asked_beyond_the_table",
        "sent_to_the_model",
        "escaped",
        "taken_for_another",
        "server_errors",
        "programs_started",
        "failed_requests",
        "resets",
        "right_ones_delayed",
        "used",
    ]
)


def test_the_pages_are_up_to_date() -> None:
    """`python tests/promises.py` would change nothing."""
    for path, text in pages().items():
        assert path.read_text() == text, path.name


def test_every_promise_has_a_test_and_every_marked_test_a_promise() -> None:
    """The page and the marks in the tests have the same promises, each once."""
    listed = [promise for promise, _ in promises()]
    assert len(listed) == len(set(listed)) == 54
    assert set(marks("promise")) == set(listed)


def test_every_promise_has_a_figure() -> None:
    """Each promise has figures of its last run, and none of them shows a failure."""
    measured = figures()
    assert set(measured) == {promise for promise, _ in promises()}
    for rigs in measured.values():
        for found in rigs.values():
            assert not NEVER & {what for what, count in found["counts"].items() if count}


def test_every_line_of_the_mission_that_is_done_has_a_test() -> None:
    """Every id is listed once, and every requirement that is done has a marked test."""
    marked, rows = marks("mission"), mission()
    assert len(rows) == len({row[0] for row in rows}) == 84
    for wanted, state, _ in rows:
        assert state in ("open", "begun", "done"), wanted
        assert state != "done" or marked.get(wanted), wanted
    assert set(marked) <= {row[0] for row in rows}


def test_counts_of_one_rig_add_up_and_replace_those_of_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of several processes are added; the figures of rigs that did not run stay."""
    kept = tmp_path / "figures.json"
    kept.write_text(
        '{"P1": {"a": {"day": "2026-01-01", "counts": {"kills": 1}}, "b": {"day": "2026-01-01", "counts": {"kills": 9}}}}'
    )
    monkeypatch.setattr("promises.FIGURES", kept)
    for name, count in (("1.jsonl", 3), ("2.jsonl", 4)):
        (tmp_path / name).write_text(f'["P1", "a", {{"kills": {count}, "lost": 0}}]\n')
    take_in(tmp_path, "2026-02-02")
    assert figures()["P1"] == {
        "a": {"day": "2026-02-02", "counts": {"kills": 7, "lost": 0}},
        "b": {"day": "2026-01-01", "counts": {"kills": 9}},
    }
