"""Rig R6: many processes and threads on one session, some of which ignore every rule."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from faults.failing import FaultyFilesystem, Meddle
from faults.ledger import CWD, Ledger, Run, message
from faults.processes import Child, Tell, fast_folder
from faults.scenarios import an_old_session
from figures import measured
from sessile import Entry, Receipt, Session, Store
from sessile.errors import LeafMoved
from sessile.storage.filesystem import PosixFilesystem

PROCESSES = 8


def begun(root: str | Path) -> Session:
    """Return a new session with one entry, for other processes to append to."""
    session = Store(root, durability="process").create(CWD, publish=True)
    session.append_message(message("root"))
    return session


def text_of(entry: Entry) -> str:
    return str(entry["message"]["content"])


def write_many(root: str, session_id: str, writer: int, number: int, policy: str, tell: Tell) -> None:
    """Append entries as one of many writers, and report each receipt."""
    session = Store(root, durability="process").open(session_id)
    for n in range(number):
        payload = {"type": "message", "message": message(f"{writer} {n}")}
        receipt = session.append_many([payload], on_leaf_moved=policy)[0]  # type: ignore[arg-type]
        tell([receipt.id, receipt.parent_id, receipt.diverged])
    session.close()


def check_writers(number: int, policy: str = "branch") -> None:
    """Let many processes append. Raise if an entry is lost, glued, duplicated or out of order."""
    with fast_folder() as root:
        session = begun(root)
        children = [Child(partial(write_many, root, session.id, writer, number, policy)) for writer in range(PROCESSES)]
        receipts = [child.finish() for child in children]
        fresh = Store(root).open(session.id, readonly=True)
        entries = fresh.get_entries()
        ids = [entry.id for entry in entries]
        assert not fresh.findings
        assert len(ids) == len(set(ids)) == PROCESSES * number + 1
        parents: dict[str, str | None] = {}
        for entry in entries:
            assert entry.parent_id is None or entry.parent_id in parents, "a parent that is not there, or comes later"
            parents[entry.id] = entry.parent_id
        texts = [text_of(entry) for entry in entries]
        for writer in range(PROCESSES):
            mine = [text for text in texts if text.startswith(f"{writer} ")]
            assert mine == [f"{writer} {n}" for n in range(number)]
            assert [entry_id for entry_id, _, _ in receipts[writer]] == [
                entry.id for entry in entries if text_of(entry).startswith(f"{writer} ")
            ]
            assert all(parents[entry_id] == parent for entry_id, parent, _ in receipts[writer])
        check_divergence(fresh, receipts, policy)
        fresh.close()
    measured("P4", "processes on one session", entries=PROCESSES * number, lost=0, glued=0, doubled=0)


def check_divergence(session: Session, receipts: list[list[Any]], policy: str) -> None:
    """Check that every second child of an entry was reported to its writer, and that all heads are listed."""
    heads = {entry.id for entry in session.get_heads()}
    diverged = {entry_id for mine in receipts for entry_id, _, told in mine if told}
    if policy == "follow":
        assert len(heads) == 1, "following makes one chain"
        assert not diverged
        return
    seen: set[str | None] = set()
    second = set()
    for entry in session.get_entries():
        if entry.parent_id in seen:
            second.add(entry.id)
        seen.add(entry.parent_id)
    assert diverged == second
    assert heads == {entry.id for entry in session.get_entries()} - seen


@pytest.mark.promise("P4")
@pytest.mark.parametrize("policy", ["branch", "follow"])
def test_many_processes_lose_glue_and_double_nothing(policy: str) -> None:
    """Eight processes append at once: all entries are there once, in each writer's order, with existing parents."""
    check_writers(200, policy)


@pytest.mark.promise("P4")
@pytest.mark.long
@pytest.mark.parametrize("policy", ["branch", "follow"])
@pytest.mark.parametrize("run", range(3))
def test_many_processes_with_thousands_of_entries(run: int, policy: str) -> None:
    """The long form: forty thousand entries."""
    check_writers(5_000, policy)


