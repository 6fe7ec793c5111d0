"""MyAgents' folder as a whole: sessions with their rows in the index, messages, statistics, deletions.

Rules: messages are stored first, and durable, before the index is touched. A busy or damaged index never delays or loses a
message: what it did not learn is noted in our folder, and the next write or `settle` counts the session again. A session that
was deleted is not brought back by an append: without a row and without a file there is nothing to append to.

A recount waits for other writers of ours. It is exact while no program of theirs writes to that session; another one puts
right whatever came between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from sessile.core.text import iso_timestamp
from sessile.errors import SessileError, SessionBusy, SessionNotFound
from sessile.formats.myagents import stats as statistics
from sessile.formats.myagents.messages import Given
from sessile.formats.myagents.titles import DEFAULT, may_be_titled, title_of
from sessile.formats.myagents.types import Json, Metadata, check_session_id
from sessile.storage import atomic, processes
from sessile.storage.base import Filesystem
from sessile.stores.myagents.attachments import Attachments
from sessile.stores.myagents.debts import Debts
from sessile.stores.myagents.directory_lock import PATIENT, PAUSE, DirectoryLock
from sessile.stores.myagents.index import Index
from sessile.stores.myagents.places import Places, new_stamp
from sessile.stores.myagents.reading import Loaded, load
from sessile.stores.myagents.sessions import Choose, SessionFiles, Written
from sessile.stores.myagents.trash import Deletion, Trash


class Saved(NamedTuple):
    """What a save did. `owed` says why the statistics are behind; they are counted again by the next write or `settle`."""

    appended: int
    updated: bool
    messages: int
    kept: tuple[str, ...]
    owed: SessileError | None


class Writer(NamedTuple):
    """The way into one session's file, and into no other."""

    store: MyAgentsStore
    session_id: str

    def save(self, messages: Sequence[Given]) -> Saved:
        return self.store.save(self.session_id, messages)

    def append(self, messages: Sequence[Given]) -> Saved:
        return self.store.append(self.session_id, messages)


