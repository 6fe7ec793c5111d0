"""The sessions that keys are bound to: where their files are, and how one begins.

Rules: a session is one of the store, in the workspace of its agent, and shows in listings at once. An entry may name a file
itself (`sessionFile`); it is taken if it lies among the agent's sessions or the store's. Else the file is found by the id,
mostly without looking around: ids of ours tell the time that is in the name.

A thread begins with all that was said in its parent, if that is not too long. How long it is says the parent's entry, else its
own context. Bindings are not known here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Literal, NamedTuple

from sessile import transfer
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.ids import new_session_id
from sessile.core.text import iso_timestamp
from sessile.core.tokens import context_tokens
from sessile.errors import InvalidId, SessionNotFound, UnsafePath
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.keys import SessionKey
from sessile.storage import atomic
from sessile.storage.layout import file_name
from sessile.store import Store
from sessile.stores.yoyoclaw.paths import StateFolder

Reason = Literal["new", "daily", "idle", "reset"]

_TIME_DIGITS = 12  # hexadecimal, at the start of an id of ours


class Bound(NamedTuple):
    """A key and its session. `reason` says why the session is new, `previous_id` which one it took the place of."""

    key: SessionKey
    text: str
    agent: str
    session_id: str
    path: str
    entry: SessionEntry
    is_new: bool
    reason: Reason | None
    previous_id: str | None


class Parent(NamedTuple):
    """The session that a thread continues: its file, and the entry of its key."""

    path: str
    entry: SessionEntry


class Begun(NamedTuple):
    """A session that was just begun, and whether it holds what was said in a parent."""

    session_id: str
    path: str
    forked: bool


class BoundSessions:
    """The sessions of a store as bindings name them."""

    def __init__(self, store: Store, home: StateFolder, workspace: Callable[[str], str], max_tokens: int) -> None:
        self._store = store
        self._home = home
        self._workspace = workspace
        self._max_tokens = max_tokens
        self._paths: dict[str, str] = {}

    def path_of(self, agent: str, entry: SessionEntry) -> str | None:
        """The file of the session that an entry names; `None` if there is none."""
        named = self._named(agent, entry)
        if named is not None and atomic.exists(self._store.fs, named):
            return named
        session_id = entry.session_id
        if session_id is None:
            return None
        known = self._paths.get(session_id)
        if known is not None and atomic.exists(self._store.fs, known):
            return known
        usual = self._usual(agent, session_id)
        if usual is not None and atomic.exists(self._store.fs, usual):
            self._paths[session_id] = usual
            return usual
        try:
            found = self._store.find(session_id)
        except InvalidId as error:
            error.path, error.hint = self._home.store(agent), "mend the sessionId there, or delete the entry"
            raise
        if found is not None:
            self._paths[session_id] = found
        return found

    def _named(self, agent: str, entry: SessionEntry) -> str | None:
        if not entry.session_file:
            return None
        folder = self._home.sessions(agent)
        path = posixpath.normpath(posixpath.join(folder, entry.session_file))
        if not (path.startswith(f"{folder}/") or self._store.layout.owns(path)):
            hint = f"sessionFile is a name below {folder}"
            raise UnsafePath("the entry names a file outside of the sessions", path=path, hint=hint)
        return path

    def _usual(self, agent: str, session_id: str) -> str | None:
        """Where a session of ours lies unless somebody moved it."""
        try:
            began = int(session_id.replace("-", "")[:_TIME_DIGITS], 16)
            return self._path(agent, session_id, began)
        except (ValueError, InvalidId):
            return None  # not an id of ours

    def _path(self, agent: str, session_id: str, now: int) -> str:
        return f"{self._store.layout.folder(self._workspace(agent))}/{file_name(iso_timestamp(now), session_id)}"

    # -- beginning

    def existing(self, session_id: str) -> Begun:
        """A session of the store that is there already, as one that a key can have."""
        path = self._store.find(session_id)
        if path is None:
            raise SessionNotFound(f"there is no session {session_id}", hint="list the sessions")
        self._paths[session_id] = path
        return Begun(session_id, path, forked=False)

    def begin(self, agent: str, now: int, parent: Parent | None) -> Begun:
        """A new session in the workspace of an agent, durable; with what was said in the parent, if it is given."""
        if parent is not None and self._is_short(parent):
            return self._fork(agent, parent)
        session_id = new_session_id(now, self._store.random)
        path = self._path(agent, session_id, now)
        header = make.header(session_id, iso_timestamp(now), self._workspace(agent))
        self._store.begin(path, [encode(header)]).close()
        self._paths[session_id] = path
        return Begun(session_id, path, forked=False)

    def discard(self, begun: Begun) -> None:
        """Take a session away that was begun just now, and that no key has."""
        self._paths.pop(begun.session_id, None)
        atomic.remove(self._store.fs, begun.path)

    def _fork(self, agent: str, parent: Parent) -> Begun:
        with (
            self._store.open(parent.path, readonly=True) as source,
            transfer.fork(self._store, source, self._workspace(agent)) as copy,
        ):
            self._paths[copy.id] = copy.path
            return Begun(copy.id, copy.path, forked=True)

    def _is_short(self, parent: Parent) -> bool:
        """Whether a parent is short enough to be continued by a thread; a limit of 0 is none."""
        if self._max_tokens <= 0:
            return True
        tokens = parent.entry.known("contextTokens")
        if tokens is None:
            with self._store.open(parent.path, readonly=True) as session:
                tokens = context_tokens(session.context().messages).tokens
        return bool(tokens <= self._max_tokens)
