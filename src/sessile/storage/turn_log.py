"""The turns that are under way or wait, so that a restart finds them: a small file for each session that has any.

    <root>/gateway/turns/<session id>.jsonl        a line for each turn, in their order

Rules: a turn that begins is noted without a sync: its message is durable in the transcript, and a power cut that takes the note
away is noticed when somebody speaks there again. A message that waits is in no transcript yet, so its line is durable when
`keep` returns. The file goes when nothing is left to do in its session; one who comes at that moment begins a new one, because
both happen under one lock. A torn last line was promised to nobody.

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

_ENDING = ".jsonl"
_LOCKS = 64  # of sessions that share one, one waits for the other's sync
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

    def note(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that begins."""
        self._append(session_id, turn, durable=False)

    def keep(self, session_id: str, turn: Mapping[str, Any]) -> None:
        """Note a turn that waits; it is durable afterwards."""
        self._append(session_id, turn, durable=True)

    def forget(self, session_id: str, unless: Callable[[], bool] | None = None) -> None:
        """Nothing is left to do in a session, unless somebody has come meanwhile."""
        path = self._path(session_id)
        with self._lock_of(session_id), storage_failures(path, "forget turns that are done"):
            if unless is not None and unless():
                return
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                pass  # somebody has tidied up

    def left(self) -> list[Left]:
        """The sessions in which something was left undone."""
        with storage_failures(self._folder, "look for turns that were left"):
            try:
                names = sorted(self._fs.names(self._folder))
            except FileNotFoundError:
                return []
            found = [Left(name.removesuffix(_ENDING), self._read(name)) for name in names if name.endswith(_ENDING)]
        return [left for left in found if _is_id(left.session_id)]

    def _read(self, name: str) -> list[Json]:
        lines = atomic.read_all(self._fs, f"{self._folder}/{name}").split(b"\n")
        turns = []
        for line in lines:
            try:
                turn = json.loads(line)
            except ValueError:
                continue  # torn
            if isinstance(turn, dict):
                turns.append(turn)
        return turns

    def _append(self, session_id: str, turn: Mapping[str, Any], *, durable: bool) -> None:
        path = self._path(session_id)
        # A line is between newlines: behind a torn one it stands on its own, and what a power cut leaves behind it does not
        # become a part of it.
        line = f"\n{json.dumps(turn)}\n".encode()
        with self._lock_of(session_id), storage_failures(path, "note a turn"):
            atomic.make_folders(self._fs, self._folder, self._folders)
            fd = self._fs.open(path, _APPEND)
            try:
                if durable:
                    self._write_durably(fd, path, line)
                else:
                    atomic.write_all(self._fs, fd, line)
            finally:
                self._fs.close(fd)

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


def _is_id(text: str) -> bool:
    try:
        check_session_id(text)
    except InvalidId:
        return False
    return True
