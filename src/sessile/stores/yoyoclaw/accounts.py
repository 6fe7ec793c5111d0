"""What an import says of itself: of each session, each agent, and what was left out.

Of each session, `read == written + present + differing`.
"""

from __future__ import annotations

import msgspec

from sessile.stores.yoyoclaw.sources import Trouble


class ImportedSession(msgspec.Struct):
    """The account of one session. `keys` are those that name it; one that is live and has none is an orphan."""

    agent: str
    session_id: str
    path: str
    live: str | None
    archives: list[str]
    keys: list[str]
    read: int = 0
    written: int = 0
    present: int = 0
    differing: int = 0
    troubles: list[Trouble] = []

    @property
    def orphan(self) -> bool:
        return self.live is not None and not self.keys

    @property
    def unreadable(self) -> int:
        """How many stretches of the sources are no entries; the sources still hold them."""
        return sum(1 for trouble in self.troubles if trouble.finding.length)


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was not imported, and why."""

    name: str
    reason: str


class ImportedAgent(msgspec.Struct):
    """The account of one agent. `missing` are keys whose transcript is not there."""

    agent: str
    store: str | None = None  # where the store file is kept as it was
    sessions: list[ImportedSession] = []
    missing: list[str] = []
    left_out: list[LeftOut] = []


class ImportReport(msgspec.Struct):
    """The account of an import."""

    agents: list[ImportedAgent] = []
    left_out: list[LeftOut] = []

    @property
    def sessions(self) -> list[ImportedSession]:
        return [session for agent in self.agents for session in agent.sessions]
