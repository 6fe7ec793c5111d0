"""C1: preparing the compaction of a session without earlier compactions; the limit is 100 ms for 100 MB."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from sessile import Compactor, Store

from .measure import Row, interleaved, median, timed
from .scale import SEED, Scale

_MOST_MS = 100


def _session(scale: Scale) -> Path:
    """Write a session with one long conversation with tools and no compaction."""
    path = Path(scale.folder, f"uncompacted-{scale.middle_mb:g}", "session.jsonl")
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng, parent, size = Random(SEED), None, 0
    with path.with_suffix(".tmp").open("w") as file:
        at = "2026-01-01T00:00:00.000Z"
        size += file.write(
            json.dumps({"type": "session", "version": 3, "id": "u", "timestamp": at, "cwd": "/w"}) + "\n"
        )
        number = 0
        while size < scale.middle_mb * 1e6:
            for message in _turn(number, rng):
                number += 1
                entry = {
                    "type": "message",
                    "id": f"e{number:07d}",
                    "parentId": parent,
                    "timestamp": at,
                    "message": message,
                }
                size += file.write(json.dumps(entry) + "\n")
                parent = entry["id"]
    path.with_suffix(".tmp").rename(path)
    return path


def _turn(number: int, rng: Random) -> list[dict[str, object]]:
    call = {"type": "toolCall", "id": f"c{number}", "name": "bash", "arguments": {"command": "pytest -q"}}
    usage = {"input": 1000 + number, "output": 50, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 1050 + number}
    said = [{"type": "text", "text": "x " * rng.randrange(50, 400)}]
    return [
        {"role": "user", "content": "y " * rng.randrange(20, 200)},
        {"role": "assistant", "content": [*said, call], "usage": usage, "stopReason": "toolUse"},
        {"role": "toolResult", "toolCallId": f"c{number}", "toolName": "bash", "content": said * rng.randrange(1, 60)},
        {"role": "assistant", "content": said, "usage": usage, "stopReason": "stop"},
    ]


def preparing(scale: Scale) -> list[Row]:
    """Open with an index, and decide where to cut and what to keep."""
    path = _session(scale)
    store = Store(path.parent / "store", cache=str(path.parent / "cache"))
    store.open(path, readonly=True).close()  # builds the index

    def prepare() -> float:
        with store.open(path, readonly=True) as session:
            work = Compactor(session, window=200_000)

            def decide() -> None:
                preparation = work.prepare()
                assert preparation is not None or scale.middle_mb < 10
                assert work.size().tokens > 0

            return timed(decide)

    times = interleaved(scale.rounds, ours=prepare)
    took = median(times["ours"]) * 1000
    size = f"{path.stat().st_size / 1e6:,.0f} MB"
    return [Row("C1", f"prepare a compaction, {size}", took, "ms", "", None, took, "≤", _MOST_MS)]
