"""Sessions from one format to another, with nothing lost on the way.

    import_session(store, path)       another agent's session as one of ours, with its bytes kept
    converted(session, "claude")      a session as a file of another agent, piece by piece

Rules:

- An import keeps the source's bytes once, as a blob, and every entry says where its row stands in them. Importing again adds
  only what is new. The source is only read.
- Converting back gives the bytes that were imported, then rows for what came since. What has no counterpart there is kept in
  the rows, so that converting again restores it, and is counted in the report.

Bringing sessions from one store to another: between folders and databases, as often as one likes.

    for done in sync(Store("~/.sessile"), Store("postgresql://me@db/sessions")):
        print(done.state, done.path)

Rules: the source is only read, and nothing is deleted or changed in the target: a session that is not there is copied byte for
byte, and one that is there gets the entries that it lacks. So two copies that went on by themselves end with the entries of
both, as branches, if each is brought to the other. An entry that both have with another content was rewritten in one of them:
that is told, and both stay as they are. Blobs and artifacts come before the lines that name them; whatever is interrupted goes
on the next time, because a session is either not there or whole, and entries are found by their ids.

Drafts, trash and caches stay where they are.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice, zip_longest
from typing import Literal, NamedTuple

import msgspec

from sessile.agents.claude.rows import title_row
from sessile.agents.claude.translation import Rendering, uuid_for
from sessile.agents.myagents import translation as myagents
from sessile.agents.reader import ForeignReader, open_foreign
from sessile.core import entries as make
from sessile.core.codec import decode, encode, encode_plain
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
from sessile.storage.base import NATIVE, News, ReadableOwnJournal, Row
from sessile.storage.layout import JOURNAL, artifacts_of, file_name, stem_of
from sessile.storage.session_bytes import RawFile
from sessile.store import Store

# --- converting

SOURCE = "source"  # the member that says where a session, or an entry, comes from
_BATCH = 1000  # entries that are appended at once

Report = dict[str, int]


class Imported(NamedTuple):
    """What an import did: rows of the source, those that were new, and what could not be read."""

    id: str
    path: str
    format: str
    rows: int
    added: int
    unreadable: tuple[str, ...]


def import_session(store: Store, path: str) -> Imported:
    """Another agent's session as one of ours, or what is new of it; the copy has the time of the original."""
    if describe(store.fs, path) is not None:
        raise Unsupported("this session is in our own format already", path=path, hint="sessile fork copies it")
    with storage_failures(path, "look at the session"):
        modified = store.fs.lstat(path).st_mtime_ns
    done = _import(store, path)
    if done.added:
        copy_folder(store.fs, artifacts_of(path), artifacts_of(done.path))
        atomic.set_modified(store.fs, done.path, modified)
    return done


def _import(store: Store, path: str) -> Imported:
    with closing(open_foreign(store.fs, path)) as reader:
        known = store.find(reader.session_id)
        with store.open(known) if known is not None else _begin(store, reader, path) as session:
            if _source(session).get("path") != path:
                raise Conflict("a session of that id came from elsewhere", path=session.path, hint="fork it instead")
            before, new = _compared(session, reader.entries())
            names: list[str] = []
            lines = (_line(row, entry, names) for row, entry in new)
            added = session._adopt(iter(lambda: list(islice(lines, _BATCH)), []))
            source = SessionView(reader, store.blobs)
            if added:
                _keep(store, session, source, reader)
                # To ask a session that was just written for its title takes as long as to write it.
                title = session.title if known is not None else names[-1] if names else session.header.get("title")
                if source.title and source.title != title:  # it stood where no listing looks
                    session.set_session_name(source.title)
            unreadable = tuple(f"at byte {finding.offset:,}: {finding.detail}" for finding in source.findings)
            return Imported(session.id, session.path, reader.format.name, before + added, added, unreadable)


def _compared(session: Session, entries: Iterator[tuple[Row, Payload]]) -> tuple[int, Iterator[tuple[Row, Payload]]]:
    """How many entries of the source the session has already, and those that it lacks.

    They are compared one by one, because a power cut can have taken a line from the middle of an import: then all from
    there on come once more, and of two entries with an id the later one counts.
    """
    count, awaited = 0, next(entries, None)
    for line in session.iter_lines():
        if awaited is None:
            break
        if line.id == awaited[1]["id"] and _origin_of(line).is_told:
            count, awaited = count + 1, next(entries, None)
    return count, entries if awaited is None else chain((awaited,), entries)


