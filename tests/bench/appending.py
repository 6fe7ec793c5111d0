"""S4: appending to one session without syncs, and the append functions that other subjects use."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sessile import Session, Store
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal

from . import limits
from .corpus import CWD, corpus, sample_lines, sample_messages
from .measure import Rival, Row, Work, drop, interleaved, median, ratio, timed
from .peers import Challenge, against
from .scale import Scale

SAMPLES = 400
_HEADER = b'{"type":"session","version":3,"id":"bench","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work/bench"}\n'
LIVE = 200  # entries between compactions in a session that keeps growing
_BETWEEN = (10_000, 100_000)  # entries; sizes between few and many for the growth curve
_MOST_FOR_PEERS = 100_000  # peers fill their sessions one entry at a time


def new_journal(scale: Scale, name: str, *, power: bool = False) -> FileJournal:
    """Return a journal with only a header."""
    path = scale.scratch() / name
    path.write_bytes(_HEADER)
    return FileJournal(PosixFilesystem(), str(path), power=power)


def new_session(scale: Scale, name: str, *, power: bool = False) -> Session:
    """Return an empty session in its own store."""
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
    """Return the seconds per append to a new journal."""
    journal = new_journal(scale, "journal", power=power)
    taken = timed(lambda: append_lines(journal, lines, count), count)
    journal.close()
    drop(journal.path)
    return taken


def bare_time(scale: Scale, lines: Sequence[bytes], count: int, *, sync: bool = False) -> float:
    """Return the seconds per bare write."""
    path = scale.scratch() / "bare"
    ended = [line + b"\n" for line in lines]
    taken = timed(limits.bare_appends(path, ended, count, sync=sync), count)
    drop(path)
    return taken


def session_time(scale: Scale, work: Callable[[Session], None], count: int, *, power: bool = False) -> float:
    """Return the seconds per entry on a new session."""
    with new_session(scale, "session", power=power) as session:
        taken = timed(lambda: work(session), count)
    shutil.rmtree(scale.scratch() / "session")
    return taken


def _message_time(scale: Scale, messages: Sequence[dict[str, Any]], count: int) -> float:
    return session_time(scale, lambda session: append_messages(session, messages, count), count)


# -- S4


def appending(scale: Scale) -> list[Row]:
    """S4: append without a sync."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, SAMPLES), sample_messages(small, SAMPLES)
    count = scale.appends
    line_work = partial(journal_time, scale, lines, count)
    message_work = partial(_message_time, scale, messages, count)
    times = interleaved(
        scale.rounds,
        ours=line_work,
        limit=lambda: bare_time(scale, lines, count),
        messages=message_work,
        sqlite=lambda: _sqlite_time(scale, lines, count),
    )
    mean = sum(map(len, lines)) / len(lines) / 1000
    baseline: dict[str, Any] = {"baseline": "bare os.write", "baseline_median": median(times["limit"])}
    return [
        Row(
            "S4",
            f"append an encoded line of {mean:.1f} KB, process",
            median(times["ours"]),
            **baseline,
            ratio=ratio(times["ours"], times["limit"]),
            limit=3,
            rivals=_append_rivals(scale, messages, 0, line_work, pi=2, oh_my_pi=6),
        ),
        Row(
            "S4",
            "… times faster than SQLite (WAL, no sync)",
            median(times["ours"]),
            baseline="SQLite insert",
            baseline_median=median(times["sqlite"]),
            ratio=ratio(times["sqlite"], times["ours"]),
            sense="≥",
            limit=3,
        ),
        Row(
            "S4",
            "… append_message, the same texts",
            median(times["messages"]),
            **baseline,
            ratio=ratio(times["messages"], times["limit"]),
            rivals=_append_rivals(scale, messages, 0, message_work),
        ),
        *_flat(scale),
    ]


def _append_rivals(
    scale: Scale,
    messages: Sequence[dict[str, Any]],
    before: int,
    ours: Work,
    *,
    pi: float | None = None,
    oh_my_pi: float | None = None,
) -> dict[str, Rival]:
    """Return the times of peers that append the same messages after the given number, without a sync."""
    found: dict[str, Rival] = {}
    for peer, least in (("pi", pi), ("oh-my-pi", oh_my_pi)):
        with peer_folder(scale, messages) as (folder, texts):
            asked = [folder, texts, str(scale.appends), str(before)]
            found |= against(scale, ours, Challenge(peer, "append", asked, least))
    return found


