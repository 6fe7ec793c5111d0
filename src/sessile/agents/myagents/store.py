"""MyAgents' folder: sessions with their rows in the index, messages, attachments, statistics, deletions.

Rules:

- Messages are stored durably before the index is touched. A busy or damaged index never delays or loses a message: what
  it is missing is noted in our folder, and the next write or `settle` counts the session again. An append never brings
  back a deleted session: without a row and a file there is nothing to append to.
- A recount waits for our other writers. It is exact while no program of MyAgents writes to the session.

Reading: a session is JSONL, the JSON object of the first versions, a gzip archive of the JSONL, or a v2 transcript. If
JSONL and JSON both exist, a migration was interrupted: the one with more messages counts. A second file of a session is
a finding, and so are lines that cannot be read. Reading writes and migrates nothing.

Session files: an append costs the same however long the session is. The messages are counted once, then only new lines
are read. A missing line end is repaired. A row is saved in our folder before it is replaced. A list that is shorter
than the file is refused, because it comes from an incomplete memory. The last few messages of a full list are compared
with the file, because an answer may get its usage after the next question; older ones are updated by id.

Migration to JSONL (by the first write): the new file is written durably under its final name, the files that it replaces
are saved in our folder, and only then the JSON file is removed. An interruption at any step loses nothing.

Attachments are files below `attachments/<session id>/`, with mode 0600. Paths are built from validated ids only. The
extension comes from a table, never from the MIME type, so a browser does not execute a stored file.

Pending statistics are notes in our folder:

    <ours>/pending/<id>                     the index was busy or damaged
    <ours>/pending/<id>.<pid>-<…>           a write in progress; if its process is dead, the index was not updated

The first kind is durable. The second is cheap: it survives a killed process, but perhaps not a power cut. While its
process lives no other process recounts the session, since what it is about to add would count twice. Notes name
sessions to recount, so a superfluous one does no harm.

Trash: first the note of what was where is written durably, then every file gets a second name (or a copy, on another
disk) in the trash, and only then, with the index locked, the files are removed and the row last. An interruption leaves
a session that is still listed, or a deletion that can be undone. The trash is never emptied automatically. The note can
also be read by the store that owns the trash (`storage.trash`), which leaves restoring the row to this module.
"""

from __future__ import annotations

import posixpath
import secrets
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import msgspec

from sessile.agents.myagents import types
from sessile.agents.myagents.index import Index
from sessile.agents.myagents.lock import PATIENT, PAUSE, STALE_NS, DirectoryLock
from sessile.agents.myagents.messages import (
    Given,
    Item,
    Row,
    encode_row,
    late_members,
    read_legacy,
    read_v2,
    salvaged,
    scan,
    stored_form,
)
from sessile.agents.myagents.places import Places, new_stamp
from sessile.agents.myagents.types import (
    DEFAULT,
    Json,
    Message,
    Metadata,
    Tally,
    check_session_id,
    is_session_id,
    may_be_titled,
    tally,
    title_of,
)
from sessile.core.codec import decode, encode
from sessile.core.lines import Finding
from sessile.core.text import iso_timestamp
from sessile.errors import (
    Conflict,
    Damaged,
    LeafMoved,
    NotFound,
    SessileError,
    SessionBusy,
    SessionNotFound,
    UnsafePath,
    Unsupported,
    storage_failures,
)
from sessile.storage import atomic, locks, log
from sessile.storage.base import Filesystem, Stat
from sessile.storage.layout import can_be_named
from sessile.storage.line_file import add_chosen_rows, add_rows, replace_row
from sessile.storage.session_bytes import RawFile, files_below, is_kept


class Saved(NamedTuple):
    """The result of a save. `pending` is why the index lacks the statistics; the next write or `settle` adds them."""

    appended: int
    updated: bool
    messages: int
    kept: tuple[str, ...]
    pending: SessileError | None


class Writer(NamedTuple):
    """A writer for one session's file."""

    store: MyAgentsStore
    session_id: str

    def save(self, messages: Sequence[Given]) -> Saved:
        return self.store.save(self.session_id, messages)

    def append(self, messages: Sequence[Given]) -> Saved:
        return self.store.append(self.session_id, messages)


