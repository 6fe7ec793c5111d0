"""S7 and S9: listing thousands of sessions cold and warm, filling the index, first hits, scanning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from sessile.core.passages import INDEXED, passages
from sessile.storage.catalog import Catalog
from sessile.storage.catalog_rows import Filter
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.scan import Needle, scan_file

from .corpus import Corpus, corpus
from .measure import Row, Work, interleaved, median, ratio, timed
from .scale import SEED, Scale

_VERSION = 2  # of the generator
_PROJECTS = 40
_FULL = 5000  # sessions; a smoke run makes a few
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
    """A folder of small sessions in project folders, made if it is not there yet."""
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
    """A folder with so many of them, or as many as there are."""
    folder = scale.scratch() / f"sessions-{count}"
    if not folder.exists():
        folder.mkdir()
        for path in sorted(Path(store(scale)).rglob("*.jsonl"))[:count]:
            os.link(path, folder / path.name)
    return str(folder)


def _session(random: Random, number: int) -> Iterator[dict[str, Any]]:
    """A question or two, tool calls with results, answers: 8 to 30 KB."""
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
    """Words; in every sixth text some are not English."""
    vocabulary = _WORDS + _OTHERS if random.random() < 1 / 6 else _WORDS
    return " ".join(random.choices(vocabulary, k=words))


def _walk_and_stat(sessions: str) -> int:
    """The system calls that a verified listing needs."""
    found = 0
    for folder in os.listdir(sessions):
        for name in os.listdir(f"{sessions}/{folder}"):
            os.lstat(f"{sessions}/{folder}/{name}")
            found += 1
    return found


def _walk_and_read(sessions: str) -> int:
    """The system calls that a first listing needs: head and tail of every file."""
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


def list_newest(cache: str, sessions: str) -> None:
    """What `sessile ls` does: catch up, and show the newest fifty."""
    with Catalog(PosixFilesystem(), cache) as catalog:
        catalog.catch_up([sessions])
        rows = catalog.list(Filter(limit=50)).rows
        assert rows and rows[0].id is not None and not catalog.notices


def _cold(cache: str, sessions: str) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    return timed(partial(list_newest, cache, sessions))


def listing(scale: Scale) -> list[Row]:
    """S7: thousands of sessions, with nothing in the cache and with a catalog that is verified."""
    sessions = store(scale)
    cold, warm = str(scale.scratch() / "cold"), str(scale.scratch() / "warm")
    list_newest(warm, sessions)
    times = interleaved(
        scale.heavy_rounds,
        stat=lambda: timed(lambda: _walk_and_stat(sessions)),
        read=lambda: timed(lambda: _walk_and_read(sessions)),
        cold=lambda: _cold(cold, sessions),
        warm=lambda: timed(lambda: list_newest(warm, sessions)),
    )
    count = _sessions(scale)
    return [
        Row(
            "S7",
            f"list {count} sessions, warm and verified",
            median(times["warm"]),
            baseline="walk+lstat",
            baseline_median=median(times["stat"]),
            ratio=ratio(times["warm"], times["stat"]),
            limit=3,
        ),
        Row(
            "S7",
            f"list {count} sessions, nothing cached",
            median(times["cold"]),
            baseline="walk+lstat+head+tail",
            baseline_median=median(times["read"]),
            ratio=ratio(times["cold"], times["read"]),
            limit=2.5,
        ),
        _finding(warm, sessions, scale),
    ]


def _finding(cache: str, sessions: str, scale: Scale) -> Row:
    """Open the session that somebody names, once the catalog has caught up."""
    count = _sessions(scale)
    wanted = f"0199aaaa-0000-7000-8000-{count // 2:012d}"
    with Catalog(PosixFilesystem(), cache) as catalog:
        catalog.catch_up([sessions])
        by_id = Filter(id_prefix=wanted)
        assert [row.id for row in catalog.list(by_id).rows] == [wanted]
        found = median([timed(partial(catalog.list, by_id)) for _ in range(scale.rounds)])
    return Row("S7", f"find one of {count} sessions by its id, ms", found, ratio=found * 1000, limit=2)


def list_once(scale: Scale) -> None:
    """The memory of a first listing."""
    shutil.rmtree(scale.scratch() / "once", ignore_errors=True)
    list_newest(str(scale.scratch() / "once"), store(scale))


def _indexed_bytes(sessions: str) -> int:
    size = 0
    for path in Path(sessions).rglob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            said = passages(msgspec.json.decode(line))
            size += sum(len(said[field].encode()) for field in INDEXED if field in said)
    return size


def index_all(scale: Scale, cache: str) -> None:
    """Fill the index with every session."""
    shutil.rmtree(cache, ignore_errors=True)
    with Catalog(PosixFilesystem(), cache) as catalog:
        assert not catalog.catch_up([store(scale)], depth="index").unindexed


def searching(scale: Scale) -> list[Row]:
    """S9: filling the index, first hits in it, catching up one session, scanning a large one."""
    sessions = store(scale)
    cache = str(scale.scratch() / "search")
    megabytes = _indexed_bytes(sessions) / 1e6
    start = time.perf_counter()
    index_all(scale, cache)
    speed = megabytes / (time.perf_counter() - start)
    rows = [Row("S9", f"index {megabytes:.0f} MB of text", speed, unit="MB/s", ratio=speed, sense="≥", limit=12)]
    with Catalog(PosixFilesystem(), cache) as catalog:
        catalog.catch_up([sessions], depth="index")
        for name, query in (("a rare word", "rare7"), ("two common words", "session retry"), ("Chinese", "会话")):
            assert catalog.search(query).hits
            first = [timed(partial(catalog.search, query, count=False)) for _ in range(scale.rounds)]
            rows.append(Row("S9", f"first hits for {name}, ms", median(first), ratio=median(first) * 1000, limit=20))
            rows.append(
                Row("S9", "… with counts by field", median([timed(partial(catalog.search, query)) for _ in first]))
            )
        rows.append(_one_changed(catalog, sessions, scale))
    return rows + _scanning(corpus(scale, scale.middle_mb), scale)


def _one_changed(catalog: Catalog, sessions: str, scale: Scale) -> Row:
    path = next(Path(sessions).rglob("*.jsonl"))
    before = path.read_bytes()
    news = {"type": "message", "id": "news", "parentId": None, "message": {"role": "user", "content": "news"}}

    def catch_up() -> float:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(news) + b"\n")
        return timed(lambda: catalog.catch_up([sessions], depth="index"))

    times = interleaved(scale.heavy_rounds, stat=lambda: timed(lambda: _walk_and_stat(sessions)), one=catch_up)
    path.write_bytes(before)
    extra = median([one - stat for one, stat in zip(times["one"], times["stat"], strict=True)])
    return Row("S9", "catch up one changed session, beyond walk+lstat", extra, ratio=extra * 1000, limit=30)


def _scanning(made: Corpus, scale: Scale) -> list[Row]:
    """Reading a large session for something that is not in it, against ripgrep and against the least that Python can do."""
    fs = PosixFilesystem()
    needles = {
        "a substring": (Needle("nowhere to be found", case=True), ["-F", "nowhere to be found"]),
        "a substring in any case": (Needle("nowhere to be found"), ["-F", "-i", "nowhere to be found"]),
        "a regular expression": (Needle(r"nowhere \d+", regex=True), [r"nowhere \d+"]),
    }
    ripgrep = shutil.which("rg")
    rows = [] if ripgrep else [Row("S9", "scan, against ripgrep", skipped="ripgrep is not installed")]
    for name, (needle, asked) in needles.items():
        works: dict[str, Work] = {
            "scan": partial(timed, partial(_scan, fs, made.path, needle)),
            "pread+re.search": partial(timed, partial(_read_and_search, made.path)),
        }
        if ripgrep:
            command = [ripgrep, "-j1", "--no-config", "-c", *asked, made.path]
            works["ripgrep -j1"] = partial(timed, partial(subprocess.run, command, capture_output=True))
        times = interleaved(scale.heavy_rounds, **works)
        for baseline in list(works)[1:]:
            rows.append(
                Row(
                    "S9",
                    f"scan {made.size / 1e6:.0f} MB for {name}",
                    median(times["scan"]),
                    baseline=baseline,
                    baseline_median=median(times[baseline]),
                    ratio=ratio(times["scan"], times[baseline]),
                    limit=3 if name == "a substring" and baseline == list(works)[-1] else None,
                )
            )
    return rows


def _scan(fs: PosixFilesystem, path: str, needle: Needle) -> None:
    assert not any(scan_file(fs, path, needle))


def _read_and_search(path: str) -> None:
    finder = re.compile(b"nowhere to be found")
    fd = os.open(path, os.O_RDONLY)
    at = 0
    while chunk := os.pread(fd, 1 << 20, at):
        finder.search(chunk)
        at += len(chunk)
    os.close(fd)


def search_once(scale: Scale) -> None:
    """The memory of filling the index, a search and a scan."""
    cache = str(scale.scratch() / "once")
    index_all(scale, cache)
    made = corpus(scale, scale.middle_mb)
    with Catalog(PosixFilesystem(), cache) as catalog:
        catalog.catch_up([os.path.dirname(made.path), store(scale)], depth="index")
        assert catalog.search("session retry").hits
    assert any(scan_file(PosixFilesystem(), made.path, Needle("session")))
