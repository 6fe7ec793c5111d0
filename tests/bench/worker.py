"""Run one subject in its own process, for its times or its memory.

python -m tests.bench.worker times|memory SUBJECT SCALE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from . import (
    appending,
    claude,
    compacting,
    gateway,
    going_on,
    graphs,
    instructions,
    listing,
    postgres,
    reading,
    searching,
    sharing,
    starting,
)
from .measure import Row, peak_memory_mb
from .scale import Scale


class Subject(NamedTuple):
    """The measurement of a subject and, if its memory has a limit, its bare work."""

    times: Callable[[Scale], list[Row]]
    once: Callable[[Scale], None] | None = None
    memory_limit_mb: float | None = None


SUBJECTS: dict[str, Subject] = {
    "S1": Subject(reading.resuming, reading.resume_once, 40),
    "S1b": Subject(starting.resuming_as_a_process, starting.context_once, 64),
    "S2": Subject(reading.indexing, reading.index_once, 80),
    "S3": Subject(reading.any_leaf, reading.any_leaf_once, 48),
    "S4": Subject(appending.appending, appending.append_a_million, 48),
    "S5": Subject(sharing.syncing),
    "S6": Subject(sharing.sharing),
    "S7": Subject(listing.listing, listing.list_once, 64),
    "S8": Subject(going_on.going_on),
    "S9": Subject(searching.searching, searching.search_once, 96),
    "S10": Subject(starting.starting),
    "S11": Subject(claude.converting, claude.convert_once, 128),
    "S12": Subject(gateway.taking_turns, gateway.touch_every_key_once, 200),
    "S13": Subject(postgres.storing),
    "S14": Subject(instructions.counting),
    "A1": Subject(claude.listing, claude.list_once, 128),
    "A1b": Subject(claude.listing_as_a_process),
    "A2": Subject(claude.resuming, claude.resume_once, 128),
    "A2b": Subject(claude.resuming_anew, claude.resume_anew_once, 128),
    "A2c": Subject(claude.reading, claude.read_once, 128),
    "C1": Subject(compacting.preparing),
    "L1": Subject(graphs.keeping_graphs),
}


def main(mode: str, name: str, encoded: str) -> None:
    """Run the subject and print the result as JSON."""
    scale = msgspec.json.decode(encoded, type=Scale)
    subject = SUBJECTS[name]
    result: list[Row] | float
    if mode == "times":
        result = subject.times(scale)
    else:
        assert subject.once is not None
        subject.once(scale)
        result = peak_memory_mb()
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
