"""Prompt history: what the user typed, newest first, searchable by word prefixes and substrings.

`HistoryStorage.add` never waits for the disk: it queues, and a background thread writes. A failed write keeps its prompts
queued, sets `failure`, and is retried; `flush` and `close` return when everything is in the file, or raise. Reading includes
queued prompts. The history does not know sessions, users, or which prompts are secret.

`HistoryFile` is the SQLite file. Rules:

- The tables are those of the pi family (`history`, `history_fts`), so a file may be shared with xcsh and others, and columns that
  they added stay. They only have an insert trigger; opening adds the others and rebuilds the index, which may be stale.
- Every use opens the file again: threads share nothing, a deleted file is created again, and the last connection folds the
  write-ahead log into the file and syncs it.
- A new file is built in a private folder and renamed into place, so no process opens an incomplete one. A damaged file is set
  aside, never deleted. Its readable prompts are copied to the new file, and `findings` reports where the old one is.
- Files have mode 0600 (SQLite gives its side files the mode of the main one). Symbolic links and devices are refused.

SQLite accesses its files itself, so nothing here goes through `Filesystem`. A live database must never be opened in
any other way: closing that descriptor would drop every lock that SQLite holds on it in this process.
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
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from sessile.core.text import utc_datetime
from sessile.errors import (
    Damaged,
    PermissionRefused,
    ReadOnly,
    SessileError,
    StorageFailure,
    UnsafePath,
    second_name,
    storage_failure,
)

PATIENCE = 5.0  # seconds that SQLite waits for another process (busy_timeout)
LARGEST_ID = 2**53  # the limit of JavaScript; a damaged row with id 2**63 - 1 would exhaust AUTOINCREMENT

_MAX_PEEKS, _SHORT_PAUSE = 50, 0.002  # tries of a reader without locks, and seconds between them
_IMMUTABLE = "mode=ro&immutable=1"  # ignores a write-ahead log, and changes during the read
_SMALLEST_PAGE = 512  # bytes; SQLite treats a shorter file as empty and overwrites it
_SIDES = ("-wal", "-shm", "-journal")
_WORKSHOP = ".new-"  # follows the name of the database in that of the folder where a new one is made

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

# omp declares the prompt UNIQUE: a repeated prompt then moves to the top instead of adding a row.
_INSERT = (
    "INSERT INTO history(id, prompt, created_at, cwd) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET created_at = excluded.created_at, cwd = excluded.cwd"
)

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNSOUND = (*_DAMAGE, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)  # codes of a damaged schema and a damaged header
_SUSPICIOUS = (*_UNSOUND, sqlite3.SQLITE_CONSTRAINT)  # a damaged index may claim that a prompt already exists
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ERRNO = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_PERM: errno.EACCES}

Row = tuple[int | None, str, int, str | None]
T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts to write
_MAX_ENTRIES = 1000

_SELECT = (
    "SELECT id, CAST(prompt AS TEXT), CAST(created_at AS INTEGER), cwd FROM history WHERE {where}"
    " ORDER BY created_at DESC, id DESC LIMIT :limit"
)
_PREFIXES = "id IN (SELECT rowid FROM history_fts WHERE history_fts MATCH :prefixes)"
# Like LIKE '%token%' for every token, but without escapes and the limits of 50,000 bytes and 1000 terms. `lower` folds
# ASCII only, as LIKE does.
_SUBSTRINGS = "NOT EXISTS (SELECT 1 FROM json_each(:tokens) WHERE instr(lower(history.prompt), lower(value)) = 0)"

_AMONG = "prompt IN (SELECT value FROM json_each(?))"

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
        """Damage that was found: how many prompts were copied, and where the old file is."""
        return self._file.findings

    def add(self, prompt: str, cwd: str | None = None) -> None:
        """Add a prompt, unless it is blank or equal to the previous one. Return before it is written."""
        if self._file.readonly:
            raise ReadOnly("the prompt history is read-only", path=self._file.path)
        text = _storable(prompt).strip()
        with self._state:
            if not text or text == self._last:
                return
            self._last = text
            self._queue.append((None, text, int(self._clock()), None if cwd is None else _storable(cwd)))
            if self._writer is None or not self._writer.is_alive():  # the thread does not survive a fork
                self._start_writer()

    def flush(self) -> None:
        """Write every queued prompt to the file. If that fails, raise `StorageFailure` and keep them queued."""
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
        """Flush. There is nothing else to close: a later `add` starts again."""
        self.flush()
        atexit.unregister(self.close)

    def get_recent(self, limit: float = 100) -> list[HistoryEntry]:
        """Return the newest prompts, newest first."""
        return self._find({}, limit)

    def search(self, query: str, limit: float = 100) -> list[HistoryEntry]:
        """Return the newest prompts in which every word of `query` is the prefix of a word or a substring."""
        tokens = list(dict.fromkeys(_storable(query).split()))
        if not tokens:
            return []
        prefixes = " ".join('"{}"*'.format(token.replace('"', '""')) for token in tokens)
        return self._find({"prefixes": prefixes, "tokens": json.dumps(tokens)}, limit)

    def count(self, prompts: Collection[str]) -> int:
        """Return how many entries have one of these prompts."""

        def work(database: sqlite3.Connection) -> int:
            if "history" not in present_tables(database):
                return 0
            return int(database.execute(f"SELECT count(*) FROM history WHERE {_AMONG}", _texts(prompts)).fetchone()[0])

        return self._file.use(work, "read the prompt history")

    def erase(self, prompts: Collection[str]) -> None:
        """Remove these prompts for good: the file is written anew, so that none of their bytes stay in it."""

        def work(database: sqlite3.Connection) -> None:
            prepare(database)
            database.execute("PRAGMA secure_delete = ON")
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"DELETE FROM history WHERE {_AMONG}", _texts(prompts))
            database.execute("INSERT INTO history_fts(history_fts) VALUES ('rebuild')")
            database.execute("COMMIT")
            database.execute("VACUUM")
            busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                error = sqlite3.OperationalError("another process reads the history")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error

        self._file.use(work, "erase prompts")

    def _find(self, terms: dict[str, Any], limit: float) -> list[HistoryEntry]:
        terms["limit"] = count = _clamped(limit)
        with self._writing:
            if self.failure is None:
                with suppress(
                    SessileError
                ):  # reading must work with a full disk: prompts that stay queued are added below
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
        return entries[:count]

    def _start_writer(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._writer = threading.Thread(target=self._write_behind, name="sessile-history", daemon=True)
        try:
            self._writer.start()
        except (
            RuntimeError
        ):  # no more threads, or the interpreter is shutting down: the next add, flush or close writes
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
            except SessileError:  # reported in `failure`
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


def _texts(prompts: Collection[str]) -> tuple[str]:
    return (json.dumps([_storable(prompt).strip() for prompt in prompts]),)


def _storable(text: str) -> str:
    """Replace NUL, at which SQLite may cut a text, and lone surrogates, which UTF-8 does not have, by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def _clamped(limit: float) -> int:
    if isinstance(limit, float) and not math.isfinite(limit):
        return 0
    return max(0, min(math.floor(limit), _MAX_ENTRIES))


