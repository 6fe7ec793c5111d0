"""Sessions from one format to another, with nothing lost on the way.

    import_session(store, path)       another agent's session as one of ours, with its bytes kept
    converted(session, "claude")      a session as a file of another agent, piece by piece

Rules:

- An import keeps the source's bytes once, as a blob, and every entry says where its row stands in them. Importing again adds
  only what is new. The source is only read.
- Converting back gives the bytes that were imported, then rows for what came since. What has no counterpart there is kept in
  the rows, so that converting again restores it, and is counted in the report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from sessile.core import entries as make
from sessile.core.codec import decode, encode, encode_plain
from sessile.core.entries import Entry, Payload
from sessile.core.ids import derived_entry_id
from sessile.core.kinds import IMPORT_MARKER, LEAF_MARKER, MARKER, MARKERS, TITLE
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.discovery import describe
from sessile.errors import Conflict, Unsupported, storage_failures
from sessile.foreign import open_foreign
from sessile.formats.claude.rendering import Rendering, uuid_for
from sessile.formats.claude.side_rows import title_row
from sessile.formats.myagents import rendering as myagents
from sessile.session import Session
from sessile.storage import atomic
from sessile.storage.base import NATIVE, Row
from sessile.storage.foreign import ForeignReader
from sessile.storage.layout import artifacts_of, file_name
from sessile.store import Store
from sessile.transfer import copy_folder
from sessile.view import SessionView

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
            added = session.adopt(iter(lambda: list(islice(lines, _BATCH)), []))
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
    session.adopt_last(make.with_base(note, note_id, source.leaf_id, iso_timestamp(store.now())), source.leaf_id)


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
    if session.format == to and (pieces := session.file_pieces()) is not None:
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
    yield session.header_line() + b"\n"
    for line in session.iter_raw():
        yield line + b"\n"


CONVERSIONS: dict[str, Callable[[SessionView, Report], Iterator[bytes]]] = {
    "claude": _to_claude,
    "myagents": _to_myagents,
    "native": _to_native,
    "pi": _to_native,
}
