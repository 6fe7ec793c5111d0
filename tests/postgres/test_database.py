"""Statements and transactions: errors explain the failure, and nothing is done twice or partially."""

from __future__ import annotations

import errno
import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from postgres_rig import PASSWORD, Server, new_server
from sessile.errors import Invalid, InvalidConfig, PermissionRefused, SessileError, StorageFailure
from sessile.storage.postgres.database import Cursor, Database, OutcomeUnknown, Unreachable

pytestmark = pytest.mark.mission("B8")


def everything_said(call: Callable[[], object]) -> tuple[SessileError, str]:
    """Return the error that a call raises, and the full text of its traceback and causes."""
    try:
        call()
    except SessileError as error:
        return error, "".join(traceback.format_exception(error))
    raise AssertionError("nothing failed")


@pytest.fixture
def counter(database: Database) -> Database:
    """A database with two rows to count in."""
    database.query("CREATE TABLE counter (id bigint PRIMARY KEY, value bigint NOT NULL)")
    database.query("INSERT INTO counter VALUES (1, 0), (2, 0)")
    return database


def test_a_wrong_password_is_refused_and_never_shown(postgres_server: Server) -> None:
    """The error names the user and where to put the password; the password appears nowhere."""
    database = Database(postgres_server.url("s", user="guarded", password="open sesame 4711"))
    error, said = everything_said(lambda: database.query("SELECT 1"))
    assert isinstance(error, PermissionRefused) and error.errno == errno.EACCES
    assert "guarded" in error.message and "PGPASSWORD" in str(error.hint)
    assert "sesame" not in said + repr(database) + database.place
    assert error.path == database.place == f"postgresql://guarded@/postgres?host={postgres_server.folder}&schema=s"


def test_the_right_password_is_used_and_not_shown(postgres_server: Server) -> None:
    """A password in the address is used, and neither the address nor an error shows it."""
    database = Database(postgres_server.url("s", user="guarded", password=PASSWORD))
    assert database.query("SELECT current_user::text") == [("guarded",)]
    error, said = everything_said(lambda: database.query("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert isinstance(error, OutcomeUnknown)
    assert "horse" not in said + repr(database)
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret%zz@host/db",
        "postgresql://me:secret@[host/db",
        "mysql://me:secret@host/db",
        "postgresql://me:secret@host/db?schema=Robert'); DROP",
        "postgresql://me:secret@host/db?schema=",
        "postgresql://me:secret@host/db?colour=red",
    ],
)
def test_an_address_that_cannot_be_understood_is_refused_without_showing_it(url: str) -> None:
    """An invalid address raises InvalidConfig with an example and without the password."""
    error, said = everything_said(lambda: Database(url))
    assert isinstance(error, InvalidConfig) and error.hint
    assert "secret" not in said.replace(repr(url), "")


def test_a_durability_that_is_none_is_refused() -> None:
    """Only the two known durabilities are accepted."""
    with pytest.raises(Invalid, match="durability"):
        Database("postgresql://host/db", durability="maybe")


@pytest.mark.parametrize(("durability", "setting"), [("power", "on"), ("process", "off")])
def test_durability_is_what_the_server_is_asked_for(postgres_url: str, durability: str, setting: str) -> None:
    """Only "power" waits for the server's disk; other settings in the address are kept."""
    database = Database(postgres_url + "&options=-c%20work_mem%3D5MB", durability=durability)
    sql = "SELECT current_setting('synchronous_commit'), current_setting('work_mem'), current_setting('search_path')"
    assert database.query(sql) == [(setting, "5MB", database.schema)]
    database.close()


def test_a_transaction_that_stands_still_ends_and_frees_its_locks(counter: Database, postgres_url: str) -> None:
    """The server ends an idle transaction after 30 seconds or the time in the address, and rolls it back."""
    assert counter.query("SELECT current_setting('idle_in_transaction_session_timeout')") == [("30s",)]
    sleepy = Database(postgres_url + "&options=-c%20idle_in_transaction_session_timeout%3D100")
    with pytest.raises(Unreachable), sleepy.transaction() as cursor:
        cursor.execute("UPDATE counter SET value = 9")
        counter.query("UPDATE counter SET value = 1")
        cursor.execute("SELECT 1")
    assert counter.query("SELECT value FROM counter") == [(1,), (1,)]
    sleepy.close()


def test_a_server_that_was_never_there_fails_at_once() -> None:
    """The first connection is not retried; the error names the address and what to check."""
    began = time.monotonic()
    error, _ = everything_said(lambda: Database("postgresql://me@127.0.0.1:9/db").query("SELECT 1"))
    assert isinstance(error, Unreachable) and time.monotonic() - began < 8  # less than the 10 s for a known server
    assert "127.0.0.1" in str(error) and "hint: check that the server is running" in str(error)