class MyAgentsStore:
    """One MyAgents folder; `ours` is our folder for originals, deletions and notes."""

    def __init__(
        self,
        fs: Filesystem,
        root: str,
        ours: str,
        *,
        clock: Callable[[], int] = time.time_ns,
        pause: Callable[[float], None] = time.sleep,
        alive: Callable[[int], bool] = locks.is_alive,
        stamp: Callable[[], str] = new_stamp,
    ) -> None:
        self.fs = fs
        self.places = Places(root, ours)
        self._clock = clock
        self._pause = pause
        self._alive = alive
        self.index = Index(fs, self.places, self._lock(self.places.index_lock), stamp)
        self.pending_stats = PendingStats(fs, self.places, alive, clock)
        self.files = SessionFiles(fs, self.places, self._session_lock, stamp, self.pending_stats.begin)
        self.trash = Trash(fs, self.places, self.index, stamp)
        self.attachments = Attachments(fs, self.places)

    def _lock(self, path: str) -> DirectoryLock:
        return DirectoryLock(
            self.fs, path, owner=self._has_owners, clock=self._clock, pause=self._pause, alive=self._alive
        )

    @property
    def _has_owners(self) -> bool:
        """Whether a version is installed that names the owner of a lock."""
        return atomic.exists(self.fs, self.places.session_locks)

    def _session_lock(self, session_id: str) -> AbstractContextManager[None]:
        """Return the lock of a session's file, if the installed version has one; it is taken before that of the index."""
        if not self._has_owners:
            return nullcontext()
        return self._lock(self.places.session_lock(session_id)).held(PATIENT)

    def _now(self) -> int:
        return self._clock() // 1_000_000

    # -- reading

    def list_sessions(self, agent_dir: str | None = None) -> list[Metadata]:
        """Return the sessions of one folder or of all, last active first."""
        rows = [row for row in self.index.rows().values() if agent_dir is None or row.agent_dir == agent_dir]
        return sorted(rows, key=lambda row: row.last_active_ms or 0, reverse=True)

    def get(self, session_id: str) -> Metadata | None:
        """Return the metadata of a session."""
        return self.index.find(check_session_id(session_id))

    def load(self, session_id: str) -> Loaded:
        """Return the messages of a session; nothing is migrated or written."""
        return load(self.fs, self.places, session_id)

    # -- writing

    def create(self, session_id: str, agent_dir: str, title: str = DEFAULT, **members: Any) -> Metadata:
        """Add a session to the index; the first message creates its file."""
        now = iso_timestamp(self._now())
        row = Metadata(
            {"id": check_session_id(session_id), "agentDir": agent_dir, "title": title}
            | {"createdAt": now, "lastActiveAt": now}
            | {name: item for name, item in members.items() if item is not None}
        )
        self.index.create(row, PATIENT)
        return row

    def writer(self, session_id: str) -> Writer:
        """Return a writer for one session."""
        return Writer(self, check_session_id(session_id))

    def save(self, session_id: str, messages: Sequence[Given]) -> Saved:
        """Store the new messages of the full list; the last stored ones may have changed."""
        return self._write(session_id, lambda: self.files.save(session_id, messages))

    def append(self, session_id: str, messages: Sequence[Given] | Choose) -> Saved:
        """Store new messages, or those that a callable chooses while the file is locked."""
        return self._write(session_id, lambda: self.files.append(session_id, messages))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Saved:
        """Update members of the last message, such as its usage."""
        return self._write(session_id, lambda: self.files.update_last(session_id, members))

    def update(self, session_id: str, message_id: str, members: Mapping[str, Any]) -> Saved:
        """Update members of any message; one that is `None` is removed."""
        return self._write(session_id, lambda: self.files.update(session_id, message_id, members))

    def rename(self, session_id: str, title: str) -> Metadata | None:
        """Set the title that a user chose."""
        now = self._now()
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title, titleSource="user").touched(now),
            PATIENT,
        )

    def suggest(self, session_id: str, title: str) -> Metadata | None:
        """Set a generated title; return `None` if the session has a title already."""
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title, titleSource="auto") if may_be_titled(row) else None,
            PATIENT,
        )

    def title_from(self, session_id: str, text: str) -> Metadata | None:
        """Set the title from the first message; return `None` if the session has a title already."""
        return self.index.update(
            check_session_id(session_id),
            lambda row: row.changed(title=title_of(text)) if may_be_titled(row) else None,
            PATIENT,
        )

    def record_run(self, session_id: str, sdk_session_id: str) -> Metadata | None:
        """Record the id under which Claude Code runs a session; if it is the session's own, both stores share one id."""
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
        self.pending_stats.clear(self.pending_stats.of(session_id))
        return deletion

    def undo(self, token: str) -> Deletion:
        """Restore a deleted session."""
        return self.trash.undo(token)

    def _write(self, session_id: str, act: Callable[[], Written]) -> Saved:
        """Write to a session, then update the index; if that fails, the messages are still stored."""
        self._check_known(session_id)
        try:
            written = act()
        except SessileError:
            self.pending_stats.fail(session_id)
            raise
        pending = None
        if written.appended or written.updated:
            try:
                self._update_stats(session_id, written)
                self.pending_stats.end(session_id)
            except SessileError as error:
                pending = error
                self.pending_stats.mark(session_id)
        return Saved(written.appended, written.updated, written.messages, written.kept, pending)

    def _check_known(self, session_id: str) -> None:
        """Raise if a session does not exist."""
        check_session_id(session_id)
        if not self.files.exists(session_id) and self.get(session_id) is None:
            raise SessionNotFound(
                f"session not found in MyAgents' folder: {session_id!r}",
                path=self.places.session(session_id),
                hint="create the session first",
            )

    # -- statistics

    def recount(self, session_id: str) -> Json:
        """Return the statistics counted from all messages; nothing is written."""
        row = self.get(session_id)
        return types.recount(self.load(session_id).messages, row.stats if row else None)

    def repair_stats(self, session_id: str) -> Metadata:
        """Write the statistics counted from all messages to the index."""
        check_session_id(session_id)
        for _ in range(PATIENT):
            notes = self.pending_stats.of(session_id)
            row = self.index.update(session_id, lambda row: self._recounted(session_id, row), PATIENT)
            if row is not None:
                self.pending_stats.clear(notes)
                return row
            self._pause(PAUSE)
        raise SessionBusy(
            "another process is writing to the session",
            path=self.places.session(session_id),
            hint="try again later",
        )

    def _recounted(self, session_id: str, row: Metadata) -> Metadata | None:
        """Return the row with all messages counted; `None` while another of our writers has not updated the index."""
        counted = types.recount(self.load(session_id).messages, row.stats)
        # Checked after reading: the writer of any of these messages is still noted, or has updated the index.
        return None if self.pending_stats.is_written_by_another(session_id) else row.changed(stats=counted)

    def settle(self) -> list[str]:
        """Write the pending statistics to the index; return the sessions that were updated."""
        done = []
        for session_id in self.pending():
            if self.get(session_id) is not None:
                self.repair_stats(session_id)
                done.append(session_id)
            else:
                self.pending_stats.clear(self.pending_stats.of(session_id))  # there is no row to count into
        return done

    def pending(self) -> list[str]:
        """Return the sessions with pending statistics."""
        return self.pending_stats.all()

    def _update_stats(self, session_id: str, written: Written) -> None:
        now = self._now()
        notes = self.pending_stats.of(session_id)
        recounted = False

        def change(row: Metadata) -> Metadata:
            nonlocal recounted
            counted = self._recounted(session_id, row) if notes else None
            recounted = counted is not None
            return (counted or row.changed(stats=types.add(row.stats, written.tally))).touched(now)

        try:
            self.index.update(session_id, change)
        except SessionNotFound:
            if self.get(session_id) is not None:
                raise
            return  # a file without a row has no statistics
        if recounted:
            self.pending_stats.clear(notes)