@pytest.mark.mission("B4")
@pytest.mark.promise("P21")
def test_divergence_is_told_and_both_heads_are_listed(tmp_path: Path) -> None:
    """If two writers append to one leaf, the second receipt reports the divergence, and both heads are listed."""
    first = begun(tmp_path)
    second = Store(tmp_path).open(first.id)
    one = first.append_message(message("one"))
    two = second.append_message(message("two"))
    assert (one.diverged, two.diverged) == (False, True)
    assert one.parent_id == two.parent_id
    for session in (first, second, Store(tmp_path).open(first.id, readonly=True)):
        assert {entry.id for entry in session.get_heads()} == {one.id, two.id}


@pytest.mark.promise("P21")
@pytest.mark.parametrize("look", ["get_entries", "context", "get_heads", "get_tree"])
def test_divergence_is_told_also_to_those_who_have_looked(tmp_path: Path, look: str) -> None:
    """Reading another writer's entries does not move our leaf: the next append still diverges and reports it."""
    first = begun(tmp_path)
    second = Store(tmp_path).open(first.id)
    first.append_message(message("one"))
    getattr(second, look)()
    assert second.append_message(message("two")).diverged


@pytest.mark.promise("P21")
def test_fail_raises_leaf_moved_and_writes_nothing(tmp_path: Path) -> None:
    """With `on_leaf_moved="fail"`, an append after another writer writes nothing, and the session still works."""
    first = begun(tmp_path)
    second = Store(tmp_path).open(first.id)
    third = Store(tmp_path).open(first.id)
    first.append_message(message("one"))
    before = Path(first.path).read_bytes()
    payload = {"type": "message", "message": message("two")}
    third.get_entries()
    for late in (second, third):
        with pytest.raises(LeafMoved):
            late.append_many([payload], on_leaf_moved="fail")
        with pytest.raises(LeafMoved):
            late.append_many([payload], on_leaf_moved="fail")
        assert Path(first.path).read_bytes() == before
    assert second.append_many([payload], on_leaf_moved="follow")[0].parent_id == first.leaf_id


def race_at_the_leaf(root: str, session_id: str, barrier: tuple[int, int], tell: Tell) -> None:
    """Open a session, wait until the barrier is removed, then append."""
    wait, keep = barrier
    os.close(keep)
    session = Store(root, durability="process").open(session_id)
    tell("ready")
    os.read(wait, 1)
    receipt = session.append_message(message(str(os.getpid())))
    tell([receipt.id, receipt.diverged])


def check_races(runs: int) -> int:
    """Let two processes append to one leaf at once. Return how often both appended to it."""
    races = 0
    with fast_folder() as root:
        for _ in range(runs):
            session = begun(root)
            wait, keep = os.pipe()
            pair = [Child(partial(race_at_the_leaf, root, session.id, (wait, keep))) for _ in range(2)]
            for child in pair:
                child.wait_for_word()
            os.close(keep)
            told = [child.finish()[-1] for child in pair]
            os.close(wait)
            fresh = Store(root).open(session.id, readonly=True)
            heads = {entry.id for entry in fresh.get_heads()}
            diverged = [entry_id for entry_id, diverged in told if diverged]
            reachable = {entry.id for head in heads for entry in fresh.get_branch(head)}
            assert reachable == {entry.id for entry in fresh.get_entries()}
            assert len(heads) == 1 + len(diverged) == 2
            assert set(diverged) <= heads
            races += len(diverged)
            fresh.close()
    measured("P21", "races at one leaf", races=runs, diverged=races, unreachable=0)
    return races


@pytest.mark.promise("P21")
def test_races_at_one_leaf_leave_everything_reachable() -> None:
    """After races at one leaf there are as many heads as reported, and every entry is an ancestor of one of them."""
    assert check_races(20) == 20


@pytest.mark.promise("P21")
@pytest.mark.long
def test_a_thousand_races_at_one_leaf_leave_everything_reachable() -> None:
    """The long form of the test above."""
    assert check_races(1_000) == 1_000


