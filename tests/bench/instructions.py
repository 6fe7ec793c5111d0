"""S14: instructions, counted by valgrind: the one figure that a busy machine does not change.

Each work is done once and then several times, each in a process of its own; the difference is the work alone.

    python -m tests.bench.instructions WORK COUNT SCALE
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import msgspec

from .appending import append_lines, append_messages, new_journal, new_session
from .corpus import corpus, sample_lines, sample_messages
from .listing import list_newest, some_sessions
from .measure import Row, drop
from .reading import index_anew, resume, warm
from .scale import ROOT, Scale

_COLLECTED = re.compile(r"Collected\s*:\s*(\d+)")


def resumes(scale: Scale, count: int) -> None:
    """Resume the large session."""
    made = corpus(scale, scale.large_mb)
    for _ in range(count):
        resume(made).close()


def appends(scale: Scale, count: int) -> None:
    """Append encoded lines."""
    lines = sample_lines(corpus(scale, scale.small_mb), 50)
    journal = new_journal(scale, "counted")
    append_lines(journal, lines, count)
    journal.close()
    drop(journal.path)


def messages(scale: Scale, count: int) -> None:
    """Append messages."""
    texts = sample_messages(corpus(scale, scale.small_mb), 50)
    with new_session(scale, "counted-session") as session:
        append_messages(session, texts, count)
    shutil.rmtree(scale.scratch() / "counted-session")


def indexes(scale: Scale, count: int) -> None:
    """Index the small session."""
    for _ in range(count):
        index_anew(corpus(scale, scale.small_mb), scale.scratch() / "counted-index")


def lists(scale: Scale, count: int) -> None:
    """List so many sessions, with nothing cached."""
    cache = scale.scratch() / "counted-catalog"
    shutil.rmtree(cache, ignore_errors=True)
    list_newest(str(cache), some_sessions(scale, count))


WORKS: dict[str, tuple[Callable[[Scale, int], None], int, str, float | None]] = {
    "resume": (resumes, 3, "instructions: resume the large session", 25e6),
    "append": (appends, 401, "instructions: append an encoded line", 60e3),
    "message": (messages, 401, "instructions: append_message", None),
    "list": (lists, 451, "instructions: list a session, nothing cached", 100e3),
    "index": (indexes, 2, "instructions: index the small session", 90e6),
}


def counting(scale: Scale) -> list[Row]:
    """S14: how many instructions each work takes."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return [Row("S14", "instructions", skipped="valgrind is not installed")]
    warm(corpus(scale, scale.large_mb))
    for count in (1, WORKS["list"][1]):
        some_sessions(scale, count)  # made beforehand: only listing them counts
    rows = []
    for name, (_, count, work, limit) in WORKS.items():
        spent = (_count(valgrind, name, count, scale) - _count(valgrind, name, 1, scale)) / (count - 1)
        row = Row("S14", work, spent, unit="instructions")
        if limit is not None:
            row.baseline, row.baseline_median, row.ratio, row.limit = "the target itself", limit, spent / limit, 1
        rows.append(row)
    return rows


def command(name: str, count: int, scale: Scale) -> list[str]:
    """The command that does a work."""
    encoded = msgspec.json.encode(scale).decode()
    return [sys.executable, "-m", "tests.bench.instructions", name, str(count), encoded]


def _count(valgrind: str, name: str, count: int, scale: Scale) -> int:
    options = ["--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    done = subprocess.run(
        [valgrind, *options, *command(name, count, scale)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = _COLLECTED.search(done.stderr)
    if found is None:
        raise RuntimeError(f"valgrind said nothing of instructions: {done.stderr[-500:]}")
    return int(found.group(1))


if __name__ == "__main__":
    WORKS[sys.argv[1]][0](msgspec.json.decode(sys.argv[3], type=Scale), int(sys.argv[2]))
