"""Repair, prune, blob sweep and emptying the trash: killed, cut off or failing before every file system call."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import NamedTuple

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed, Meddle
from faults.ledger import CWD, message, store_on
from faults.scenarios import ROOT
from faults.striding import calls
from figures import measured
from sessile import Store
from sessile.errors import LeafMoved, SessileError, StorageFull
from sessile.storage import atomic, session_bytes
from sessile.storage.base import Filesystem
from sessile.testing.filesystem_contract import get, put
from sessile.upkeep.check import check, repair
from sessile.upkeep.disk import empty_trash, plan_empty_trash, trash_contents
from sessile.upkeep.prune import PruneRule, apply_prune, plan_prune
from sessile.upkeep.sweep import apply_blob_sweep, plan_blob_sweep


@pytest.fixture(autouse=True)
def _open_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process has files in memory open, and checking every process would be slower than the test."""
    monkeypatch.setattr("sessile.upkeep.prune.open_files", frozenset)


FILE = f"{ROOT}/sessions/--home-ada-project--/2026-02-16T10-20-30-000Z_s.jsonl"
HEADER = b'{"type":"session","version":3,"id":"s","timestamp":"2026-02-16T10:20:30.000Z","cwd":"/home/ada/project"}\n'
ENTRIES = [
    b'{"type":"custom","id":"%b","parentId":%b,"timestamp":"2026-02-16T10:20:30.000Z","customType":"x"}' % ids
    for ids in ((b"a", b"null"), (b"b", b'"a"'), (b"c", b'"b"'))
]
DAMAGED = HEADER + ENTRIES[0] + ENTRIES[1] + b"\n\0\0\0\0\n" + ENTRIES[2] + b"\n" + ENTRIES[2][:30]
MENDED = HEADER + b"\n".join(ENTRIES) + b"\n"

Files = dict[str, bytes]
Act = Callable[[Store], object]


class Verb(NamedTuple):
    """A maintenance verb, and the store that it works on."""

    name: str
    prepare: Act
    act: Act


def a_damaged_session(store: Store) -> None:
    atomic.make_folders(store.fs, FILE.rpartition("/")[0])
    atomic.replace(store.fs, FILE, (DAMAGED,))


def old_sessions(store: Store) -> None:
    """Create two sessions, one with artifacts, both long unused: the clock of these files starts in 1970."""
    for number in range(2):
        session = store.create(CWD, publish=True)
        session.append_message(message(f"question {number}"))
        session.close()
    atomic.make_folders(store.fs, session.artifacts)
    atomic.replace(store.fs, f"{session.artifacts}/1.txt", (b"tool output",))


def orphaned_blobs(store: Store) -> None:
    for data in (b"one", b"two"):
        store.blobs.put(data)


def a_full_trash(store: Store) -> None:
    old_sessions(store)
    apply_prune(store, plan_prune(store, PruneRule(older_than=0)))


def prune(store: Store) -> None:
    done = apply_prune(store, plan_prune(store, PruneRule(older_than=0)))
    if done.failure is not None:
        raise done.failure


def empty(store: Store) -> None:
    done = empty_trash(store, plan_empty_trash(store), confirm=True)
    if done.failure is not None:
        raise done.failure


REPAIR = Verb("repair", a_damaged_session, lambda store: repair(store, FILE))
PRUNE = Verb("prune", old_sessions, prune)
SWEEP = Verb("sweep", orphaned_blobs, lambda store: apply_blob_sweep(store, plan_blob_sweep(store)))
EMPTY = Verb("empty", a_full_trash, empty)
MOVING = [PRUNE, SWEEP]
every_verb = pytest.mark.parametrize("verb", [REPAIR, *MOVING, EMPTY], ids=lambda verb: verb.name)


@cache
def _prepared(verb: Verb) -> CrashableFilesystem:
    filesystem = CrashableFilesystem()
    filesystem.mkdir(ROOT)
    filesystem.sync_directory("/")
    verb.prepare(store_on(filesystem, ROOT, 1))
    return filesystem


