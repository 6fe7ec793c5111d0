"""The library that the page asks: one catalog for all requests, kept up to date as far as nobody has to wait for it.

    with gateway.shelf.asked() as library:
        library.list(…)

Rules: one thread at a time has the library. Whoever asks finds every file looked at, at most some seconds ago; counting and
indexing that takes longer goes on between the requests, in slices, on a thread of its own, until nothing is left. Answers say
what is missing in them. Everything here blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sessile.errors import SessileError

if TYPE_CHECKING:
    from sessile import Library

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