# -- session files

_COMPARED = 8  # stored messages that are compared with a full list


Choose = Callable[[Sequence[Row]], Sequence[Json]]
"""Return the messages to store. It is called with the file's lock held, and receives the last stored rows."""


class _Counted(NamedTuple):
    """The number of messages in a file, and what shows whether it is still valid."""

    inode: int
    device: int
    size: int
    whole: bool  # ends with a newline
    settled: bool  # its name is durable
    messages: int
    latest: tuple[Row, ...]  # the last rows, at most _COMPARED

    @property
    def last(self) -> Row | None:
        return self.latest[-1] if self.latest else None


class Written(NamedTuple):
    """The result of a write: new rows, their effect on the statistics, and the files that hold replaced rows."""

    appended: int
    updated: bool
    messages: int
    tally: Tally
    kept: tuple[str, ...]


class SessionFiles:
    """The session files of one folder."""

    def __init__(
        self,
        fs: Filesystem,
        places: Places,
        guard: Callable[[str], AbstractContextManager[None]],
        stamp: Callable[[], str] = new_stamp,
        announce: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """Create; `guard` returns the lock for replacing a session's file, `announce` is called before every change."""
        self._fs = fs
        self._places = places
        self._guard = guard
        self._stamp = stamp
        self._announce = announce
        self._cache: dict[str, _Counted] = {}

    def exists(self, session_id: str) -> bool:
        """Return whether the session has a file of any form."""
        paths = (self._places.session, self._places.legacy, self._places.archive, self._places.transcript_v2)
        return any(atomic.exists(self._fs, path(session_id)) for path in paths)

    def count(self, session_id: str) -> int:
        """Return the number of messages, in whatever form they are stored."""
        places = self._places
        others = (places.legacy, places.archive, places.transcript_v2)
        if any(atomic.exists(self._fs, path(session_id)) for path in others):
            return len(load(self._fs, places, session_id).rows)
        return self._counted(session_id).messages

    def forget(self, session_id: str) -> None:
        """Drop the cached count of a session."""
        self._cache.pop(session_id, None)

    # -- writing

    def save(self, session_id: str, messages: Sequence[Given]) -> Written:
        """Store the new messages of a session's full list; the last stored ones may have changed."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if len(messages) < known.messages:
            raise Conflict(
                f"the list has {len(messages)} messages but the file has {known.messages}, so nothing was written",
                path=self._places.session(session_id),
                hint="load the session again, then add to that",
            )
        late = self._late_changes(session_id, known, messages)
        change = Tally()
        for row, value in late:
            change = change.plus(self._replace(session_id, row, value))
        written = self._append(session_id, messages[known.messages :])
        kept = [*kept, self._places.replaced_rows(session_id)] if late else kept
        return written._replace(updated=bool(late), tally=written.tally.plus(change), kept=tuple(kept))

    def _late_changes(self, session_id: str, known: _Counted, messages: Sequence[Given]) -> list[tuple[Row, Json]]:
        """Return the stored rows that the list changes, with their new values; the last first, so offsets stay valid."""
        changes = []
        given = messages[known.messages - len(known.latest) : known.messages]
        for row, message in zip(known.latest, given, strict=True):
            stored, listed = row.message, Message(stored_form(message))
            if stored.id != listed.id:
                raise LeafMoved(
                    f"the file has message {stored.id!r} where the list has {listed.id!r}, so nothing was written",
                    path=self._places.session(session_id),
                    hint="load the session again, then add to that",
                )
            members = late_members(stored, message)
            if members:
                changes.append((row, {**stored.value, **members}))
        return changes[::-1]

    def append(self, session_id: str, messages: Sequence[Given] | Choose) -> Written:
        """Store new messages."""
        kept = self.make_writable(session_id)
        return self._append(session_id, messages)._replace(kept=tuple(kept))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Written:
        """Update members of the last message: usage, number of tools, duration."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if known.last is None:
            raise Conflict("the session has no messages", path=self._places.session(session_id))
        return self._update_row(session_id, known.last, members, kept)

    def update(self, session_id: str, message_id: str, members: Mapping[str, Any]) -> Written:
        """Update members of any message; if several have this id, the last."""
        kept = self.make_writable(session_id)
        path = self._places.session(session_id)
        rows = load_lines(self._fs, path).rows if atomic.exists(self._fs, path) else ()
        for row in reversed(rows):
            if row.message.id == message_id:
                return self._update_row(session_id, row, members, kept)
        raise NotFound(f"message not found: {message_id[:80]!r}", path=path)

    def _update_row(self, session_id: str, row: Row, members: Mapping[str, Any], kept: list[str]) -> Written:
        """Update a row; a member that is `None` is removed."""
        count = self._counted(session_id).messages
        removed = {name for name, item in members.items() if item is None}
        value = {name: item for name, item in row.message.value.items() if name not in removed} | stored_form(members)
        if value == row.message.value:
            return Written(0, False, count, Tally(), tuple(kept))
        change = self._replace(session_id, row, value)
        return Written(0, True, count, change, (*kept, self._places.replaced_rows(session_id)))

    def _append(self, session_id: str, messages: Sequence[Given] | Choose) -> Written:
        known = self._counted(session_id)
        if not messages:
            return Written(0, False, known.messages, Tally(), ())
        path = self._places.session(session_id)
        values = [] if callable(messages) else [stored_form(message) for message in messages]
        lines = [encode_row(value) for value in values]

        def choose() -> Sequence[bytes]:
            nonlocal known, values, lines
            if callable(messages):
                known = self._counted(session_id)
                values = list(messages(known.latest))
                lines = [encode_row(value) for value in values]
            return lines

        atomic.make_folders(self._fs, self._places.sessions, below_links=True)
        self._announce(session_id)
        added = add_chosen_rows(self._fs, path, choose, create=known.size == 0, settled=known.settled)
        self._remember(session_id, known, added.offset, lines, added.stat)
        count = known.messages + len(lines)
        return Written(len(lines), False, count, tally(Message(value) for value in values), ())

    def _remember(self, session_id: str, known: _Counted, offset: int, lines: list[bytes], status: Stat) -> None:
        """Cache the count, unless another process has written at the same time."""
        length = sum(len(line) + 1 for line in lines)
        alone = known.whole and offset == known.size and status.st_size == offset + length
        if not alone or (known.size and known.inode != status.st_ino):
            self.forget(session_id)
            return
        latest = list(known.latest)
        for line in lines:
            latest.append(Row(offset, line))
            offset += len(line) + 1
        count = known.messages + len(lines)
        self._cache[session_id] = _Counted(
            status.st_ino, status.st_dev, status.st_size, True, True, count, tuple(latest[-_COMPARED:])
        )

    def _replace(self, session_id: str, row: Row, value: Json) -> Tally:
        """Replace a row, and return the change of the statistics."""
        path = self._places.session(session_id)
        atomic.make_folders(self._fs, self._places.originals)
        add_rows(self._fs, self._places.replaced_rows(session_id), row.raw + b"\n", create=True)
        self.forget(session_id)
        self._announce(session_id)
        aside = f"{self._places.originals}/{session_id}.whole-{self._stamp()}"
        with self._guard(session_id):
            replace_row(self._fs, path, row.offset, row.raw, encode_row(value), aside)
        return tally([Message(value)]).minus(tally([row.message]))

    def make_writable(self, session_id: str) -> list[str]:
        """Refuse read-only forms and migrate the legacy one; return the files that were saved."""
        if atomic.exists(self._fs, self._places.transcript_v2(session_id)):
            raise Unsupported(
                "v2 transcripts are read-only",
                path=self._places.transcript_v2(session_id),
                hint="run `sessile fork`, and continue in the copy",
            )
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path) and atomic.exists(self._fs, self._places.archive(session_id)):
            raise Unsupported(
                "the session is archived",
                path=self._places.archive(session_id),
                hint="unpack it first",
            )
        if not atomic.exists(self._fs, self._places.legacy(session_id)):
            return []
        self.forget(session_id)
        with self._guard(session_id):
            return migrate(self._fs, self._places, session_id, self._stamp())

    # -- counting

    def _counted(self, session_id: str) -> _Counted:
        """Count the stored messages, reading only what is new since the last time."""
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path):
            self.forget(session_id)
            return _Counted(0, 0, 0, True, False, 0, ())
        with RawFile(self._fs, path) as file:
            known = self._cache.get(session_id)
            start, count, settled = 0, 0, False
            latest: deque[Row] = deque(maxlen=_COMPARED)
            if known is not None and _is_continued(file, known):
                if file.size == known.size:
                    return known
                start, count, settled = known.size, known.messages, known.settled
                latest.extend(known.latest)
            for item in scan(file.chunks(start), start):
                if isinstance(item, Row):
                    count += 1
                    latest.append(item)
            whole = file.size == 0 or file.peek(file.size - 1, 1) == b"\n"
            status = file.stat
            known = _Counted(status.st_ino, status.st_dev, status.st_size, whole, settled, count, tuple(latest))
        self._cache[session_id] = known
        return known


