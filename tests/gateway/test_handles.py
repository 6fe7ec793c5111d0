"""Open session handles: opened once, closed when unused, and reopened after a storage failure."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path
from random import Random

import pytest

from builders import user
from faults.failing import Fail, FaultyFilesystem
from sessile import Session, Store
from sessile.errors import SessionNotFound, StorageFailure
from sessile.gateway.handles import Handles, open_for_appending
from sessile.storage.filesystem import PosixFilesystem
from sessions import begun, say, store_at

pytestmark = pytest.mark.mission("Y13")


def handles_of(store: Store, **options: int) -> Handles[Session]:
    """Return handles for appending to the sessions of a store."""
    return Handles(partial(open_for_appending, store), **options)


def sessions(store: Store, number: int) -> list[str]:
    """Create closed sessions and return their paths."""
    paths = []
    for _ in range(number):
        with begun(store) as session:
            paths.append(session.path)
    return paths


def is_open(session: Session) -> bool:
    """Return whether the session can still be appended to."""
    try:
        session.append_message(user("still there"))
    except StorageFailure:
        return False
    return True


def test_a_session_is_opened_once_and_stays_open(tmp_path: Path) -> None:
    """Concurrent and later users get the same open session, until the handles are closed."""
    store = store_at(tmp_path)
    (path,) = sessions(store, 1)
    handles = handles_of(store)
    with handles.opened(path) as one, handles.opened(path) as same:
        assert one is same
    with handles.opened(path) as later:
        assert later is one and is_open(later)
    handles.close()
    assert not is_open(one)


def test_the_one_that_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    """Above the limit, the least recently used session is closed."""
    store = store_at(tmp_path)
    paths = sessions(store, 3)
    handles = handles_of(store, most=2)
    kept = []
    for path in (paths[0], paths[1], paths[0], paths[2]):
        with handles.opened(path) as session:
            kept.append(session)
    first, second, same, third = kept
    assert first is same
    assert [is_open(session) for session in (first, second, third)] == [True, False, True]
    handles.close()


def test_one_that_is_used_is_never_closed(tmp_path: Path) -> None:
    """A session in use is never closed, even if it is dropped; it is closed after its last user."""
    store = store_at(tmp_path)
    busy, *others = sessions(store, 4)
    handles = handles_of(store, most=1)
    with handles.opened(busy) as session:
        for other in others:
            with handles.opened(other):
                pass
        with handles.opened(busy) as second:
            assert second is session
            handles.drop(busy)
        assert is_open(session)
        with handles.opened(busy) as anew:
            assert anew is not session and is_open(anew)
    assert not is_open(session)
    handles.close()


def test_one_whose_storage_failed_is_opened_anew(tmp_path: Path) -> None:
    """After a storage failure, the session is opened again."""
    path = sessions(store_at(tmp_path), 1)[0]
    faulty = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={"write"})])
    handles = handles_of(store_at(tmp_path, fs=faulty))
    with pytest.raises(StorageFailure), handles.opened(path) as session:
        say(session, "too much")
    with handles.opened(path) as anew:
        assert anew is not session
        say(anew, "enough room")
    handles.close()


def test_another_error_leaves_it_as_it_is(tmp_path: Path) -> None:
    """Other errors leave the session open."""
    store = store_at(tmp_path)
    (path,) = sessions(store, 1)
    handles = handles_of(store)
    with pytest.raises(ZeroDivisionError), handles.opened(path) as session:
        raise ZeroDivisionError
    with handles.opened(path) as same:
        assert same is session
    handles.close()


def test_what_is_not_there_is_told_and_not_remembered(tmp_path: Path) -> None:
    """A missing session is not cached, and can be opened once it exists."""
    store = store_at(tmp_path)
    (path,) = sessions(store, 1)
    aside = Path(path).rename(tmp_path / "aside")
    handles = handles_of(store)
    with pytest.raises(SessionNotFound), handles.opened(path):
        pass
    handles.drop(path)
    aside.rename(path)
    with handles.opened(path) as session:
        assert is_open(session)
    handles.close()


def test_threads_that_ask_for_many_lose_nothing(tmp_path: Path) -> None:
    """Threads that share few handles lose no appends, even while handles are dropped."""
    store = store_at(tmp_path, patience=20)
    paths = sessions(store, 12)
    handles = handles_of(store, most=3)
    wrong: list[BaseException] = []

    def work(worker: int) -> None:
        rng = Random(worker)
        try:
            for _ in range(40):
                path = rng.choice(paths)
                with handles.opened(path) as session:
                    session.append_many([{"type": "message", "message": user(str(worker))}], on_leaf_moved="follow")
                if rng.random() < 0.1:
                    handles.drop(rng.choice(paths))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    handles.close()
    total = 0
    for path in paths:
        with store.open(path, readonly=True) as session:
            total += len(session.get_entries())
    assert total == 6 * 40
