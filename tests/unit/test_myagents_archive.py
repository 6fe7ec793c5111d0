"""Archives that are read in place, and expiry with a preview."""

from __future__ import annotations

import gzip

import pytest

from faults.failing import FaultyFilesystem, Meddle
from myagents_folder import (
    NOW_MS,
    OURS,
    ROOT,
    Time,
    asked,
    begun,
    content,
    everything,
    folder,
    ids,
    line,
    put,
    put_index,
    row,
    told,
)
from sessile.agents.myagents.archive import Archive
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import Damaged, LeafMoved, SessionBusy, SessionExists, SessionNotFound, Unsupported
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("M10")

DAY = 86_400_000
FILE = f"{ROOT}/sessions/s.jsonl"
PACKED = f"{ROOT}/sessions/s.jsonl.gz"


def with_session() -> MyAgentsStore:
    store = begun(folder())
    store.save("s", [asked(0, "x" * 1000), told(1)])
    return store


# -- archives


def test_a_packed_session_is_smaller_and_read_in_place() -> None:
    """Any tool can read it, and the original is in the trash."""
    store = with_session()
    before = content(store, FILE)
    deletion = Archive(store).pack("s")
    assert store.fs.names(f"{ROOT}/sessions") == ["s.jsonl.gz"]
    assert gzip.decompress(content(store, PACKED)) == before and len(content(store, PACKED)) < len(before)
    loaded = store.load("s")
    assert ids(store) == ["0", "1"] and loaded.path == PACKED and loaded.findings == ()
    assert content(store, f"{OURS}/trash/{deletion.token}/0") == before


def test_an_open_session_is_not_packed() -> None:
    """Its program would create a new file beside the archive."""
    store = with_session()
    before = everything(store.fs, "/")
    with pytest.raises(SessionBusy):
        Archive(store, is_open=lambda session_id: True).pack("s")
    assert everything(store.fs, "/") == before


def test_an_archive_is_not_appended_to() -> None:
    """The hint says what to do first."""
    store = with_session()
    Archive(store).pack("s")
    with pytest.raises(Unsupported):
        store.append("s", [asked(2)])
    Archive(store).unpack("s")
    assert store.fs.names(f"{ROOT}/sessions") == ["s.jsonl"]
    store.append("s", [asked(2)])
    assert ids(store) == ["0", "1", "2"]


def test_an_archive_of_several_parts_is_read() -> None:
    """Concatenated gzip files are read, whatever their size."""
    store = begun(folder())
    big = [asked(n, "y" * 1000) for n in range(3000)]
    put(
        store.fs, PACKED, b"".join(gzip.compress(b"".join(line(each) for each in part)) for part in (big, [told(3000)]))
    )
    assert len(ids(store)) == 3001 and store.load("s").findings == ()


@pytest.mark.parametrize("damage", [slice(None, -12), slice(None, 40), slice(5, None)])
def test_a_damaged_archive_is_told_and_not_unpacked(damage: slice) -> None:
    """Its undamaged part is read."""
    store = begun(folder())
    put(store.fs, PACKED, gzip.compress(line(asked(0)) * 50)[damage])
    assert "damaged_archive" in [finding.code for finding in store.load("s").findings]
    with pytest.raises(Damaged):
        Archive(store).unpack("s")
    assert store.fs.names(f"{ROOT}/sessions") == ["s.jsonl.gz"]


def test_a_session_that_grew_while_it_was_packed_stays() -> None:
    """Packing again succeeds."""
    time = Time()
    inner = MemoryFilesystem(clock=time)
    begun(folder(inner, time)).save("s", [asked(0)])
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: folder(inner, time).append("s", [told(1)]), on={"link"})])
    store = folder(faulty, time)
    with pytest.raises(LeafMoved):
        Archive(store).pack("s")
    assert ids(store) == ["0", "1"]
    Archive(store).pack("s")
    assert ids(store) == ["0", "1"] and store.fs.names(f"{ROOT}/sessions") == ["s.jsonl.gz"]


