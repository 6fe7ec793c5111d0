"""S4, S5, S6, S8: appending to one session, with and without syncs, from many threads and processes, to a large one."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import msgspec

from sessile import Session, Store
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal

from . import limits
from .corpus import CWD, Corpus, corpus, sample_lines, sample_messages
from .measure import Row, drop, interleaved, median, ratio, timed
from .scale import Scale

_SAMPLES = 400
_HEADER = b'{"type":"session","version":3,"id":"bench","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work/bench"}\n'
_LIVE = 200  # entries between compactions where a session is kept going


def new_journal(scale: Scale, name: str, *, power: bool = False) -> FileJournal:
    """A journal that holds its header only."""
    path = scale.scratch() / name
    path.write_bytes(_HEADER)
    return FileJournal(PosixFilesystem(), str(path), power=power)


def new_session(scale: Scale, name: str, *, power: bool = False) -> Session:
    """An empty session in a store of its own."""
    root = scale.scratch() / name
    shutil.rmtree(root, ignore_errors=True)
    return Store(root, durability="power" if power else "process").create(CWD, publish=True)


def append_lines(journal: FileJournal, lines: Sequence[bytes], count: int) -> None:
    """Append and commit encoded lines one by one."""
    total = len(lines)
    for number in range(count):
        line = [lines[number % total]]
        journal.commit(journal.append(line, lambda news, line=line: line).mark)  # type: ignore[misc]


def append_messages(session: Session, messages: Sequence[dict[str, Any]], count: int) -> None:
    """Append messages one by one."""
    total = len(messages)
    for number in range(count):
        session.append_message(messages[number % total])


def journal_time(scale: Scale, lines: Sequence[bytes], count: int, *, power: bool = False) -> float:
    """Seconds an append to a new journal takes."""
    journal = new_journal(scale, "journal", power=power)
    taken = timed(lambda: append_lines(journal, lines, count), count)
    journal.close()
    drop(journal.path)
    return taken


def bare_time(scale: Scale, lines: Sequence[bytes], count: int, *, sync: bool = False) -> float:
    """Seconds a bare write takes."""
    path = scale.scratch() / "bare"
    ended = [line + b"\n" for line in lines]
    taken = timed(limits.bare_appends(path, ended, count, sync=sync), count)
    drop(path)
    return taken


def session_time(scale: Scale, work: Callable[[Session], None], count: int, *, power: bool = False) -> float:
    """Seconds an entry of that work takes on a new session."""
    with new_session(scale, "session", power=power) as session:
        taken = timed(lambda: work(session), count)
    shutil.rmtree(scale.scratch() / "session")
    return taken


# -- S4


def appending(scale: Scale) -> list[Row]:
    """S4: append without a sync."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, _SAMPLES), sample_messages(small, _SAMPLES)
    count = scale.appends
    times = interleaved(
        scale.rounds,
        ours=lambda: journal_time(scale, lines, count),
        limit=lambda: bare_time(scale, lines, count),
        messages=lambda: session_time(scale, lambda session: append_messages(session, messages, count), count),
    )
    mean = sum(map(len, lines)) / len(lines) / 1000
    baseline: dict[str, Any] = {"baseline": "bare os.write", "baseline_median": median(times["limit"])}
    return [
        Row(
            "S4",
            f"append an encoded line (mean {mean:.1f} KB), process",
            median(times["ours"]),
            **baseline,
            ratio=ratio(times["ours"], times["limit"]),
            limit=3,
        ),
        Row(
            "S4",
            "… append_message, the same texts",
            median(times["messages"]),
            **baseline,
            ratio=ratio(times["messages"], times["limit"]),
        ),
        *_flat(scale),
    ]


