"""Where the gateway of a store is: one at a time, found by whoever wants to ask it.

    <root>/gateway.lock     held with `flock` while a gateway runs; the kernel frees it when its holder dies
    <root>/gateway.json     address, process and token file of that gateway, for clients of the same user

Rules: who does not get the lock is refused, and told who has it. The note is written when the gateway can be reached, and taken
away when it ends. One that a killed gateway left behind is told from a living one's by the lock, never by a process number that
another program may have by now.

Nothing here connects to anything.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import msgspec

from sessile.errors import Conflict, SessionBusy
from sessile.storage import atomic, processes, shared_file
from sessile.storage.base import Filesystem
from sessile.storage.lock import is_held, locked
from sessile.store import Store

_LOCK, _NOTE = "gateway.lock", "gateway.json"
_SCHEMA = "sessile.gateway/1"
_PATIENCE = 0.5  # seconds: whoever only looks whether the lock is free holds it for an instant


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a gateway tells of itself. `started` is in milliseconds."""

    url: str
    pid: int
    started: int
    token_file: str


class Noted(NamedTuple):
    """A note of a gateway, and whether that gateway still runs. Of a note that cannot be read nothing is known."""

    path: str
    note: Whereabouts | None
    alive: bool


class Presence:
    """The gateway of one store."""

    def __init__(self, store: Store) -> None:
        self._fs: Filesystem = store.fs
        self._root = store.layout.root
        self._now = store.now

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one gateway of the store; raises `Conflict` if there is one already."""
        atomic.make_folders(self._fs, self._root)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._fs, self._path(_LOCK), _PATIENCE))
            except SessionBusy as error:
                raise self._taken() from error
            yield

    def _taken(self) -> Conflict:
        found = self.look()
        who = "" if found is None or found.note is None else f": {found.note.url}, process {found.note.pid}"
        return Conflict(
            f"a gateway already runs on this store{who}",
            path=self._path(_LOCK),
            hint="use that one, end it first, or say --root PATH for another store",
        )

    @contextmanager
    def announced(self, url: str, token_file: str) -> Iterator[Whereabouts]:
        """Tell clients where the gateway is, as long as it is there."""
        note = Whereabouts(url=url, pid=processes.own_pid(), started=self._now(), token_file=token_file)
        members = {"schema": _SCHEMA, **msgspec.to_builtins(note)}
        path = self._path(_NOTE)
        atomic.replace(self._fs, path, (json.dumps(members, indent=2).encode() + b"\n",))
        try:
            yield note
        finally:
            atomic.remove(self._fs, path)  # one that stays is seen to be nobody's

    def look(self) -> Noted | None:
        """The gateway that was noted last; `None` if there is no note."""
        path = self._path(_NOTE)
        found = shared_file.read(self._fs, path)
        if found is None:
            return None
        try:
            note = msgspec.json.decode(found[0], type=Whereabouts)
        except msgspec.MsgspecError:
            note = None
        return Noted(path, note, self.is_held())

    def running(self) -> Whereabouts | None:
        """The gateway that runs now; `None` if none does, or it cannot be reached yet."""
        found = self.look()
        return found.note if found is not None and found.alive else None

    def is_held(self) -> bool:
        """Whether a gateway runs, reachable or not."""
        return is_held(self._fs, self._path(_LOCK))

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)
