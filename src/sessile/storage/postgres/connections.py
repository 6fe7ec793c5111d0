"""The open connections of one process: borrowed for a statement or a transaction, and given back.

Rules: a connection that cannot be made says why at once and to the caller, and nothing runs in the background. A
connection that the server has closed while it was idle is noticed before it is used, without a round trip. What comes
back in the middle of a transaction is closed.

It knows nothing of forks: a process makes connections of its own.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

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
