"""Rounds, medians, ratios, memory, and the table that they end in."""

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


class Row(msgspec.Struct, omit_defaults=True):
    """One line of the table. `ratio` is what the target bounds; without a target the row only informs."""

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

    @property
    def ok(self) -> bool:
        """Whether every target of the row is met; a row without one is."""
        met = True
        if self.limit is not None and self.ratio is not None:
            met = self.ratio <= self.limit if self.sense == "≤" else self.ratio >= self.limit
        if self.memory_limit_mb is not None and self.memory_mb is not None:
            met = met and self.memory_mb <= self.memory_limit_mb
        return met and not self.lost

    @property
    def verdict(self) -> str:
        if self.skipped is not None:
            return "skipped"
        if self.limit is None and self.memory_limit_mb is None and self.lost is None:
            return ""
        return "ok" if self.ok else "MISSED"


def timed(work: Callable[[], Any], units: int = 1) -> float:
    """Seconds that one unit of the work took."""
    gc.collect()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / units


def interleaved(rounds: int, **works: Work) -> dict[str, list[float]]:
    """Each work once a round, in turning order, so that a slow minute slows all of them."""
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
    """The median of the ratios of all rounds."""
    return statistics.median(a / b for a, b in zip(times, baseline, strict=True))


def peak_memory_mb() -> float:
    """The most memory that this process has had.

    Linux's `ru_maxrss` also counts what the parent had when it started us, so the kernel's other figure is used there.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def drop(path: str | os.PathLike[str]) -> None:
    """Remove a file if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def table(rows: Sequence[Row]) -> str:
    """The rows as text, one line each."""
    head = ("id", "work", "median", "baseline", "ratio", "target", "memory", "")
    cells = [head, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    if row.skipped is not None:
        return (row.id, row.work, "", row.skipped, "", "", "", row.verdict)
    baseline = row.baseline
    if row.baseline_median is not None:
        baseline += f" {_amount(row.baseline_median, row.unit)}"
    memory = "" if row.memory_mb is None else f"{row.memory_mb:.0f} MB"
    if row.memory_limit_mb is not None:
        memory += f" (≤ {row.memory_limit_mb:g})"
    if row.lost is not None:
        memory += f"{row.lost} lost"
    return (
        row.id,
        row.work,
        "" if row.median is None else _amount(row.median, row.unit),
        baseline,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.limit is None else f"{row.sense} {row.limit:g}",
        memory,
        row.verdict,
    )


def _amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.0f} {unit}" if value < 1e6 else f"{value / 1e6:,.1f} M {unit}"
    for factor, name in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.2f} {name}"
    return f"{value * 1e6:.1f} µs"
