"""The turns that are under way or wait, so that a restart finds them.

    <root>/gateway/turns/begun.log                 a line for each turn that begins, and for each session that is done; of all
    <root>/gateway/turns/<session id>.jsonl        a line for each turn that waits, in their order

Rules: a turn that begins is noted without a sync: its message is durable in the transcript, and a power cut that takes the note
away is noticed when somebody speaks there again. So a note is one write, and now and then the file is begun anew with what is
still under way. That a session is done is noted with the next note, or when nothing is under way any more: whoever finds a turn
that is done finds its reply, too. A message that waits is in no transcript yet, so its line is durable when `keep` returns; its
file goes when nothing is left to do in its session. One who comes at that moment begins a new one, because both happen under
one lock. A torn last line was promised to nobody.

It does not know what a turn is, nor what is said in it.
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
_LOCKS = 64  # of sessions that share one, one waits for the other's sync
_MANY = 1024  # lines that say nothing any more
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Left(NamedTuple):
    """What a gateway that ended in the middle has left of one session, in the order of its turns."""

    session_id: str
    turns: list[Json]


class TurnLog:
    """The turns of one root that are not done."""

    def __init__(self, fs: Filesystem, root: str) -> None:
        self._fs = fs
        self._folder = f"{root}/gateway/turns"
        self._folders: set[str] = set()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._begun = _Begun(fs, f"{self._folder}/{_BEGUN}")
        self._kept: set[str] = set()  # sessions that have a file

    def note(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that begins."""
        check_session_id(session_id)
        with self._lock_of(session_id), storage_failures(self._begun.path, "note a turn"):
            if not self._begun.is_open:
                self._make_folder()
            self._begun.add(session_id, turn)

    def keep(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that waits; it is durable afterwards."""
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
        """Nothing is left to do in a session, unless somebody has come meanwhile."""
        path = self._path(session_id)
        with self._lock_of(session_id), storage_failures(path, "forget turns that are done"):
            if unless is not None and unless():
                return
            self._begun.done(session_id)
            if session_id in self._kept:
                try:
                    self._fs.unlink(path)
                except FileNotFoundError:
                    pass  # somebody has tidied up
                self._kept.discard(session_id)

    def left(self) -> list[Left]:
        """The sessions in which something was left undone."""
        with storage_failures(self._folder, "look for turns that were left"):
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

    def close(self) -> None:
        """Note nothing more; where nothing is left to do, no file is left either."""
        with storage_failures(self._begun.path, "forget turns that are done"):
            self._begun.close()

    def _make_folder(self) -> None:
        atomic.make_folders(self._fs, self._folder, self._folders)

    def _write_durably(self, fd: int, path: str, line: bytes) -> None:
        """Write a line that is there for good, or not at all: whoever is refused must not be answered after a restart."""
        size = self._fs.fstat(fd).st_size
        try:
            atomic.write_all(self._fs, fd, line)
            self._fs.sync(fd)
            self._fs.sync_directory(self._folder)
        except OSError:
            try:
                self._fs.truncate(fd, size)
            except OSError as error:
                log.warning("a message that was refused stays in %s: %s", path, error)
            raise

    def _lock_of(self, session_id: str) -> threading.Lock:
        return self._locks[hash(session_id) % len(self._locks)]

    def _path(self, session_id: str) -> str:
        return f"{self._folder}/{check_session_id(session_id)}{_ENDING}"


class _Begun:
    """The turns that have begun, one of each session at most: in memory, and in a file that is open while it is used."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self.path = path
        self.turns: dict[str, Json] = {}  # that are under way, by session
        self._fs = fs
        self._fd = -1
        self._lines = 0
        self._untold: list[bytes] = []  # that some are done
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether a note is one write, and the folder is there."""
        return self._fd >= 0

    def add(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """A turn begins."""
        with self._lock:
            self._write(_told(session_id, turn))
            self.turns[session_id] = dict(turn)

    def done(self, session_id: str) -> None:
        """The turn of a session is done. What is not noted any more is no news."""
        with self._lock:
            if session_id not in self.turns:
                return
            if len(self.turns) > 1:
                self._untold.append(_told(session_id, None))
            else:
                self._fs.truncate(self._opened(), 0)
                self._lines = 0
                self._untold.clear()
            del self.turns[session_id]

    def read(self) -> Mapping[str, Json]:
        """What a gateway that ended has left here; it is under way until it is done."""
        try:
            told = _turns_in(self._fs, self.path)
        except FileNotFoundError:
            return {}
        with self._lock:
            for each in told:
                session_id, turn = each.get("session"), each.get("turn")
                if not isinstance(session_id, str) or not _is_id(session_id):
                    continue  # somebody has edited the file
                if isinstance(turn, dict):
                    self.turns[session_id] = turn
                else:
                    self.turns.pop(session_id, None)
            return dict(self.turns)

    def close(self) -> None:
        """Close the file, and take it away if it says nothing."""
        with self._lock:
            if self.turns and self._untold:
                self._write(b"")
            fd, self._fd, self._lines = self._fd, -1, 0
            if fd >= 0:
                self._fs.close(fd)
            if not self.turns:
                try:
                    self._fs.unlink(self.path)
                except FileNotFoundError:
                    pass  # nobody has spoken

    def _write(self, line: bytes) -> None:
        if self._lines - len(self.turns) >= _MANY:
            self._begin_anew()
        atomic.write_all(self._fs, self._opened(), b"".join((*self._untold, line)))
        self._lines += len(self._untold) + 1
        self._untold.clear()

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = self._fs.open(self.path, _APPEND)
        return self._fd

    def _begin_anew(self) -> None:
        atomic.replace(self._fs, self.path, [_told(*each) for each in self.turns.items()], durable=False)
        old, self._fd, self._lines = self._fd, -1, len(self.turns)
        self._untold.clear()
        self._fs.close(old)


def _told(session_id: str, turn: Mapping[str, Any] | None) -> bytes:
    return _line({"session": session_id, "turn": turn})


def _line(value: Mapping[str, Any]) -> bytes:
    """A line is between newlines: behind a torn one it stands on its own, and what a power cut leaves behind it does not
    become a part of it."""
    return f"\n{json.dumps(value)}\n".encode()


def _turns_in(fs: Filesystem, path: str) -> list[Json]:
    """The objects in a file of lines; a torn line is none."""
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