def _is_continued(file: RawFile, known: _Counted) -> bool:
    """Return whether a file is the one that was counted, possibly with more at its end."""
    if (file.stat.st_ino, file.stat.st_dev) != (known.inode, known.device) or not known.whole:
        return False
    if file.size < known.size:
        return False
    return known.last is None or file.peek(known.last.offset, len(known.last.raw)) == known.last.raw


# -- reading

_GZIP = 31  # the value of `wbits` for a gzip header
_PIECE = 1 << 20  # bytes


class Loaded(NamedTuple):
    """The rows of a session, its findings, and its path; `path` is `None` if there is no file."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    path: str | None

    @property
    def messages(self) -> list[Message]:
        """The decoded rows."""
        return [row.message for row in self.rows]


Reader = Callable[[Filesystem, str], Loaded]


def load(fs: Filesystem, places: Places, session_id: str) -> Loaded:
    """Return the messages of a session."""
    newest = _read(fs, places.transcript_v2(session_id), load_v2)
    current = _read(fs, places.session(session_id), load_lines)
    legacy = _read(fs, places.legacy(session_id), load_legacy)
    archive = _read(fs, places.archive(session_id), load_archive)
    if current is not None and legacy is not None and len(legacy.rows) > len(current.rows):
        current, legacy = legacy, current  # an interrupted migration: the one with more messages, else JSONL
    forms = [form for form in (newest, current, legacy, archive) if form is not None]
    if not forms:
        return Loaded((), (), None)
    if newest is not None and not newest.rows:
        forms.sort(key=lambda form: not form.rows)  # it is empty or unreadable
    winner, *others = forms
    findings = list(winner.findings)
    for other in others:
        note = f"the session has a second file with {len(other.rows)} messages: {other.path}"
        findings.append(Finding("second_file", 0, 0, note))
        if not other.rows:
            findings += other.findings  # why it could not be read
    return winner._replace(findings=tuple(findings))


def _read(fs: Filesystem, path: str, reader: Reader) -> Loaded | None:
    return reader(fs, path) if atomic.exists(fs, path) else None


def load_lines(fs: Filesystem, path: str) -> Loaded:
    """Read a session in JSONL."""
    with RawFile(fs, path) as file:
        return _loaded(scan(file.chunks()), path)


def load_v2(fs: Filesystem, path: str) -> Loaded:
    """Read a v2 transcript."""
    with RawFile(fs, path) as file:
        return _loaded(read_v2(file.chunks(), file.size), path)


def load_legacy(fs: Filesystem, path: str) -> Loaded:
    """Read a session in the form before JSONL; damage is a finding."""
    with storage_failures(path, "read the session"):
        data = atomic.read_all(fs, path)
    try:
        return _loaded(read_legacy(data), path)
    except ValueError as error:
        damage = Finding("not_json", 0, len(data), f"damaged legacy session: {error}")
        return Loaded(tuple(salvaged(data)), (damage,), path)


def load_archive(fs: Filesystem, path: str) -> Loaded:
    """Read a session in a gzip archive, in place."""
    damage: list[Finding] = []
    with RawFile(fs, path) as file:
        loaded = _loaded(scan(unpacked(file.chunks(), damage)), path)
    return loaded._replace(findings=(*loaded.findings, *damage))


def unpacked(chunks: Iterable[bytes], damage: list[Finding]) -> Iterator[bytes]:
    """Yield the content of concatenated gzip archives; damage is added to `damage`."""
    unpacker = None
    offset = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            unpacker = unpacker or zlib.decompressobj(_GZIP)
            try:
                yield unpacker.decompress(rest, _PIECE)
            except zlib.error as error:
                damage.append(Finding("damaged_archive", offset, 0, f"damaged archive: {error}"))
                return
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            unpacker = None if unpacker.eof else unpacker
        offset += len(chunk)
    if unpacker is not None:
        yield unpacker.flush()
        damage.append(Finding("damaged_archive", offset, 0, "damaged archive: it ends too early"))


def _loaded(items: Iterable[Item], path: str) -> Loaded:
    """Separate rows and findings."""
    rows: list[Row] = []
    findings: list[Finding] = []
    for item in items:
        if isinstance(item, Row):
            rows.append(item)
        else:
            findings.append(item)
    return Loaded(tuple(rows), tuple(findings), path)


# -- migration to JSONL


def migrate(fs: Filesystem, places: Places, session_id: str, stamp: str) -> list[str]:
    """Make JSONL the only form of a session; return the files that were saved. Does nothing without a legacy file."""
    legacy_path, path = places.legacy(session_id), places.session(session_id)
    if not atomic.exists(fs, legacy_path):
        return []
    legacy = load_legacy(fs, legacy_path)
    current = load_lines(fs, path) if atomic.exists(fs, path) else None
    unreadable = any(finding.code == "not_json" for finding in legacy.findings)
    if unreadable and (current is None or not current.rows):
        raise Damaged(
            "the legacy session cannot be read, and an append would hide it",
            path=legacy_path,
            hint="repair the file or move it elsewhere, then try again",
        )
    kept = []
    if current is None:
        if not _publish(fs, path, legacy.rows):
            return migrate(fs, places, session_id, stamp)  # another program has just migrated it: now both exist
    elif len(legacy.rows) > len(current.rows):
        kept.append(_save_original(fs, places, path, stamp))
        atomic.replace(fs, path, _lines(legacy.rows))
    kept.append(_save_original(fs, places, legacy_path, stamp))
    with storage_failures(legacy_path, "remove the legacy session"):
        fs.sync_directory(places.sessions)  # the JSONL file may come from a process that died before this
        fs.unlink(legacy_path)
        fs.sync_directory(places.sessions)
    return kept


def _publish(fs: Filesystem, path: str, rows: tuple[Row, ...]) -> bool:
    """Create the JSONL file durably; return `False` if another program has created one."""
    with storage_failures(path, "migrate the session"), atomic.prepared(fs, path, _lines(rows)) as temp:
        try:
            atomic.keep(fs, temp, path)
        except FileExistsError:
            return False
    return True


def _lines(rows: tuple[Row, ...]) -> Iterator[bytes]:
    return (row.raw + b"\n" for row in rows)


def _save_original(fs: Filesystem, places: Places, path: str, stamp: str) -> str:
    name = f"{places.originals}/{posixpath.basename(path)}.{stamp}"
    with storage_failures(path, "save the original"):
        atomic.keep(fs, path, name)
    return name


# -- attachments

EXTENSIONS = {
    "application/gzip": "gz",
    "application/json": "json",
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/xml": "xml",
    "application/zip": "zip",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "image/bmp": "bmp",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/jpeg": "jpg",
    "image/jpg": "jpg",
    "image/png": "png",
    "image/tiff": "tiff",
    "image/webp": "webp",
    "text/csv": "csv",
    "text/markdown": "md",
    "text/plain": "txt",
    "video/mp4": "mp4",
    "video/webm": "webm",
}
UNKNOWN = "bin"


def extension_of(mime_type: str) -> str:
    """Return the file extension for a MIME type; parameters after a semicolon are ignored."""
    return EXTENSIONS.get(mime_type.partition(";")[0].strip().lower(), UNKNOWN)


class Attachments:
    """The attachments of one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places) -> None:
        self._fs = fs
        self._places = places

    def save(self, session_id: str, attachment_id: str, name: str, mime_type: str, data: bytes) -> Json:
        """Store a file, and return its description for the message."""
        path = self._places.attachment(session_id, attachment_id, extension_of(mime_type))
        folder = self._places.attachments_of(session_id)
        atomic.make_folders(self._fs, folder, below_links=True)
        with storage_failures(path, "store an attachment"):
            if not atomic.is_folder(self._fs, folder):
                raise UnsafePath("not a folder", path=folder)
            if atomic.exists(self._fs, path) and atomic.read_all(self._fs, path) != data:
                raise Conflict(f"another attachment has the id {attachment_id!r}", path=path, hint="choose another id")
        atomic.replace(self._fs, path, (data,))
        return {
            "id": attachment_id,
            "name": name,
            "mimeType": mime_type,
            "path": path.removeprefix(f"{self._places.attachments}/"),
        }

    def read(self, relative: str) -> bytes:
        """Return the content of an attachment, by the path in its message."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "read an attachment"):
            try:
                if not atomic.is_folder(self._fs, path.rpartition("/")[0]):
                    raise UnsafePath("attachments behind links are not read", path=path)
                return atomic.read_all(self._fs, path)
            except FileNotFoundError as error:
                raise NotFound(f"attachment not found: {relative[:80]!r}", path=path) from error

    def size(self, relative: str) -> int | None:
        """Return the size of an attachment; `None` if it is missing."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "read the status of an attachment"):
            try:
                return self._fs.lstat(path).st_size
            except FileNotFoundError:
                return None


