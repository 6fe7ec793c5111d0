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
    """Makes a storage, with or without a trash."""
    if request.param == "file":
        return lambda trash: FileSessionStorage(trash=trash)
    return lambda trash: MemorySessionStorage(trash=trash)


@pytest.fixture
def storage(make: Make) -> SessionStorage:
    return make(None)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder that exists on the disk and does not exist in memory; the storage makes it when it writes."""
    return str(tmp_path / "root")


class TestTexts:
    """Whole files of text."""

    def test_written_text_is_read_back(self, storage: SessionStorage, root: str) -> None:
        """Any text comes back as it was written, and the folder is made."""
        text = "naïve 看一下 \u2028 line\n\0"
        storage.write_text(f"{root}/a/b.txt", text)
        assert storage.read_text(f"{root}/a/b.txt") == text
        storage.write_text_sync(f"{root}/a/b.txt", "new")
        assert storage.read_text(f"{root}/a/b.txt") == "new"

    def test_replacing_leaves_no_temporary_file(self, storage: SessionStorage, root: str) -> None:
        """After writing twice the folder holds the one file."""
        storage.write_text(f"{root}/a.txt", "one")
        storage.write_text(f"{root}/a.txt", "two")
        assert storage.list_files_sync(root, "*") == [f"{root}/a.txt"]

    def test_a_missing_file_is_named(self, storage: SessionStorage, root: str) -> None:
        """Reading what is not there raises a typed error with the path."""
        for read in (storage.read_text, storage.stat_sync, lambda path: storage.read_text_prefix(path, 9)):
            with pytest.raises(SessionNotFound) as caught:
                read(f"{root}/missing")
            assert caught.value.path == f"{root}/missing"

    @pytest.mark.parametrize("size", range(12))
    def test_a_prefix_counts_bytes_and_cuts_between_characters(
        self, storage: SessionStorage, root: str, size: int
    ) -> None:
        """Of a character of which only a part lies in the prefix nothing is returned."""
        text = "aé看😀b"
        storage.write_text(f"{root}/a", text)
        prefix = storage.read_text_prefix(f"{root}/a", size)
        assert text.startswith(prefix)
        following = text[len(prefix) : len(prefix) + 1]
        assert len(prefix.encode()) <= size
        assert not following or len((prefix + following).encode()) > size

    def test_bytes_that_are_not_utf8_are_shown_as_replacement_characters(self, tmp_path: Path) -> None:
        """A damaged file can still be looked at."""
        (tmp_path / "a").write_bytes(b"x\xffy")
        assert FileSessionStorage().read_text(str(tmp_path / "a")) == "x\ufffdy"
        assert FileSessionStorage().read_text_prefix(str(tmp_path / "a"), 2) == "x\ufffd"

    @pytest.mark.promise("P11")
    def test_a_failed_replacement_leaves_the_old_text(self) -> None:
        """Whatever call fails, the file is the old one or the new one, and no temporary file stays."""
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
    """Folders, lists, renaming."""

    def test_ensure_dir_makes_all_parents_and_may_be_repeated(self, storage: SessionStorage, root: str) -> None:
        """A folder that is there already is no error."""
        storage.ensure_dir_sync(f"{root}/a/b/c")
        storage.ensure_dir_sync(f"{root}/a/b/c")
        assert storage.exists_sync(f"{root}/a/b/c")
        assert not storage.exists(f"{root}/a/b/d")

    def test_listing_knows_star_extension_and_name(self, storage: SessionStorage, root: str) -> None:
        """The three documented patterns, sorted, absolute; folders are not files."""
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
        """No folder, no files, no error; a file is no folder either."""
        assert storage.list_files_sync(f"{root}/missing", "*") == []
        assert not storage.exists_sync(root)
        storage.write_text(f"{root}/a", "")
        assert storage.list_files_sync(f"{root}/a", "*") == []

    def test_relative_paths_mean_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is listed is absolute however the folder was named."""
        monkeypatch.chdir(tmp_path)
        storage = FileSessionStorage()
        storage.write_text("a.jsonl", "x")
        assert storage.list_files_sync(".", "*") == [str(tmp_path / "a.jsonl")]
        assert storage.read_text("a.jsonl") == "x"

    def test_renaming_replaces_and_unlinking_removes(self, storage: SessionStorage, root: str) -> None:
        """The target is replaced at once; what is gone is gone."""
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
        """Sizes are bytes; the age comes as milliseconds and as a moment in UTC, and both agree."""
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
        """Permissions are named as such."""
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(PermissionRefused):
                FileSessionStorage().write_text(str(tmp_path / "a"), "")
        finally:
            tmp_path.chmod(0o700)


class TestWriter:
    """Lines, one after the other."""

    def test_appending_goes_on_and_writing_begins_anew(self, storage: SessionStorage, root: str) -> None:
        """`a` keeps what is there, `w` does not; each line is visible at once."""
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
        """Writing after closing raises and is not latched as an error of the file."""
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
        """A full disk is raised by the line that met it, by everything after it, and by close."""
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
        """The kernel would say yes the second time."""
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"sync"})])
        writer = SessionStorage(faulty).open_writer("/a")
        writer.write_line("x\n")
        with pytest.raises(StorageFailure):
            writer.fsync()
        with pytest.raises(StorageFailure):
            writer.fsync()
        assert [call.method for call in faulty.calls].count("sync") == 1

    def test_an_error_while_opening_is_raised_and_told(self) -> None:
        """There is no writer without a file."""
        heard: list[SessileError] = []
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"open"})])
        with pytest.raises(StorageFailure):
            SessionStorage(faulty).open_writer("/a", on_error=heard.append)
        assert len(heard) == 1

    def test_an_error_while_closing_is_raised(self) -> None:
        """Some disks only say at the end that they failed."""
        faulty = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"close"})])
        writer = SessionStorage(faulty).open_writer("/a")
        with pytest.raises(StorageFailure):
            writer.close()
        writer.close()
        assert writer.get_error() is not None


@pytest.mark.promise("P15")
class TestDeleting:
    """Deleting a session moves it to the trash."""

    def test_without_a_trash_nothing_is_deleted(self, storage: SessionStorage, root: str) -> None:
        """The error says what to do, and the session stays."""
        storage.write_text(f"{root}/s.jsonl", "x")
        with pytest.raises(InvalidConfig) as caught:
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert "trash=" in (caught.value.hint or "")
        assert storage.read_text(f"{root}/s.jsonl") == "x"

    def test_file_and_artifacts_are_moved_and_come_back(self, make: Make, root: str) -> None:
        """Nothing of the session is left in its place, and the trash gives all of it back, byte for byte."""
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
        """A second deletion does not disturb the first one."""
        storage = make(f"{root}/trash")
        for text in ("first", "second"):
            storage.write_text(f"{root}/s.jsonl", text)
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert len(Trash(storage._fs, f"{root}/trash").list()) == 2

    def test_a_missing_session_is_named(self, make: Make, root: str) -> None:
        """Deleting what is not there raises and leaves the trash empty."""
        storage = make(f"{root}/trash")
        with pytest.raises(SessionNotFound):
            storage.delete_session_with_artifacts(f"{root}/s.jsonl")
        assert not storage.exists(f"{root}/trash")
