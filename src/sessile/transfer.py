"""Sessions from one format to another and from one store to another, without losing anything.

    import_session(store, path)       copy another agent's session into the store, with its bytes
    placed(session, "claude", …)      a clean copy of the conversation, as that agent's own program resumes it
    converted(session, "claude", {})  the same as a file, in pieces
    sync(source, target)              copy all sessions of one store to another

Rules:

- An import stores the source's bytes once, as a blob, and every entry has the position of its row in them. Importing again
  adds only what is new.
- A placed copy holds the live conversation with whole texts and images, and nothing of ours. The same conversation gives the same
  copy, so placing it twice makes one file. An existing file is never overwritten.
- Converting an imported session back returns the imported bytes, then rows for what was appended since. With `whole`, a session
  is converted with all branches: what has no counterpart in the other format is kept inside the rows, so that importing the
  file restores it, and is counted in the report.
- A sync never deletes or changes anything in the target: a missing session is copied byte for byte, an existing one gets the
  entries that it lacks. If both copies have grown, syncing both ways gives each the entries of the other, as branches. An
  entry that was rewritten in one copy is reported as a conflict, and both copies stay as they are.
- A session in memory has its large content in its lines; a sync to another store moves it to blobs.
- Blobs and artifacts are copied before the lines that refer to them, and entries are compared by id, so an interrupted sync
  continues with the next one. Drafts, trash and caches are not copied.
- The source is only read.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Literal, NamedTuple

import msgspec

from sessile.agents.base import Placed
from sessile.agents.claude.rows import title_row
from sessile.agents.claude.translation import Rendering, uuid_for
from sessile.agents.myagents import translation as myagents
from sessile.agents.reader import ForeignReader, open_foreign
from sessile.agents.registry import AGENTS
from sessile.core import entries as make
from sessile.core import large
from sessile.core.codec import decode, encode, encode_plain, plain
from sessile.core.context import LAST_ENTRY
from sessile.core.conversation import Conversation
from sessile.core.entries import Entry, Payload
from sessile.core.ids import derived_entry_id, sha256
from sessile.core.kinds import IMPORT_MARKER, LEAF_MARKER, MARKER, MARKERS, TITLE
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.discovery import describe
from sessile.errors import Conflict, NotFound, SessileError, SessionExists, StorageFull, Unsupported, storage_failures
from sessile.fork import copy_folder
from sessile.session import Session, SessionView
from sessile.storage import atomic, session_bytes
from sessile.storage.base import NATIVE, Filesystem, News, ReadableOwnJournal, Row
from sessile.storage.layout import JOURNAL, artifacts_of, file_name, stem_of
from sessile.storage.session_bytes import RawFile
from sessile.store import Store

SOURCE = "source"  # the member with the origin of a session or an entry
_IMPORT_BATCH = 1000  # entries that an import appends at once
_SYNC_BATCH = 256  # entries that a sync appends at once
_TAIL = 4096  # bytes at the end of two files of the same size and time that are compared to tell whether they are equal

Report = dict[str, int]
"""Numbers of entries that have no counterpart in another format, by kind."""

NOTHING_SET: Mapping[str, str] = {}

State = Literal["new", "grown", "same", "failed"]


# -- importing


class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        id: The id of the session.
        path: The path of the imported session in the store.
        format: The format of the source, such as "claude".
        rows: The number of entries of the source.
        added: How many of them were new.
        unreadable: Descriptions of what could not be read.
    """

    id: str
    path: str
    format: str
    rows: int
    added: int
    unreadable: tuple[str, ...]


def import_session(store: Store, path: str) -> Imported:
    """Copy another agent's session into a store. Importing it again adds what is new.

    The copy has the modification time of the original; artifacts are copied, too.

    Args:
        store: The store to import into.
        path: The path of the other agent's file.

    Returns:
        The path of the copy, and how much was added.

    Raises:
        Conflict: The store has a session with this id from another source.
        NotASession: The file is not a session of a known agent.
        Unsupported: The file is a native session already.

    Example:
        ```python
        done = import_session(Store("~/.sessile"), "/home/me/.claude/projects/-work-app/3f6c….jsonl")
        print(done.path, done.added)
        ```
    """
    if describe(store.fs, path) is not None:
        raise Unsupported("this session is native already", path=path, hint="run `sessile fork` to copy it")
    with storage_failures(path, "read the session"):
        modified = atomic.status_of(store.fs, path).st_mtime_ns
    done, told = _import(store, path)
    if done.added:
        copy_folder(store.fs, artifacts_of(path), artifacts_of(done.path))
        atomic.set_modified(store.fs, done.path, modified if told is None else told * 1_000_000)
    return done


