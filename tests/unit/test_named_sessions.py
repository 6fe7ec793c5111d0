"""Sessions named by another program: found without a listing, created once, shared, and deleted to the trash."""

from __future__ import annotations

import gc
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile import Session, Store
from sessile.adapters.named_sessions import NamedSessions
from sessile.errors import InvalidId, LeafMoved

pytestmark = pytest.mark.mission("B9")


@pytest.fixture
def threads(tmp_path: Path) -> NamedSessions:
    """Return the sessions of one program."""
    return NamedSessions(Store(tmp_path / "root"), "langgraph")


def said(session: Session) -> list[str]:
    return [entry["data"] for entry in session.iter_entries()]


def test_a_name_gives_the_same_session_again_also_to_another_process(threads: NamedSessions) -> None:
    """The path is derived from the names, which are in the header."""
    session = threads.open("team", "thread 1")
    session.append_custom_entry("said", "hello")
    assert threads.open("team", "thread 1") is session
    other = NamedSessions(Store(threads.store.layout.root), "langgraph").find("team", "thread 1")
    assert other is not None and other is not session
    assert said(other) == ["hello"]
    assert other.header["named"] == {"program": "langgraph", "scope": "team", "name": "thread 1"}
    assert other.cwd == "/langgraph/team"


def test_a_name_that_was_never_opened_has_no_session(threads: NamedSessions) -> None:
    """Looking for a session creates nothing."""
    assert threads.find("team", "thread 1") is None
    assert threads.list() == []
    assert threads.delete("team", "thread 1") is None


def test_a_session_is_listed_at_once_under_its_scope(threads: NamedSessions) -> None:
    """Scopes are separate, and a program can list all of its scopes."""
    for scope, name in (("a", "1"), ("a", "2"), ("b", "1"), ("", "x")):
        threads.open(scope, name)
    NamedSessions(threads.store, "other").open("a", "3")
    assert {named.name for named in threads.list("a")} == {"1", "2"}
    assert {(named.scope, named.name) for named in threads.list()} == {("a", "1"), ("a", "2"), ("b", "1"), ("", "x")}
    assert len(threads.store.list_all()) == 5


def test_the_session_that_was_changed_last_is_listed_first(threads: NamedSessions) -> None:
    """The order uses the modification times of the files."""
    first, second = threads.open("", "1"), threads.open("", "2")
    second.append_custom_entry("said", "a")
    time.sleep(0.05)  # the clock of a file system may have a resolution of some milliseconds
    first.append_custom_entry("said", "b")
    listed = threads.list("")
    assert [named.name for named in listed] == ["1", "2"]
    assert abs(listed[0].modified - threads.store.now()) < 60_000


def test_a_deleted_session_can_be_brought_back_and_the_name_begins_anew(threads: NamedSessions) -> None:
    """The trash has the old entries."""
    threads.open("", "x").append_custom_entry("said", "old")
    token = threads.delete("", "x")
    assert token is not None and threads.find("", "x") is None
    assert said(threads.open("", "x")) == []
    assert threads.delete("", "x") is not None
    threads.store.undo(token)
    found = threads.find("", "x")
    assert found is not None and said(found) == ["old"]


def test_a_session_that_another_process_has_begun_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """The cached handle of the deleted file is not returned."""
    mine, other = (NamedSessions(Store(tmp_path), "p") for _ in range(2))
    mine.open("", "x").append_custom_entry("said", "old")
    other.delete("", "x")
    other.open("", "x").append_custom_entry("said", "new")
    assert said(mine.open("", "x")) == ["new"]


def test_a_file_that_somebody_has_only_just_begun_is_no_session_yet(threads: NamedSessions) -> None:
    """Opening an empty file writes the header with the names."""
    path = Path(threads.path("team", "x"))
    path.parent.mkdir(parents=True)
    path.touch()
    assert threads.find("team", "x") is None
    assert threads.open("team", "x").header["named"]["name"] == "x"


def test_only_a_safe_word_can_name_a_program(tmp_path: Path) -> None:
    """The name of a program is part of paths."""
    with pytest.raises(InvalidId):
        NamedSessions(Store(tmp_path), "../x")


NAMES = st.text(max_size=100) | st.sampled_from(["..", "/", "a/b", "\0", "\ud83d", "a" * 300, "Ä", "a-b"])


@given(st.sets(st.tuples(NAMES, NAMES), max_size=8))
def test_any_names_are_kept_apart_and_come_back_as_they_are(names: set[tuple[str, str]]) -> None:
    """Every name stays inside the sessions folder, and no two names share a file."""
    threads = NamedSessions(Store.in_memory(), "p")
    for scope, name in names:
        threads.open(scope, name)
    listed = threads.list()
    assert {(named.scope, named.name) for named in listed} == names
    assert all(threads.store.layout.owns(named.path) for named in listed)
    assert len({named.path for named in listed}) == len(names)
    for scope, name in names:
        assert (scope, name) in {(named.scope, named.name) for named in threads.list(scope)}


