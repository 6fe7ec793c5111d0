"""A whole run: the corpus, all subjects, the table, and the result as JSON."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .corpus import corpus
from .measure import Measured, Row
from .peers import PEERS, install_missing
from .scale import ROOT, Scale
from .worker import SUBJECTS


def prepare(scale: Scale) -> None:
    """Create missing parts of the corpus and remove leftovers of an interrupted run."""
    shutil.rmtree(scale.scratch())
    for size in reversed(scale.sizes):
        start = time.monotonic()
        made = corpus(scale, size)
        if time.monotonic() - start > 0.5:
            say(f"made a session of {made.size / 1e6:,.0f} MB")


def run(scale: Scale, names: Sequence[str], done: Callable[[list[Row]], None]) -> list[Row]:
    """Return the rows of these subjects; `done` is called with the rows so far after each."""
    rows: list[Row] = []
    for name in names:
        start = time.monotonic()
        try:
            rows += subject_rows(scale, name)
        except subprocess.CalledProcessError as error:
            rows.append(Row(name, "the whole subject", failed=f"it ended with {error.returncode}"))
        say(f"{name}: {time.monotonic() - start:.0f} s")
        done(rows)
    return rows


def peers_rows(scale: Scale, *, install: bool) -> list[Row]:
    """Install missing peers on request and return a row for each that does not take part."""
    reasons = install_missing() if install else {}
    return [
        Row("peers", f"{name} {package.version}", skipped=reasons.get(name, "not installed; PEERS=1 does that"))
        for name, package in PEERS.items()
        if not package.installed
    ]


def subject_rows(scale: Scale, name: str) -> list[Row]:
    """Return the rows of one subject, the first of them with its memory."""
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
    """Write the result. Rows of other subjects in the file stay if they have the same sizes."""
    result = Measured(
        time.strftime("%Y-%m-%d"),
        platform.python_version(),
        platform.system(),
        os.cpu_count() or 1,
        list(scale.sizes),
        {name: package.version for name, package in PEERS.items() if scale.peers and package.installed},
        [],
    )
    for path in paths:
        result.rows = _with_others(path, result, msgspec.convert(rounded(msgspec.to_builtins(rows)), list[Row]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def _with_others(path: Path, result: Measured, rows: list[Row]) -> list[Row]:
    """Merge the rows with those of other subjects in the file, in the order of the subjects."""
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Measured)
    except (FileNotFoundError, msgspec.DecodeError):
        return rows
    now = {row.id for row in rows} | {"peers"}
    same = (before.sizes_mb, before.peers, before.python) == (result.sizes_mb, result.peers, result.python)
    others = [row for row in before.rows if row.id not in now] if same else []
    order = [*SUBJECTS, "peers"]
    return sorted([*others, *rows], key=lambda row: order.index(row.id) if row.id in order else len(order))


def rounded(value: Any) -> Any:
    """Round figures to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [rounded(member) for member in value]
    return value


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)