def _import(store: Store, path: str) -> tuple[Imported, int | None]:
    """Import a session; return also when it was last changed, in milliseconds, if it says so itself."""
    with closing(open_foreign(store.fs, path)) as reader:
        changed = parse_timestamp(decode(reader.header()).get("modified"))
        known = store.find(reader.session_id)
        with store.open(known) if known is not None else _begin(store, reader, path) as session:
            if _source(session).get("path") != path:
                raise Conflict(
                    "a session with this id was imported from another file",
                    path=session.path,
                    hint="fork the file instead",
                )
            before, new = _compared(session, reader.entries())
            names: list[str] = []
            lines = (_line(row, entry, names) for row, entry in new)
            added = session._adopt(iter(lambda: list(islice(lines, _IMPORT_BATCH)), []))
            source = SessionView(reader, store.blobs)
            if added:
                _keep(store, session, source, reader)
                # Asking the session for its title would index what was just written.
                title = session.title if known is not None else names[-1] if names else session.header.get("title")
                if source.title and source.title != title:  # it was where listings do not look
                    session.set_session_name(source.title)
            unreadable = tuple(f"at byte {finding.offset:,}: {finding.detail}" for finding in source.findings)
            done = Imported(session.id, session.path, reader.format.name, before + added, added, unreadable)
            return done, changed


def _compared(session: Session, entries: Iterator[tuple[Row, Payload]]) -> tuple[int, Iterator[tuple[Row, Payload]]]:
    """How many entries of the source the session has already, and the entries that it lacks.

    They are compared one by one, because a power cut may have lost a line in the middle of an import. All entries from there
    on are imported again; of two entries with one id the later one counts.
    """
    count, awaited = 0, next(entries, None)
    for line in session.iter_lines():
        if awaited is None:
            break
        if line.id == awaited[1]["id"] and _origin_of(line).is_imported:
            count, awaited = count + 1, next(entries, None)
    return count, entries if awaited is None else chain((awaited,), entries)


def _begin(store: Store, reader: ForeignReader, path: str) -> Session:
    """A new session without entries. Its title is the one that listings show for the source."""
    source: Payload = decode(reader.header())
    created = source.get("timestamp")
    at = created if isinstance(created, str) and parse_timestamp(created) is not None else iso_timestamp(store.now())
    cwd = source.get("cwd") or "/"
    glimpse = reader.glimpse()
    title = source.get("title") or (glimpse.title if glimpse is not None else None) or None
    header = make.header(reader.session_id, at, cwd, title=title, source={"format": reader.format.name, "path": path})
    return store.begin(f"{store.layout.folder(cwd)}/{file_name(at, reader.session_id)}", [encode(header)])


def _keep(store: Store, session: Session, source: SessionView, reader: ForeignReader) -> None:
    """Store the bytes of the source as a blob, append a note that refers to it, and set the leaf of the source."""
    kept = store.blobs.put_pieces(reader.pieces)
    note = make.custom(IMPORT_MARKER, {"format": reader.format.name, "blob": kept.ref})
    note_id = derived_entry_id(session.id, kept.hash, 0)
    session._adopt_last(make.with_base(note, note_id, source.leaf_id, iso_timestamp(store.now())), source.leaf_id)


def _line(row: Row, entry: Payload, names: list[str]) -> bytes:
    """An entry as a native line; a title that it sets is added to `names`."""
    if row.flags & TITLE and not row.flags & MARKER:
        names.append(str(entry.get("name") if entry["type"] == "session_info" else entry.get("title")))
    if row.flags & MARKER and entry["type"] == "session_info":
        # It is beside the conversation: as an entry it would start a branch.
        base = {name: entry.get(name) for name in ("id", "parentId", "timestamp")}
        entry = {"type": "custom", **base, "customType": LEAF_MARKER, "data": {"name": entry.get("name")}}
    entry[SOURCE] = row.position
    return encode_plain(entry)


def _source(session: SessionView) -> Payload:
    """The origin in the session's header; empty if there is none."""
    source = session.header.get(SOURCE)
    return source if isinstance(source, dict) else {}


# -- converting


