"""S5, S6: appending with syncs, in bursts, from many threads and many processes."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import msgspec

from sessile import Session, Store
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal

from . import limits
from .appending import (
    SAMPLES,
    append_lines,
    append_messages,
    bare_time,
    journal_time,
    new_journal,
    new_session,
    peer_folder,
    session_time,
)
from .corpus import corpus, sample_lines, sample_messages
from .measure import Rival, Row, drop, interleaved, median, ratio
from .peers import Challenge, against
from .scale import Scale

# -- S5


def syncing(scale: Scale) -> list[Row]:
    """S5: append with a sync, in bursts, from many threads."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, SAMPLES), sample_messages(small, SAMPLES)
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
            rivals=_durable_rivals(scale, messages),
        ),
        Row(
            "S5",
            "… append_many of 4, times faster an entry",
            median(times["burst"]),
            **single,
            ratio=ratio(times["single"], times["burst"]),
            limit=2,
        ),
        Row(
            "S5",
            f"… {threads} committing threads, times faster",
            median(times["threads"]),
            **single,
            ratio=ratio(times["single"], times["threads"]),
            limit=1.6,
        ),
    ]


def _durable_rivals(scale: Scale, messages: Sequence[dict[str, Any]]) -> dict[str, Rival]:
    """Return the time of OpenAI's SQLiteSession, which is durable after each item."""
    count = scale.syncs
    with peer_folder(scale, messages) as (folder, texts):
        return against(
            scale,
            lambda: session_time(scale, lambda s: append_messages(s, messages, count), count, power=True),
            Challenge("openai", "append", [folder, texts, str(count), "0"], 1.4),
        )


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
    lines, messages = sample_lines(small, SAMPLES), sample_messages(small, SAMPLES)
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
            f"{scale.processes} processes, lines, share of bare speed",
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
    """Run the writer in that many processes; return the written ids and the total seconds."""
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
    """Return how many acknowledged entries are missing in the file."""
    with open(path, "rb") as file:
        found = {msgspec.json.decode(line).get("id") for line in file}
    return expected - len(found.intersection(ids))
