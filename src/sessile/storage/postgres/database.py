"""One schema of a PostgreSQL database: its address, connections, statements, transactions and errors.

Rules:

- A single statement is one round trip and commits by itself.
- What failed because of concurrent changes is tried again. What was lost with its connection is not, unless the caller says that
  running it twice is harmless (`again`), because it is unknown whether it was done.
- Once the server was reached, connecting is tried for `patience` seconds, to wait for a restart or a failover.
- A connection error is raised in the caller at once; nothing runs in the background. A connection that the server closed while
  it was idle is noticed before it is used, without a round trip. A connection that is returned in the middle of a transaction is
  closed.
- After a fork the child opens its own connections and leaves those of its parent alone.
- Every error names the database without its password and has a hint. A statement whose connection broke raises `OutcomeUnknown`:
  it may have been executed. Errors that a caller expects, such as a violated unique constraint, keep their own type.
- `?schema=NAME` in the address is ours, everything else belongs to libpq.

The tables are not known here.
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

T = TypeVar("T")
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

_MAX_CONNECTIONS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.5
# Compiling short queries takes longer than running them. A process that was stopped in a transaction must not block all others
# with its locks. The address may override both.
_SETTINGS = "-c jit=off -c idle_in_transaction_session_timeout=30s"
# A server that vanished without closing the connection is given up after half a minute.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


class Cursor(psycopg.Cursor[Row]):
    """A cursor that counts its round trips and reads binary rows."""

    count_one: Callable[[], None]

    def execute(self, query: Any, params: Any = None, *, prepare: Any = None, binary: Any = None) -> Cursor:
        self.count_one()
        super().execute(query, params, prepare=prepare, binary=binary)
        return self

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        self.count_one()
        return super().copy(statement, params, **options)


class Database:
    """One schema of a PostgreSQL database, for any number of threads."""

    def __init__(self, url: str, *, schema: str = "sessile", durability: str = "power", patience: float = 10.0) -> None:
        if durability not in ("power", "process"):
            raise Invalid(f"invalid durability {durability!r}", hint='use "process" or "power"')
        self._address = parse(url, schema)
        self.schema = self._address.schema
        self.patience = patience
        given = self._address.options
        ours = {"connect_timeout": max(2, int(patience)), "fallback_application_name": "sessile", **_KEEPALIVE}
        self._parameters: dict[str, Any] = {name: value for name, value in ours.items() if name not in given}
        commit = "on" if durability == "power" else "off"
        fixed = f"-c search_path={self.schema} -c synchronous_commit={commit}"
        self._parameters["options"] = " ".join(part for part in (_SETTINGS, given.get("options"), fixed) if part)
        self._reached = False
        self._processes: dict[int, Connections] = {}
        weakref.finalize(self, _close, self._processes)

    @property
    def place(self) -> str:
        """The address without a password, for messages."""
        return self._address.shown

    @property
    def count(self) -> int:
        """The number of statements this thread has sent; BEGIN and COMMIT count too."""
        return self._connections().count

    def query(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, again: bool = False, prepare: bool = True
    ) -> list[Row]:
        """Run one statement, commit it and return its rows, if it has any.

        With `again` it may run twice if the connection breaks. Without `prepare` it is planned for these values each time.
        """

        def once() -> list[Row]:
            with self._cursor(certain=again) as cursor:
                cursor.execute(sql, params, prepare=prepare)
                return cursor.fetchall() if cursor.description is not None else []

        return self._repeated(once, again)

    def transact(self, work: Callable[[Cursor], T], *, again: bool = False) -> T:
        """Run `work` in a transaction; after a conflict with concurrent changes, run it again from the start."""

        def once() -> T:
            with self._transaction() as cursor:
                return work(cursor)

        return self._repeated(once, again)

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """Yield a cursor in a transaction. It is not repeated after a conflict; see `transact`."""
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
                raise RuntimeError("a statement of the transaction failed, but the error was suppressed")

    def _connections(self) -> Connections:
        # Without a lock: one that another thread holds during a fork would stay locked in the child.
        process = os.getpid()
        found = self._processes.get(process)
        return found or self._processes.setdefault(process, Connections(self._connect, _MAX_CONNECTIONS))

    def _connect(self) -> Connection:
        """Open a connection; wait for a server that was reached before."""
        until = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = psycopg.connect(self._address.conninfo, autocommit=True, **self._parameters)
            except psycopg.OperationalError as error:
                failure = unreachable(error, self.place)
                if not self._reached or not isinstance(failure, Unreachable) or time.monotonic() > until:
                    raise failure from error
                pause = _rest(pause)
            else:
                self._reached = True
                return connection

    @contextmanager
    def _cursor(self, *, certain: bool) -> Iterator[Cursor]:
        """Yield a cursor on a borrowed connection.

        `certain` means: if the connection breaks, nothing was changed, or the statement may be repeated.
        """
        connections = self._connections()
        try:
            with (
                connections.borrowed(self.patience) as connection,
                self._translating(connection, certain=certain),
                Cursor(connection) as cursor,
            ):
                cursor.format = psycopg.pq.Format.BINARY
                cursor.count_one = connections.add_one
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
    """Wait with jitter, so that processes that failed together do not retry together; return the next pause."""
    time.sleep(pause * (0.5 + random.random()))
    return min(2 * pause, _LONGEST_PAUSE)


def _close(processes: dict[int, Connections]) -> None:
    found = processes.pop(os.getpid(), None)
    if found is not None:
        found.close()


# -- connections


class Connections:
    """The connections of one process: at most `limit`, opened when needed."""

    def __init__(self, connect: Callable[[], Connection], limit: int) -> None:
        self._sent = threading.local()
        self._connect = connect
        self._idle: list[Connection] = []
        self._free = limit
        self._closed = False
        self._guard = threading.Condition()

    @property
    def count(self) -> int:
        """The number of statements this thread has sent."""
        return getattr(self._sent, "count", 0)

    def add_one(self) -> None:
        """Count one more statement."""
        self._sent.count = self.count + 1

    @contextmanager
    def borrowed(self, patience: float) -> Iterator[Connection]:
        """Yield a connection for the length of a block; raise TimeoutError if all stay in use."""
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
        """Close idle connections now, and the others when they are returned."""
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
    """Return whether the connection is still open, as far as this side knows."""
    waiting = select.poll()
    try:
        waiting.register(connection.fileno(), select.POLLIN)
        # Unrequested bytes are a shutdown message or a changed setting: only the former ends the stream.
        while waiting.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return True


# -- addresses

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HINT = "use an address such as postgresql://user@host:5432/database?schema=sessile"


class Address(NamedTuple):
    """The parts of a database address."""

    conninfo: str
    options: dict[str, str]
    schema: str
    shown: str
    """The address without passwords, for messages."""


def parse(url: str, schema: str) -> Address:
    """Parse an address; a schema in it overrides the given one."""
    try:
        parts = urlsplit(url)
        members = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidConfig("invalid database address", hint=_HINT) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidConfig("invalid database address: the scheme must be postgresql", hint=_HINT)
    schema = dict(members).get("schema", schema)
    if not _SCHEMA.fullmatch(schema):
        hint = "use a-z, 0-9 and _, starting with a letter"
        raise InvalidConfig(f"invalid schema name {schema!r}", hint=hint)
    rest = [(name, value) for name, value in members if name != "schema"]
    conninfo = urlunsplit(parts._replace(query=urlencode(rest, quote_via=quote)))
    try:
        options = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError:  # its message may contain the password
        raise InvalidConfig("invalid database address: libpq cannot parse it", hint=_HINT) from None
    return Address(conninfo, options, schema, _shown(options, schema))


def _shown(options: dict[str, str], schema: str) -> str:
    user = f"{quote(options['user'])}@" if "user" in options else ""
    host = options.get("host", "")
    port = f":{options['port']}" if "port" in options else ""
    members = {"host": host, "schema": schema} if host.startswith("/") else {"schema": schema}
    place = "" if host.startswith("/") else host
    return f"postgresql://{user}{place}{port}/{options.get('dbname', '')}?{urlencode(members, safe='/')}"


# -- errors

TRANSLATED = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, errors.InsufficientPrivilege)
"""Errors that are translated before they leave this package."""

CONTENDED = (errors.SerializationFailure, errors.DeadlockDetected)
"""Errors of concurrent changes: nothing was done, and the statement can be tried again."""


class OutcomeUnknown(StorageFailure):
    """The connection to the database broke; it is unknown whether the last change was made."""


class Unreachable(StorageFailure):
    """The database cannot be reached; nothing was changed."""


def translated(error: psycopg.Error, place: str) -> SessileError:
    """Return the typed form of an error after which the connection can still be used."""
    reason = _reason(error)
    if isinstance(error, (errors.DiskFull, errors.OutOfMemory)):
        hint = "free space on the server, then try again; nothing was lost"
        return StorageFull(f"the database is full: {reason}", path=place, hint=hint, code=errno.ENOSPC)
    if isinstance(error, errors.InsufficientPrivilege):
        hint = "grant the user rights on the schema, or use another schema with ?schema=NAME"
        return PermissionRefused(f"the database denied permission: {reason}", path=place, hint=hint, code=errno.EACCES)
    if isinstance(error, errors.ReadOnlySqlTransaction):
        hint = "use the address of the primary server; this one may be a standby"
        return StorageFailure(f"the database is read-only: {reason}", path=place, hint=hint, code=errno.EROFS)
    if isinstance(error, CONTENDED):
        hint = "try again; other writers change the same rows"
        return StorageFailure(f"the database is too busy: {reason}", path=place, hint=hint, code=errno.EBUSY)
    return StorageFailure(f"the database failed: {reason}", path=place, hint="check the server log", code=errno.EIO)


def lost(error: psycopg.Error, place: str) -> OutcomeUnknown:
    """Return the error for a connection that broke during a change."""
    hint = "check the server, then check whether the change was made before you repeat it"
    return OutcomeUnknown(
        f"the connection to the database broke: {_reason(error)}", path=place, hint=hint, code=errno.EIO
    )


def unreachable(error: psycopg.Error, place: str) -> SessileError:
    """Return the error for a connection that could not be opened, or broke before anything was changed."""
    reason = _reason(error)
    if "authentication failed" in reason or "no password supplied" in reason or "pg_hba.conf" in reason:
        hint = "set the password in PGPASSWORD or ~/.pgpass, and check the user name"
        return PermissionRefused(f"database login failed: {reason}", path=place, hint=hint, code=errno.EACCES)
    if "does not exist" in reason and "database" in reason:
        return Unreachable(
            f"database not found: {reason}", path=place, hint="create it with createdb", code=errno.ENOENT
        )
    hint = "check that the server is running, and the host and port in the address"
    return Unreachable(f"cannot reach the database: {reason}", path=place, hint=hint, code=errno.EHOSTUNREACH)


def exhausted(place: str, patience: float) -> Unreachable:
    """Return the error for the case that all connections of this process stay in use."""
    hint = "use fewer threads or shorter transactions"
    message = f"timeout: no database connection became free within {patience:g} seconds"
    return Unreachable(message, path=place, hint=hint, code=errno.EBUSY)


def _reason(error: psycopg.Error) -> str:
    """Return the first line of the message of the server or libpq."""
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()) or type(error).__name__
