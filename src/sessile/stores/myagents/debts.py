"""Statistics that MyAgents' index has not learned yet: notes in our folder, so that whoever comes next can put them right.

    <ours>/pending/<id>                     could not be written: the index was busy or damaged
    <ours>/pending/<id>.<pid>-<…>           a write that is under way; if its process is dead it never came to the index

A note of the first kind is durable. One of the second costs an append next to nothing: it survives a killed process, but perhaps
not a power cut; after that a recount puts things right. While its process lives nobody else counts the session again: what it
is about to add would count twice. Notes tell what to count again, never what to add, so that one too many does no harm.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sessile.errors import SessileError, storage_failures
from sessile.formats.myagents.types import is_session_id
from sessile.storage import atomic, log, processes
from sessile.storage.base import Filesystem
from sessile.stores.myagents.directory_lock import STALE_NS
from sessile.stores.myagents.places import Places, new_stamp

_LONGEST = STALE_NS  # a write that began before that is none, whoever has the number of its process now
_STARTED = new_stamp()  # tells this process from an earlier one that had its number


class Note(NamedTuple):
    """A note as it was seen; one that was made anew since has another inode or time. `writer` is empty if it is owed."""

    session_id: str
    writer: str
    path: str
    inode: int
    modified: int


class Debts:
    """The notes for one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places, alive: Callable[[int], bool], clock: Callable[[], int]) -> None:
        self._fs = fs
        self._places = places
        self._clock = clock
        self._alive = alive
        self._mine = f"{processes.own_pid()}-{_STARTED}-{secrets.token_hex(4)}"

    # -- making notes

    def begin(self, session_id: str) -> None:
        """Note that a session is about to be written."""
        self._note(f"{self._places.owed(session_id)}.{self._mine}", session_id, durable=False)

    def end(self, session_id: str) -> None:
        """Take that back: the index knows of the write."""
        atomic.remove(self._fs, f"{self._places.owed(session_id)}.{self._mine}")

    def owe(self, session_id: str) -> None:
        """Note, durably, that the statistics of a session are behind."""
        self._note(self._places.owed(session_id), session_id, durable=True)
        self.end(session_id)

    def fail(self, session_id: str) -> None:
        """A write has failed; if it had begun, nobody knows how far it came."""
        if atomic.exists(self._fs, f"{self._places.owed(session_id)}.{self._mine}"):
            self.owe(session_id)

    def _note(self, path: str, session_id: str, *, durable: bool) -> None:
        try:
            atomic.make_folders(self._fs, self._places.pending)
            atomic.replace(self._fs, path, (b"",), durable=durable)
        except SessileError as error:
            log.warning("no note could be made of the statistics of %s, should they fall behind: %s", session_id, error)

    # -- reading and paying

    def all(self) -> list[str]:
        """The sessions whose statistics are behind."""
        return sorted({note.session_id for note in self._notes() if self._is_owed(note)})

    def of(self, session_id: str) -> list[Note]:
        """What is owed to one session."""
        return [note for note in self._notes() if note.session_id == session_id and self._is_owed(note)]

    def is_written_by_another(self, session_id: str) -> bool:
        """Whether another writer of ours may have stored messages that it has not told the index yet."""
        notes = [note for note in self._notes() if note.session_id == session_id and note.writer != self._mine]
        return not all(self._is_owed(note) for note in notes)

    def pay(self, notes: list[Note]) -> None:
        """Remove notes, unless they were made anew since they were seen."""
        for note in notes:
            with storage_failures(note.path, "remove a note"):
                try:
                    status = self._fs.lstat(note.path)
                    if (status.st_ino, status.st_mtime_ns) == (note.inode, note.modified):
                        self._fs.unlink(note.path)
                except FileNotFoundError:
                    pass  # another was faster

    def _notes(self) -> Iterator[Note]:
        pending = self._places.pending
        with storage_failures(pending, "look for statistics that are behind"):
            try:
                names = self._fs.names(pending)
            except FileNotFoundError:
                return
        for name in names:
            session_id, _, writer = name.partition(".")
            if not is_session_id(session_id):
                continue  # a note that was never finished
            with storage_failures(f"{pending}/{name}", "look at a note"):
                try:
                    status = self._fs.lstat(f"{pending}/{name}")
                except FileNotFoundError:
                    continue  # paid since
            yield Note(session_id, writer, f"{pending}/{name}", status.st_ino, status.st_mtime_ns)

    def _is_owed(self, note: Note) -> bool:
        """Whether nobody is going to tell the index but who reads this."""
        if note.writer == self._mine:
            return False
        pid = note.writer.partition("-")[0]
        if not pid.isascii() or not pid.isdigit() or self._clock() - note.modified > _LONGEST:
            return True
        if int(pid) == processes.own_pid():
            return not note.writer.startswith(f"{pid}-{_STARTED}-")
        return not self._alive(int(pid))