# -- pending statistics

_LONGEST_WRITE = STALE_NS  # an older note is stale, even if a process with its number lives
_STARTED = new_stamp()  # tells this process from an earlier one with the same number


class Note(NamedTuple):
    """A note as it was read; one that was written again has another inode or time. `writer` is empty if it is durable."""

    session_id: str
    writer: str
    path: str
    inode: int
    modified: int


class PendingStats:
    """The notes for one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places, alive: Callable[[int], bool], clock: Callable[[], int]) -> None:
        self._fs = fs
        self._places = places
        self._clock = clock
        self._alive = alive
        self._mine = f"{locks.own_pid()}-{_STARTED}-{secrets.token_hex(4)}"

    # -- writing notes

    def begin(self, session_id: str) -> None:
        """Note that a session is about to be written."""
        self._note(f"{self._places.pending_note(session_id)}.{self._mine}", session_id, durable=False)

    def end(self, session_id: str) -> None:
        """Remove that note: the index was updated."""
        atomic.remove(self._fs, f"{self._places.pending_note(session_id)}.{self._mine}")

    def mark(self, session_id: str) -> None:
        """Note, durably, that the index lacks statistics of a session."""
        self._note(self._places.pending_note(session_id), session_id, durable=True)
        self.end(session_id)

    def fail(self, session_id: str) -> None:
        """Handle a failed write: if it had started, the session must be recounted."""
        if atomic.exists(self._fs, f"{self._places.pending_note(session_id)}.{self._mine}"):
            self.mark(session_id)

    def _note(self, path: str, session_id: str, *, durable: bool) -> None:
        try:
            atomic.make_folders(self._fs, self._places.pending)
            atomic.replace(self._fs, path, (b"",), durable=durable)
        except SessileError as error:
            log.warning("cannot note that the statistics of %s may be out of date: %s", session_id, error)

    # -- reading and clearing notes

    def all(self) -> list[str]:
        """Return the sessions with pending statistics."""
        return sorted({note.session_id for note in self._notes() if self._is_pending(note)})

    def of(self, session_id: str) -> list[Note]:
        """Return the notes of one session."""
        return [note for note in self._notes() if note.session_id == session_id and self._is_pending(note)]

    def is_written_by_another(self, session_id: str) -> bool:
        """Return whether another of our writers may have stored messages that are not in the index yet."""
        notes = [note for note in self._notes() if note.session_id == session_id and note.writer != self._mine]
        return not all(self._is_pending(note) for note in notes)

    def clear(self, notes: list[Note]) -> None:
        """Remove notes, unless they were written again since they were read."""
        for note in notes:
            with storage_failures(note.path, "remove a note"):
                try:
                    status = self._fs.lstat(note.path)
                    if (status.st_ino, status.st_mtime_ns) == (note.inode, note.modified):
                        self._fs.unlink(note.path)
                except FileNotFoundError:
                    pass  # removed by another process

    def _notes(self) -> Iterator[Note]:
        pending = self._places.pending
        with storage_failures(pending, "look for pending statistics"):
            try:
                names = self._fs.names(pending)
            except FileNotFoundError:
                return
        for name in names:
            session_id, _, writer = name.partition(".")
            if not is_session_id(session_id):
                continue  # an unfinished note
            with storage_failures(f"{pending}/{name}", "read a note"):
                try:
                    status = self._fs.lstat(f"{pending}/{name}")
                except FileNotFoundError:
                    continue  # cleared since
            yield Note(session_id, writer, f"{pending}/{name}", status.st_ino, status.st_mtime_ns)

    def _is_pending(self, note: Note) -> bool:
        """Return whether no living process is going to update the index for this note."""
        if note.writer == self._mine:
            return False
        pid = note.writer.partition("-")[0]
        if not pid.isascii() or not pid.isdigit() or self._clock() - note.modified > _LONGEST_WRITE:
            return True
        if int(pid) == locks.own_pid():
            return not note.writer.startswith(f"{pid}-{_STARTED}-")
        return not self._alive(int(pid))


# -- trash

_NOTE = "manifest.json"


class Deletion(msgspec.Struct, frozen=True):
    """A deletion: the token that undoes it, the session, its row in the index, its files below MyAgents' `root`."""

    token: str
    session_id: str
    row: dict[str, Any] | None
    paths: tuple[str, ...]
    root: str | None = None


