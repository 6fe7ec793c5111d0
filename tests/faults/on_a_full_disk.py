"""Check a store on a small full disk. `test_full_disk` runs this in a mount namespace of its own.

python -m faults.on_a_full_disk <mounted folder> <step>
"""

from __future__ import annotations

import errno
import os
import shutil
import sys

from faults.ledger import CWD, message
from faults.test_full_disk import TOO_MUCH, check_room_again, texts
from sessile import Filter, Library, Session, Store, check
from sessile.errors import StorageFull

PAGE = 4096
MOST = 24_000  # maximum size of a session in bytes before a new one is started
LOOKS = 10  # interval of checks with the catalog, which are the slowest part


class Disk:
    """A disk that can be filled and emptied."""

    def __init__(self, folder: str) -> None:
        self._ballast = os.open(f"{folder}/ballast", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def fill(self) -> None:
        for size in (PAGE, 1):
            try:
                while os.write(self._ballast, bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC

    def free(self) -> None:
        os.ftruncate(self._ballast, 0)


def begin(store: Store) -> Session:
    session = store.create(CWD, publish=True)
    session.append_message(message("first"))
    return session


def length_of(session: Session, text: str) -> int:
    """Append a text and return the length of its line."""
    before = os.path.getsize(session.path)
    session.append_message(message(text))
    return os.path.getsize(session.path) - before


def leave(session: Session, disk: Disk, room: int) -> None:
    """Move the end of the journal to `room` bytes before the end of a page, then fill the disk."""
    frame = length_of(session, "x") - 1
    missing = (-room - os.path.getsize(session.path)) % PAGE
    length_of(session, "x" * ((missing - frame) % PAGE))
    disk.fill()
    assert (os.path.getsize(session.path) + room) % PAGE == 0


def check_full(store: Store, session: Session, *, fits: bool) -> None:
    """Check that an append that does not fit raises and leaves no fragment, and that reading still works."""
    if fits:
        session.append_message(message(TOO_MUCH))
    with open(session.path, "rb") as file:
        before = file.read()
    try:
        session.append_message(message(TOO_MUCH))
    except StorageFull:
        pass
    else:
        raise AssertionError("the disk never was full")
    with open(session.path, "rb") as file:
        assert file.read() == before, "a fragment was left"
    shown = texts(session)
    with store.open(session.path, readonly=True) as reader:
        assert texts(reader) == shown
        assert len(reader.context().messages) == len(shown)
    assert [info.id for info in store.list_all(full=True)] == [session.id]
    assert check(store, session.id).ok
    try:
        store.create("/another/project")
    except StorageFull:
        pass
    else:
        raise AssertionError("a session was created on a full disk")


def check_catalog(store: Store, session: Session, cache: str) -> None:
    """Check that listing and searching work when the catalog cannot be written or created."""
    for folder in (cache, f"{cache}-new"):
        with Library(store, cache=folder) as library:
            library.catch_up("index")
            assert [row.id for row in library.list(Filter()).rows] == [session.id]
            assert len(library.search("first").hits) == 1


def main(folder: str, step: int) -> int:
    disk, store, cache = Disk(folder), Store(f"{folder}/store"), f"{folder}/cache"
    session = begin(store)
    with Library(store, cache=cache) as library:
        library.catch_up("index")
    line = length_of(session, TOO_MUCH)
    places = range(0, line + 1, step)
    for place in places:
        leave(session, disk, place)
        check_full(store, session, fits=place == line)
        if place % (LOOKS * step) == 0:
            check_catalog(store, session, cache)
        disk.free()
        check_room_again(store, session)
        session = store.open(session.path)
        if os.path.getsize(session.path) > MOST:
            session.close()
            shutil.rmtree(f"{folder}/store")
            session = begin(store)
    return len(places)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
