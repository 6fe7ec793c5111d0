"""Other projects at the same work, with PEERS=1: those that are installed below `.cache/peers`; nothing is fetched here."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .appending import append_messages, journal_time, session_time
from .corpus import corpus, sample_lines, sample_messages
from .measure import Row, drop, interleaved, median, ratio, timed
from .reading import resume, warm
from .scale import ROOT, Scale

_PI = (
    ROOT / ".cache" / "peers" / "earendil-works-pi-coding-agent-0.87.1" / "node_modules/@earendil-works/pi-coding-agent"
)
_OTHERS = ("oh-my-pi", "claude-agent-sdk")
_ROUNDS = 3
_SECONDS = 120


def racing(scale: Scale) -> list[Row]:
    """S1 and S4 against peers."""
    if not scale.peers:
        return [Row("peers", "S1, S4 against other projects", skipped="only with PEERS=1")]
    rows = [Row("peers", f"S1, S4 against {name}", skipped="not installed") for name in _OTHERS]
    rows.insert(0, _against_sqlite(scale))
    if shutil.which("node") is None or not _PI.exists():
        return [Row("peers", "S1, S4 against pi 0.87.1", skipped="node or the package is not installed"), *rows]
    return [*_resumes(scale), _appends(scale), *rows]


def _resumes(scale: Scale) -> list[Row]:
    rows = []
    for size in (scale.middle_mb, scale.large_mb):
        made = warm(corpus(scale, size))
        works: dict[str, Callable[[], float]] = {
            "ours": lambda made=made: timed(lambda: resume(made).close()),  # type: ignore[misc]
            "pi": lambda made=made: _pi("resume", made.path),  # type: ignore[misc]
        }
        try:
            times = interleaved(_ROUNDS, **works)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = getattr(error, "stderr", None) or str(error)
            rows.append(Row("peers", f"S1: pi 0.87.1, {size:g} MB", skipped=f"it failed: {str(reason).strip()[-60:]}"))
            continue
        rows.append(
            Row(
                "peers",
                f"S1: resume {size:g} MB, how much faster than pi 0.87.1",
                median(times["ours"]),
                baseline="pi 0.87.1",
                baseline_median=median(times["pi"]),
                ratio=ratio(times["pi"], times["ours"]),
                sense="≥",
                limit=1000 if size == scale.large_mb else None,
            )
        )
    return rows


def _against_sqlite(scale: Scale) -> Row:
    lines = sample_lines(corpus(scale, scale.small_mb), 400)
    times = interleaved(
        _ROUNDS * 3,
        ours=lambda: journal_time(scale, lines, scale.appends),
        sqlite=lambda: _sqlite_time(scale, lines, scale.appends),
    )
    return Row(
        "peers",
        "S4: append an encoded line, how much faster than SQLite",
        median(times["ours"]),
        baseline="SQLite WAL insert",
        baseline_median=median(times["sqlite"]),
        ratio=ratio(times["sqlite"], times["ours"]),
        sense="≥",
        limit=3,
    )


def _appends(scale: Scale) -> Row:
    messages = sample_messages(corpus(scale, scale.small_mb), 100)
    count = scale.appends
    with tempfile.TemporaryDirectory(dir=scale.scratch()) as folder:
        texts = Path(folder, "messages")
        texts.write_bytes(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))

        def pi() -> float:
            with tempfile.TemporaryDirectory(dir=folder) as target:
                return _pi("append", target, str(texts), str(count))

        times = interleaved(
            _ROUNDS,
            ours=lambda: session_time(scale, lambda session: append_messages(session, messages, count), count),
            pi=pi,
        )
    return Row(
        "peers",
        "S4: append_message, how much faster than pi 0.87.1",
        median(times["ours"]),
        baseline="pi 0.87.1",
        baseline_median=median(times["pi"]),
        ratio=ratio(times["pi"], times["ours"]),
        sense="≥",
        limit=2,
    )


def _sqlite_time(scale: Scale, lines: Sequence[bytes], count: int) -> float:
    """Seconds an insert and commit takes, without a sync."""
    path = scale.scratch() / "lines.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE lines(id INTEGER PRIMARY KEY, line BLOB)")

    def run() -> None:
        for number in range(count):
            database.execute("INSERT INTO lines(line) VALUES (?)", (lines[number % len(lines)],))

    taken = timed(run, count)
    database.close()
    for ending in ("", "-wal", "-shm"):
        drop(f"{path}{ending}")
    return taken


def _pi(*arguments: str) -> float:
    script = str(Path(__file__).with_name("peers.mjs"))
    command = ["node", "--max-old-space-size=8192", script, str(_PI), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    return float(json.loads(done.stdout))
