"""Rounds, medians, ratios, memory, and the rows of a result."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

Sense = Literal["≤", "≥"]
Work = Callable[[], float]
"""Does some work and says how many seconds a unit of it took; what comes before and after the work does not count."""


Curve = Literal["resume", "append", "list"]


class Rival(msgspec.Struct, omit_defaults=True):
    """A peer's time for the work of a row; `ratio` is its time divided by ours, `limit` the minimum ratio."""

    median: float | None = None
    ratio: float | None = None
    limit: float | None = None
    memory_mb: float | None = None
    failed: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether the minimum ratio is reached; a peer that fails is not compared."""
        return self.limit is None or self.ratio is None or self.ratio >= self.limit


class Row(msgspec.Struct, omit_defaults=True):
    """One line of the table. `ratio` is bounded by the target; a row without a target is informative.

    Rows of one curve are the same work at several sizes, `at`.
    """

    id: str
    work: str
    median: float | None = None
    unit: str = "s"
    baseline: str = ""
    baseline_median: float | None = None
    ratio: float | None = None
    sense: Sense = "≤"
    limit: float | None = None
    memory_mb: float | None = None
    memory_limit_mb: float | None = None
    lost: int | None = None
    skipped: str | None = None
    failed: str | None = None
    rivals: dict[str, Rival] = {}
    curve: Curve | None = None
    at: float | None = None

    @property
    def within(self) -> bool:
        """Return whether the ratio meets its target, if any."""
        if self.limit is None or self.ratio is None:
            return True
        return self.ratio <= self.limit if self.sense == "≤" else self.ratio >= self.limit

    @property
    def fits(self) -> bool:
        """Return whether the memory meets its target, if any."""
        return self.memory_limit_mb is None or self.memory_mb is None or self.memory_mb <= self.memory_limit_mb

    @property
    def ok(self) -> bool:
        """Return whether every target of the row is met."""
        kept = self.within and self.fits and not self.lost and self.failed is None
        return kept and all(rival.ok for rival in self.rivals.values())

    @property
    def verdict(self) -> str:
        if self.failed is not None:
            return "FAILED"
        if self.skipped is not None:
            return "skipped"
        targets = [self.limit, self.memory_limit_mb, self.lost, *(rival.limit for rival in self.rivals.values())]
        if all(target is None for target in targets):
            return ""
        return "ok" if self.ok else "MISSED"


class Measured(msgspec.Struct):
    """A result of the benchmark, without names of the machine or its folders."""

    day: str
    python: str
    system: str
    cores: int
    sizes_mb: list[float]
    peers: dict[str, str]
    rows: list[Row]


def timed(work: Callable[[], Any], units: int = 1) -> float:
    """Return the seconds per unit of the work."""
    gc.collect()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / units


def interleaved(rounds: int, **works: Work) -> dict[str, list[float]]:
    """Run each work once per round in rotating order, so that a slow phase affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(works[name]())
    return times


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def ratio(times: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the ratios of all rounds."""
    return statistics.median(a / b for a, b in zip(times, baseline, strict=True))


def peak_memory_mb() -> float:
    """Return the peak memory of this process.

    Linux's `ru_maxrss` includes the parent's memory at the fork, so another figure of the kernel is used there.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def drop(path: str | os.PathLike[str]) -> None:
    """Remove a file if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
