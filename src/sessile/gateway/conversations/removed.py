"""Bindings that maintenance took out of a store file, kept beside it, so that they can be put back.

    <root>/agents/<agent>/sessions/sessions.archived.<token>.json     the entries by key, and why they went

An archive is durable before anything is taken out. Its entries are written as they were, so that a person can copy one back by
hand. Nothing here is ever removed by itself, except an archive all of whose entries are back.

Bindings that were deleted, so that deleting a conversation can be taken back.

    <root>/agents/<agent>/kept/deleted/<token>.json     the key, its entry, and the file of its session

A note is durable before anything is deleted. The session itself goes to the trash of the store, where it is found by its path;
what happens to the binding is for the caller to say. Nothing here is ever removed by itself, except a note that was used.

Notes about bindings that were taken out of a store, each in a file of its own, under a token.

    <agent>.<milliseconds>-<random>        the token, which a person may copy

Rules: a note is written whole and durable before what it tells of is changed. A token names its agent, and nothing else of it
becomes a part of a path unchecked. What a note holds, and where it lies, is for others to say.
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

# --- binding notes

Note = TypeVar("Note", bound=msgspec.Struct)


class Words(NamedTuple):
    """How a kind of note is called, and what to do if one is not there, or cannot be read."""

    name: str
    gone: str
    unknown: str
    damaged: str


def new_token(store: Store, agent: str, now: int) -> str:
    """A token that no other note has."""
    return f"{agent}.{now}-{store.random(3).hex()}"


def agent_of(token: str, words: Words) -> str:
    """The agent that a token names; raises if it is none of ours."""
    agent = token.partition(".")[0]
    if "/" in token or normalize_agent_id(agent) != agent:
        raise _missing(token, words, words.unknown)
    return agent


def write_note(fs: Filesystem, path: str, note: msgspec.Struct) -> None:
    """Keep a note, durably, in place of the one that was there."""
    atomic.make_folders(fs, posixpath.dirname(path))
    # As ASCII: a key or a member may hold half an emoji, which cannot be encoded otherwise.
    atomic.replace(fs, path, (json.dumps(msgspec.structs.asdict(note), indent=1).encode("ascii"), b"\n"))


def read_note(fs: Filesystem, path: str, token: str, kind: type[Note], words: Words) -> Note:
    """The note of a token."""
    with storage_failures(path, f"look for {words.name}"):
        try:
            data = atomic.read_all(fs, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(token, words, words.gone) from error
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Damaged(f"{words.name} cannot be read", path=path, hint=words.damaged) from error


def remove_note(fs: Filesystem, path: str, words: Words) -> None:
    """Remove a note that was used."""
    with storage_failures(path, f"remove {words.name}"):
        fs.unlink(path)


def _missing(token: str, words: Words, hint: str) -> NotFound:
    return NotFound(f"{words.name} {token[:120]!r} is not there", hint=hint)


# --- archived bindings

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


# --- deleted bindings

_DELETED_BINDINGS_WORDS = Words(
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
        return read_note(self._store.fs, self._path(token), token, DeletedBinding, _DELETED_BINDINGS_WORDS)

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
        remove_note(self._store.fs, self._path(note.token), _DELETED_BINDINGS_WORDS)

    def _path(self, token: str) -> str:
        return f"{self._home.agent(agent_of(token, _DELETED_BINDINGS_WORDS))}/kept/deleted/{token}.json"
