"""A session of two hundred entries, cut at every byte: at most one entry is lost, and the next append is on its own line."""

from __future__ import annotations

import pytest

from figures import measured
from journal_rig import content_of, journal_on, settled
from sessile.errors import NotASession
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import HEADER, chain, line, unexpected

IDS = [f"entry{number:03}" for number in range(200)]
LINES = chain(*IDS)
WHOLE = HEADER + b"\n" + b"".join(raw + b"\n" for raw in LINES)
AFTER = line("after", None)


def ends() -> list[int]:
    """Return the end of each entry, without its newline."""
    found, at = [], len(HEADER) + 1
    for raw in LINES:
        found.append(at + len(raw))
        at += len(raw) + 1
    return found


ENDS = ends()


def check_cut(size: int) -> int:
    """Read and append to a file cut at `size`. Return the number of damaged entries."""
    left = WHOLE[:size]
    fs = settled(MemoryFilesystem(), left)
    if size < len(HEADER):
        with pytest.raises(NotASession):
            journal_on(fs)
        assert content_of(fs) == left
        return 0
    journal = journal_on(fs)
    whole = [entry_id for entry_id, end in zip(IDS, ENDS, strict=True) if end <= size]
    assert [row.id for row in journal.rows()] == whole
    torn = size - (ENDS[len(whole) - 1] if whole else len(HEADER))
    assert len(journal.findings()) == (torn > 1)
    journal.append([AFTER], unexpected)
    assert content_of(fs) == left + (b"" if left.endswith(b"\n") else b"\n") + AFTER + b"\n"
    assert [row.id for row in journal.rows()] == [*whole, "after"]
    return int(torn > 1)


@pytest.mark.promise("P18")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("step", [401, pytest.param(1, marks=pytest.mark.long)])
def test_a_cut_at_any_byte_costs_at_most_the_entry_that_it_goes_through(step: int) -> None:
    """Entries before the cut are read, the torn one is a finding, and the next append is not glued to it."""
    cuts = range(0, len(WHOLE) + 1, step)
    hurt = sum(map(check_cut, cuts))
    assert hurt > len(cuts) // 2
    measured("P18", "cuts at every byte", cuts=len(cuts), torn=hurt, other_entries_lost=0, glued=0)