# -- the database file


class _Mark(NamedTuple):
    """What changes when a file is written."""

    size: int
    modified: int
    inode: int


class HistoryFile:
    """The database file: opened for each use, and replaced when it is damaged."""

    def __init__(self, path: str, clock: Callable[[], float], readonly: bool) -> None:
        self.path = os.path.abspath(path)
        self.readonly = readonly
        self.findings: tuple[str, ...] = ()
        self._clock = clock
        self._swept = False

    def use(self, work: Callable[[sqlite3.Connection], T], doing: str) -> T:
        """Return the result of `work` on the database, which is replaced first if it is damaged. Raise typed errors only."""
        try:
            if self.readonly:
                return self._peek(work)
            if not self._swept:
                self._sweep()
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
        """Return the result of `work` on the file as it is. There is no lock, so try again if other processes interfered."""
        for attempt in range(_MAX_PEEKS):
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
        except UnicodeDecodeError as error:  # from an error message that quotes a damaged schema
            raise _damage(str(error)) from error

    def _files(self) -> dict[str, _Mark]:
        """Return the files of the database by suffix; make them private, if we may write. Raise if one is not regular."""
        files = {}
        for suffix in ("", *_SIDES):
            with suppress(FileNotFoundError):  # side files come and go
                status = os.lstat(self.path + suffix)
                if not stat.S_ISREG(status.st_mode):
                    hint = "use a regular file; symbolic links are not followed"
                    raise UnsafePath("the prompt history is not a regular file", path=self.path + suffix, hint=hint)
                if status.st_uid != os.geteuid() and not self.readonly:
                    hint = "move it away; a new one is created"
                    raise PermissionRefused("the prompt history belongs to another user", path=self.path, hint=hint)
                if status.st_nlink > 1 and not self.readonly:
                    raise second_name(self.path + suffix)
                if stat.S_IMODE(status.st_mode) != 0o600 and not self.readonly:
                    os.chmod(self.path + suffix, 0o600)
                files[suffix] = _Mark(status.st_size, status.st_mtime_ns, status.st_ino)
        return files

    def _is_there(self) -> bool:
        """Return whether SQLite may open the file: it drops the log of a file that is empty or not a database."""
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

    def _sweep(self) -> None:
        """Remove the private folders of processes that died while they replaced the database.

        Their prompts come from the old file, which is in its place or set aside. If it is set aside, the new one is put in
        place first.
        """
        folder, name = os.path.split(self.path)
        start = f"{name}{_WORKSHOP}"
        with suppress(FileNotFoundError):
            if any(each.startswith(start) for each in os.listdir(folder)):
                with _locked(folder):  # a living process holds the lock while it has such a folder
                    for each in sorted(os.listdir(folder)):
                        if each.startswith(start):
                            new = HistoryFile(f"{folder}/{each}/new", self._clock, self.readonly)
                            new._swept = True
                            if not os.path.lexists(self.path) and os.path.lexists(new.path) and new._is_sound():
                                os.rename(new.path, self.path)
                            shutil.rmtree(f"{folder}/{each}")
        self._swept = True

    def _renew(self, reason: str) -> None:
        """Replace a missing or damaged database by a new one, with the prompts that can still be read."""
        folder, name = os.path.split(self.path)
        os.makedirs(folder, 0o700, exist_ok=True)
        with _locked(folder) as descriptor:
            if self._is_sound():
                return  # another process was faster
            with tempfile.TemporaryDirectory(prefix=f"{name}{_WORKSHOP}", dir=folder) as workshop:
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
                    outcome = f"{len(prompts)} prompts were copied, the old file is {aside}"
                    self.findings += (f"{self.path} was set aside ({reason}): {outcome}",)
                os.rename(new, self.path)
            os.fsync(descriptor)

    def _set_aside(self, old: Iterable[str]) -> str:
        moment = int(self._clock())
        while any(os.path.lexists(f"{self.path}.broken-{moment}{suffix}") for suffix in ("", *_SIDES)):
            moment += 1
        aside = f"{self.path}.broken-{moment}"
        for suffix in sorted(old, reverse=True):  # the main file last: a log without it would be read into the new one
            os.rename(self.path + suffix, aside + suffix)
        return aside


