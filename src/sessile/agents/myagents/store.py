"""MyAgents' folder as a whole: sessions with their rows in the index, messages, statistics, deletions.

Rules: messages are stored first, and durable, before the index is touched. A busy or damaged index never delays or loses a
message: what it did not learn is noted in our folder, and the next write or `settle` counts the session again. A session that
was deleted is not brought back by an append: without a row and without a file there is nothing to append to.

A recount waits for other writers of ours. It is exact while no program of theirs writes to that session; another one puts
right whatever came between.

The session files of MyAgents: rows added at the end, and stored ones put right when their usage arrives late.

Rules: an append costs the same however long the session is. What is stored is counted by the reader itself, once, and then
caught up with what others appended: a line that cannot be read shifts nothing. Before new rows the line end is repaired. A
row that is replaced is kept in our folder first. A list that is shorter than what is stored is refused: it comes from a
memory that has forgotten something. Of a full list the last few stored messages are compared, for an answer may get its usage
after the next question was asked; one further back is put right by its id.

It knows nothing of the index.

From a session in one JSON object to JSONL, so that an interruption at any step loses nothing.

Order: the JSONL file is written whole and durable under its final name; both forms as they were are kept in our folder; only
then the old one is removed. Where both were there the one with more messages wins, and the other one is kept. Reading never
migrates: the first write does.

Reading a session of MyAgents, in whatever form it is stored. Nothing is written, migrated or touched.

A session is JSONL, the JSON object of the first versions, a gzip archive of the JSONL, or a transcript of later versions. Where
JSONL and JSON are both there, a migration was interrupted: the one with more messages counts. Wherever a session is stored
twice, a finding says so. Lines that cannot be read are findings; the rest is read.

Attachments of MyAgents' messages: files below `attachments/<session id>/`.

Every path is made from ids that were checked, so none leads out of the folder. The extension comes from a table, never from
the MIME type itself: what a browser would run is stored as something that it does not. Files are 0600.

Statistics that MyAgents' index has not learned yet: notes in our folder, so that whoever comes next can put them right.

    <ours>/pending/<id>                     could not be written: the index was busy or damaged
    <ours>/pending/<id>.<pid>-<…>           a write that is under way; if its process is dead it never came to the index

A note of the first kind is durable. One of the second costs an append next to nothing: it survives a killed process, but perhaps
not a power cut; after that a recount puts things right. While its process lives nobody else counts the session again: what it
is about to add would count twice. Notes tell what to count again, never what to add, so that one too many does no harm.

Deleted sessions of MyAgents: everything of them goes to our trash, and comes back from there.

Order: the note of what was where is durable first, then every file has a second name (or a copy, on another disk) in the trash,
and only then, with the index locked, do the files go, and the row last. Whoever is interrupted leaves a session that is still
listed, or a deletion that can be taken back. Nothing is ever removed from the trash by itself. A note can be read as one of
the store whose trash this is (`storage.trash`), which has no row to put back and leaves that to us.
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
    salvaged,
    scan,
    stored_form,
)
from sessile.agents.myagents.places import Places, new_stamp
from sessile.agents.myagents.transcript_v2 import read_v2
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

# --- reading

_GZIP = 31  # how zlib is told that a gzip header comes
_PIECE = 1 << 20


class Loaded(NamedTuple):
    """The rows of a session, what is wrong with it, and where it was read; `path` is `None` if there is no file."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    path: str | None

    @property
    def messages(self) -> list[Message]:
        """The decoded rows."""
        return [row.message for row in self.rows]


Reader = Callable[[Filesystem, str], Loaded]


def load(fs: Filesystem, places: Places, session_id: str) -> Loaded:
    """The messages of a session."""
    newest = _read(fs, places.transcript_v2(session_id), load_v2)
    current = _read(fs, places.session(session_id), load_lines)
    legacy = _read(fs, places.legacy(session_id), load_legacy)
    archive = _read(fs, places.archive(session_id), load_archive)
    if current is not None and legacy is not None and len(legacy.rows) > len(current.rows):
        current, legacy = legacy, current  # an interrupted migration: the one with more messages, of equal ones JSONL
    forms = [form for form in (newest, current, legacy, archive) if form is not None]
    if not forms:
        return Loaded((), (), None)
    if newest is not None and not newest.rows:
        forms.sort(key=lambda form: not form.rows)  # of it nothing can be read, or nothing was ever said
    winner, *others = forms
    findings = list(winner.findings)
    for other in others:
        note = f"there is a second file with {len(other.rows)} messages: {other.path}"
        findings.append(Finding("second_file", 0, 0, note))
        if not other.rows:
            findings += other.findings  # why nothing could be read of it
    return winner._replace(findings=tuple(findings))


