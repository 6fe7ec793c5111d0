"""Where an agent's sessions lie below a state root.

    <root>/agents/<agent>/sessions/sessions.json          the store; `session.store` may name another place
    <root>/agents/<agent>/sessions/<session id>.jsonl     transcripts, and their archives
    <root>/sessions/                                      where releases before agents kept both

Names are computed here, and folders listed; nothing is opened. The home folder and the configuration are arguments.
"""

from __future__ import annotations

import posixpath

import msgspec

from sessile.agents.openclaw.keys import DEFAULT_AGENT, normalize_agent_id
from sessile.errors import storage_failures
from sessile.storage.base import Filesystem

STORE_FILE = "sessions.json"
PLACEHOLDER = "{agentId}"
DATABASE = "agent/openclaw-agent.sqlite"
COLD = "cold"  # where releases since July 2026 keep old transcripts, compressed, below the sessions folder


class StateFolder(msgspec.Struct, frozen=True):
    """One state root. `template` is `session.store` of the configuration, `home` what a leading `~` in it stands for."""

    root: str
    template: str | None = None
    home: str | None = None

    def agent(self, agent: str) -> str:
        """The folder of all that belongs to an agent."""
        return f"{self.root}/agents/{normalize_agent_id(agent)}"

    def sessions(self, agent: str) -> str:
        """The folder of an agent's transcripts."""
        return f"{self.agent(agent)}/sessions"

    @property
    def legacy_sessions(self) -> str:
        """Where releases before agents kept their sessions."""
        return f"{self.root}/sessions"

    def store(self, agent: str) -> str:
        """The store file of an agent."""
        if self.template is None or not self.template.strip():
            return f"{self.sessions(agent)}/{STORE_FILE}"
        path = self.template.strip().replace(PLACEHOLDER, normalize_agent_id(agent))
        if self.home is not None and (path == "~" or path.startswith("~/")):
            path = self.home + path[1:]
        return posixpath.normpath(posixpath.join(self.root, path))

    @property
    def shared(self) -> bool:
        """Whether all agents share one store file."""
        return bool(self.template and self.template.strip()) and PLACEHOLDER not in (self.template or "")

    def database(self, agent: str) -> str:
        """Where releases since July 2026 keep an agent's sessions instead."""
        return f"{self.agent(agent)}/{DATABASE}"

    def folders(self, agent: str) -> list[str]:
        """The folders in which an agent's transcripts may lie, in the order in which they are looked for."""
        found = [posixpath.dirname(self.store(agent)), self.sessions(agent)]
        if normalize_agent_id(agent) == DEFAULT_AGENT:
            found.append(self.legacy_sessions)
        return list(dict.fromkeys(found))

    def agents(self, fs: Filesystem) -> list[str]:
        """The agents that have a folder, and the default one if releases before agents left sessions."""
        agents = agents_in(fs, self.root)
        if DEFAULT_AGENT not in agents and names_in(fs, self.legacy_sessions):
            agents.append(DEFAULT_AGENT)
        return agents


def agents_in(fs: Filesystem, root: str, *others: str) -> list[str]:
    """The agents that have a folder below a state root, and some others, sorted. A name that no agent can have is none."""
    found = [name for name in names_in(fs, f"{root}/agents") if normalize_agent_id(name) == name]
    return sorted({*found, *map(normalize_agent_id, others)})


def names_in(fs: Filesystem, folder: str) -> list[str]:
    """The names in a folder; of no folder, none."""
    with storage_failures(folder, "list a folder"):
        try:
            return fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
