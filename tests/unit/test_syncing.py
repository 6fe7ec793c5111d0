"""Syncing sessions between stores: exact copies, repeatable, and without loss on either side."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from builders import assistant, user
from faults.failing import FaultyFilesystem, Kill, Killed
from sessile import Session, Store, sync
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.entries import SessionEntry
from sessile.demo.corpus import make_demo
from sessile.gateway.conversations.bindings import sync_bindings
from sessile.storage import session_bytes
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.session_bytes import RawFile
from sessions import header, write_file

pytestmark = pytest.mark.mission("B8")


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return Store(tmp_path / "source", durability="process")


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(tmp_path / "target", durability="process")


def talk(store: Store, *texts: str) -> Session:
    session = store.create("/work/app", publish=True)
    for text in texts:
        session.append_message(user(text))
    return session


def contents(store: Store) -> dict[str, bytes]:
    """Return every file below the sessions of a store by its relative path."""
    top = Path(store.layout.sessions)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def texts(store: Store, session_id: str) -> set[str]:
    with store.open(session_id, readonly=True) as session:
        return {entry["message"]["content"] for entry in session.iter_entries()}


def test_every_session_comes_byte_for_byte_with_what_belongs_to_it(source: Store, target: Store) -> None:
    """The sessions of the demo include damaged ones, old versions and sub-agents."""
    make_demo(source)
    session = talk(source, "x" * 600_000)
    Path(session.artifacts).mkdir()
    (Path(session.artifacts) / "tool.txt").write_text("all of it")
    states = Counter(done.state for done in sync(source, target))
    assert set(states) == {"new"} and states["new"] >= 40
    assert contents(target) == contents(source)
    blobs = {path.name: path.read_bytes() for path in Path(source.layout.blobs).iterdir()}
    assert blobs and blobs == {path.name: path.read_bytes() for path in Path(target.layout.blobs).iterdir()}


def test_what_is_there_already_is_not_written_again(source: Store, target: Store) -> None:
    """A second sync changes neither bytes nor times."""
    make_demo(source)
    list(sync(source, target))
    before = {
        path: (Path(path).stat().st_mtime_ns) for path, _ in session_bytes.journals(target.fs, target.layout.sessions)
    }
    assert {done.state for done in sync(source, target)} == {"same"}
    assert before == {path: Path(path).stat().st_mtime_ns for path in before}


def test_a_session_that_went_on_gets_the_entries_that_it_lacks(source: Store, target: Store) -> None:
    """Only missing entries are written, and both files are equal again."""
    session = talk(source, "one")
    list(sync(source, target))
    session.append_message(user("two"))
    (done,) = sync(source, target)
    assert (done.state, done.entries) == ("grown", 1)
    assert contents(target) == contents(source)


def test_two_copies_that_went_on_apart_end_with_the_entries_of_both(source: Store, target: Store) -> None:
    """The entries of both sides are kept as branches."""
    session = talk(source, "one")
    list(sync(source, target))
    session.append_message(user("here"))
    with target.open(session.id) as copy:
        copy.append_message(user("there"))
    list(sync(source, target))
    list(sync(target, source))
    both = {"one", "here", "there"}
    assert texts(source, session.id) == texts(target, session.id) == both
    assert {done.state for done in (*sync(source, target), *sync(target, source))} == {"same"}


def test_an_entry_that_was_rewritten_is_told_and_both_copies_stay(source: Store, target: Store) -> None:
    """The conflict is reported, and the other sessions are synced."""
    session = talk(source, "secret")
    list(sync(source, target))
    other = talk(source, "more")
    session.rewrite_entries(lambda entry: {**entry.body, "message": user("[redacted]")})
    done = {each.source: each for each in sync(source, target)}
    assert done[session.path].state == "failed" and "rewritten" in str(done[session.path].error)
    assert done[other.path].state == "new"
    assert texts(target, session.id) == {"secret"} and texts(source, session.id) == {"[redacted]"}


def test_a_rewritten_entry_of_the_same_length_is_told_though_the_ends_are_the_same(
    source: Store, target: Store
) -> None:
    """Equal size and end are not sufficient if the source was written after the copy was made."""
    session = talk(source, "secret", "x" * 10_000)
    list(sync(source, target))
    session.rewrite_entries(
        lambda entry: {**entry.body, "message": user("******")} if entry["message"]["content"] == "secret" else None
    )
    (done,) = sync(source, target)
    assert done.state == "failed" and "1 entry was rewritten" in str(done.error)
    assert "secret" in texts(target, session.id)


def test_a_copy_that_has_grown_has_the_time_of_its_original(source: Store, target: Store) -> None:
    """The next sync then only has to compare the ends."""
    session = talk(source, "one")
    list(sync(source, target))
    session.append_message(user("two"))
    (done,) = sync(source, target)
    assert done.state == "grown"
    assert os.stat(done.path).st_mtime_ns == os.stat(session.path).st_mtime_ns


def test_copies_that_differ_only_in_their_times_are_the_same(source: Store, target: Store) -> None:
    """The files are compared byte for byte, because entries of old versions have no ids."""
    path = write_file(f"{source.layout.folder('/work/app')}/old.jsonl", header(version=1), {"type": "message"})
    list(sync(source, target))
    os.utime(path, ns=(1, 1))
    (done,) = sync(source, target)
    assert (done.state, done.error) == ("same", None)


def test_a_session_that_was_moved_there_goes_on_where_it_is(source: Store, target: Store) -> None:
    """A session is identified by its file name, not by its folder."""
    session = talk(source, "one")
    list(sync(source, target))
    with target.open(session.id) as copy:
        copy.move_to("/work/other")
    session.append_message(user("two"))
    (done,) = sync(source, target)
    assert (done.state, done.path) == ("grown", copy.path)
    assert texts(target, session.id) == {"one", "two"}
    assert len(target.list_all()) == 1


def test_drafts_stay_where_they_are(source: Store, target: Store) -> None:
    """A draft has no answer yet."""
    with source.create("/work/app") as draft:
        draft.append_message(user("one"))
        assert list(sync(source, target)) == []
        draft.append_message(assistant("two"))
        assert [done.state for done in sync(source, target)] == ["new"]


def test_pins_come_along(source: Store, target: Store) -> None:
    """Pins of the target stay."""
    source.pins.add("a")
    target.pins.add("b")
    list(sync(source, target))
    assert set(target.pins.names()) == {"a", "b"}


def test_a_preview_writes_nothing(source: Store, target: Store) -> None:
    """A preview reports what would be done."""
    session = talk(source, "one")
    (done,) = sync(source, target, preview=True)
    assert (done.state, done.entries) == ("new", 0) and done.bytes > 0
    assert not Path(target.layout.root).exists()
    list(sync(source, target))
    session.append_message(user("two"))
    (done,) = sync(source, target, preview=True)
    assert (done.state, done.entries) == ("grown", 1)
    assert texts(target, session.id) == {"one"}


def test_a_kill_before_any_call_leaves_whole_sessions_and_the_next_time_goes_on(source: Store) -> None:
    """After a kill at any call, a session is missing or complete, and the next sync continues."""
    for number in range(2):
        talk(source, f"a{number}", "x" * 600_000)
    whole = contents(source)
    for number in count(1):
        disk = MemoryFilesystem()
        faulty = FaultyFilesystem(disk, plan=[Kill(at=number)])
        try:
            list(sync(source, Store("/t", fs=faulty, durability="process")))
            break
        except Killed:
            pass
        target = Store("/t", fs=disk, durability="process")
        for info in target.list_all():
            assert file_bytes(target, info.path) == whole[info.path.removeprefix(f"{target.layout.sessions}/")]
        list(sync(source, target))
        assert len(target.list_all()) == 2
        assert len([name for name in disk.names(target.layout.blobs) if len(name) == 64]) == 1
    assert number > 20


def file_bytes(store: Store, path: str) -> bytes:
    with RawFile(store.fs, path) as file:
        return b"".join(file.chunks())


def bind(store: Store, key: str, session: Session, updated: int) -> None:
    entry = SessionEntry({"sessionId": session.id, "sessionFile": session.path, "updatedAt": updated})
    own_bindings(store, "main").update(key, lambda _: entry, now=updated)


def test_only_what_can_be_an_agent_is_brought(source: Store, target: Store) -> None:
    """A folder with another spelling of an agent's id is skipped."""
    bind(source, "agent:main:a", talk(source, "one"), 1_000)
    agents = Path(source.layout.root) / "agents"
    (agents / "Main").mkdir()
    (agents / ".DS_Store").touch()
    assert sync_bindings(source, target, preview=True) == 1
    assert sync_bindings(source, target) == 1


def test_bindings_come_along_and_of_two_the_newer_holds(source: Store, target: Store) -> None:
    """Paths of sessions are those of the target."""
    one, two = talk(source, "one"), talk(source, "two")
    bind(source, "agent:main:a", one, 1_000)
    bind(source, "agent:main:b", two, 5_000)
    list(sync(source, target))
    assert sync_bindings(source, target, preview=True) == 2
    assert sync_bindings(source, target) == 2
    found = own_bindings(target, "main").read()
    assert found["agent:main:a"].session_file == one.path.replace("/source/", "/target/")
    bind(target, "agent:main:b", one, 9_000)
    bind(source, "agent:main:a", two, 7_000)
    assert sync_bindings(source, target) == 1
    found = own_bindings(target, "main").read()
    assert [found[f"agent:main:{key}"].session_id for key in "ab"] == [two.id, one.id]
    assert sync_bindings(source, target) == 0
