"""Open sessions and the library, kept between requests.

`Handles` keeps sessions open, because opening one costs more than appending to it. `Shelf` holds the library that the
page reads:

    with gateway.shelf.asked() as library:
        library.list(…)

Rules:
- A handle is closed only when it is not in use; the least recently used one is closed first. A handle whose storage has
  failed is dropped, so that the next caller reopens the file. Handles may be used from any thread.
- One thread at a time uses the library. Its view of the files is at most a few seconds old. Counting and indexing that
  takes longer goes on between requests, in slices, on a thread of its own. Answers report what is missing in them. All
  of this blocks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sessile.errors import SessileError, SessionNotFound, StorageFailure, storage_failures
from sessile.storage import drafts

if TYPE_CHECKING:
    from sessile.library import Library
    from sessile.session import Session
    from sessile.store import Store


_MOST = 256  # open files; a process may have about 1,000


class Closable(Protocol):
    """Something with an open file."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closable)


class _Handle(Generic[Opened]):
    def __init__(self, session: Opened) -> None:
        self.session = session
        self.users = 0
        self.dropped = False


class Handles(Generic[Opened]):
    """Open sessions by path. `open_file` opens one."""

    def __init__(self, open_file: Callable[[str], Opened], most: int = _MOST) -> None:
        self._open_file = open_file
        self._most = most
        self._open: OrderedDict[str, _Handle[Opened]] = OrderedDict()
        self._lock = threading.Lock()

    def opened(self, path: str) -> _Use[Opened]:
        """Return a context manager with the session of a file."""
        return _Use(self, path)

    def drop(self, path: str) -> None:
        """Close a session, so that the next use reopens it: its file was moved, or failed."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is None:
                return
            handle.dropped = True
            unused = handle.users == 0
        if unused:
            handle.session.close()

    def close(self) -> None:
        """Close all sessions."""
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
        if handle is not made:  # another thread was faster
            spare.append(made)
        for other in spare:
            other.session.close()
        return handle

    def _spare(self) -> list[_Handle[Opened]]:
        """Remove unused handles beyond the limit."""
        idle = [path for path, handle in self._open.items() if handle.users == 0]
        return [self._open.pop(path) for path in idle[: max(0, len(self._open) - self._most)]]

    def _give_back(self, handle: _Handle[Opened]) -> None:
        with self._lock:
            handle.users -= 1
            unused = handle.dropped and handle.users == 0
        if unused:
            handle.session.close()


class _Use(Generic[Opened]):
    """One use of a session. A class, because a generator would cost more than most uses."""

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
    """Open the session of an existing file for appending."""
    with storage_failures(path, "check the session"):
        try:
            store.fs.lstat(drafts.located(store.fs, path))
        except FileNotFoundError as error:  # opening it would create a new one
            raise SessionNotFound(
                "the session file no longer exists", path=path, hint="run `sessile trash` to see deleted sessions"
            ) from error
    return store.open(path)


# -- the library

_FRESH = 2.0  # seconds for which files are not checked again
_AT_ONCE = 0.3  # seconds that a request may spend on counting changes
_SLICE = 0.3  # seconds of counting and indexing that a request may have to wait for
_PAUSE = 0.02  # seconds between slices, in which requests get the library


class Queue:
    """A lock whose waiters get it in the order in which they came.

    A plain lock goes to whoever asks at the right moment: under load, one request of the page waited for minutes while newer
    ones were answered.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until the holder hands over

    def __exit__(self, *exception: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class Shelf:
    """The library of a gateway. `make` creates it on first use."""

    def __init__(self, make: Callable[[], Library]) -> None:
        self._make = make
        self._library: Library | None = None
        self._lock = Queue()
        self._looked: float | None = None  # when the files were checked last, by `time.monotonic`
        self._worker: threading.Thread | None = None
        self._ended = threading.Event()
        self.pending = 0  # sessions not indexed yet, as of the last check

    @contextmanager
    def asked(self) -> Iterator[Library]:
        """Return a context manager with the library, as up to date as possible without waiting."""
        with self._lock:
            if self._library is None:
                self._library = self._make()
            library = self._library
            is_stale = self._looked is None or time.monotonic() - self._looked > _FRESH
            if is_stale and not self._catch_up(library, _AT_ONCE):
                self._go_on()
            yield library

    def touched(self) -> None:
        """Make the next caller see a change."""
        with self._lock:
            self._looked = None

    def close(self) -> None:
        """Close the catalog, after the current slice of counting."""
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
        """Check all files, then count and index for `seconds`. Return whether everything is done."""
        deadline = time.monotonic() + seconds
        self.pending = library.catch_up("index", deadline=deadline).unindexed
        self._looked = time.monotonic()
        return self._looked < deadline

    def _go_on(self) -> None:
        if self._worker is None and not self._ended.is_set():
            self._worker = threading.Thread(target=self._work, name="sessile-index", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Index the rest, slice by slice. Errors are raised to the next caller."""
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
