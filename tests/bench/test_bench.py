"""The benchmark runs, and its main results hold as counts that do not depend on the machine's load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.corpus import Corpus, corpus, sample_lines
from bench.measure import Row, interleaved, ratio
from bench.run import prepare, save, subject_rows
from bench.scale import Scale, smoke
from bench.tables import table
from bench.worker import SUBJECTS
from faults.failing import FaultyFilesystem
from sessile import Session, Store
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal

MESSAGE = {"role": "user", "content": "a question " * 50}
APPEND = ["lock", "lstat", "write", "fstat", "unlock"]


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Scale:
    scale = smoke(str(tmp_path_factory.mktemp("bench")))
    prepare(scale)
    return scale


class Counting(FaultyFilesystem):
    """Counts the bytes that are read from each file."""

    def __init__(self) -> None:
        super().__init__(PosixFilesystem())
        self.names_of: dict[int, str] = {}
        self.bytes_of: dict[str, int] = {}

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self.names_of[fd] = path
        return fd

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        path = self.names_of[fd]
        self.bytes_of[path] = self.bytes_of.get(path, 0) + len(data)
        return data


def calls_of(fs: FaultyFilesystem, work: Callable[[], Any]) -> list[str]:
    before = len(fs.calls)
    work()
    return [call.method for call in fs.calls[before:]]


# -- the benchmark


IN_SHORT = ("S1", "S4", "S7")
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in SUBJECTS if name not in (*IN_SHORT, "S14")]


@pytest.mark.parametrize("name", [*IN_SHORT, *OTHERS])
def test_every_subject_runs(scale: Scale, name: str) -> None:
    rows = subject_rows(scale, name)
    assert rows and all(row.id == name for row in rows)
    assert all(row.median or row.skipped for row in rows)
    assert not any(row.lost for row in rows)
    assert (rows[0].memory_mb is None) == (SUBJECTS[name].once is None)


def test_the_corpus_is_the_same_every_time_and_made_once(scale: Scale, tmp_path: Path) -> None:
    first = corpus(scale, scale.small_mb)
    again = corpus(smoke(str(tmp_path)), scale.small_mb)
    assert Path(first.path).read_bytes() == Path(again.path).read_bytes()
    made = os.stat(first.path).st_mtime_ns
    with open(first.path, "ab") as file:
        file.write(b"left by an interrupted run")
    assert corpus(scale, scale.small_mb).size == os.stat(first.path).st_size
    assert os.stat(first.path).st_mtime_ns >= made


def test_the_corpus_is_what_the_bench_says(scale: Scale) -> None:
    made = corpus(scale, 20)
    lines = Path(made.path).read_bytes().splitlines()
    assert made.size == pytest.approx(20e6, rel=0.05)
    assert made.size / len(lines) == pytest.approx(8000, rel=0.2)
    assert sum(not line.isascii() for line in lines) / len(lines) == pytest.approx(0.2, abs=0.07)
    for entry_type in (b"compaction", b"label", b"ttsr_injection", b"mode_change", b"branch_summary", b"custom"):
        assert any(line.startswith(b'{"type":"' + entry_type) for line in lines), entry_type
    with Store(made.root).open(made.path, readonly=True) as session:
        assert not session.findings
        live = [source for source in session.context().sources if source]
    assert live == [line.decode().split('"id":"', 1)[1][:8] for line in in_context(made)]


def in_context(made: Corpus) -> Iterator[bytes]:
    """Return the live lines that become messages, the compaction first."""
    with open(made.path, "rb") as file:
        lines = [os.pread(file.fileno(), length, offset) for offset, length in made.live]
    spoken = (b'{"type":"message"', b'{"type":"custom_message"', b'{"type":"compaction"')
    chosen = [line for line in lines if line.startswith(spoken)]
    return iter(sorted(chosen, key=lambda line: not line.startswith(spoken[2])))


def test_verdicts(tmp_path: Path, scale: Scale) -> None:
    rows = [
        Row("S1", "kept", 1e-3, ratio=1.9, limit=2),
        Row("S2", "missed", 2.0, ratio=2.1, limit=2),
        Row("S3", "too large", 1e-6, memory_mb=50, memory_limit_mb=48),
        Row("S5", "fast enough", 1.0, ratio=1.7, sense="≥", limit=1.6),
        Row("S6", "lost one", 1.0, ratio=0.9, sense="≥", limit=0.5, lost=1),
        Row("S7", "only told", 1.0),
    ]
    assert [row.verdict for row in rows] == ["ok", "MISSED", "MISSED", "ok", "MISSED", ""]
    assert [line.split()[0] for line in table(rows).splitlines()[2 : 2 + len(rows)]] == [row.id for row in rows]
    save(scale, rows, tmp_path / "sub" / "out.json")
    assert str(tmp_path) not in (tmp_path / "sub" / "out.json").read_text()


def test_rounds_are_interleaved_and_ratios_are_of_one_round() -> None:
    order: list[str] = []

    def work(name: str, times: list[float]) -> float:
        order.append(name)
        return times.pop(0)

    ours, limit = [2.0, 20.0, 200.0], [1.0, 10.0, 100.0]
    times = interleaved(3, a=lambda: work("a", ours), b=lambda: work("b", limit))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert ratio(times["a"], times["b"]) == 2


# -- guards


@pytest.fixture
def counting() -> Counting:
    return Counting()


def process_session(counting: Counting, tmp_path: Path, durability: Any = "process") -> Session:
    session = Store(tmp_path.resolve() / "root", fs=counting, durability=durability).create("/work", publish=True)
    session.append_message(MESSAGE)
    return session


def test_an_append_is_one_write_and_reads_nothing(counting: Counting, tmp_path: Path) -> None:
    with process_session(counting, tmp_path) as session:
        assert calls_of(counting, lambda: session.append_message(MESSAGE)) == APPEND
        session.context()
        assert calls_of(counting, lambda: session.append_message(MESSAGE)) == APPEND
        assert calls_of(counting, session.context) == []


def test_a_durable_append_is_one_sync_more_also_for_many_entries(counting: Counting, tmp_path: Path) -> None:
    with process_session(counting, tmp_path, "power") as session:
        assert calls_of(counting, lambda: session.append_message(MESSAGE)) == [*APPEND, "sync"]
        entries = [{"type": "message", "message": MESSAGE}] * 4
        assert calls_of(counting, lambda: session.append_many(entries)) == [*APPEND, "sync"]


def test_an_append_costs_the_same_calls_at_any_size(counting: Counting, tmp_path: Path, scale: Scale) -> None:
    line = sample_lines(corpus(scale, scale.small_mb), 1)
    path = tmp_path.resolve() / "session.jsonl"
    path.write_bytes(b'{"type":"session","version":3,"id":"x","timestamp":"","cwd":"/"}\n')
    journal = FileJournal(counting, str(path), power=False)
    journal.append(line, lambda news: line)
    calls = [calls_of(counting, lambda: journal.append(line, lambda news: line)) for _ in range(2000)]
    assert all(made == APPEND for made in calls)
    journal.close()


_GROWTH = """
import sys, tracemalloc
from sessile import Store
message = {"role": "user", "content": "x" * 100}
with Store(sys.argv[1], durability="process").create("/work", publish=True) as session:
    for _ in range(100):
        session.append_message(message)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(2000):
        session.append_message(message)
    print(tracemalloc.get_traced_memory()[0] - before)
"""


def test_appends_leave_nothing_in_memory(tmp_path: Path) -> None:
    """A separate process is used, because threads of other tests need memory too."""
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, tmp_path.resolve()], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 16 * 1024


def resumed(made: Corpus) -> tuple[int, int]:
    """Return the bytes that a warm resume reads from the journal beyond its live part, and from the index."""
    Store(made.root).open(made.path, readonly=True).close()
    counting = Counting()
    with Store(made.root, fs=counting).open(made.path, readonly=True) as session:
        assert session.context().messages
        assert session.title is None
    read = counting.bytes_of
    assert not {call.method for call in counting.calls} & {"write", "mkdir", "rename"}
    index = sum(count for path, count in read.items() if path.startswith(made.cache))
    return read[made.path] - made.live_bytes, index


@pytest.mark.mission("B2")
def test_a_resume_with_a_warm_index_reads_the_live_part_only(scale: Scale) -> None:
    small, large = (resumed(corpus(scale, size)) for size in (scale.small_mb, 20))
    assert large[0] <= small[0] + 64 * 1024
    assert large[0] <= 1_200_000  # the header is searched in a block of a megabyte
    assert large[1] <= small[1] + 256 * 1024
