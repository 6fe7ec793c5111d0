"""OpenClaw and YoyoClaw: `sessions.json` and the transcripts of each of their agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sessile.agents.base import Agent
from sessile.agents.pi import PI, facts_in
from sessile.storage.base import Filesystem
from sessile.storage.formats import Told
from sessile.storage.layout import Source


class OpenClaw(Agent):
    """A gateway: `~/.openclaw` or `~/.yoyoclaw`. Its transcripts are in the native format."""

    name = "openclaw"
    title = "OpenClaw"
    # No delete: its sessions.json would keep a key without a session.
    capabilities = frozenset({"append", "branch", "label", "compact", "title", "tag"})
    variables = (("OPENCLAW_STATE_DIR", "~/.openclaw"),)
    dialect = PI._replace(
        name="openclaw",
        gaps=(
            "system prompt: OpenClaw does not store it",
            "tools: OpenClaw does not store their descriptions",
        ),
    )

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the sessions folder of each of its agents."""
        found: list[Source] = []
        for root in (environ.get("OPENCLAW_STATE_DIR") or f"{home}/.openclaw", f"{home}/.yoyoclaw"):
            agents = sorted(names(f"{root}/agents")) or ["main"]
            found += [Source(self.name, root, f"{root}/agents/{agent}/sessions") for agent in agents]
        return found

    def model_facts(self, fs: Filesystem, path: str, provider: str, model: str) -> Mapping[str, Any]:
        """Return what the file of models beside the sessions of an agent says."""
        agent, found, _ = path.rpartition("/sessions/")
        return facts_in(fs, f"{agent}/agent/models.json", provider, model) if found else {}

    def titles(self, data: bytes) -> Mapping[str, Told] | None:
        """Return the names of conversations in `sessions.json`."""
        from sessile.agents.openclaw.names import described

        return {known: Told(title) for known, (title, _) in described(data).items()}
