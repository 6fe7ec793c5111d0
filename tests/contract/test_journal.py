"""Every journal keeps the numbered behaviours of `JournalContract`: in files, in memory and in a database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from contract.sqlite_journal import SqliteJournal
from sessile import BlobStore, Store
from sessile.session import SessionView
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Journal
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import Create, JournalContract, Open

pytestmark = pytest.mark.mission("X21")


def create_in(fs: Filesystem, folder: str, *, cached: bool) -> Create:
    """Return a function that creates journals in files."""

    def create(lines: Sequence[bytes]) -> Open:
        number = len(fs.names(folder))
        path = f"{folder}/{number}.jsonl"
        atomic.write_new(fs, path, [raw + b"\n" for raw in lines])
        index_path = f"{folder}/cache/{number}.index" if cached else None
        return lambda: FileJournal(fs, path, index_path=index_path)

    return create


class TestFileJournal(JournalContract):
    """A file on disk, with its index in a cache."""

    @pytest.fixture
    def create(self, tmp_path: Path) -> Create:
        return create_in(PosixFilesystem(), str(tmp_path), cached=True)


class TestFileJournalWithoutCache(JournalContract):
    """A file on disk that is scanned at every open."""

    @pytest.fixture
    def create(self, tmp_path: Path) -> Create:
        return create_in(PosixFilesystem(), str(tmp_path), cached=False)


class TestMemoryJournal(JournalContract):
    """A file in memory."""

    @pytest.fixture
    def create(self) -> Create:
        fs = MemoryFilesystem()
        fs.mkdir("/s")
        return create_in(fs, "/s", cached=True)


class TestSqliteJournal(JournalContract):
    """A table in a database."""

    @pytest.fixture
    def create(self, tmp_path: Path) -> Create:
        def create(lines: Sequence[bytes]) -> Open:
            path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.db")
            SqliteJournal.create(path, lines)

            def open_() -> Journal:
                return SqliteJournal(path)

            return open_

        return create


def test_a_session_shows_the_same_from_a_database_as_from_a_file(tmp_path: Path) -> None:
    """Entries, tree, labels and contexts are the same through the journal interface."""
    session = Store(tmp_path / "store").create("/work/app", publish=True)
    asked = session.append_message({"role": "user", "content": "why?"})
    session.append_model_change("echo/demo")
    kept = session.append_message({"role": "assistant", "content": []})
    session.append_label_change(asked.id, "here")
    session.append_compaction("because", kept.id, 100)
    session.branch(asked.id)
    session.append_message({"role": "user", "content": "why not?"})
    path = str(tmp_path / "session.db")
    SqliteJournal.create(path, Path(session.path).read_bytes().splitlines())
    with closing(SqliteJournal(path)) as journal:
        view = SessionView(journal, BlobStore(str(tmp_path / "blobs")))
        assert view.get_entries() == session.get_entries()
        assert view.leaf_id == session.leaf_id
        assert view.get_label(asked.id) == "here"
        assert [head.id for head in view.get_heads()] == [head.id for head in session.get_heads()]
        for entry in session.get_entries():
            assert view.context(entry.id) == session.context(entry.id)
    session.close()