@contextmanager
def peer_folder(scale: Scale, messages: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield an empty folder and a file with one message per line."""
    with tempfile.TemporaryDirectory(dir=scale.scratch()) as folder:
        texts = Path(folder, "messages")
        texts.write_bytes(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))
        target = Path(folder, "target")
        target.mkdir()
        yield str(target), str(texts)


def _sqlite_time(scale: Scale, lines: Sequence[bytes], count: int) -> float:
    """Return the seconds per insert and commit, without a sync."""
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


def _flat(scale: Scale) -> list[Row]:
    """Compare appends to journals and sessions of up to a million entries with those of a thousand."""
    line, message = _small_line(), {"role": "user", "content": "a short question", "timestamp": 0}
    sizes = [scale.few, *(size for size in _BETWEEN if scale.few < size < scale.many), scale.many]
    journals = {size: new_journal(scale, f"journal-{size}") for size in sizes}
    sessions = {size: new_session(scale, f"session-{size}") for size in sizes}
    for size in sizes:
        append_lines(journals[size], [line], size)
        _fill(sessions[size], size)
        sessions[size].context()
    count = max(1, scale.appends // 4)
    works: dict[str, Work] = {"bare": lambda: bare_time(scale, [line], count)}
    for size in sizes:
        works[f"line {size}"] = partial(_more, append_lines, journals[size], [line], count)
        works[f"message {size}"] = partial(_more, append_messages, sessions[size], [message], count)
    times = interleaved(scale.rounds, **works)
    for size in sizes:
        journals[size].close()
        drop(journals[size].path)
        sessions[size].close()
        shutil.rmtree(scale.scratch() / f"session-{size}")
    return [
        _flat_row(scale, "a short line", times, "line"),
        _flat_row(scale, "append_message", times, "message"),
        *(_message_row(scale, size, times, message) for size in sizes),
    ]


def _flat_row(scale: Scale, what: str, times: dict[str, list[float]], name: str) -> Row:
    """Compare an append after many entries with one after few."""
    few, many = times[f"{name} {scale.few}"], times[f"{name} {scale.many}"]
    return Row(
        "S4",
        f"… {what}, {scale.many:,} against {scale.few:,}",
        median(many),
        baseline=f"at {scale.few:,} entries",
        baseline_median=median(few),
        ratio=ratio(many, few),
        limit=1.25,
    )


def _more(append: Callable[..., None], target: object, what: Sequence[object], count: int) -> float:
    return timed(lambda: append(target, what, count), count)


def _message_row(scale: Scale, size: int, times: dict[str, list[float]], message: dict[str, Any]) -> Row:
    """Return the row of a short message at a size; for peers, ours is timed on a new session, which is as fast."""
    here = times[f"message {size}"]
    ours = partial(_message_time, scale, [message], scale.appends)
    return Row(
        "S4",
        f"… a short message at {size:,} entries",
        median(here),
        baseline="bare os.write of a short line",
        baseline_median=median(times["bare"]),
        ratio=ratio(here, times["bare"]),
        rivals=_append_rivals(scale, [message], size, ours) if size <= _MOST_FOR_PEERS else {},
        curve="append",
        at=size,
    )


def _small_line() -> bytes:
    entry = {"type": "message", "id": "aaaaaaaa", "parentId": "bbbbbbbb", "timestamp": "2026-01-01T00:00:00.000Z"}
    return msgspec.json.encode(entry | {"message": {"role": "user", "content": "a short question"}})


def _fill(session: Session, size: int) -> None:
    """Append many small entries in large batches, with periodic compactions."""
    batch: list[dict[str, Any]] = [
        {"type": "message", "message": {"role": "user", "content": "a short question"}} for _ in range(LIVE * 5 - 1)
    ]
    last = None
    for _ in range(0, size, len(batch) + 1):
        last = session.append_many(batch[: size - 1])[-1].id
        session.append_compaction("what was said", last, 1000)


def append_a_million(scale: Scale) -> None:
    """Append that many entries, some of them one by one, to measure the memory of S4."""
    small = corpus(scale, scale.small_mb)
    lines, messages = sample_lines(small, SAMPLES), sample_messages(small, SAMPLES)
    journal = new_journal(scale, "memory")
    append_lines(journal, lines, scale.appends)
    append_lines(journal, [_small_line()], scale.many)
    journal.close()
    drop(journal.path)
    with new_session(scale, "memory-session") as session:
        append_messages(session, messages, scale.appends)
        _fill(session, scale.many)
    shutil.rmtree(scale.scratch() / "memory-session")
