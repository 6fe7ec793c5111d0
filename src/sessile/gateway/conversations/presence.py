"""Where the gateway of a store is: one at a time, found by whoever wants to ask it. A database may have many.

    <root>/gateway.lock     held with `flock` while a gateway runs; the kernel frees it when its holder dies
    <root>/gateway.json     address, process and token file of that gateway, for clients of the same user

Rules: who does not get the lock is refused, and told who has it. The note is written when the gateway can be reached, and taken
away when it ends. One that a killed gateway left behind is told from a living one's by the lock, never by a process number that
another program may have by now.

In a database each gateway has a lock and a note of its own, `gateway-<random>`, and nobody is refused. Of several that run, one
of this machine is found first. Whoever comes takes away what dead ones left.

Nothing here connects to anything.

The turns of a store whose gateways may be many: a database, which they all ask.

A folder has one gateway at a time, which keeps its turns in its memory and, for the next one, in a `TurnLog`.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sessile.errors import Conflict, SessionBusy, storage_failures
from sessile.storage import atomic, locks, shared_file
from sessile.storage.base import Filesystem
from sessile.storage.locks import is_held, locked
from sessile.store import Store

if TYPE_CHECKING:
    from sessile.storage.postgres.turn_queue import TurnTable


# --- presence

_NAME, _LOCK, _NOTE = "gateway", ".lock", ".json"
_SCHEMA = "sessile.gateway/1"
_PATIENCE = 0.5  # seconds: whoever only looks whether the lock is free holds it for an instant


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a gateway tells of itself. `started` is in milliseconds, `host` is the name of its machine."""

    url: str
    pid: int
    started: int
    token_file: str
    host: str = ""


class Noted(NamedTuple):
    """A note of a gateway, and whether that gateway still runs. Of a note that cannot be read nothing is known."""

    path: str
    note: Whereabouts | None
    alive: bool


class Presence:
    """The gateway of one store, or one of those of a database."""

    def __init__(self, store: Store) -> None:
        self._fs: Filesystem = store.fs
        self._root = store.layout.root
        self._now = store.now
        self._many = store.database is not None
        self._own = f"{_NAME}-{store.random(8).hex()}" if self._many else _NAME

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one gateway of a folder, which raises `Conflict` if there is one already; or one of a database's."""
        atomic.make_folders(self._fs, self._root)
        self._tidy()
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(locked(self._fs, self._path(self._own, _LOCK), _PATIENCE))
                except SessionBusy as error:
                    raise self._taken() from error
                yield
        finally:
            if self._many:
                atomic.remove(self._fs, self._path(self._own, _LOCK))

    def _tidy(self) -> None:
        """Take away what dead gateways left, where each leaves something of its own. One that starts has no note yet."""
        for name in self._names() if self._many else ():
            noted = self._noted(name)
            if noted is not None and not noted.alive:
                for ending in (_NOTE, _LOCK):
                    atomic.remove(self._fs, self._path(name, ending))

    def _taken(self) -> Conflict:
        found = self.look()
        who = "" if found is None or found.note is None else f": {found.note.url}, process {found.note.pid}"
        return Conflict(
            f"a gateway already runs on this store{who}",
            path=self._path(self._own, _LOCK),
            hint="use that one, end it first, or say --root PATH for another store",
        )

    @contextmanager
    def announced(self, url: str, token_file: str) -> Iterator[Whereabouts]:
        """Tell clients where the gateway is, as long as it is there."""
        pid, host = locks.own_pid(), locks.own_host()
        note = Whereabouts(url=url, pid=pid, started=self._now(), token_file=token_file, host=host)
        members = {"schema": _SCHEMA, **msgspec.to_builtins(note)}
        path = self._path(self._own, _NOTE)
        atomic.replace(self._fs, path, (json.dumps(members, indent=2).encode() + b"\n",))
        try:
            yield note
        finally:
            atomic.remove(self._fs, path)  # one that stays is seen to be nobody's

    def look(self) -> Noted | None:
        """The gateway that was noted last; `None` if there is no note. Of many, one that runs here, else one that runs."""
        found = [noted for name in self._names() if (noted := self._noted(name)) is not None]
        here = locks.own_host()
        return max(
            found, key=lambda noted: (noted.alive, noted.note is not None and noted.note.host == here), default=None
        )

    def running(self) -> Whereabouts | None:
        """The gateway that runs now; `None` if none does, or it cannot be reached yet."""
        found = self.look()
        return found.note if found is not None and found.alive else None

    def is_held(self) -> bool:
        """Whether a gateway runs, reachable or not."""
        return any(is_held(self._fs, self._path(name, _LOCK)) for name in self._names())

    def _noted(self, name: str) -> Noted | None:
        path = self._path(name, _NOTE)
        found = shared_file.read(self._fs, path)
        if found is None:
            return None
        try:
            note = msgspec.json.decode(found[0], type=Whereabouts)
        except msgspec.MsgspecError:
            note = None
        return Noted(path, note, is_held(self._fs, self._path(name, _LOCK)))

    def _names(self) -> Sequence[str]:
        """The names of all gateways that have left something here."""
        if not self._many:
            return [_NAME]
        with storage_failures(self._root, "look for gateways"):
            try:
                names = self._fs.names(self._root)
            except FileNotFoundError:
                return []
        found = {posixpath.splitext(name)[0] for name in names if name.endswith((_NOTE, _LOCK))}
        return sorted(name for name in found if name.startswith(f"{_NAME}-"))

    def _path(self, name: str, ending: str) -> str:
        return posixpath.join(self._root, f"{name}{ending}")


# --- shared turns


def shared_turns(store: Store) -> TurnTable | None:
    """The turns of all gateways of a store; `None` if it is a folder, which has just one."""
    if store.database is None:
        return None
    from sessile.storage.postgres.turn_queue import TurnTable  # most stores are folders

    return TurnTable(store.database)
