"""Record the figures of fault tests for the page of promises.

A rig counts what it did: `measured("P1", "kills at random", kills=200, acknowledged=10_431, lost=0)`. Counts of one promise
and rig are added up over a run, across processes. They are recorded only if `SESSILE_FIGURES` names a folder, as in
`make faults`; `python tests/promises.py` adds them to the page.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

Figures = dict[str, dict[str, dict[str, int]]]  # promise, rig, what was counted


def measured(promise: str, rig: str, **counts: int) -> None:
    """Record what a rig counted for a promise."""
    folder = os.environ.get("SESSILE_FIGURES")
    if folder is None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / f"{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps([promise, rig, counts]) + "\n")


def collected(folder: Path) -> Figures:
    """Return the sums of all counts in a folder."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            promise, rig, counts = json.loads(line)
            found.setdefault(promise, {}).setdefault(rig, Counter()).update(counts)
    return {promise: {rig: dict(counts) for rig, counts in rigs.items()} for promise, rigs in found.items()}
