"""Leases have one holder at a time, across processes, kills and outages."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from postgres.at_once import pass_gate, program, run_at_once
from postgres_rig import new_server
from sessile.errors import StorageFailure
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import PostgresFilesystem
from sessile.storage.postgres.schema import migrate

pytestmark = pytest.mark.mission("B8")

_HOLDER = """
leases = Leases(Database(url), ttl=float(arguments[0]))
assert leases.take("x")
gate()
leases.release("x")
print("given back", flush=True)
"""


def wait_for(true: Callable[[], object], seconds: float) -> float:
    """Wait until a condition is true. Return the seconds it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_lease_has_one_holder(leases: Leases) -> None:
    """No other caller gets the lease, not even in the same process, until it is released."""
    assert leases.holder("a") is None and not leases.holds("a")
    assert leases.take("a") is not None
    assert leases.take("a") is None
    assert leases.holds("a") and leases.holder("a") == leases.identity
    assert leases.identity.split(":")[-2] == str(os.getpid())
    leases.release("a")
    assert not leases.holds("a") and leases.holder("a") is None
    leases.release("a")


def test_tokens_only_grow(database: Database, leases: Leases) -> None:
    """A later token is always larger, even after the lease's row was removed."""
    tokens = []
    for number in range(6):
        tokens.append(leases.take("a"))
        assert leases.token("a") == tokens[-1]
        leases.release("a")
        if number == 3:
            database.query("DELETE FROM lease")  # as the sweep does a day later
    assert None not in tokens
    assert tokens == sorted(set(tokens))  # type: ignore[type-var]


def test_of_many_threads_one_gets_it(leases: Leases) -> None:
    """Of eight concurrent threads, one gets the lease."""
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: leases.take("a"), range(8)))
    assert len([token for token in got if token is not None]) == 1
    assert leases.token("a") in got


def test_of_many_processes_one_gets_each(database: Database, postgres_url: str) -> None:
    """Four processes take fifty leases at once; each lease goes to one of them."""
    script = """
leases = Leases(Database(url))
gate()
print(*[number for number in range(50) if leases.take(f"n{number}")], flush=True)
import os; os._exit(0)  # without giving them back
"""
    taken = [int(number) for printed in run_at_once(script, postgres_url) for number in printed.split()]
    assert sorted(taken) == list(range(50))


def test_a_lease_that_is_just_being_taken_is_waited_for(database: Database, leases: Leases) -> None:
    """A request waits for an uncommitted one: it is refused after a commit and granted after a rollback."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%INTO lease%%'"

    def take_during(name: str, outcome: str) -> int | None:
        with ThreadPoolExecutor(1) as pool, database.transaction() as cursor:
            cursor.execute("INSERT INTO lease VALUES (%s, 'other', 1, clock_timestamp() + interval '1 hour')", (name,))
            asked = pool.submit(leases.take, name)
            wait_for(lambda: database.query(waiting), 10)
            cursor.execute(outcome)
            cursor.execute("BEGIN")  # for the end of the block
            return asked.result()

    assert take_during("a", "COMMIT") is None and not leases.holds("a")
    assert take_during("b", "ROLLBACK") is not None and leases.holds("b")


def test_a_lease_outlives_its_time_while_its_holder_lives(database: Database) -> None:
    """A held lease is renewed past its lifetime."""
    held, waiting = Leases(database, ttl=1), Leases(database, ttl=1)
    token = held.take("a")
    until = time.monotonic() + 2.2
    while time.monotonic() < until:
        assert waiting.take("a") is None
        time.sleep(0.05)
    assert held.token("a") == token
    held.close()
    assert waiting.take("a") is not None
    waiting.close()


def test_a_killed_holder_loses_its_lease_in_time(database: Database, postgres_url: str) -> None:
    """The lease of a killed process is refused until it expires; the next token is larger."""
    ttl = 3.0
    mine = Leases(database, ttl=ttl)
    with program(_HOLDER, postgres_url, str(ttl)) as holder:
        [(old,)] = database.query("SELECT token FROM lease WHERE name = 'x'")
        wait_for(lambda: mine.take("x") is None, 10)
        assert str(mine.holder("x")).split(":")[-2] == str(holder.pid)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert mine.take("x") is None
    assert wait_for(lambda: mine.take("x"), 30) > 0.3
    assert (mine.token("x") or 0) > old
    mine.close()


def test_what_another_process_gives_back_is_free_at_once(database: Database, postgres_url: str) -> None:
    """A released lease is free without waiting for its expiry."""
    mine = Leases(database)
    with program(_HOLDER, postgres_url, "30") as holder:
        assert mine.take("x") is None
        pass_gate(holder)
        assert holder.stdout is not None and holder.stdout.readline() == "given back\n"
        assert mine.take("x") is not None
    mine.close()


def test_a_process_that_ends_gives_back_what_it_holds(database: Database, leases: Leases, postgres_url: str) -> None:
    """A process that exits normally releases its leases, even if nothing was closed."""
    run_at_once('gate(); leases = Leases(Database(url)); assert leases.take("x")', postgres_url, number=1)
    assert leases.take("x") is not None


def test_a_stopped_process_notices_that_it_lost_its_lease(database: Database, postgres_url: str) -> None:
    """A process that was stopped past the expiry no longer holds the lease, and its release has no effect."""
    script = """
