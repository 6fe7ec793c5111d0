"""The live bindings of all agents, and the timer that writes what was counted in them.

The first count starts the timer; when it is over, all counts since then are written at once. What could not be written then,
such as while a file is broken, is told in the log and tried again with the next count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from sessile.conversations.bound_sessions import BoundSessions
from sessile.conversations.inbound import Keys
from sessile.conversations.live_bindings import LiveBindings
from sessile.errors import SessileError
from sessile.formats.yoyoclaw.counting import Count
from sessile.formats.yoyoclaw.normal import normalize_agent_id
from sessile.storage import log
from sessile.store import Store
from sessile.stores.yoyoclaw.bindings import own_bindings
from sessile.stores.yoyoclaw.paths import StateFolder


class LiveAgents:
    """`canonical` gives the spelling of a key in the store file of an agent; with `hold=None` there is no timer."""

    def __init__(self, store: Store, canonical: Callable[[str, str], str], hold: float | None) -> None:
        self._store = store
        self._canonical = canonical
        self._hold = hold
        self._guard = threading.Lock()
        self._live: dict[str, LiveBindings] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    def of(self, agent: str) -> LiveBindings:
        """The bindings of an agent."""
        agent = normalize_agent_id(agent)
        with self._guard:
            if agent not in self._live:
                bindings = own_bindings(self._store, agent)
                self._live[agent] = LiveBindings(bindings, lambda text: self._canonical(agent, text))
            return self._live[agent]

    def count(self, agent: str, key: str, count: Count) -> None:
        """Hold something to be counted, until the timer is over."""
        self.of(agent).count(key, count)
        with self._guard:
            if self._timer is None and self._hold is not None and not self._closed:
                self._timer = threading.Timer(self._hold, self._time_is_over)
                self._timer.daemon = True
                self._timer.start()

    def _time_is_over(self) -> None:
        with self._guard:
            self._timer = None
        for error in self._flush(self._store.now()):
            log.warning("counters are not written yet: %s", error)

    def flush(self, now: int) -> None:
        """Write what was counted; of several errors the first is raised, after everything was tried."""
        failed = self._flush(now)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Write what was counted, and start no timer any more."""
        with self._guard:
            timer, self._timer, self._closed = self._timer, None, True
        if timer is not None:
            timer.cancel()
        self.flush(self._store.now())

    def _flush(self, now: int) -> list[SessileError]:
        with self._guard:
            agents = [*self._live.values()]
        failed = []
        for live in agents:
            try:
                live.flush(now)
            except SessileError as error:
                failed.append(error)
        return failed


class Upkeep(NamedTuple):
    """What those need of conversations who look after them, and do not speak in them."""

    store: Store
    home: StateFolder
    keys: Keys
    agents: LiveAgents
    sessions: BoundSessions