def converted(
    session: SessionView, to: str, report: Report, *, at: str | None = None, whole: bool = False
) -> Iterator[bytes]:
    """Convert a session to a file of another agent, which the agent's own program resumes.

    The file holds the live conversation, as `sessile resume --in` places it. A session that was imported from this format starts
    with the imported bytes instead, and "native" and "myagents" hold all entries.

    Args:
        session: The session to convert.
        to: The format: "claude", "codex", "pi", "omp", "xcsh", "myagents" or "native".
        report: Receives the numbers of entries that have no counterpart in that format, by kind.
        at: The entry at which the conversation ends; the leaf if `None`.
        whole: Convert all branches and entries, with extra members from which an import restores them ("claude" only).

    Returns:
        The bytes of the file, in pieces.

    Raises:
        Unsupported: There is no such conversion to this format.

    Example:
        ```python
        report: dict[str, int] = {}
        with open("session.jsonl", "wb") as file:
            file.writelines(converted(session, "claude", report))
        ```
    """
    if to not in CONVERSIONS:
        raise Unsupported(f"cannot convert to {to!r}", hint=f"use one of {', '.join(CONVERSIONS)}")
    if at is None and session.format == to and (pieces := session._file_pieces()) is not None:
        return pieces  # nothing to convert
    tree = _TREES.get(to)
    agent = AGENTS.get(to)
    if agent is None or not agent.places:
        if tree is None or at is not None:
            hint = "fork the session at this entry, then convert the fork"
            raise Unsupported(f"cannot convert a session from an entry on to {to!r}", hint=hint)
        return tree(session, report)
    if at is None and (whole or _imported(session, to) is not None):
        if tree is None:
            raise Unsupported(f"cannot convert all branches to {to!r}", hint='use "native", which keeps every entry')
        return tree(session, report)
    return iter(placed(session, to, at=at).lines)


def placed(
    session: SessionView,
    to: str,
    *,
    home: str = "",
    environ: Mapping[str, str] = NOTHING_SET,
    at: str | None = None,
    cwd: str | None = None,
) -> Placed:
    """Return the live conversation of a session as another agent's own program resumes it. Nothing is written.

    Args:
        session: The session.
        to: The name of the agent.
        home: The user's home folder, where the agent looks.
        environ: The environment variables.
        at: The entry at which the conversation ends; the leaf if `None`.
        cwd: The folder to go on in; that of the session if `None`.

    Raises:
        Unsupported: No session can be placed for this agent, or the conversation is empty.
    """
    agent = AGENTS.get(to)
    if agent is None or not agent.places:
        raise Unsupported(f"cannot place a session for {to!r}", hint=f"use one of {', '.join(PLACES)}")
    context = session.context(LAST_ENTRY if at is None else at)
    messages = context.messages
    if not messages:
        hint = "choose an entry with messages before it, or start the agent without a session"
        raise Unsupported("there is nothing to resume: the conversation is empty", path=session.path, hint=hint)
    created = parse_timestamp(session.header.get("timestamp")) or 0
    origin = origin_of(session)
    source = None if origin is None else AGENTS.get(origin)
    surroundings = () if source is None else source.surroundings
    conversation = Conversation(
        session.id, origin, cwd or session.cwd or "/", session.title, created, messages, surroundings
    )
    return agent.place(conversation, home, environ)


def write_placed(fs: Filesystem, copy: Placed) -> bool:
    """Write a placed session where its agent looks; return whether it was written rather than there already.

    The folders are for this user only, the file appears whole or not at all, and an existing file is never changed: it is the
    same conversation, which the agent may have continued.
    """
    if atomic.exists(fs, copy.path):
        return False
    atomic.make_folders(fs, posixpath.dirname(copy.path), below_links=True)
    with storage_failures(copy.path, "place the session"), atomic.prepared(fs, copy.path, copy.lines) as made:
        try:
            fs.link(made, copy.path)
        except FileExistsError:
            return False
        fs.sync_directory(posixpath.dirname(copy.path))
    return True


def origin_of(session: SessionView) -> str | None:
    """Return the agent whose format a session has, or from which it was imported; `None` for our own sessions."""
    if session.format != NATIVE:
        return session.format
    name = _source(session).get("format")
    return name if isinstance(name, str) else None


def original_of(session: SessionView) -> str | None:
    """Return the file that a session was imported from, if the conversation has not been continued here since."""
    leaf = None if session.leaf_id is None else session.get_entry(session.leaf_id)
    path = _source(session).get("path")
    return path if isinstance(path, str) and leaf is not None and _origin_of(leaf).is_imported else None


def _as_it_was(session: SessionView, blob: str | None) -> Iterator[bytes]:
    """The bytes that a session was imported from."""
    return session.blob_pieces(blob) if blob is not None else iter(())