leases = Leases(Database(url), ttl=0.8)
assert leases.take("x")
gate()
print(leases.holds("x"), leases.take("x"), flush=True)
leases.release("x")
sys.stdin.readline()
"""
    mine = Leases(database, ttl=10)
    with program(script, postgres_url) as sleeper:
        sleeper.send_signal(signal.SIGSTOP)
        wait_for(lambda: mine.take("x"), 30)
        sleeper.send_signal(signal.SIGCONT)
        pass_gate(sleeper)
        assert sleeper.stdout is not None and sleeper.stdout.readline() == "False None\n"
        assert mine.holds("x") and mine.holder("x") == mine.identity
    mine.close()


def test_a_process_that_cannot_renew_notices() -> None:
    """Without the server the lease is lost at its expiry, and writing to the locked file raises."""
    with new_server() as server:
        database = Database(server.url(), patience=0.2)
        migrate(database)
        leases = Leases(database, ttl=3)
        files = PostgresFilesystem(database, leases)
        fd = files.open("/sessile:postgresql/a", os.O_CREAT | os.O_RDWR)
        assert files.lock(fd)
        name = f"file:{files.fstat(fd).st_ino}"
        server.stop()
        assert leases.holds(name)
        assert wait_for(lambda: not leases.holds(name), 30) > 0.1
        server.start()
        time.sleep(0.5)
        assert leases.holder(name) is None  # a lost lease is not renewed silently
        with pytest.raises(StorageFailure, match="lock of the file was lost") as caught:
            files.write(fd, b"too late")
        assert caught.value.errno == errno.ENOLCK and caught.value.hint
        assert files.lock(fd)  # no other process has taken it
        assert files.write(fd, b"again") == 5
        files.close(fd)
        leases.close()
        database.close()


def test_a_short_silence_of_the_server_is_survived() -> None:
    """A lease survives a short restart of the server."""
    with new_server() as server:
        database = Database(server.url(), patience=10)
        migrate(database)
        leases = Leases(database, ttl=6)
        token = leases.take("a")
        server.stop("immediate")
        server.start()
        time.sleep(6.5)
        assert leases.token("a") == token
        leases.close()
        database.close()


def test_a_forked_child_holds_nothing_of_its_parents(leases: Leases) -> None:
    """A forked child neither holds its parent's lease nor can take or release it."""
    token = leases.take("a")
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            free = leases.holds("a") or leases.take("a") is not None
            leases.release("a")
            answer = int(free)
        finally:
            os._exit(answer)
    assert os.waitpid(child, 0)[1] == 0
    assert leases.token("a") == token and leases.holder("a") == leases.identity


def test_old_leases_are_swept(database: Database, leases: Leases) -> None:
    """Leases that expired more than a day ago are removed when a process takes its first lease."""
    sql = "INSERT INTO lease VALUES (%s, 'h', 1, clock_timestamp() - %s * interval '1 hour')"
    database.query(sql, ("old", 25))
    database.query(sql, ("recent", 23))
    leases.take("a")
    wait_for(lambda: database.query("SELECT name FROM lease ORDER BY name") == [("a",), ("recent",)], 5)
