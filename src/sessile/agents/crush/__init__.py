"""Crush: each project has a SQLite database. Not verified: written from notes on the program, never tried on its own files."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence

from sessile.agents.crush.database import Sessions
from sessile.agents.tables import TableAgent
from sessile.core.providers import Dialect
from sessile.storage.layout import Source


class Crush(TableAgent):
    """Crush: `<project>/.crush/crush.db`. A session has the path `…/crush.db/<id>.jsonl`.

    It keeps no list of projects, so only the database of the home folder is found without being told: `sessile sources add
    PROJECT` adds that of a project. Not verified against the program.
    """

    name = "crush"
    title = "Crush"
    command = ("crush", "--session")
    resumes_by_id = True
    database = "crush.db"
    reader = Sessions()
    dialect = Dialect(
        "crush",
        gaps=("system prompt: Crush does not store it", "tools: Crush does not store their descriptions"),
    )

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database of a project; the home folder may be one."""
        return [Source(self.name, f"{home}/.crush", f"{home}/.crush/{self.database}")]

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the databases of a project, of the projects in a folder, or of the folder itself."""
        found = [*super().sources_at(folder, names)]
        if posixpath.basename(folder) != ".crush":
            for name in names(folder):
                found += self.databases(f"{folder}/{name}/.crush", names)
        return found
