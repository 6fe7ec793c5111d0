"""The paths of agents' sessions below a state folder.

    <root>/agents/<agent>/sessions/sessions.json          the store; `session.store` may name another path
    <root>/agents/<agent>/sessions/<session id>.jsonl     transcripts, and their archives
    <root>/sessions/                                      both, in releases before there were agents

Paths are computed and folders listed; no file is opened. The home folder and the configuration are arguments.
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
COLD = "cold"  # old transcripts, compressed, in releases since July 2026


class StateFolder(msgspec.Struct, frozen=True):
    """A state folder. `template` is `session.store` of the configuration, `home` replaces a leading `~` in it."""

    root: str
    template: str | None = None
    home: str | None = None

    def agent(self, agent: str) -> str:
        """Return the folder of an agent."""
        return f"{self.root}/agents/{normalize_agent_id(agent)}"

    def sessions(self, agent: str) -> str:
        """Return the folder of an agent's transcripts."""
        return f"{self.agent(agent)}/sessions"

    @property
    def legacy_sessions(self) -> str:
        """The folder of sessions in releases before there were agents."""
        return f"{self.root}/sessions"

    def store(self, agent: str) -> str:
        """Return the store file of an agent."""
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
        """Return the database that releases since July 2026 use instead."""
        return f"{self.agent(agent)}/{DATABASE}"

    def folders(self, agent: str) -> list[str]:
        """Return the folders in which an agent's transcripts may be, in search order."""
        found = [posixpath.dirname(self.store(agent)), self.sessions(agent)]
        if normalize_agent_id(agent) == DEFAULT_AGENT:
            found.append(self.legacy_sessions)
        return list(dict.fromkeys(found))

    def agents(self, fs: Filesystem) -> list[str]:
        """Return the agents that have a folder, and the default one if there are sessions without an agent."""
        agents = agents_in(fs, self.root)
        if DEFAULT_AGENT not in agents and names_in(fs, self.legacy_sessions):
            agents.append(DEFAULT_AGENT)
        return agents


def agents_in(fs: Filesystem, root: str, *others: str) -> list[str]:
    """Return the agents that have a folder below a state root, and some others, sorted; invalid names are ignored."""
    found = [name for name in names_in(fs, f"{root}/agents") if normalize_agent_id(name) == name]
    return sorted({*found, *map(normalize_agent_id, others)})


def names_in(fs: Filesystem, folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    with storage_failures(folder, "list a folder"):
        try:
            return fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
