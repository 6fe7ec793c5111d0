"""Bindings that maintenance took out of a store file, kept beside it, so that they can be put back.

    <root>/agents/<agent>/sessions/sessions.archived.<token>.json     the entries by key, and why they went

An archive is durable before anything is taken out. Its entries are written as they were, so that a person can copy one back by
hand. Nothing here is ever removed by itself, except an archive all of whose entries are back.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.conversations.binding_notes import Words, agent_of, new_token, read_note, remove_note, write_note
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.store import Store
from sessile.stores.yoyoclaw.paths import StateFolder, names_in

_START, _END = "sessions.archived.", ".json"
_WORDS = Words(
    "the archive of conversations",
    gone="it was put back already",
    unknown="use the token that maintenance gave",
    damaged="mend it in an editor, or move it away; the sessions themselves are not in it",
)


class ArchivedBindings(msgspec.Struct, frozen=True):
    """What one run of maintenance took out, and the token that puts it back. Time is in milliseconds."""

    token: str
    agent: str
    at: int
    why: dict[str, str]
    entries: dict[str, dict[str, Any]]


class Archives:
    """The archives of a store."""

    def __init__(self, store: Store, home: StateFolder) -> None:
        self._store = store
        self._home = home

    def new_token(self, agent: str, now: int) -> str:
        """A name for an archive that no other has."""
        return new_token(self._store, agent, now)

    def write(self, token: str, entries: Mapping[str, SessionEntry], why: Mapping[str, str], now: int) -> str:
        """Keep entries under a token, in place of those that it stood for before; gives the path of the archive."""
        path = self.path_of(token)
        members = {key: entry.members for key, entry in entries.items()}
        reasons = {key: why[key] for key in entries}
        write_note(self._store.fs, path, ArchivedBindings(token, agent_of(token, _WORDS), now, reasons, members))
        return path

    def get(self, token: str) -> ArchivedBindings:
        """What a token stands for."""
        return read_note(self._store.fs, self.path_of(token), token, ArchivedBindings, _WORDS)

    def list(self, agent: str) -> list[ArchivedBindings]:
        """All archives of an agent, oldest first."""
        names = names_in(self._store.fs, posixpath.dirname(self._home.store(agent)))
        tokens = [name[len(_START) : -len(_END)] for name in names if name.startswith(_START) and name.endswith(_END)]
        return sorted((self.get(token) for token in tokens), key=lambda archive: archive.at)

    def remove(self, token: str) -> None:
        """Remove an archive that is not needed any more."""
        remove_note(self._store.fs, self.path_of(token), _WORDS)

    def path_of(self, token: str) -> str:
        """The file of an archive."""
        agent = agent_of(token, _WORDS)
        return f"{posixpath.dirname(self._home.store(agent))}/{_START}{token}{_END}"
