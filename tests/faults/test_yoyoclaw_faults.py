"""Kills, power cuts, disk failures, editors and other processes at every step of a store change and of an import."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import said
from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed, Meddle
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.striding import calls
from sessile import Store
from sessile.agents.openclaw.binding_store import SessionStore, own_bindings
from sessile.agents.openclaw.document import parse_store
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.importing import import_state
from sessile.agents.openclaw.paths import StateFolder
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessions import Clock, numbered
from yoyoclaw import GROUP, MAIN, NOW, lines, stored, talk

pytestmark = pytest.mark.mission("Y2")

STORE = "/agent/sessions.json"
LATER = 60_000  # milliseconds, on a disk whose files are all younger than one
STATE = "/state"
SESSIONS = f"{STATE}/agents/main/sessions"
OLD = {MAIN: {"sessionId": "a", "updatedAt": 1, "future": [1]}, GROUP: {"sessionId": "g"}}
NEW = {MAIN: {"sessionId": "a", "updatedAt": NOW, "future": [1], "model": "m"}, GROUP: {"sessionId": "g"}}


def put(fs: Filesystem, path: str, data: bytes) -> None:
    atomic.make_folders(fs, path.rpartition("/")[0])
    atomic.replace(fs, path, (data,))


def read(fs: Filesystem, path: str) -> dict[str, Any]:
    """Return the entries of a store file, which must not be broken."""
    return {key: entry.members for key, entry in parse_store(atomic.read_all(fs, path)).entries.items()}


def store_on(fs: Filesystem) -> SessionStore:
    return SessionStore(STORE, keep="/ours", fs=fs, patience=0.3, settle=0)


def change(fs: Filesystem) -> None:
    """Make the change that is killed at every step."""
    store_on(fs).update(MAIN, lambda entry: (entry or SessionEntry({})).touched({"model": "m"}, NOW), now=NOW)


def with_a_store() -> CrashableFilesystem:
    fs = CrashableFilesystem()
    put(fs, STORE, stored(OLD))
    return fs


def kills(
    prepare: Callable[[], CrashableFilesystem], act: Callable[[Filesystem], object], without: Collection[str] = ()
) -> Iterator[tuple[CrashableFilesystem, bool]]:
    """Yield the disk after a kill before each call in turn, and whether the work was done; last without a kill."""
    for number in calls():
        inner = prepare()
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)], without=without)
        try:
            act(faulty)
        except Killed:
            yield inner, False
        else:
            yield inner, True
            return


def after(inner: CrashableFilesystem, seed: int) -> Iterator[CrashableFilesystem]:
    """Yield what a kill leaves, and what power cuts may leave."""
    yield inner.kill()
    for model in CrashModel:
        yield inner.crash(Random(f"{seed} {model}"), model)


# -- a change of a store


def test_a_kill_or_power_cut_at_any_step_of_a_change_leaves_the_old_store_or_the_new_one() -> None:
    """Acknowledged changes are there, the copy is never broken, and the next process continues, after a kill at once."""
    states = 0
    for seed, (inner, done) in enumerate(kills(with_a_store, change)):
        for number, disk in enumerate(after(inner, seed)):
            assert read(disk, STORE) in ([NEW] if done else [OLD, NEW])
            if atomic.exists(disk, "/ours/sessions.json.good"):
                assert read(disk, "/ours/sessions.json.good") in (OLD, NEW)
            # A lock whose content was lost in the power cut has no known owner, and expires after 30 seconds.
            now = 0 if number == 0 else LATER
            store_on(disk).update("other", lambda entry: SessionEntry({"sessionId": "o"}), now=now)
            assert read(disk, STORE) in ({**OLD, "other": {"sessionId": "o"}}, {**NEW, "other": {"sessionId": "o"}})
            states += 1
    assert states > 60


def test_a_kill_at_any_step_of_the_first_change_leaves_no_store_or_a_whole_one() -> None:
    """The file is never empty."""
    for seed, (inner, done) in enumerate(kills(CrashableFilesystem, change)):
        for disk in after(inner, seed):
            found = read(disk, STORE) if atomic.exists(disk, STORE) else {}
            assert found in (
                [{MAIN: {"model": "m", "updatedAt": NOW}}] if done else [{}, {MAIN: {"model": "m", "updatedAt": NOW}}]
            )
            change(disk)
            assert read(disk, STORE) == {MAIN: {"model": "m", "updatedAt": NOW}}


def test_a_kill_at_any_step_of_a_restoration_can_be_followed_by_another() -> None:
    """The broken file and the good copy still exist."""

    def broken() -> CrashableFilesystem:
        fs = with_a_store()
        change(fs)
        put(fs, STORE, b"{broken")
        return fs

    for seed, (inner, _) in enumerate(kills(broken, lambda fs: store_on(fs).restore(now=NOW))):
        for disk in after(inner, seed):
            if atomic.read_all(disk, STORE) == b"{broken":
                store_on(disk).restore(now=NOW + 1)
            assert read(disk, STORE) == read(disk, "/ours/sessions.json.good") == NEW
            kept = [name for name in disk.names("/ours") if "broken" in name and not name.startswith(".")]
            assert any(atomic.read_all(disk, f"/ours/{name}") == b"{broken" for name in kept)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_at_any_step_raises_and_breaks_nothing(code: int) -> None:
    """The error names the file; afterwards the store works again."""
    for number in calls():
        inner = with_a_store()
        faulty = FaultyFilesystem(inner, plan=[Fail(code, at=number)])
        try:
            change(faulty)
        except SessileError as error:
            assert error.path is not None
            assert read(inner, STORE) in (OLD, NEW)
        else:
            assert read(inner, STORE) == NEW
        if not faulty.struck:
            break
        change(inner)
        assert read(inner, STORE) == NEW
    assert number > 20


def test_an_edit_at_any_step_but_the_last_survives_a_change() -> None:
    """If a user saves another key during our change, both are there. There is no call between the last check and the rename."""
    edited = {**OLD, GROUP: {"sessionId": "g", "label": "by hand"}, "new": {"x": 1}}
    renamed = [call.method for call in calls_of_a_change()].index("rename", positions("rename")[-1]) + 1
    survived = 0
    for number in range(1, len(calls_of_a_change()) + 1):
        inner = with_a_store()
        faulty = FaultyFilesystem(inner, plan=[Meddle(lambda fs=inner: put(fs, STORE, stored(edited)), at=number)])  # type: ignore[misc]
        change(faulty)
        found = read(inner, STORE)
        if number < renamed:
            assert found == {**edited, MAIN: NEW[MAIN]}, number
            survived += 1
        elif number > renamed:
            assert found == edited, number
    assert survived > 15


def calls_of_a_change() -> list[Any]:
    faulty = FaultyFilesystem(with_a_store())
    change(faulty)
    return faulty.calls


def positions(method: str) -> list[int]:
    return [number for number, call in enumerate(calls_of_a_change()) if call.method == method]


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_the_rig_notices_a_missing_sync(missing: str) -> None:
    """With one kind of sync left out, some state after a power cut is neither the old store nor the new one."""

    def is_wrong(disk: CrashableFilesystem, done: bool) -> bool:
        try:
            return read(disk, STORE) not in ([NEW] if done else [OLD, NEW])
        except SessileError:
            return True

    cuts = (
        is_wrong(inner.crash(Random(f"{sample}"), model), done)
        for inner, done in kills(with_a_store, change, without={missing})
        for model in CrashModel
        for sample in range(8)
    )
    assert any(cuts)


# -- many processes


def counting(path: str, keep: str, key: str, times: int) -> Callable[[Tell], None]:
    """Count in one entry as a separate process, and report each written number."""

    def counted(entry: SessionEntry | None) -> SessionEntry:
        entry = entry or SessionEntry({})
        return entry.changed({"n": entry.get("n", 0) + 1})

    def work(tell: Tell) -> None:
        store = SessionStore(path, keep=keep, patience=60)
        for _ in range(times):
            entry = store.update(key, counted, now=NOW)
            assert entry is not None
            tell(entry["n"])

    return work


def test_processes_that_change_different_keys_lose_nothing() -> None:
    """Each process has its own count and loses none of the others, also with separate copies."""
    with fast_folder() as folder:
        path = f"{folder}/sessions.json"
        children = [Child(counting(path, f"{folder}/keep{n}", f"agent:main:k{n}", 40)) for n in range(3)]
        for child in children:
            assert child.finish() == list(range(1, 41))
        found = json.loads(Path(path).read_bytes())
        assert found == {f"agent:main:k{n}": {"n": 40} for n in range(3)}
        assert sorted(name.name for name in Path(folder).iterdir()) == ["keep0", "keep1", "keep2", "sessions.json"]


def test_a_killed_process_takes_nothing_with_it() -> None:
    """What it reported is there, and the others do not wait for it."""
    with fast_folder() as folder:
        path = f"{folder}/sessions.json"
        other = Child(counting(path, f"{folder}/keep", "agent:main:other", 150))
        told = 0
        for number in range(12):
            numbers = killed_after(number * 0.0007, counting(path, f"{folder}/keep", "agent:main:victim", 1000))
            assert numbers[0] > told
            told = numbers[-1]
        assert other.finish() == list(range(1, 151))
        found = json.loads(Path(path).read_bytes())
        assert found["agent:main:other"] == {"n": 150}
        assert found["agent:main:victim"]["n"] in (told, told + 1)


# -- an import


def state_folder(fs: CrashableFilesystem, *more: bytes) -> None:
    put(fs, f"{SESSIONS}/sessions.json", stored({MAIN: {"sessionId": "s1"}}))
    put(fs, f"{SESSIONS}/s1.jsonl", lines(*talk("s1", "a", "b", "c")) + b"".join(more))
    put(fs, f"{SESSIONS}/s2.jsonl.reset.2026", lines(*talk("s2", "x", "y")))


def ours(fs: Filesystem) -> Store:
    return Store("/ours", fs=fs, clock=Clock(), random=numbered(), patience=0.3)


def run_import(fs: Filesystem) -> None:
    import_state(ours(fs), StateFolder(STATE))


def imported(fs: Filesystem) -> dict[str, list[str]]:
    """Return the entry ids of every native session."""
    store = ours(fs)
    found = {}
    for info in store.list_all():
        with store.open(info.path, readonly=True) as session:
            found[session.id] = [entry.id for entry in session.get_entries()]
            assert not list(session.findings)
    return found


def bound(fs: Filesystem) -> dict[str, str]:
    """Return the sessions that our bindings lead to."""
    entries = own_bindings(ours(fs), "main").read()
    return {key: entry["sessionId"] for key, entry in entries.items()}


def source(fs: Filesystem) -> dict[str, bytes]:
    return {name: atomic.read_all(fs, f"{SESSIONS}/{name}") for name in fs.names(SESSIONS)}


WHOLE = {"s1": ["a", "b", "c"], "s2": ["x", "y"]}


def before_an_import() -> CrashableFilesystem:
    fs = CrashableFilesystem()
    state_folder(fs)
    return fs


def test_a_kill_or_power_cut_at_any_step_of_an_import_leaves_whole_sessions() -> None:
    """Existing sessions are complete, and a second run adds the others; the source does not change."""
    states = 0
    for seed, (inner, done) in enumerate(kills(before_an_import, run_import)):
        for disk in after(inner, seed):
            assert imported(disk).items() <= WHOLE.items()
            if done:
                assert imported(disk) == WHOLE
            run_import(disk)
            assert imported(disk) == WHOLE
            assert bound(disk) == {MAIN: "s1"}
            assert source(disk) == source(before_an_import())
            states += 1
    assert states > 100


def test_a_kill_or_power_cut_while_new_lines_are_added_loses_none() -> None:
    """What was imported before stays, and a second run adds what is missing, once."""
    grown = {**WHOLE, "s1": ["a", "b", "c", "d", "e"]}

    def prepare() -> CrashableFilesystem:
        fs = before_an_import()
        run_import(fs)
        state_folder(fs, lines(said("d", "c"), said("e", "d")))
        return fs

    for seed, (inner, done) in enumerate(kills(prepare, run_import)):
        disk = inner.kill()
        assert imported(disk)["s1"][:3] == WHOLE["s1"]
        for disk in after(inner, seed):
            if done:
                assert imported(disk) == grown
            run_import(disk)
            assert {key: list(dict.fromkeys(ids)) for key, ids in imported_with_damage(disk).items()} == grown


def imported_with_damage(fs: Filesystem) -> dict[str, list[str]]:
    """Like `imported`, but a power cut may have torn a line that was not acknowledged."""
    store = ours(fs)
    found = {}
    for info in store.list_all():
        with store.open(info.path, readonly=True) as session:
            found[session.id] = [entry.id for entry in session.get_entries()]
    return found


def test_two_imports_at_once_give_one_of_each() -> None:
    """Both succeed, and the result is that of a single one."""
    with fast_folder() as folder:
        sessions = Path(folder) / "state" / "agents" / "main" / "sessions"
        sessions.mkdir(parents=True)
        for number in range(20):
            (sessions / f"s{number}.jsonl").write_bytes(lines(*talk(f"s{number}", "a", "b")))

        def work(tell: Tell) -> None:
            report = import_state(Store(f"{folder}/ours", durability="process"), StateFolder(f"{folder}/state"))
            tell(len(report.sessions))

        children = [Child(work) for _ in range(2)]
        assert [child.finish() for child in children] == [[20], [20]]
        store = Store(f"{folder}/ours")
        infos = store.list_all()
        assert sorted(info.id for info in infos) == sorted(f"s{number}" for number in range(20))
        for info in infos:
            with store.open(info.path, readonly=True) as session:
                assert [entry.id for entry in session.get_entries()] == ["a", "b"]
