"""Every rig must report a loss when the protection that it tests is removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import FaultyFilesystem, Meddle, ShortWrite
from faults.ledger import CWD, message
from faults.processes import Child, Tell, fast_folder
from faults.rigs import check_kills, check_power_cuts, check_successors
from faults.scenarios import SCENARIOS
from faults.test_full_disk import TOO_MUCH, line_length
from faults.test_kills import append_for_ever, check_appends
from faults.test_many_processes import append_slowly, check_hostile
from sessile import Store
from sessile.storage import atomic, journal, line_file
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def reports_loss(rig: Callable[[], object]) -> bool:
    """Return whether a rig reports a loss."""
    try:
        rig()
    except AssertionError:
        return True
    return False


@pytest.mark.promise("P2")
@pytest.mark.parametrize("name", ["append", "create", "publish", "large"])
def test_without_sync_the_power_cut_rig_reports_loss(name: str) -> None:
    """Without syncs, acknowledged entries are lost in some sampled state, and the rig reports it."""
    assert reports_loss(lambda: check_power_cuts(BY_NAME[name], samples=2, without={"sync"}))


@pytest.mark.promise("P2")
@pytest.mark.parametrize("name", ["create", "create_published", "fork", "large"])
def test_without_folder_sync_the_power_cut_rig_reports_loss(name: str) -> None:
    """Without folder syncs, whole sessions or blobs are lost in some sampled state, and the rig reports it."""
    assert reports_loss(lambda: check_power_cuts(BY_NAME[name], samples=2, without={"sync_directory"}))


@pytest.mark.promise("P2")
def test_without_settling_what_others_left_the_successor_rig_reports_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """If unsynced changes of a killed process are treated as durable, the rig with successors reports a loss."""
    monkeypatch.setattr(atomic, "_settle", lambda fs, path: None)
    assert reports_loss(lambda: check_successors(BY_NAME["create_published"], BY_NAME["create"]))


def in_place(fs: Filesystem, path: str, chunks: Iterable[bytes], *, durable: bool = True, sweeps: bool = True) -> None:
    """Replace a file wrongly, by writing it in place."""
    fd = fs.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for chunk in chunks:
        atomic.write_all(fs, fd, chunk)
    if durable:
        fs.sync(fd)
    fs.close(fd)
    if durable:
        fs.sync_directory(os.path.dirname(path))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("name", ["create_published", "fork"])
def test_with_files_made_in_place_the_kill_rig_reports_half_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If files are written under their final names, a kill leaves empty or partial ones, and the rig reports it."""
    monkeypatch.setattr(atomic, "replace", in_place)
    assert reports_loss(lambda: check_kills(BY_NAME[name]))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("name", ["name", "rewrite", "migrate", "move"])
def test_with_sessions_rewritten_in_place_the_kill_rig_reports_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a session is rewritten in place, a kill in between loses entries, and the rig reports it."""

    def rewrite_in_place(file: FileJournal, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        new = b"".join(file._edited(edit, file._stat().st_size))
        file._fs.truncate(file._fd, 0)
        atomic.write_all(file._fs, file._fd, new)
        file.reopen()

    monkeypatch.setattr(FileJournal, "replace", rewrite_in_place)
    assert reports_loss(lambda: check_kills(BY_NAME[name]))


def write_without_lock(root: str, session_id: str, writer: int, number: int, tell: Tell) -> None:
    """Append as one of many writers without a lock, with a pause between reading and writing."""
    rng = Random(writer)
    slow = Meddle(lambda: os.sched_yield() if rng.random() < 0.5 else None)
    plan = [Meddle(slow.action, on={"write"}, at=n) for n in range(1, number + 1)]
    faulty = FaultyFilesystem(PosixFilesystem(), plan=plan, without={"lock"})
    session = Store(root, fs=faulty, durability="process").open(session_id)
    for n in range(number):
        payload = {"type": "message", "message": message(f"{writer} {n}")}
        receipt = session.append_many([payload], on_leaf_moved="follow")[0]
        tell([receipt.id, receipt.diverged])
    session.close()


@pytest.mark.promise("P4")
def test_without_lock_the_many_processes_rig_reports_forks() -> None:
    """Without the lock, writers that follow each other do not make one chain, and there are several heads."""

    def rig() -> None:
        with fast_folder() as root:
            session = Store(root, durability="process").create(CWD, publish=True)
            children = [Child(partial(write_without_lock, root, session.id, writer, 100)) for writer in range(8)]
            told = [child.finish() for child in children]
            fresh = Store(root).open(session.id, readonly=True)
            assert len(fresh.get_entries()) == sum(map(len, told))
            assert len(fresh.get_heads()) == 1

    assert any(reports_loss(rig) for _ in range(10))


def without_looking(fs: Filesystem, fd: int, *rest: object) -> int:
    """Assume that the lines are at the end of the file."""
    return fs.fstat(fd).st_size


def without_read_back(root: str, session_id: str, tell: Tell) -> None:
    """Make writers assume that their line is on its own."""
    journal.find_or_repeat = without_looking  # type: ignore[assignment, attr-defined]
    append_slowly(root, session_id, tell)


@pytest.mark.promise("P5")
def test_without_read_back_a_line_is_glued_to_a_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a peer writes a fragment between our check and our write, only the read-back saves our line."""

    def last_line() -> bytes:
        session = Store(tmp_path).create(CWD, publish=True)
        session.close()

        def fragment() -> None:
            with open(session.path, "ab") as file:
                file.write(b'{"type":"message","id":"half')

        faulty = FaultyFilesystem(PosixFilesystem(), plan=[Meddle(fragment, on={"write"})])
        Store(tmp_path, fs=faulty).open(session.path).append_message(message("mine"))
        return Path(session.path).read_bytes().split(b"\n")[-2]

    assert b"half" not in last_line()
    monkeypatch.setattr(journal, "find_or_repeat", without_looking)
    assert b"half" in last_line()


