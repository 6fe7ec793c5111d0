"""Changing from one session to another while the first may still run.

The order is the point: look the target up (an unknown one changes nothing), abort what runs, empty the queue, await its end,
reset, load the stored messages, and only then take over the id and choose what to resume. Loading comes before the id,
because messages are saved by count: an empty memory under the new id would not save what comes next.

The latest request wins. Whoever was overtaken stops at the next step and takes over nothing. What the steps do is given as
callables; each must bear being called again by a later request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from sessile.errors import SessionBusy, SessionNotFound
from sessile.formats.myagents.conversion import next_number
from sessile.formats.myagents.types import Message, Metadata
from sessile.stores.myagents.store import MyAgentsStore, Writer

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
        self._guard = threading.Lock()
        self._latest = 0
        self._active: Active | None = None

    @property
    def active(self) -> Active | None:
        """The session that the program is in."""
        return self._active

    def switch(self, session_id: str) -> Active | None:
        """Go to a session; `None` if a later request has overtaken this one."""
        row = self._store.get(session_id)
        if row is None:
            raise SessionNotFound(f"there is no session {session_id} in MyAgents' index", path=self._store.places.index)
        with self._guard:
            self._latest += 1
            mine = self._latest
        steps = (self._steps.abort, self._steps.empty_queue, self._await_end, self._steps.reset)
        for step in steps:
            if self._is_overtaken(mine):
                return None
            step()
        messages = tuple(self._store.load(session_id).messages)
        number = 0
        for message in messages:
            number = next_number(message, number)
        active = Active(
            session_id, messages, str(number), resume_of(row), row.agent_dir, self._store.writer(session_id)
        )
        with self._guard:
            if mine != self._latest:
                return None
            self._active = active
        return active

    def _is_overtaken(self, mine: int) -> bool:
        with self._guard:
            return mine != self._latest

    def _await_end(self) -> None:
        if not self._steps.wait_for_end(self._patience):
            raise SessionBusy(
                f"the running session did not end within {self._patience:g} s; nothing was switched",
                hint="end its process, then switch again",
            )
