"""Reading a session of MyAgents, in whatever form it is stored. Nothing is written, migrated or touched.

A session is JSONL, the JSON object of the first versions, a gzip archive of the JSONL, or a transcript of later versions. Where
JSONL and JSON are both there, a migration was interrupted: the one with more messages counts. Wherever a session is stored
twice, a finding says so. Lines that cannot be read are findings; the rest is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sessile.core.lines import Finding
from sessile.errors import storage_failures
from sessile.formats.myagents.legacy import read_legacy, salvaged
from sessile.formats.myagents.messages import Item, Row, scan
from sessile.formats.myagents.transcript_v2 import read_v2
from sessile.formats.myagents.types import Message
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.raw_file import RawFile
from sessile.stores.myagents.places import Places

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
