"""Failover: when a server is lost, its standby takes over and no acknowledged entry is lost."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders import user
from postgres_rig import Server, new_server, own
from sessile import Store
from sessile.errors import StorageFailure

pytestmark = pytest.mark.mission("B8")

SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
SOON = 20.0  # seconds
WRITERS = 2


@contextmanager
def standby_of(primary: Server) -> Iterator[Server]:
    """Run a synchronous standby, which has every change before the primary acknowledges it."""
    with tempfile.TemporaryDirectory(prefix="sessile-postgres-", ignore_cleanup_errors=True) as folder:
        standby = Server(Path(folder))
        own(standby.folder)
        copy = ("-D", standby.data, "-h", str(primary.folder), "-U", "postgres", "-R", "-c", "fast", "--no-sync")
        standby._run("pg_basebackup", *copy)
        standby.start()
        with primary.connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            end = time.monotonic() + SOON
            while connection.execute(SYNCHRONOUS).fetchall() != [(1,)]:
                assert time.monotonic() < end, "the standby does not follow"
                time.sleep(0.02)
        try:
            yield standby
        finally:
            standby.stop("immediate")


def write(store: Store, number: int, enough: threading.Event, acknowledged: list[str], failures: list[str]) -> None:
    """Append to a session and record what was acknowledged; retry failures under the same key."""
    with store.create(f"/work/{number}", publish=True) as session:
        said = 0
        while not enough.is_set():
            text = f"{number}.{said}"
            try:
                session.append_many([{"type": "message", "message": user(text)}], key=text)
            except StorageFailure as error:
                failures.append(error.message)
                session.reopen()
                continue
            acknowledged.append(text)
            said += 1


def test_what_was_acknowledged_is_there_behind_a_failover() -> None:
    """The primary is stopped as in a crash during writes; clients with both addresses continue at the standby."""
    with new_server() as primary, standby_of(primary) as standby:
        hosts = f"{primary.folder},{standby.folder}"
        url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write&schema=failover"
        enough = threading.Event()
        acknowledged: list[list[str]] = [[] for _ in range(WRITERS)]
        failures: list[str] = []
        with Store(url, patience=SOON) as store:
            threads = [
                threading.Thread(target=write, args=(store, number, enough, acknowledged[number], failures))
                for number in range(WRITERS)
            ]
            for thread in threads:
                thread.start()
            _wait(lambda: all(len(texts) > 50 for texts in acknowledged), threads)
            began = time.monotonic()
            primary.stop("immediate")
            before = [len(texts) for texts in acknowledged]
            standby._run("pg_ctl", "-D", standby.data, "-w", "promote")
            _wait(
                lambda: all(len(texts) > many + 50 for texts, many in zip(acknowledged, before, strict=True)), threads
            )
            print(f"went on after {time.monotonic() - began:.1f} s, {sum(before)} acknowledged before, {failures}")
            enough.set()
            for thread in threads:
                thread.join()
        with Store(url) as store:
            for number, texts in enumerate(acknowledged):
                (info,) = store.list(f"/work/{number}")
                with store.open(info.path, readonly=True) as session:
                    found = [entry["message"]["content"] for entry in session.get_branch()]
                assert found == texts


def _wait(true: Callable[[], bool], threads: list[threading.Thread]) -> None:
    end = time.monotonic() + SOON
    while not true():
        assert all(thread.is_alive() for thread in threads) and time.monotonic() < end, "nobody writes any more"
        time.sleep(0.01)
