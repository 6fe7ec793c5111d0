"""Objects that are dropped without being closed keep no descriptor, whatever they are."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from figures import measured
from myagents_folder import asked, told
from sessile import HistoryStorage, Library, Session, Store
from sessile.agents.myagents.store import MyAgentsStore
from sessile.aio import AsyncSession
from sessile.errors import StorageFull
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.session_bytes import RawFile
from sessile.storage.session_storage import FileSessionStorage
from sessile.storage.turn_log import TurnLog

from .test_foreign import SESSION
from .test_in_place import ROWS, user
from .test_latched_failures import Full

pytestmark = pytest.mark.promise("P50")

OPENED = 500


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def reference_counts() -> Iterator[None]:
    """Switch the collector off: an object in a cycle would be released late, and descriptors would run out before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Place:
    """A store with a session that has a saved index, and a session of each agent that can be written in place."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "root", durability="process")
        with self.store.create("/work/app", publish=True) as session:
            session.append_many({"type": "message", "message": user(f"{n}")} for n in range(200))
            assert session.count_entries() == 200
        self.path = session.path
        assert list((folder / "root" / "cache").rglob("*"))
        claude = folder / "claude" / "projects" / "-work-app" / f"{SESSION}.jsonl"
        claude.parent.mkdir(parents=True)
        claude.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.claude = str(claude)
        theirs = MyAgentsStore(PosixFilesystem(), str(folder / ".myagents"), str(folder / "theirs"))
        theirs.create("3f6c0001-aaaa", "/work/app")
        theirs.append("3f6c0001-aaaa", [asked(0, "question"), told(1, text="answer")])
        self.myagents = str(folder / ".myagents" / "sessions" / "3f6c0001-aaaa.jsonl")
        self.history = str(folder / "history.db")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def used(session: Session) -> Session:
    """Read from a session in every way that opens or keeps something."""
    session.context()
    session.get_entries()
    session.get_tree()
    return session


def failed(place: Place) -> None:
    with pytest.raises(StorageFull):
        Store(place.store.layout.root, fs=Full(PosixFilesystem())).open(place.path).append_message(user("lost"))
    gc.collect()  # the error refers to the frames of the call, and the session to the error


def recorded(place: Place) -> None:
    history = HistoryStorage(place.history)
    history.add("a prompt", cwd="/work/app")
    history.flush()


DROPS: dict[str, Callable[[Place], object]] = {
    "a session": lambda place: used(place.store.open(place.path)),
    "a session that was written": lambda place: used(place.store.open(place.path)).append_message(user("x")),
    "a session that failed": failed,
    "a session for reading": lambda place: used(place.store.open(place.path, readonly=True)),
    "a draft": lambda place: place.store.create("/work/draft").append_message(user("x")),
    "a fork": lambda place: used(place.store.open(place.path).fork()),
    "a rewritten session": lambda place: place.store.open(place.path).rewrite_entries(lambda entry: None),
    "an iterator": lambda place: next(place.store.open(place.path).iter_entries()),
    "an async session": lambda place: used(AsyncSession(place.store.open(place.path)).sync),
    "a transcript for reading": lambda place: used(place.store.open(place.claude, readonly=True)),
    "a transcript in place": lambda place: used(place.store.open(place.claude, in_place=True)),
    "a session of MyAgents in place": lambda place: used(place.store.open(place.myagents, in_place=True)),
    "a raw file": lambda place: RawFile(place.store.fs, place.path),
    "a writer": lambda place: FileSessionStorage().open_writer(place.path),
    "a turn log": lambda place: TurnLog(place.store.fs, place.store.layout.root).keep("s1", {"turn": 1}),
    "a library": lambda place: list(Library(place.store).search("question")),
    "a history": recorded,
}


@pytest.mark.parametrize("name", DROPS)
def test_what_is_dropped_keeps_no_descriptor(name: str, place: Place, reference_counts: None) -> None:
    """Objects of each kind are released by their last reference, without the collector."""
    DROPS[name](place)
    before = descriptors()
    for _ in range(10):
        DROPS[name](place)
    assert descriptors() <= before


def test_five_hundred_dropped_sessions_keep_no_descriptor(place: Place, reference_counts: None) -> None:
    """Opened and read, for writing and for reading, and never closed."""
    before = descriptors()
    for number in range(OPENED):
        used(place.store.open(place.path, readonly=number % 2 == 1))
    left = descriptors() - before
    measured("P50", "sessions dropped without close", opened=OPENED, leaks=left)
    assert left == 0


def test_an_open_session_holds_one_descriptor(place: Place) -> None:
    """A small index is read at once, so the cache file does not stay open."""
    before = descriptors()
    sessions = [used(place.store.open(place.path)) for _ in range(10)]
    assert descriptors() - before == len(sessions)
    for session in sessions:
        session.close()


def test_a_dropped_draft_is_free(place: Place) -> None:
    """The lock of a draft goes with its descriptor, so that the next session recovers it."""
    path = place.store.create("/work/draft").append_message(user("kept")).path
    with place.store.open(path) as session:
        assert [entry["message"]["content"] for entry in session.get_entries()] == ["kept"]


def test_a_dropped_session_writes_nothing(place: Place) -> None:
    """The collector may run at any time: only `close` stores the leaf."""
    before = Path(place.path).read_bytes()
    session = place.store.open(place.path)
    session.branch(session.get_entries()[0].id)
    del session
    assert Path(place.path).read_bytes() == before


def test_a_session_in_memory_is_released(reference_counts: None) -> None:
    """The open files of the file system in memory do not grow either."""
    fs = MemoryFilesystem()
    store = Store("/memory", fs=fs)
    for _ in range(10):
        store.create("/work/app", publish=True).append_message(user("x"))
    assert not fs._open
