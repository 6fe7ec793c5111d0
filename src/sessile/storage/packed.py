"""Session files whose rows are not simply their bytes: archives, and the form of MyAgents before JSONL.

    open_rows(fs, path)     a descriptor to read the rows from, whatever the form

Rules: what is packed is unpacked into a file without a name, which goes when it is closed; nothing is left anywhere, least of
all beside the original. An archive that is damaged gives what is whole in it, and says so. How a file is packed is told by
the ending of its name. However small an archive is that somebody has made to hold a lot, it takes some megabytes of memory, and
no more of the disk than archives of that size may. It does not know what the rows are.
"""

from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.layout import GZIP, JOURNAL, LEGACY, ZSTD
from sessile.storage.session_file import CHUNK

MOST = 64 << 30  # bytes that one archive may unpack to: a few kilobytes can hold a disk full of zeros
ALWAYS = 1 << 30  # bytes that every archive may unpack to
TIMES = 1000  # how much larger than itself; sessions pack to a tenth, those that repeat themselves to a hundredth

_GZIP_HEADER = 31  # how zlib is told that a gzip header comes
_STEP = 1 << 10  # bytes of zstd that are unpacked at once: four of them can stand for 128 KiB

Unpacking = Callable[[Iterator[bytes]], Iterator[bytes]]


class Rows(NamedTuple):
    """A descriptor of the rows of a file, how many bytes they have, and what could not be unpacked."""

    fd: int
    size: int
    damage: Finding | None


class _Damaged(Exception):
    """The archive ends too early, or is not one."""


def is_packed(path: str) -> bool:
    """Whether the rows of a file are not its bytes."""
    return path.endswith(LEGACY) or (path.endswith((GZIP, ZSTD)) and JOURNAL in posixpath.basename(path))


def open_rows(fs: Filesystem, path: str) -> Rows:
    """Open the rows of a session file for reading."""
    if not is_packed(path):
        fd = fs.open(path, os.O_RDONLY)
        return Rows(fd, fs.fstat(fd).st_size, None)
    fd = fs.temporary()
    try:
        size, damage = _unpack(fs, path, fd)
    except BaseException:
        fs.close(fd)
        raise
    return Rows(fd, size, damage)


def _unpack(fs: Filesystem, path: str, target: int) -> tuple[int, Finding | None]:
    """Write what a file holds into another; how much that was, and what was wrong."""
    size = 0
    source = fs.open(path, os.O_RDONLY)
    try:
        most = min(MOST, max(ALWAYS, TIMES * fs.fstat(source).st_size))
        for piece in _UNPACKINGS[posixpath.splitext(path)[1]](_chunks(fs, source)):
            if size + len(piece) > most:
                raise _Damaged(f"it holds more than {most} bytes")
            atomic.write_all(fs, target, piece)
            size += len(piece)
    except _Damaged as error:
        return size, Finding("damaged_archive", size, 0, f"the archive is damaged: {error}")
    finally:
        fs.close(source)
    return size, None


def _chunks(fs: Filesystem, fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := fs.read(fd, CHUNK, offset):
        yield chunk
        offset += len(chunk)


def _gunzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip archives that follow each other."""
    unpacker = None
    for chunk in chunks:
        rest = chunk
        while rest:
            unpacker = unpacker or zlib.decompressobj(_GZIP_HEADER)
            try:
                yield unpacker.decompress(rest, CHUNK)
            except zlib.error as error:
                raise _Damaged(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        yield unpacker.flush()
        raise _Damaged("it ends too early")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of zstd frames that follow each other."""
    import zstandard  # most people have no such file

    unpacker = None
    for rest in _steps(chunks):
        while rest:
            unpacker = unpacker or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield unpacker.decompress(rest)
            except zstandard.ZstdError as error:
                raise _Damaged(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else b""
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise _Damaged("it ends too early")


def _steps(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in small pieces, for an unpacker that gives back all that it has been given."""
    for chunk in chunks:
        for at in range(0, len(chunk), _STEP):
            yield chunk[at : at + _STEP]


def _legacy(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of one JSON object, as the rows that they become."""
    from sessile.formats.myagents.legacy import read_legacy, salvaged
    from sessile.formats.myagents.messages import Row

    data = b"".join(chunks)
    try:
        for item in read_legacy(data):
            # A message that is no object becomes a line that is no row: the reader says so.
            yield item.raw + b"\n" if isinstance(item, Row) else b"null\n"
    except (ValueError, RecursionError) as error:
        yield from (row.raw + b"\n" for row in salvaged(data))
        raise _Damaged(str(error)) from error


_UNPACKINGS: dict[str, Unpacking] = {".gz": _gunzipped, ".zst": _unzstd, ".json": _legacy}
