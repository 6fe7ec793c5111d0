"""Rig R5: a disk that is full at every byte of a line, and recovery when there is space again."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from faults.failing import FaultyFilesystem, ShortWrite
from faults.ledger import CWD, message
from faults.processes import Child, Tell, fast_folder
from faults.scenarios import is_root
from figures import measured
from sessile import Session, Store
from sessile.errors import StorageFull
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.secret_file import keep_secret

TOO_MUCH = "too much " * 100  # a line of about a thousand bytes
BATCH = 30  # number of places tried on one session, which grows by a line each time


def texts(session: Session) -> list[str]:
    return [entry["message"]["content"] for entry in session.get_entries()]


def check_full(store: Store, session: Session) -> None:
    """Check that an append that does not fit raises, adds no entry, and that everything can be read."""
    before = Path(session.path).read_bytes()
    shown = texts(session)
    with pytest.raises(StorageFull) as raised:
        session.append_message(message(TOO_MUCH))
    assert raised.value.path == session.path
    assert Path(session.path).read_bytes() == before
    assert texts(session) == shown
    assert session.leaf_id == session.get_entries()[-1].id
    with pytest.raises(StorageFull):
        session.append_message(message("latched, though this would"))
    assert [info.id for info in store.list_all()] == [session.id]
    reader = store.open(session.id, readonly=True)
    assert texts(reader) == shown
    assert not reader.findings
    assert len(reader.context().messages) == len(shown)
    reader.close()


def check_room_again(store: Store, session: Session) -> None:
    """Check that the session works again after `reopen`."""
    shown = texts(session)
    session.reopen()
    session.append_message(message("room again"))
    session.close()
    session = store.open(session.path, readonly=True)
    assert texts(session) == [*shown, "room again"]
    assert not session.findings
    session.close()


def with_a_limit(folder: str, room: int, tell: Tell) -> None:
    """Append in a process whose files may grow by only `room` bytes."""
    store = Store(folder, durability="process")
    session = store.open(store.list_all()[0].path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(session.path) + room, hard))
    check_full(store, session)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_room_again(store, session)
    tell("done")


def line_length(folder: str) -> int:
    """Create a session with two entries. Return the length of the line that will not fit."""
    with Store(folder, durability="process").create(CWD, publish=True) as session:
        session.append_message(message("first"))
        size = os.path.getsize(session.path)
        session.append_message(message(TOO_MUCH))
        return os.path.getsize(session.path) - size


def check_limits(step: int) -> int:
    """Try every limit from zero to one byte too few. Return the number of limits."""
    with fast_folder() as folder:
        rooms = range(0, line_length(f"{folder}/first"), step)
    for first in range(0, len(rooms), BATCH):
        with fast_folder() as folder:
            line_length(folder)
            for room in rooms[first : first + BATCH]:
                assert Child(partial(with_a_limit, folder, room)).finish() == ["done"], f"room for {room} bytes"
    measured("P3", "file size limits", places=len(rooms), silent=0, fragments=0)
    return len(rooms)


@pytest.mark.promise("P3")
def test_a_file_that_may_not_grow_raises_storage_full_at_some_bytes() -> None:
    """With a limit by RLIMIT_FSIZE there is no receipt and no fragment, and the session works after `reopen`."""
    assert check_limits(step=97) > 9


@pytest.mark.promise("P3")
@pytest.mark.long
def test_a_file_that_may_not_grow_raises_storage_full_at_every_byte() -> None:
    """The long form tries every number of bytes from zero to one too few."""
    assert check_limits(step=1) > 900


def check_cut_writes(folder: Path, code: int, step: int) -> int:
    """Cut the write of a line after each number of bytes. Return the number of cuts."""
    places = range(0, line_length(str(folder)), step)
    for written in places:
        faulty = FaultyFilesystem(PosixFilesystem(), plan=[ShortWrite(code, written=written)])
        store = Store(folder, fs=faulty, durability="process")
        session = store.open(store.list_all()[0].path)
        before = Path(session.path).read_bytes()
        with pytest.raises(StorageFull):
            session.append_message(message(TOO_MUCH))
        assert Path(session.path).read_bytes() == before
        faulty.heal()
        with pytest.raises(StorageFull):
            session.append_message(message(TOO_MUCH))
        session.reopen()
        session.close()
    measured("P3", "short writes, simulated", places=len(places), silent=0, fragments=0)
    return len(places)


every_code = pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.__getitem__)


@pytest.mark.promise("P3")
@every_code
def test_a_write_that_is_cut_somewhere_is_taken_back(tmp_path: Path, code: int) -> None:
    """A partial write on a full disk is undone, and the session works after `reopen`."""
    assert check_cut_writes(tmp_path, code, step=47) > 15


@pytest.mark.promise("P3")
@pytest.mark.long
@every_code
def test_a_write_that_is_cut_anywhere_is_taken_back(tmp_path: Path, code: int) -> None:
    """The long form cuts the write at every byte."""
    assert check_cut_writes(tmp_path, code, step=1) > 900


@pytest.mark.promise("P3")
@pytest.mark.promise("P11")
def test_a_first_line_that_does_not_fit_is_not_there_by_half(tmp_path: Path) -> None:
    """A secret file that does not fit is left empty, and is written when there is space again."""
    path = tmp_path / "secret"
    for written in range(44):
        faulty = FaultyFilesystem(PosixFilesystem(), plan=[ShortWrite(written=written)])
        with pytest.raises(StorageFull):
            keep_secret(str(path), fs=faulty)
        assert path.read_bytes() == b""
        faulty.heal()
        assert keep_secret(str(path), fs=faulty) == keep_secret(str(path))
        assert os.listdir(tmp_path) == ["secret"]
        path.unlink()


def check_tmpfs(folder: Path, step: int) -> int:
    """Run `on_a_full_disk` on a private disk of 1 MiB. Return the number of places tried."""
    here = Path(__file__).parent.parent
    mount = f'mount -t tmpfs -o size=1m sessile-test "{folder}" && exec "$@"'
    script = [sys.executable, "-m", "faults.on_a_full_disk", str(folder), str(step)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(here), str(here.parent / "src")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places = int(done.stdout)
    measured("P3", "full disks", places=places, silent=0, fragments=0)
    return places


@pytest.fixture
def own_mounts(tmp_path: Path) -> Path:
    """Return a folder on which a process may mount a private disk."""
    probe = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=64k sessile-test "{tmp_path}"']
    try:
        works = is_root() and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("the full-disk rig needs root and `unshare -m` to mount a small tmpfs: NOT PROVED on this machine")
    return tmp_path


@pytest.mark.promise("P3")
def test_a_full_tmpfs_raises_storage_full_and_recovers(own_mounts: Path) -> None:
    """On a full disk, appending and creating raise; reading, listing and checking work; freeing space restores writing."""
    assert check_tmpfs(own_mounts, step=97) > 9


@pytest.mark.promise("P3")
@pytest.mark.long
def test_a_full_tmpfs_at_every_byte_raises_storage_full_and_recovers(own_mounts: Path) -> None:
    """The long form leaves every number of bytes, from zero to the whole line."""
    assert check_tmpfs(own_mounts, step=1) > 900