def prepared(verb: Verb) -> CrashableFilesystem:
    """Return a fresh copy of the verb's prepared store."""
    return _prepared(verb).kill()


def content(filesystem: Filesystem, *below: str) -> Files:
    """Return every file below some folders of the root."""
    found = (path for name in below for path, _ in session_bytes.files_below(filesystem, f"{ROOT}/{name}"))
    return {path: get(filesystem, path) for path in found}


def killed(verb: Verb) -> Iterator[CrashableFilesystem]:
    """Yield the store after a kill before each call in turn, and last without a kill."""
    for number in calls():
        inner = prepared(verb)
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)])
        try:
            verb.act(store_on(faulty, ROOT, 2))
        except Killed:
            yield inner.kill()
        else:
            yield inner.kill()
            assert number > 10
            return


def cut_off(verb: Verb) -> Iterator[CrashableFilesystem]:
    """Yield the store after power cuts at the same points, in one sampled state per crash model."""
    for number, inner in enumerate(killed(verb)):
        for model in CrashModel:
            yield inner.crash(Random(f"{verb.name} {number} {model.value}"), model)


def undo_all(filesystem: Filesystem) -> Files:
    """Return the sessions and blobs after undoing every deletion."""
    store = store_on(filesystem, ROOT, 3)
    for deletion in store.deletions():
        store.undo(deletion.token)
    return content(filesystem, "sessions", "blobs")


@pytest.mark.promise("P11")
@pytest.mark.promise("P16")
@pytest.mark.parametrize("states", [killed, cut_off])
def test_a_repair_that_was_interrupted_leaves_the_old_file_or_the_new_one(
    states: Callable[[Verb], Iterator[CrashableFilesystem]],
) -> None:
    """The original is kept before the new file is visible, and a second repair finishes the work."""
    seen = set()
    tried = 0
    for filesystem in states(REPAIR):
        now = get(filesystem, FILE)
        seen.add(now)
        assert now in (DAMAGED, MENDED)
        if now == MENDED:
            assert DAMAGED in content(filesystem, "originals").values()
        store = store_on(filesystem, ROOT, 3)
        repair(store, FILE)
        assert get(filesystem, FILE) == MENDED
        assert check(store, FILE).problems == ()
        tried += 1
    assert seen == {DAMAGED, MENDED}
    measured("P16", "interrupted repairs", repairs=tried, originals_lost=0)


CUT = HEADER + ENTRIES[0] + b"\n" + ENTRIES[2] + b"\n"  # the entry between them is missing
CONNECTED = CUT.replace(b'"parentId":"b"', b'"parentId":"a","sessile.bridged":"b"')


def a_cut_session(store: Store) -> None:
    atomic.make_folders(store.fs, FILE.rpartition("/")[0])
    atomic.replace(store.fs, FILE, (CUT,))


@pytest.mark.promise("P16")
@pytest.mark.promise("P19")
@pytest.mark.parametrize("states", [killed, cut_off])
def test_a_bridge_that_was_interrupted_is_built_or_not(
    states: Callable[[Verb], Iterator[CrashableFilesystem]],
) -> None:
    """The file is the old or the new one, the original is kept, and the bridge can be finished and removed."""
    seen = set()
    tried = 0
    for filesystem in states(Verb("bridge", a_cut_session, lambda store: repair(store, FILE, bridge=True))):
        now = get(filesystem, FILE)
        seen.add(now)
        assert now in (CUT, CONNECTED)
        if now == CONNECTED:
            assert CUT in content(filesystem, "originals").values()
        store = store_on(filesystem, ROOT, 3)
        repair(store, FILE, bridge=True)
        assert get(filesystem, FILE) == CONNECTED
        repair(store, FILE, bridge=False)
        assert get(filesystem, FILE) == CUT
        tried += 1
    assert seen == {CUT, CONNECTED}
    measured("P16", "interrupted bridges", repairs=tried, originals_lost=0)


