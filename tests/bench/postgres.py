"""S13: a store in PostgreSQL: durable appends against bare inserts, imports against a bare COPY, and resuming.

The server is started in a temporary folder and syncs to disk. The bare loops use the same driver, prepared statements,
binary parameters, and a table of a key and a body.

Database modules are imported late, because other subjects, whose memory is measured, import this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .corpus import corpus, sample_messages
from .measure import Row, interleaved, median, ratio, timed
from .scale import ROOT, Scale

if TYPE_CHECKING:
    import psycopg

    from sessile.storage.postgres.database import Database
    from sessile.storage.postgres.journals import PostgresJournals

_LEAST = 0.6  # of the bare inserts, and of the bare COPY
_MOST_MS = 20  # to open a session and build its context
_ENTRIES = 100_000
_LIVE = 200  # entries between compactions
_SAMPLES = 400
_SHORT = {"role": "user", "content": "a short question"}
_HEADER = b'{"type":"session","version":3,"id":"bench","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work/bench"}\n'
_FOLDER = "/sessile:postgresql"


class _Bench(NamedTuple):
    journals: PostgresJournals
    database: Database
    bare: psycopg.Connection


@contextmanager
def _server() -> Iterator[_Bench]:
    """Start a server that syncs, with our tables and a bare one."""
    import psycopg

    sys.path.append(str(ROOT / "tests"))  # location of the rig: this runs as `tests.bench.worker`
    from postgres_rig import new_server
    from sessile.storage.postgres.database import Database
    from sessile.storage.postgres.journals import PostgresJournals
    from sessile.storage.postgres.leases import Leases
    from sessile.storage.postgres.names import PostgresFilesystem
    from sessile.storage.postgres.schema import migrate

    with new_server() as server:
        server.stop()
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("fsync = on\nfull_page_writes = on\n")
        server.start()
        database = Database(server.url("bench"))
        migrate(database)
        leases = Leases(database)
        with psycopg.connect(server.url("bench").replace("&schema=bench", ""), autocommit=True) as bare:
            bare.execute("CREATE TABLE bare (file bigint, start bigint, body bytea, PRIMARY KEY (file, start))")
            yield _Bench(PostgresJournals(PostgresFilesystem(database, leases), database, leases), database, bare)
        leases.close()
        database.close()


def storing(scale: Scale) -> list[Row]:
    """S13: append durably, import, resume."""
    with _server() as bench:
        return [*_appends(scale, bench), _imports(scale, bench), _resumes(scale, bench)]


# -- appending


def _appends(scale: Scale, bench: _Bench) -> list[Row]:
    messages = sample_messages(corpus(scale, scale.small_mb), _SAMPLES)
    lines = list(_chain(messages, scale.syncs))
    small = list(_chain([_SHORT], scale.syncs))
    times = interleaved(
        scale.rounds,
        ours=lambda: _append_time(bench, lines),
        bare=lambda: _insert_time(bench, lines),
        small=lambda: _append_time(bench, small),
        bare_small=lambda: _insert_time(bench, small),
    )
    mean = sum(map(len, lines)) / len(lines) / 1000
    return [
        Row(
            "S13",
            f"{what}, share of bare",
            median(times[ours]),
            baseline="bare INSERT",
            baseline_median=median(times[bare]),
            ratio=ratio(times[bare], times[ours]),
            sense="≥",
            limit=_LEAST,
        )
        for what, ours, bare in (
            (f"PostgreSQL: lines of {mean:.1f} KB", "ours", "bare"),
            ("… a short one", "small", "bare_small"),
        )
    ]


def _chain(messages: Sequence[dict[str, Any]], count: int) -> Iterator[bytes]:
    """Return encoded lines, each a child of the previous one."""
    parent = None
    for number in range(count):
        entry_id = f"{number:08x}"
        entry = {"type": "message", "id": entry_id, "parentId": parent, "timestamp": "2026-01-01T00:00:00.000Z"}
        yield msgspec.json.encode(entry | {"message": messages[number % len(messages)]})
        parent = entry_id


def _append_time(bench: _Bench, lines: Sequence[bytes]) -> float:
    path = _fresh(bench)
    bench.journals.create(path, [_HEADER])
    journal = bench.journals.open(path)

    def work() -> None:
        for line in lines:
            journal.commit(journal.append([line], lambda news, line=line: [line]).mark)  # type: ignore[misc]

    taken = timed(work, len(lines))
    journal.close()
    return taken


def _insert_time(bench: _Bench, lines: Sequence[bytes]) -> float:
    from psycopg.types.numeric import Int8

    _fresh(bench)
    cursor = bench.bare.cursor()

    def work() -> None:
        at = 0
        for line in lines:
            values = (Int8(1), Int8(at), line)
            cursor.execute("INSERT INTO bare (file, start, body) VALUES (%b, %b, %b)", values, prepare=True)
            at += len(line) + 1

    return timed(work, len(lines))


def _fresh(bench: _Bench) -> str:
    """Empty the tables and return a path in them."""
    bench.bare.execute("TRUNCATE bare")
    for statement in ("TRUNCATE entry", "TRUNCATE file", "DELETE FROM name WHERE file IS NOT NULL"):
        bench.database.query(statement)
    return f"{_FOLDER}/session.jsonl"


# -- importing


def _imports(scale: Scale, bench: _Bench) -> Row:
    made = corpus(scale, scale.small_mb)
    with open(made.path, "rb") as file:
        data = file.read()
    lines = data.splitlines()
    pieces = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    times = interleaved(
        scale.rounds,
        ours=lambda: timed(_creating(bench, _fresh(bench), pieces)),
        bare=lambda: timed(_copying(bench, _fresh(bench), lines)),
    )
    return Row(
        "S13",
        f"… import {len(data) / 1e6:.0f} MB, share of bare",
        median(times["ours"]),
        baseline="bare COPY",
        baseline_median=median(times["bare"]),
        ratio=ratio(times["bare"], times["ours"]),
        sense="≥",
        limit=_LEAST,
    )


def _creating(bench: _Bench, path: str, pieces: Sequence[bytes]) -> Any:
    return lambda: bench.journals.create(path, pieces)


def _copying(bench: _Bench, _: str, lines: Sequence[bytes]) -> Any:
    def work() -> None:
        at = 0
        with bench.bare.cursor().copy("COPY bare (file, start, body) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(("int8", "int8", "bytea"))
            for line in lines:
                copy.write_row((1, at, line))
                at += len(line) + 1

    return work


# -- resuming


def _resumes(scale: Scale, bench: _Bench) -> Row:
    from sessile import BlobStore
    from sessile.session import SessionView

    entries = min(_ENTRIES, scale.many)
    path = _fresh(bench)
    bench.journals.create(path, _long(sample_messages(corpus(scale, scale.small_mb), _SAMPLES), entries))
    bench.database.query("ANALYZE entry")

    def resume() -> None:
        journal = bench.journals.open(path)
        assert SessionView(journal, BlobStore("/blobs")).context().messages
        journal.close()

    resume()
    took = median([timed(resume) for _ in range(scale.rounds)])
    return Row(
        "S13",
        f"… resume {entries:,} entries, ms",
        took,
        ratio=took * 1000,
        limit=_MOST_MS,
    )


def _long(messages: Sequence[dict[str, Any]], entries: int) -> Iterator[bytes]:
    """Write a session with periodic compactions; only its live messages have the usual length."""
    yield _HEADER
    ended = max(0, entries - 2 * _LIVE)
    said = [_SHORT] * ended + [messages[number % len(messages)] for number in range(entries - ended)]
    for number, line in enumerate(_chain(said, entries)):
        if number % _LIVE == _LIVE // 2:
            entry = msgspec.json.decode(line)
            del entry["message"]
            summary = {"summary": "what was said", "firstKeptEntryId": f"{number - _LIVE // 4:08x}", "tokensBefore": 1}
            line = msgspec.json.encode(entry | {"type": "compaction"} | summary)
        yield line + b"\n"
