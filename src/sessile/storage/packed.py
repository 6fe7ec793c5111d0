"""Sessions whose rows are not simply the bytes of a file: compressed ones, those in several files, and rendered ones.

    archives     .jsonl.gz and .jsonl.zst: the suffix of the name decides
    documents    .json of MyAgents: its agent unpacks it into rows
    segments     a file that goes on where an earlier one of the same session was left: its agent joins them
    rendered     a database, a log of changes, a document, a folder of parts: its agent yields native entries

Rules: the rows are written into a file without a name, which disappears when it is closed; nothing is written beside the
original. What is damaged yields what can be read, with findings. An archive needs a few megabytes of memory. Archives and
rendered sessions take disk space up to a limit that depends on the size of their file. A rendered session may be inside of a
file: then its path has the file as a folder, such as `…/opencode.db/<id>.jsonl`, which no file can have.
"""

from __future__ import annotations

import os
import posixpath
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sessile.core.codec import encode_plain
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.base import CHUNK, Filesystem
from sessile.storage.head import HEAD
from sessile.storage.layout import GZIP, JOURNAL, LEGACY, ZSTD, is_segment

if TYPE_CHECKING:
    from sessile.storage.formats import Formats

MOST = 64 << 30  # bytes that one archive or rendered session may take: a few kilobytes can hold a disk full of zeros
ALWAYS = 1 << 30  # bytes that each of them may take
TIMES = 1000  # how much larger than itself; sessions compress to a tenth, repetitive ones to a hundredth
_TOO_LARGE = "it holds more than {} bytes"

_NATIVE = (b'{"type":"session"', b'{"type":"title"')  # how native files start; others are read in the exact way
_GZIP_HEADER = 31  # tells zlib to expect a gzip header


class Rows(NamedTuple):
    """A descriptor of the rows of a session, their size in bytes, and what could not be read."""

    fd: int
    size: int
    damage: tuple[Finding, ...]
    renderer: str | None = None  # the agent that rendered them
    made: bool = False  # whether they are not the bytes of the file


class _Damaged(Exception):
    """The archive is incomplete or not an archive."""


def is_packed(path: str) -> bool:
    """Return whether the rows of a file are not its bytes."""
    return path.endswith(LEGACY) or is_segment(path) or _is_compressed(path)


def _is_compressed(path: str) -> bool:
    return path.endswith((GZIP, ZSTD)) and JOURNAL in posixpath.basename(path)


def _is_plainly_packed(path: str) -> bool:
    """Return whether a file is a packed session and nothing else, by its name; archives have more between the suffixes."""
    return path.endswith((GZIP, JOURNAL + ZSTD)) and JOURNAL in posixpath.basename(path)


def renderer_of(fs: Filesystem, path: str, formats: Formats) -> str | None:
    """Return the agent that renders the session at a path; `None` if its rows are in a file."""
    if _is_plainly_packed(path) or is_segment(path):
        return None
    try:
        fd = fs.open(path, os.O_RDONLY)
    except NotADirectoryError:
        return formats.renderer(path, b"")
    try:
        return _renderer(fs, fd, path, formats)
    finally:
        fs.close(fd)


def _renderer(fs: Filesystem, fd: int, path: str, formats: Formats) -> str | None:
    first = fs.read(fd, HEAD, 0)
    return None if not first or first.startswith(_NATIVE) else formats.renderer(path, first)


def open_rows(fs: Filesystem, path: str, formats: Formats, *, alone: bool = False) -> Rows:
    """Open the rows of a session for reading; `alone` without those of earlier files of the same session."""
    if is_segment(path) and not alone:
        return _filled(fs, lambda fd: _join(fs, path, fd, formats))
    if _is_plainly_packed(path):
        return _filled(fs, lambda fd: _unpack(fs, path, fd, formats))
    try:
        fd = fs.open(path, os.O_RDONLY)
    except NotADirectoryError:
        if (renderer := formats.renderer(path, b"")) is None:
            raise
        return _rendered(fs, path, renderer, formats)
    try:
        renderer = _renderer(fs, fd, path, formats)
        size = fs.fstat(fd).st_size
    except BaseException:
        fs.close(fd)
        raise
    if renderer is None and not path.endswith(LEGACY):
        return Rows(fd, size, ())
    fs.close(fd)
    if renderer is None:
        return _filled(fs, lambda fd: _unpack(fs, path, fd, formats))
    return _rendered(fs, path, renderer, formats)


def _filled(fs: Filesystem, fill: Callable[[int], tuple[int, tuple[Finding, ...]]]) -> Rows:
    """Return the rows that are written to a new file without a name."""
    fd = fs.temporary()
    try:
        size, damage = fill(fd)
    except BaseException:
        fs.close(fd)
        raise
    return Rows(fd, size, damage, made=True)