def check_blind_merges(runs: int) -> None:
    """Copy a store, append in both copies, then append the new lines of one file to the other unchecked."""
    entries = 0
    for run in range(runs):
        rng = Random(run)
        with fast_folder() as folder:
            session = begun(f"{folder}/one")
            session.close()
            shutil.copytree(f"{folder}/one", f"{folder}/two")
            common = os.path.getsize(session.path)
            said = []
            for copy in ("one", "two"):
                store = Store(f"{folder}/{copy}", durability="process")
                mine = store.open(session.id)
                said += [mine.append_message(message(f"{copy} {n}")).id for n in range(rng.randrange(1, 6))]
                mine.close()
                alone = store.create(CWD, publish=True)
                alone.append_message(message(f"only in {copy}"))
                alone.close()
            theirs = session.path.replace("/one/", "/two/", 1)
            with open(session.path, "ab") as file:
                file.write(Path(theirs).read_bytes()[common:])
            os.remove(theirs)
            shutil.copytree(f"{folder}/two/sessions", f"{folder}/one/sessions", dirs_exist_ok=True)
            merged = Store(f"{folder}/one")
            assert len(merged.list_all()) == 3
            fresh = merged.open(session.id, readonly=True)
            heads = fresh.get_heads()
            assert len(heads) == 2, "both ways on are listed"
            assert {e.id for head in heads for e in fresh.get_branch(head.id)} == {e.id for e in fresh.get_entries()}
            assert {entry.id for entry in fresh.get_entries()}.issuperset(said)
            assert not fresh.findings
            fresh.close()
            entries += len(said)
    measured("P21", "copies merged blindly", merges=runs, entries=entries, lost=0)


@pytest.mark.promise("P21")
@pytest.mark.parametrize("runs", [5, pytest.param(200, marks=pytest.mark.long)])
def test_two_copies_of_a_store_that_are_merged_blindly_keep_both_ways_on(runs: int) -> None:
    """If two copies of a folder are concatenated, nothing is lost: there are two heads, and all sessions."""
    check_blind_merges(runs)


@pytest.mark.promise("P4")
@pytest.mark.parametrize("number", [100])
def test_threads_share_one_session(tmp_path: Path, number: int) -> None:
    """Eight threads on one Session object make one chain, lose nothing, and every receipt is correct."""
    session = begun(tmp_path)
    receipts: list[list[Receipt]] = [[] for _ in range(PROCESSES)]
    failures: list[BaseException] = []

    def write(mine: list[Receipt]) -> None:
        try:
            for n in range(number):
                mine.append(session.append_message(message(str(n))))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in receipts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    fresh = Store(tmp_path).open(session.id, readonly=True)
    ids = {entry.id for entry in fresh.get_entries()}
    assert {receipt.id for mine in receipts for receipt in mine} < ids
    assert len(ids) == PROCESSES * number + 1
    assert len(fresh.get_heads()) == 1
    assert not any(receipt.diverged for mine in receipts for receipt in mine)
    assert not fresh.findings


@pytest.mark.promise("P4")
def test_a_forked_child_may_use_its_parents_session(tmp_path: Path) -> None:
    """Parent and child append through the same Session object: both keep their entries, and the divergence is reported."""
    session = begun(tmp_path)

    def write(tell: Tell) -> None:
        for n in range(100):
            receipt = session.append_message(message(f"child {n}"))
            tell([receipt.id, receipt.parent_id, receipt.diverged])

    child = Child(write)
    mine = [session.append_message(message(f"parent {n}")) for n in range(100)]
    theirs = child.finish()
    fresh = Store(tmp_path).open(session.id, readonly=True)
    assert not fresh.findings
    assert len(fresh.get_entries()) == 201
    entries = {entry.id: entry.parent_id for entry in fresh.get_entries()}
    assert all(entries[receipt.id] == receipt.parent_id for receipt in mine)
    assert all(entries[entry_id] == parent for entry_id, parent, _ in theirs)
    assert len(fresh.get_heads()) == 2
    assert sum(receipt.diverged for receipt in mine) + sum(told for _, _, told in theirs) == 1


@pytest.mark.promise("P4")
def test_a_key_makes_one_append_of_many_processes(tmp_path: Path) -> None:
    """Processes that append the same entries under the same key store them once and get the same receipts."""
    session = begun(tmp_path)
    for turn in range(10):
        payloads = [{"type": "message", "message": message(f"{turn} {n}")} for n in range(3)]

        def write(tell: Tell, payloads: list[Any] = payloads, turn: int = turn) -> None:
            mine = Store(tmp_path).open(session.id)
            tell([[r.id, r.repeated] for r in mine.append_many(payloads, key=f"turn {turn}")])

        told = [child.finish()[0] for child in [Child(write) for _ in range(4)]]
        assert len({tuple(entry_id for entry_id, _ in receipts) for receipts in told}) == 1
        assert sum(not repeated for receipts in told for _, repeated in receipts) == 3
    fresh = Store(tmp_path).open(session.id, readonly=True)
    assert [text_of(entry) for entry in fresh.get_entries()[1:]] == [f"{t} {n}" for t in range(10) for n in range(3)]


