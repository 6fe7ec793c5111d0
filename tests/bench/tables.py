"""The rows as tables for a terminal and for a page.

In a terminal, the column of a peer is its time divided by ours; `!` marks a ratio below its target. A page also has the
peer's time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from .measure import Rival, Row
from .peers import PEERS

_WIDTH = 140  # width of the remarks below the table
_SHORT = {"claude-sdk": "sdk", "langgraph": "graph"}
_UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, one line each, and their baselines."""
    peers = peers_of(rows)
    named = (_SHORT.get(name, name) for name in peers)
    head = ("id", "work", "ours", *named, "limit", "ratio", "target", "memory", "")
    cells = [head, *(_cells(row, peers) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join([*lines, "", *_remarks(rows)])


def peers_of(rows: Sequence[Row]) -> list[str]:
    """Return the peers that appear in any row."""
    found = {name for row in rows for name in row.rivals}
    return [name for name in PEERS if name in found]


def _cells(row: Row, peers: Sequence[str]) -> tuple[str, ...]:
    ours = "" if row.median is None else amount(row.median, row.unit)
    rivals = [_times(row.rivals.get(name)) for name in peers]
    if row.skipped is not None and row.median is None:
        return (row.id, row.work, "", *rivals, "", "", "", "", row.verdict)
    return (
        row.id,
        row.work,
        ours,
        *rivals,
        limit_time(row),
        ratio_of(row),
        target_of(row),
        memory_of(row),
        row.verdict,
    )


def limit_time(row: Row) -> str:
    """Return the time of a row's baseline."""
    return "" if row.baseline_median is None else amount(row.baseline_median, row.unit)


def ratio_of(row: Row) -> str:
    """Return the ratio that a row's target bounds."""
    return "" if row.ratio is None else f"{row.ratio:,.{2 if row.ratio < 100 else 0}f}"


def target_of(row: Row) -> str:
    """Return the limit of a row's ratio."""
    return "" if row.limit is None else f"{row.sense} {row.limit:g}"


def memory_of(row: Row) -> str:
    """Return the memory of a row with its limit, and the lost entries of concurrent writers."""
    memory = "" if row.memory_mb is None else f"{row.memory_mb:.0f} MB"
    if row.memory_limit_mb is not None:
        memory += f" (≤ {row.memory_limit_mb:g})"
    return memory if row.lost is None else f"{memory} {row.lost} lost".strip()


def _times(rival: Rival | None) -> str:
    if rival is None:
        return ""
    if rival.ratio is None:
        return "failed"
    return f"{rival.ratio:,.{0 if rival.ratio >= 10 else 1}f}×" + ("" if rival.ok else "!")


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Return remarks about baselines, skipped rows and failed peers."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.baseline and row.baseline not in names.setdefault(row.id, []):
            names[row.id].append(row.baseline)
    limits = "; ".join(f"{name} {', '.join(each)}" for name, each in names.items() if each)
    lines = wrap(f"limits: {limits}", _WIDTH) if limits else []
    lines += [f"skipped: {row.id} {row.work}: {row.skipped}" for row in rows if row.skipped is not None]
    lines += [f"failed: {row.id} {row.work}: {row.failed}" for row in rows if row.failed is not None]
    for row in rows:
        for name, rival in row.rivals.items():
            if rival.failed is not None:
                lines.append(f"failed: {name} at {row.id} {row.work}: {rival.failed}")
    return lines


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    peers = peers_of(rows)
    head = ["", "work", "ours", *peers, "limit", "ratio", "target", "memory", ""]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        if row.skipped is None or row.median is not None:
            lines.append("| " + " | ".join(_page_cells(row, peers)) + " |")
    return "\n".join(lines)


def _page_cells(row: Row, peers: Sequence[str]) -> list[str]:
    limit = f"{row.baseline} {limit_time(row)}".strip()
    verdict = f"**{row.verdict}**" if row.verdict == "MISSED" else row.verdict
    rivals = [_time_and_times(row, row.rivals.get(name)) for name in peers]
    ours = "" if row.median is None else amount(row.median, row.unit)
    return [row.id, row.work, ours, *rivals, limit, ratio_of(row), target_of(row), memory_of(row), verdict]


def _time_and_times(row: Row, rival: Rival | None) -> str:
    if rival is None or rival.median is None:
        return _times(rival)
    wanted = "" if rival.limit is None else f", ≥ {rival.limit:g}×"
    memory = "" if rival.memory_mb is None else f", {rival.memory_mb:,.0f} MB"
    return f"{amount(rival.median, row.unit)}{memory} ({_times(rival)}{wanted})"


def amount(value: float, unit: str = "s") -> str:
    """Format a figure with three digits and its unit."""
    if unit != "s":
        for bound, factor, prefix in ((1e6, 1e6, " M"), (100, 1, "")):
            if value >= bound:
                return f"{value / factor:,.{1 if prefix else 0}f}{prefix} {unit}".rstrip()
        return f"{value:.1f} {unit}".rstrip()
    for factor, name in _UNITS[:-1]:
        if value * factor >= 1:
            return f"{value * factor:.{2 if value * factor < 100 else 0}f} {name}"
    return f"{value * 1e6:.1f} µs"
