"""A database: statements and transactions on connections that are borrowed for as long as they take.

Rules: a single statement is one round trip and commits by itself. What failed because others were at work at the same
time is tried again; what was lost with its connection is not, unless the caller says that doing it twice is harmless
(`again`), because nobody knows whether it was done. Once the server was reached, a connection that cannot be made is
tried for `patience` seconds, so that a restart or a failover is waited for. After a fork the child opens connections of
its own and leaves those of its parent alone.

It does not know any table.
"""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from sessile.errors import Invalid
from sessile.storage.postgres import failures
from sessile.storage.postgres.address import parse
from sessile.storage.postgres.connections import Connection, Connections

T = TypeVar("T")
Row = tuple[Any, ...]

_MOST_CONNECTIONS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.5
# Compiling short queries takes longer than running them. A process that stands still in a transaction, such as one that was
# stopped, must not hold up all others with its locks. The address may say otherwise.
_SETTINGS = "-c jit=off -c idle_in_transaction_session_timeout=30s"
# A server that vanished without a word is given up after half a minute.
_WATCHFUL = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


class Cursor(psycopg.Cursor[Row]):
    """A cursor that counts its round trips and reads binary rows."""

    counted: Callable[[], None]

    def execute(self, query: Any, params: Any = None, *, prepare: Any = None, binary: Any = None) -> Cursor:
        self.counted()
        super().execute(query, params, prepare=prepare, binary=binary)
        return self

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        self.counted()
        return super().copy(statement, params, **options)


class Database:
    """One schema of a PostgreSQL database, for any number of threads."""

    def __init__(self, url: str, *, schema: str = "sessile", durability: str = "power", patience: float = 10.0) -> None:
        if durability not in ("power", "process"):
            raise Invalid(f"{durability!r} is no durability", hint='it is "power" or "process"')
        self._address = parse(url, schema)
        self.schema = self._address.schema
        self.patience = patience
        given = self._address.options
        ours = {"connect_timeout": max(2, int(patience)), "fallback_application_name": "sessile", **_WATCHFUL}
        self._parameters: dict[str, Any] = {name: value for name, value in ours.items() if name not in given}
        commit = "on" if durability == "power" else "off"
        fixed = f"-c search_path={self.schema} -c synchronous_commit={commit}"
        self._parameters["options"] = " ".join(part for part in (_SETTINGS, given.get("options"), fixed) if part)
        self._reached = False
        self._processes: dict[int, Connections] = {}
        weakref.finalize(self, _close, self._processes)

    @property
    def place(self) -> str:
        """The address as it may be shown: without a password."""
        return self._address.shown

    @property
    def count(self) -> int:
        """How many statements this thread has sent so far; the beginning and end of a transaction are one each."""
        return self._connections().count

    def query(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, again: bool = False, prepare: bool = True
    ) -> list[Row]:
        """Run one statement and commit it; its rows, if it has any. `again`: it may be run twice if the connection breaks.

        Not prepared, it is planned anew each time, for just these values.
        """

        def once() -> list[Row]:
            with self._cursor(certain=again) as cursor:
                cursor.execute(sql, params, prepare=prepare)
                return cursor.fetchall() if cursor.description is not None else []

        return self._repeated(once, again)

    def transact(self, work: Callable[[Cursor], T], *, again: bool = False) -> T:
        """Run `work` in a transaction, once more from the beginning if others were in the way."""

        def once() -> T:
            with self._transaction() as cursor:
                return work(cursor)

        return self._repeated(once, again)

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """A cursor in a transaction: all of the block is done, or nothing. It is not repeated: see `transact`."""
        try:
            with self._transaction() as cursor:
                yield cursor
        except failures.CONTENDED as error:
            raise failures.translated(error, self.place) from error

    def close(self) -> None:
        """Close the connections of this process; the next statement opens one again."""
        _close(self._processes)

    def __repr__(self) -> str:
        return f"Database({self.place!r})"

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        with self._cursor(certain=True) as cursor:
            cursor.execute("BEGIN")
            try:
                yield cursor
            except BaseException:
                if not cursor.connection.broken:
                    cursor.execute("ROLLBACK")
                raise
            with self._translating(cursor.connection, certain=False):
                cursor.execute("COMMIT")
            if cursor.statusmessage != "COMMIT":
                raise RuntimeError("a transaction in which a statement failed was ended as if it had succeeded")

    def _connections(self) -> Connections:
        # Without a lock, because a lock that another thread held at a fork would be held for ever.
        process = os.getpid()
        found = self._processes.get(process)
        return found or self._processes.setdefault(process, Connections(self._connect, _MOST_CONNECTIONS))

    def _connect(self) -> Connection:
        """A new connection; a server that was reached before is waited for."""
        until = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                made = psycopg.connect(self._address.conninfo, autocommit=True, **self._parameters)
            except psycopg.OperationalError as error:
                failure = failures.unreachable(error, self.place)
                if not self._reached or not isinstance(failure, failures.Unreachable) or time.monotonic() > until:
                    raise failure from error
                pause = _rest(pause)
            else:
                self._reached = True
                return made

    @contextmanager
    def _cursor(self, *, certain: bool) -> Iterator[Cursor]:
        """A cursor on a borrowed connection. `certain`: if the connection breaks, nothing was changed, or it may be repeated."""
        connections = self._connections()
        try:
            with (
                connections.borrowed(self.patience) as connection,
                self._translating(connection, certain=certain),
                Cursor(connection) as cursor,
            ):
                cursor.format = psycopg.pq.Format.BINARY
                cursor.counted = connections.counted
                yield cursor
        except TimeoutError as error:
            raise failures.exhausted(self.place, self.patience) from error

    @contextmanager
    def _translating(self, connection: Connection, *, certain: bool) -> Iterator[None]:
        try:
            yield
        except failures.TRANSLATED as error:
            if isinstance(error, failures.CONTENDED):
                raise
            if not connection.broken:
                raise failures.translated(error, self.place) from error
            if certain:
                raise failures.unreachable(error, self.place) from error
            raise failures.lost(error, self.place) from error

    def _repeated(self, once: Callable[[], T], again: bool) -> T:
        until = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return once()
            except failures.CONTENDED as error:
                if time.monotonic() > until:
                    raise failures.translated(error, self.place) from error
            except (failures.Unreachable, failures.OutcomeUnknown):
                if not again or not self._reached or time.monotonic() > until:
                    raise
            pause = _rest(pause)


def _rest(pause: float) -> float:
    """Wait a little, never as long as another who failed at the same moment; the next pause."""
    time.sleep(pause * (0.5 + random.random()))
    return min(2 * pause, _LONGEST_PAUSE)


def _close(processes: dict[int, Connections]) -> None:
    found = processes.pop(os.getpid(), None)
    if found is not None:
        found.close()
