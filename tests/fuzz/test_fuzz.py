"""Fuzz every parser: a few hundred seeded inputs each, and guided fuzzing for any time.

The long form takes `SESSILE_FUZZ_SECONDS` (default: 600) for all targets together, each in its own process, guided by atheris
if it is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from figures import measured
from fuzz.mutator import damaged
from fuzz.seeds import CRASHES, crashes
from fuzz.targets import TARGETS, Hang, Target, watched
from sessile.core import lines

_SHARE = 60
_SLOW = {
    "session": 8,
    "catalog": 4,
    "repairing": 30,
    "index": 6,
    "pages": 12,
    "context": 40,
    "rows_in_place": 30,
    "codex_rollout": 20,
    "asked": 30,
}
_TESTS = Path(__file__).parents[1]

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
pytestmark = pytest.mark.promise("P17")


def fuzz(target: Target, count: int) -> None:
    """Check the law with some inputs, the same ones in every run."""
    random, law, seeds = Random(target.name), target.law(), target.seeds()
    with watched() as wind:
        for _ in range(count):
            data = damaged(seeds, random)
            wind()
            try:
                law(data)
            except Exception as error:
                raise AssertionError(f"{target.name} breaks its law over {data[:2000]!r}") from error


@every_target
def test_any_damage_gets_an_answer_or_a_typed_error(target: Target) -> None:
    """Any bytes raise no other exception, do not hang, and keep the law of the parser."""
    count = _SLOW.get(target.name, _SHARE)
    fuzz(target, count)
    measured("P17", "fuzzing", targets=1, inputs=count, crashes=0)


@pytest.mark.parametrize("name", sorted(path.name for path in CRASHES.iterdir()))
def test_what_once_broke_a_law_breaks_it_no_more(name: str) -> None:
    """Inputs that once broke a law stay in the corpus and keep the law now."""
    law = TARGETS[name].law()
    assert crashes(name)
    for data in crashes(name):
        law(data)


def test_fuzzing_finds_a_scanner_that_counts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small fault in the scanner, the rig reports missing bytes."""
    monkeypatch.setattr(lines, "_bytes", len)
    with pytest.raises(AssertionError, match="breaks its law"):
        fuzz(TARGETS["lines"], 2_000)


def test_fuzzing_finds_a_reader_that_trusts_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """If damage of an index is not checked, the rig reports an input that changes an answer or breaks the reader."""
    monkeypatch.setattr("sessile.storage.index.zlib.crc32", lambda data, start=0: 0)
    with pytest.raises(AssertionError, match="breaks its law"):
        fuzz(TARGETS["index"], 300)


def test_an_input_that_takes_for_ever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that does not end is reported as a broken law."""
    monkeypatch.setattr("fuzz.targets._LONGEST", 0.05)
    with pytest.raises(Hang), watched() as wind:
        wind()
        while True:
            pass


@pytest.mark.long
@every_target
def test_no_input_that_guided_fuzzing_finds_breaks_a_law(target: Target, tmp_path: Path) -> None:
    """The long form is guided by the reached branches, if atheris is installed."""
    seconds = float(os.environ.get("SESSILE_FUZZ_SECONDS", "600")) / len(TARGETS)
    command = [sys.executable, "-m", "fuzz", target.name, str(seconds), str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(_TESTS)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace")
    found = [(path.name, path.read_bytes()[:2000]) for path in tmp_path.glob("*-*") if path.is_file()]
    assert done.returncode == 0 and not found, f"{found}\n{done.stderr[-4000:]}"
    (inputs,) = re.findall(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    measured("P17", "fuzzing", targets=1, inputs=int(inputs), crashes=0)