def _flat(scale: Scale) -> list[Row]:
    """The cost of an append to a journal and a session of a million entries, against those of a thousand."""
    line, message = _small_line(), {"role": "user", "content": "a short question"}
    journals = [new_journal(scale, "few"), new_journal(scale, "many")]
    sessions = [new_session(scale, "few-entries"), new_session(scale, "many-entries")]
    for journal, session, size in zip(journals, sessions, (scale.few, scale.many), strict=True):
        append_lines(journal, [line], size)
        _fill(session, size)
        session.context()
    count = max(1, scale.appends // 4)
    times = interleaved(
        scale.rounds,
        few=lambda: timed(lambda: append_lines(journals[0], [line], count), count),
        many=lambda: timed(lambda: append_lines(journals[1], [line], count), count),
        session_few=lambda: timed(lambda: append_messages(sessions[0], [message], count), count),
        session_many=lambda: timed(lambda: append_messages(sessions[1], [message], count), count),
    )
    for journal in journals:
        journal.close()
        drop(journal.path)
    for session, name in zip(sessions, ("few-entries", "many-entries"), strict=True):
        session.close()
        shutil.rmtree(scale.scratch() / name)
    baseline = f"at {scale.few:,} entries"
    return [
        Row(
            "S4",
            f"… at {scale.many:,} entries, small lines",
            median(times["many"]),
            baseline=baseline,
            baseline_median=median(times["few"]),
            ratio=ratio(times["many"], times["few"]),
            limit=1.25,
        ),
        Row(
            "S4",
            f"… append_message at {scale.many:,} entries",
            median(times["session_many"]),
            baseline=baseline,
            baseline_median=median(times["session_few"]),
            ratio=ratio(times["session_many"], times["session_few"]),
            limit=1.25,
        ),
    ]


def _small_line() -> bytes:
    entry = {"type": "message", "id": "aaaaaaaa", "parentId": "bbbbbbbb", "timestamp": "2026-01-01T00:00:00.000Z"}
    return msgspec.json.encode(entry | {"message": {"role": "user", "content": "a short question"}})


def _fill(session: Session, size: int) -> None:
    """Append that many small entries in large batches, with a compaction now and then."""
    batch: list[dict[str, Any]] = [
        {"type": "message", "message": {"role": "user", "content": "a short question"}} for _ in range(_LIVE * 5 - 1)
    ]
    last = None
    for _ in range(0, size, len(batch) + 1):
        last = session.append_many(batch[: size - 1])[-1].id
        session.append_compaction("what was said", last, 1000)


def append_a_million(scale: Scale) -> None:
    """The work of S4, for its memory: one process that appends that many entries, some by themselves."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, _SAMPLES), sample_messages(small, _SAMPLES)
    journal = new_journal(scale, "memory")
    append_lines(journal, lines, scale.appends)
    append_lines(journal, [_small_line()], scale.many)
    journal.close()
    drop(journal.path)
    with new_session(scale, "memory-session") as session:
        append_messages(session, messages, scale.appends)
        _fill(session, scale.many)
    shutil.rmtree(scale.scratch() / "memory-session")


# -- S5


def syncing(scale: Scale) -> list[Row]:
    """S5: append with a sync, in bursts, from many threads."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, _SAMPLES), sample_messages(small, _SAMPLES)
    count = scale.syncs
    threads = 8
    times = interleaved(
        scale.rounds,
        ours=lambda: journal_time(scale, lines, count, power=True),
        limit=lambda: bare_time(scale, lines, count, sync=True),
        single=lambda: session_time(scale, lambda s: append_messages(s, messages, count), count, power=True),
        burst=lambda: session_time(scale, lambda s: _bursts(s, messages, count), count, power=True),
        threads=lambda: session_time(scale, lambda s: _threads(s, messages, count, threads), count, power=True),
    )
    single: dict[str, Any] = {"baseline": "append_message", "baseline_median": median(times["single"]), "sense": "≥"}
    return [
        Row(
            "S5",
            "append an encoded line, power",
            median(times["ours"]),
            baseline="bare write+fdatasync",
            baseline_median=median(times["limit"]),
            ratio=ratio(times["ours"], times["limit"]),
            limit=1.3,
        ),
        Row(
            "S5",
            "… append_message",
            median(times["single"]),
            baseline="bare write+fdatasync",
            baseline_median=median(times["limit"]),
            ratio=ratio(times["single"], times["limit"]),
        ),
        Row(
            "S5",
            "… append_many of 4, how much faster an entry",
            median(times["burst"]),
            **single,
            ratio=ratio(times["single"], times["burst"]),
            limit=2,
        ),
        Row(
            "S5",
            f"… {threads} committing threads, how much faster",
            median(times["threads"]),
            **single,
            ratio=ratio(times["single"], times["threads"]),
            limit=1.6,
        ),
    ]


def _bursts(session: Session, messages: Sequence[dict[str, Any]], count: int) -> None:
    entries = [{"type": "message", "message": messages[number % len(messages)]} for number in range(count)]
    for start in range(0, count, 4):
        session.append_many(entries[start : start + 4])


def _threads(session: Session, messages: Sequence[dict[str, Any]], count: int, threads: int) -> None:
    share = count // threads
    parts = [messages[number * share % len(messages) :] or messages for number in range(threads)]
    running = [threading.Thread(target=append_messages, args=(session, part, share)) for part in parts]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


# -- S6


def sharing(scale: Scale) -> list[Row]:
    """S6: many processes on one session."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, _SAMPLES), sample_messages(small, _SAMPLES)
    ended = [line + b"\n" for line in lines]
    count = scale.process_appends
    lost: list[int] = []

    def sessions() -> float:
        with new_session(scale, "shared") as session:
            path = session.path
        root = scale.scratch() / "shared"
        ids, taken = _in_processes(scale.processes, partial(_session_writer, str(root), path, messages, count))
        lost.append(_missing(path, ids, count * scale.processes))
        shutil.rmtree(root)
        return taken / (count * scale.processes)

    def journals() -> float:
        path = new_journal(scale, "shared.jsonl").path
        _, taken = _in_processes(scale.processes, partial(_journal_writer, path, lines, count))
        with open(path, "rb") as file:
            lost.append(count * scale.processes + 1 - file.read().count(b"\n"))
        drop(path)
        return taken / (count * scale.processes)

    def bare() -> float:
        path = str(scale.scratch() / "shared-bare")
        _, taken = _in_processes(scale.processes, partial(_bare_writer, path, ended, count))
        drop(path)
        return taken / (count * scale.processes)

    times = interleaved(scale.rounds, ours=sessions, journal=journals, limit=bare)
    baseline: dict[str, Any] = {
        "baseline": "bare flock+write",
        "baseline_median": median(times["limit"]),
        "sense": "≥",
    }
    return [
        Row(
            "S6",
            f"{scale.processes} processes, encoded lines, share of bare speed",
            median(times["journal"]),
            **baseline,
            ratio=ratio(times["limit"], times["journal"]),
            limit=0.5,
            lost=sum(lost),
        ),
        Row(
            "S6",
            "… append_message",
            median(times["ours"]),
            **baseline,
            ratio=ratio(times["limit"], times["ours"]),
        ),
    ]


Writer = Callable[[Barrier], tuple[list[str], float, float]]


def _in_processes(count: int, writer: Writer) -> tuple[list[str], float]:
    """Run the writer in that many processes at once: the ids that they wrote, and the seconds from first to last."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    pipes, children = [], []
    for _ in range(count):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_report, args=(writer, barrier, theirs))
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    reports = [pipe.recv() for pipe in pipes]
    for child in children:
        child.join()
    ids = [entry_id for report in reports for entry_id in report[0]]
    return ids, max(report[2] for report in reports) - min(report[1] for report in reports)


