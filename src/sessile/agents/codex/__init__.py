"""Codex: its rollout files, read only. The module that reads them is imported when one is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from sessile.agents.base import Agent, Format, Placed
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.core.conversation import Conversation


class Codex(Agent):
    """Codex: `~/.codex`."""

    name = "codex"
    title = "Codex"
    command = ("codex", "resume")
    resumes_by_id = True
    variables = (("CODEX_HOME", "~/.codex"),)

    @cached_property
    def format(self) -> Format:
        """How rollouts are read."""
        from sessile.agents.codex.rollout import Codex as Rollout

        return Rollout()

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folders of current and archived sessions."""
        root = _root(home, environ)
        return [Source(self.name, root, f"{root}/{folder}") for folder in ("sessions", "archived_sessions")]

    def place(self, conversation: Conversation, home: str, environ: Mapping[str, str]) -> Placed:
        """Return a conversation as a rollout in the folder of its day."""
        from sessile.agents.codex.placing import place  # a listing places nothing

        return place(conversation, _root(home, environ))


def _root(home: str, environ: Mapping[str, str]) -> str:
    return environ.get("CODEX_HOME") or f"{home}/.codex"