class Trash:
    """The trash for one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places, index: Index, stamp: Callable[[], str] = new_stamp) -> None:
        self._fs = fs
        self._places = places
        self._index = index
        self._stamp = stamp

    def delete(self, session_id: str) -> Deletion:
        """Move a session with its attachments to the trash."""
        row = self._index.find(session_id)
        files = self.files_of(session_id)
        if row is None and not files:
            raise SessionNotFound(f"session not found in MyAgents' folder: {session_id!r}", path=self._places.root)
        noted = None if row is None else dict(row.value)
        deletion = self.keep(session_id, files, noted)

        def clear(last: Metadata | None) -> None:
            nonlocal deletion
            if last is not None and last.value != noted:
                deletion = msgspec.structs.replace(deletion, row=dict(last.value))
                self._write_note(deletion)
            self.remove_originals(deletion, files)

        self._index.remove(session_id, clear)
        return deletion

    def keep(self, session_id: str, files: Sequence[str], row: dict[str, Any] | None) -> Deletion:
        """Give files a second name in the trash; they stay where they are."""
        names = tuple(posixpath.relpath(path, self._places.root) for path in files)
        deletion = Deletion(self._stamp(), session_id, row, names, self._places.root)
        folder = f"{self._places.trash}/{deletion.token}"
        atomic.make_folders(self._fs, folder)
        self._write_note(deletion)
        for number, path in enumerate(files):
            with storage_failures(path, "move a file to the trash"):
                atomic.keep(self._fs, path, f"{folder}/{number}")
        return deletion

    def _write_note(self, deletion: Deletion) -> None:
        atomic.replace(self._fs, self._note(deletion.token), (encode(msgspec.to_builtins(deletion)),))

    def remove_originals(self, deletion: Deletion, files: Sequence[str]) -> None:
        """Remove files from their place, if the trash has them as they are now."""
        for number, path in enumerate(files):
            with storage_failures(path, "remove a file"):
                if not atomic.exists(self._fs, path):
                    continue
                if not is_kept(self._fs, path, f"{self._places.trash}/{deletion.token}/{number}"):
                    raise LeafMoved(
                        "another program has changed the session, so it was not removed", path=path, hint="try again"
                    )
                self._fs.unlink(path)
        for folder in {posixpath.dirname(path) for path in files}:
            with storage_failures(folder, "remove a folder"):
                self._fs.sync_directory(folder)
                if posixpath.dirname(folder) == self._places.attachments and not self._fs.names(folder):
                    self._fs.rmdir(folder)

    def files_of(self, session_id: str) -> list[str]:
        """Return every file of a session."""
        places = self._places
        paths = (
            places.session(session_id),
            places.legacy(session_id),
            places.archive(session_id),
            places.transcript_v2(session_id),
            places.attachments_of(session_id),
        )
        return [path for top in paths for path, _ in files_below(self._fs, top)]

    # -- undoing

    def undo(self, token: str) -> Deletion:
        """Restore the files of a deletion, then its row in the index."""
        deletion = self._read(token)
        folder = f"{self._places.trash}/{token}"
        targets = [self._checked(deletion.session_id, name) for name in deletion.paths]
        for number, path in enumerate(targets):
            kept = f"{folder}/{number}"
            if not atomic.exists(self._fs, kept):
                continue  # already restored
            self._put_back(kept, path)
        if deletion.row is not None and self._index.find(deletion.session_id) is None:
            self._index.create(Metadata(deletion.row), PATIENT)
        with storage_failures(folder, "remove the deletion from the trash"):
            for number in range(len(targets)):
                atomic.remove(self._fs, f"{folder}/{number}")
            self._fs.unlink(f"{folder}/{_NOTE}")
            self._fs.rmdir(folder)
            self._fs.sync_directory(self._places.trash)
        return deletion

    def _put_back(self, kept: str, path: str) -> None:
        with storage_failures(path, "restore a file"):
            if atomic.exists(self._fs, path):
                if is_kept(self._fs, path, kept):
                    return  # left by an interrupted deletion or undo
                raise Conflict("another file has that name now", path=path, hint="move it elsewhere, then undo again")
            atomic.keep(self._fs, kept, path)

    def list(self) -> tuple[Deletion, ...]:
        """Return all deletions, oldest first."""
        with storage_failures(self._places.trash, "read the trash"):
            try:
                tokens = self._fs.names(self._places.trash)
            except FileNotFoundError:
                return ()
        return tuple(self._read(token) for token in tokens if atomic.exists(self._fs, self._note(token)))

    def _note(self, token: str) -> str:
        return f"{self._places.trash}/{token}/{_NOTE}"

    def _read(self, token: str) -> Deletion:
        if "/" in token or token in ("", ".", "..") or not can_be_named(token):
            raise NotFound(f"deletion not found: {token!r}")
        with storage_failures(self._note(token), "read the trash"):
            try:
                data = atomic.read_all(self._fs, self._note(token))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"deletion not found: {token!r}", hint="list the trash") from error
        try:
            return msgspec.convert(decode(data), Deletion)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Damaged("the note of the deletion cannot be read", path=self._note(token)) from error

    def _checked(self, session_id: str, name: str) -> str:
        """Return the original path of a file: in a folder of sessions, or among the attachments of this session."""
        whole = posixpath.normpath(posixpath.join(self._places.root, name))
        folders = (self._places.sessions, self._places.transcripts_v2, self._places.attachments_of(session_id))
        if not any(whole.startswith(folder + "/") for folder in folders):
            raise UnsafePath("the trash names a file that is not part of a session", path=name)
        return whole
