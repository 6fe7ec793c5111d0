"""A database: statements and transactions on connections that are borrowed for as long as they take.

Rules: a single statement is one round trip and commits by itself. What failed because others were at work at the same
time is tried again; what was lost with its connection is not, unless the caller says that doing it twice is harmless
(`again`), because nobody knows whether it was done. Once the server was reached, a connection that cannot be made is
tried for `patience` seconds, so that a restart or a failover is waited for. After a fork the child opens connections of
its own and leaves those of its parent alone.

It does not know any table.

The address of a database: what is in the URL, and what of it may be shown.

Rules: `?schema=NAME` is ours, everything else belongs to libpq. A password is never part of what is shown, not even of
an address that cannot be understood.

The open connections of one process: borrowed for a statement or a transaction, and given back.

Rules: a connection that cannot be made says why at once and to the caller, and nothing runs in the background. A
connection that the server has closed while it was idle is noticed before it is used, without a round trip. What comes
back in the middle of a transaction is closed.

It knows nothing of forks: a process makes connections of its own.

What went wrong in a database, as the typed errors of Sessile.

Rules: every message names the database without its password and says what a person can do. A statement whose
connection broke is `OutcomeUnknown`: it may have been carried out. Errors that a caller asks for by what it does, such
as a unique name that is taken, keep their own type.
"""

from __future__ import annotations

import errno
import os
import random
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import ProgrammingError, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from sessile.errors import Invalid, InvalidConfig, PermissionRefused, SessileError, StorageFailure, StorageFull

# --- address

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HINT = "an address looks like postgresql://user@host:5432/database?schema=sessile"


class Address(NamedTuple):
    """Where a database is."""

    conninfo: str
    options: dict[str, str]
    schema: str
    shown: str
    """The address as a person may see it: without passwords."""


def parse(url: str, schema: str) -> Address:
    """Take an address apart; a schema in it counts more than the one given."""
    try:
        parts = urlsplit(url)
        members = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidConfig("this is no address of a database", hint=_HINT) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidConfig("this is no address of a PostgreSQL database", hint=_HINT)
    schema = dict(members).get("schema", schema)
    if not _SCHEMA.fullmatch(schema):
        hint = "a schema is named with a-z, 0-9 and _, and begins with a letter"
        raise InvalidConfig(f"{schema!r} is no name of a schema", hint=hint)
    ours = [(name, value) for name, value in members if name != "schema"]
    conninfo = urlunsplit(parts._replace(query=urlencode(ours, quote_via=quote)))
    try:
        options = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError:  # its text may show the password
        raise InvalidConfig("this address of a database cannot be understood", hint=_HINT) from None
    return Address(conninfo, options, schema, _shown(options, schema))


def _shown(options: dict[str, str], schema: str) -> str:
    user = f"{quote(options['user'])}@" if "user" in options else ""
    host = options.get("host", "")
    port = f":{options['port']}" if "port" in options else ""
    members = {"host": host, "schema": schema} if host.startswith("/") else {"schema": schema}
    place = "" if host.startswith("/") else host
    return f"postgresql://{user}{place}{port}/{options.get('dbname', '')}?{urlencode(members, safe='/')}"


# --- connections

Connection = psycopg.Connection[tuple[Any, ...]]


