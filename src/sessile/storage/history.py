"""Prompt recall: what a person typed, newest first, found again by the beginning or the middle of a word.

Rules:

- The tables are those of the family (`history`, `history_fts`), so one file may be shared with xcsh and its kin. Columns
  that others added stay. The family keeps the index by an insert trigger only; the missing ones are added on opening,
  and the index is then rebuilt, because it may have gone stale before.
- `add` never waits for the disk: it queues, and a thread that lives as long as the queue writes. A failed write leaves
  its prompts in the queue, is told in `failure`, and is tried again; `flush` and `close` return when everything is in
  the file or raise. Reading shows queued prompts too.
- Every use opens the file anew. Nothing is shared between threads, a deleted file is made again, and no connection is
  left open that keeps the write-ahead log from being folded in and synced.
- A new file is built in a private folder and renamed into place, so nobody ever opens half of one. A damaged file is
  set aside, never deleted; what can be read of it is carried over, and `findings` tells where the old bytes are.
- Files are 0600 (SQLite gives its side files the mode of the main one); symbolic links and devices are refused.

SQLite does its own file access, so this module does not go through the `Filesystem` seam. It never opens a live
database by itself either: closing that descriptor would drop every lock that SQLite holds on it in this process.

It does not know sessions, who typed a prompt, or which prompts are secret.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import math
import os
import re
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sessile.errors import Damaged, ReadOnly, SessileError, StorageFailure, UnsafePath, storage_failure

_PATIENCE = 5.0  # seconds that SQLite waits for another process: its busy_timeout
_FIRST_PAUSE, _LONGEST_PAUSE = (
    0.1,
    5.0,
)  # seconds between attempts to write; the longest is the age of an unseen success
_MOST_ENTRIES = 1000
_MOST_PEEKS = 10  # a reader without locks looks again when the file changed meanwhile
_LARGEST_ID = 2**53  # what JavaScript can count; a damaged row with id 2**63 - 1 would end AUTOINCREMENT for ever
_SIDES = ("-wal", "-shm", "-journal")

_FORGET = "INSERT INTO history_fts(history_fts, rowid, prompt) VALUES ('delete', old.id, old.prompt);"
_INDEX = "INSERT INTO history_fts(rowid, prompt) VALUES (new.id, new.prompt);"
_SCHEMA = {
    "history": "CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, prompt TEXT NOT NULL,"
    " created_at INTEGER NOT NULL, cwd TEXT)",
    "idx_history_created_at": "CREATE INDEX idx_history_created_at ON history(created_at DESC)",
    "history_fts": "CREATE VIRTUAL TABLE history_fts USING fts5(prompt, content='history', content_rowid='id')",
    "history_ai": f"CREATE TRIGGER history_ai AFTER INSERT ON history BEGIN {_INDEX} END",
    "history_ad": f"CREATE TRIGGER history_ad AFTER DELETE ON history BEGIN {_FORGET} END",
    "history_au": f"CREATE TRIGGER history_au AFTER UPDATE ON history BEGIN {_FORGET} {_INDEX} END",
}

# omp declares the prompt UNIQUE: there a repeated prompt moves to the top instead of becoming a second row.
_INSERT = (
    "INSERT INTO history(id, prompt, created_at, cwd) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET created_at = excluded.created_at, cwd = excluded.cwd"
)
_SELECT = (
    "SELECT id, CAST(prompt AS TEXT), created_at, cwd FROM history WHERE {where}"
    " ORDER BY created_at DESC, id DESC LIMIT :limit"
)
_PREFIXES = "id IN (SELECT rowid FROM history_fts WHERE history_fts MATCH :prefixes)"
# What LIKE '%token%' for every token means, but without its escapes, its limit of 50,000 bytes and the limit of 1000
# terms; `lower` folds ASCII only, as LIKE does.
_SUBSTRINGS = "NOT EXISTS (SELECT 1 FROM json_each(:tokens) WHERE instr(lower(history.prompt), lower(value)) = 0)"

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}

_Row = tuple[int | None, str, int, str | None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One prompt; `created_at` in seconds. The id of a prompt that could not be written yet is 2**53 or more."""

    id: int
    prompt: str
    created_at: int
    cwd: str | None


