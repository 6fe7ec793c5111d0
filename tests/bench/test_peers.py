"""Peers are run on their own work, are not reported as faster than they are, and are skipped by name if missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench import peers
from bench.measure import Row
from bench.peers import PEERS, Answer, Challenge, Failure, Package, against, ask
from bench.run import peers_rows, subject_rows
from bench.scale import Scale, smoke
from bench.tables import markdown, table

Answering = Callable[[Answer], list[str]]


@pytest.fixture
def scale(tmp_path: Path) -> Scale:
    return msgspec.structs.replace(smoke(str(tmp_path)), peers=True)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Simulate an installed pi with given answers; return the requested works."""

    def tell(answer: Answer) -> list[str]:
        asked: list[str] = []

        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
            asked.append(command[-1])
            return subprocess.CompletedProcess(command, 0, msgspec.json.encode(answer), b"")

        monkeypatch.setattr(Package, "installed", property(lambda self: True))
        monkeypatch.setattr(subprocess, "run", run)
        return asked

    return tell


def ours() -> float:
    return 0.5


def test_a_peer_that_takes_four_times_as_long_makes_us_four_times_as_fast(scale: Scale, answering: Answering) -> None:
    """A target of five is missed, in the row and in both tables."""
    answering(Answer(2.0, 100, 3))
    found = against(scale, ours, Challenge("pi", "resume", ["file"], 5, 3))
    assert found["pi"].ratio == 4 and found["pi"].memory_mb == 100 and not found["pi"].ok
    row = Row("S1", "resume", 0.5, rivals=found)
    assert row.verdict == "MISSED" and Row("S1", "resume", 0.5, rivals=against(scale, ours)).verdict == ""
    assert "4.0×!" in table([row]) and "2.00 s, 100 MB (4.0×!, ≥ 5×)" in markdown([row])


def test_an_answer_that_is_none_is_a_failure_and_not_a_fast_peer(scale: Scale, answering: Answering) -> None:
    """A wrong number of results is a failure."""
    answering(Answer(0.001, 10, 0))
    rival = against(scale, ours, Challenge("pi", "list", ["folder"], 5, 50))["pi"]
    assert rival.ratio is None and rival.failed == "it found 0, not 50" and rival.ok
    row = Row("S7", "list", 0.5, rivals={"pi": rival})
    assert "failed: pi at S7 list: it found 0, not 50" in table([row])


def test_what_takes_long_is_asked_once_in_a_run(scale: Scale, answering: Answering) -> None:
    """Several rows reuse the time of a slow work; a process that is timed as a whole runs each time."""
    asked = answering(Answer(9.0, 10, 1))
    for _ in range(3):
        against(scale, ours, Challenge("pi", "resume", ["large"]))
    assert asked == ["large"]
    against(scale, ours, Challenge("pi", "resume", ["large"], as_process=True))
    assert len(asked) == 2
    quick = answering(Answer(0.1, 10, 1))
    for _ in range(3):
        ask(scale, "pi", "resume", "small")
    assert len(quick) == 3


def test_a_peer_that_ends_with_an_error_tells_it(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its output is reported."""
    monkeypatch.setattr(Package, "command", lambda self: ["sh", "-c", "echo no room >&2; exit 3"])
    with pytest.raises(Failure, match="no room"):
        ask(scale, "pi", "resume", "file")


def test_peers_that_are_missing_are_skipped_by_name(
    scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each missing peer has a row, and no other row has its figures."""
    monkeypatch.setattr(peers, "CACHE", tmp_path / "nothing")
    rows = peers_rows(scale, install=False)
    assert [row.work for row in rows] == [f"{name} {package.version}" for name, package in PEERS.items()]
    assert all(row.verdict == "skipped" for row in rows)
    assert "skipped: peers pi 0.87.1: not installed; PEERS=1 does that" in table(rows)
    assert against(scale, ours, *(Challenge(name, "resume", []) for name in PEERS)) == {}


@pytest.mark.peers
@pytest.mark.parametrize("name", ["S1", "S4", "S5", "S7", "S8", "S9", "A1", "A2", "L1"])
def test_every_peer_that_is_installed_does_its_works(scale: Scale, name: str) -> None:
    """A peer whose functions have moved must not drop out of the table unnoticed."""
    rivals = [rival for row in subject_rows(scale, name) for rival in row.rivals.values()]
    if not rivals:
        pytest.skip("no peer for this work is installed: make bench PEERS=1")
    assert [rival.failed for rival in rivals if rival.failed] == []
