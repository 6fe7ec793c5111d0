"""Appending to another agent's session file in place.

Rules:

- A subclass decides which entries its agent can store, and how they are written: under the agent's lock, at the end of the file.
  Rows that other programs appended in the meantime are reported to the caller.
- An error of the disk is latched: the call that failed raises it, and so do later calls until the session is reopened.
- Existing rows are never changed, and no marker of ours is written: the agent decides where the conversation continues.
- The file is never created. One that is gone or was emptied is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from sessile.agents.base import Agent, unsupported
from sessile.agents.reader import ForeignReader
from sessile.core.codec import decode
from sessile.core.lines import Line
from sessile.errors import LeafMoved, SessionNotFound, StorageFailure, storage_failures
from sessile.storage import log
from sessile.storage.base import Appended, Filesystem, Revise, Row

_SPEAKERS = ("user", "assistant", "toolResult")
_ABILITY = {"label": "label", "session_info": "title", "title_change": "title"}

Entry = Mapping[str, Any]
Answer = TypeVar("Answer")
Choose = Callable[[], Sequence[Entry]]
"""Returns the entries to write, with the lock held; may be called more than once."""


class _News:
    """The rows that other programs appended since the last look."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def rows(self) -> Sequence[Row]:
        return self._rows

    def child_of(self, entry_id: str) -> bool:
        return any(row.parent_id == entry_id for row in self._rows)


class RowsJournal(ForeignReader, ABC):
    """One file of another agent, open for reading and appending."""

    def __init__(self, fs: Filesystem, path: str, agent: Agent, *, index_path: str | None = None) -> None:
        self._failure: StorageFailure | None = None
        self.notices: list[str] = []
        super().__init__(fs, path, agent, index_path=index_path)
        self._expect_nothing()

    @abstractmethod
    def _check(self, entries: Sequence[Entry]) -> None:
        """Raise if an entry cannot be written, before the lock is taken."""

    @abstractmethod
    def _write(self, choose: Choose) -> Sequence[Entry]:
        """Take the lock, write the chosen entries as rows, and return them."""

    def set_title(self, name: str, *, automatic: bool, current: str | None) -> bool:
        """Name the session as the agent does; return whether it was set. An automatic name never replaces another."""
        raise unsupported(self.agent, "titles", self.path, "title")

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session as the agent does; return the tag as it is stored."""
        raise unsupported(self.agent, "tags", self.path, "tag")

    def row_id(self, entry_id: str) -> str:
        """Return the id for a new entry, in the form that the agent's rows need."""
        return entry_id

    def _reset(self) -> None:
        """Forget what the writer remembers about the file."""

    @property
    def failure(self) -> StorageFailure | None:
        """The latched error, if any."""
        return self._failure

    def reopen(self) -> None:
        """Start again after a failure, with the file that has this path now."""
        with self._mutex:
            self._failure = None
            self._reset()
            self._open_again()
            self._expect_nothing()

    def close(self) -> None:
        """Close the descriptor, then raise the latched error, if any."""
        super().close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _find_header(self, size: int) -> Line:
        with storage_failures(self.path, "read the session"):
            return super()._find_header(size)

    def _is_replaced(self) -> bool:
        """Whether another file has the path now: the agent rewrites a file to change a row."""
        try:
            return self._fs.lstat(self.path).st_ino != self._identity
        except OSError:
            return False  # the path is gone; the open file stays readable

    # -- appending

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        """Append entries as rows, in one write."""
        with self._mutex:
            self._check_usable()
            entries: Sequence[Entry] = [decode(line) for line in lines]
            self._check(entries)

            def choose() -> Sequence[Entry]:
                self._check_there()
                news = _News(self._unexpected())
                return entries if not news.rows() else [decode(line) for line in revise(news)]

            written = self._latched(lambda: self._write(choose))
            ids = [str(entry["id"]) for entry in written]
            if ids:
                self._expect_behind(ids[-1])
            return Appended([row.position for row in map(self._present, ids)], None)

    def follow(self) -> Row | None:
        """Return the last entry, and count everything before it as known."""
        with self._mutex:
            self._expect_nothing()
            return self.last()

    def commit(self, mark: Any) -> None:
        """Do nothing: an append is durable when it returns."""

    def flush(self) -> None:
        """Make all written rows durable. Raise if it may be incomplete."""
        with self._mutex:
            self._check_usable()
            self._latched(self._sync)

    def _sync(self) -> None:
        """Make all written rows durable. Most agents' writers do that with every append."""

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> NoReturn:
        """Raise: rows of another program's file are never changed."""
        raise unsupported(self.agent, "way to edit messages", self.path)

    # -- inside

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._stat()  # raises if we are closed

    def _latched(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except StorageFailure as error:
            if self._failure is None:
                self._failure = error
                log.error("writing to %s failed: %s", self.path, error.message)
            raise

    def _check_there(self) -> None:
        """Raise if the file is gone or empty, because the writer would create a new one."""
        with storage_failures(self.path, "look at the session"):
            try:
                size = self._fs.lstat(self.path).st_size
            except (FileNotFoundError, NotADirectoryError):
                size = 0
        if not size:
            raise self._gone()

    def _gone(self) -> SessionNotFound:
        return SessionNotFound("another program has deleted or emptied the session", path=self.path)

    def _check_said(self, entry: Entry) -> None:
        """Raise unless an entry is a message of a user, a model or a tool."""
        kind, message = str(entry["type"]), entry.get("message")
        if kind != "message" or not isinstance(message, Mapping):
            raise unsupported(self.agent, f"{kind} entries", self.path, _ABILITY.get(kind))
        if message.get("role") not in _SPEAKERS:
            raise unsupported(self.agent, f"messages of {message.get('role')!r}", self.path)

    def _unexpected(self) -> Sequence[Row]:
        """Return the rows that were appended since the last look; all rows if another file has the path now."""
        count = self._ask(len)
        expected, identity = self._expected
        return list(self.rows(expected if identity == self._identity and expected <= count else 0))

    def _expect_nothing(self) -> None:
        self._expected = self._ask(len), self._identity  # rows after these, or in another file, are new

    def _expect_behind(self, entry_id: str) -> None:
        number = self._ask(lambda index: index.find(entry_id))
        self._expected = 0 if number is None else number + 1, self._identity

    def _present(self, entry_id: str) -> Row:
        row = self.find(entry_id)
        if row is None:
            raise LeafMoved(
                f"entry {entry_id} is no longer in the file",
                path=self.path,
                hint="another program has removed it; open the session again",
            )
        return row
