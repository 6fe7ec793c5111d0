"""The documented storage operations, on disk and in memory."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from faults.failing import Fail, FaultyFilesystem, ShortWrite
from sessile.errors import InvalidConfig, PermissionRefused, SessileError, SessionNotFound, StorageFailure, StorageFull
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.session_storage import FileSessionStorage, MemorySessionStorage, SessionStorage
from sessile.storage.trash import Trash

pytestmark = pytest.mark.mission("X21")

Make = Callable[[str | None], SessionStorage]


@pytest.fixture(params=["file", "memory"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that creates a storage with or without a trash."""
    if request.param == "file":
        return lambda trash: FileSessionStorage(trash=trash)
    return lambda trash: MemorySessionStorage(trash=trash)


@pytest.fixture
def storage(make: Make) -> SessionStorage:
    return make(None)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder that exists on disk but not in memory; the storage creates it on the first write."""
    return str(tmp_path / "root")


class TestTexts:
    """Reading and writing whole text files."""

    def test_written_text_is_read_back(self, storage: SessionStorage, root: str) -> None:
        """Any text is read back unchanged, and the folder is created."""
        text = "naïve 看一下 \u2028 line\n\0"
        storage.write_text(f"{root}/a/b.txt", text)
        assert storage.read_text(f"{root}/a/b.txt") == text
        storage.write_text_sync(f"{root}/a/b.txt", "new")
        assert storage.read_text(f"{root}/a/b.txt") == "new"

    def test_replacing_leaves_no_temporary_file(self, storage: SessionStorage, root: str) -> None:
        """After two writes the folder contains only the file."""
        storage.write_text(f"{root}/a.txt", "one")
        storage.write_text(f"{root}/a.txt", "two")
        assert storage.list_files_sync(root, "*") == [f"{root}/a.txt"]

    def test_a_missing_file_is_named(self, storage: SessionStorage, root: str) -> None:
        """Reading a missing file raises a typed error with the path."""
        for read in (storage.read_text, storage.stat_sync, lambda path: storage.read_text_prefix(path, 9)):
            with pytest.raises(SessionNotFound) as caught:
                read(f"{root}/missing")
            assert caught.value.path == f"{root}/missing"

    @pytest.mark.parametrize("size", range(12))
    def test_a_prefix_counts_bytes_and_cuts_between_characters(
        self, storage: SessionStorage, root: str, size: int
    ) -> None:
        """A partial character at the end of the prefix is omitted."""
        text = "aé看😀b"
        storage.write_text(f"{root}/a", text)
        prefix = storage.read_text_prefix(f"{root}/a", size)
        assert text.startswith(prefix)
        following = text[len(prefix) : len(prefix) + 1]
        assert len(prefix.encode()) <= size
        assert not following or len((prefix + following).encode()) > size

    def test_bytes_that_are_not_utf8_are_shown_as_replacement_characters(self, tmp_path: Path) -> None:
        """A damaged file can still be read."""
        (tmp_path / "a").write_bytes(b"x\xffy")
        assert FileSessionStorage().read_text(str(tmp_path / "a")) == "x\ufffdy"
        assert FileSessionStorage().read_text_prefix(str(tmp_path / "a"), 2) == "x\ufffd"

    @pytest.mark.promise("P11")
    def test_a_failed_replacement_leaves_the_old_text(self) -> None:
        """Whichever call fails, the file has the old or the new content, and no temporary file remains."""
        at = 0
        struck = True
        while struck:
            at += 1
            inner = MemoryFilesystem()
            SessionStorage(inner).write_text("/d/a", "old")
            faulty = FaultyFilesystem(inner, plan=[Fail(errno.EIO, at=at)])
            try:
                SessionStorage(faulty).write_text("/d/a", "new")
            except StorageFailure as error:
                assert error.path is not None
            struck = bool(faulty.struck)
            assert SessionStorage(inner).read_text("/d/a") in ("old", "new")
            assert inner.names("/d") == ["a"]
        assert at > 5


class TestNames:
    """Creating folders, listing and renaming."""

    def test_ensure_dir_makes_all_parents_and_may_be_repeated(self, storage: SessionStorage, root: str) -> None:
        """An existing folder is not an error."""
        storage.ensure_dir_sync(f"{root}/a/b/c")
        storage.ensure_dir_sync(f"{root}/a/b/c")
        assert storage.exists_sync(f"{root}/a/b/c")
        assert not storage.exists(f"{root}/a/b/d")

    def test_listing_knows_star_extension_and_name(self, storage: SessionStorage, root: str) -> None:
        """The three documented patterns return sorted absolute paths, without folders."""
        for name in ("b.jsonl", "a.jsonl", "c.txt", ".d.jsonl", "[x].txt"):
            storage.write_text(f"{root}/{name}", "")
        storage.ensure_dir_sync(f"{root}/folder.jsonl")
        assert storage.list_files_sync(root, "*.jsonl") == [f"{root}/{n}" for n in (".d.jsonl", "a.jsonl", "b.jsonl")]
        assert storage.list_files_sync(root, "c.txt") == [f"{root}/c.txt"]
        assert storage.list_files_sync(root, "[x].txt") == [f"{root}/[x].txt"]
        assert storage.list_files_sync(root, "?.txt") == []
        assert len(storage.list_files_sync(root, "*")) == 5

    def test_listing_a_missing_folder_gives_nothing_and_creates_nothing(
        self, storage: SessionStorage, root: str
    ) -> None:
        """A missing folder or a file returns an empty list."""
        assert storage.list_files_sync(f"{root}/missing", "*") == []
        assert not storage.exists_sync(root)
        storage.write_text(f"{root}/a", "")
        assert storage.list_files_sync(f"{root}/a", "*") == []

    def test_relative_paths_mean_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Paths are absolute, even if the folder is relative."""
        monkeypatch.chdir(tmp_path)
        storage = FileSessionStorage()
        storage.write_text("a.jsonl", "x")
        assert storage.list_files_sync(".", "*") == [str(tmp_path / "a.jsonl")]
        assert storage.read_text("a.jsonl") == "x"

    def test_renaming_replaces_and_unlinking_removes(self, storage: SessionStorage, root: str) -> None:
        """Renaming replaces the target, and unlinking removes the file."""
        storage.write_text(f"{root}/a", "one")
        storage.write_text(f"{root}/b/c", "two")
        storage.rename(f"{root}/a", f"{root}/b/c")
        assert not storage.exists(f"{root}/a")
        assert storage.read_text(f"{root}/b/c") == "one"
        storage.unlink(f"{root}/b/c")
        assert not storage.exists(f"{root}/b/c")
        with pytest.raises(SessionNotFound):
            storage.unlink(f"{root}/b/c")
        with pytest.raises(SessionNotFound):
            storage.rename(f"{root}/a", f"{root}/z")

    def test_stat_tells_size_and_age(self, storage: SessionStorage, root: str) -> None:
        """The size is in bytes; the modification time is in milliseconds and as a UTC datetime, and both agree."""
        before = time.time() - 1
        storage.write_text(f"{root}/a", "é")
        info = storage.stat_sync(f"{root}/a")
        assert info.size == 2
        assert before * 1000 <= info.mtime_ms <= (time.time() + 1) * 1000
        assert info.mtime.tzinfo is UTC
        assert abs(info.mtime.timestamp() * 1000 - info.mtime_ms) < 1
        assert isinstance(info.mtime, datetime)

    @pytest.mark.skipif(os.getuid() == 0, reason="root may do anything")
    def test_a_refused_folder_is_a_typed_error(self, tmp_path: Path) -> None:
        """A permission error has its own type."""
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(PermissionRefused):
                FileSessionStorage().write_text(str(tmp_path / "a"), "")
        finally:
            tmp_path.chmod(0o700)


