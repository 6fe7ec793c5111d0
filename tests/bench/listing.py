"""S7: listing thousands of sessions, cold and warm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from sessile.agents.registry import AGENTS
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import Filter

from .measure import Row, Work, interleaved, median, ratio, timed
from .peers import Challenge, against
from .scale import SEED, Scale

_VERSION = 2  # of the generator
_PROJECTS = 40
_FULL = 5000  # sessions; a smoke run has fewer
_FEWER = (500, 50, 5)
_ENGLISH = (
    "the a to of and in is it that for on with as be this are by from at or an not we can if has will which use file test "
    "function return value error path index line session entry parent child leaf branch commit write read lock assert "
    "request response server client handler retry timeout queue worker cache database schema migration user token header"
)
_OTHER = "会话 追加 日志 索引 分支 恢复 进程 持久 naïve résumé übung 🙂 🚀"
_WORDS, _OTHERS = _ENGLISH.split(), _OTHER.split()


def _sessions(scale: Scale) -> int:
    return _FULL if scale.rounds > 1 else 50


def store(scale: Scale) -> str:
    """Return a folder of small sessions in project folders; create it if missing."""
    count = _sessions(scale)
    root = Path(scale.folder, f"listing-{count}-{_VERSION}")
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        random = Random(SEED)
        for number in range(count):
            folder = root / "sessions" / f"--work-project-{number % _PROJECTS}--"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"2026-01-01T00-00-00-000Z_0199aaaa-0000-7000-8000-{number:012d}.jsonl"
            path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in _session(random, number)))
            os.utime(path, (1.77e9 + number, 1.77e9 + number))
        (root / "made").touch()
    return str(root / "sessions")


def some_sessions(scale: Scale, count: int) -> str:
    """Return a folder with at most the given number of these sessions."""
    folder = scale.scratch() / f"sessions-{count}"
    if not folder.exists():
        folder.mkdir()
        for path in sorted(Path(store(scale)).rglob("*.jsonl"))[:count]:
            os.link(path, folder / path.name)
    return str(folder)


def _session(random: Random, number: int) -> Iterator[dict[str, Any]]:
    """Write a session of 8 to 30 KB with questions, tool calls, results and answers."""
    at = "2026-01-01T00:00:00.000Z"
    cwd = f"/work/project-{number % _PROJECTS}"
    yield {"type": "session", "version": 3, "id": f"0199aaaa-0000-7000-8000-{number:012d}", "timestamp": at, "cwd": cwd}
    parent = None
    for step, message in enumerate(_talk(random, number)):
        entry_id = f"{number:05d}{step:03d}"
        yield {"type": "message", "id": entry_id, "parentId": parent, "timestamp": at, "message": message}
        parent = entry_id


def _talk(random: Random, number: int) -> Iterator[dict[str, Any]]:
    usage = {
        "input": 1200,
        "output": 500,
        "cacheRead": 0,
        "cacheWrite": 0,
        "totalTokens": 1700,
        "cost": {"total": 0.01},
    }
    about = {"role": "assistant", "provider": "anthropic", "model": "claude-opus-4-5", "usage": usage}
    for turn in range(random.randint(1, 3)):
        yield {"role": "user", "content": f"rare{number} " * (turn == 0) + _said(random, 60)}
        for call in range(random.randint(1, 4)):
            use = {
                "type": "toolCall",
                "id": f"c{call}",
                "name": "read",
                "arguments": {"path": f"src/{_said(random, 2)}.py"},
            }
            yield {
                **about,
                "content": [{"type": "thinking", "thinking": _said(random, 60)}, use],
                "stopReason": "toolUse",
            }
            result = [{"type": "text", "text": _said(random, random.randint(100, 500))}]
            yield {"role": "toolResult", "toolCallId": f"c{call}", "content": result, "isError": False}
        yield {**about, "content": [{"type": "text", "text": _said(random, 200)}], "stopReason": "stop"}


def _said(random: Random, words: int) -> str:
    """Return words; every sixth text has some that are not English."""
    vocabulary = _WORDS + _OTHERS if random.random() < 1 / 6 else _WORDS
    return " ".join(random.choices(vocabulary, k=words))


def walk_and_stat(sessions: str) -> int:
    """Make the system calls that a verified listing needs."""
    found = 0
    for folder in os.listdir(sessions):
        for name in os.listdir(f"{sessions}/{folder}"):
            os.lstat(f"{sessions}/{folder}/{name}")
            found += 1
    return found


def walk_and_read(sessions: str) -> int:
    """Make the system calls that a first listing needs: read head and tail of every file."""
    found = 0
    for folder in os.listdir(sessions):
        for name in os.listdir(f"{sessions}/{folder}"):
            path = f"{sessions}/{folder}/{name}"
            size = os.lstat(path).st_size
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.fstat(fd)
            os.pread(fd, 4096, 0)
            os.pread(fd, 4096, max(0, size - 4096))
            os.close(fd)
            found += 1
    return found


def list_newest(cache: str, sessions: str, shown: int = 50) -> None:
    """Do the work of `sessile ls`: catch up, and return the newest sessions."""
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([sessions])
        rows = catalog.list(Filter(limit=shown)).rows
        assert rows and rows[0].id is not None and not catalog.notices


def _cold(cache: str, sessions: str) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    return timed(partial(list_newest, cache, sessions))


def listing(scale: Scale) -> list[Row]:
    """S7: list thousands of sessions with an empty cache and with a verified catalog."""
    everything = _sessions(scale)
    counts = [everything, *(count for count in _FEWER if count < everything)]
    rows = {count: _listing_rows(scale, count, everything) for count in counts}
    first = rows.pop(everything)
    finding = _finding(str(scale.scratch() / f"warm-{everything}"), store(scale), scale)
    return [*first, finding, *(row for fewer in rows.values() for row in fewer)]


def _listing_rows(scale: Scale, count: int, everything: int) -> list[Row]:
    """Return the rows for a number of sessions; targets apply to the full number."""
    sessions = store(scale) if count == everything else _fewer(scale, count)
    cold, warm = str(scale.scratch() / "cold"), str(scale.scratch() / f"warm-{count}")
    list_newest(warm, sessions)
    works: dict[str, Work] = {
        "stat": lambda: timed(lambda: walk_and_stat(sessions)),
        "read": lambda: timed(lambda: walk_and_read(sessions)),
        "cold": lambda: _cold(cold, sessions),
        "warm": lambda: timed(lambda: list_newest(warm, sessions)),
    }
    times = interleaved(scale.heavy_rounds, **works)
    told = count == everything
    return [
        Row(
            "S7",
            f"list {count:,} sessions, {how}",
            median(times[name]),
            baseline=baseline,
            baseline_median=median(times[limit]),
            ratio=ratio(times[name], times[limit]),
            limit=most if told else None,
            rivals=against(
                scale,
                works[name],
                Challenge("pi", "list", [sessions], None, count),
                Challenge("oh-my-pi", "list", [sessions], least if told else None, count),
            ),
            curve="list",
            at=count,
        )
        for name, how, limit, baseline, most, least in (
            ("warm", "warm and verified", "stat", "walk+lstat", 3, 15),
            ("cold", "nothing cached", "read", "walk+lstat+head+tail", 2.5, 5),
        )
    ]


def _fewer(scale: Scale, count: int) -> str:
    """Return a folder with project folders that have the given number of sessions."""
    folder = scale.scratch() / f"fewer-{count}"
    if not folder.exists():
        for path in sorted(Path(store(scale)).rglob("*.jsonl"), key=lambda path: path.name)[:count]:
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(path, folder / path.parent.name / path.name)
    return str(folder)


def _finding(cache: str, sessions: str, scale: Scale) -> Row:
    """Measure finding a session by its id in an up-to-date catalog."""
    count = _sessions(scale)
    wanted = f"0199aaaa-0000-7000-8000-{count // 2:012d}"
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([sessions])
        by_id = Filter(id_prefix=wanted)
        assert [row.id for row in catalog.list(by_id).rows] == [wanted]
        found = median([timed(partial(catalog.list, by_id)) for _ in range(scale.rounds)])
    return Row("S7", f"find one of {count} sessions by its id, ms", found, ratio=found * 1000, limit=2)


def list_once(scale: Scale) -> None:
    """Do a first listing to measure its memory."""
    shutil.rmtree(scale.scratch() / "once", ignore_errors=True)
    list_newest(str(scale.scratch() / "once"), store(scale))