class Connections:
    """At most `most` connections, made when they are needed."""

    def __init__(self, connect: Callable[[], Connection], most: int) -> None:
        self._sent = threading.local()
        self._connect = connect
        self._idle: list[Connection] = []
        self._free = most
        self._closed = False
        self._guard = threading.Condition()

    @property
    def count(self) -> int:
        """How many statements this thread has sent."""
        return getattr(self._sent, "count", 0)

    def counted(self) -> None:
        """Count one more."""
        self._sent.count = self.count + 1

    @contextmanager
    def borrowed(self, patience: float) -> Iterator[Connection]:
        """A connection for the length of a block; TimeoutError if all stay in use."""
        with self._guard:
            if not self._guard.wait_for(lambda: self._free > 0, patience):
                raise TimeoutError
            self._free -= 1
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is not None and not _alive(connection):
                connection.close()
                connection = None
            connection = connection or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            with self._guard:
                self._free += 1
                self._guard.notify()

    def close(self) -> None:
        """Close what is idle now, and what is in use when it comes back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._guard:
            if connection.info.transaction_status == TransactionStatus.IDLE and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _alive(connection: Connection) -> bool:
    """Whether the server still listens, as far as has become known here."""
    waiting = select.poll()
    try:
        waiting.register(connection.fileno(), select.POLLIN)
        # Bytes that nobody asked for are a farewell, or a setting that was changed: only the first ends the stream.
        while waiting.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return True


# --- failures

TRANSLATED = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, errors.InsufficientPrivilege)
"""What never leaves this package as it is."""

CONTENDED = (errors.SerializationFailure, errors.DeadlockDetected)
"""Nothing was done, because others did something at the same time: can be tried again."""


class OutcomeUnknown(StorageFailure):
    """The connection to the database broke; whether the last change was made is not known."""


class Unreachable(StorageFailure):
    """The database cannot be reached; nothing was changed."""


def translated(error: psycopg.Error, place: str) -> SessileError:
    """The typed form of an error after which the connection can still be used."""
    reason = _reason(error)
    if isinstance(error, (errors.DiskFull, errors.OutOfMemory)):
        hint = "nothing was lost; free some space on the server, then try again"
        return StorageFull(f"the database has no room left: {reason}", path=place, hint=hint, code=errno.ENOSPC)
    if isinstance(error, errors.InsufficientPrivilege):
        hint = "grant the user the rights on the schema, or use another one with ?schema=NAME"
        return PermissionRefused(f"the database refused: {reason}", path=place, hint=hint, code=errno.EACCES)
    if isinstance(error, errors.ReadOnlySqlTransaction):
        hint = "this server only reads, as a standby does; use the address of the one that writes"
        return StorageFailure(f"the database cannot be changed: {reason}", path=place, hint=hint, code=errno.EROFS)
    if isinstance(error, CONTENDED):
        hint = "many writers change the same thing at once; try again"
        return StorageFailure(f"the database could not get on: {reason}", path=place, hint=hint, code=errno.EBUSY)
    return StorageFailure(
        f"the database failed: {reason}", path=place, hint="look at the log of the server", code=errno.EIO
    )


def lost(error: psycopg.Error, place: str) -> OutcomeUnknown:
    """A connection broke while a change was on its way."""
    hint = "check the server, then look whether the change is there before making it again"
    return OutcomeUnknown(
        f"the connection to the database broke: {_reason(error)}", path=place, hint=hint, code=errno.EIO
    )


def unreachable(error: psycopg.Error, place: str) -> SessileError:
    """A connection could not be made, or broke before anything was changed."""
    reason = _reason(error)
    if "authentication failed" in reason or "no password supplied" in reason or "pg_hba.conf" in reason:
        hint = "give the password in PGPASSWORD or in ~/.pgpass, and check the name of the user"
        return PermissionRefused(f"the database refused the user: {reason}", path=place, hint=hint, code=errno.EACCES)
    if "does not exist" in reason and "database" in reason:
        return Unreachable(
            f"there is no such database: {reason}", path=place, hint="make it with createdb", code=errno.ENOENT
        )
    hint = "check that the server runs, and the host and port in the address"
    return Unreachable(f"cannot reach the database: {reason}", path=place, hint=hint, code=errno.EHOSTUNREACH)


def exhausted(place: str, patience: float) -> Unreachable:
    """All connections of this process stay in use."""
    hint = "fewer threads, or calls that do not hold a transaction for long"
    message = f"no connection to the database became free in {patience:g} seconds"
    return Unreachable(message, path=place, hint=hint, code=errno.EBUSY)


def _reason(error: psycopg.Error) -> str:
    """The first sentence of what the server or libpq said."""
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()) or type(error).__name__


# --- database

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
        except CONTENDED as error:
            raise translated(error, self.place) from error

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
                failure = unreachable(error, self.place)
                if not self._reached or not isinstance(failure, Unreachable) or time.monotonic() > until:
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
            raise exhausted(self.place, self.patience) from error

    @contextmanager
    def _translating(self, connection: Connection, *, certain: bool) -> Iterator[None]:
        try:
            yield
        except TRANSLATED as error:
            if isinstance(error, CONTENDED):
                raise
            if not connection.broken:
                raise translated(error, self.place) from error
            if certain:
                raise unreachable(error, self.place) from error
            raise lost(error, self.place) from error

    def _repeated(self, once: Callable[[], T], again: bool) -> T:
        until = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return once()
            except CONTENDED as error:
                if time.monotonic() > until:
                    raise translated(error, self.place) from error
            except (Unreachable, OutcomeUnknown):
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
