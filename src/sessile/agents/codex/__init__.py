"""Codex: its rollout files, read only. The module that reads them is imported when one is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from sessile.agents.base import Agent, Format
from sessile.storage.layout import Source


class Codex(Agent):
    """Codex: `~/.codex`."""

    name = "codex"
    title = "Codex"
    command = ("codex", "resume")
    resumes_by_id = True
    variables = (("CODEX_HOME", "~/.codex"),)
    placing = "sessile.agents.codex.placing"

    @cached_property
    def format(self) -> Format:
        """How rollouts are read."""
        from sessile.agents.codex.rollout import Codex as Rollout

        return Rollout()

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folders of current and archived sessions."""
        root = environ.get("CODEX_HOME") or f"{home}/.codex"
        return [Source(self.name, root, f"{root}/{folder}") for folder in ("sessions", "archived_sessions")]
