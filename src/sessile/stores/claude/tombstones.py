"""Removing one row of a transcript, for the attempts that a stream discards, and having it back.

Rules:

- The row is kept first, durably, in our own root: nothing is removed that cannot be had again.
- The last 64 KB are searched first. A row at the very end is cut off; any other is removed by a new file that takes the place of
  the old one at once. So a kill leaves the file with the row or without it, and every other row in both.
- Where the row is not in the tail the whole file is read, up to 50 MB; a larger one is refused and stays as it is.
- A kept row can be listed, and put back where it was.
- A uuid that is quoted in a text or named as a parent is not the row: rows are decoded before they are believed.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sessile.core.codec import decode
from sessile.core.lines import Line, Scanner
from sessile.errors import Damaged, TooLarge, storage_failures
from sessile.formats.claude.rows import uuid_of
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile
from sessile.stores.claude.appending import Removed, TranscriptFile

TAIL = 64 * 1024
MAX_TOMBSTONE_REWRITE_BYTES = 50 * 1024 * 1024


TOMBSTONES = "tombstones"  # the folder of kept rows in our own root
_KEPT = ".row"


class Tombstone(NamedTuple):
    """A row that was removed, and where it is kept."""

    uuid: str
    kept: str


class KeptRow(NamedTuple):
    """A row that was removed: the transcript that it was in, where it lay there, where it is kept, and its bytes."""

    uuid: str
    path: str
    offset: int
    kept: str
    row: bytes


def kept_rows(fs: Filesystem, folder: str) -> Iterator[KeptRow]:
    """Every row that is kept below `folder`, those of one transcript in the order in which they lay in it."""
    for session in _names(fs, folder):
        names = [name for name in _names(fs, f"{folder}/{session}") if name.endswith(_KEPT)]
        yield from sorted((_kept_row(fs, f"{folder}/{session}/{name}") for name in names), key=_by_place)


def restore_row(file: TranscriptFile, kept: KeptRow) -> bool:
    """Put a kept row back, byte for byte; false if the file has a row with its uuid.

    It goes where it lay if a line begins there now, else to the end: readers follow links, but of two branches they take the
    one that is last. The kept copy stays.
    """

    def put_back(held: HeldFile) -> bool:
        if _last_row(held, kept.uuid, 0) is not None:
            return False
        at, size = kept.offset, held.size
        if at >= size or (at and held.peek(at - 1, 1) != b"\n"):
            held.append([kept.row])
            held.sync()
            return True

        def whole() -> Iterator[bytes]:
            yield from held.chunks(0, at)
            yield kept.row + b"\n"
            yield from held.chunks(at, size)

        held.replace(whole())
        return True

    return file.change(put_back)


def remove_row(fs: Filesystem, file: TranscriptFile, uuid: str, folder: str) -> Tombstone | None:
    """Remove the last row with that uuid, keeping it below `folder`; `None` if the file has no such row."""
    kept: list[str] = []

    def take_out(held: HeldFile) -> Removed | None:
        removed = _find(held, uuid)
        if removed is not None:
            kept.append(_keep(fs, folder, held.path, removed))
            _remove(held, removed)
        return removed

    return Tombstone(uuid, kept[0]) if file.remove(take_out) is not None else None


def _find(file: HeldFile, uuid: str) -> Removed | None:
    window = max(0, file.size - TAIL)
    found = _last_row(file, uuid, _next_line(file, window))
    if found is None and window > 0:
        if file.size > MAX_TOMBSTONE_REWRITE_BYTES:
            raise TooLarge(
                f"the row is not in the last {TAIL // 1024} KB, and the file is too large to look further",
                path=file.path,
                hint="the row stays; nothing was changed",
            )
        found = _last_row(file, uuid, 0)
    return found


def _next_line(file: HeldFile, window: int) -> int:
    """Where the first line begins that lies whole in the window; the end of the file if there is none."""
    if window == 0 or file.peek(window - 1, 1) == b"\n":
        return window
    newline = file.peek(window, TAIL).find(b"\n")
    return window + newline + 1 if newline >= 0 else file.size


def _last_row(file: HeldFile, uuid: str, start: int) -> Removed | None:
    """The last row with that uuid behind a place where a line begins."""
    found = None
    name = uuid.encode()
    for line in _lines(file, start):
        if name in line.raw and uuid_of(decode(line.raw)) == uuid:
            found = line
    if found is None:
        return None
    end = found.offset + len(found.raw)
    alone = found.offset == 0 or file.peek(found.offset - 1, 1) == b"\n"
    whole = alone and file.peek(end, 1) == b"\n"
    return Removed(uuid, found.offset, len(found.raw) + whole, found.raw)


def _lines(file: HeldFile, start: int) -> Iterator[Line]:
    scanner = Scanner(start)
    for chunk in file.chunks(start, file.size):
        yield from (item for item in scanner.feed(chunk) if isinstance(item, Line))
    yield from (item for item in scanner.finish() if isinstance(item, Line))


def _keep(fs: Filesystem, folder: str, path: str, removed: Removed) -> str:
    """Write the row into a file of its own: a line that says where it was, then its bytes."""
    digest = hashlib.sha256(removed.row).hexdigest()[:16]
    name = f"{folder}/{posixpath.basename(path).removesuffix('.jsonl')}/{digest}{_KEPT}"
    note = msgspec.json.encode({"path": path, "uuid": removed.uuid, "offset": removed.offset})
    atomic.make_folders(fs, posixpath.dirname(name))
    atomic.replace(fs, name, (note, b"\n", removed.row, b"\n"))
    return name


class _Note(msgspec.Struct):
    path: str
    uuid: str
    offset: int


def _kept_row(fs: Filesystem, kept: str) -> KeptRow:
    with storage_failures(kept, "read the kept row"):
        note, _, row = atomic.read_all(fs, kept).partition(b"\n")
    try:
        said = msgspec.json.decode(note, type=_Note)
    except msgspec.DecodeError as error:
        raise Damaged(
            "the note of the kept row cannot be read", path=kept, hint="the row is its second line"
        ) from error
    return KeptRow(said.uuid, said.path, said.offset, kept, row.removesuffix(b"\n"))


def _by_place(kept: KeptRow) -> tuple[str, int]:
    return kept.path, kept.offset


def _names(fs: Filesystem, folder: str) -> list[str]:
    with storage_failures(folder, "list the kept rows"):
        try:
            return fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _remove(file: HeldFile, removed: Removed) -> None:
    end = removed.offset + removed.length
    if end == file.size:
        file.truncate(removed.offset)
        file.sync()
        return

    def rest() -> Iterator[bytes]:
        yield from file.chunks(0, removed.offset)
        yield from file.chunks(end, size)

    size = file.size
    file.replace(rest())
