"""The files of sessions that bindings name: found for many entries at once, and brought back from the trash.

Only sessions in the store's own folders are known here, so that nobody else's file is ever moved. An entry that names a file
which it may not name has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from sessile.core.rollover import previous_sessions
from sessile.errors import InvalidId, UnsafePath
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage import survey
from sessile.storage.layout import JOURNAL, stem_of

if TYPE_CHECKING:
    from sessile.conversations.conversations import Conversations


class BindingFiles:
    """The folders of a store are looked at once, when the first file is asked for."""

    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations
        self._store = conversations.upkeep.store
        self._known: Mapping[str, str] | None = None

    def of(self, agent: str, entry: SessionEntry) -> set[str]:
        """The files of the session that an entry has, and of those that it had before."""
        known = self._by_id()
        found = {known[session_id] for session_id in _ids(entry) if session_id in known}
        if entry.session_file:
            try:
                named = self._all.upkeep.sessions.path_of(agent, entry)
            except (UnsafePath, InvalidId):
                named = None  # whoever speaks in the conversation is told
            if named is not None and self._store.layout.owns(named):
                found.add(named)
        return found

    def of_all(self, agents: Iterable[str]) -> Iterator[str]:
        """The files that all conversations of some agents name."""
        for agent in agents:
            for entry in self._all.upkeep.agents.of(agent).current().values():
                yield from self.of(agent, entry)

    def bring_back(self, entries: Iterable[SessionEntry]) -> tuple[str, ...]:
        """Put the sessions of entries back from the trash; gives the ids of those that are nowhere."""
        known = self._by_id()
        trashed = {
            _id_in(path): deletion.token
            for deletion in self._store.deletions()
            for path in deletion.paths
            if path.endswith(JOURNAL)
        }
        lost = [session_id for entry in entries for session_id in _ids(entry) if session_id not in known]
        missing = []
        for session_id in dict.fromkeys(lost):
            if session_id in trashed:
                self._store.undo(trashed[session_id])
            else:
                missing.append(session_id)
        return tuple(missing)

    def _by_id(self) -> Mapping[str, str]:
        if self._known is None:
            found = survey.journals(self._store.fs, self._store.layout.sessions)
            paths = [path for path, linked in found if path.endswith(JOURNAL) and not linked]
            self._known = {_id_in(path): path for path in paths}
        return self._known


def _ids(entry: SessionEntry) -> Iterator[str]:
    """The session that an entry has, and those that it had before."""
    if entry.session_id is not None:
        yield entry.session_id
    yield from (previous.session_id for previous in previous_sessions(entry))


def _id_in(path: str) -> str:
    """The id in the name of a session file, behind the time."""
    return stem_of(path).partition("_")[2]
