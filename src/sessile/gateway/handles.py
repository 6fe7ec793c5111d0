"""Open sessions, kept at hand: to open one costs more than to append to it.

Rules: a handle is closed only when nobody uses it; the one that was not used for longest goes first. One whose storage has failed
is let go of, so that the next who asks opens the file anew. May be used from any thread.

The library that the page asks: one catalog for all requests, kept up to date as far as nobody has to wait for it.

    with gateway.handles.asked() as library:
        library.list(…)

Rules: one thread at a time has the library. Whoever asks finds every file looked at, at most some seconds ago; counting and
indexing that takes longer goes on between the requests, in slices, on a thread of its own, until nothing is left. Answers say
what is missing in them. Everything here blocks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sessile.errors import SessileError, SessionNotFound, StorageFailure, storage_failures

if TYPE_CHECKING:
    from sessile.library import Library
    from sessile.session import Session
    from sessile.store import Store


# --- handles

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


# --- shelf

_FRESH = 2.0  # seconds for which the files are not looked at again
_AT_ONCE = 0.3  # seconds that a request may spend on counting what changed
_SLICE = 0.3  # seconds of counting and indexing for which a request may have to wait
_PAUSE = 0.02  # seconds in which whoever waits gets the library


class Shelf:
    """The one library of a gateway; `make` makes it when it is first asked."""

    def __init__(self, make: Callable[[], Library]) -> None:
        self._make = make
        self._library: Library | None = None
        self._lock = threading.Lock()
        self._looked: float | None = None  # when, as `time.monotonic` has it
        self._worker: threading.Thread | None = None
        self._ended = threading.Event()
        self.pending = 0  # sessions that are not indexed yet, as of the last look

    @contextmanager
    def asked(self) -> Iterator[Library]:
        """The library, for one thread, as up to date as can be without waiting."""
        with self._lock:
            if self._library is None:
                self._library = self._make()
            library = self._library
            is_stale = self._looked is None or time.monotonic() - self._looked > _FRESH
            if is_stale and not self._catch_up(library, _AT_ONCE):
                self._go_on()
            yield library

    def touched(self) -> None:
        """Something was written: whoever asks next wants to see it."""
        with self._lock:
            self._looked = None

    def close(self) -> None:
        """Let go of the catalog; a slice that is being counted ends first."""
        self._ended.set()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.join()
        with self._lock:
            if self._library is not None:
                self._library.close()
                self._library = None

    def _catch_up(self, library: Library, seconds: float) -> bool:
        """Look at all files, and count and index for so long; says whether that was enough for all of it."""
        deadline = time.monotonic() + seconds
        self.pending = library.catch_up("index", deadline=deadline).unindexed
        self._looked = time.monotonic()
        return self._looked < deadline

    def _go_on(self) -> None:
        if self._worker is None and not self._ended.is_set():
            self._worker = threading.Thread(target=self._work, name="sessile-index", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Index the rest, slice by slice. What goes wrong is told to whoever asks next."""
        done = False
        while not done and not self._ended.wait(_PAUSE):
            with self._lock:
                if self._library is None:
                    break
                try:
                    done = self._catch_up(self._library, _SLICE)
                except SessileError:
                    self._looked, done = None, True
                if done:
                    self._worker = None
