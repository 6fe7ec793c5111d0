"""Many writers, killed writers, broken connections and a crashing server: acknowledged entries are there once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from faults.processes import Child, Tell, killed_after
from postgres.journals_rig import Place, place_at
from postgres_rig import Server, new_server
from sessile.errors import SessileError, StorageFailure
from sessile.storage.base import News
from sessile.storage.postgres.database import Cursor, Database, OutcomeUnknown, Unreachable
from sessile.storage.postgres.schema import migrate
from sessile.testing.journal_contract import HEADER, chain, contents, found, ids, line, put, unexpected

pytestmark = [pytest.mark.mission("B8"), pytest.mark.promise("P14")]

WRITERS = 4


def follow(journal: Any, entry_id: str) -> None:
    """Append to the last entry, including those of other writers."""
    lines = [line(entry_id, None)]

    def revise(news: News) -> Sequence[bytes]:
        return [line(entry_id, news.rows()[-1].id)]

    journal.commit(journal.append(lines, revise).mark)


def check(place: Place, path: str, acknowledged: Sequence[str]) -> list[str]:
    """Check that every acknowledged entry is there, and every entry is there once and complete."""
    with closing(place.journals.open(path)) as journal:
        present = ids(journal.rows())
        assert len(set(present)) == len(present)
        assert set(acknowledged) <= set(present)
        assert not journal.findings()
        lines = b"".join(raw + b"\n" for raw in (HEADER, *contents(journal)))
        assert place.content(path) == lines
        put(journal, line(f"and on {len(present)}"))
    return present


# -- processes


def test_four_processes_append_and_nothing_is_lost(postgres_url: str) -> None:
    """Each entry is there once, in the order of its writer."""
    place = place_at(postgres_url)
    path = place.taken_in(HEADER + b"\n" + line("first") + b"\n").path

    def work(name: str, tell: Tell) -> None:
        with closing(place_at(postgres_url).journals.open(path)) as journal:
            for number in range(100):
                if number % 2:
                    put(journal, line(f"{name}{number}", f"{name}{number - 1}"))
                else:
                    follow(journal, f"{name}{number}")
        tell(name)

    children = [Child(partial(work, name)) for name in "pqrs"[:WRITERS]]
    assert [child.finish() for child in children] == [["p"], ["q"], ["r"], ["s"]]
    present = check(place, path, [f"{name}{number}" for name in "pqrs" for number in range(100)])
    assert len(present) == 1 + WRITERS * 100
    for name in "pqrs":
        assert [one for one in present if one[0] == name and one != "first"] == [f"{name}{n}" for n in range(100)]
    place.close()


def test_a_forked_child_appends_through_its_parents_handle(postgres_url: str) -> None:
    """The child uses its own connections, and no entry of either process is lost."""
    place = place_at(postgres_url)
    journal = place.taken_in(HEADER + b"\n")
    put(journal, line("parent"))
    child = Child(lambda tell: tell([put(journal, line(f"child {n}")) and n for n in range(20)]))
    for number in range(20):
        put(journal, line(f"parent {number}"))
    child.finish()
    assert len(check(place, journal.path, [f"child {n}" for n in range(20)])) == 41
    journal.close()
    place.close()


def check_kills(url: str, seed: int, kills: int) -> None:
    """Kill processes that append to one journal, and check their acknowledged entries."""
    rng = Random(seed)
    place = place_at(url)
    path = place.taken_in(HEADER + b"\n").path

    def work(name: str, tell: Tell) -> None:
        with closing(place_at(url).journals.open(path)) as journal:
            tell("begin")
            for number in count():
                size = rng.choice((0, 100, 20_000))
                if number % 5 == 4:  # a batch, under the lock
                    batch = [
                        line(f"{name}-{number}-{n}", f"{name}-{number}-{n - 1}" if n else "gone") for n in range(3)
                    ]
                    put(journal, *batch)
                    tell([f"{name}-{number}-{n}" for n in range(3)])
                else:
                    put(journal, line(f"{name}-{number}", pad="x" * size))
                    tell([f"{name}-{number}"])

    acknowledged: list[str] = []
    for number in range(kills):
        told = killed_after(rng.uniform(0, 0.03), partial(work, f"k{number}"))
        acknowledged += [one for batch in told[1:] for one in batch]
    with closing(place.journals.open(path)) as journal:
        present = ids(journal.rows())
        assert len(set(present)) == len(present)
        assert set(acknowledged) <= set(present)
        batches = [one for one in present if one.count("-") == 2]
        assert len(batches) % 3 == 0  # batches are stored completely or not at all
        put(journal, line("and on"))
    assert acknowledged
    place.close()


def test_killed_writers_leave_what_they_acknowledged(postgres_url: str) -> None:
    check_kills(postgres_url, 1, 12)


@pytest.mark.long
def test_killed_writers_leave_what_they_acknowledged_in_the_long_run(postgres_url: str) -> None:
    check_kills(postgres_url, 2, 300)


# -- the server


def test_a_crashing_server_loses_nothing_that_was_acknowledged() -> None:
    """Errors are typed, the handle reports its failure, and it works again after reopening."""
    with new_server() as server:
        place = place_at(server.url("crashing"), patience=20)
        path = place.taken_in(HEADER + b"\n").path
        acknowledged: list[str] = []
        failures: list[SessileError] = []
        stop = threading.Event()

        def work(name: str) -> None:
            journal = place.journals.open(path)
            for number in count():
                if stop.is_set():
                    break
                try:
                    put(journal, line(f"{name}{number}"))
                    acknowledged.append(f"{name}{number}")
                except StorageFailure as error:
                    failures.append(error)
                    assert journal.failure is not None
                    while True:
                        try:
                            journal.reopen()
                            break
                        except StorageFailure as again:
                            failures.append(again)
            journal.close()

        threads = [threading.Thread(target=work, args=(name,)) for name in "pq"]
        for thread in threads:
            thread.start()
        for mode in ("immediate", "fast", "immediate"):
            await_growth(acknowledged)
            server.stop(mode)
            server.start()
        await_growth(acknowledged)
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        check(place, path, acknowledged)
        assert all(error.path and error.hint for error in failures)
        place.close()


def test_a_server_that_stays_away_is_a_failure_until_the_journal_is_reopened() -> None:
    with new_server() as server:
        place = place_at(server.url("away"), patience=0.5)
        journal = place.taken_in(HEADER + b"\n")
        server.stop("immediate")
        with pytest.raises(StorageFailure) as failed:
            put(journal, line("a"))
        assert failed.value.hint
        with pytest.raises(StorageFailure):
            put(journal, line("b"))  # fails again without asking the server
        assert journal.failure is not None
        server.start()
        with pytest.raises(StorageFailure):
            put(journal, line("c"))  # still fails: the caller has to reopen
        for promise in (journal.flush, journal.hold, lambda: journal.replace(lambda raw: None)):
            with pytest.raises(StorageFailure) as again:
                promise()
            assert again.value is failed.value
        journal.reopen()
        put(journal, line("d"))
        assert contents(journal) == [line("d")]
        journal.close()
        place.close()


def await_growth(told: Sequence[str]) -> None:
    before = len(told)
    await_(lambda: len(told) >= before + 20)


def await_(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- connections


class Breaking(Database):
    """Lose the connection of the next change, before or after it is made."""

    broken: str | None = None
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def query(self, sql: str, params: Any = (), *, again: bool = False, prepare: bool = True) -> Any:
        if again or self.broken is None:
            return super().query(sql, params, again=again, prepare=prepare)
        return self._break(lambda: super(Breaking, self).query(sql, params))

    def transact(self, work: Callable[[Cursor], Any], *, again: bool = False) -> Any:
        if again or self.broken is None:
            return super().transact(work, again=again)
        if self.broken == "after":
            return self._break(lambda: super(Breaking, self).transact(work))

        def undone(cursor: Cursor) -> None:
            work(cursor)
            raise OutcomeUnknown("broken")

        self.broken = None
        return super().transact(undone)

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        when, self.broken = self.broken, None
        with super().transaction() as cursor:
            yield cursor
            if when == "before":
                raise OutcomeUnknown("broken")
        if when == "after":
            raise OutcomeUnknown("broken")

    def _break(self, change: Callable[[], Any]) -> Any:
        when, self.broken = self.broken, None
        if when == "after":
            change()
        self.meanwhile()
        raise OutcomeUnknown("broken")


@contextmanager
def breaking(url: str) -> Iterator[tuple[Breaking, Place]]:
    database = Breaking(url)
    migrate(database)
    place = Place(database)
    yield database, place
    place.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lines", [chain("x"), chain("x", "y", "z"), [line("x", "elsewhere")]], ids=len)
def test_a_broken_connection_leaves_the_lines_once(postgres_url: str, when: str, lines: list[bytes]) -> None:
    """The journal checks whether they were written, and asks for no revision, because there was no other writer."""
    with breaking(postgres_url) as (database, place):
        journal = place.taken_in(b"\n".join((HEADER, *chain("a", "elsewhere", "b"), b"")))
        database.broken = when
        appended = journal.append(lines, unexpected)
        assert contents(journal)[3:] == lines
        assert [found(journal, one).position for one in ids(list(journal.rows())[3:])] == appended.positions
        journal.append([line("next")], unexpected)
        assert contents(journal)[3:] == [*lines, line("next")]
        journal.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_broken_connection_while_others_write_leaves_the_lines_once(postgres_url: str, when: str) -> None:
    """Another handle appends to the journal or rewrites it before the check."""
    for rewrites in (False, True):
        with breaking(postgres_url) as (database, place):
            journal = place.taken_in(HEADER + b"\n" + line("a") + b"\n")
            other = place_at(postgres_url).journals.open(journal.path)

            def meanwhile(other: Any = other, rewrites: bool = rewrites) -> None:
                put(other, line("other"))
                if rewrites:
                    other.replace(lambda raw: line("a", text="longer") if raw == line("a") else None)

            database.broken, database.meanwhile = when, meanwhile
            put(journal, line("x", "a"))
            assert sorted(ids(journal.rows())) == ["a", "other", "x"]
            put(journal, line("y", "x"))
            assert sorted(ids(other.rows())) == ["a", "other", "x", "y"]
            journal.close()


def test_whoever_cannot_find_out_says_that_the_outcome_is_unknown(postgres_url: str) -> None:
    """If the check fails too, OutcomeUnknown is raised, because the lines may be stored."""
    with breaking(postgres_url) as (database, place):
        journal = place.taken_in(HEADER + b"\n")

        def gone(*_: Any, **__: Any) -> Any:
            raise Unreachable("gone")

        database.broken, database.meanwhile = "after", lambda: setattr(database, "transact", gone)
        with pytest.raises(OutcomeUnknown):
            put(journal, line("a"))
        assert journal.failure is not None
        del database.transact
        journal.reopen()
        assert contents(journal) == [line("a")]
        journal.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_journal_whose_making_breaks_off_is_there_or_not(postgres_url: str, when: str) -> None:
    """If `create` fails, the journal does not exist and can be created."""
    with breaking(postgres_url) as (database, place):
        path = place.path()
        database.broken = when
        if when == "before":
            with pytest.raises(OutcomeUnknown):
                place.journals.create(path, [HEADER + b"\n"])
            place.journals.create(path, [HEADER + b"\n"])
        else:
            place.journals.create(path, [HEADER + b"\n"])
        assert place.content(path) == HEADER + b"\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rewrite_whose_connection_breaks_is_done_or_fails(postgres_url: str, when: str) -> None:
    """The rewrite is never partial, and after an error the journal is unchanged."""
    with breaking(postgres_url) as (database, place):
        journal = place.taken_in(HEADER + b"\n" + line("a") + b"\n")
        database.broken = when
        if when == "after":
            journal.replace(lambda raw: line("a", n=1) if raw == line("a") else None)
            assert contents(journal) == [line("a", n=1)]
        else:
            with pytest.raises(OutcomeUnknown):
                journal.replace(lambda raw: line("a", n=1) if raw == line("a") else None)
            journal.reopen()
            assert contents(journal) == [line("a")]
        put(journal, line("b"))
        journal.close()


def test_an_append_whose_connection_is_ended_by_the_server_is_made_once(
    postgres_url: str, postgres_server: Server
) -> None:
    """The connection of an append that waits for a lock is terminated; the lines are still stored once."""
    place = place_at(postgres_url)
    journal = place.taken_in(HEADER + b"\n")
    schema = place.database.schema
    with postgres_server.connect() as holder, postgres_server.connect() as admin:
        holder.execute("BEGIN")
        holder.execute(f"SELECT id FROM {schema}.file FOR UPDATE")
        thread = threading.Thread(target=lambda: put(journal, line("x")))
        thread.start()
        waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await_(lambda: bool(admin.execute(waiting).fetchall()))
        time.sleep(0.1)
        holder.execute("ROLLBACK")
        thread.join(30)
    assert contents(journal) == [line("x")]
    journal.close()
    place.close()
