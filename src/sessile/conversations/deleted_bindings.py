"""Bindings that were deleted, so that deleting a conversation can be taken back.

    <root>/agents/<agent>/kept/deleted/<token>.json     the key, its entry, and the file of its session

A note is durable before anything is deleted. The session itself goes to the trash of the store, where it is found by its path;
what happens to the binding is for the caller to say. Nothing here is ever removed by itself, except a note that was used.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessile.conversations.binding_notes import Words, agent_of, new_token, read_note, remove_note, write_note
from sessile.errors import NotFound
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage import atomic
from sessile.store import Store
from sessile.stores.yoyoclaw.paths import StateFolder

_WORDS = Words(
    "the note of a deleted conversation",
    gone="it was taken back already",
    unknown="use the token that deleting gave",
    damaged="the session is in the trash, from where `sessile undo` brings it back",
)


class DeletedBinding(msgspec.Struct, frozen=True):
    """A binding that was deleted, and the token that takes it back. `path` is the file of its session, if it had one."""

    token: str
    agent: str
    key: str
    entry: dict[str, Any]
    path: str | None
    at: int


class DeletedBindings:
    """The notes of a store."""

    def __init__(self, store: Store, home: StateFolder) -> None:
        self._store = store
        self._home = home

    def note(self, agent: str, key: str, entry: SessionEntry, path: str | None, now: int) -> DeletedBinding:
        """Remember a binding that is about to be deleted."""
        note = DeletedBinding(new_token(self._store, agent, now), agent, key, entry.members, path, now)
        write_note(self._store.fs, self._path(note.token), note)
        return note

    def get(self, token: str) -> DeletedBinding:
        """What a token stands for."""
        return read_note(self._store.fs, self._path(token), token, DeletedBinding, _WORDS)

    def bring_back(self, note: DeletedBinding) -> None:
        """Put the session of a binding back from the trash, if it is there."""
        if note.path is None or atomic.exists(self._store.fs, note.path):
            return
        deletion = next((one for one in reversed(self._store.deletions()) if note.path in one.paths), None)
        if deletion is None:
            hint = "whoever emptied the trash removed it for good"
            raise NotFound("the session is not in the trash any more", path=note.path, hint=hint)
        self._store.undo(deletion.token)

    def forget(self, note: DeletedBinding) -> None:
        """Remove a note that was used."""
        remove_note(self._store.fs, self._path(note.token), _WORDS)

    def _path(self, token: str) -> str:
        return f"{self._home.agent(agent_of(token, _WORDS))}/kept/deleted/{token}.json"