def _begin(store: Store, reader: ForeignReader, path: str) -> Session:
    """A session of ours without entries; its title is what a listing shows of the source, until an entry gives it one."""
    source: Payload = decode(reader.header())
    told = source.get("timestamp")
    at = told if isinstance(told, str) and parse_timestamp(told) is not None else iso_timestamp(store.now())
    cwd = source.get("cwd") or "/"
    seen = reader.glimpse()
    title = source.get("title") or (seen.title if seen is not None else None) or None
    header = make.header(reader.session_id, at, cwd, title=title, source={"format": reader.format.name, "path": path})
    return store.begin(f"{store.layout.folder(cwd)}/{file_name(at, reader.session_id)}", [encode(header)])


def _keep(store: Store, session: Session, source: SessionView, reader: ForeignReader) -> None:
    """Keep the bytes of the source, and note behind its entries where they are; the leaf is that of the source."""
    kept = store.blobs.put_pieces(reader.pieces)
    note = make.custom(IMPORT_MARKER, {"format": reader.format.name, "blob": kept.ref})
    note_id = derived_entry_id(session.id, kept.hash, 0)
    session._adopt_last(make.with_base(note, note_id, source.leaf_id, iso_timestamp(store.now())), source.leaf_id)


def _line(row: Row, entry: Payload, names: list[str]) -> bytes:
    """An entry as a line of ours; if it gives the session a name, that is noted in `names`."""
    if row.flags & TITLE and not row.flags & MARKER:
        names.append(str(entry.get("name") if entry["type"] == "session_info" else entry.get("title")))
    if row.flags & MARKER and entry["type"] == "session_info":
        # It stands beside the conversation: as an entry it would begin a branch.
        base = {name: entry.get(name) for name in ("id", "parentId", "timestamp")}
        entry = {"type": "custom", **base, "customType": LEAF_MARKER, "data": {"name": entry.get("name")}}
    entry[SOURCE] = row.position
    return encode_plain(entry)


def _source(session: SessionView) -> Payload:
    """What the header says of where the session comes from; a member of that name that is no object says nothing."""
    told = session.header.get(SOURCE)
    return told if isinstance(told, dict) else {}


# -- the other way


def converted(session: SessionView, to: str, report: Report) -> Iterator[bytes]:
    """A session as a file of another agent; `report` counts the entries that have no counterpart there."""
    if to not in CONVERSIONS:
        raise Unsupported(f"there is no conversion to {to!r}", hint=f"there are {', '.join(CONVERSIONS)}")
    if session.format == to and (pieces := session._file_pieces()) is not None:
        return pieces  # it is that already
    return CONVERSIONS[to](session, report)


def _as_it_was(session: SessionView, blob: str | None) -> Iterator[bytes]:
    """The bytes that a session was imported from."""
    return session.blob_pieces(blob) if blob is not None else iter(())


