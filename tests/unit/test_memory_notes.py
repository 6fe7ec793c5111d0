"""Notes of memory flushes in a workspace: files, days, modes, links, and concurrent writers."""

from __future__ import annotations

import errno
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle
from faults.processes import Child, Tell
from sessile.core.memory_flush import flush_key, holds_block
from sessile.errors import PermissionRefused, SessionBusy, StorageFull, UnsafePath
from sessile.gateway.conversations.notes import append_notes
from sessile.storage import line_file
from sessile.storage.filesystem import PosixFilesystem

pytestmark = pytest.mark.mission("Y10")

BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT = 1_794_787_200_000  # 2026-11-16T00:00:00Z
NOON = MIDNIGHT + 12 * 3_600_000
DAY = "memory/2026-11-16.md"
FS = PosixFilesystem()


def noted(workspace: Path, reply: str = "Paris is booked.", **options: Any) -> str | None:
    usual: dict[str, Any] = {"key": "s:0", "now": NOON, "zone": UTC}
    return append_notes(options.pop("fs", FS), str(workspace), reply, **usual | options)


@pytest.fixture
def open_umask() -> Any:
    """A umask that lets everyone read new files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_notes_begin_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    """The folder and a missing workspace are created, too."""
    workspace = tmp_path / "agents/main"
    assert noted(workspace) == DAY
    file = workspace / DAY
    assert file.read_text() == "## 12:00\n\nParis is booked.\n\n<!-- sessile.flush s:0 -->\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_notes_are_appended_and_modes_stay(tmp_path: Path) -> None:
    """The existing text is not changed, whatever its bytes are."""
    file = tmp_path / DAY
    file.parent.mkdir(mode=0o755)
    file.write_bytes(b"# My day\r\n\xff\xfe no newline at the end")
    file.chmod(0o644)
    assert noted(tmp_path) == DAY
    assert file.read_bytes().startswith(b"# My day\r\n\xff\xfe no newline at the end\n\n## 12:00\n")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_the_same_flush_is_noted_once(tmp_path: Path) -> None:
    """A second answer of the model to the same flush is ignored; another cycle is another flush."""
    noted(tmp_path)
    before = (tmp_path / DAY).read_bytes()
    assert noted(tmp_path, "other words") is None
    assert (tmp_path / DAY).read_bytes() == before
    assert noted(tmp_path, key=flush_key("s", 1)) == DAY
    assert (tmp_path / DAY).read_bytes().startswith(before)


@pytest.mark.parametrize("reply", ["", " \n ", "NO_REPLY", "NO_REPLY nothing new"])
def test_silence_leaves_no_trace(tmp_path: Path, reply: str) -> None:
    """Neither a file nor a folder is created."""
    assert noted(tmp_path, reply) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("zone", [UTC, BERLIN, ZoneInfo("Pacific/Apia")])
def test_a_flush_around_midnight_is_found_in_the_file_of_the_day_before(tmp_path: Path, zone: Any) -> None:
    """The file is found even if the previous day had an hour less."""
    midnight = int(datetime(2026, 3, 30, tzinfo=zone).timestamp() * 1000)
    assert noted(tmp_path, now=midnight - 1, zone=zone) == "memory/2026-03-29.md"
    assert noted(tmp_path, now=midnight, zone=zone) is None
    assert noted(tmp_path, now=midnight, zone=zone, key="s:1") == "memory/2026-03-30.md"
    assert sorted(path.name for path in (tmp_path / "memory").iterdir()) == ["2026-03-29.md", "2026-03-30.md"]


def test_a_file_of_the_day_before_that_is_none_does_not_stop_anybody(tmp_path: Path) -> None:
    """A link or a folder with the name of the previous day's file is ignored."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/2026-11-15.md").symlink_to("/etc/hostname")
    assert noted(tmp_path) == DAY
    (tmp_path / "memory/2026-11-16.md").rename(tmp_path / "memory/kept.md")
    (tmp_path / "memory/2026-11-15.md").unlink()
    (tmp_path / "memory/2026-11-15.md").mkdir()
    assert noted(tmp_path) == DAY


# -- links


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Links in place of the folder or the file are refused, also dangling ones."""
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    (workspace / "memory").symlink_to(outside)
    with pytest.raises(UnsafePath) as caught:
        noted(workspace)
    assert caught.value.path == str(workspace / "memory") and caught.value.hint
    (workspace / "memory").unlink()
    (workspace / "memory").mkdir()
    (workspace / DAY).symlink_to(outside / "taken.md")
    with pytest.raises(UnsafePath) as caught:
        noted(workspace)
    assert caught.value.path == str(workspace / DAY)
    assert list(outside.iterdir()) == []


def test_a_link_that_is_put_in_place_meanwhile_is_noticed(tmp_path: Path) -> None:
    """If a link replaces the folder before the file is opened, nothing is appended."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "memory").mkdir()

    def swap() -> None:
        (tmp_path / "memory").rmdir()
        (tmp_path / "memory").symlink_to(outside)

    fs = FaultyFilesystem(FS, plan=[Meddle(swap, on={"open"})])
    with pytest.raises(UnsafePath):
        noted(tmp_path, fs=fs)
    assert fs.struck
    assert [path.read_bytes() for path in outside.iterdir()] == [b""]