class MyAgentsStore:
    """One MyAgents folder; `ours` is where originals, deletions and notes of ours go."""

    def __init__(
        self,
        fs: Filesystem,
        root: str,
        ours: str,
        *,
        clock: Callable[[], int] = time.time_ns,
        pause: Callable[[float], None] = time.sleep,
        alive: Callable[[int], bool] = processes.is_alive,
        stamp: Callable[[], str] = new_stamp,
    ) -> None:
        self.fs = fs
        self.places = Places(root, ours)
        self._clock = clock
        self._pause = pause
        self._alive = alive
        self.index = Index(fs, self.places, self._lock(self.places.index_lock), stamp)
        self.debts = Debts(fs, self.places, alive, clock)
        self.files = SessionFiles(fs, self.places, self._session_lock, stamp, self.debts.begin)
        self.trash = Trash(fs, self.places, self.index, stamp)
        self.attachments = Attachments(fs, self.places)

    def _lock(self, path: str) -> DirectoryLock:
        return DirectoryLock(
            self.fs, path, owner=self._has_owners, clock=self._clock, pause=self._pause, alive=self._alive
        )

    @property
    def _has_owners(self) -> bool:
        """Whether a version is at home here that names the holder of a lock."""
        return atomic.exists(self.fs, self.places.session_locks)

    def _session_lock(self, session_id: str) -> AbstractContextManager[None]:
        """The lock of a session's file, where a version is at home that knows it; it is taken before that of the index."""
        if not self._has_owners:
            return nullcontext()
        return self._lock(self.places.session_lock(session_id)).held(PATIENT)

    def _now(self) -> int:
        return self._clock() // 1_000_000

    # -- reading

    def list_sessions(self, agent_dir: str | None = None) -> list[Metadata]:
        """The sessions, of one folder or all, last active first."""
        rows = [row for row in self.index.rows().values() if agent_dir is None or row.agent_dir == agent_dir]
        return sorted(rows, key=lambda row: row.last_active_ms or 0, reverse=True)

    def get(self, session_id: str) -> Metadata | None:
        """The metadata of a session."""
        return self.index.find(check_session_id(session_id))

    def load(self, session_id: str) -> Loaded:
        """The messages of a session; nothing is migrated or written."""
        return load(self.fs, self.places, session_id)

    # -- writing

    def create(self, session_id: str, agent_dir: str, title: str = DEFAULT, **members: Any) -> Metadata:
        """Add a session to the index; its file comes with its first message."""
        now = iso_timestamp(self._now())
        row = Metadata(
            {"id": check_session_id(session_id), "agentDir": agent_dir, "title": title}
            | {"createdAt": now, "lastActiveAt": now}
            | {name: item for name, item in members.items() if item is not None}
        )
        self.index.create(row, PATIENT)
        return row

    def writer(self, session_id: str) -> Writer:
        """The writer of one session."""
        return Writer(self, check_session_id(session_id))

    def save(self, session_id: str, messages: Sequence[Given]) -> Saved:
        """Store what is new in the full list of messages; the last stored one may have got its usage since."""
        return self._write(session_id, lambda: self.files.save(session_id, messages))

    def append(self, session_id: str, messages: Sequence[Given] | Choose) -> Saved:
        """Store new messages, or those that are chosen when the file is locked."""
        return self._write(session_id, lambda: self.files.append(session_id, messages))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Saved:
        """Put members of the last message right, such as its usage."""
        return self._write(session_id, lambda: self.files.update_last(session_id, members))

    def update(self, session_id: str, message_id: str, members: Mapping[str, Any]) -> Saved:
        """Put members of any message right, however late; one that is `None` is taken out."""
        return self._write(session_id, lambda: self.files.update(session_id, message_id, members))

    def rename(self, session_id: str, title: str) -> Metadata | None:
        """Give a session the name that a person chose."""
        now = self._now()
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title, titleSource="user").touched(now),
            PATIENT,
        )

    def suggest(self, session_id: str, title: str) -> Metadata | None:
        """Give a session a name that no person chose, unless somebody has named it; `None` if that is so."""
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title, titleSource="auto") if may_be_titled(row) else None,
            PATIENT,
        )

    def name_after(self, session_id: str, text: str) -> Metadata | None:
        """Name a session after its first message, unless somebody has named it; `None` if that is so."""
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title_of(text)) if may_be_titled(row) else None,
            PATIENT,
        )

    def record_run(self, session_id: str, sdk_session_id: str) -> Metadata | None:
        """Note under which id Claude Code runs a session; if that is the session's own, both stores have one id."""
        unified = True if sdk_session_id == session_id else None
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(sdkSessionId=sdk_session_id, unifiedSession=unified),
            PATIENT,
        )

    def delete(self, session_id: str) -> Deletion:
        """Move a session and its attachments to our trash."""
        check_session_id(session_id)
        with self._session_lock(session_id):
            deletion = self.trash.delete(session_id)
        self.files.forget(session_id)
        self.debts.pay(self.debts.of(session_id))
        return deletion

    def undo(self, token: str) -> Deletion:
        """Bring a deleted session back."""
        return self.trash.undo(token)

    def _write(self, session_id: str, act: Callable[[], Written]) -> Saved:
        """Write to a session, then tell the index; whatever comes of that, the messages are stored."""
        self._check_known(session_id)
        try:
            written = act()
        except SessileError:
            self.debts.fail(session_id)
            raise
        owed = None
        if written.appended or written.updated:
            try:
                self._update_stats(session_id, written)
                self.debts.end(session_id)
            except SessileError as error:
                owed = error
                self.debts.owe(session_id)
        return Saved(written.appended, written.updated, written.messages, written.kept, owed)

    def _check_known(self, session_id: str) -> None:
        """Refuse to write to a session that is gone."""
        check_session_id(session_id)
        if not self.files.exists(session_id) and self.get(session_id) is None:
            raise SessionNotFound(
                f"there is neither a row nor a file for {session_id}; an append would bring back what was deleted",
                path=self.places.session(session_id),
                hint="create the session first",
            )

    # -- statistics

    def recount(self, session_id: str) -> Json:
        """The statistics counted from all messages; nothing is written."""
        row = self.get(session_id)
        return statistics.recount(self.load(session_id).messages, row.stats if row else None)

    def repair_stats(self, session_id: str) -> Metadata:
        """Write the statistics counted from all messages into the index."""
        check_session_id(session_id)
        for _ in range(PATIENT):
            notes = self.debts.of(session_id)
            row = self.index.update(session_id, lambda row: self._recounted(session_id, row), PATIENT)
            if row is not None:
                self.debts.pay(notes)
                return row
            self._pause(PAUSE)
        raise SessionBusy(
            "another process writes to the session",
            path=self.places.session(session_id),
            hint="try again when it is done",
        )

    def _recounted(self, session_id: str, row: Metadata) -> Metadata | None:
        """The row with all messages counted; `None` while a writer of ours has not told the index of its own yet."""
        counted = statistics.recount(self.load(session_id).messages, row.stats)
        # Asked after the messages were read: whoever has stored one of them was there before, and is still, or has told.
        return None if self.debts.is_written_by_another(session_id) else row.changed(stats=counted)

    def settle(self) -> list[str]:
        """Write the statistics that the index has not learned yet; gives the sessions of which that was done."""
        done = []
        for session_id in self.owed():
            if self.get(session_id) is not None:
                self.repair_stats(session_id)
                done.append(session_id)
            else:
                self.debts.pay(self.debts.of(session_id))  # there is no row to count into
        return done

    def owed(self) -> list[str]:
        """The sessions whose statistics are behind."""
        return self.debts.all()

    def _update_stats(self, session_id: str, written: Written) -> None:
        now = self._now()
        notes = self.debts.of(session_id)
        paid = False

        def change(row: Metadata) -> Metadata:
            nonlocal paid
            counted = self._recounted(session_id, row) if notes else None
            paid = counted is not None
            return (counted or row.changed(stats=statistics.add(row.stats, written.tally))).touched(now)

        try:
            self.index.update(session_id, change)
        except SessionNotFound:
            if self.get(session_id) is not None:
                raise
            return  # a file without a row may be appended to, and there is nothing to count in
        if paid:
            self.debts.pay(notes)
