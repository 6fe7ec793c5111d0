"""Group commit: many wait for their data to be durable, and one of them syncs for all.

Appends are numbered, and no number is used twice, so that a mark can never be taken for a later one. The first who waits
syncs; whoever comes meanwhile waits for the next sync, which covers them all. A failed sync is never retried: the kernel
may have dropped the pages and would say yes the second time.

It does not know what is synced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sessile.errors import SessileError


class GroupCommit:
    """The marks of one journal. `sync` makes everything durable that was written, or raises for good."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        # A plain lock: what is written in Python around one can be interrupted between taking and freeing it.
        self._turn = threading.Lock()
        self._written = 0
        self._synced = 0
        self._failure: SessileError | None = None
        self._failing = False
        self._lost: list[range] = []  # marks that no later sync can confirm

    def next_mark(self) -> int:
        """The mark of an append that was just written; the caller sees to it that only one thread appends."""
        self._written += 1
        return self._written

    def wait_for(self, mark: int) -> None:
        """Return when the append with that mark is durable."""
        self._wait(mark)

    def flush(self) -> None:
        """Sync once more, whatever is known to be durable."""
        self._wait(None)

    def _wait(self, mark: int | None) -> None:
        with self._turn:
            lost = any(mark in marks for marks in self._lost)
            if mark is not None and mark <= self._synced and not lost:
                return
            if self._failure is not None and (self._failing or lost):
                raise self._failure
            target = self._written
            try:
                self._sync()
            except SessileError as error:
                self._failure, self._failing = error, True
                raise
            self._synced = max(self._synced, target)

    def begin_anew(self) -> None:
        """Sync again after a failure. What was written before stays unconfirmed for ever."""
        with self._turn:
            if self._failing:
                self._failing = False
                self._lost.append(range(self._synced + 1, self._written + 1))

    def paused(self) -> threading.Lock:
        """To be held while the descriptor changes: no sync may use it then, nor find none."""
        return self._turn

    def all_durable(self) -> None:
        """Everything written so far has become durable in another way."""
        self._synced = self._written
