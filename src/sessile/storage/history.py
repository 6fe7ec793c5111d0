"""Prompt recall: what a person typed, newest first, found again by the beginning or the middle of a word.

`add` never waits for the disk: it queues, and a thread that lives as long as the queue writes. A failed write leaves its
prompts queued, is told in `failure`, and is tried again; `flush` and `close` return when everything is in the file, or
raise. Reading shows queued prompts too.

It does not know sessions, who typed a prompt, or which prompts are secret.
"""

from __future__ import annotations

import atexit
import json
import math
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from sessile.errors import ReadOnly, SessileError
from sessile.storage.history_file import LARGEST_ID, HistoryFile, Row, connect, insert, prepare, present_tables

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts to write
_MOST_ENTRIES = 1000

_SELECT = (
    "SELECT id, CAST(prompt AS TEXT), created_at, cwd FROM history WHERE {where}"
    " ORDER BY created_at DESC, id DESC LIMIT :limit"
)
_PREFIXES = "id IN (SELECT rowid FROM history_fts WHERE history_fts MATCH :prefixes)"
# LIKE '%token%' for every token, without its escapes and its limits of 50,000 bytes and 1000 terms; `lower` folds ASCII
# only, as LIKE does.
_SUBSTRINGS = "NOT EXISTS (SELECT 1 FROM json_each(:tokens) WHERE instr(lower(history.prompt), lower(value)) = 0)"

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


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
    return [HistoryEntry(*row) for row in database.execute(_SELECT.format(where=where), terms)]


def _storable(text: str) -> str:
    """SQLite ends a text at NUL in places, and UTF-8 has no lone surrogates: both become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def _clamped(limit: float) -> int:
    if isinstance(limit, float) and not math.isfinite(limit):
        return 0
    return max(0, min(math.floor(limit), _MOST_ENTRIES))
