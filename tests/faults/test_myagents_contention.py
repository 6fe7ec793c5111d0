"""Real programs that speak MyAgents' lock protocol, at the same time as ours, on a real disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import myagents_peer
from myagents_folder import asked, told
from sessile.errors import SessionBusy
from sessile.storage.filesystem import PosixFilesystem
from sessile.stores.myagents.store import MyAgentsStore

pytestmark = [pytest.mark.mission("M5"), pytest.mark.mission("M4")]

TURNS = 60


def store_in(folder: Path, version: int) -> MyAgentsStore:
    """A store with a row for each participant; where later versions are at home there is a folder for their locks."""
    root = folder / "theirs"
    root.mkdir()
    if version > 1:
        (root / "session-locks").mkdir()
    store = MyAgentsStore(PosixFilesystem(), str(root), str(folder / "ours"))
    for name in ("peer-0", "peer-1", "s"):
        store.create(name, "/work")
    return store


def peer(store: MyAgentsStore, version: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, myagents_peer.__file__, store.places.root, str(version), name, str(TURNS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("version", [1, 2])
def test_programs_of_theirs_and_ours_lose_nothing_of_each_other(tmp_path: Path, version: int) -> None:
    """Every turn that a peer had is in the index, every message of ours in its file, and the statistics catch up."""
    store = store_in(tmp_path, version)
    peers = [peer(store, version, f"peer-{number}") for number in range(2)]
    messages: list[dict[str, object]] = []
    owed = 0
    while any(each.poll() is None for each in peers) and len(messages) < 2000:
        messages += [asked(len(messages)), told(len(messages) + 1)]
        owed += store.save("s", messages).owed is not None
    had = [int(each.communicate()[0]) for each in peers]
    assert all(each.returncode == 0 for each in peers)
    store.save("s", [*messages, asked(len(messages))])
    store.settle()
    rows = {each.id: each for each in store.list_sessions()}
    assert [rows[f"peer-{number}"].value.get("count", 0) for number in range(2)] == had
    assert [each.id for each in store.load("s").messages] == [str(number) for number in range(len(messages) + 1)]
    assert rows["s"].stats == store.recount("s")
    assert len(messages) > 20 and sum(had) > TURNS // 2
    assert not (Path(store.places.root) / "sessions.lock").exists()
    assert not [name for name in os.listdir(store.places.root) if name.endswith(".tmp")]


def test_the_lock_of_a_killed_program_of_a_later_version_is_broken_at_once(tmp_path: Path) -> None:
    """And that of a living one never."""
    store = store_in(tmp_path, 2)
    lock = Path(store.places.index_lock)
    holder = subprocess.Popen(["sleep", "60"])
    try:
        lock.mkdir()
        (lock / "owner").write_text(f"node:{holder.pid}:1")
        os.utime(lock, (1, 1))
        saved = store.append("s", [asked(0)])
        assert isinstance(saved.owed, SessionBusy) and len(store.load("s").rows) == 1
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    start = time.monotonic()
    assert store.append("s", [asked(1)]).owed is None
    assert time.monotonic() - start < 1
    known = store.get("s")
    assert known is not None and known.stats == store.recount("s")


def test_a_stale_lock_of_the_first_version_is_broken_by_its_age(tmp_path: Path) -> None:
    """30 s by the time of the folder."""
    store = store_in(tmp_path, 1)
    lock = Path(store.places.index_lock)
    lock.mkdir()
    assert store.append("s", [asked(0)]).owed is not None
    old = time.time() - 31
    os.utime(lock, (old, old))
    assert store.append("s", [asked(1)]).owed is None
    assert not lock.exists()


def test_the_first_version_can_break_the_lock_that_we_left(tmp_path: Path) -> None:
    """It does so with rmdir, which only removes an empty folder."""
    store = store_in(tmp_path, 1)
    with store.index._lock.held():
        assert os.listdir(store.places.index_lock) == []


def test_files_are_private_and_links_are_not_followed(tmp_path: Path) -> None:
    """Attachments and session files are 0600."""
    store = store_in(tmp_path, 1)
    store.append("s", [asked(0)])
    said = store.attachments.save("s", "a", "x.png", "image/png", b"data")
    for path in (store.places.session("s"), store.places.attachment_at(said["path"]), store.places.index):
        assert os.stat(path).st_mode & 0o777 == 0o600
    outside = tmp_path / "outside"
    outside.mkdir()
    (Path(store.places.attachments) / "evil").symlink_to(outside)
    with pytest.raises(OSError):
        store.attachments.save("evil", "a", "x.png", "image/png", b"data")
    assert os.listdir(outside) == []
