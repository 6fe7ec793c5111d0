"""Bindings that were deleted, so that deleting a conversation can be taken back.

    <root>/agents/<agent>/kept/deleted/<token>.json     the key, its entry, and the file of its session

A note is durable before anything is deleted. The session itself goes to the trash of the store, where it is found by its path;
what happens to the binding is for the caller to say. Nothing here is ever removed by itself, except a note that was used.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

import msgspec

from sessile.errors import Damaged, NotFound, storage_failures
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.normal import normalize_agent_id
from sessile.storage import atomic
from sessile.store import Store
from sessile.stores.yoyoclaw.paths import StateFolder


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
        token = f"{agent}.{now}-{self._store.random(3).hex()}"
        note = DeletedBinding(token, agent, key, entry.members, path, now)
        name = self._path(token)
        atomic.make_folders(self._store.fs, posixpath.dirname(name))
        # As ASCII: a key or a member may hold half an emoji, which cannot be encoded otherwise.
        atomic.replace(self._store.fs, name, (json.dumps(msgspec.structs.asdict(note)).encode("ascii"),))
        return note

    def get(self, token: str) -> DeletedBinding:
        """What a token stands for."""
        name = self._path(token)
        with storage_failures(name, "look for a deleted conversation"):
            try:
                data = atomic.read_all(self._store.fs, name)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"there is no deletion {token[:120]!r}", hint="it was taken back already") from error
        try:
            return msgspec.convert(json.loads(data), DeletedBinding)
        except (ValueError, msgspec.ValidationError) as error:
            hint = "the session is in the trash, from where `sessile undo` brings it back"
            raise Damaged("the note of a deleted conversation cannot be read", path=name, hint=hint) from error

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
        name = self._path(note.token)
        with storage_failures(name, "remove the note of a deletion"):
            self._store.fs.unlink(name)

    def _path(self, token: str) -> str:
        agent = token.partition(".")[0]
        if "/" in token or normalize_agent_id(agent) != agent:
            raise NotFound(f"there is no deletion {token[:120]!r}", hint="use the token that deleting gave")
        return f"{self._home.agent(agent)}/kept/deleted/{token}.json"
