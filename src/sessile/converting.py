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

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from sessile.core import entries as make
from sessile.core.codec import encode, encode_plain
from sessile.core.entries import Entry
from sessile.core.ids import derived_entry_id
from sessile.core.kinds import LEAF_MARKER
from sessile.core.text import iso_timestamp
from sessile.errors import Conflict, Unsupported
from sessile.foreign import open_foreign
from sessile.formats.claude.rendering import Rendering, uuid_for
from sessile.formats.claude.side_rows import title_row
from sessile.session import Session
from sessile.storage.foreign import ForeignReader
from sessile.storage.layout import file_name
from sessile.store import Store
from sessile.view import SessionView

SOURCE = "source"  # the member that says where a session, or an entry, comes from
IMPORT = "sessile.import"  # the custom entry that an import ends with: which blob holds the bytes
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
    """Another agent's session as one of ours, or what is new of it."""
    with closing(open_foreign(store.fs, path)) as reader:
        source = SessionView(reader, store.blobs)
        known = store.find(source.id)
        with store.open(known) if known is not None else _begin(store, source, reader, path) as session:
            if session.header.get(SOURCE, {}).get("path") != path:
                raise Conflict("a session of that id came from elsewhere", path=session.path, hint="fork it instead")
            before = sum(SOURCE in entry for entry in session.iter_lines())
            added = _add(store, session, source, reader, before)
            unreadable = tuple(finding.detail for finding in source.findings)
            return Imported(session.id, session.path, reader.format.name, before + added, added, unreadable)


def _begin(store: Store, source: SessionView, reader: ForeignReader, path: str) -> Session:
    at = source.header.get("timestamp") or iso_timestamp(store.now())
    cwd = source.cwd or "/"
    origin = {"format": reader.format.name, "path": path}
    header = make.header(source.id, at, cwd, title=source.title, source=origin)
    return store.begin(f"{store.layout.folder(cwd)}/{file_name(at, source.id)}", [encode(header)])


def _add(store: Store, session: Session, source: SessionView, reader: ForeignReader, before: int) -> int:
    """Append the rows that are new, then the note of where the bytes are; the leaf is that of the source."""
    rows = (_line(entry, row.position) for row, entry in _rows(source, reader, before))
    added = 0
    while batch := list(islice(rows, _BATCH)):
        session.adopt(batch)
        added += len(batch)
    if added:
        kept = store.blobs.put_pieces(reader.pieces)
        note = make.custom(IMPORT, {"format": reader.format.name, "blob": kept.ref})
        note_id = derived_entry_id(session.id, kept.hash, 0)
        session.adopt([encode(make.with_base(note, note_id, source.leaf_id, iso_timestamp(store.now())))])
        if source.leaf_id is not None:
            session.branch(source.leaf_id)
    return added


def _rows(source: SessionView, reader: ForeignReader, start: int) -> Iterator[tuple[Any, Entry]]:
    for row in reader.rows(start):
        yield row, Entry(row.id, row.parent_id, reader.read(row))


def _line(entry: Entry, position: tuple[int, int]) -> bytes:
    return encode_plain({**entry.body, SOURCE: list(position)})


# -- the other way


def converted(session: SessionView, to: str, report: Report) -> Iterator[bytes]:
    """A session as a file of another agent; `report` counts the entries that have no counterpart there."""
    if to not in CONVERSIONS:
        raise Unsupported(f"there is no conversion to {to!r}", hint=f"there are {', '.join(CONVERSIONS)}")
    return CONVERSIONS[to](session, report)


def _to_claude(session: SessionView, report: Report) -> Iterator[bytes]:
    blob = _imported(session, "claude")
    if blob is not None:
        yield from session.blob_pieces(blob)
    rendering = Rendering(session.id, session.cwd, lambda entry_id: _uuid(session, entry_id))
    for entry in session.iter_lines():
        if not _is_there(entry, blob):
            body = entry.body if entry.get("customType") == LEAF_MARKER else session.get_full_entry(entry.id)
            for row in rendering.rows(body):
                yield encode_plain(row) + b"\n"
    if blob is None and session.title and session.title.strip():
        # Claude Code looks for titles near the end of a file, in rows of their own.
        yield encode_plain(title_row(session.id, session.title)) + b"\n"
    report.update(rendering.counts)


def _imported(session: SessionView, name: str) -> str | None:
    """The hash of the bytes that the session was imported from, if that was a file of this format."""
    if session.header.get(SOURCE, {}).get("format") != name:
        return None
    notes = [entry for entry in session.iter_lines() if entry.get("customType") == IMPORT]
    return str(notes[-1]["data"]["blob"]).rpartition(":")[2] if notes else None


def _is_there(entry: Entry, blob: str | None) -> bool:
    """Whether an entry is among the bytes that were imported, or only tells of them."""
    return blob is not None and (SOURCE in entry or entry.get("customType") in (IMPORT, LEAF_MARKER))


def _uuid(session: SessionView, entry_id: str) -> str:
    """The uuid of an entry's row: its own, if it came from a row."""
    entry = session.get_entry(entry_id)
    return entry_id if entry is not None and SOURCE in entry else uuid_for(session.id, entry_id)


def _to_native(session: SessionView, report: Report) -> Iterator[bytes]:
    yield session.header_line() + b"\n"
    for entry in session.iter_lines():
        yield entry.raw + b"\n"


CONVERSIONS: dict[str, Callable[[SessionView, Report], Iterator[bytes]]] = {
    "claude": _to_claude,
    "native": _to_native,
    "pi": _to_native,
}
