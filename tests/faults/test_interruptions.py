"""An interruption in the middle of an append leaves a whole entry or none, and no lock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

import pytest

from faults.interruptions import interrupted
from faults.ledger import CWD, Broken, expect, message, store_on, text_of
from faults.processes import fast_folder
from faults.striding import calls
from figures import measured
from sessile import Session, Store
from sessile.storage.base import Appended, Revise
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem

ROOT = "/store"

Work = Callable[[Session], object]


class Scene(NamedTuple):
    """A kind of append, whether the session is a draft, and whether it must be reopened after an interruption."""

    name: str
    work: Work
    draft: bool = False
    reopened: bool = False


def say(session: Session) -> None:
    session.append_message(message("interrupted"))


def answer(session: Session) -> None:
    session.append_message(message("interrupted", "assistant"))


def say_twice(session: Session) -> None:
    payloads = [{"type": "message", "message": message(text)} for text in ("interrupted", "interrupted again")]
    session.append_many(payloads, key="twice")


def rename(session: Session) -> None:
    session.set_session_name("interrupted")


SCENES = [
    Scene("an entry", say),
    Scene("an entry of a draft", say, draft=True),
    Scene("the answer that publishes a draft", answer, draft=True),
    Scene("entries under a key", say_twice),
    Scene("a name, which rewrites the file", rename, reopened=True),
]
every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)


def in_time(work: Callable[[], object]) -> None:
    """Run `work` in another thread, and fail if a lock blocks it."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    expect(not thread.is_alive(), "a lock of the session is still held")
    if failures:
        raise Broken("the session does not go on") from failures[0]


def check_after(fs: MemoryFilesystem, session: Session, peer: Session | None, before: list[str]) -> bool:
    """Raise unless the session continues with the whole append or without it. Return whether it was made."""
    other = store_on(fs, ROOT, 3)
    path = session.path if session.path in {info.path for info in other.list_all()} else session._journal.path
    shown = other.open(path, readonly=True)
    expect(not shown.findings, f"the file is damaged: {shown.findings}")
    ids = [entry.id for entry in shown.get_entries()]
    expect(ids[: len(before)] == before, "an earlier entry has changed its place")
    made = ids[len(before) :]
    in_time(lambda: expect([e.id for e in session.get_entries()] == ids, "the session shows something else"))
    expect(session.leaf_id == shown.leaf_id, f"the session stands on {session.leaf_id}, its file on {shown.leaf_id}")
    expect(session.context().messages == shown.context().messages, "the session has another context than its file")
    shown.close()
    for late in (peer, None if session.is_draft else other.open(path)):
        if late is not None:
            in_time(partial(late.append_message, message("by another")))  # refused while the file is locked
            late.close()
    in_time(lambda: session.append_message(message("and on", "assistant")))
    texts = [text_of(entry) for entry in other.open(session.path, readonly=True).get_entries()]
    expect(texts[-1] == "and on", "what was appended afterwards is not the last entry")
    session.close()
    return bool(made)


def prepared(scene: Scene) -> tuple[MemoryFilesystem, Session]:
    fs = MemoryFilesystem()
    store = store_on(fs, ROOT, 1)
    session = store.create(CWD, publish=not scene.draft)
    session.append_message(message("first"))
    session.append_message(message("second"))
    session.context()
    return fs, session


def check_interruptions(scene: Scene, numbers: Iterator[int], patience: float = 10.0) -> tuple[int, int]:
    """Interrupt the work at each of these places. Return the number of places and of completed appends."""
    done = 0
    for places, number in enumerate(numbers):
        fs, session = prepared(scene)
        before = [entry.id for entry in session.get_entries()]
        peer = None if scene.draft else Store(ROOT, fs=fs, patience=patience).open(session.path)
        place = interrupted(number, partial(scene.work, session))
        if place is None:
            return places, done
        try:
            if scene.reopened:
                in_time(session.reopen)
            done += check_after(fs, session, peer, before)
        except Exception as error:
            raise AssertionError(f"{scene.name}: interrupted at place {number}, {place}") from error
    raise AssertionError("not reached")


@pytest.mark.promise("P9")
@every_scene
def test_an_interruption_leaves_a_whole_entry_or_none_and_no_lock(scene: Scene) -> None:
    """After an interruption at any place, all handles can append, and the session agrees with its file."""
    places, done = check_interruptions(scene, calls())
    assert places > 40
    assert 0 < done < places
    measured("P9", "interruptions of an append", places=places, entries_left_whole=done, half_entries=0, locks_left=0)


def without_guard(journal: FileJournal, lines: Sequence[bytes], revise: Revise) -> Appended:
    """Append wrongly: an interruption between locking and the `try` leaves the lock held."""
    with journal._mutex:
        size = journal._lock_file()
        try:
            appended = journal._append_locked(lines, revise, size)
        finally:
            journal._unlock()
        assert appended is not None
        return appended


@pytest.mark.promise("P9")
def test_without_the_guard_around_the_lock_the_rig_reports_that_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the lock is taken outside its guard, the rig reports a held lock."""
    monkeypatch.setattr(FileJournal, "append", without_guard)
    with pytest.raises(AssertionError, match="interrupted at place"):
        check_interruptions(SCENES[0], count(1), patience=0)


@pytest.mark.promise("P9")
def test_without_a_look_at_the_file_the_rig_reports_a_session_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an interrupted session does not check its file, the rig reports that they differ."""
    monkeypatch.setattr(Session, "_recover_leaf", lambda self, batch: None)
    with pytest.raises(AssertionError, match="interrupted at place"):
        check_interruptions(SCENES[0], count(1), patience=0)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def check_signals(signals: int, seed: int) -> tuple[int, int]:
    """Append while a timer interrupts at random moments. Return the numbers of interrupted and completed appends."""
    rng = Random(seed)
    hit = spared = 0
    longest = 0.0002
    handler = signal.signal(signal.SIGALRM, stop)
    try:
        with fast_folder() as root:
            session = Store(root, patience=0).create(CWD, publish=True)
            peer = Store(root, patience=0).open(session.path)
            acknowledged = []
            while hit < signals:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, longest))
                    acknowledged.append(session.append_message(message("interrupted")).id)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    spared += 1
                    longest /= 1.1
                except KeyboardInterrupt:
                    hit += 1
                    longest *= 1.1
                    peer.append_message(message("by another"))
                    expect(not session.findings, "the file is damaged")
            ids = {entry.id for entry in session.get_entries()}
            expect(ids.issuperset(acknowledged), "an acknowledged entry is lost")
            fresh = Store(root).open(session.path, readonly=True)
            expect([entry.id for entry in fresh.get_entries()] == [e.id for e in session.get_entries()], "they differ")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    return hit, spared


@pytest.mark.promise("P9")
@pytest.mark.parametrize("signals", [100, pytest.param(5_000, marks=pytest.mark.long)])
def test_signals_at_random_moments_leave_whole_entries_and_no_lock(signals: int) -> None:
    """With a real timer and real files, another handle can append without waiting after every interruption."""
    hit, _ = check_signals(signals, seed=1)
    measured("P9", "signals at random moments", interruptions=hit, damaged_files=0, locks_left=0)
