"""S9: building the index, first hits, catching up one session, and scans of large or many sessions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

import msgspec

from sessile.agents.registry import AGENTS
from sessile.core.words import INDEXED, passages
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.search import Needle, scan_file

from .corpus import Corpus, corpus
from .listing import store, walk_and_stat
from .measure import Row, Work, interleaved, median, ratio, timed
from .peers import Challenge, against
from .scale import Scale


def _indexed_bytes(sessions: str) -> int:
    size = 0
    for path in Path(sessions).rglob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            said = passages(msgspec.json.decode(line))
            size += sum(len(said[field].encode()) for field in INDEXED if field in said)
    return size


def index_all(scale: Scale, cache: str) -> None:
    """Index every session."""
    shutil.rmtree(cache, ignore_errors=True)
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        assert not catalog.catch_up([store(scale)], depth="index").unindexed


def searching(scale: Scale) -> list[Row]:
    """S9: build the index, find first hits, catch up one session, and scan a large one."""
    sessions = store(scale)
    cache = str(scale.scratch() / "search")
    megabytes = _indexed_bytes(sessions) / 1e6
    start = time.perf_counter()
    index_all(scale, cache)
    speed = megabytes / (time.perf_counter() - start)
    rows = [Row("S9", f"index {megabytes:.0f} MB of text", speed, unit="MB/s", ratio=speed, sense="≥", limit=12)]
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([sessions], depth="index")
        for name, query in (("a rare word", "rare7"), ("two common words", "session retry"), ("Chinese", "会话")):
            assert catalog.search(query).hits
            first = [timed(partial(catalog.search, query, count=False)) for _ in range(scale.rounds)]
            rows.append(Row("S9", f"first hits for {name}, ms", median(first), ratio=median(first) * 1000, limit=20))
            rows.append(
                Row("S9", "… with counts by field", median([timed(partial(catalog.search, query)) for _ in first]))
            )
        rows.append(_one_changed(catalog, sessions, scale))
    return [*rows, *_scanning(corpus(scale, scale.middle_mb), scale), *_scanning_all(sessions, scale)]


def _one_changed(catalog: Catalog, sessions: str, scale: Scale) -> Row:
    path = next(Path(sessions).rglob("*.jsonl"))
    before = path.read_bytes()
    news = {"type": "message", "id": "news", "parentId": None, "message": {"role": "user", "content": "news"}}

    def catch_up() -> float:
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(news) + b"\n")
        return timed(lambda: catalog.catch_up([sessions], depth="index"))

    times = interleaved(scale.heavy_rounds, stat=lambda: timed(lambda: walk_and_stat(sessions)), one=catch_up)
    path.write_bytes(before)
    extra = median([one - stat for one, stat in zip(times["one"], times["stat"], strict=True)])
    return Row("S9", "catch up one changed session, ms", extra, ratio=extra * 1000, limit=30)


def _scanning(made: Corpus, scale: Scale) -> list[Row]:
    """Scan a large session for a missing text, against ripgrep and a minimal Python loop."""
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
        for number, baseline in enumerate(list(works)[1:]):
            rows.append(
                Row(
                    "S9",
                    f"… against {baseline}" if number else f"scan {made.size / 1e6:.0f} MB for {name}",
                    median(times["scan"]),
                    baseline=baseline,
                    baseline_median=median(times[baseline]),
                    ratio=ratio(times["scan"], times[baseline]),
                    limit=3 if name == "a substring" and baseline == list(works)[-1] else None,
                )
            )
    return rows


def _scanning_all(sessions: str, scale: Scale) -> list[Row]:
    """Scan all sessions for a word in one of them, against ripgrep and a loop that reads all files."""
    fs, needle, word = PosixFilesystem(), Needle("rare7 ", case=True), "rare7 "
    paths = sorted(map(str, Path(sessions).rglob("*.jsonl")))

    def scan() -> None:
        assert sum(any(scan_file(fs, path, needle, AGENTS)) for path in paths) == 1

    works: dict[str, Work] = {"scan": partial(timed, scan)}
    ripgrep = shutil.which("rg")
    if ripgrep:
        command = [ripgrep, "-j1", "--no-config", "-l", "-F", word, sessions]
        works["limit"] = partial(timed, partial(subprocess.run, command, capture_output=True))
    times = interleaved(scale.heavy_rounds, **works)
    row = Row("S9", f"scan {len(paths):,} sessions for a word", median(times["scan"]))
    if ripgrep:
        row.baseline, row.baseline_median = "ripgrep -j1", median(times["limit"])
        row.ratio = ratio(times["scan"], times["limit"])
    row.rivals = against(scale, works["scan"], Challenge("pi", "search", [sessions, word], 6, 1))
    return [row]


def _scan(fs: PosixFilesystem, path: str, needle: Needle) -> None:
    assert not any(scan_file(fs, path, needle, AGENTS))


def _read_and_search(path: str) -> None:
    finder = re.compile(b"nowhere to be found")
    fd = os.open(path, os.O_RDONLY)
    at = 0
    while chunk := os.pread(fd, 1 << 20, at):
        finder.search(chunk)
        at += len(chunk)
    os.close(fd)


def search_once(scale: Scale) -> None:
    """Build the index, search and scan to measure the memory."""
    cache = str(scale.scratch() / "once")
    index_all(scale, cache)
    made = corpus(scale, scale.middle_mb)
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([os.path.dirname(made.path), store(scale)], depth="index")
        assert catalog.search("session retry").hits
    assert any(scan_file(PosixFilesystem(), made.path, Needle("session"), AGENTS))