@pytest.mark.promise("P5")
def test_without_read_back_the_hostile_rig_reports_loss() -> None:
    """Without the read-back, the rig with peers that ignore the lock reports lost entries."""
    assert any(check_hostile(kills=30, seed=seed, writer=without_read_back)[1] for seed in range(10))


def without_newline_guard(root: str, session_id: str, tell: Tell) -> None:
    """Make writers assume that the last line is complete."""
    read = FileJournal._read
    FileJournal._read = lambda self, offset, length: (  # type: ignore[method-assign]
        b"\n" if length == 1 else read(self, offset, length)
    )
    append_for_ever(root, session_id, tell)


@pytest.mark.promise("P1")
def test_without_newline_guard_the_kill_rig_reports_loss() -> None:
    """Kills tear lines; a writer that does not check the last byte loses its own line, and the rig reports it."""
    assert any(reports_loss(partial(check_appends, seed, 100, without_newline_guard)) for seed in range(10))


@pytest.mark.promise("P6")
def test_without_newline_guard_an_append_is_glued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the last byte, an append is glued to a torn line; with it, it is not."""

    def append_after_a_torn_line() -> list[str]:
        session = Store(tmp_path).create(CWD, publish=True)
        session.append_message(message("before"))
        session.close()
        with open(session.path, "ab") as file:
            file.write(b'{"type":"message","id":"torn","parentId":null,"message":{"role":"user","content":"cut')
        session = Store(tmp_path).open(session.path)
        session.append_message(message("after"))
        session.close()
        return Path(session.path).read_text().split("\n")

    assert len(append_after_a_torn_line()) == 5
    read = FileJournal._read
    monkeypatch.setattr(
        FileJournal, "_read", lambda self, offset, length: b"\n" if length == 1 else read(self, offset, length)
    )
    assert len(append_after_a_torn_line()) == 4


@pytest.mark.promise("P3")
def test_without_taking_back_a_full_disk_leaves_a_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a short write is not undone, the file that the full-disk rig compares has changed."""
    length = line_length(str(tmp_path))

    def changed() -> bool:
        faulty = FaultyFilesystem(PosixFilesystem(), plan=[ShortWrite(written=length // 2)])
        store = Store(tmp_path, fs=faulty, durability="process")
        session = store.open(store.list_all()[0].path)
        before = Path(session.path).read_bytes()
        with pytest.raises(OSError, match="No space"):
            session.append_message(message(TOO_MUCH))
        return Path(session.path).read_bytes() != before

    assert not changed()
    monkeypatch.setattr(line_file, "_take_back", lambda fs, fd, path, size, written: None)
    assert changed()


@pytest.mark.promise("P2")
def test_process_durability_may_lose_a_suffix_but_never_a_middle() -> None:
    """Without syncs, a power cut removes only the latest entries; with syncs it removes none."""
    lost = 0
    for seed in range(60):
        inner = CrashableFilesystem()
        store = Store("/store", fs=inner, durability="process")
        session = store.create(CWD, publish=True)
        ids = [session.append_message(message(f"{n} " + "x" * 300)).id for n in range(20)]
        survivor = Store("/store", fs=inner.crash(Random(seed), CrashModel.ORDERED))
        left = [entry.id for entry in survivor.open(session.path, readonly=True).get_entries()]
        assert left == ids[: len(left)]
        lost += len(ids) - len(left)
    assert lost > 0
