"""Real agents go on from sessions of other agents: every source in every target."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import resuming
from peers.programs import ANSWER, PROMPT, resume
from sessile.storage.filesystem import PosixFilesystem
from sessile.transfer import placed, write_placed

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, object]]:
    """Collect what the programs sent, and write it to the fixture if SESSILE_RECORD is set."""
    found: dict[str, object] = {}
    yield found
    if os.environ.get("SESSILE_RECORD"):
        before = json.loads(gzip.decompress(resuming.RECORDED.read_bytes())) if resuming.RECORDED.exists() else {}
        data = json.dumps(before | found, sort_keys=True, ensure_ascii=False, indent=0).encode()
        resuming.RECORDED.write_bytes(gzip.compress(data, mtime=0))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for the records of real agents."""
    yield tmp_path_factory.mktemp("records")


@pytest.mark.mission("N3")
@pytest.mark.parametrize("target", resuming.TARGETS)
@pytest.mark.parametrize("source", resuming.SOURCES)
def test_a_real_agent_goes_on_from_a_placed_session(
    source: str, target: str, records: Path, tmp_path: Path, recorded: dict[str, object]
) -> None:
    """It starts, sends every text, call, result and image of the path in order, and appends to the placed file."""
    home = tmp_path / "home"
    home.mkdir()
    with resuming.opened(source, records) as session:
        wanted = resuming.expected(session)
        copy = placed(session, target, home=str(home), environ={}, cwd=str(tmp_path / "work"))
    assert write_placed(PosixFilesystem(), copy)
    before = Path(copy.path).read_bytes()
    run = resume(target, copy.path if target in ("pi", "omp") else copy.id, home, tmp_path / "work")
    assert run.code == 0 and ANSWER in run.printed, run.printed
    bodies = [
        one["body"] for one in run.asked if PROMPT in str(one["body"].get("messages") or one["body"].get("input"))
    ]
    assert bodies, run.printed
    found = resuming.sent(bodies[-1])
    assert resuming.missing(wanted, found) == []
    (after,) = home.rglob(f"*{copy.id}*.jsonl")
    assert after.read_bytes().startswith(before) and len(after.read_bytes()) > len(before)
    assert ANSWER.encode() in after.read_bytes()
    assert os.stat(after).st_mode & 0o777 == 0o600
    shapes = sorted(resuming.shapes(copy.lines))
    recorded[f"{source} {target}"] = {"sent": resuming.record(wanted, found), "shapes": shapes}
