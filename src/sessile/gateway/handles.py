"""Open sessions, kept at hand: to open one costs more than to append to it.

Rules: a handle is closed only when nobody uses it; the one that was not used for longest goes first. One whose storage has failed
is let go of, so that the next who asks opens the file anew. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sessile.errors import SessionNotFound, StorageFailure, storage_failures

if TYPE_CHECKING:
    from sessile import Session, Store

_MOST = 256  # open files; a process may have some 1,000


class Closable(Protocol):
    """Something that holds a file open."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closable)


class _Handle(Generic[Opened]):
    def __init__(self, session: Opened) -> None:
        self.session = session
        self.users = 0
        self.dropped = False


class Handles(Generic[Opened]):
    """The sessions that are open, each as `open_file` opens it."""

    def __init__(self, open_file: Callable[[str], Opened], most: int = _MOST) -> None:
        self._open_file = open_file
        self._most = most
        self._open: OrderedDict[str, _Handle[Opened]] = OrderedDict()
        self._lock = threading.Lock()

    def opened(self, path: str) -> _Use[Opened]:
        """The session of a file, for `with`."""
        return _Use(self, path)

    def drop(self, path: str) -> None:
        """Open a session anew the next time: its file was moved, or failed."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is None:
                return
            handle.dropped = True
            unused = handle.users == 0
        if unused:
            handle.session.close()

    def close(self) -> None:
        """Let go of everything."""
        for path in list(self._open):
            self.drop(path)

    def _take(self, path: str) -> _Handle[Opened]:
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                handle.users += 1
                return handle
        made = _Handle(self._open_file(path))
        with self._lock:
            handle = self._open.setdefault(path, made)
            handle.users += 1
            spare = self._spare()
        if handle is not made:  # somebody was faster
            spare.append(made)
        for other in spare:
            other.session.close()
        return handle

    def _spare(self) -> list[_Handle[Opened]]:
        """Take out what nobody uses as long as there are too many."""
        idle = [path for path, handle in self._open.items() if handle.users == 0]
        return [self._open.pop(path) for path in idle[: max(0, len(self._open) - self._most)]]

    def _give_back(self, handle: _Handle[Opened]) -> None:
        with self._lock:
            handle.users -= 1
            unused = handle.dropped and handle.users == 0
        if unused:
            handle.session.close()


class _Use(Generic[Opened]):
    """One who uses a session. A generator would cost more than what is done with most sessions."""

    def __init__(self, handles: Handles[Opened], path: str) -> None:
        self._handles = handles
        self._path = path

    def __enter__(self) -> Opened:
        self._handle = self._handles._take(self._path)
        return self._handle.session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, StorageFailure):
                self._handles.drop(self._path)
        finally:
            self._handles._give_back(self._handle)


def open_for_appending(store: Store, path: str) -> Session:
    """The session of a file that is there, open for appending."""
    with storage_failures(path, "look at the session"):
        try:
            store.fs.lstat(path)
        except FileNotFoundError as error:  # to open it would make a new one
            raise SessionNotFound("the file of the session is gone", path=path, hint="look into the trash") from error
    return store.open(path)
