"""Switch from one session to another while the first may still be running.

The order matters: look up the target (an unknown one changes nothing), abort what runs, empty the queue, wait for its
end, reset, load the stored messages, and only then take over the id and choose what to resume. Messages are loaded
before the id changes because they are saved by count: an empty memory under the new id would not save what comes next.

The latest request wins, by the order in which requests were made. A request that was overtaken does no further step and
takes over nothing; no step runs at the same time as or after those of a later request. Steps are callables of the
caller; a later request may call them again, and they may make a request themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from sessile.agents.myagents.store import MyAgentsStore, Writer
from sessile.agents.myagents.translation import next_number
from sessile.agents.myagents.types import Message, Metadata
from sessile.errors import SessionBusy, SessionNotFound

PATIENCE = 10.0  # seconds to wait for a running session to end


class Steps(NamedTuple):
    """The steps to leave a session. `wait_for_end` gets a number of seconds and returns whether it has ended."""

    abort: Callable[[], None]
    empty_queue: Callable[[], None]
    wait_for_end: Callable[[float], bool]
    reset: Callable[[], None]


class Active(NamedTuple):
    """The session that a program is in. Without `resume` a new run of the agent starts under the same id."""

    session_id: str
    messages: tuple[Message, ...]
    next_message_id: str
    resume: str | None
    agent_dir: str | None
    writer: Writer


def resume_of(row: Metadata) -> str | None:
    """Return what Claude Code must resume: its own id for the session."""
    return row.sdk_session_id


class Switcher:
    """Switches a program between sessions."""

    def __init__(self, store: MyAgentsStore, steps: Steps, *, patience: float = PATIENCE) -> None:
        self._store = store
        self._steps = steps
        self._patience = patience
        self._guard = threading.Lock()  # for the numbers and the active session
        self._turn = threading.RLock()  # held during a step
        self._numbers = count(1)
        self._latest = 0
        self._active: Active | None = None

    @property
    def active(self) -> Active | None:
        """The session that the program is in."""
        return self._active

    def switch(self, session_id: str) -> Active | None:
        """Switch to a session; return `None` if a later request has overtaken this one."""
        with self._guard:
            mine = next(self._numbers)  # before anything that takes time, to keep the order of the requests
        self._look_up(session_id)
        with self._guard:
            if mine < self._latest:
                return None
            self._latest = mine
        if not (self._do(mine, self._steps.abort) and self._do(mine, self._steps.empty_queue)):
            return None
        ended = self._steps.wait_for_end(self._patience)
        if self._is_overtaken(mine):
            return None
        if not ended:
            raise SessionBusy(
                f"the running session did not end within {self._patience:g} s, so nothing was switched",
                hint="stop its process, then switch again",
            )
        if not self._do(mine, self._steps.reset):
            return None
        active = self._loaded(session_id)
        with self._guard:
            if mine != self._latest:
                return None
            self._active = active
        return active

    def _do(self, mine: int, step: Callable[[], None]) -> bool:
        """Run a step unless a later request was made; return whether this request is still the latest."""
        with self._turn:
            if self._is_overtaken(mine):
                return False
            step()
        return not self._is_overtaken(mine)

    def _is_overtaken(self, mine: int) -> bool:
        with self._guard:
            return mine != self._latest

    def _look_up(self, session_id: str) -> Metadata:
        row = self._store.get(session_id)
        if row is None:
            raise SessionNotFound(
                f"session not found in MyAgents' index: {session_id!r}", path=self._store.places.index
            )
        return row

    def _loaded(self, session_id: str) -> Active:
        """Load the session as it is stored now: the session that just ended may be the same one."""
        messages = tuple(self._store.load(session_id).messages)
        row = self._look_up(session_id)
        number = 0
        for message in messages:
            number = next_number(message.id, number)
        return Active(session_id, messages, str(number), resume_of(row), row.agent_dir, self._store.writer(session_id))