def _followed(pieces: Iterable[bytes], rows: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes with rows behind them; the first row begins on a line of its own."""
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
        # Claude Code looks for titles near the end of a file, in rows of their own.
        yield encode_plain(title_row(session.id, session.title)) + b"\n"
    report.update(rendering.counts)


def _imported(session: SessionView, name: str) -> str | None:
    """The hash of the bytes that the session was imported from, if that was a file of this format."""
    if _source(session).get("format") != name:
        return None
    notes = deque((entry for entry in session.iter_lines() if _origin_of(entry).customType == IMPORT_MARKER), maxlen=1)
    return str(notes[0]["data"]["blob"]).rpartition(":")[2] if notes else None


def _whole(session: SessionView, entry: Entry) -> Payload:
    """An entry with its full texts and images; another agent's file holds them itself."""
    beside = entry.get("customType") in MARKERS or session.format != NATIVE
    return entry.body if beside else session.get_full_entry(entry.id)


class _Origin(msgspec.Struct, gc=False):
    """What an entry says of where it came from, decoded without the rest of it."""

    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    customType: str | None = None

    @property
    def is_told(self) -> bool:
        """Whether the entry was imported."""
        return self.source is not msgspec.UNSET


_decode_origin = msgspec.json.Decoder(_Origin).decode


def _origin_of(entry: Entry) -> _Origin:
    try:
        return _decode_origin(entry.raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # a member of another type than it should have
        custom = entry.get("customType")
        told = msgspec.Raw() if SOURCE in entry else msgspec.UNSET
        return _Origin(told, custom if isinstance(custom, str) else None)


def _is_there(entry: Entry, blob: str | None) -> bool:
    """Whether an entry is among the bytes that were imported, or only tells of them."""
    if blob is None:
        return False
    origin = _origin_of(entry)
    return origin.is_told or origin.customType in MARKERS


def _uuid(session: SessionView, entry_id: str) -> str:
    """The uuid of an entry's row: its own, if it came from a row."""
    entry = session.get_entry(entry_id)
    if entry is None or SOURCE not in entry:
        return uuid_for(session.id, entry_id)
    return entry_id.partition("/")[0]  # of several results in one row, each has a number behind it


def _to_myagents(session: SessionView, report: Report) -> Iterator[bytes]:
    blob = _imported(session, "myagents")
    count = myagents.Counting()
    return _followed(count.passed(_as_it_was(session, blob)), _myagents_rows(session, blob, count, report))


def _myagents_rows(session: SessionView, blob: str | None, count: myagents.Counting, report: Report) -> Iterator[bytes]:
    path = {entry.id for entry in session.iter_branch()}
    rendering = myagents.Rendering(path.__contains__, count.last)
    entries = (_whole(session, entry) for entry in session.iter_lines() if not _is_there(entry, blob))
    told = blob is not None
    for row in rendering.rows(entries):
        yield row + b"\n"
        told = True
    if not told:
        raise Unsupported("MyAgents has no sessions without a message", path=session.path, hint="say --to native")
    report.update(rendering.counts)


def _to_native(session: SessionView, report: Report) -> Iterator[bytes]:
    yield session._header_line() + b"\n"
    for line in session._iter_raw():
        yield line + b"\n"


CONVERSIONS: dict[str, Callable[[SessionView, Report], Iterator[bytes]]] = {
    "claude": _to_claude,
    "myagents": _to_myagents,
    "native": _to_native,
    "pi": _to_native,
}


# --- syncing

State = Literal["new", "grown", "same", "failed"]

_SYNCING_BATCH = 256  # entries that are appended with one sync
_TAIL = 4096  # bytes at the end of two files of one size and time that are the same only if the files are


class Synced(NamedTuple):
    """What became of one session: where it is in the target, and how much was added there."""

    source: str
    path: str
    state: State
    entries: int = 0
    bytes: int = 0
    blobs: int = 0
    files: int = 0  # artifacts
    error: SessileError | None = None


class SyncProgress(NamedTuple):
    """How far a sync is."""

    done: int
    total: int


def sync(
    source: Store, target: Store, *, preview: bool = False, progress: Callable[[SyncProgress], None] | None = None
) -> Iterator[Synced]:
    """Bring every session of a store to another, one after the other; with `preview` only say what would be done.

    A session that fails is told with its error, and the others go on; only a full disk ends everything.
    """
    found = [
        path for path, linked in session_bytes.journals(source.fs, source.layout.sessions) if path.endswith(JOURNAL)
    ]
    there = {stem_of(path): path for path, _ in session_bytes.journals(target.fs, target.layout.sessions)}
    for number, path in enumerate(found):
        wanted = target.layout.sessions + path[len(source.layout.sessions) :]
        work = _Sync(source, target, path, there.get(stem_of(path), wanted), preview)
        try:
            done = work.run()
        except StorageFull:
            raise
        except NotFound:
            continue  # deleted while we were looking
        except SessileError as error:
            done = Synced(path, work.path, "failed", error=error)
        yield done
        if progress is not None:
            progress(SyncProgress(number + 1, len(found)))
    pinned = source.pins.names()
    if pinned and not preview:
        target.pins.add(*pinned)


class _Sync:
    """One session on its way."""

    def __init__(self, source: Store, target: Store, original: str, path: str, preview: bool) -> None:
        self._source = source
        self._target = target
        self._original = original
        self.path = path
        self._preview = preview

    def run(self) -> Synced:
        if not atomic.exists(self._target.fs, self.path):
            return self._copied()
        if self._is_same():
            return Synced(self._original, self.path, "same", files=self._bring_artifacts())
        return self._merged()

    def _copied(self) -> Synced:
        """A session that is not there yet."""
        with RawFile(self._source.fs, self._original) as file:
            if self._preview:
                return Synced(self._original, self.path, "new", bytes=file.size)
            blobs, files = self._bring_blobs(), self._bring_artifacts()
            try:
                self._target.journals.create(self.path, file.chunks())
            except SessionExists:  # another sync was faster
                return self._merged()
            atomic.set_modified(self._target.fs, self.path, file.stat.st_mtime_ns)
            with closing(self._target.journals.read(self.path)) as made:
                return Synced(self._original, self.path, "new", made.count(), file.size, blobs, files)

    def _merged(self) -> Synced:
        """A session that is there: it gets what it lacks."""
        with (
            closing(self._source.journals.read(self._original)) as theirs,
            closing(self._target.journals.read(self.path)) as ours,
        ):
            missing = self._missing(theirs, ours)
            if self._preview or not missing:
                state: State = "grown" if missing else "same"
                files = 0 if self._preview else self._bring_artifacts()
                return Synced(self._original, self.path, state, len(missing), files=files)
            blobs, files = self._bring_blobs(), self._bring_artifacts()
            added = self._append(theirs, missing)
        self._date()
        return Synced(self._original, self.path, "grown", len(missing), added, blobs, files)

    def _missing(self, theirs: ReadableOwnJournal, ours: ReadableOwnJournal) -> Sequence[Row]:
        """The entries that only the source has."""
        if any(version_of(decode(journal.header())) < VERSION for journal in (theirs, ours)):
            hint = "open both for writing once, which brings them up to date, and begin again"
            raise Conflict("the two copies differ, and one has no ids yet", path=self._original, hint=hint)
        have = {row.id: digest for row, digest in _digests(ours)}
        missing, rewritten = [], []
        for row, digest in _digests(theirs):
            if row.id not in have:
                missing.append(row)
            elif have[row.id] != digest:
                rewritten.append(row.id)
        if rewritten:
            those = "1 entry was" if len(rewritten) == 1 else f"{len(rewritten)} entries were"
            told = f"{those} rewritten in one of the two copies, such as {rewritten[0]}"
            raise Conflict(told, path=self._original, hint="delete the copy that you do not want, and begin again")
        return missing

    def _append(self, theirs: ReadableOwnJournal, missing: Sequence[Row]) -> int:
        added = 0
        with closing(self._target.journals.open(self.path)) as journal:
            rows = iter(missing)
            while batch := list(islice(rows, _SYNCING_BATCH)):
                lines = dict(zip((row.id for row in batch), theirs.read_many(batch), strict=True))

                def revise(news: News, lines: dict[str, bytes] = lines) -> Sequence[bytes]:
                    taken = {row.id for row in news.rows()}  # another sync was faster
                    return [line for entry_id, line in lines.items() if entry_id not in taken]

                journal.commit(journal.append(list(lines.values()), revise).mark)
                added += sum(map(len, lines.values()))
        return added

    def _date(self) -> None:
        """Give a copy that has all bytes of its original, and no others, the time of that, as one that is new gets it."""
        with storage_failures(self.path, "look at the copy"):
            original, copy = self._source.fs.lstat(self._original), self._target.fs.lstat(self.path)
        if copy.st_size == original.st_size:
            atomic.set_modified(self._target.fs, self.path, original.st_mtime_ns)

    def _is_same(self) -> bool:
        """Whether the two files have the same bytes: of a copy that has the time of its original, the end tells."""
        with RawFile(self._source.fs, self._original) as one, RawFile(self._target.fs, self.path) as two:
            if one.size != two.size:
                return False
            untouched = one.stat.st_mtime_ns == two.stat.st_mtime_ns
            start = max(0, one.size - _TAIL) if untouched else 0
            return all(mine == its for mine, its in zip_longest(one.chunks(start), two.chunks(start)))

    # -- what belongs to a session

    def _bring_blobs(self) -> int:
        """Store the blobs that a session names; one that the source has lost cannot be brought."""
        there, here = self._source.blobs, self._target.blobs
        brought = 0
        for digest in sorted(session_bytes.references(self._source.fs, self._original)):
            if here.has(digest) or (data := there.get(digest)) is None:
                continue
            here.put(data)
            brought += 1
        return brought

    def _bring_artifacts(self) -> int:
        """Copy the files in the folder beside a session that are not there."""
        if self._preview:
            return 0
        folder, place = artifacts_of(self._original), artifacts_of(self.path)
        brought = 0
        for path, _ in session_bytes.files_below(self._source.fs, folder):
            copy = place + path[len(folder) :]
            if not atomic.exists(self._target.fs, copy):
                atomic.make_folders(self._target.fs, posixpath.dirname(copy))
                with RawFile(self._source.fs, path) as file:
                    atomic.replace(self._target.fs, copy, file.chunks())
                    atomic.set_modified(self._target.fs, copy, file.stat.st_mtime_ns)
                brought += 1
        return brought


def _digests(journal: ReadableOwnJournal) -> Iterator[tuple[Row, bytes]]:
    """Every row with a hash of its line."""
    rows = iter(journal.rows())
    while batch := list(islice(rows, _SYNCING_BATCH)):
        for row, raw in zip(batch, journal.read_many(batch), strict=True):
            yield row, sha256(raw).digest()[:16]
