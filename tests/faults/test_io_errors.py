"""Rig R7: every file system call fails in turn, once or permanently, in every scenario."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import DropUnsynced, Fail, FaultyFilesystem
from faults.ledger import CWD, message
from faults.processes import Child, Tell, fast_folder
from faults.rigs import check_errors
from faults.scenarios import SCENARIOS, WITH_UNPROMISED_SYNCS, Scenario, is_root
from figures import measured
from sessile import Session, Store
from sessile.errors import PermissionRefused, SessionNotFound, StorageFailure, SyncFailed
from sessile.storage.filesystem import PosixFilesystem

NOBODY = 65534
CODES = [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS]
STEPS = {
    "save_index": 12,
    "large": 4,
    "import": 12,
    "kinds": 12,
    "compact": 6,
    "erase": 12,
}  # steps of the default run, larger where verifying is slow
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.mark.promise("P8")
@every_scenario
def test_any_call_may_fail_and_nothing_is_lost_or_untyped(scenario: Scenario) -> None:
    """A failing call raises a typed error with a path, gives no false receipt, and the session works after `reopen`."""
    number = SCENARIOS.index(scenario)
    runs = check_errors(scenario, CODES[number % 4], forever=number % 2 == 0, step=STEPS.get(scenario.name, 3))
    measured("P8", "calls that fail, simulated", runs=runs, inconsistent=0, untyped=0)


@pytest.mark.promise("P8")
@pytest.mark.long
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@every_scenario
def test_any_call_may_fail_with_any_error(scenario: Scenario, code: int, forever: bool) -> None:
    """The long form tries all errors, once and permanently, at every call."""
    runs = check_errors(scenario, code, forever=forever)
    measured("P8", "calls that fail, simulated", runs=runs, inconsistent=0, untyped=0)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@every_scenario
def test_every_sync_may_fail_and_is_never_passed_over(scenario: Scenario, forever: bool) -> None:
    """If any sync of a scenario fails, an error is raised, nothing false is acknowledged, and `reopen` works."""
    told = scenario.name not in WITH_UNPROMISED_SYNCS
    runs = check_errors(scenario, errno.EIO, forever=forever, on={"sync", "sync_directory"}, told=told)
    measured("P7", "syncs that fail, simulated", syncs=runs, false_receipts=0)


def published(filesystem: FaultyFilesystem) -> Session:
    """Return a published session with one entry."""
    session = Store("/store", fs=filesystem).create(CWD, publish=True)
    session.append_message(message("before"))
    return session


def texts(session: Session) -> list[str]:
    return [entry["message"]["content"] for entry in session.get_entries()]


@pytest.mark.promise("P7")
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_a_failed_sync_gives_no_receipt_and_is_not_retried(forever: bool) -> None:
    """After EIO from a sync, every append raises without another sync until the session is reopened."""
    inner = CrashableFilesystem()
    filesystem = FaultyFilesystem(inner, plan=[])
    session = published(filesystem)
    plan: list[DropUnsynced | Fail] = [Fail(errno.EIO, on={"sync"}, forever=True) if forever else DropUnsynced()]
    faulty = FaultyFilesystem(inner, plan=plan)
    session.close()
    session = Store("/store", fs=faulty).open(session.path)
    with pytest.raises(SyncFailed) as raised:
        session.append_message(message("lost"))
    assert raised.value.path == session.path
    syncs = sum(call.method == "sync" for call in faulty.calls)
    for _ in range(3):
        with pytest.raises(SyncFailed):
            session.append_message(message("lost too"))
        with pytest.raises(SyncFailed):
            session.flush()
    assert sum(call.method == "sync" for call in faulty.calls) == syncs == 1
    with pytest.raises(SyncFailed):
        session.close()
    faulty.heal()
    session.reopen()
    receipt = session.append_message(message("after"))
    survivor = Store("/store", fs=inner.crash(Random(7), CrashModel.ADVERSARIAL)).open(session.path, readonly=True)
    assert survivor.get_entry(receipt.id) is not None
    assert texts(survivor)[0] == "before"


@pytest.mark.promise("P7")
def test_what_is_acknowledged_after_a_failed_sync_does_not_hang_from_what_was_dropped() -> None:
    """The kernel may drop the pages of a failed sync: later acknowledged entries must still reach their root."""
    inner = CrashableFilesystem()
    session = published(FaultyFilesystem(inner))
    session.close()
    faulty = FaultyFilesystem(inner, plan=[DropUnsynced()])
    session = Store("/store", fs=faulty).open(session.path)
    with pytest.raises(SyncFailed):
        session.append_message(message("dropped"))
    session.reopen()
    receipt = session.append_message(message("after"))
    for seed in range(50):
        for model in CrashModel:
            survivor = Store("/store", fs=inner.crash(Random(seed), model)).open(session.path, readonly=True)
            path = [entry.id for entry in survivor.get_branch(receipt.id)]
            assert len(path) >= 2, f"{model} {seed}: {survivor.findings}"


def in_a_folder_of_ours_that_is_closed(folder: str, tell: Tell) -> None:
    """Check, as a user who is not root, a folder that takes no new names."""
    if is_root():
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    store = Store(folder)
    session = store.create(CWD, publish=True)
    session.append_message(message("kept"))
    session.close()
    os.chmod(os.path.dirname(session.path), 0o500)
    with pytest.raises(PermissionRefused):
        store.create(CWD, publish=True)
    with pytest.raises(PermissionRefused):
        store.create(CWD)
    with pytest.raises(PermissionRefused):
        store.delete(session.id)
    assert [info.id for info in store.list(CWD)] == [session.id]
    assert texts(store.open(session.id, readonly=True)) == ["kept"]
    session = store.open(session.id)  # the file itself is writable
    session.append_message(message("more"))
    with pytest.raises(PermissionRefused):
        session.rewrite_entries(lambda entry: None)
    session.reopen()
    assert texts(session) == ["kept", "more"]
    session.close()
    os.chmod(os.path.dirname(session.path), 0o700)
    tell("done")


@pytest.mark.promise("P8")
def test_a_folder_that_cannot_be_written_is_reported_and_can_be_read() -> None:
    """In a read-only folder, creating and deleting raise `PermissionRefused`; listing, reading and appending work."""
    with fast_folder() as folder:
        assert Child(partial(in_a_folder_of_ours_that_is_closed, folder)).finish() == ["done"]


@pytest.mark.promise("P8")
def test_a_read_only_file_system_is_reported_and_can_be_read(tmp_path: Path) -> None:
    """When every change fails with EROFS, creating and appending raise `PermissionRefused`; reading works."""
    store = Store(tmp_path)
    session = store.create(CWD, publish=True)
    session.append_message(message("kept"))
    session.close()
    changes = {"write", "mkdir", "rename", "link", "unlink", "rmdir", "truncate"}
    readonly = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.EROFS, on=changes, forever=True)])
    store = Store(tmp_path, fs=readonly)
    with pytest.raises(PermissionRefused):
        store.create("/another/project")
    with pytest.raises(PermissionRefused):
        store.open(session.path).append_message(message("refused"))
    with pytest.raises(PermissionRefused):
        store.delete(session.id)
    assert [info.id for info in store.list(CWD)] == [session.id]
    assert texts(store.open(session.path, readonly=True)) == ["kept"]


@pytest.mark.promise("P14")
def test_a_vanished_file_is_noticed_and_never_made_anew_without_a_header(tmp_path: Path) -> None:
    """Appending to a session whose file was removed raises `SessionNotFound` and creates nothing."""
    session = Store(tmp_path).create(CWD, publish=True)
    session.append_message(message("gone"))
    os.unlink(session.path)
    for _ in range(2):
        with pytest.raises(SessionNotFound):
            session.append_message(message("nowhere"))
    assert not os.path.exists(session.path)
    with pytest.raises(SessionNotFound):
        session.close()


@pytest.mark.promise("P14")
def test_appending_goes_on_in_a_file_that_replaced_ours(tmp_path: Path) -> None:
    """If another program rewrites the session by rename, the next append lands in the new file."""
    session = Store(tmp_path).create(CWD, publish=True)
    session.append_message(message("one"))
    copy = session.path + ".copy"
    Path(copy).write_bytes(Path(session.path).read_bytes().replace(b'"one"', b'"ONE"'))
    os.replace(copy, session.path)
    receipt = session.append_message(message("two"))
    fresh = Store(tmp_path).open(session.path, readonly=True)
    assert texts(fresh) == ["ONE", "two"]
    assert fresh.get_branch(receipt.id)[0]["message"]["content"] == "ONE"
    assert [entry.raw for entry in session.get_entries()] == [entry.raw for entry in fresh.get_entries()]


@pytest.mark.promise("P14")
def test_another_session_in_our_place_is_not_written_to(tmp_path: Path) -> None:
    """If a different session has taken the path, appending raises and leaves that session unchanged."""
    store = Store(tmp_path)
    session = store.create(CWD, publish=True)
    other = store.create(CWD, publish=True)
    other.close()
    os.replace(other.path, session.path)
    before = Path(session.path).read_bytes()
    with pytest.raises((SessionNotFound, StorageFailure)):
        session.append_message(message("not mine"))
    assert Path(session.path).read_bytes() == before