def _read(fs: Filesystem, path: str, reader: Reader) -> Loaded | None:
    return reader(fs, path) if atomic.exists(fs, path) else None


def load_lines(fs: Filesystem, path: str) -> Loaded:
    """A session in JSONL."""
    with RawFile(fs, path) as file:
        return sorted_out(scan(file.chunks()), path)


def load_v2(fs: Filesystem, path: str) -> Loaded:
    """A transcript of a later version."""
    with RawFile(fs, path) as file:
        return sorted_out(read_v2(file.chunks(), file.size), path)


def load_legacy(fs: Filesystem, path: str) -> Loaded:
    """A session in the form before JSONL; one that cannot be read is a finding."""
    with storage_failures(path, "read the session"):
        data = atomic.read_all(fs, path)
    try:
        return sorted_out(read_legacy(data), path)
    except ValueError as error:
        damage = Finding("not_json", 0, len(data), f"a legacy session that cannot be read as a whole: {error}")
        return Loaded(tuple(salvaged(data)), (damage,), path)


def load_archive(fs: Filesystem, path: str) -> Loaded:
    """A session in a gzip archive, read in place."""
    damage: list[Finding] = []
    with RawFile(fs, path) as file:
        loaded = sorted_out(scan(unpacked(file.chunks(), damage)), path)
    return loaded._replace(findings=(*loaded.findings, *damage))


def unpacked(chunks: Iterable[bytes], damage: list[Finding]) -> Iterator[bytes]:
    """The content of gzip archives that follow each other; where that is not whole, `damage` says so."""
    unpacker = None
    offset = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            unpacker = unpacker or zlib.decompressobj(_GZIP)
            try:
                yield unpacker.decompress(rest, _PIECE)
            except zlib.error as error:
                damage.append(Finding("damaged_archive", offset, 0, f"the archive is damaged: {error}"))
                return
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            unpacker = None if unpacker.eof else unpacker
        offset += len(chunk)
    if unpacker is not None:
        yield unpacker.flush()
        damage.append(Finding("damaged_archive", offset, 0, "the archive ends too early"))


def sorted_out(items: Iterable[Item], path: str) -> Loaded:
    """Rows and findings apart."""
    rows: list[Row] = []
    findings: list[Finding] = []
    for item in items:
        if isinstance(item, Row):
            rows.append(item)
        else:
            findings.append(item)
    return Loaded(tuple(rows), tuple(findings), path)


# --- migration


def migrate(fs: Filesystem, places: Places, session_id: str, stamp: str) -> list[str]:
    """Make JSONL the only form of a session; gives the files that were kept. Without a legacy file nothing happens."""
    legacy_path, path = places.legacy(session_id), places.session(session_id)
    if not atomic.exists(fs, legacy_path):
        return []
    legacy = load_legacy(fs, legacy_path)
    current = load_lines(fs, path) if atomic.exists(fs, path) else None
    unreadable = any(finding.code == "not_json" for finding in legacy.findings)
    if unreadable and (current is None or not current.rows):
        raise Damaged(
            "the legacy session cannot be read; an append would hide what is in it",
            path=legacy_path,
            hint="repair the file or move it away, then try again",
        )
    kept = []
    if current is None:
        if not _published(fs, path, legacy.rows):
            return migrate(fs, places, session_id, stamp)  # another program has just done it: now both are there
    elif len(legacy.rows) > len(current.rows):
        kept.append(_keep(fs, places, path, stamp))
        atomic.replace(fs, path, _lines(legacy.rows))
    kept.append(_keep(fs, places, legacy_path, stamp))
    with storage_failures(legacy_path, "remove the legacy session"):
        fs.sync_directory(places.sessions)  # the JSONL file may be the work of one who died before this
        fs.unlink(legacy_path)
        fs.sync_directory(places.sessions)
    return kept


def _published(fs: Filesystem, path: str, rows: tuple[Row, ...]) -> bool:
    """Make the JSONL file, whole and durable; says `False` if another program has made one, which may hold more by now."""
    temp = atomic.temp_beside(path)
    with storage_failures(path, "migrate the session"):
        atomic.write_new(fs, temp, _lines(rows))
        try:
            atomic.keep(fs, temp, path)
        except FileExistsError:
            return False
        finally:
            atomic.remove(fs, temp)
    return True


def _lines(rows: tuple[Row, ...]) -> Iterator[bytes]:
    return (row.raw + b"\n" for row in rows)