def test_sessions_that_nobody_uses_are_closed(tmp_path: Path) -> None:
    """A session that is still referenced stays open and is returned again."""
    threads = NamedSessions(Store(tmp_path), "p", keep_open=2)
    held = threads.open("", "held")
    for number in range(20):
        threads.open("", str(number)).append_custom_entry("said", "x")
    gc.collect()
    assert len(threads._open) == 3
    assert threads.open("", "held") is held
    assert said(threads.open("", "3")) == ["x"]


def test_of_sessions_that_were_let_go_nothing_is_known_any_more(tmp_path: Path) -> None:
    """The cache does not grow with the number of names."""
    threads = NamedSessions(Store(tmp_path), "p", keep_open=2)
    for number in range(10):
        threads.open("", str(number)).append_custom_entry("said", "x")
    gc.collect()
    assert len(threads._inodes) == 2
    held = threads.open("", "9")
    threads.close()
    assert len(threads._inodes) == 0
    assert threads.open("", "9") is not held


def test_a_leaf_that_was_moved_durably_survives_that_its_session_makes_room(tmp_path: Path) -> None:
    """The leaf is stored even if the session was evicted without being closed."""
    threads = NamedSessions(Store(tmp_path), "p", keep_open=2)
    session = threads.open("", "x")
    leaf = session.append_custom_entry("said", "one").id
    session.append_custom_entry("said", "two")
    session.branch(leaf, durable=True)
    del session
    for name in "abc":
        threads.open("", name)
    gc.collect()
    assert threads.path("", "x") not in threads._open
    assert threads.open("", "x").leaf_id == leaf


def test_whoever_is_busy_in_a_session_keeps_nobody_from_opening_others(tmp_path: Path) -> None:
    """Evicting a busy session does not block."""
    threads = NamedSessions(Store(tmp_path), "p", keep_open=1)
    session = threads.open("", "x")
    with session._lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads.open, "", "y").result(timeout=20).leaf_id is None


def test_no_more_sessions_stay_open_than_they_may_though_they_were_held_for_a_while(tmp_path: Path) -> None:
    """Finding a session again does not keep it open forever."""
    threads = NamedSessions(Store(tmp_path), "p", keep_open=2)
    held = [threads.open("", str(number)) for number in range(5)]
    assert [threads.find("", str(number)) for number in range(5)] == held
    held.clear()
    gc.collect()
    assert len(threads._open) == 2


def _append(root: str, name: str, count: int) -> None:
    session = NamedSessions(Store(root, durability="process"), "p").open("", "shared")
    for number in range(count):
        session.append_many(
            [{"type": "custom", "customType": "said", "data": f"{name}{number}"}], on_leaf_moved="follow"
        )


def test_many_processes_begin_one_session_together(tmp_path: Path) -> None:
    """One process creates the file, and the entries of all processes are on one path in file order."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_append, args=(str(tmp_path), name, 25)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    session = NamedSessions(Store(tmp_path), "p").find("", "shared")
    assert session is not None
    assert sorted(said(session)) == sorted(f"{name}{number}" for name in "abcd" for number in range(25))
    assert [entry.id for entry in session.get_branch()] == [entry.id for entry in session.iter_entries()]


def test_follow_stands_on_what_others_appended(tmp_path: Path) -> None:
    """A leaf moves only on request, so other writers do not change a branch."""
    mine = NamedSessions(Store(tmp_path), "p").open("", "x")
    other = NamedSessions(Store(tmp_path), "p").open("", "x")
    receipt = other.append_custom_entry("said", "hello")
    assert mine.leaf_id is None
    assert mine.follow() and mine.leaf_id == receipt.id
    assert not mine.follow()


def test_who_follows_can_append_though_another_has_gone_back(tmp_path: Path) -> None:
    """After `follow` the entries of the other writer no longer prevent an append."""
    mine, other = (NamedSessions(Store(tmp_path), "p").open("", "x") for _ in range(2))
    first = mine.append_custom_entry("said", "first").id
    other.follow()
    other.append_custom_entry("said", "second")
    other.branch(first, durable=True)
    with pytest.raises(LeafMoved):
        mine.append_many([{"type": "custom", "customType": "said"}], on_leaf_moved="fail")
    mine.follow()
    assert mine.leaf_id == first
    (receipt,) = mine.append_many([{"type": "custom", "customType": "said"}], on_leaf_moved="fail")
    assert receipt.parent_id == first
