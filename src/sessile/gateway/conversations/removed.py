"""Removed bindings, kept so that they can be restored: archives of maintenance, and deleted conversations.

    <root>/agents/<agent>/sessions/sessions.archived.<token>.json     archived entries by key, and why they were archived
    <root>/agents/<agent>/kept/deleted/<token>.json                   a deleted key, its entry, and the file of its session

    token: <agent>.<milliseconds>-<random>

Rules: a record is written completely and durably before anything is removed. Archived entries are written as they were,
so that a user can copy one back by hand. A record is removed only after it was used. A token names its agent, and no
part of it is used in a path unchecked. The session of a deleted conversation is in the trash of the store.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import normalize_agent_id
from sessile.agents.openclaw.paths import StateFolder, names_in
from sessile.errors import Damaged, NotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.store import Store

Note = TypeVar("Note", bound=msgspec.Struct)


class Wording(NamedTuple):
    """The name of a kind of record, and hints for a missing, unknown or damaged one."""

    name: str
    gone: str
    unknown: str
    damaged: str


def new_token(store: Store, agent: str, now: int) -> str:
    """Return a new token."""
    return f"{agent}.{now}-{store.random(3).hex()}"


def agent_of(token: str, wording: Wording) -> str:
    """Return the agent of a token. Raise if the token is invalid."""
    agent = token.partition(".")[0]
    if "/" in token or normalize_agent_id(agent) != agent:
        raise _missing(token, wording, wording.unknown)
    return agent


def write_note(fs: Filesystem, path: str, note: msgspec.Struct) -> None:
    """Write a record durably, replacing an older one."""
    atomic.make_folders(fs, posixpath.dirname(path))
    # As ASCII: a key or member may hold a lone surrogate, which UTF-8 cannot encode.
    atomic.replace(fs, path, (json.dumps(msgspec.structs.asdict(note), indent=1).encode("ascii"), b"\n"))


def read_note(fs: Filesystem, path: str, token: str, kind: type[Note], wording: Wording) -> Note:
    """Return the record of a token."""
    with storage_failures(path, f"look for {wording.name}"):
        try:
            data = atomic.read_all(fs, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(token, wording, wording.gone) from error
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Damaged(f"{wording.name} cannot be read", path=path, hint=wording.damaged) from error


def remove_note(fs: Filesystem, path: str, wording: Wording) -> None:
    """Remove a record that was used."""
    with storage_failures(path, f"remove {wording.name}"):
        fs.unlink(path)


def _missing(token: str, wording: Wording, hint: str) -> NotFound:
    return NotFound(f"{wording.name} not found: {token[:120]!r}", hint=hint)


# -- archives

_START, _END = "sessions.archived.", ".json"
_ARCHIVED = Wording(
    "the archive of conversations",
    gone="it was restored already",
    unknown="use the token that maintenance returned",
    damaged="repair it in an editor, or move it away; it does not contain the sessions",
)


class ArchivedBindings(msgspec.Struct, frozen=True):
    """The entries that one run of maintenance archived, and the token that restores them. Times are in milliseconds."""

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
        """Return a new token for an archive."""
        return new_token(self._store, agent, now)

    def write(self, token: str, entries: Mapping[str, SessionEntry], why: Mapping[str, str], now: int) -> str:
        """Write an archive, replacing an older one with this token. Return its path."""
        path = self.path_of(token)
        members = {key: entry.members for key, entry in entries.items()}
        reasons = {key: why[key] for key in entries}
        write_note(self._store.fs, path, ArchivedBindings(token, agent_of(token, _ARCHIVED), now, reasons, members))
        return path

    def get(self, token: str) -> ArchivedBindings:
        """Return the record of a token."""
        return read_note(self._store.fs, self.path_of(token), token, ArchivedBindings, _ARCHIVED)

    def list(self, agent: str) -> list[ArchivedBindings]:
        """Return all archives of an agent, oldest first."""
        names = names_in(self._store.fs, posixpath.dirname(self._home.store(agent)))
        tokens = [name[len(_START) : -len(_END)] for name in names if name.startswith(_START) and name.endswith(_END)]
        return sorted((self.get(token) for token in tokens), key=lambda archive: archive.at)

    def remove(self, token: str) -> None:
        """Remove an archive."""
        remove_note(self._store.fs, self.path_of(token), _ARCHIVED)

    def path_of(self, token: str) -> str:
        """Return the file of an archive."""
        agent = agent_of(token, _ARCHIVED)
        return f"{posixpath.dirname(self._home.store(agent))}/{_START}{token}{_END}"


# -- deleted conversations

_DELETED = Wording(
    "the record of a deleted conversation",
    gone="the deletion was undone already",
    unknown="use the token that the deletion returned",
    damaged="the session is in the trash: restore it with `sessile undo`",
)


class DeletedBinding(msgspec.Struct, frozen=True):
    """A deleted binding, and the token that restores it. `path` is the file of its session, if any."""

    token: str
    agent: str
    key: str
    entry: dict[str, Any]
    path: str | None
    at: int


class DeletedBindings:
    """The deleted conversations of a store."""

    def __init__(self, store: Store, home: StateFolder) -> None:
        self._store = store
        self._home = home

    def note(self, agent: str, key: str, entry: SessionEntry, path: str | None, now: int) -> DeletedBinding:
        """Record a binding that is about to be deleted."""
        note = DeletedBinding(new_token(self._store, agent, now), agent, key, entry.members, path, now)
        write_note(self._store.fs, self._path(note.token), note)
        return note

    def get(self, token: str) -> DeletedBinding:
        """Return the record of a token."""
        return read_note(self._store.fs, self._path(token), token, DeletedBinding, _DELETED)

    def restore(self, note: DeletedBinding) -> None:
        """Restore the session of a binding from the trash, if it is there."""
        if note.path is None or atomic.exists(self._store.fs, note.path):
            return
        deletion = next((one for one in reversed(self._store.deletions()) if note.path in one.paths), None)
        if deletion is None:
            hint = "the trash was emptied, so it cannot be restored"
            raise NotFound("the session is no longer in the trash", path=note.path, hint=hint)
        self._store.undo(deletion.token)

    def forget(self, note: DeletedBinding) -> None:
        """Remove a record that was used."""
        remove_note(self._store.fs, self._path(note.token), _DELETED)

    def _path(self, token: str) -> str:
        return f"{self._home.agent(agent_of(token, _DELETED))}/kept/deleted/{token}.json"