def _followed(pieces: Iterable[bytes], rows: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes followed by rows; the first row starts on a new line."""
    last = b"\n"
    for piece in pieces:
        yield piece
        last = piece[-1:] or last
    for row in rows:
        yield row if last == b"\n" else b"\n" + row
        last = b"\n"


def _to_claude(session: SessionView, report: Report) -> Iterator[bytes]:
    blob = _imported(session, "claude")
    return _followed(_as_it_was(session, blob), _claude_rows(session, blob, report))


def _claude_rows(session: SessionView, blob: str | None, report: Report) -> Iterator[bytes]:
    rendering = Rendering(session.id, session.cwd, lambda entry_id: _uuid(session, entry_id))
    for entry in session.iter_lines():
        if not _is_there(entry, blob):
            for row in rendering.rows(_whole(session, entry)):
                yield encode_plain(row) + b"\n"
    if blob is None and session.title and session.title.strip():
        # Claude Code looks for title rows near the end of a file.
        yield encode_plain(title_row(session.id, session.title)) + b"\n"
    report.update(rendering.counts)


def _imported(session: SessionView, name: str) -> str | None:
    """The hash of the bytes that the session was imported from; `None` if it was not imported from this format."""
    if _source(session).get("format") != name:
        return None
    notes = deque((entry for entry in session.iter_lines() if _origin_of(entry).customType == IMPORT_MARKER), maxlen=1)
    return str(notes[0].stored["data"]["blob"]).rpartition(":")[2] if notes else None


def _whole(session: SessionView, entry: Entry) -> Payload:
    """An entry with its full texts and images. Markers and entries of other agents' files are complete already."""
    complete = entry.stored.get("customType") in MARKERS or session.format != NATIVE
    return entry.stored if complete else entry.body


class _Origin(msgspec.Struct, gc=False):
    """The origin of an entry, decoded without the rest of it."""

    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    customType: str | None = None

    @property
    def is_imported(self) -> bool:
        """Whether the entry was imported."""
        return self.source is not msgspec.UNSET


_decode_origin = msgspec.json.Decoder(_Origin).decode


def _origin_of(entry: Entry) -> _Origin:
    try:
        return _decode_origin(entry.raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # a member has an unexpected type
        custom = entry.stored.get("customType")
        source = msgspec.Raw() if SOURCE in entry.stored else msgspec.UNSET
        return _Origin(source, custom if isinstance(custom, str) else None)


def _is_there(entry: Entry, blob: str | None) -> bool:
    """Whether an entry is part of the imported bytes, or a marker that refers to them."""
    if blob is None:
        return False
    origin = _origin_of(entry)
    return origin.is_imported or origin.customType in MARKERS


def _uuid(session: SessionView, entry_id: str) -> str:
    """The uuid of an entry's row: the original one if it was imported."""
    entry = session.get_entry(entry_id)
    if entry is None or SOURCE not in entry.stored:
        return uuid_for(session.id, entry_id)
    return entry_id.partition("/")[0]  # several results in one row have numbered ids


def _to_myagents(session: SessionView, report: Report) -> Iterator[bytes]:
    blob = _imported(session, "myagents")
    count = myagents.MessageNumbers()
    return _followed(count.watch(_as_it_was(session, blob)), _myagents_rows(session, blob, count, report))


def _myagents_rows(
    session: SessionView, blob: str | None, count: myagents.MessageNumbers, report: Report
) -> Iterator[bytes]:
    path = {entry.id for entry in session.iter_branch()}
    rendering = myagents.Rendering(path.__contains__, count.last)
    entries = (_whole(session, entry) for entry in session.iter_lines() if not _is_there(entry, blob))
    has_messages = blob is not None
    for row in rendering.rows(entries):
        yield row + b"\n"
        has_messages = True
    if not has_messages:
        raise Unsupported(
            "MyAgents does not support sessions without messages", path=session.path, hint="use --to native"
        )
    report.update(rendering.counts)


def _to_native(session: SessionView, report: Report) -> Iterator[bytes]:
    yield session._header_line() + b"\n"
    for line in session._iter_raw():
        yield line + b"\n"


_TREES: dict[str, Callable[[SessionView, Report], Iterator[bytes]]] = {
    "claude": _to_claude,
    "myagents": _to_myagents,
    "native": _to_native,
}

PLACES = tuple(agent.name for agent in AGENTS.loaded if agent.places)
"""The agents that a conversation can be placed for."""

CONVERSIONS = tuple(sorted({*_TREES, *PLACES}))
"""The formats that a session can be converted to."""


# -- syncing


class Synced(NamedTuple):
    """The result of syncing one session.

    Attributes:
        source: The path of the session in the source.
        path: Its path in the target.
        state: "new" (copied), "grown" (got entries), "same" or "failed".
        entries: How many entries were added.
        bytes: How many bytes of lines were added.
        blobs: How many blobs were copied.
        files: How many artifacts were copied.
        error: Why it failed.
    """

    source: str
    path: str
    state: State
    entries: int = 0
    bytes: int = 0
    blobs: int = 0
    files: int = 0
    error: SessileError | None = None


class SyncProgress(NamedTuple):
    """How many sessions are done, of how many."""

    done: int
    total: int


def sync(
    source: Store, target: Store, *, preview: bool = False, progress: Callable[[SyncProgress], None] | None = None
) -> Iterator[Synced]:
    """Copy every session of a store to another, or add what the copy lacks.

    A session that fails does not stop the others.

    Args:
        source: The store to read.
        target: The store to write.
        preview: Report what would be done, and write nothing.
        progress: Called after each session.

    Yields:
        The result of each session.

    Raises:
        StorageFull: The disk of the target is full.

    Example:
        ```python
        for done in sync(Store("~/.sessile"), Store("postgresql://me@db/sessions")):
            print(done.state, done.path)
        ```
    """
    found = [
        path for path, linked in session_bytes.journals(source.fs, source.layout.sessions) if path.endswith(JOURNAL)
    ]
    copies = (path for path, _ in session_bytes.journals(target.fs, target.layout.sessions))
    there = {stem_of(path): path for path in copies if path.endswith(JOURNAL)}
    for number, path in enumerate(found):
        wanted = target.layout.sessions + path[len(source.layout.sessions) :]
        work = _Sync(source, target, path, there.get(stem_of(path), wanted), preview)
        try:
            done = work.run()
        except StorageFull:
            raise
        except NotFound:
            continue  # deleted in the meantime
        except SessileError as error:
            done = Synced(path, work.path, "failed", error=error)
        yield done
        if progress is not None:
            progress(SyncProgress(number + 1, len(found)))
    pinned = source.pins.names()
    if pinned and not preview:
        target.pins.add(*pinned)


class _Sync:
    """The sync of one session."""

    def __init__(self, source: Store, target: Store, original: str, path: str, preview: bool) -> None:
        self._source = source
        self._target = target
        self._original = original
        self.path = path
        self._preview = preview
        self._shrinks = source.is_memory and not target.is_memory  # its lines have everything in them

    def run(self) -> Synced:
        if not atomic.exists(self._target.fs, self.path):
            return self._copied()
        if self._is_same():
            return Synced(self._original, self.path, "same", files=self._copy_artifacts())
        return self._merged()

    def _copied(self) -> Synced:
        """Copy a session that the target does not have."""
        with RawFile(self._source.fs, self._original) as file:
            if self._preview:
                return Synced(self._original, self.path, "new", bytes=file.size)
            blobs, files = self._copy_blobs(), self._copy_artifacts()
            lines = b"".join(file.chunks()).split(b"\n") if self._shrinks else []
            pieces = (self._line(line, _put_in(self._target)) + b"\n" for line in lines if line)
            try:
                self._target.journals.create(self.path, pieces if self._shrinks else file.chunks())
            except SessionExists:  # another sync has copied it
                return self._merged()
            atomic.set_modified(self._target.fs, self.path, file.stat.st_mtime_ns)
            with closing(self._target.journals.read(self.path)) as made:
                return Synced(self._original, self.path, "new", made.count(), file.size, blobs, files)

    def _merged(self) -> Synced:
        """Add the missing entries to a session that the target has."""
        with (
            closing(self._source.journals.read(self._original)) as theirs,
            closing(self._target.journals.read(self.path)) as ours,
        ):
            missing = self._missing(theirs, ours)
            if self._preview or not missing:
                state: State = "grown" if missing else "same"
                files = 0 if self._preview else self._copy_artifacts()
                return Synced(self._original, self.path, state, len(missing), files=files)
            blobs, files = self._copy_blobs(), self._copy_artifacts()
            added = self._append(theirs, missing)
        self._date()
        return Synced(self._original, self.path, "grown", len(missing), added, blobs, files)

    def _missing(self, theirs: ReadableOwnJournal, ours: ReadableOwnJournal) -> Sequence[Row]:
        """The entries that only the source has."""
        if any(version_of(decode(journal.header())) < VERSION for journal in (theirs, ours)):
            hint = "open both for writing, which migrates them, then sync again"
            raise Conflict("the copies differ, and one has no entry ids", path=self._original, hint=hint)
        have = {row.id: digest for row, digest in _digests(ours)}
        written = partial(self._line, put=lambda data: sha256(data).hexdigest())
        missing, rewritten = [], []
        for row, digest in _digests(theirs, written):
            if row.id not in have:
                missing.append(row)
            elif have[row.id] != digest:
                rewritten.append(row.id)
        if rewritten:
            those = "1 entry was" if len(rewritten) == 1 else f"{len(rewritten)} entries were"
            message = f"{those} rewritten in one of the copies, such as {rewritten[0]}"
            raise Conflict(message, path=self._original, hint="delete the copy that you do not want, then sync again")
        return missing

    def _append(self, theirs: ReadableOwnJournal, missing: Sequence[Row]) -> int:
        added = 0
        with closing(self._target.journals.open(self.path)) as journal:
            rows = iter(missing)
            while batch := list(islice(rows, _SYNC_BATCH)):
                written = (self._line(line, _put_in(self._target)) for line in theirs.read_many(batch))
                lines = dict(zip((row.id for row in batch), written, strict=True))

                def revise(news: News, lines: dict[str, bytes] = lines) -> Sequence[bytes]:
                    present = {row.id for row in news.rows()}  # added by another sync
                    return [line for entry_id, line in lines.items() if entry_id not in present]

                journal.commit(journal.append(list(lines.values()), revise).mark)
                added += sum(map(len, lines.values()))
        return added

    def _line(self, raw: bytes, put: large.Put) -> bytes:
        """A line of the source as the target stores it."""
        if not self._shrinks or not (copy := plain(decode(raw))).large:
            return raw
        return encode_plain(large.shrink(copy.value, put))

    def _date(self) -> None:
        """Set the modification time of the original, if the copy has the same size."""
        with storage_failures(self.path, "read the copy"):
            original, copy = self._source.fs.lstat(self._original), self._target.fs.lstat(self.path)
        if copy.st_size == original.st_size:
            atomic.set_modified(self._target.fs, self.path, original.st_mtime_ns)

    def _is_same(self) -> bool:
        """Whether the two files are equal. If size and time are, only their ends are compared."""
        with RawFile(self._source.fs, self._original) as one, RawFile(self._target.fs, self.path) as two:
            if one.size != two.size:
                return False
            untouched = one.stat.st_mtime_ns == two.stat.st_mtime_ns
            start = max(0, one.size - _TAIL) if untouched else 0
            return all(left == right for left, right in zip_longest(one.chunks(start), two.chunks(start)))

    # -- blobs and artifacts

    def _copy_blobs(self) -> int:
        """Copy the blobs that the session refers to; those missing in the source are skipped."""
        there, here = self._source.blobs, self._target.blobs
        copied = 0
        for digest in sorted(session_bytes.references(self._source.fs, self._original)):
            if here.has(digest) or (data := there.get(digest)) is None:
                continue
            here.put(data)
            copied += 1
        return copied

    def _copy_artifacts(self) -> int:
        """Copy the artifacts that the target does not have."""
        if self._preview:
            return 0
        folder, place = artifacts_of(self._original), artifacts_of(self.path)
        copied = 0
        for path, _ in session_bytes.files_below(self._source.fs, folder):
            copy = place + path[len(folder) :]
            if not atomic.exists(self._target.fs, copy):
                atomic.make_folders(self._target.fs, posixpath.dirname(copy))
                with RawFile(self._source.fs, path) as file:
                    atomic.replace(self._target.fs, copy, file.chunks())
                    atomic.set_modified(self._target.fs, copy, file.stat.st_mtime_ns)
                copied += 1
        return copied


def _put_in(store: Store) -> large.Put:
    return lambda data: store.blobs.put(data).hash


def _digests(journal: ReadableOwnJournal, written: Callable[[bytes], bytes] = bytes) -> Iterator[tuple[Row, bytes]]:
    """Yield every row with a hash of its line, after a change that the line gets on its way."""
    rows = iter(journal.rows())
    while batch := list(islice(rows, _SYNC_BATCH)):
        for row, raw in zip(batch, journal.read_many(batch), strict=True):
            yield row, sha256(written(raw)).digest()[:16]