def test_a_workspace_may_be_a_link_itself(tmp_path: Path) -> None:
    """The owner decides where the workspace is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "workspace").symlink_to(tmp_path / "real")
    assert noted(tmp_path / "workspace") == DAY
    assert (tmp_path / "real" / DAY).exists()


@pytest.mark.parametrize("kind", ["file for a folder", "folder for a file", "pipe"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    """The error has the path, and nothing is changed."""
    if kind == "file for a folder":
        (tmp_path / "memory").write_bytes(b"mine")
    else:
        (tmp_path / "memory").mkdir()
        (os.mkfifo if kind == "pipe" else os.mkdir)(tmp_path / DAY)
    with pytest.raises(OSError) as caught:
        noted(tmp_path)
    assert str(tmp_path / "memory") in str(caught.value.filename)


# -- failures and concurrent changes


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("method", ["mkdir", "open"])
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path, code: int, method: str) -> None:
    """The error has the path and a hint."""
    with pytest.raises(PermissionRefused) as caught:
        noted(tmp_path, fs=FaultyFilesystem(FS, plan=[Fail(code, on={method})]))
    assert caught.value.path and caught.value.hint


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """The error has a hint."""
    with pytest.raises(StorageFull, match="No space") as caught:
        noted(tmp_path, fs=FaultyFilesystem(FS, plan=[Fail(errno.ENOSPC, on={"write"})]))
    assert caught.value.path == str(tmp_path / DAY)
    assert "taken again" in (caught.value.hint or "")


def test_an_editor_that_replaces_the_file_meanwhile_keeps_its_text(tmp_path: Path) -> None:
    """The notes are appended to the current file of that name, not to the replaced one."""
    noted(tmp_path, key="first")
    file = tmp_path / DAY

    def save() -> None:
        (tmp_path / "memory/new").write_text("edited\n")
        (tmp_path / "memory/new").rename(file)

    fs = FaultyFilesystem(FS, plan=[Meddle(save, on={"lock"})])
    assert noted(tmp_path, key="second", fs=fs) == DAY
    assert file.read_text().startswith("edited\n\n## 12:00") and holds_block(file.read_text(), "second")


def test_an_editor_that_never_stops_is_told(tmp_path: Path) -> None:
    """After some attempts an error is raised."""
    noted(tmp_path, key="first")

    def save() -> None:
        (tmp_path / "memory/new").write_text("edited\n")
        (tmp_path / "memory/new").rename(tmp_path / DAY)

    plan = [Meddle(save, at=number, on={"lock"}) for number in range(1, 50)]
    with pytest.raises(SessionBusy):
        noted(tmp_path, key="second", fs=FaultyFilesystem(FS, plan=plan))


def test_what_somebody_else_appended_behind_a_failure_stays(tmp_path: Path) -> None:
    """The failed block is not truncated if another program appended after it."""
    noted(tmp_path, key="first")
    file = tmp_path / DAY

    def append() -> None:
        with file.open("a") as other:
            other.write("theirs\n" * 100)

    fs = FaultyFilesystem(FS, plan=[Meddle(append, on={"sync"}), Fail(errno.EIO, on={"sync"})])
    with pytest.raises(OSError, match="Input/output"):
        noted(tmp_path, key="second", fs=fs)
    assert file.read_text().endswith("theirs\n" * 100)


def test_somebody_who_holds_the_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a timeout."""
    monkeypatch.setattr(line_file, "_PATIENCE", 0.05)
    noted(tmp_path, key="first")
    fd = FS.open(str(tmp_path / DAY), os.O_RDWR)
    assert FS.lock(fd)
    with pytest.raises(SessionBusy):
        noted(tmp_path, key="second")
    FS.close(fd)
    assert noted(tmp_path, key="second") == DAY


def test_threads_and_processes_do_not_mix_their_notes(tmp_path: Path) -> None:
    """Every block is complete and written once, even if several processes repeat the same flush."""
    long = "word " * 4000

    def work(name: int) -> None:
        for number in range(15):
            noted(tmp_path, f"{name} {long} {name}", key=f"{name}:{number}")
            noted(tmp_path, "shared", key=f"shared:{number}")

    def child(tell: Tell) -> None:
        work(0)
        tell(True)

    process = Child(child)
    threads = [threading.Thread(target=work, args=(name,)) for name in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.finish() == [True]
    blocks = (tmp_path / DAY).read_text().split("## 12:00\n\n")[1:]
    own = [f"{name} {long} {name}\n\n<!-- sessile.flush {name}:{n} -->" for name in range(3) for n in range(15)]
    shared = [f"shared\n\n<!-- sessile.flush shared:{n} -->" for n in range(15)]
    assert sorted(block.strip() for block in blocks) == sorted(own + shared)