class HistoryStorage:
    """The prompts in one SQLite file. With `readonly` no file is made or changed, and a missing one is empty."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time, readonly: bool = False) -> None:
        self.findings: tuple[str, ...] = ()
        self.failure: SessileError | None = None
        self._path = os.path.abspath(path)
        self._clock = clock
        self._readonly = readonly
        self._state = threading.Lock()  # guards the queue, the last prompt and the writer
        self._writing = threading.RLock()  # one batch at a time; taken before `_state`
        self._queue: list[_Row] = []
        self._writer: threading.Thread | None = None
        self._last: str | None = None
        self._files()
        if not readonly:
            self._use(_prepare, "open the prompt history")
            self._last = next((entry.prompt for entry in self.get_recent(1)), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, prompt: str, cwd: str | None = None) -> None:
        """Remember a prompt, unless it is blank or the same as the one before; returns before it is written."""
        if self._readonly:
            raise ReadOnly("the prompt history is open for reading only", path=self._path)
        text = _storable(prompt).strip()
        with self._state:
            if not text or text == self._last:
                return
            self._last = text
            self._queue.append((None, text, int(self._clock()), None if cwd is None else _storable(cwd)))
            if self._writer is None or not self._writer.is_alive():  # a fork leaves the thread behind
                self._start_writer()

    def flush(self) -> None:
        """Return when every queued prompt is in the file, or raise `StorageFailure`; they stay queued then."""
        with self._writing:
            with self._state:
                batch = list(self._queue)
            if not batch:
                return
            try:
                self._use(partial(_insert, batch), "write the prompt history")
            except SessileError as error:
                self.failure = error
                raise
            with self._state:
                del self._queue[: len(batch)]
            self.failure = None

    def close(self) -> None:
        """Flush. There is nothing else to let go: a later `add` starts again."""
        self.flush()
        atexit.unregister(self.close)

    def get_recent(self, limit: float = 100) -> list[HistoryEntry]:
        """The newest prompts, newest first."""
        return self._find(partial(_select, "1"), {}, limit)

    def search(self, query: str, limit: float = 100) -> list[HistoryEntry]:
        """The newest prompts in which every word of `query` begins a word or is part of the text."""
        tokens = list(dict.fromkeys(_storable(query).split()))
        if not tokens:
            return []
        prefixes = " ".join('"{}"*'.format(token.replace('"', '""')) for token in tokens)
        return self._find(_match, {"prefixes": prefixes, "tokens": json.dumps(tokens)}, limit)

    def _start_writer(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._writer = threading.Thread(target=self._write_behind, name="sessile-history", daemon=True)
        try:
            self._writer.start()
        except RuntimeError:  # no more threads, or the interpreter is ending: the next add, flush or close writes
            self._writer = None

    def _write_behind(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._state:
                if not self._queue:
                    self._writer = None
                    return
            try:
                self.flush()
                pause = _FIRST_PAUSE
            except SessileError:  # told in `failure`
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _find(
        self,
        work: Callable[[sqlite3.Connection, dict[str, Any]], list[HistoryEntry]],
        values: dict[str, Any],
        limit: float,
    ) -> list[HistoryEntry]:
        most = _clamped(limit)
        work_here = partial(work, values=values | {"limit": most})
        with self._writing:
            if self.failure is None:
                with suppress(SessileError):  # recall works on a full disk too: what is left waits below
                    self.flush()
            entries = self._use(work_here, "read the prompt history")
            if self._queue:
                with self._state:
                    waiting = [(_LARGEST_ID + place, *row[1:]) for place, row in enumerate(self._queue)]
                with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
                    _prepare(memory)
                    _insert(waiting, memory)
                    entries += work_here(memory)
        return sorted(entries, key=lambda entry: (entry.created_at, entry.id), reverse=True)[:most]

    def _use(self, work: Callable[[sqlite3.Connection], _T], doing: str) -> _T:
        """What `work` makes of the database; for a damaged one, of its successor."""
        if self._readonly:
            return self._peek(work, doing)
        if not os.path.lexists(self._path):
            self._renew("it was missing")
        try:
            return self._once(work, doing, "mode=rw")
        except Damaged as damage:
            self._renew(damage.message)
            return self._once(work, doing, "mode=rw")

    def _peek(self, work: Callable[[sqlite3.Connection], _T], doing: str) -> _T:
        # Even with mode=ro SQLite makes -wal and -shm, unless the file is called immutable, which hides a log in use.
        for _ in range(_MOST_PEEKS):
            before = self._files()
            log = before.get("-wal")
            mode = "mode=ro&readonly_shm=1" if log and log.st_size else "mode=ro&immutable=1"
            try:
                result = self._once(work, doing, mode)
            except SessileError:
                ...
        return result
