"""Prompt recall: what a person typed, newest first, found again by the beginning or the middle of a word.

`add` never waits for the disk: it queues, and a thread that lives as long as the queue writes. A failed write leaves its
prompts queued, is told in `failure`, and is tried again; `flush` and `close` return when everything is in the file, or
raise. Reading shows queued prompts too.

It does not know sessions, who typed a prompt, or which prompts are secret.

The database of the prompt history as a file: opened for each use, watched for damage, renewed when it has to be.

Rules:

- The tables are the family's (`history`, `history_fts`), so a file may be shared with xcsh and its kin, and columns that
  others added stay. The family has an insert trigger only: opening adds the others and rebuilds the index, which may
  have gone stale before.
- Every use opens the file anew: threads share nothing, a deleted file is made again, and the last one out folds the
  write-ahead log into the file and syncs it.
- A new file is built in a private folder and renamed into place, so nobody opens half of one. A damaged file is set
  aside, never deleted; what can be read of it is carried over, and `findings` tells where the old bytes are.
- Files are 0600 (SQLite gives its side files the mode of the main one); symbolic links and devices are refused.

SQLite does its own file access, so nothing here goes through the `Filesystem` seam. Nor is a live database ever opened
by other means: closing that descriptor would drop every lock that SQLite holds on it in this process.
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
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from sessile.core.text import utc_datetime
from sessile.errors import Damaged, ReadOnly, SessileError, StorageFailure, UnsafePath, storage_failure

# --- history file

PATIENCE = 5.0  # seconds that SQLite waits for another process: its busy_timeout
LARGEST_ID = 2**53  # what JavaScript can count; a damaged row with id 2**63 - 1 would end AUTOINCREMENT for ever

_MOST_PEEKS, _SHORT_PAUSE = 50, 0.002  # how often and after how long a reader without locks looks again
_IMMUTABLE = "mode=ro&immutable=1"  # overlooks a log in use, and changes made meanwhile
_SMALLEST_PAGE = 512  # bytes; SQLite takes a shorter file for an empty one, and overwrites it
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

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNSOUND = (*_DAMAGE, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)  # so fail a damaged schema and a damaged header
_SUSPICIOUS = (*_UNSOUND, sqlite3.SQLITE_CONSTRAINT)  # a damaged index may claim that a prompt is already there
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ERRNO = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_PERM: errno.EACCES}

Row = tuple[int | None, str, int, str | None]
T = TypeVar("T")


class _Mark(NamedTuple):
    """What changes when somebody writes a file."""

    size: int
    modified: int
    inode: int


class HistoryFile:
    """The database as a file: opened for each use, watched for damage, renewed when it has to be."""

    def __init__(self, path: str, clock: Callable[[], float], readonly: bool) -> None:
        self.path = os.path.abspath(path)
        self.readonly = readonly
        self.findings: tuple[str, ...] = ()
        self._clock = clock

    def use(self, work: Callable[[sqlite3.Connection], T], doing: str) -> T:
        """What `work` makes of the database, or of the successor of a damaged one; raises typed errors only."""
        try:
            if self.readonly:
                return self._peek(work)
            if not self._is_there():
                self._renew("it was missing or too short")
            try:
                return self._once(work)
            except sqlite3.DatabaseError as error:
                if _code(error) not in _SUSPICIOUS:
                    raise
                self._renew(str(error))
                return self._once(work)
        except sqlite3.Error as error:
            raise _typed(error, self.path, doing) from error
        except SessileError:
            raise
        except OSError as error:
            raise storage_failure(error, self.path, doing) from error

    def _peek(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` makes of the file as it is; no lock keeps others away, so it looks again if they interfered."""
        for attempt in range(_MOST_PEEKS):
            files = self._files()
            mode = _looking(files)
            try:
                result = self._once(work, mode)
                if mode != _IMMUTABLE or self._files() == files:
                    return result
            except sqlite3.Error as error:
                if _code(error) in _DAMAGE and self._files() == files:
                    raise
            time.sleep(attempt * _SHORT_PAUSE)
        return self._once(work, _looking(self._files()))

    def _once(self, work: Callable[[sqlite3.Connection], T], mode: str = "mode=rw") -> T:
        try:
            with closing(connect(self.path, mode)) as database:
                return work(database)
        except UnicodeDecodeError as error:  # from an error message that quotes what should be the schema
            raise _damage(str(error)) from error

    def _files(self) -> dict[str, _Mark]:
        """The files of the database by suffix, the main one under ""; all are plain and, if we may write, private."""
        files = {}
        for suffix in ("", *_SIDES):
            with suppress(FileNotFoundError):  # side files come and go
                status = os.lstat(self.path + suffix)
                if not stat.S_ISREG(status.st_mode):
                    hint = "name a plain file; symbolic links are not followed"
                    raise UnsafePath("the prompt history is not a plain file", path=self.path + suffix, hint=hint)
                if stat.S_IMODE(status.st_mode) != 0o600 and not self.readonly:
                    os.chmod(self.path + suffix, 0o600)
                files[suffix] = _Mark(status.st_size, status.st_mtime_ns, status.st_ino)
        return files

    def _is_there(self) -> bool:
        """There is something that SQLite may open: it drops the log of an empty file, or of one that is no database."""
        files = self._files()
        size = files[""].size if "" in files else -1
        if size < _SMALLEST_PAGE or "-wal" not in files:
            return size >= _SMALLEST_PAGE or (size == 0 and "-wal" not in files)
        try:
            self._once(present_tables, _looking(files))
        except sqlite3.Error as error:
            return _code(error) not in _DAMAGE
        return True

    def _is_sound(self) -> bool:
        try:
            return self._is_there() and self._once(_examine)
        except sqlite3.DatabaseError as error:
            if _code(error) in _UNSOUND:
                return False
            raise

    def _renew(self, reason: str) -> None:
        """Put a new database in the place of one that is missing or damaged, with the prompts that can still be read."""
        folder, name = os.path.split(self.path)
        os.makedirs(folder, 0o700, exist_ok=True)
        with _locked(folder) as descriptor:
            if self._is_sound():
                return  # another process was faster
            with tempfile.TemporaryDirectory(prefix=f"{name}.new-", dir=folder) as workshop:
                copy, new = os.path.join(workshop, "copy"), os.path.join(workshop, "new")
                old = self._files()
                for suffix in old.keys() - {"-shm"}:
                    shutil.copyfile(self.path + suffix, copy + suffix)
                prompts = _salvage(copy)
                with closing(connect(new)) as database:
                    prepare(database)
                    insert(prompts, database)
                os.chmod(new, 0o600)
                if old:
                    aside = self._set_aside(old)
                    outcome = f"{len(prompts)} prompts were carried over, the old bytes are in {aside}"
                    self.findings += (f"{self.path} was set aside ({reason}): {outcome}",)
                os.rename(new, self.path)
            os.fsync(descriptor)

    def _set_aside(self, old: Iterable[str]) -> str:
        moment = int(self._clock())
        while any(os.path.lexists(f"{self.path}.broken-{moment}{suffix}") for suffix in ("", *_SIDES)):
            moment += 1
        aside = f"{self.path}.broken-{moment}"
        for suffix in sorted(old, reverse=True):  # the main file last: a log left alone would be read into the new one
            os.rename(self.path + suffix, aside + suffix)
        return aside