class TestWriter:
    """Writing lines."""

    def test_appending_goes_on_and_writing_begins_anew(self, storage: SessionStorage, root: str) -> None:
        """`a` keeps the content, `w` does not; each line is visible at once."""
        path = f"{root}/s/a.jsonl"
        writer = storage.open_writer(path)
        writer.write_line('{"a":1}\n')
        assert storage.read_text(path) == '{"a":1}\n'
        writer.flush()
        writer.fsync()
        writer.close()
        writer.close()
        again = storage.open_writer(path, "a")
        again.write_line('{"b":2}\n')
        again.close()
        assert storage.read_text(path) == '{"a":1}\n{"b":2}\n'
        anew = storage.open_writer(path, flags="w")
        anew.write_line("x\n")
        anew.close()
        assert storage.read_text(path) == "x\n"
        assert writer.get_error() is again.get_error() is anew.get_error() is None

    def test_a_closed_writer_refuses(self, storage: SessionStorage, root: str) -> None:
        """Writing after closing raises, and this is not latched as an error of the file."""
        writer = storage.open_writer(f"{root}/a")
        writer.close()
        uses: list[Callable[[], object]] = [lambda: writer.write_line("x\n"), writer.fsync, writer.flush]
        for use in uses:
            with pytest.raises(StorageFailure, match="closed"):
                use()
        assert writer.get_error() is None

    @pytest.mark.mission("X18")
    @pytest.mark.promise("P3")
    def test_the_first_error_is_latched_raised_again_and_told_once(self) -> None:
        """A full disk is raised by the failing write, by every later call, and by close."""
        heard: list[SessileError] = []
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[ShortWrite(written=3, at=2)])
        writer = SessionStorage(faulty).open_writer("/a", on_error=heard.append)
        writer.write_line("one\n")
        with pytest.raises(StorageFull) as first:
            writer.write_line("second\n")
        faulty.heal()
        uses: list[Callable[[], object]] = [lambda: writer.write_line("x\n"), writer.flush, writer.fsync, writer.close]
        for use in uses:
            with pytest.raises(StorageFull) as later:
                use()
            assert later.value is first.value
        assert heard == [first.value]
        assert writer.get_error() is first.value
        assert first.value.path == "/a"

    def test_a_failed_sync_is_not_tried_again(self) -> None:
        """The kernel would report success the second time."""
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"sync"})])
        writer = SessionStorage(faulty).open_writer("/a")
        writer.write_line("x\n")
        with pytest.raises(StorageFailure):
            writer.fsync()
        with pytest.raises(StorageFailure):
            writer.fsync()
        assert [call.method for call in faulty.calls].count("sync") == 1

    def test_an_error_while_opening_is_raised_and_told(self) -> None:
        """An error on opening is raised and reported."""
        heard: list[SessileError] = []
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"open"})])
        with pytest.raises(StorageFailure):
            SessionStorage(faulty).open_writer("/a", on_error=heard.append)
        assert len(heard) == 1

    def test_an_error_while_closing_is_raised(self) -> None:
        """Some file systems report errors only on closing."""
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"close"})])
        writer = SessionStorage(faulty).open_writer("/a")
        with pytest.raises(StorageFailure):
            writer.close()
        writer.close()
        assert writer.get_error() is not None