def test_a_database_that_is_missing_says_so(postgres_server: Server) -> None:
    """The hint for a missing database is the command that creates it."""
    url = postgres_server.url().replace("/postgres?", "/nowhere?")
    error, _ = everything_said(lambda: Database(url).query("SELECT 1"))
    assert isinstance(error, Unreachable) and "createdb" in str(error.hint)


def test_rights_that_are_missing_are_a_refusal(counter: Database, postgres_server: Server) -> None:
    """A table that the user may not access raises PermissionRefused with a hint, and the connection still works."""
    counter.query("CREATE ROLE onlooker")
    counter.query(f"GRANT USAGE ON SCHEMA {counter.schema} TO onlooker")
    with pytest.raises(PermissionRefused, match="permission denied") as caught:
        counter.transact(lambda cursor: cursor.execute("SET LOCAL ROLE onlooker").execute("SELECT * FROM counter"))
    assert "grant" in str(caught.value.hint) and caught.value.errno == errno.EACCES
    assert counter.query("SELECT count(*) FROM counter") == [(2,)]


def test_a_server_that_only_reads_is_named_as_that(counter: Database, postgres_url: str) -> None:
    """The answer of a standby becomes EROFS with a hint."""
    reader = Database(postgres_url + "&options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(StorageFailure, match="is read-only") as caught:
        reader.query("UPDATE counter SET value = 1")
    assert caught.value.errno == errno.EROFS and "standby" in str(caught.value.hint)
    reader.close()


def test_a_stopped_server_is_unreachable_and_comes_back() -> None:
    """Idle connections that the server closed are noticed before use; after a restart everything works again."""
    with new_server() as server:
        database = Database(server.url(), patience=0.3)
        assert database.query("SELECT 1") == [(1,)]
        server.stop()
        error, _ = everything_said(lambda: database.query("SELECT 1"))
        assert isinstance(error, Unreachable) and database.place in str(error) and "hint:" in str(error)
        server.start()
        assert database.query("SELECT 2") == [(2,)]
        server.stop("immediate")
        server.start()
        # Without `again`: the broken connection was noticed before the statement was sent.
        assert database.query("SELECT 3") == [(3,)]
        database.close()


def test_a_restart_is_waited_for() -> None:
    """A server that was reached before gets `patience` seconds to come back."""
    with new_server() as server:
        database = Database(server.url(), patience=20)
        database.query("SELECT 1")
        server.stop()
        starting = threading.Timer(0.5, server.start)
        starting.start()
        assert database.query("SELECT 2") == [(2,)]
        starting.join()
        database.close()


def test_a_statement_lost_with_its_connection_is_not_repeated(counter: Database) -> None:
    """It is unknown whether the statement was executed, so the caller gets OutcomeUnknown."""
    sql = "WITH told AS (SELECT pg_terminate_backend(pg_backend_pid())) UPDATE counter SET value = value + 1 FROM told"
    with pytest.raises(OutcomeUnknown) as caught:
        counter.query(sql)
    assert "check whether" in str(caught.value.hint)
    assert counter.query("SELECT sum(value)::bigint FROM counter") == [(0,)]


def test_a_statement_that_may_be_repeated_is(counter: Database) -> None:
    """With `again`, a statement is repeated after a broken connection."""
    lost = threading.Event()
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(0.61)%%' AND pid <> %s"

    def cut() -> None:
        other = Database(f"{counter.place}")
        me = other.query("SELECT pg_backend_pid()")[0][0]
        while not other.query(kill, (me,)):
            time.sleep(0.02)
        lost.set()
        other.close()

    cutting = threading.Thread(target=cut)
    cutting.start()
    assert counter.query("SELECT 7 FROM pg_sleep(0.61)", again=True) == [(7,)]
    cutting.join()
    assert lost.is_set()


def test_a_transaction_lost_before_its_end_changed_nothing(counter: Database) -> None:
    """A transaction that was not committed changed nothing, so the error is Unreachable and not OutcomeUnknown."""
    with pytest.raises(Unreachable), counter.transaction() as cursor:
        cursor.execute("UPDATE counter SET value = 9")
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert counter.query("SELECT value FROM counter") == [(0,), (0,)]


def test_a_block_that_fails_is_undone(counter: Database) -> None:
    """The block's own error is raised, and the connection can still be used."""
    with pytest.raises(KeyError), counter.transaction() as cursor:
        cursor.execute("UPDATE counter SET value = 9")
        raise KeyError("mine")
    assert counter.query("SELECT value FROM counter") == [(0,), (0,)]


def test_a_failure_that_the_block_swallows_is_not_taken_for_success(counter: Database) -> None:
    """PostgreSQL answers COMMIT with a rollback after a suppressed error; this raises."""
    with pytest.raises(RuntimeError, match="the error was suppressed"), counter.transaction() as cursor:
        cursor.execute("UPDATE counter SET value = 9")
        with pytest.raises(psycopg.errors.UniqueViolation):
            cursor.execute("INSERT INTO counter VALUES (1, 1)")


def test_serialization_failures_are_tried_again(counter: Database) -> None:
    """Four threads count in serializable transactions; every count is stored, and some transactions were repeated."""
    tries = []

    def count(cursor: Cursor) -> None:
        tries.append(1)
        cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        [(value,)] = cursor.execute("SELECT value FROM counter WHERE id = 1").fetchall()
        cursor.execute("UPDATE counter SET value = %s WHERE id = 1", (value + 1,))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [counter.transact(count) for _ in range(15)], range(4)))
    assert counter.query("SELECT value FROM counter WHERE id = 1") == [(60,)]
    assert len(tries) > 60