def _looking(files: dict[str, _Mark]) -> str:
    """How to open a database without making or changing a file, which even `mode=ro` alone does."""
    if "" not in files:
        return "mode=memory"
    return "mode=ro&readonly_shm=1" if "-wal" in files and files["-wal"].size else _IMMUTABLE


def connect(path: str, mode: str = "mode=rwc") -> sqlite3.Connection:
    address = f"file:{urllib.parse.quote(os.fsencode(path))}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # one bad byte must not hide the rest
    return connection


def present_tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("SELECT CAST(name AS TEXT) FROM sqlite_schema")}


def prepare(database: sqlite3.Connection) -> None:
    """Check the database and add what it lacks; a complete one is only read, so opening it waits for nobody."""
    _check(database, "quick_check")
    database.execute("PRAGMA journal_mode = WAL")
    if _SCHEMA.keys() <= present_tables(database):
        return
    database.execute("BEGIN IMMEDIATE")
    present = present_tables(database)
    for name, statement in _SCHEMA.items():
        if name not in present:
            database.execute(statement)
    database.execute("INSERT INTO history_fts(history_fts) VALUES ('rebuild')")
    database.execute("COMMIT")


def _examine(database: sqlite3.Connection) -> bool:
    """The thorough form of the check, for a database under suspicion; of one that is not the family's, only the form."""
    _check(database, "integrity_check")
    if any(name.startswith("history_fts") for name in present_tables(database)):
        database.execute("INSERT INTO history_fts(history_fts, rank) VALUES ('integrity-check', 1)")
        database.execute("BEGIN IMMEDIATE")
        database.execute(_INSERT, (None, "trial", 0, None))
        database.execute("ROLLBACK")
    return True