def test_an_archive_with_other_messages_is_not_replaced() -> None:
    """Both are kept, and reading reports both."""
    store = with_session()
    put(store.fs, PACKED, gzip.compress(line(asked(9))))
    with pytest.raises(SessionExists):
        Archive(store).pack("s")
    with pytest.raises(SessionExists):
        Archive(store).unpack("s")
    assert store.fs.names(f"{ROOT}/sessions") == ["s.jsonl", "s.jsonl.gz"]
    assert [finding.code for finding in store.load("s").findings] == ["second_file"]


def test_there_is_nothing_to_pack_or_unpack() -> None:
    """A missing session or archive is an error."""
    store = begun(folder())
    with pytest.raises(SessionNotFound):
        Archive(store).pack("s")
    with pytest.raises(SessionNotFound):
        Archive(store).unpack("s")


# -- expiry


def aged() -> tuple[MyAgentsStore, Time]:
    """Return sessions of the same age: two plain ones, and some that must stay."""
    time = Time()
    fs = MemoryFilesystem(clock=time)
    put_index(
        fs,
        row("plain"),
        row("open"),
        row("pinned", pinnedAt="x"),
        row("cron", cronTaskId="c"),
        row("unknown", lastActiveAt=None),
        row("bad.id"),
        row("second"),
    )
    for session_id in ("plain", "open", "pinned", "cron", "unknown"):
        put(fs, f"{ROOT}/sessions/{session_id}.jsonl", line(asked(0)))
    return folder(fs, time), time


def test_only_closed_sessions_over_30_days_are_proposed() -> None:
    """A session is not proposed a moment earlier, and those that stay are listed with the reason."""
    store, time = aged()
    archive = Archive(store, is_open=lambda session_id: session_id == "open")
    assert archive.plan(NOW_MS + 30 * DAY).proposals == ()
    before = everything(store.fs, "/")
    time.nanoseconds += 10**15
    plan = archive.plan(NOW_MS + 30 * DAY + 1)
    assert sorted(each.row.id for each in plan.proposals) == ["plain", "second"]
    assert plan.bytes == len(line(asked(0)))
    assert {each.row.id: each.why for each in plan.spared} == {
        "open": "open",
        "pinned": "pinned",
        "cron": "scheduled",
        "unknown": "last use unknown",
        "bad.id": "last use unknown",
    }
    assert everything(store.fs, "/") == before


def test_a_file_that_was_written_since_is_not_proposed() -> None:
    """The time of the file counts even if the index has an older one."""
    store, time = aged()
    time.nanoseconds += 20 * DAY * 1_000_000
    put(store.fs, f"{ROOT}/sessions/plain.jsonl", line(asked(0)))
    plan = Archive(store).plan(NOW_MS + 40 * DAY)
    assert "plain" not in [each.row.id for each in plan.proposals]


def test_a_session_that_is_locked_is_open() -> None:
    """A lock of a later version, or of one of our processes, marks a session as open."""
    store, _ = aged()
    put(store.fs, f"{ROOT}/session-locks/plain.jsonl.lock/owner", b"node:7:1")
    fd = store.fs.open(f"{ROOT}/sessions/open.jsonl", 0)
    store.fs.lock(fd)
    plan = Archive(store).plan(NOW_MS + 40 * DAY)
    assert {each.row.id for each in plan.spared if each.why == "open"} == {"plain", "open"}


def test_what_was_proposed_goes_to_the_trash_unless_it_was_used_since() -> None:
    """The deletion can be undone."""
    store, _ = aged()
    archive = Archive(store)
    plan = archive.plan(NOW_MS + 40 * DAY)
    assert sorted(each.row.id for each in plan.proposals) == ["open", "plain", "second"]
    store.append("open", [told(1)])
    store.index.update("second", lambda known: known.touched(NOW_MS + DAY))
    deletions = archive.apply(plan)
    assert [each.session_id for each in deletions] == ["plain"]
    store.undo(deletions[0].token)
    assert ids(store, "plain") == ["0"]
