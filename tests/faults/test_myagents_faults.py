"""Kills, power cuts and disk failures before every call of every writing method on MyAgents' folder."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Call, Fail, FaultyFilesystem, Kill, Killed, ShortWrite
from faults.striding import calls
from myagents_folder import NOW_MS, OURS, ROOT, Time, asked, folder, line, put, put_index, row, stamps, told
from sessile.agents.myagents.archive import Archive
from sessile.agents.myagents.correlation import adopt, orphans
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.session_bytes import files_below

Json = dict[str, Any]
Messages = list[Json]

FIRST: Messages = [asked(0), {"id": "1", "role": "assistant", "content": "well", "timestamp": "t"}]
PLAIN = json.dumps({"title": "plain", "messages": FIRST}).encode()
LATE = {"usage": {"inputTokens": 9, "outputTokens": 1}}


class Scenario(NamedTuple):
    """A method that is interrupted. It returns the acknowledged messages of `s`. `done` is true once it has returned."""

    name: str
    act: Callable[[MyAgentsStore], Messages]
    done: Callable[[MyAgentsStore], object] = lambda store: True


def _append(store: MyAgentsStore) -> Messages:
    store.append("s", [asked(2)])
    store.append("s", [told(3)])
    return [*FIRST, asked(2), told(3)]


def _save_late(store: MyAgentsStore) -> Messages:
    store.save("s", [FIRST[0], FIRST[1] | LATE, asked(2)])
    return [FIRST[0], FIRST[1] | LATE, asked(2)]


def _rename(store: MyAgentsStore) -> Messages:
    store.rename("s", "a name")
    return FIRST


def _delete(store: MyAgentsStore) -> Messages:
    store.delete("s")
    return FIRST


def _undo(store: MyAgentsStore) -> Messages:
    store.undo(store.delete("s").token)
    return FIRST


def _pack(store: MyAgentsStore) -> Messages:
    Archive(store).pack("s")
    return FIRST


def _unpack(store: MyAgentsStore) -> Messages:
    Archive(store).pack("s")
    Archive(store).unpack("s")
    return FIRST


def _create(store: MyAgentsStore) -> Messages:
    store.create("new", "/work")
    store.append("new", [asked(0)])
    return FIRST


def _migrate(store: MyAgentsStore) -> Messages:
    store.append("old", [asked(2)])
    return FIRST


def _migrate_alone(store: MyAgentsStore) -> Messages:
    store.append("plain", [asked(2)])
    return FIRST


def _update(store: MyAgentsStore) -> Messages:
    store.update("s", "1", LATE)
    return [FIRST[0], FIRST[1] | LATE]


def _busy(store: MyAgentsStore) -> Messages:
    """The index is busy until the messages are stored; then the pending statistics are written."""
    assert isinstance(store.fs, FaultyFilesystem)
    store.fs.inner.mkdir(store.places.index_lock)  # by another process, whose calls do not count
    saved = store.append("s", [asked(2), told(3)])
    store.fs.inner.rmdir(store.places.index_lock)
    assert saved.pending is not None
    store.settle()
    return [*FIRST, asked(2), told(3)]


def _adopt(store: MyAgentsStore) -> Messages:
    adopt(store, "orphan", "/work")
    return FIRST


def _attach(store: MyAgentsStore) -> Messages:
    store.attachments.save("s", "b", "b.png", "image/png", b"another")
    return FIRST


def _expire(store: MyAgentsStore) -> Messages:
    archive = Archive(store)
    plan = archive.plan(2 * NOW_MS)
    archive.apply(plan._replace(proposals=tuple(each for each in plan.proposals if each.row.id == "s")))
    return FIRST


def _is_counted(store: MyAgentsStore) -> bool:
    known = store.get("s")
    return known is not None and known.stats == store.recount("s")


def _has_new(store: MyAgentsStore) -> bool:
    return store.get("new") is not None and [each.value for each in store.load("new").messages] == [asked(0)]


def _has_title(store: MyAgentsStore) -> bool:
    known = store.get("s")
    return known is not None and known.title == "a name"


APPEND = Scenario("append", _append)
PACK = Scenario("pack", _pack, lambda store: store.load("s").path == f"{ROOT}/sessions/s.jsonl.gz")
CREATE = Scenario("create", _create, _has_new)
MIGRATE = Scenario("migrate", _migrate, lambda store: len(store.load("old").rows) == 3)
SCENARIOS = [
    APPEND,
    Scenario("save_late", _save_late, lambda store: store.load("s").messages[1].usage is not None),
    Scenario("rename", _rename, _has_title),
    Scenario("delete", _delete, lambda store: store.get("s") is None and not store.load("s").rows),
    Scenario("undo", _undo, lambda store: store.get("s") is not None),
    PACK,
    Scenario("unpack", _unpack, lambda store: store.load("s").path == f"{ROOT}/sessions/s.jsonl"),
    CREATE,
    MIGRATE,
    Scenario("migrate_alone", _migrate_alone, lambda store: store.load("plain").path == f"{ROOT}/sessions/plain.jsonl"),
    Scenario("update", _update, lambda store: store.load("s").messages[1].usage is not None),
    Scenario("busy", _busy, _is_counted),
    Scenario("adopt", _adopt, lambda store: store.get("orphan") is not None),
    Scenario("attach", _attach, lambda store: store.attachments.read("s/b.png") == b"another"),
    Scenario("expire", _expire, lambda store: store.get("s") is None and not store.load("s").rows),
]
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def prepared(time: Time) -> CrashableFilesystem:
    """A folder with a session, one in the old form, one with a truncated new form beside it, and two that never change."""
    fs = CrashableFilesystem(clock=time)
    put_index(fs, row("s", later={"x": 1}), row("old"), row("plain"), row("other", pinnedAt="x"))
    put(fs, f"{ROOT}/sessions/plain.json", PLAIN)
    put(fs, f"{ROOT}/sessions/orphan.jsonl", line(asked(0, "alone")))
    put(fs, f"{ROOT}/sessions/s.jsonl", b"".join(line(each) for each in FIRST))
    put(fs, f"{ROOT}/attachments/s/a.png", b"picture")
    put(fs, f"{ROOT}/sessions/old.json", json.dumps({"messages": FIRST}).encode())
    put(fs, f"{ROOT}/sessions/old.jsonl", line(FIRST[0]) + b'{"id"')
    put(fs, f"{ROOT}/sessions/other.jsonl", line(asked(0)))
    return fs


class Point(NamedTuple):
    """Where a scenario ended: before which call, on which disk, with what acknowledged."""

    scenario: Scenario
    call: Call | None  # `None` if it was not interrupted
    filesystem: CrashableFilesystem
    promised: Messages
    time: Time


def kill_points(scenario: Scenario, without: Collection[str] = ()) -> Iterator[Point]:
    """Yield the scenario killed before each call in turn, and last without a kill."""
    for number in calls():
        time = Time()
        inner = prepared(time)
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)], without=without)
        try:
            promised = scenario.act(folder(faulty, time))
        except Killed:
            yield Point(scenario, faulty.calls[-1], inner, FIRST, time)
        else:
            yield Point(scenario, None, inner, promised, time)
            return


def verify(fs: CrashableFilesystem, point: Point) -> None:
    """Check that nothing existing or acknowledged is lost, and that all can continue."""
    point.time.nanoseconds += 31_000_000_000  # lock and notes of a dead process are stale by now
    store = folder(fs, point.time, stamp=_others(stamps()))
    assert point.call is not None or point.scenario.done(store), "it had returned"
    known = store.get("other")
    assert known is not None and known.value["pinnedAt"] == "x"
    assert [each.value for each in store.load("other").messages] == [asked(0)]
    if point.call is not None or store.get("s") is None:
        for deletion in store.trash.list():
            if deletion.row is not None:
                store.undo(deletion.token)
    found = store.get("s")
    assert found is not None and found.value["later"] == {"x": 1}
    stored = [each.value for each in store.load("s").messages]
    for message in point.promised:
        same = [each for each in stored if each["id"] == message["id"]]
        assert len(same) == 1 and same[0] in (message, {**message, **LATE}), f"{message} became {same}"
    assert atomic.read_all(fs, f"{ROOT}/attachments/s/a.png") == b"picture"
    if any("usage" in each for each in stored if each["id"] == "1"):
        assert line(FIRST[1]) in atomic.read_all(fs, f"{OURS}/originals/s.replaced")
    assert [each.value for each in store.load("old").messages][:2] == FIRST
    legacy = json.dumps({"messages": FIRST}).encode()
    assert [each.value for each in store.load("plain").messages][:2] == FIRST
    for original in (legacy, PLAIN):
        assert any(atomic.read_all(fs, path) == original for path, _ in files_below(fs, "/"))
    assert [each.value for each in store.load("orphan").messages] == [asked(0, "alone")]
    assert store.get("orphan") is not None or "orphan" in [each.session_id for each in orphans(store)]
    _go_on(store, stored)


def _others(stamp: Callable[[], str]) -> Callable[[], str]:
    return lambda: f"other-{stamp()}"


def _go_on(store: MyAgentsStore, stored: list[Any]) -> None:
    """Check that the next process can write, and that the statistics can be counted."""
    if atomic.exists(store.fs, f"{ROOT}/sessions/s.jsonl.gz"):
        Archive(store).unpack("s")
    assert store.save("s", [*stored, asked(99)]).pending is None
    for session_id in ("old", "plain"):
        assert store.append(session_id, [asked(99)]).pending is None
    assert [each.id for each in store.load("s").messages][-1] == "99"
    store.settle()
    store.repair_stats("s")
    known = store.get("s")
    assert known is not None and known.stats == store.recount("s")


@pytest.mark.mission("M3")
@pytest.mark.mission("M6")
@every_scenario
def test_a_kill_before_any_call_loses_nothing(scenario: Scenario) -> None:
    """After a kill before any call, the next process finds everything and can continue."""
    points = 0
    for point in kill_points(scenario):
        try:
            verify(point.filesystem.kill(), point)
        except Exception as error:
            raise AssertionError(f"{scenario.name}: killed before {point.call}") from error
        points += 1
    assert points > 6


@pytest.mark.mission("M3")
@pytest.mark.mission("M6")
@every_scenario
def test_a_power_cut_before_any_call_loses_nothing(scenario: Scenario) -> None:
    """After a power cut before any call, nothing existing or acknowledged is lost in any state of the disk."""
    check_power_cuts(scenario)


def check_power_cuts(scenario: Scenario, without: Collection[str] = ()) -> None:
    for number, point in enumerate(kill_points(scenario, without)):
        for model in CrashModel:
            name = f"{scenario.name} {number} {model.value}"
            try:
                verify(point.filesystem.crash(Random(name), model), point)
            except Exception as error:
                raise AssertionError(f"power cut before {point.call}, state {name!r}") from error


@pytest.mark.parametrize("scenario", [APPEND, MIGRATE, PACK, CREATE], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("without", ["sync", "sync_directory"])
def test_the_rig_notices_a_missing_sync(scenario: Scenario, without: str) -> None:
    """The rig reports a missing sync. A file that already exists needs no durable name."""
    if scenario is APPEND and without == "sync_directory":
        return check_power_cuts(scenario, {without})
    with pytest.raises(AssertionError):
        for seed in range(20):
            check_power_cuts(scenario._replace(name=f"{scenario.name} {seed}"), {without})
    return None


@pytest.mark.mission("M5")
@every_scenario
def test_a_failing_call_is_a_typed_error_and_loses_nothing(scenario: Scenario) -> None:
    """Each call fails once; only our errors are raised, and they name a file."""
    for number in calls():
        time = Time()
        inner = prepared(time)
        faulty = FaultyFilesystem(inner, plan=[Fail(errno.EIO, at=number)])
        promised = FIRST
        try:
            promised = scenario.act(folder(faulty, time))
        except SessileError as error:
            assert error.path is not None
        if not faulty.struck:
            return
        call = faulty.calls[number - 1]
        try:
            verify(inner.kill(), Point(scenario, call, inner, promised, time))
        except Exception as error:
            raise AssertionError(f"{scenario.name}: failed at call {number}, {call}") from error


@pytest.mark.mission("M3")
@pytest.mark.parametrize("written", [0, 1, 10])
def test_a_short_write_leaves_no_part_of_a_message(written: int) -> None:
    """The partial write is undone, and the error says that the disk is full."""
    time = Time()
    inner = prepared(time)
    before = atomic.read_all(inner, f"{ROOT}/sessions/s.jsonl")
    faulty = FaultyFilesystem(inner, plan=[ShortWrite(written=written)])
    with pytest.raises(SessileError):
        folder(faulty, time).append("s", [asked(2)])
    assert atomic.read_all(inner, f"{ROOT}/sessions/s.jsonl") == before


@pytest.mark.mission("M10")
def test_an_interrupted_pack_leaves_the_session_or_an_archive_of_it() -> None:
    """An interrupted pack leaves the session or its archive, with every byte, at every call."""
    whole = b"".join(line(each) for each in FIRST)
    for point in kill_points(PACK):
        fs = point.filesystem
        plain, packed = f"{ROOT}/sessions/s.jsonl", f"{ROOT}/sessions/s.jsonl.gz"
        held = [atomic.read_all(fs, plain)] if atomic.exists(fs, plain) else []
        held += [gzip.decompress(atomic.read_all(fs, packed))] if atomic.exists(fs, packed) else []
        assert whole in held


@pytest.mark.mission("M1")
@pytest.mark.mission("M5")
@pytest.mark.parametrize("torn", [b"", None], ids=["empty", "torn"])
def test_an_interrupted_repair_of_the_index_leaves_the_damaged_one_or_a_sound_one_and_a_copy(
    torn: bytes | None,
) -> None:
    """This holds for a requested repair and for the next change, in any state that a power cut leaves."""
    for number in calls():
        time = Time()
        inner = prepared(time)
        whole = atomic.read_all(inner, f"{ROOT}/sessions.json")
        damaged = whole[: len(whole) // 2] if torn is None else torn
        put(inner, f"{ROOT}/sessions.json", damaged)
        faulty = FaultyFilesystem(inner, plan=[Kill(at=number)])
        try:
            store = folder(faulty, time)
            store.rename("s", "x") if torn is None else store.index.repair()
        except Killed:
            pass
        for fs in (inner.kill(), *(inner.crash(Random(f"{number} {model}"), model) for model in CrashModel)):
            later = folder(fs, time)
            found = later.index.read()
            if found.sound:
                copies = [atomic.read_all(fs, path) for path, _ in files_below(fs, f"{OURS}/originals")]
                assert damaged in copies and (torn is not None or later.get("s") is not None)
            else:
                assert atomic.read_all(fs, f"{ROOT}/sessions.json") == damaged
        if not faulty.struck:
            assert number > 10 and found.sound
            return