def test_a_single_statement_is_tried_again_too(counter: Database, postgres_url: str) -> None:
    """In a database that is serializable by default, single statements are repeated as well."""
    strict = Database(postgres_url + "&options=-c%20default_transaction_isolation%3Dserializable")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: strict.query("UPDATE counter SET value = value + 1 WHERE id = 1"), range(80)))
    assert strict.query("SELECT value FROM counter WHERE id = 1") == [(80,)]
    strict.close()


def test_a_deadlock_is_resolved(counter: Database) -> None:
    """Two transactions that lock two rows in opposite order both complete."""
    both = threading.Barrier(2)

    def take(order: tuple[int, int]) -> None:
        first = True

        def work(cursor: Cursor) -> None:
            nonlocal first
            cursor.execute("UPDATE counter SET value = value + 1 WHERE id = %s", (order[0],))
            if first:
                first = False
                both.wait()
            cursor.execute("UPDATE counter SET value = value + 1 WHERE id = %s", (order[1],))

        counter.transact(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, [(1, 2), (2, 1)]))
    assert counter.query("SELECT value FROM counter") == [(2,), (2,)]


def test_contention_without_end_is_a_typed_error(counter: Database) -> None:
    """After `patience` seconds a typed error is raised; outside `transact` it is raised at once."""

    def fail(cursor: Cursor) -> None:
        cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'no luck' USING ERRCODE = 'serialization_failure'; END $$")

    counter.patience = 0.1
    with pytest.raises(StorageFailure, match="too busy: no luck") as caught:
        counter.transact(fail)
    assert caught.value.errno == errno.EBUSY and "try again" in str(caught.value.hint)
    with pytest.raises(StorageFailure, match="no luck"), counter.transaction() as cursor:
        fail(cursor)


def test_connections_are_few_and_waited_for(counter: Database) -> None:
    """Thirty threads share ten connections; if none becomes free, a typed error is raised."""
    with ThreadPoolExecutor(30) as pool:
        pids = list(pool.map(lambda _: counter.query("SELECT pg_backend_pid() FROM pg_sleep(0.01)"), range(60)))
    assert len({pid for ((pid,),) in pids}) <= 10
    counter.patience = 0.1
    held = [counter.transaction() for _ in range(10)]
    for block in held:
        block.__enter__()
    with pytest.raises(Unreachable, match="became free"):
        counter.query("SELECT 1")
    for block in held:
        block.__exit__(None, None, None)
    assert counter.query("SELECT 1") == [(1,)]


def test_statements_are_counted(counter: Database) -> None:
    """Each statement counts once, and so do the start and the end of a transaction."""
    before = counter.count
    counter.query("SELECT 1")
    assert counter.count == before + 1
    with counter.transaction() as cursor:
        cursor.execute("SELECT 1")
        with cursor.copy("COPY counter FROM STDIN") as copy:
            copy.write_row((3, 0))
    assert counter.count == before + 5


def test_a_closed_database_opens_again(counter: Database) -> None:
    """Closing releases only the connections."""
    first = counter.query("SELECT pg_backend_pid()")
    counter.close()
    second = counter.query("SELECT pg_backend_pid()")
    assert first != second
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    until = time.monotonic() + 5
    while counter.query(gone, first[0]) != [(0,)]:
        assert time.monotonic() < until


def test_a_forked_child_leaves_its_parents_connections_alone(counter: Database) -> None:
    """Parent and child use separate connections, and the parent's still works after the child has ended."""
    [(mine,)] = counter.query("SELECT pg_backend_pid()")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            [(other,)] = counter.query("UPDATE counter SET value = value + 1 WHERE id = 1 RETURNING pg_backend_pid()")
            counter.close()
            os.write(writing, str(other).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert int(told) != mine
    assert counter.query("SELECT pg_backend_pid(), value FROM counter WHERE id = 1") == [(mine, 1)]
