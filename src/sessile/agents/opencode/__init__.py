"""OpenCode: all its sessions are in one SQLite database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sessile.agents.opencode.database import Sessions
from sessile.agents.tables import TableAgent
from sessile.core.providers import Dialect
from sessile.storage.layout import Source

OPENCODE = Dialect(
    "opencode",
    gaps=("system prompt: OpenCode does not store it", "tools: OpenCode does not store their descriptions"),
    missing="[Tool execution was interrupted]",
    merge_users=None,
    empty=True,
    thoughts="text",
)
"""The requests of OpenCode, of which those of its relatives differ in a few points."""


class OpenCode(TableAgent):
    """OpenCode: `~/.local/share/opencode/opencode.db`. A session has the path `…/opencode.db/<id>.jsonl`."""

    name = "opencode"
    title = "OpenCode"
    command: tuple[str, ...] = ("opencode", "--session")
    resumes_by_id = True
    reader = Sessions("opencode")
    variables: tuple[tuple[str, str], ...] = (("XDG_DATA_HOME", "~/.local/share"),)
    dialect: Dialect | None = OPENCODE

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database; preview releases have one of their own beside it."""
        root = f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/{self.name}"
        return self.databases(root, names) or [Source(self.name, root, f"{root}/{self.name}.db")]

    def is_database(self, name: str) -> bool:
        """Return whether a file of that name is one of its databases."""
        return name.startswith(self.name) and name.endswith(".db")
