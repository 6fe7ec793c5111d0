"""Leases: named locks in a database that one process holds until it releases them, dies or stops renewing them.

Rules:

- The clock of the database decides who may take a lease. The holder counts from before its request, so that it gives up first.
- Every time a lease is taken it gets a token larger than all before, which can be checked by actions under the lease.
- One thread renews the leases of this process, three times within their life, and ends when no lease is held.
- A lease that could not be renewed in time is lost, and `holds` returns False at once.
- A process releases its leases when it exits, unless it is killed. A forked child does not hold the leases of its parent.
- A lease is not shared between threads: taking one that this process holds already is refused.
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
# The first condition avoids a write when another process holds the lease. The second one decides.
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
    """Return seconds that also pass while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class _Held:
    """A lease of this process; `token` is None while it is being taken."""

    token: int | None = None
    until: float = 0.0


@dataclass(slots=True)
class _Process:
    """The leases of one process."""

    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}")
    held: dict[str, _Held] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    renewer: threading.Thread | None = None


class Leases:
    """The leases of this process in one database, each valid for `ttl` seconds after its last renewal."""

    def __init__(self, database: Database, ttl: float = 15.0, *, clock: Callable[[], float] = _now) -> None:
        self._database = database
        self._ttl = ttl
        self._clock = clock
        self._processes: dict[int, _Process] = {}
        weakref.finalize(self, _release_all, database, self._processes)

    @property
    def identity(self) -> str:
        """The name of this process as a holder: `host:pid:` and a unique id."""
        return self._process().holder

    def take(self, name: str) -> int | None:
        """Take a lease without waiting; return its token, or None if it is held."""
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
                    self._start_renewing(process)
                elif process.held.get(name) is mine:
                    del process.held[name]
        return token

    def holds(self, name: str) -> bool:
        """Return whether this process holds a lease, without a query; a lease that may have ended is not held."""
        return self.token(name) is not None

    def token(self, name: str) -> int | None:
        """Return the token of a lease that this process holds; None if it does not."""
        process = self._process()
        with process.changed:
            held = process.held.get(name)
            return held.token if held is not None and self._clock() < held.until else None

    def release(self, name: str) -> None:
        """Release a lease. Does nothing if it is not held or was lost."""
        process = self._process()
        with process.changed:
            held = process.held.get(name)
            if held is None or held.token is None:
                return
            del process.held[name]
            process.changed.notify()
        self._database.query(_RELEASE, (name, process.holder, held.token), again=True)

    def holder(self, name: str) -> str | None:
        """Return the `identity` of the process that holds a lease; None if it is free."""
        found = self._database.query(_HOLDER, (name,), again=True)
        return found[0][0] if found else None

    def close(self) -> None:
        """Release all leases of this process, and end the thread."""
        renewer = self._process().renewer
        _release_all(self._database, self._processes)
        if renewer is not None:
            renewer.join()

    def _process(self) -> _Process:
        # Without a lock: one that another thread holds during a fork would stay locked in the child.
        number = os.getpid()
        return self._processes.get(number) or self._processes.setdefault(number, _Process())

    def _start_renewing(self, process: _Process) -> None:
        """Start the thread that renews leases; the caller holds the condition."""
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
                continue  # there are more attempts until the lease ends, and then `holds` returns False
            with process.changed:
                for name, token in found:
                    held = process.held.get(name)
                    if held is not None and held.token == token and self._clock() < held.until:
                        held.until = until

    def _sweep(self) -> None:
        """Remove leases that were not held for a day."""
        try:
            self._database.query(_SWEEP)
        except StorageFailure:
            pass  # the next process does it


def _release_all(database: Database, processes: dict[int, _Process]) -> None:
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
            pass  # they expire
