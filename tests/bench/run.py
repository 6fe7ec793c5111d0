"""A whole run: the corpus, every subject, the table, the result as JSON."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from .corpus import corpus
from .measure import Row
from .scale import ROOT, Scale
from .worker import SUBJECTS


def prepare(scale: Scale) -> None:
    """Make what is missing of the corpus, and throw away what an interrupted run has left."""
    shutil.rmtree(scale.scratch())
    for size in (scale.small_mb, scale.middle_mb, scale.large_mb):
        start = time.monotonic()
        made = corpus(scale, size)
        if time.monotonic() - start > 0.5:
            say(f"made a session of {made.size / 1e6:,.0f} MB")


def run(scale: Scale, names: Sequence[str]) -> list[Row]:
    """The rows of these subjects."""
    rows: list[Row] = []
    for name in names:
        start = time.monotonic()
        rows += subject_rows(scale, name)
        say(f"{name}: {time.monotonic() - start:.0f} s")
    return rows


def subject_rows(scale: Scale, name: str) -> list[Row]:
    """The rows of one subject, the first of them with its memory."""
    rows = msgspec.convert(_worker("times", name, scale), list[Row])
    subject = SUBJECTS[name]
    if subject.once is not None and rows:
        rows[0].memory_mb = float(_worker("memory", name, scale))
        rows[0].memory_limit_mb = subject.memory_limit_mb
    return rows


def _worker(mode: str, name: str, scale: Scale) -> Any:
    command = [sys.executable, "-m", "tests.bench.worker", mode, name, msgspec.json.encode(scale).decode()]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout)


def save(scale: Scale, rows: Sequence[Row], *paths: Path) -> None:
    """Write the result: nothing in it names the machine or its folders."""
    sizes = {name: getattr(scale, f"{name}_mb") for name in ("large", "middle", "small")}
    result = {
        "python": platform.python_version(),
        "sizes_mb": sizes,
        "rows": [msgspec.to_builtins(row) | {"verdict": row.verdict} for row in rows],
    }
    encoded = msgspec.json.format(msgspec.json.encode(result), indent=1)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded + b"\n")


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