def _rendered(fs: Filesystem, path: str, renderer: str, formats: Formats) -> Rows:
    damage: list[Finding] = []

    def fill(target: int) -> tuple[int, tuple[Finding, ...]]:
        size, lines, waiting = 0, [], 0
        most = _limit(_source_size(fs, path))
        for record in formats.render(fs, renderer, path):
            if isinstance(record, Finding):
                damage.append(record)
                continue
            line = encode_plain(record) + b"\n"
            if size + waiting + len(line) > most:
                text = f"the session is damaged: {_TOO_LARGE.format(most)}"
                damage.append(Finding("damaged_archive", size + waiting, 0, text))
                break
            lines.append(line)
            waiting += len(line)
            if waiting > CHUNK:
                atomic.write_all(fs, target, b"".join(lines))
                size, lines, waiting = size + waiting, [], 0
        atomic.write_all(fs, target, b"".join(lines))
        return size + waiting, tuple(damage)

    return _filled(fs, fill)._replace(renderer=renderer)


def _source_size(fs: Filesystem, path: str) -> int:
    """Return the size of the file that a session is rendered from: its own, or the one that its path is inside of."""
    while True:
        try:
            return fs.lstat(path).st_size
        except NotADirectoryError:
            path = posixpath.dirname(path)


def _limit(size: int) -> int:
    """Return how many bytes the rows from a file of a size may take."""
    return min(MOST, max(ALWAYS, TIMES * size))


def _join(fs: Filesystem, path: str, target: int, formats: Formats) -> tuple[int, tuple[Finding, ...]]:
    """Write the rows of all files of a session up to this one into another; return their size and what was wrong."""
    size, damage = 0, []
    for piece in formats.join(fs, path):
        if isinstance(piece, Finding):
            damage.append(piece)
            continue
        atomic.write_all(fs, target, piece)
        size += len(piece)
    return size, tuple(damage)


def copy_start(fs: Filesystem, path: str, size: int, target: int, formats: Formats) -> int:
    """Append the first bytes of a file's own rows to another; return how many there were."""
    source, most, *_ = open_rows(fs, path, formats, alone=True)
    try:
        copied = 0
        for chunk in chunks_of(fs, source, min(size, most)):
            atomic.write_all(fs, target, chunk)
            copied += len(chunk)
        return copied
    finally:
        fs.close(source)


def _unpack(fs: Filesystem, path: str, target: int, formats: Formats) -> tuple[int, tuple[Finding, ...]]:
    """Write the content of a file into another; return its size and what was wrong."""
    size = 0
    source = fs.open(path, os.O_RDONLY)
    try:
        most = _limit(fs.fstat(source).st_size)
        for piece in _unpacked(posixpath.splitext(path)[1], chunks_of(fs, source), formats):
            if size + len(piece) > most:
                raise _Damaged(_TOO_LARGE.format(most))
            atomic.write_all(fs, target, piece)
            size += len(piece)
    except _Damaged as error:
        return size, (Finding("damaged_archive", size, 0, f"the archive is damaged: {error}"),)
    finally:
        fs.close(source)
    return size, ()


def chunks_of(fs: Filesystem, fd: int, size: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of an open file, or the first `size` of them."""
    offset = 0
    while chunk := fs.read(fd, CHUNK if size is None else min(CHUNK, size - offset), offset):
        yield chunk
        offset += len(chunk)


def _unpacked(suffix: str, chunks: Iterator[bytes], formats: Formats) -> Iterator[bytes]:
    if suffix == GZIP:
        yield from _gunzipped(chunks)
    elif suffix == ZSTD:
        yield from _unzstd(chunks)
    else:
        try:
            yield from formats.unpack(suffix, chunks)
        except (ValueError, RecursionError) as error:
            raise _Damaged(str(error)) from error


def _gunzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of gzip members that follow each other."""
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


def unzstd(data: bytes, most: int = 64 << 20) -> bytes:
    """Return the content of zstd frames; raise `ValueError` if they are damaged, or have more than `most` bytes."""
    found = bytearray()
    try:
        for chunk in _unzstd(iter((data,))):
            found += chunk
            if len(found) > most:
                raise ValueError(f"it has more than {most} bytes")
    except _Damaged as error:
        raise ValueError(str(error)) from error
    return bytes(found)


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of zstd frames that follow each other."""
    # Saves start-up time: few users have such a file.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    unpacker = None
    for chunk in chunks:
        rest = chunk
        while rest or (unpacker is not None and not unpacker.needs_input):
            unpacker = unpacker or zstd.ZstdDecompressor()
            try:
                yield unpacker.decompress(rest, CHUNK)
            except zstd.ZstdError as error:
                raise _Damaged(str(error)) from error
            rest = unpacker.unused_data if unpacker.eof else b""
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise _Damaged("it ends too early")
