"""Notes about statistics that MyAgents' index does not have yet."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count

import pytest

from faults.failing import Fail, FaultyFilesystem, Kill, Killed, Meddle
from myagents_folder import OURS, ROOT, Time, asked, begun, everything, folder, put, put_index, row, told
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import SessileError, SessionBusy
from sessile.storage import locks
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("M4")

PENDING = f"{OURS}/pending"
LOCK = f"{ROOT}/sessions.lock"


def stats_of(store: MyAgentsStore) -> object:
    known = store.get("s")
    return known.stats if known else None


def test_a_write_that_came_to_the_index_leaves_no_note() -> None:
    """A write that was refused before it wrote anything leaves no note either."""
    store = begun(folder())
    store.save("s", [asked(0), told(1)])
    with pytest.raises(SessileError):
        store.save("s", [asked(0)])
    assert store.fs.names(PENDING) == [] and store.pending() == []


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.append("s", [asked(2), told(3)]),
        lambda store: store.save("s", [asked(0), told(1, tokens=99), asked(2)]),
        lambda store: store.update("s", "1", {"usage": {"inputTokens": 5, "outputTokens": 5}}),
    ],
    ids=["append", "save", "update"],
)
def test_a_process_that_is_killed_anywhere_leaves_statistics_that_catch_up(
    act: Callable[[MyAgentsStore], object],
) -> None:
    """The process may die between the message and the index, and no explicit recount is needed."""
    for number in count(1):
        time = Time()
        inner = MemoryFilesystem(clock=time)
        begun(folder(inner, time)).save("s", [asked(0), told(1)])
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)])
        try:
            act(folder(faulty, time))
        except Killed:
            time.nanoseconds += 31_000_000_000  # its lock is stale by now
        for name in inner.names(PENDING):
            if str(locks.own_pid()) in name:  # of another process, for this one lives
                inner.rename(f"{PENDING}/{name}", f"{PENDING}/s.7-1")
        later = folder(inner, time)
        later.settle()
        assert stats_of(later) == later.recount("s"), f"killed before call {number}"
        assert later.pending() == []
        if not faulty.struck:
            assert number > 20
            return


def behind(*notes: str) -> tuple[MyAgentsStore, Time]:
    """Return a session with one uncounted message and some notes; process 8 is alive."""
    time = Time()
    inner = MemoryFilesystem(clock=time)
    begun(folder(inner, time)).save("s", [asked(0)])
    put_index(inner, row("s", stats={"messageCount": 0, "totalInputTokens": 0, "totalOutputTokens": 0}))
    for name in notes:
        put(inner, f"{PENDING}/{name}", b"")
    return folder(inner, time, alive=lambda pid: pid == 8), time


def test_the_next_write_pays_what_a_dead_process_owes() -> None:
    """An invalid note counts too; an unfinished one is ignored."""
    store, _ = behind("s.7-1", "s.strange", ".s.0a1b.tmp")
    assert store.pending() == ["s"]
    store.append("s", [asked(1)])
    assert stats_of(store) == store.recount("s")
    assert store.pending() == [] and store.fs.names(PENDING) == [".s.0a1b.tmp"]


def test_while_another_writes_nobody_counts_again() -> None:
    """What the other process is about to add would count twice; the note stays until it is done."""
    store, time = behind("s", "s.8-1")
    assert store.append("s", [asked(1)]).pending is None
    assert stats_of(store) == {"messageCount": 1, "totalInputTokens": 0, "totalOutputTokens": 0}
    assert store.pending() == ["s"]
    with pytest.raises(SessionBusy):
        store.repair_stats("s")
    assert 4.9 < sum(time.pauses) < 5.1
    store.fs.unlink(f"{PENDING}/s.8-1")
    assert store.settle() == ["s"] and stats_of(store) == store.recount("s")


def test_a_note_that_is_older_than_any_write_takes_is_owed() -> None:
    """Another process may have the number of the dead one."""
    store, time = behind("s.8-1")
    assert store.pending() == []
    time.nanoseconds += 30_000_000_001
    assert store.settle() == ["s"] and stats_of(store) == store.recount("s")


def test_an_earlier_process_of_our_number_is_dead() -> None:
    """In a container every process may have the same number."""
    store = begun(folder(alive=lambda pid: True))
    put(store.fs, f"{PENDING}/s.{locks.own_pid()}-1", b"")
    assert store.pending() == ["s"]


def test_a_debt_made_while_another_is_paid_stays() -> None:
    """A message may have been stored between the recount and the removal of the note."""
    time = Time()
    inner = MemoryFilesystem(clock=time)
    store = begun(folder(inner, time))
    inner.mkdir(LOCK)
    store.append("s", [asked(0)])
    inner.rmdir(LOCK)

    def another() -> None:
        time.nanoseconds += 1
        assert folder(inner, time).append("s", [asked(1)]).pending is not None

    faulty = FaultyFilesystem(inner, plan=[Meddle(another, on={"rmdir"})])  # where the lock is released
    folder(faulty, time).settle()
    assert faulty.struck
    later = folder(inner, time)
    assert later.pending() == ["s"] and later.settle() == ["s"]
    assert stats_of(later) == later.recount("s")


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_where_no_note_can_be_made_the_message_is_stored_all_the_same(code: int) -> None:
    """If our folder is full or not writable, messages are stored anyway."""
    inner = MemoryFilesystem()
    begun(folder(inner))
    faulty = FaultyFilesystem(inner, plan=[Fail(code, on={"mkdir"})])  # the first folder that an append makes is ours
    store = folder(faulty)
    put(inner, f"{ROOT}/sessions/s.jsonl", b"")
    assert store.append("s", [asked(0)]).pending is None and faulty.struck
    assert stats_of(store) == store.recount("s")


def test_a_write_that_failed_half_way_is_counted_again() -> None:
    """It is unknown how much was written."""
    inner = MemoryFilesystem()
    begun(folder(inner)).save("s", [asked(0), told(1)])
    faulty = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"sync"})])
    with pytest.raises(SessileError):
        folder(faulty).append("s", [asked(2)])
    later = folder(inner)
    assert later.pending() == ["s"] and later.settle() == ["s"]
    assert stats_of(later) == later.recount("s")


def test_a_debt_to_a_session_without_a_row_is_dropped_and_looking_writes_nothing() -> None:
    """There are no statistics to update; adopting the file counts it."""
    store = folder()
    put(store.fs, f"{PENDING}/gone", b"")
    before = everything(store.fs, "/")
    assert store.pending() == ["gone"] and everything(store.fs, "/") == before
    assert store.settle() == [] and store.pending() == []
