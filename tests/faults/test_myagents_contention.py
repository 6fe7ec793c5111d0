"""Real programs with MyAgents' lock protocol run at the same time as ours, on a real disk."""

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
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import SessionBusy
from sessile.storage.filesystem import PosixFilesystem

pytestmark = [pytest.mark.mission("M5"), pytest.mark.mission("M4")]

TURNS = 60


def store_in(folder: Path, version: int) -> MyAgentsStore:
    """Return a store with a row for each participant, and a folder for locks if a later version is installed."""
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
    """Every turn of a peer is in the index, each of our messages is in its file, and the statistics catch up."""
    store = store_in(tmp_path, version)
    peers = [peer(store, version, f"peer-{number}") for number in range(2)]
    messages: list[dict[str, object]] = []
    owed = 0
    while any(each.poll() is None for each in peers) and len(messages) < 2000:
        messages += [asked(len(messages)), told(len(messages) + 1)]
        owed += store.save("s", messages).pending is not None
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


WRITER = """
import sys
from sessile.storage.filesystem import PosixFilesystem
from sessile.agents.myagents.store import MyAgentsStore
store = MyAgentsStore(PosixFilesystem(), sys.argv[1], sys.argv[2])
for number in range(int(sys.argv[3])):
    usage = {"inputTokens": 1, "outputTokens": 2}
    rows = [{"id": str(number), "role": "user", "content": "x"}, {"id": "a", "role": "assistant", "usage": usage}]
    store.append("s", rows)
"""


def test_processes_of_ours_on_one_session_count_every_message_once(tmp_path: Path) -> None:
    """Each process recounts what the others could not write to the index, which a peer keeps busy."""
    store = store_in(tmp_path, 1)
    command = [sys.executable, "-c", WRITER, store.places.root, store.places.ours, str(TURNS)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    other = peer(store, 1, "peer-0")
    other.communicate()
    assert [each.wait() for each in writers] == [0, 0, 0]
    store.settle()
    known = store.get("s")
    assert known is not None and known.stats == store.recount("s")
    assert known.stats is not None and known.stats["messageCount"] == 3 * TURNS
    assert os.listdir(store.places.pending) == []


def test_the_lock_of_a_killed_program_of_a_later_version_is_broken_at_once(tmp_path: Path) -> None:
    """The lock of a killed process is broken at once, that of a living one never."""
    store = store_in(tmp_path, 2)
    lock = Path(store.places.index_lock)
    holder = subprocess.Popen(["sleep", "60"])
    try:
        lock.mkdir()
        (lock / "owner").write_text(f"node:{holder.pid}:1")
        os.utime(lock, (1, 1))
        saved = store.append("s", [asked(0)])
        assert isinstance(saved.pending, SessionBusy) and len(store.load("s").rows) == 1
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    start = time.monotonic()
    assert store.append("s", [asked(1)]).pending is None
    assert time.monotonic() - start < 10
    known = store.get("s")
    assert known is not None and known.stats == store.recount("s")


def test_a_stale_lock_of_the_first_version_is_broken_by_its_age(tmp_path: Path) -> None:
    """A lock of the first version is broken after 30 s, by the modification time of its folder."""
    store = store_in(tmp_path, 1)
    lock = Path(store.places.index_lock)
    lock.mkdir()
    assert store.append("s", [asked(0)]).pending is not None
    old = time.time() - 31
    os.utime(lock, (old, old))
    assert store.append("s", [asked(1)]).pending is None
    assert not lock.exists()


HOLDER = """
import sys, time
from sessile.storage.filesystem import PosixFilesystem
from sessile.agents.myagents.store import MyAgentsStore
with MyAgentsStore(PosixFilesystem(), sys.argv[1], sys.argv[2]).index._lock.held():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("version", [1, 2])
def test_the_lock_of_a_process_of_ours_is_respected_and_broken_when_that_was_killed(
    tmp_path: Path, version: int
) -> None:
    """The first version breaks our lock after 30 s with rmdir, which needs an empty folder; later versions do at once."""
    store = store_in(tmp_path, version)
    lock = Path(store.places.index_lock)
    command = [sys.executable, "-c", HOLDER, store.places.root, store.places.ours]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert os.listdir(lock) == ([] if version == 1 else ["owner"])
        assert once(store, version) == 0, "it is held"
        holder.kill()
        holder.wait()
    if version == 1:
        assert once(store, version) == 0, "it is not stale yet"
        os.utime(lock, (time.time() - 31,) * 2)
    start = time.monotonic()
    assert once(store, version) == 1
    assert time.monotonic() - start < 10 and not lock.exists()


def once(store: MyAgentsStore, version: int) -> int:
    """Run a peer that wants one turn. Return the number of turns it completes."""
    command = [sys.executable, myagents_peer.__file__, store.places.root, str(version), "peer-0", "1"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_files_are_private_and_links_are_not_followed(tmp_path: Path) -> None:
    """Attachments and session files have mode 0600."""
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


@pytest.mark.mission("M1")
def test_a_folder_that_was_moved_and_linked_is_written_as_well(tmp_path: Path) -> None:
    """MyAgents' folder cannot be configured, so users move and link it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "theirs").symlink_to(tmp_path / "elsewhere")
    store = MyAgentsStore(PosixFilesystem(), str(tmp_path / "theirs"), str(tmp_path / "ours"))
    store.create("s", "/work")
    store.append("s", [asked(0)])
    said = store.attachments.save("s", "a", "x.png", "image/png", b"data")
    assert store.attachments.read(said["path"]) == b"data"
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["attachments", "sessions", "sessions.json"]
