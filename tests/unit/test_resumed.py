"""What is placed today is what real programs have resumed: a replay of the matrix that `make peers` runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import resuming
from resuming import SOURCES, TARGETS, Wanted, abbreviated
from sessile.transfer import placed


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the records of real agents."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Return what the real programs sent."""
    found: dict[str, Any] = json.loads(gzip.decompress(resuming.RECORDED.read_bytes()))
    return found


@pytest.mark.mission("N3")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_placed_today_is_what_a_real_agent_has_sent_on(
    source: str, target: str, records: Path, recorded: dict[str, Any]
) -> None:
    """Its rows have shapes that the program has taken, and every item of the path was in the program's request, in order."""
    known = recorded[f"{source} {target}"]
    with resuming.opened(source, records) as session:
        said, results = resuming.expected(session)
        copy = placed(session, target)
    wanted = Wanted([*map(abbreviated, said)], [[*map(abbreviated, result)] for result in results])
    again = "run SESSILE_RECORD=1 make peers, which asks the real programs"
    assert resuming.shapes(copy.lines) - set(known["shapes"]) == set(), again
    assert resuming.missing(wanted, known["sent"]) == [], again
    text = b"".join(copy.lines)
    assert b"blob:sha256" not in text and b"truncated large content" not in text and b"sessile." not in text


@pytest.mark.mission("N3")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_item_of_the_path_is_in_the_placed_file(source: str, target: str, records: Path) -> None:
    """Texts, calls, results and images are whole in the file, in order."""
    with resuming.opened(source, records) as session:
        wanted = resuming.expected(session)
        copy = placed(session, target)
    found = [item for line in copy.lines for item in resuming.items_of_row(json.loads(line))]
    assert resuming.missing(wanted, found) == []