def _keep(fs: Filesystem, places: Places, path: str, stamp: str) -> str:
    name = f"{places.originals}/{posixpath.basename(path)}.{stamp}"
    with storage_failures(path, "keep the original"):
        atomic.keep(fs, path, name)
    return name


# --- sessions

_COMPARED = 8  # stored messages that a full list may have news of


Choose = Callable[[Sequence[Row]], Sequence[Json]]
"""Says, with the lock of the file held, which messages are to be stored; is given the last rows that are."""


class _Counted(NamedTuple):
    """How many messages a file holds, and what tells whether that is still so."""

    inode: int
    device: int
    size: int
    whole: bool  # ends with a newline
    settled: bool  # its name is durable
    messages: int
    latest: tuple[Row, ...]  # the last ones, at most as many as are compared

    @property
    def last(self) -> Row | None:
        return self.latest[-1] if self.latest else None


class Written(NamedTuple):
    """What a save did: how many rows are new, what they add to the statistics, the files that keep what was replaced."""

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
        """`guard` gives what is to be held while the file of a session is replaced; `announce` is told before any change."""
        self._fs = fs
        self._places = places
        self._guard = guard
        self._stamp = stamp
        self._announce = announce
        self._cache: dict[str, _Counted] = {}

    def exists(self, session_id: str) -> bool:
        """Whether the session has a file of any form."""
        paths = (self._places.session, self._places.legacy, self._places.archive, self._places.transcript_v2)
        return any(atomic.exists(self._fs, path(session_id)) for path in paths)

    def count(self, session_id: str) -> int:
        """How many messages the reader reads, in whatever form they are stored."""
        places = self._places
        others = (places.legacy, places.archive, places.transcript_v2)
        if any(atomic.exists(self._fs, path(session_id)) for path in others):
            return len(load(self._fs, places, session_id).rows)
        return self._counted(session_id).messages

    def forget(self, session_id: str) -> None:
        """Count anew the next time."""
        self._cache.pop(session_id, None)

    # -- writing

    def save(self, session_id: str, messages: Sequence[Given]) -> Written:
        """Store what is new in the full list of a session's messages; the last stored ones may have changed."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if len(messages) < known.messages:
            raise Conflict(
                f"the list has {len(messages)} messages, the file {known.messages}: nothing was written",
                path=self._places.session(session_id),
                hint="load the session again, then add to that",
            )
        late = self._late(session_id, known, messages)
        change = Tally()
        for row, value in late:
            change = change.plus(self._replace(session_id, row, value))
        written = self._append(session_id, messages[known.messages :])
        kept = [*kept, self._places.replaced_rows(session_id)] if late else kept
        return written._replace(updated=bool(late), tally=written.tally.plus(change), kept=tuple(kept))

    def _late(self, session_id: str, known: _Counted, messages: Sequence[Given]) -> list[tuple[Row, Json]]:
        """The stored rows that the list has news of, with their new values; the last first, so that places stay right."""
        news = []
        given = messages[known.messages - len(known.latest) : known.messages]
        for row, message in zip(known.latest, given, strict=True):
            stored, listed = row.message, Message(stored_form(message))
            if stored.id != listed.id:
                raise LeafMoved(
                    f"the file has message {stored.id!r} where the list has {listed.id!r}: nothing was written",
                    path=self._places.session(session_id),
                    hint="load the session again, then add to that",
                )
            members = late_members(stored, message)
            if members:
                news.append((row, {**stored.value, **members}))
        return news[::-1]

    def append(self, session_id: str, messages: Sequence[Given] | Choose) -> Written:
        """Store new messages."""
        kept = self.make_writable(session_id)
        return self._append(session_id, messages)._replace(kept=tuple(kept))

    def update_last(self, session_id: str, members: Mapping[str, Any]) -> Written:
        """Put members of the last message right: usage, the number of tools, how long it took."""
        kept = self.make_writable(session_id)
        known = self._counted(session_id)
        if known.last is None:
            raise Conflict("the session has no message yet", path=self._places.session(session_id))
        return self._put_right(session_id, known.last, members, kept)

    def update(self, session_id: str, message_id: str, members: Mapping[str, Any]) -> Written:
        """Put members of any message right; of several with that id the last."""
        kept = self.make_writable(session_id)
        path = self._places.session(session_id)
        rows = load_lines(self._fs, path).rows if atomic.exists(self._fs, path) else ()
        for row in reversed(rows):
            if row.message.id == message_id:
                return self._put_right(session_id, row, members, kept)
        raise NotFound(f"the session has no message {message_id[:80]!r}", path=path)

    def _put_right(self, session_id: str, row: Row, members: Mapping[str, Any], kept: list[str]) -> Written:
        """A member that is `None` is taken out."""
        count = self._counted(session_id).messages
        gone = {name for name, item in members.items() if item is None}
        value = {name: item for name, item in row.message.value.items() if name not in gone} | stored_form(members)
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
        """Keep the count, if nobody else has written at the same time."""
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
        """Put another row in place of one; gives what that changes in the statistics."""
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
        """Refuse forms that are only read, migrate the legacy one; gives the files that were kept."""
        if atomic.exists(self._fs, self._places.transcript_v2(session_id)):
            raise Unsupported(
                "transcripts of this version are only read",
                path=self._places.transcript_v2(session_id),
                hint="continue it as a session of ours: sessile fork",
            )
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path) and atomic.exists(self._fs, self._places.archive(session_id)):
            raise Unsupported(
                "the session is archived",
                path=self._places.archive(session_id),
                hint="take it out of the archive first",
            )
        if not atomic.exists(self._fs, self._places.legacy(session_id)):
            return []
        self.forget(session_id)
        with self._guard(session_id):
            return migrate(self._fs, self._places, session_id, self._stamp())

    # -- counting

    def _counted(self, session_id: str) -> _Counted:
        """How much is stored; only what is new since the last time is read."""
        path = self._places.session(session_id)
        if not atomic.exists(self._fs, path):
            self.forget(session_id)
            return _Counted(0, 0, 0, True, False, 0, ())
        with RawFile(self._fs, path) as file:
            known = self._cache.get(session_id)
            start, count, settled = 0, 0, False
            latest: deque[Row] = deque(maxlen=_COMPARED)
            if known is not None and _still_begins_with(file, known):
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


def _still_begins_with(file: RawFile, known: _Counted) -> bool:
    """Whether a file is the one that was counted, perhaps with more behind it."""
    if (file.stat.st_ino, file.stat.st_dev) != (known.inode, known.device) or not known.whole:
        return False
    if file.size < known.size:
        return False
    return known.last is None or file.peek(known.last.offset, len(known.last.raw)) == known.last.raw


# --- attachments

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
    """The extension of a file of some type; parameters behind a semicolon do not count."""
    return EXTENSIONS.get(mime_type.partition(";")[0].strip().lower(), UNKNOWN)


class Attachments:
    """The attachments of one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places) -> None:
        self._fs = fs
        self._places = places

    def save(self, session_id: str, attachment_id: str, name: str, mime_type: str, data: bytes) -> Json:
        """Store a file; gives what the message is to say of it."""
        path = self._places.attachment(session_id, attachment_id, extension_of(mime_type))
        folder = self._places.attachments_of(session_id)
        atomic.make_folders(self._fs, folder, below_links=True)
        with storage_failures(path, "store an attachment"):
            if not atomic.is_folder(self._fs, folder):
                raise UnsafePath("a folder is needed where a file or a link is", path=folder)
            if atomic.exists(self._fs, path) and atomic.read_all(self._fs, path) != data:
                raise Conflict("another attachment has that id", path=path, hint="choose another id")
        atomic.replace(self._fs, path, (data,))
        return {
            "id": attachment_id,
            "name": name,
            "mimeType": mime_type,
            "path": path.removeprefix(f"{self._places.attachments}/"),
        }

    def read(self, relative: str) -> bytes:
        """The content of an attachment, by the path that its message names."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "read an attachment"):
            try:
                if not atomic.is_folder(self._fs, path.rpartition("/")[0]):
                    raise UnsafePath("attachments are not read through links", path=path)
                return atomic.read_all(self._fs, path)
            except FileNotFoundError as error:
                raise NotFound("there is no such attachment", path=path) from error

    def size(self, relative: str) -> int | None:
        """How large an attachment is; `None` if it is missing."""
        path = self._places.attachment_at(relative)
        with storage_failures(path, "look at an attachment"):
            try:
                return self._fs.lstat(path).st_size
            except FileNotFoundError:
                return None


# --- debts

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
        self._mine = f"{locks.own_pid()}-{_STARTED}-{secrets.token_hex(4)}"

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
        if int(pid) == locks.own_pid():
            return not note.writer.startswith(f"{pid}-{_STARTED}-")
        return not self._alive(int(pid))


# --- trash

_NOTE = "manifest.json"


class Deletion(msgspec.Struct, frozen=True):
    """One deletion: the token that undoes it, the session, its row in the index, the files below MyAgents' folder `root`."""

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
            raise SessionNotFound(f"there is no session {session_id} in MyAgents' folder", path=self._places.root)
        noted = None if row is None else dict(row.value)
        deletion = self.keep(session_id, files, noted)

        def clear(last: Metadata | None) -> None:
            nonlocal deletion
            if last is not None and last.value != noted:
                deletion = msgspec.structs.replace(deletion, row=dict(last.value))
                self._write_note(deletion)
            self.let_go(deletion, files)

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

    def let_go(self, deletion: Deletion, files: Sequence[str]) -> None:
        """Remove files from where they were, if the trash has them as they are now."""
        for number, path in enumerate(files):
            with storage_failures(path, "remove a file"):
                if not atomic.exists(self._fs, path):
                    continue
                if not is_kept(self._fs, path, f"{self._places.trash}/{deletion.token}/{number}"):
                    raise LeafMoved("another program wrote into the session; it stays", path=path, hint="try again")
                self._fs.unlink(path)
        for folder in {posixpath.dirname(path) for path in files}:
            with storage_failures(folder, "remove a folder"):
                self._fs.sync_directory(folder)
                if posixpath.dirname(folder) == self._places.attachments and not self._fs.names(folder):
                    self._fs.rmdir(folder)

    def files_of(self, session_id: str) -> list[str]:
        """Every file of a session."""
        places = self._places
        paths = (
            places.session(session_id),
            places.legacy(session_id),
            places.archive(session_id),
            places.transcript_v2(session_id),
            places.attachments_of(session_id),
        )
        return [path for top in paths for path, _ in files_below(self._fs, top)]

    # -- taking back

    def undo(self, token: str) -> Deletion:
        """Put the files of a deletion back where they were, then its row into the index."""
        deletion = self._read(token)
        folder = f"{self._places.trash}/{token}"
        targets = [self._checked(deletion.session_id, name) for name in deletion.paths]
        for number, path in enumerate(targets):
            kept = f"{folder}/{number}"
            if not atomic.exists(self._fs, kept):
                continue  # is back already
            self._put_back(kept, path)
        if deletion.row is not None and self._index.find(deletion.session_id) is None:
            self._index.create(Metadata(deletion.row), PATIENT)
        with storage_failures(folder, "empty the trash of it"):
            for number in range(len(targets)):
                atomic.remove(self._fs, f"{folder}/{number}")
            self._fs.unlink(f"{folder}/{_NOTE}")
            self._fs.rmdir(folder)
            self._fs.sync_directory(self._places.trash)
        return deletion

    def _put_back(self, kept: str, path: str) -> None:
        with storage_failures(path, "put a file back"):
            if atomic.exists(self._fs, path):
                if is_kept(self._fs, path, kept):
                    return  # an interrupted deletion or undo has left it there
                raise Conflict("something else has that name now", path=path, hint="move it away, then undo again")
            atomic.keep(self._fs, kept, path)

    def list(self) -> tuple[Deletion, ...]:
        """All deletions, oldest first."""
        with storage_failures(self._places.trash, "look into the trash"):
            try:
                tokens = self._fs.names(self._places.trash)
            except FileNotFoundError:
                return ()
        return tuple(self._read(token) for token in tokens if atomic.exists(self._fs, self._note(token)))

    def _note(self, token: str) -> str:
        return f"{self._places.trash}/{token}/{_NOTE}"

    def _read(self, token: str) -> Deletion:
        if "/" in token or token in ("", ".", "..") or not can_be_named(token):
            raise NotFound(f"there is no deletion {token!r}")
        with storage_failures(self._note(token), "look into the trash"):
            try:
                data = atomic.read_all(self._fs, self._note(token))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"there is no deletion {token!r}", hint="see what is in the trash") from error
        try:
            return msgspec.convert(decode(data), Deletion)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Damaged("the note of what was deleted cannot be read", path=self._note(token)) from error

    def _checked(self, session_id: str, name: str) -> str:
        """Where a file was: in a folder of sessions, or among the attachments of that one."""
        whole = posixpath.normpath(posixpath.join(self._places.root, name))
        folders = (self._places.sessions, self._places.transcripts_v2, self._places.attachments_of(session_id))
        if not any(whole.startswith(folder + "/") for folder in folders):
            raise UnsafePath("the trash names a file that is no part of a session", path=name)
        return whole


# --- store


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
        alive: Callable[[int], bool] = locks.is_alive,
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
        return types.recount(self.load(session_id).messages, row.stats if row else None)

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
        counted = types.recount(self.load(session_id).messages, row.stats)
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
            return (counted or row.changed(stats=types.add(row.stats, written.tally))).touched(now)

        try:
            self.index.update(session_id, change)
        except SessionNotFound:
            if self.get(session_id) is not None:
                raise
            return  # a file without a row may be appended to, and there is nothing to count in
        if paid:
            self.debts.pay(notes)
