"""Leases: rights that one process holds by name until it gives them back, dies or falls silent.

Rules: the clock of the database decides who may take a lease; a holder counts from before it asked, so that it gives up
first. Each taking has a token larger than every one before, which whoever acts under a lease can check. One thread
renews what this process holds, three times before it would end, and ends when nothing is held. A lease that could not
be renewed in time is lost, and `holds` says so at once. A process that ends gives back what it holds, unless it is killed. A
forked child holds nothing of its parent's.

A lease is not shared between threads: who takes one that this very process holds is refused as anybody else.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from sessile.errors import StorageFailure
from sessile.storage.postgres.database import Database

_RENEWALS = 3  # in the life of a lease
# Who only looks in vain disturbs nobody: the first condition is for those. The second decides.
_SPAN = "%(ttl)s::float8 * interval '1 second'"
_TAKE = f"""
    INSERT INTO lease (name, holder, token, until)
    SELECT %(name)s, %(holder)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp() + {_SPAN}
    WHERE NOT EXISTS (
        SELECT 1 FROM lease WHERE name = %(name)s AND until > clock_timestamp() AND holder <> %(holder)s)
    ON CONFLICT (name) DO UPDATE
    SET holder = excluded.holder, token = greatest(lease.token + 1, excluded.token), until = excluded.until
    WHERE lease.until < clock_timestamp() OR lease.holder = excluded.holder
    RETURNING token"""
_RENEW = f"""
    UPDATE lease SET until = clock_timestamp() + {_SPAN}
    WHERE name = ANY(%(names)s) AND holder = %(holder)s AND until > clock_timestamp()
    RETURNING name, token"""
_RELEASE = (
    "UPDATE lease SET until = clock_timestamp() - interval '1 second' WHERE name = %s AND holder = %s AND token = %s"
)
_RELEASE_ALL = "UPDATE lease SET until = clock_timestamp() - interval '1 second' WHERE holder = %s AND name = ANY(%s)"
_HOLDER = "SELECT holder FROM lease WHERE name = %s AND until > clock_timestamp()"
_SWEEP = "DELETE FROM lease WHERE until < clock_timestamp() - interval '1 day'"


def _now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class _Held:
    """A lease of ours; without a token while it is being taken."""

    token: int | None = None
    until: float = 0.0


@dataclass(slots=True)
class _Process:
    """What one process holds."""

    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}")
    held: dict[str, _Held] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    renewer: threading.Thread | None = None


class Leases:
    """The leases of this process on one database, each good for `ttl` seconds after it was last renewed."""

    def __init__(self, database: Database, ttl: float = 15.0, *, clock: Callable[[], float] = _now) -> None:
        self._database = database
        self._ttl = ttl
        self._clock = clock
        self._processes: dict[int, _Process] = {}
        weakref.finalize(self, _give_back, database, self._processes)

    @property
    def identity(self) -> str:
        """How this process is named as a holder: `host:pid:` and something that no other process has."""
        return self._process().holder

    def take(self, name: str) -> int | None:
        """Take a lease if nobody holds it; never waits. Its token, or None."""
        process = self._process()
        with process.changed:
            known = process.held.get(name)
            if known is not None and (known.token is None or self._clock() < known.until):
                return None
            process.held[name] = mine = _Held()
        token: int | None = None
        until = self._clock() + self._ttl
        try:
            found = self._database.query(_TAKE, {"name": name, "holder": process.holder, "ttl": self._ttl}, again=True)
            token = found[0][0] if found else None
        finally:
            with process.changed:
                if token is not None:
                    mine.token, mine.until = token, until
                    self._renew_on(process)
                elif process.held.get(name) is mine:
                    del process.held[name]
        return token

    def holds(self, name: str) -> bool:
        """Whether this process holds a lease now. Asks nobody: a lease that may have ended is not held."""
        return self.token(name) is not None

    def token(self, name: str) -> int | None:
        """The token of a lease that this process holds now."""
        process = self._process()
        with process.changed:
            held = process.held.get(name)
            return held.token if held is not None and self._clock() < held.until else None

    def release(self, name: str) -> None:
        """Give a lease back. One that is not held, or was lost, is left alone."""
        process = self._process()
        with process.changed:
            held = process.held.get(name)
            if held is None or held.token is None:
                return
            del process.held[name]
            process.changed.notify()
        self._database.query(_RELEASE, (name, process.holder, held.token), again=True)

    def holder(self, name: str) -> str | None:
        """Who holds a lease, as `identity` names it."""
        found = self._database.query(_HOLDER, (name,), again=True)
        return found[0][0] if found else None

    def close(self) -> None:
        """Give everything back that this process holds, and end the thread."""
        renewer = self._process().renewer
        _give_back(self._database, self._processes)
        if renewer is not None:
            renewer.join()

    def _process(self) -> _Process:
        # Without a lock, because a lock that another thread held at a fork would be held for ever.
        number = os.getpid()
        return self._processes.get(number) or self._processes.setdefault(number, _Process())

    def _renew_on(self, process: _Process) -> None:
        """Let a thread renew from now on; the condition is held."""
        if process.renewer is None or not process.renewer.is_alive():
            process.renewer = threading.Thread(target=self._renew, args=(process,), name="sessile-leases", daemon=True)
            process.renewer.start()

    def _renew(self, process: _Process) -> None:
        self._sweep()
        while True:
            with process.changed:
                process.changed.wait_for(lambda: not process.held, self._ttl / _RENEWALS)
                names = [name for name, held in process.held.items() if held.token is not None]
                if not process.held:
                    process.renewer = None
                    return
            until = self._clock() + self._ttl
            try:
                found = self._database.query(_RENEW, {"names": names, "holder": process.holder, "ttl": self._ttl})
            except StorageFailure:
                continue  # `holds` tells when it is too late; until then there are more attempts
            with process.changed:
                for name, token in found:
                    held = process.held.get(name)
                    if held is not None and held.token == token and self._clock() < held.until:
                        held.until = until

    def _sweep(self) -> None:
        """Remove what nobody has held for a day."""
        try:
            self._database.query(_SWEEP)
        except StorageFailure:
            pass  # the next process does it


def _give_back(database: Database, processes: dict[int, _Process]) -> None:
    process = processes.get(os.getpid())
    if process is None:
        return
    with process.changed:
        names = [name for name, held in process.held.items() if held.token is not None]
        process.held.clear()
        process.changed.notify()
    if names:
        try:
            database.query(_RELEASE_ALL, (process.holder, names), again=True)
        except StorageFailure:
            pass  # they end by themselves
