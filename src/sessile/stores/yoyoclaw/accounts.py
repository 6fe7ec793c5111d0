"""What an import says of itself: of each session, each key, each agent, and what was left out.

Of each session, `read == written + present + differing`. Of each key there is a binding, whatever became of its transcript.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessile.stores.yoyoclaw.sources import Trouble

BindingState = Literal["new", "updated", "present", "older", "ours", "deleted", "refused"]
"""What became of a key: written, replaced by what is newer, there already, older than what is there, changed or deleted here,
or not to be written at all."""


class Archive(msgspec.Struct, frozen=True):
    """A file that a session was put together from beside its transcript; why it was archived, or `None` for a second live one."""

    path: str
    reason: str | None


class ImportedSession(msgspec.Struct):
    """The account of one session. `keys` are those that name it; one that is live and has none is an orphan.

    `live` is its transcript, `archives` are the other files that it was put together from.
    """

    agent: str
    session_id: str
    path: str
    live: str | None
    archives: list[Archive]
    keys: list[str]
    topic: str | None = None
    read: int = 0
    written: int = 0
    present: int = 0
    differing: int = 0
    troubles: list[Trouble] = []

    @property
    def orphan(self) -> bool:
        """Whether no key leads to it any more."""
        return self.live is not None and not self.keys

    @property
    def unreadable(self) -> int:
        """How many stretches of the sources are no entries; the sources still hold them."""
        return sum(1 for trouble in self.troubles if trouble.finding.length)


class ImportedBinding(msgspec.Struct, frozen=True):
    """The account of one key. `session_id` is that of its session here, if that was imported.

    `mapped` are members that mean something else here, with the old value and the new; `kept` those that stay as they are;
    `odd` is what is not as documented about them.
    """

    key: str
    state: BindingState
    session_id: str | None
    mapped: dict[str, tuple[Any, Any]]
    kept: list[str]
    odd: list[str]


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was not imported, and why; `failed` if it would have been, but could not be read."""

    name: str
    reason: str
    failed: bool = False


class ImportedAgent(msgspec.Struct):
    """The account of one agent. `missing` are keys whose transcript is not there."""

    agent: str
    store: str | None = None  # where the store file is kept as it was
    bound: str | None = None  # where its keys are bound to sessions of ours
    sessions: list[ImportedSession] = []
    bindings: list[ImportedBinding] = []
    missing: list[str] = []
    left_out: list[LeftOut] = []


class ImportReport(msgspec.Struct):
    """The account of an import."""

    agents: list[ImportedAgent] = []
    left_out: list[LeftOut] = []

    @property
    def sessions(self) -> list[ImportedSession]:
        """The accounts of all sessions of all agents."""
        return [session for agent in self.agents for session in agent.sessions]

    @property
    def damaged(self) -> bool:
        """Whether something could not be read."""
        left = [*self.left_out, *(item for agent in self.agents for item in agent.left_out)]
        refused = any(binding.state == "refused" for agent in self.agents for binding in agent.bindings)
        return refused or any(item.failed for item in left) or any(session.unreadable for session in self.sessions)