def _looking(files: dict[str, _Mark]) -> str:
    """Return how to open a database without creating or changing a file, which `mode=ro` alone would do."""
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
    """Check the database and add what is missing. A complete one is only read, so opening it never waits."""
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
    """Check a database thoroughly, with its search index if it has one."""
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
    """Return the rows of a damaged database, from both ends, because a scan stops at the first bad page."""
    rows: dict[int, Row] = {}
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(connect(path)) as database:
            database.execute(
                "PRAGMA writable_schema = ON"
            )  # else SQLite refuses a file that is shorter than its header says
            query = f"SELECT id, prompt, created_at, cwd FROM history NOT INDEXED ORDER BY id {order}"
            for row in database.execute(query):
                if tuple(map(type, row[:3])) == (int, str, int) and 0 < row[0] < LARGEST_ID:
                    rows[row[0]] = (*row[:3], row[3] if isinstance(row[3], str) else None)
    return [rows[place] for place in sorted(rows)]


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _typed(error: sqlite3.Error, path: str, doing: str) -> SessileError:
    if _code(error) in _DAMAGE:
        hint = "open it for writing: it is set aside, and its readable prompts are copied"
        return Damaged(f"the prompt history is damaged: {error}", path=path, hint=hint)
    if _code(error) in _BUSY:
        hint = "another process holds the lock of the history; nothing was lost, try again when it is done"
        return StorageFailure(f"could not {doing}: {error}", path=path, hint=hint, code=errno.EAGAIN)
    return storage_failure(OSError(_ERRNO.get(_code(error), errno.EIO), str(error)), path, doing)


@contextmanager
def _locked(folder: str) -> Iterator[int]:
    """Hold the lock for replacing a database in this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
