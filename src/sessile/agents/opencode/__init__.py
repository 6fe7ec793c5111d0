"""OpenCode: all its sessions are in one SQLite database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sessile.agents.base import Agent, Entry
from sessile.agents.opencode.database import Sessions
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem
    from sessile.storage.formats import Stored


OPENCODE = Dialect(
    "opencode",
    gaps=("system prompt: OpenCode does not store it", "tools: OpenCode does not store their descriptions"),
    missing="[Tool execution was interrupted]",
    merge_users=None,
    empty=True,
    thoughts="text",
)
"""The requests of OpenCode, of which those of its relatives differ in a few points."""


class OpenCode(Agent):
    """OpenCode: `~/.local/share/opencode/opencode.db`. A session has the path `…/opencode.db/<id>.jsonl`."""

    name = "opencode"
    title = "OpenCode"
    command: tuple[str, ...] = ("opencode", "--session")
    resumes_by_id = True
    rendered = True
    variables: tuple[tuple[str, str], ...] = (("XDG_DATA_HOME", "~/.local/share"),)
    dialect: Dialect | None = OPENCODE

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database; preview releases have one of their own beside it."""
        root = f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/{self.name}"
        return self._databases(root, names) or [Source(self.name, root, f"{root}/{self.name}.db")]

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database in a home folder, or in the folder itself."""
        return [*super().sources_at(folder, names), *self._databases(folder, names)]

    def _databases(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        return [Source(self.name, folder, f"{folder}/{name}") for name in names(folder) if self._is_database(name)]

    def _is_database(self, name: str) -> bool:
        return name.startswith(self.name) and name.endswith(".db")

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored] | None:
        """Return the sessions of a database."""
        return Sessions(self.name).stored(fs, place) if self._is_database(place.rpartition("/")[2]) else None

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a path is inside of a database."""
        return not first and self._database_of(path) is not None

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield one session of a database."""
        return Sessions(self.name).render(fs, self._database_of(path) or path, path)

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the sessions that were started by a session, and by those."""
        place = self._database_of(path)
        if place is None:
            return None
        below = f"{path.removesuffix('.jsonl')}/"
        return sorted(stored.path for stored in Sessions(self.name).stored(fs, place) if stored.path.startswith(below))

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return the kind and the title of a sub-agent."""
        return Sessions(self.name).about(self._database_of(path) or path, path)

    def _database_of(self, path: str) -> str | None:
        """Return the database that a path is inside of."""
        parts = path.split("/")
        ends = (number for number, part in enumerate(parts[:-1], 1) if self._is_database(part))
        return next(("/".join(parts[:end]) for end in ends), None)
