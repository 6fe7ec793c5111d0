"""Guards against needless work: instruction counts, which do not depend on the machine's load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import instructions
from bench.instructions import GUARDED, WORKS, Count, Missing
from bench.scale import ROOT, Scale, smoke


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Scale:
    return smoke(str(tmp_path_factory.mktemp("instructions")))


@pytest.fixture(scope="module")
def counts(scale: Scale) -> dict[str, Count]:
    """Count all works in one process, because its start costs more than they do."""
    try:
        return instructions.count(scale, GUARDED)
    except Missing as missing:
        pytest.skip(f"INSTRUCTIONS ARE NOT GUARDED HERE: {missing}")


@pytest.mark.parametrize("name", GUARDED)
def test_a_hot_path_takes_no_more_instructions_than_it_did(counts: dict[str, Count], name: str) -> None:
    """A more expensive change must raise the guard explicitly."""
    bound = instructions.bound(name)
    assert bound is not None and counts[name].work <= bound


@pytest.mark.parametrize("name", GUARDED)
def test_one_needless_look_at_the_same_bytes_would_be_noticed(counts: dict[str, Count], name: str) -> None:
    """The guard's margin is smaller than the cheapest waste."""
    bound = WORKS[name].guard
    assert counts[name].work + counts[name].waste > bound


def test_the_works_run_where_nothing_counts_them(scale: Scale) -> None:
    """The works also run on a machine without valgrind."""
    subprocess.run(instructions.command(scale, "", "message"), cwd=ROOT, check=True)


def test_dumps_are_read_by_name_and_divided_by_their_units(tmp_path: Path) -> None:
    """The input is two callgrind files, and one of the process end that is ignored."""
    dump = "version: 1\ndesc: Trigger: Client Request: {}\n\nfn=(1) f\n12 34\n\ntotals: {}\n"
    (tmp_path / "counts.1").write_text(dump.format("append/100", 5000))
    (tmp_path / "counts.2").write_text(dump.format("append waste/100.0", 200))
    (tmp_path / "counts.3").write_text("desc: Trigger: Program termination\n\ntotals: 7\n")
    assert dict(instructions.counted(tmp_path)) == {"append": 50, "append waste": 2}