def _check(database: sqlite3.Connection, check: str) -> None:
    (verdict,) = database.execute(f"PRAGMA {check}(1)").fetchone()
    if verdict != "ok":
        raise _damage(verdict)


def _damage(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def insert(rows: Iterable[Row], database: sqlite3.Connection) -> None:
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("BEGIN IMMEDIATE")
    database.executemany(_INSERT, rows)
    database.execute("COMMIT")


def _salvage(path: str) -> list[Row]:
    """The rows of a damaged database, from both ends up to the damage: a walk stops at the first bad page."""
    rows: dict[int, Row] = {}
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(connect(path)) as database:
            database.execute("PRAGMA writable_schema = ON")  # else SQLite refuses a file that is shorter than it says
            query = f"SELECT id, prompt, created_at, cwd FROM history NOT INDEXED ORDER BY id {order}"
            for row in database.execute(query):
                if tuple(map(type, row[:3])) == (int, str, int) and 0 < row[0] < LARGEST_ID:
                    rows[row[0]] = (*row[:3], row[3] if isinstance(row[3], str) else None)
    return [rows[place] for place in sorted(rows)]


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _typed(error: sqlite3.Error, path: str, doing: str) -> SessileError:
    if _code(error) in _DAMAGE:
        hint = "open it for writing: it is set aside, and what can be read of it is carried over"
        return Damaged(f"the prompt history is damaged: {error}", path=path, hint=hint)
    if _code(error) in _BUSY:
        hint = "another process keeps the history locked; nothing was lost, try again when it is done"
        return StorageFailure(f"could not {doing}: {error}", path=path, hint=hint, code=errno.EAGAIN)
    return storage_failure(OSError(_ERRNO.get(_code(error), errno.EIO), str(error)), path, doing)


@contextmanager
def _locked(folder: str) -> Iterator[int]:
    """Alone among those who renew a database in this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


# --- history

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts to write
_MOST_ENTRIES = 1000

_SELECT = (
    "SELECT id, CAST(prompt AS TEXT), CAST(created_at AS INTEGER), cwd FROM history WHERE {where}"
    " ORDER BY created_at DESC, id DESC LIMIT :limit"
)
_PREFIXES = "id IN (SELECT rowid FROM history_fts WHERE history_fts MATCH :prefixes)"
# LIKE '%token%' for every token, without its escapes and its limits of 50,000 bytes and 1000 terms; `lower` folds ASCII
# only, as LIKE does.
_SUBSTRINGS = "NOT EXISTS (SELECT 1 FROM json_each(:tokens) WHERE instr(lower(history.prompt), lower(value)) = 0)"

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One prompt of the history.

    Attributes:
        id: The number of the prompt; 2**53 or more if it could not be written yet.
        prompt: Its text.
        created_at: When it was entered, in UTC, to the second.
        cwd: The working folder in which it was entered; `None` if unknown.
    """

    id: int
    prompt: str
    created_at: datetime
    cwd: str | None


class HistoryStorage:
    """The prompts that a user has entered, in one SQLite file, newest first.

    Args:
        path: The path of the file.
        clock: Returns the current time in seconds since 1970.
        readonly: Create and change no file; a missing file is an empty history.

    Attributes:
        failure (SessileError | None): The last error of the background writer; `None` after it has succeeded.

    Example:
        ```python
        with HistoryStorage("/home/me/.my-agent/history.db") as history:
            history.add("fix the tests", cwd="/work/app")
            for entry in history.search("tests"):
                print(entry.created_at, entry.prompt)
        ```
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time, readonly: bool = False) -> None:
        self.failure: SessileError | None = None
        self._file = HistoryFile(path, clock, readonly)
        self._clock = clock
        self._state = threading.Lock()  # guards the queue, the last prompt and the writer
        self._writing = threading.RLock()  # one batch at a time; taken before `_state`
        self._queue: list[Row] = []
        self._writer: threading.Thread | None = None
        self._file.use(present_tables if readonly else prepare, "open the prompt history")
        self._last = next((entry.prompt for entry in self.get_recent(1)), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def findings(self) -> tuple[str, ...]:
        """What was found damaged, how much was saved, and where the old bytes are."""
        return self._file.findings

    def add(self, prompt: str, cwd: str | None = None) -> None:
        """Remember a prompt, unless it is blank or the same as the one before; returns before it is written."""
        if self._file.readonly:
            raise ReadOnly("the prompt history is open for reading only", path=self._file.path)
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
                self._file.use(partial(insert, batch), "write the prompt history")
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
        return self._find({}, limit)

    def search(self, query: str, limit: float = 100) -> list[HistoryEntry]:
        """The newest prompts in which every word of `query` begins a word or is part of the text."""
        tokens = list(dict.fromkeys(_storable(query).split()))
        if not tokens:
            return []
        prefixes = " ".join('"{}"*'.format(token.replace('"', '""')) for token in tokens)
        return self._find({"prefixes": prefixes, "tokens": json.dumps(tokens)}, limit)

    def _find(self, terms: dict[str, Any], limit: float) -> list[HistoryEntry]:
        terms["limit"] = most = _clamped(limit)
        with self._writing:
            if self.failure is None:
                with suppress(SessileError):  # a full disk is no reason to recall nothing: what is left waits below
                    self.flush()
            entries = self._file.use(partial(_select, terms), "read the prompt history")
            with self._state:
                waiting = [(LARGEST_ID + place, *row[1:]) for place, row in enumerate(self._queue)]
        if waiting:
            with closing(connect("waiting", "mode=memory")) as memory:
                prepare(memory)
                insert(waiting, memory)
                entries += _select(terms, memory)
            entries.sort(key=lambda entry: (entry.created_at, entry.id), reverse=True)
        return entries[:most]

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


def _select(terms: dict[str, Any], database: sqlite3.Connection) -> list[HistoryEntry]:
    present = present_tables(database)
    if "history" not in present:
        return []
    where = "1"
    if "tokens" in terms:
        where = f"{_PREFIXES} OR {_SUBSTRINGS}" if "history_fts" in present else _SUBSTRINGS
    rows = database.execute(_SELECT.format(where=where), terms)
    return [HistoryEntry(number, prompt, utc_datetime(at * 1_000_000), cwd) for number, prompt, at, cwd in rows]


def _storable(text: str) -> str:
    """SQLite ends a text at NUL in places, and UTF-8 has no lone surrogates: both become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def _clamped(limit: float) -> int:
    if isinstance(limit, float) and not math.isfinite(limit):
        return 0
    return max(0, min(math.floor(limit), _MOST_ENTRIES))
