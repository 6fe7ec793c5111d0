"""A guard against work that nobody needs: instructions, which no load of the machine changes, against what they were."""

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
    """All works in one process: its start costs more than they do."""
    try:
        return instructions.count(scale, GUARDED)
    except Missing as missing:
        pytest.skip(f"INSTRUCTIONS ARE NOT GUARDED HERE: {missing}")


@pytest.mark.parametrize("name", GUARDED)
def test_a_hot_path_takes_no_more_instructions_than_it_did(counts: dict[str, Count], name: str) -> None:
    """A change that makes it dearer has to say so in the table of guards."""
    bound = instructions.bound(name)
    assert bound is not None and counts[name].work <= bound


@pytest.mark.parametrize("name", GUARDED)
def test_one_needless_look_at_the_same_bytes_would_be_noticed(counts: dict[str, Count], name: str) -> None:
    """The guard has teeth: there is less room in it than the cheapest waste costs."""
    bound = WORKS[name].guard
    assert counts[name].work + counts[name].waste > bound


def test_the_works_run_where_nothing_counts_them(scale: Scale) -> None:
    """Also on a machine without valgrind."""
    subprocess.run(instructions.command(scale, "", "message"), cwd=ROOT, check=True)


def test_dumps_are_read_by_name_and_divided_by_their_units(tmp_path: Path) -> None:
    """Two files as callgrind writes them, and one of the end of the process, which is nobody's."""
    dump = "version: 1\ndesc: Trigger: Client Request: {}\n\nfn=(1) f\n12 34\n\ntotals: {}\n"
    (tmp_path / "counts.1").write_text(dump.format("append/100", 5000))
    (tmp_path / "counts.2").write_text(dump.format("append waste/100.0", 200))
    (tmp_path / "counts.3").write_text("desc: Trigger: Program termination\n\ntotals: 7\n")
    assert dict(instructions.counted(tmp_path)) == {"append": 50, "append waste": 2}
