"""Journals in the file system: read, renamed, linked and removed like any file, but not written."""

from __future__ import annotations

import errno
import os

import pytest

from postgres.journals_rig import ROOT, Place
from sessile.storage import atomic
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import sweep
from sessile.testing.filesystem_contract import error, get, opened

pytestmark = pytest.mark.mission("B8")

_HEADER = b'{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/w"}\n'
_LINES = [
    b'{"type":"custom","id":"%08x","parentId":null,"timestamp":"2026-01-01T00:00:01.000Z","customType":"t","data":"%s"}\n'
    % (number, b"x" * (number * 97 % 1500))
    for number in range(300)
]
_BYTES = _HEADER + b"".join(_LINES[:200]) + b"\n\nno json at all\n" + b"".join(_LINES[200:])


@pytest.fixture
def place(database: Database, leases: Leases) -> Place:
    """A database with one journal, some of whose bytes are not entries."""
    made = Place(database, leases)
    made.journals.create(f"{ROOT}/a.jsonl", [_BYTES])
    return made


def test_a_journal_reads_as_its_bytes(place: Place) -> None:
    """Every range is exact, and the size is correct."""
    fs = place.fs
    assert place.is_journal(f"{ROOT}/a.jsonl")
    assert atomic.read_all(fs, f"{ROOT}/a.jsonl") == get(fs, f"{ROOT}/a.jsonl") == _BYTES
    assert fs.lstat(f"{ROOT}/a.jsonl").st_size == len(_BYTES)
    with opened(fs, f"{ROOT}/a.jsonl", os.O_RDONLY) as fd:
        for offset in (
            0,
            1,
            len(_HEADER) - 1,
            len(_HEADER),
            5000,
            60_001,
            len(_BYTES) - 1,
            len(_BYTES),
            len(_BYTES) + 9,
        ):
            for size in (0, 1, 500, 70_000, len(_BYTES)):
                assert fs.read(fd, size, offset) == _BYTES[offset : offset + size]


def test_reading_a_journal_is_one_round_trip(place: Place) -> None:
    """Each read is one query, for any number of lines."""
    with opened(place.fs, f"{ROOT}/a.jsonl", os.O_RDONLY) as fd:
        before = place.database.count
        place.fs.read(fd, 1 << 20, 0)
        assert place.database.count == before + 1


def test_a_journal_is_not_written_as_a_file(place: Place) -> None:
    """Opening it for writing or truncating raises EROFS, and it is unchanged."""
    for flags in (os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDONLY | os.O_TRUNC, os.O_CREAT | os.O_RDWR):
        assert error(place.fs.open, f"{ROOT}/a.jsonl", flags) == errno.EROFS
    assert get(place.fs, f"{ROOT}/a.jsonl") == _BYTES


def test_a_file_that_becomes_a_journal_while_it_is_open(place: Place) -> None:
    """Readers continue with the same bytes; writing raises EROFS."""
    path = place.put(_BYTES)
    fs = place.fs
    with opened(fs, path, os.O_RDONLY) as reading, opened(fs, path, os.O_RDWR) as writing:
        assert fs.read(reading, 100, 0) == _BYTES[:100]
        place.journals.open(path).close()
        assert place.is_journal(path)
        assert fs.read(reading, 1000, 100) == _BYTES[100:1100]
        if fs.fstat(writing).st_nlink:
            assert error(fs.write, writing, b"x") == errno.EROFS
    assert get(fs, path) == _BYTES


def test_a_journal_moves_and_has_names_like_a_file(place: Place) -> None:
    """Renaming, linking, replacing and removing do not change its rows."""
    fs = place.fs
    fs.mkdir(f"{ROOT}/d")
    fs.rename(f"{ROOT}/a.jsonl", f"{ROOT}/d/b.jsonl")
    fs.rename(f"{ROOT}/d", f"{ROOT}/e")
    fs.link(f"{ROOT}/e/b.jsonl", f"{ROOT}/c.jsonl")
    assert fs.lstat(f"{ROOT}/c.jsonl").st_nlink == 2
    fs.unlink(f"{ROOT}/e/b.jsonl")
    assert get(fs, f"{ROOT}/c.jsonl") == _BYTES
    atomic.replace(fs, f"{ROOT}/c.jsonl", [b"bytes instead"])
    assert get(fs, f"{ROOT}/c.jsonl") == b"bytes instead" and not place.is_journal(f"{ROOT}/c.jsonl")


def test_the_rows_of_a_removed_journal_are_kept_for_readers_and_go_then(place: Place) -> None:
    """Open descriptors can read for an hour; after the sweep nothing is left."""
    with opened(place.fs, f"{ROOT}/a.jsonl", os.O_RDONLY) as fd:
        place.fs.unlink(f"{ROOT}/a.jsonl")
        assert place.fs.read(fd, len(_BYTES), 0) == _BYTES
        assert sweep(place.database) == 0 and sweep(place.database, older_than=0) == 1
        assert error(place.fs.read, fd, 1, 0) == errno.ESTALE
    assert place.database.query("SELECT (SELECT count(*) FROM entry), (SELECT count(*) FROM file)") == [(0, 0)]