@pytest.mark.promise("P13")
def test_the_time_of_a_repaired_file_is_that_of_the_damaged_one_at_every_moment() -> None:
    """The modification time never changes, not even during the repair."""
    before = prepared(REPAIR).lstat(FILE).st_mtime_ns
    assert {filesystem.lstat(FILE).st_mtime_ns for filesystem in killed(REPAIR)} == {before}


@pytest.mark.promise("P15")
@pytest.mark.parametrize("states", [killed, cut_off])
@pytest.mark.parametrize("verb", MOVING, ids=lambda verb: verb.name)
def test_what_was_being_moved_to_the_trash_comes_back_byte_for_byte(
    verb: Verb, states: Callable[[Verb], Iterator[CrashableFilesystem]]
) -> None:
    """After an interruption at any call, each file is in place or restored by undo."""
    before = content(prepared(verb), "sessions", "blobs")
    moved = tried = 0
    for filesystem in states(verb):
        moved += content(filesystem, "sessions", "blobs") != before
        assert undo_all(filesystem) == before
        tried += 1
    assert moved
    measured("P15", "interrupted removals undone", removals=tried, differences=0)


@pytest.mark.promise("P15")
@pytest.mark.parametrize("states", [killed, cut_off])
def test_an_emptying_that_was_interrupted_leaves_nothing_that_only_looks_whole(
    states: Callable[[Verb], Iterator[CrashableFilesystem]],
) -> None:
    """Deletions that can still be undone are complete, and the next emptying removes the rest."""
    trash = store_on(prepared(EMPTY), ROOT, 3)
    whole = {item.token: (item.paths, item.bytes) for item in trash_contents(trash)}
    seen = set()
    for filesystem in states(EMPTY):
        store = store_on(filesystem, ROOT, 3)
        left = trash_contents(store)
        seen.add(len([item for item in left if item.paths]))
        assert all((item.paths, item.bytes) == whole[item.token] for item in left if item.paths)
        empty(store)
        assert filesystem.names(f"{ROOT}/trash") == []
    assert seen == {0, 1, 2}


@pytest.mark.promise("P8")
@pytest.mark.parametrize(
    ("code", "forever"),
    [(errno.EIO, False), (errno.ENOSPC, True), pytest.param(errno.EACCES, False, marks=pytest.mark.long)],
    ids=["EIO once", "ENOSPC forever", "EACCES once"],
)
@every_verb
def test_any_call_may_fail_and_the_error_is_typed(verb: Verb, code: int, forever: bool) -> None:
    """The error names a file, nothing is lost, and the verb succeeds once the disk works again."""
    before = content(prepared(verb), "sessions", "blobs")
    for number in calls():
        inner = prepared(verb)
        faulty = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever)])
        try:
            verb.act(store_on(faulty, ROOT, 2))
        except SessileError as error:
            assert error.path is not None
        if not faulty.struck:
            return
        if verb is REPAIR:
            assert get(inner, FILE) in (DAMAGED, MENDED)
        elif verb in MOVING:
            assert undo_all(inner.kill()) == before
        verb.act(store_on(inner.kill(), ROOT, 4))


@pytest.mark.promise("P6")
def test_a_full_disk_during_a_repair_is_named_and_leaves_nothing_behind() -> None:
    """The damaged file is unchanged, and no temporary file is left."""
    inner = prepared(REPAIR)
    store = store_on(FaultyFilesystem(inner, plan=[Fail(errno.ENOSPC, on={"write"}, forever=True)]), ROOT, 2)
    before = content(inner, "")
    with pytest.raises(StorageFull):
        repair(store, FILE)
    assert content(inner, "") == before


def test_a_writer_without_lock_stops_a_repair() -> None:
    """If a writer without the lock appends during a repair, the repair gives up and changes nothing."""
    inner = prepared(REPAIR)
    meddling = Meddle(lambda: put(inner, FILE, b"more\n"), on={"sync"})
    with pytest.raises(LeafMoved):
        repair(store_on(FaultyFilesystem(inner, plan=[meddling]), ROOT, 2), FILE)
    assert get(inner, FILE) == DAMAGED + b"more\n"
    assert content(inner, "").keys() == {FILE}
