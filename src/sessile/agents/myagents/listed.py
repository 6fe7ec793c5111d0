"""MyAgents' index as the list of its sessions: what belongs to each, and how one leaves the list and comes back.

Rules: a session goes to our trash with all its files, and its row leaves the index under MyAgents' lock. A note in the trash
keeps the row, so that undoing the deletion restores both. A session that is pinned, scheduled or open stays.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from sessile.agents.base import Place
from sessile.agents.myagents.places import session_at
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.types import Metadata
from sessile.storage import atomic
from sessile.storage.formats import Told
from sessile.storage.layout import JOURNAL, LIST, stem_of
from sessile.storage.walk import walk


def myagents_at(place: Place, home: str) -> MyAgentsStore:
    """Return MyAgents' folder; what we keep of it is in our own store."""
    return MyAgentsStore(place.fs, home, place.root, clock=lambda: place.now() * 1_000_000)


def list_at(place: Place, folder: str, *, missing: bool = False) -> MyAgentsList | None:
    """Return the list of the sessions in a folder; `None` if there is none, unless it may be missing."""
    home = posixpath.dirname(folder)
    if posixpath.basename(folder) != "sessions":
        return None
    if not missing and not atomic.exists(place.fs, f"{home}/{LIST}"):
        return None
    return MyAgentsList(myagents_at(place, home))


class MyAgentsList:
    """The sessions of one folder; the index is read when it is first needed."""

    def __init__(self, theirs: MyAgentsStore) -> None:
        self._theirs = theirs

    @cached_property
    def _rows(self) -> Mapping[str, Metadata]:
        return self._theirs.index.rows()

    def paths(self) -> list[str]:
        """Return one file of each session, whatever its form."""
        found = walk(self._theirs.fs, [self._theirs.places.sessions], [])
        paths = [path for path in found.marks if session_at(path) is not None]
        plain_last = sorted(paths, key=lambda path: path.endswith(JOURNAL))  # of several forms the plain one counts
        return [*{stem_of(path): path for path in plain_last}.values()]

    def files_of(self, path: str) -> Sequence[str]:
        """Return every file of a session, including attachments."""
        return self._theirs.trash.files_of(stem_of(path))

    def told(self, path: str) -> Told:
        """Return the title and project of a session."""
        row = self._rows.get(stem_of(path))
        return Told() if row is None else Told(row.title or None, row.agent_dir or None)

    def why_spared(self, path: str) -> Literal["pinned", "scheduled", "open"] | None:
        """Return why a session must not be deleted, if so."""
        row = self._rows.get(stem_of(path))
        if row is not None and row.pinned:
            return "pinned"
        if row is not None and row.value.get("cronTaskId"):
            return "scheduled"
        locked = atomic.exists(self._theirs.fs, self._theirs.places.session_lock(stem_of(path)))
        return "open" if locked else None

    def delete(self, path: str) -> str:
        """Move a session to our trash and out of the index; return the token that undoes it."""
        return self._theirs.delete(stem_of(path)).token

    def undo(self, token: str) -> None:
        """Put a deleted session back, and its row into the index."""
        self._theirs.undo(token)