@pytest.mark.promise("P1")
def test_a_key_completes_what_a_kill_has_cut(tmp_path: Path) -> None:
    """If a batch was torn at any byte, repeating it under its key completes it with each entry once."""
    session = begun(tmp_path)
    size = os.path.getsize(session.path)
    payloads = [{"type": "message", "message": message(f"part {n}")} for n in range(3)]
    ids = [receipt.id for receipt in session.append_many(payloads, key="turn")]
    session.close()
    whole = Path(session.path).read_bytes()
    for end in range(size, len(whole) + 1, 5):
        Path(session.path).write_bytes(whole[:end])
        again = Store(tmp_path).open(session.id)
        assert [receipt.id for receipt in again.append_many(payloads, key="turn")] == ids, f"cut at byte {end}"
        assert [entry.id for entry in again.get_branch()[1:]] == ids
        assert [text_of(entry) for entry in again.get_entries()[1:]] == ["part 0", "part 1", "part 2"]
        again.close()


def hostile(path: str, tell: Tell) -> None:
    """Act as another program that ignores the lock and writes long lines in chunks of 4 KiB."""
    rng = Random(os.getpid())
    tell("begin")
    with open(path, "ab", buffering=0) as file:
        for number in count():
            entry = {"type": "custom", "id": f"peer-{os.getpid()}-{number}", "parentId": None}
            data = json.dumps({**entry, "data": "x" * rng.randrange(12_000)}).encode() + b"\n"
            for at in range(0, len(data), 4096):
                file.write(data[at : at + 4096])
                time.sleep(rng.choice((0, 0.0001, 0.0003)))


def append_slowly(root: str, session_id: str, tell: Tell) -> None:
    """Append until killed, with a pause between checking the end of the file and writing, as on a busy machine."""
    rng = Random(os.getpid())
    pauses = [Meddle(partial(time.sleep, rng.choice((0, 0.0001, 0.0004))), on={"write"}, at=n) for n in range(1, 500)]
    store = Store(root, fs=FaultyFilesystem(PosixFilesystem(), plan=pauses), durability="process")
    session = store.open(session_id)
    tell("begin")
    for number in count():
        tell(session.append_message(message(f"{os.getpid()} {number}")).id)


def lines_of_their_own(path: str) -> set[str]:
    """Return the ids on their own lines, as every member of the family finds them; we would also find glued entries."""
    found = set()
    for line in Path(path).read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found.add(entry["id"])
    return found


def check_hostile(kills: int, seed: int, writer: Callable[[str, str, Tell], None] = append_slowly) -> tuple[int, int]:
    """Kill peers that ignore the lock in mid-line while writers append. Return the acknowledged and lost entries."""
    rng = Random(seed)
    acknowledged: list[str] = []
    lost: set[str] = set()
    for _ in range(0, kills, 5):
        with fast_folder() as root:
            session = begun(root)
            ids: list[str] = []
            for _ in range(5):
                child = Child(partial(writer, root, session.id))
                child.wait_for_word()
                peers = [Child(partial(hostile, session.path)) for _ in range(2)]
                time.sleep(rng.uniform(0, 0.04))
                for process in rng.sample([child, *peers], 3):
                    process.kill()
                ids += child.finish()[1:]
                for peer in peers:
                    peer.finish()
            lost |= set(ids) - lines_of_their_own(session.path)
            acknowledged += ids
    if writer is append_slowly:
        measured("P5", "writers without the lock", kills=kills, acknowledged=len(acknowledged), lost=len(lost))
    return len(acknowledged), len(lost)


@pytest.mark.promise("P5")
def test_a_peer_without_lock_cannot_damage_what_is_acknowledged() -> None:
    """Peers that write in chunks without the lock and die in mid-line damage no acknowledged entry."""
    acknowledged, lost = check_hostile(kills=30, seed=1)
    assert acknowledged > 50
    assert not lost


@pytest.mark.promise("P5")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
def test_hundreds_of_peers_without_lock_cannot_damage_what_is_acknowledged(seed: int) -> None:
    """The long form: 3,000 kills."""
    acknowledged, lost = check_hostile(kills=500, seed=seed)
    assert acknowledged > 2_000
    assert not lost


