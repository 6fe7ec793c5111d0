"""What a store does on a small disk that is full: run by `test_full_disk` where nobody else sees the disk.

python -m faults.on_a_full_disk <mounted folder> <step>
"""

from __future__ import annotations

import errno
import os
import shutil
import sys

from faults.ledger import CWD, message
from faults.test_full_disk import check_room_again, texts
from sessile import Session, Store
from sessile.errors import StorageFull

PAGE = 4096
MOST = 24_000  # bytes of a session, before it is begun anew


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


def check(store: Store, session: Session, disk: Disk, residue: int) -> None:
    """Bring the end of the journal to some place in a page, then leave no page free."""
    room = (residue - os.path.getsize(session.path)) % PAGE
    if room > 200:
        session.append_message(message("x" * (room - 150)))
    disk.fill()
    for _ in range(PAGE // 100):
        try:
            session.append_message(message("one more"))
        except StorageFull:
            break
    else:
        raise AssertionError("the disk never was full")
    shown = texts(session)
    reader = store.open(session.path, readonly=True)
    assert texts(reader) == shown
    reader.close()
    assert [info.id for info in store.list_all()] == [session.id]
    with open(session.path, "rb") as file:
        data = file.read()
    assert data.endswith(b"\n"), "a fragment was left"
    assert data.count(b"\n") == len(shown) + 1, "a fragment was left"
    try:
        store.create("/another/project")
    except StorageFull:
        pass
    else:
        raise AssertionError("a session was created on a full disk")
    disk.free()
    check_room_again(store, session)


def main(folder: str, step: int) -> int:
    disk, store = Disk(folder), Store(f"{folder}/store")
    session = begin(store)
    residues = range(0, PAGE, step)
    for residue in residues:
        check(store, session, disk, residue)
        session = store.open(session.path)
        if os.path.getsize(session.path) > MOST:
            session.close()
            shutil.rmtree(f"{folder}/store")
            session = begin(store)
    return len(residues)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
