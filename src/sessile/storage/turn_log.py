"""The turns of a gateway that are running or waiting, so that a restart finds them.

    <root>/gateway/turns/begun.log                 one line for each turn that starts, and for each session that is done
    <root>/gateway/turns/<session id>.jsonl        one line for each waiting turn, in their order

Rules:

- A turn that starts is noted with one write and no sync: its message is durable in the transcript, and a note that a power
  cut takes away is noticed with the next message. From time to time the file is rewritten with the turns still running.
- That a session is done is written with the next note, or when no turn is running. A turn that is found although it is
  done has its reply in the transcript.
- A waiting message is in no transcript yet, so its line is durable when `keep` returns. Its file is removed when nothing is
  left to do in its session. A message that arrives at that moment starts a new file, because both happen under one lock.
- An incomplete last line was never acknowledged.

The log does not know what a turn is or what is said in it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sessile.core.ids import check_session_id
from sessile.errors import InvalidId, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem

Json = dict[str, Any]

_BEGUN = "begun.log"
_ENDING = ".jsonl"
_LOCKS = 64  # sessions that share a lock wait for each other's sync
_MAX_STALE = 1024  # lines that are out of date before the file is rewritten
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Left(NamedTuple):
    """The unfinished turns of one session after a gateway has stopped, in their order."""

    session_id: str
    turns: list[Json]


class TurnLog:
    """The unfinished turns of one root."""

    def __init__(self, fs: Filesystem, root: str) -> None:
        self._fs = fs
        self._folder = f"{root}/gateway/turns"
        self._folders: set[str] = set()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._begun = _Begun(fs, f"{self._folder}/{_BEGUN}")
        self._kept: set[str] = set()  # sessions that have a file

    def note(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that starts."""
        check_session_id(session_id)
        with self._lock_of(session_id), storage_failures(self._begun.path, "note a turn"):
            if not self._begun.is_open:
                self._make_folder()
            self._begun.add(session_id, turn)

    def keep(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that waits, durably."""
        path = self._path(session_id)
        with self._lock_of(session_id), storage_failures(path, "note a turn"):
            self._make_folder()
            fd = self._fs.open(path, _APPEND)
            self._kept.add(session_id)
            try:
                self._write_durably(fd, path, _line(turn))
            finally:
                self._fs.close(fd)

    def forget(self, session_id: str, unless: Callable[[], bool] | None = None) -> None:
        """Note that nothing is left to do in a session, unless `unless` returns true under the lock."""
        path = self._path(session_id)
        with self._lock_of(session_id), storage_failures(path, "remove finished turns"):
            if unless is not None and unless():
                return
            self._begun.done(session_id)
            if session_id in self._kept:
                try:
                    self._fs.unlink(path)
                except FileNotFoundError:
                    pass  # the user has removed it
                self._kept.discard(session_id)

    def left(self) -> list[Left]:
        """Return the sessions with unfinished turns."""
        with storage_failures(self._folder, "look for unfinished turns"):
            try:
                names = self._fs.names(self._folder)
            except FileNotFoundError:
                return []
            found = {session_id: [turn] for session_id, turn in self._begun.read().items()}
            for name in names:
                session_id = name.removesuffix(_ENDING)
                if session_id != name and _is_id(session_id):
                    found.setdefault(session_id, []).extend(_turns_in(self._fs, f"{self._folder}/{name}"))
                    self._kept.add(session_id)
        return [Left(*each) for each in sorted(found.items())]

    def erase(self, session_id: str) -> None:
        """Remove the turns of a session for good, also finished ones. No gateway may be running."""
        with storage_failures(self._begun.path, "erase turns"):
            for path in (self._begun.path, self._path(session_id)):
                try:
                    data = atomic.read_all(self._fs, path)
                except FileNotFoundError:
                    continue
                if path != self._begun.path:
                    self._fs.unlink(path)
                elif session_id.encode() in data:
                    turns = {other: turn for other, turn in self._begun.read().items() if other != session_id}
                    atomic.replace(self._fs, path, [_begun_line(*each) for each in turns.items()])

    def close(self) -> None:
        """Close the log. Remove its file if no turn is unfinished."""
        with storage_failures(self._begun.path, "remove finished turns"):
            self._begun.close()

    def _make_folder(self) -> None:
        atomic.make_folders(self._fs, self._folder, self._folders)

    def _write_durably(self, fd: int, path: str, line: bytes) -> None:
        """Write a line durably, or not at all: a message that was refused must not be answered after a restart."""
        size = self._fs.fstat(fd).st_size
        try:
            atomic.write_all(self._fs, fd, line)
            self._fs.sync(fd)
            self._fs.sync_directory(self._folder)
        except OSError:
            try:
                self._fs.truncate(fd, size)
            except OSError as error:
                log.warning("a refused message remains in %s: %s", path, error)
            raise

    def _lock_of(self, session_id: str) -> threading.Lock:
        return self._locks[hash(session_id) % len(self._locks)]

    def _path(self, session_id: str) -> str:
        return f"{self._folder}/{check_session_id(session_id)}{_ENDING}"


class _Begun(atomic.Descriptor):
    """The running turns, at most one per session: in memory, and in a file that stays open while it is used."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self.turns: dict[str, Json] = {}  # running, by session
        self._fs = fs
        self._lines = 0
        self._pending: list[bytes] = []  # lines about finished turns, written with the next note
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the file is open, so that the folder exists and a note is one write."""
        return self._fd >= 0

    def add(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that starts."""
        with self._lock:
            self._write(_begun_line(session_id, turn))
            self.turns[session_id] = dict(turn)

    def done(self, session_id: str) -> None:
        """Note that the turn of a session is done."""
        with self._lock:
            if session_id not in self.turns:
                return
            if len(self.turns) > 1:
                self._pending.append(_begun_line(session_id, None))
            else:
                self._fs.truncate(self._opened(), 0)
                self._lines = 0
                self._pending.clear()
            del self.turns[session_id]

    def read(self) -> Mapping[str, Json]:
        """Return the turns that a stopped gateway has left. They count as running until they are done."""
        try:
            lines = _turns_in(self._fs, self.path)
        except FileNotFoundError:
            return {}
        with self._lock:
            for each in lines:
                session_id, turn = each.get("session"), each.get("turn")
                if not isinstance(session_id, str) or not _is_id(session_id):
                    continue  # the user has edited the file
                if isinstance(turn, dict):
                    self.turns[session_id] = turn
                else:
                    self.turns.pop(session_id, None)
            return dict(self.turns)

    def close(self) -> None:
        """Close the file. Remove it if no turn is running."""
        with self._lock:
            if self.turns and self._pending:
                self._write(b"")
            fd, self._fd, self._lines = self._fd, -1, 0
            if fd >= 0:
                self._fs.close(fd)
            if not self.turns:
                try:
                    self._fs.unlink(self.path)
                except FileNotFoundError:
                    pass  # there was no turn

    def _write(self, line: bytes) -> None:
        if self._lines - len(self.turns) >= _MAX_STALE:
            self._rewrite()
        atomic.write_all(self._fs, self._opened(), b"".join((*self._pending, line)))
        self._lines += len(self._pending) + 1
        self._pending.clear()

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = self._fs.open(self.path, _APPEND)
        return self._fd

    def _rewrite(self) -> None:
        atomic.replace(self._fs, self.path, [_begun_line(*each) for each in self.turns.items()], durable=False)
        old, self._fd, self._lines = self._fd, -1, len(self.turns)
        self._pending.clear()
        self._fs.close(old)


def _begun_line(session_id: str, turn: Mapping[str, Any] | None) -> bytes:
    return _line({"session": session_id, "turn": turn})


def _line(value: Mapping[str, Any]) -> bytes:
    """Return a line between newlines, so that incomplete lines before and after it do not become part of it."""
    return f"\n{json.dumps(value)}\n".encode()


def _turns_in(fs: Filesystem, path: str) -> list[Json]:
    """Return the objects in a file of lines. Incomplete lines are skipped."""
    found = []
    for line in atomic.read_all(fs, path).split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _is_id(text: str) -> bool:
    try:
        check_session_id(text)
    except InvalidId:
        return False
    return True