@pytest.mark.promise("P15")
class TestDeleting:
    """A deleted session is moved to the trash."""

    def test_without_a_trash_nothing_is_deleted(self, storage: SessionStorage, root: str) -> None:
        """The error has a hint, and the session is not deleted."""
        storage.write_text(f"{root}/s.jsonl", "x")
        with pytest.raises(InvalidConfig) as caught:
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert "trash=" in (caught.value.hint or "")
        assert storage.read_text(f"{root}/s.jsonl") == "x"

    def test_file_and_artifacts_are_moved_and_come_back(self, make: Make, root: str) -> None:
        """The session and its artifacts are moved, and restoring returns the same bytes."""
        storage = make(f"{root}/trash")
        storage.write_text(f"{root}/p/s.jsonl", "session")
        storage.write_text(f"{root}/p/s/artifact.txt", "artifact")
        storage.write_text(f"{root}/p/other.jsonl", "other")
        deletion = storage.delete_session_with_artifacts(f"{root}/p/s.jsonl")
        assert deletion.paths == (f"{root}/p/s.jsonl", f"{root}/p/s")
        assert not storage.exists(f"{root}/p/s.jsonl")
        assert not storage.exists(f"{root}/p/s")
        assert storage.read_text(f"{root}/p/other.jsonl") == "other"
        Trash(storage._fs, f"{root}/trash").undo(deletion.token)
        assert storage.read_text(f"{root}/p/s.jsonl") == "session"
        assert storage.read_text(f"{root}/p/s/artifact.txt") == "artifact"

    def test_the_same_session_can_be_deleted_twice(self, make: Make, root: str) -> None:
        """A second deletion does not affect the first one."""
        storage = make(f"{root}/trash")
        for text in ("first", "second"):
            storage.write_text(f"{root}/s.jsonl", text)
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert len(Trash(storage._fs, f"{root}/trash").list()) == 2

    def test_a_missing_session_is_named(self, make: Make, root: str) -> None:
        """Deleting a missing session raises, and the trash stays empty."""
        storage = make(f"{root}/trash")
        with pytest.raises(SessionNotFound):
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert not storage.exists(f"{root}/trash")
