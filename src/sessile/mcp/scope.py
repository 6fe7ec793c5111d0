"""What a server shows: everything, or the sessions of an agent, of a project, or both.

Rules: whoever starts the server chooses its scope. What a call asks for narrows it; what lies outside is refused, or is as if
it did not exist: it is not found, not counted, and not named in an error.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile import Filter
from sessile.errors import NotFound, Refused

if TYPE_CHECKING:
    from sessile import Library

_HINT = "leave it out: the server shows all that it may"


class Scope(NamedTuple):
    """The sessions that may be shown. `worktrees` are folders that count as the project, too."""

    agent: str | None = None
    project: str | None = None
    worktrees: Sequence[str] = ()

    def words(self) -> str:
        """The scope for whoever reads an answer."""
        told = [f"agent {self.agent}" if self.agent else "", f"project {self.project}" if self.project else ""]
        return " and ".join(filter(None, told)) or "all sessions"

    def chosen(self, library: Library, agent: str | None = None, project: str | None = None) -> Filter:
        """The filter for what is in the scope and is asked for, with nothing hidden."""
        named = self.agent if agent is None else self._agent(agent)
        below = None if named is None else folders_of(library, named)
        if project is None:
            return Filter(project=self.project, worktrees=self.worktrees, below=below, hide=())
        return Filter(project=self._project(project), below=below, hide=())

    def _agent(self, agent: str) -> str:
        if self.agent not in (None, agent):
            raise Refused(f"this server shows only sessions of {self.agent}", hint=_HINT)
        return agent

    def _project(self, project: str) -> str:
        """A folder within the scope; a name that only looks like one of its folders is not taken for it."""
        if self.project is None:
            return posixpath.normpath(project) if "/" in project else project
        wanted = posixpath.normpath(project)
        if not any(wanted == place or wanted.startswith(f"{place}/") for place in (self.project, *self.worktrees)):
            raise Refused(f"this server shows only sessions of the project {self.project}", hint=_HINT)
        return wanted


def folders_of(library: Library, agent: str) -> list[str]:
    """The folders in which an agent keeps its sessions."""
    folders = [source.sessions for source in library.sources if source.agent == agent]
    if not folders:
        known = sorted({source.agent for source in library.sources})
        raise NotFound(f"no sessions of {agent[:40]!r} were found", hint=f"there are those of {', '.join(known)}")
    return folders
