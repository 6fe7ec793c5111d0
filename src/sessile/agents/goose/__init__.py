"""Goose: all its sessions are in one SQLite database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sessile.agents.goose.database import Sessions
from sessile.agents.tables import TableAgent
from sessile.core.providers import Dialect
from sessile.storage.layout import Source


class Goose(TableAgent):
    """Goose: `~/.local/share/goose/sessions/sessions.db`. A session has the path `…/sessions.db/<id>.jsonl`."""

    name = "goose"
    title = "Goose"
    command = ("goose", "session", "--resume", "--session-id")
    resumes_by_id = True
    variables = (("XDG_DATA_HOME", "~/.local/share"),)
    database = "sessions.db"
    reader = Sessions()
    dialect = Dialect(
        "goose",
        gaps=(
            "system prompt: Goose does not store it",
            "tools: Goose does not store their descriptions",
        ),
        merge_users=True,
        thoughts="reasoning",
        user_joint="\n",
        joined_results=True,
        result_joint=" ",
        attached="",
        image_note="This tool result included an image that is uploaded in the next message.",
        failures=False,
    )

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database."""
        root = f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/goose"
        return [Source(self.name, root, f"{root}/sessions/{self.database}")]