def _report(writer: Writer, barrier: Barrier, pipe: Connection[Any, Any]) -> None:
    pipe.send(writer(barrier))


def _session_writer(
    root: str, path: str, messages: Sequence[dict[str, Any]], count: int, barrier: Barrier
) -> tuple[list[str], float, float]:
    with Store(root, durability="process").open(path) as session:
        barrier.wait()
        start = time.perf_counter()
        ids = [session.append_message(messages[number % len(messages)]).id for number in range(count)]
        return ids, start, time.perf_counter()


def _journal_writer(path: str, lines: Sequence[bytes], count: int, barrier: Barrier) -> tuple[list[str], float, float]:
    journal = FileJournal(PosixFilesystem(), path, power=False)
    barrier.wait()
    start = time.perf_counter()
    append_lines(journal, lines, count)
    end = time.perf_counter()
    journal.close()
    return [], start, end


def _bare_writer(path: str, lines: Sequence[bytes], count: int, barrier: Barrier) -> tuple[list[str], float, float]:
    barrier.wait()
    start = time.perf_counter()
    limits.locked_appends(path, lines, count)
    return [], start, time.perf_counter()


def _missing(path: str, ids: list[str], expected: int) -> int:
    """How many acknowledged entries are not in the file."""
    with open(path, "rb") as file:
        found = {msgspec.json.decode(line).get("id") for line in file}
    return expected - len(found.intersection(ids))


# -- S8


def going_on(scale: Scale) -> list[Row]:
    """S8: append and context in a large session that is open."""
    large, small = (corpus(scale, size) for size in (scale.large_mb, scale.small_mb))
    lines, messages = sample_lines(small, _SAMPLES), sample_messages(small, _SAMPLES)
    count = min(_LIVE, scale.appends)
    with _Borrowed(scale, large) as on_large, _Borrowed(scale, small) as on_small:
        times = interleaved(
            scale.rounds,
            ours=lambda: _going_on_time(on_large, messages, count),
            small=lambda: _going_on_time(on_small, messages, count),
            bare=lambda: bare_time(scale, lines, count),
        )
    took = median(times["ours"])
    return [
        Row(
            "S8",
            f"append_message + context, {scale.large_mb:g} MB open",
            took,
            baseline="the target itself",
            baseline_median=40e-6,
            ratio=took / 40e-6,
            limit=1,
        ),
        Row(
            "S8",
            "… against a small session",
            took,
            baseline=f"{scale.small_mb:g} MB open",
            baseline_median=median(times["small"]),
            ratio=ratio(times["ours"], times["small"]),
            limit=1.25,
        ),
        Row(
            "S8",
            "… in bare writes (40 µs were 8.7 of them)",
            took,
            baseline="bare os.write",
            baseline_median=median(times["bare"]),
            ratio=ratio(times["ours"], times["bare"]),
        ),
    ]


def _going_on_time(session: Session, messages: Sequence[dict[str, Any]], count: int) -> float:
    session.append_compaction("what was said", session.leaf_id, 1000)
    session.context()

    def run() -> None:
        for number in range(count):
            session.append_message(messages[number % len(messages)])
            session.context()

    return timed(run, count)


class _Borrowed:
    """A corpus session, open for appending; afterwards file and index are as they were."""

    def __init__(self, scale: Scale, made: Corpus) -> None:
        self._made = made
        self._cache = Path(scale.scratch(), f"cache-{os.path.basename(made.root)}")

    def __enter__(self) -> Session:
        shutil.rmtree(self._cache, ignore_errors=True)
        if os.path.isdir(self._made.cache):
            shutil.copytree(self._made.cache, self._cache)
        self._session = Store(self._made.root, cache=self._cache, durability="process").open(self._made.path)
        return self._session

    def __exit__(self, *exception: object) -> None:
        self._session.close()
        os.truncate(self._made.path, self._made.size)
        shutil.rmtree(self._cache, ignore_errors=True)
