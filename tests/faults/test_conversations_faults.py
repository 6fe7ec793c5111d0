"""Kills, power cuts, failing disks, threads and other processes at every step from a message to its session."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.striding import calls
from sessile import Store
from sessile.core.resets import ResetConfig, previous_sessions
from sessile.core.usage import Usage
from sessile.errors import SessileError
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.conversations.registry import Conversations
from sessile.storage.base import Filesystem
from sessions import Clock, answer, numbered, say
from yoyoclaw import GROUP, NOW

pytestmark = pytest.mark.mission("Y2", "Y4", "B4")

ROOT = "/ours"
DAY = 24 * 60 * 60_000
THREAD = Inbound(session_key="agent:main:slack:channel:c:thread:1", parent_key=GROUP)


def conversations(fs: Filesystem | None, seed: str, root: str = ROOT, **options: Any) -> Conversations:
    store = Store(root, fs=fs, clock=Clock(), random=numbered(seed), patience=60)
    return Conversations(store, workspace=lambda agent: f"/work/{agent}", hold=None, **options)


class Act(NamedTuple):
    """An action that is killed at every step, and the key of its session."""

    name: str
    run: Callable[[Conversations], Bound | None]
    key: Inbound | str = GROUP


def _count(all_: Conversations) -> None:
    bound = all_.resolve(GROUP, NOW + 1)
    all_.count(GROUP, bound.session_id, usage=Usage(input=5))
    all_.flush(now=NOW + 1)


def _delete(all_: Conversations) -> None:
    all_.delete(GROUP, now=NOW + 1)


def _delete_and_undo(all_: Conversations) -> None:
    all_.undo(all_.delete(GROUP, now=NOW + 1).token, now=NOW + 1)


def _patch(all_: Conversations) -> None:
    all_.patch(GROUP, {"thinkingLevel": "high"}, now=NOW + 1)


ACTS = [
    Act("another key", lambda all_: all_.resolve("agent:main:cron:new", NOW + 1), "agent:main:cron:new"),
    Act("a thread", lambda all_: all_.resolve(THREAD, NOW + 1), THREAD),
    Act("the next day", lambda all_: all_.resolve(GROUP, NOW + DAY)),
    Act("a reset", lambda all_: all_.reset(GROUP, now=NOW + 1)),
    Act("going back", lambda all_: all_.resume(GROUP, now=NOW + 1)),
    Act("a patch", _patch),
    Act("counting", _count),
    Act("deleting", _delete),
    Act("deleting and undoing", _delete_and_undo),
]


class Before(NamedTuple):
    """A disk with a conversation in its second session, and the ids of both sessions."""

    disk: CrashableFilesystem
    ids: tuple[str, str]


def before() -> Before:
    disk = CrashableFilesystem()
    all_ = conversations(disk, "before")
    first = all_.resolve(GROUP, NOW - DAY)
    with all_._store.open(first.path) as session:
        say(session, "one")
        answer(session, "two")
    second = all_.reset(GROUP, now=NOW)
    with all_._store.open(second.path) as session:
        say(session, "three")
        answer(session, "four")
    return Before(disk, (first.session_id, second.session_id))


def kills(act: Act, without: Collection[str] = ()) -> Iterator[tuple[Before, Bound | None, bool]]:
    """Yield the disk after a kill before each call in turn, and the acknowledged binding; last without a kill."""
    for number in calls():
        start = before()
        faulty = FaultyFilesystem(start.disk, plan=[Kill(at=number)], without=without)
        try:
            bound = act.run(conversations(faulty, f"act {number}"))
        except Killed:
            yield start, None, False
        else:
            yield start, bound, True
            return


def check(disk: Filesystem, act: Act, start: Before, bound: Bound | None, done: bool) -> None:
    """Check that nothing is lost, acknowledged changes hold, and the next message finds one readable session."""
    all_ = conversations(disk, "after")
    store = all_._store
    trashed = [path for deletion in store.deletions() for path in deletion.paths]
    for session_id in start.ids:
        assert store.find(session_id) or any(session_id in path for path in trashed)
    found = all_.get(GROUP)
    if found is not None:
        known = {found.session_id, *(one.session_id for one in previous_sessions(found.entry))}
        assert known >= set(start.ids)
    else:
        assert act.name.startswith("deleting")
    now = NOW + DAY if act.name == "the next day" else NOW + 1
    heard = all_.resolve(act.key, now)
    with store.open(heard.path, readonly=True) as session:
        assert session.id == heard.session_id
    if bound is not None:
        assert heard.session_id == bound.session_id
    assert all_.resolve(act.key, now).session_id == heard.session_id
    if done and act.name == "counting":
        assert heard.entry["inputTokens"] == 5
    if done and act.name == "a patch":
        assert heard.entry["thinkingLevel"] == "high"
    if done and act.name == "deleting":
        assert heard.session_id not in start.ids
    if done and act.name == "deleting and undoing":
        assert heard.session_id == start.ids[1]
    # At most one extra session remains: the one created for a binding that was never written.
    assert len(store.list_all()) + len(store.deletions()) <= 4


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_death_before_any_call_leaves_one_session_for_each_key(act: Act) -> None:
    """After a kill or a power cut before any call, each key has one session and nothing is lost."""
    states = 0
    for number, (start, bound, done) in enumerate(kills(act)):
        check(start.disk.kill(), act, start, bound, done)
        for model in CrashModel:
            check(start.disk.crash(Random(f"{act.name} {number} {model}"), model), act, start, bound, done)
            states += 1
    assert states > 40


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_the_rig_notices_a_missing_sync(missing: str) -> None:
    """With one kind of sync left out, a power cut loses an acknowledged session or binding."""
    act = ACTS[0]

    *_, (start, bound, _) = kills(act, {missing})

    def is_lost(model: CrashModel, sample: int) -> bool:
        try:
            check(start.disk.crash(Random(sample), model), act, start, bound, True)
        except (SessileError, AssertionError):
            return True
        return False

    assert any(is_lost(model, sample) for model in CrashModel for sample in range(10))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_failing_disk_raises_and_loses_nothing(act: Act, code: int) -> None:
    """A failing call raises an error with a path, loses nothing, and the same object works afterwards."""
    for number in calls():
        start = before()
        faulty = FaultyFilesystem(start.disk, plan=[Fail(code, at=number)])
        all_ = conversations(faulty, f"failing {number}")
        bound = None
        try:
            bound = act.run(all_)
        except SessileError as error:
            assert error.path is not None
        except OSError as error:
            raise AssertionError(f"call {number}, {faulty.calls[number - 1]}") from error
        if not faulty.struck:
            break
        faulty.heal()
        check(start.disk.kill(), act, start, bound, False)
        all_.resolve(GROUP, NOW + DAY)
        all_.flush(now=NOW + DAY)
    assert number > 20


# -- many at once


def keys(number: int) -> list[str]:
    return [f"agent:main:telegram:direct:{n}" for n in range(number)]


def test_twenty_threads_that_ask_for_fifty_keys_get_fifty_sessions() -> None:
    """Threads that resolve the same keys at once get one session per key, and all of them are bound on disk."""
    with fast_folder() as folder, conversations(None, "threads", folder) as all_:
        found: list[dict[str, str]] = [{} for _ in range(20)]
        start = threading.Barrier(20)

        def ask(number: int) -> None:
            mixed = keys(50)
            Random(number).shuffle(mixed)
            start.wait()
            for key in mixed:
                bound = all_.resolve(key)
                found[number][key] = bound.session_id
                all_.count(key, bound.session_id, usage=Usage(input=1))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(one == found[0] for one in found)
        assert len(set(found[0].values())) == 50 == len(all_._store.list_all())
        all_.flush()
        stored = json.loads(Path(f"{folder}/agents/main/sessions/sessions.json").read_bytes())
        assert {key: entry["sessionId"] for key, entry in stored.items()} == found[0]
        assert {entry["inputTokens"] for entry in stored.values()} == {20}


def asking(folder: str, seed: int, number: int, now: int) -> Callable[[Tell], None]:
    """Return work that resolves the keys in random order, counts once for each, and reports the sessions."""

    def work(tell: Tell) -> None:
        with conversations(None, f"process {seed} {now}", folder, resets=ResetConfig()) as all_:
            mixed = keys(number)
            Random(seed).shuffle(mixed)
            for key in mixed:
                bound = all_.resolve(key, now)
                all_.count(key, bound.session_id, usage=Usage(input=1), now=now)
                tell([key, bound.session_id])

    return work


def test_processes_share_sessions_also_over_a_reset() -> None:
    """Processes agree on one session per key, before and after a daily reset, and their counts add up."""
    with fast_folder() as folder:
        days = []
        for now in (NOW, NOW + DAY):
            children = [Child(asking(folder, seed, 20, now)) for seed in range(3)]
            told = [dict(child.finish()) for child in children]
            assert told[0] == told[1] == told[2]
            days.append(told[0])
            stored = json.loads(Path(f"{folder}/agents/main/sessions/sessions.json").read_bytes())
            assert {key: entry["sessionId"] for key, entry in stored.items()} == told[0]
            assert {entry["inputTokens"] for entry in stored.values()} == {3}
        assert set(days[0].values()).isdisjoint(days[1].values())
        assert len(Store(folder).list_all()) == 40


def test_what_a_killed_process_told_holds() -> None:
    """Sessions reported by killed processes stay bound while another process works."""
    with fast_folder() as folder:
        other = Child(asking(folder, 99, 40, NOW))
        told: dict[str, str] = {}
        for number in range(8):
            for key, session_id in killed_after(number * 0.003, asking(folder, number, 40, NOW)):
                assert told.setdefault(key, session_id) == session_id
        assert dict(other.finish()).items() >= told.items()
        with conversations(None, "after", folder) as all_:
            assert {key: all_.resolve(key, NOW).session_id for key in told} == told


def test_a_broken_edit_in_the_middle_of_work_stops_nobody_who_has_a_session(tmp_path: Path) -> None:
    """While the store file is broken and restored repeatedly, no binding changes and no count is lost."""
    all_ = conversations(None, "edits", str(tmp_path))
    file = tmp_path / "agents/main/sessions/sessions.json"
    ids = {key: all_.resolve(key).session_id for key in keys(5)}
    done = threading.Event()
    wrong: list[object] = []
    asked = [0]

    def ask() -> None:
        while not done.is_set():
            for key, session_id in ids.items():
                bound = all_.resolve(key)
                if bound.session_id != session_id:
                    wrong.append(bound)
                all_.count(key, session_id, usage=Usage(input=1))
            asked[0] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(10):
        good = file.read_bytes()
        file.write_bytes(good[:-20])
        try:
            all_.flush()
        except SessileError:
            pass
        file.write_bytes(good)
        all_.flush()
    done.set()
    thread.join()
    all_.close()
    assert not wrong
    entries = json.loads(file.read_bytes())
    assert {entry["inputTokens"] for entry in entries.values()} == {asked[0]}
