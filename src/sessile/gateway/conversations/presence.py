"""Presence: where the gateway of a store runs. A folder has one gateway at a time, a database may have many.

    <root>/gateway.lock     locked with `flock` while a gateway runs; the kernel releases it when the process dies
    <root>/gateway.json     address, process and token file of that gateway, for clients of the same user

Rules: a second gateway for a folder is rejected, and told which one runs. The note is written when the gateway is
reachable, and removed when it stops. Whether the gateway of a note is alive is decided by the lock, never by a process
id that another program may have by now.

In a database each gateway has its own lock and note, `gateway-<random>`, and none is rejected. A running gateway on
this machine is preferred. A new gateway removes what dead ones left.

Nothing here connects to anything.
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


_NAME, _LOCK, _NOTE = "gateway", ".lock", ".json"
_SCHEMA = "sessile.gateway/1"
_PATIENCE = 0.5  # seconds; a check whether the lock is free holds it for an instant


class GatewayInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The published data of a gateway. `started` is in milliseconds, `host` is the name of its machine."""

    url: str
    pid: int
    started: int
    token_file: str
    host: str = ""


class Noted(NamedTuple):
    """The note of a gateway, and whether that gateway still runs. `note` is `None` if it cannot be read."""

    path: str
    note: GatewayInfo | None
    alive: bool


class Presence:
    """The gateway of a folder, or one of the gateways of a database."""

    def __init__(self, store: Store) -> None:
        self._fs: Filesystem = store.fs
        self._root = store.layout.root
        self._now = store.now
        self._many = store.database is not None
        self._own = f"{_NAME}-{store.random(8).hex()}" if self._many else _NAME

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of a gateway. Raise `Conflict` if a gateway of this folder runs already."""
        atomic.make_folders(self._fs, self._root)
        self._clean_up()
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(locked(self._fs, self._path(self._own, _LOCK), _PATIENCE))
                except SessionBusy as error:
                    raise self._conflict() from error
                yield
        finally:
            if self._many:
                atomic.remove(self._fs, self._path(self._own, _LOCK))

    def _clean_up(self) -> None:
        """Remove the files of dead gateways of a database. A gateway that is starting has no note yet."""
        for name in self._names() if self._many else ():
            noted = self._noted(name)
            if noted is not None and not noted.alive:
                for ending in (_NOTE, _LOCK):
                    atomic.remove(self._fs, self._path(name, ending))

    def _conflict(self) -> Conflict:
        found = self.look()
        who = "" if found is None or found.note is None else f": {found.note.url}, process {found.note.pid}"
        return Conflict(
            f"a gateway is already running for this store{who}",
            path=self._path(self._own, _LOCK),
            hint="use that one, stop it first, or pass --root PATH for another store",
        )

    @contextmanager
    def announced(self, url: str, token_file: str) -> Iterator[GatewayInfo]:
        """Publish where the gateway is, until the context ends."""
        pid, host = locks.own_pid(), locks.own_host()
        note = GatewayInfo(url=url, pid=pid, started=self._now(), token_file=token_file, host=host)
        members = {"schema": _SCHEMA, **msgspec.to_builtins(note)}
        path = self._path(self._own, _NOTE)
        atomic.replace(self._fs, path, (json.dumps(members, indent=2).encode() + b"\n",))
        try:
            yield note
        finally:
            atomic.remove(self._fs, path)  # a leftover note is recognised by the free lock

    def look(self) -> Noted | None:
        """Return the last note; `None` if there is none.

        Of several gateways, prefer a running one on this machine, then a running one.
        """
        found = [noted for name in self._names() if (noted := self._noted(name)) is not None]
        here = locks.own_host()
        return max(
            found, key=lambda noted: (noted.alive, noted.note is not None and noted.note.host == here), default=None
        )

    def running(self) -> GatewayInfo | None:
        """Return the running gateway; `None` if there is none, or it is not reachable yet."""
        found = self.look()
        return found.note if found is not None and found.alive else None

    def is_held(self) -> bool:
        """Return whether a gateway is running, reachable or not."""
        return any(is_held(self._fs, self._path(name, _LOCK)) for name in self._names())

    def _noted(self, name: str) -> Noted | None:
        path = self._path(name, _NOTE)
        found = shared_file.read(self._fs, path)
        if found is None:
            return None
        try:
            note = msgspec.json.decode(found[0], type=GatewayInfo)
        except msgspec.MsgspecError:
            note = None
        return Noted(path, note, is_held(self._fs, self._path(name, _LOCK)))

    def _names(self) -> Sequence[str]:
        """Return the names of all gateways that have files here."""
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


def shared_turns(store: Store) -> TurnTable | None:
    """Return the turn table that all gateways of a database share; `None` for a folder, which has one gateway."""
    if store.database is None:
        return None
    from sessile.storage.postgres.turn_queue import TurnTable  # most stores are folders, and need no database driver

    return TurnTable(store.database)