def do_everything(root: str, session_id: str, seed: str, tell: Tell) -> None:
    """Append, name, rewrite, fork, read and reopen at random, as one of many processes."""
    rng = Random(seed)
    session = Store(root, durability="process").open(session_id)
    for number in range(40):
        match rng.choices(["say", "name", "rewrite", "fork", "reopen", "look"], [80, 7, 5, 3, 3, 2])[0]:
            case "say":
                tell(session.append_message(message(f"{seed} {number}")).id)
            case "name":
                session.set_session_name(f"name {seed} {number}")
            case "rewrite":
                session.rewrite_entries(lambda entry: None)
            case "fork":
                session.fork().close()
            case "reopen":
                session.close()
                session = Store(root, durability="process").open(session_id)
            case "look":
                session.get_entries()
    session.close()


def check_everything(runs: int) -> None:
    """Let processes work on one session at once. Raise if anything acknowledged is missing."""
    for run in range(runs):
        with fast_folder() as root:
            session = begun(root)
            children = [Child(partial(do_everything, root, session.id, f"{run} {n}")) for n in range(6)]
            acknowledged = [entry_id for child in children for entry_id in child.finish()]
            fresh = Store(root).open(session.id, readonly=True)
            ids = [entry.id for entry in fresh.get_entries()]
            assert not fresh.findings
            assert len(ids) == len(set(ids))
            assert set(acknowledged) <= set(ids)
            assert {entry.parent_id for entry in fresh.get_entries()} - {None} <= set(ids)
            assert (fresh.title or "").startswith("name ")
            fresh.close()
            measured("P4", "rewrites during appends", acknowledged=len(acknowledged), lost=0)


@pytest.mark.promise("P4")
def test_rewrites_and_names_lose_nothing_of_those_who_append() -> None:
    """A file that is replaced while others append to it loses none of their entries."""
    check_everything(runs=2)


@pytest.mark.promise("P4")
@pytest.mark.long
def test_many_rewrites_and_names_lose_nothing_of_those_who_append() -> None:
    """The long form."""
    check_everything(runs=60)


@pytest.mark.promise("P4")
def test_an_old_session_is_migrated_once_by_many_processes() -> None:
    """Processes that open a file of version 1 at once all continue in the same migrated session."""
    for _ in range(5):
        with fast_folder() as root:
            run = Run(Store(root, durability="process"), Ledger())
            an_old_session(run)
            session_id, old = next(iter(run.ledger.texts.items()))
            children = [Child(partial(write_many, root, session_id, writer, 3, "branch")) for writer in range(4)]
            ids = {entry_id for child in children for entry_id, _, _ in child.finish()}
            fresh = Store(root).open(session_id, readonly=True)
            assert {entry.id for entry in fresh.get_entries()} == ids | old.keys()
            assert not fresh.findings
            fresh.close()


def begin_and_leave(root: str, seed: str, tell: Tell) -> None:
    """Create sessions in one project, finish some and leave others as drafts."""
    rng = Random(seed)
    store = Store(root, durability="process")
    for number in range(10):
        session = store.create(CWD) if rng.random() < 0.6 else store.continue_recent(CWD)
        for _ in range(rng.randrange(1, 4)):
            tell([session.id, session.append_message(message(f"{seed} {number}")).id, "said"])
        if rng.random() < 0.5:
            tell([session.id, session.append_message(message("answer", "assistant")).id, "listed"])
        if rng.random() < 0.9:
            session.close()


@pytest.mark.promise("P4")
def test_drafts_of_many_processes_in_one_project_are_all_kept() -> None:
    """Processes that recover each other's drafts take none from a living owner and lose none of a dead one."""
    for run in range(3):
        with fast_folder() as root:
            children = [Child(partial(begin_and_leave, root, f"{run} {n}")) for n in range(5)]
            told = [event for child in children for event in child.finish()]
            store = Store(root)
            listed = {info.id for info in store.list_all()}
            assert {session_id for session_id, _, what in told if what == "listed"} <= listed
            store.create(CWD).close()
            for session_id in {session_id for session_id, _, _ in told}:
                session = store.open(session_id, readonly=True)
                assert {entry_id for its, entry_id, _ in told if its == session_id} <= {
                    e.id for e in session.get_entries()
                }
                session.close()
