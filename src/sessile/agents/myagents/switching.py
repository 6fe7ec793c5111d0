"""Changing from one session to another while the first may still run.

The order is the point: look the target up (an unknown one changes nothing), abort what runs, empty the queue, await its end,
reset, load the stored messages, and only then take over the id and choose what to resume. Loading comes before the id,
because messages are saved by count: an empty memory under the new id would not save what comes next.

The latest request wins: that which was made last, whenever its turn comes. Whoever was overtaken does no further step and takes
over nothing; a step that changes something is never done beside or after those of a later request. What the steps do is given as
callables; each must bear being called again by a later request, and may make one itself.
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

PATIENCE = 10.0  # seconds that a running session gets to end


class Steps(NamedTuple):
    """What a program does to leave a session. `wait_for_end` gets a number of seconds and says whether it has ended."""

    abort: Callable[[], None]
    empty_queue: Callable[[], None]
    wait_for_end: Callable[[float], bool]
    reset: Callable[[], None]


class Active(NamedTuple):
    """The session that a program is in. Without `resume` a new run of the agent begins under the same id."""

    session_id: str
    messages: tuple[Message, ...]
    next_message_id: str
    resume: str | None
    agent_dir: str | None
    writer: Writer


def resume_of(row: Metadata) -> str | None:
    """What Claude Code is to resume: its own id for the session, whether that is the same as ours or not."""
    return row.sdk_session_id


class Switcher:
    """Takes a program from session to session."""

    def __init__(self, store: MyAgentsStore, steps: Steps, *, patience: float = PATIENCE) -> None:
        self._store = store
        self._steps = steps
        self._patience = patience
        self._guard = threading.Lock()  # of the numbers and of what is active
        self._turn = threading.RLock()  # held while a step changes something
        self._numbers = count(1)
        self._latest = 0
        self._active: Active | None = None

    @property
    def active(self) -> Active | None:
        """The session that the program is in."""
        return self._active

    def switch(self, session_id: str) -> Active | None:
        """Go to a session; `None` if a later request has overtaken this one."""
        with self._guard:
            mine = next(self._numbers)  # before anything that takes time: the order of requests is that of the clicks
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
                f"the running session did not end within {self._patience:g} s; nothing was switched",
                hint="end its process, then switch again",
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
        """Do a step, unless a later request has been made; says whether this one still counts."""
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
            raise SessionNotFound(f"there is no session {session_id} in MyAgents' index", path=self._store.places.index)
        return row

    def _loaded(self, session_id: str) -> Active:
        """The session as it is stored now: what ran until a moment ago may have been this one, and have got its id."""
        messages = tuple(self._store.load(session_id).messages)
        row = self._look_up(session_id)
        number = 0
        for message in messages:
            number = next_number(message.id, number)
        return Active(session_id, messages, str(number), resume_of(row), row.agent_dir, self._store.writer(session_id))
