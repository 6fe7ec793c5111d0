"""MyAgents' folder: messages, statistics, attachments, deletions."""

from __future__ import annotations

import errno
import json

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle
from myagents_folder import (
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
from sessile.agents.myagents.correlation import adopt, joined
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.switching import Steps, Switcher
from sessile.errors import (
    Conflict,
    InvalidId,
    LeafMoved,
    NotFound,
    SessileError,
    SessionBusy,
    SessionNotFound,
    UnsafePath,
    Unsupported,
)
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem

FILE = f"{ROOT}/sessions/s.jsonl"
LOCK = f"{ROOT}/sessions.lock"
STEPS = Steps(lambda: None, lambda: None, lambda seconds: True, lambda: None)


def stats_of(store: MyAgentsStore) -> object:
    known = store.get("s")
    return known.stats if known else None


def reads_of(faulty: FaultyFilesystem, act: object) -> int:
    """Return the number of calls that read bytes."""
    before = len(faulty.calls)
    act()  # type: ignore[operator]
    return sum(call.method == "read" for call in faulty.calls[before:])


# -- appending


@pytest.mark.mission("M3")
def test_only_new_messages_of_the_full_list_are_written() -> None:
    """Byte for byte as JavaScript writes them, after what was there."""
    store = begun(folder())
    messages = [asked(0), told(1)]
    assert store.save("s", messages).appended == 2
    assert store.save("s", [*messages, asked(2)]).appended == 1
    assert store.save("s", [*messages, asked(2)]) == (0, False, 3, (), None)
    assert content(store, FILE) == line(asked(0)) + line(told(1)) + line(asked(2))


@pytest.mark.mission("M3")
def test_a_malformed_line_does_not_shift_the_count() -> None:
    """The first versions lose one new message for each bad line."""
    fs = MemoryFilesystem()
    put_index(fs, row("s"))
    put(fs, FILE, line(asked(0)) + b"{bad\n" + line(told(1)))
    store = folder(fs)
    assert store.files.count("s") == 2
    store.save("s", [*(dict(each.value) for each in store.load("s").messages), asked(2)])
    assert ids(store) == ["0", "1", "2"]
    assert b"{bad\n" in content(store, FILE)


@pytest.mark.mission("M3")
def test_a_torn_last_line_is_left_and_the_next_message_begins_a_line() -> None:
    """The torn line is a finding, and the new message is read."""
    fs = MemoryFilesystem()
    put_index(fs, row("s"))
    torn = line(asked(1))[:15]
    put(fs, FILE, line(asked(0)) + torn)
    store = folder(fs)
    store.append("s", [asked(2)])
    assert ids(store) == ["0", "2"]
    assert content(store, FILE) == line(asked(0)) + torn + b"\n" + line(asked(2))
    assert [finding.length for finding in store.load("s").findings] == [len(torn)]


@pytest.mark.mission("M3")
def test_an_append_to_a_long_session_reads_no_more_than_to_a_short_one() -> None:
    """The count is cached, and checked with one read of the last row."""
    faulty = FaultyFilesystem(MemoryFilesystem())
    store = begun(folder(faulty))
    store.append("s", [asked(n) for n in range(3)])
    short = reads_of(faulty, lambda: store.append("s", [asked(3)]))
    store.append("s", [asked(n, "x" * 1000) for n in range(4, 5000)])
    size = store.fs.lstat(FILE).st_size
    assert size > 4 << 20
    assert reads_of(faulty, lambda: store.append("s", [asked(5000)])) == short


@pytest.mark.mission("M3")
def test_what_others_append_is_counted_too() -> None:
    """A list without them is refused, because it would use the same numbers twice."""
    store = begun(folder())
    store.save("s", [asked(0)])
    other = folder(store.fs)
    other.save("s", [asked(0), told(1)])
    with pytest.raises(LeafMoved):
        store.save("s", [asked(0), asked(5)])
    assert store.save("s", [asked(0), told(1), asked(2)]).messages == 3
    assert ids(store) == ["0", "1", "2"]


@pytest.mark.mission("M3")
def test_a_shorter_list_is_refused() -> None:
    """An incomplete memory of two messages once overwrote a file of twenty-two."""
    store = begun(folder())
    store.save("s", [asked(0), told(1), asked(2)])
    before = content(store, FILE)
    with pytest.raises(Conflict):
        store.save("s", [asked(0)])
    assert content(store, FILE) == before


@pytest.mark.mission("M3")
def test_usage_that_arrives_late_is_stored_and_the_row_as_it_was_is_kept() -> None:
    """File and statistics are updated; the old row is saved in our folder, at the returned path."""
    store = begun(folder())
    before = {"id": "1", "role": "assistant", "content": "well", "timestamp": "t", "later": 1}
    store.save("s", [asked(0), before])
    after = told(1, timestamp="t")
    saved = store.save("s", [asked(0), after, asked(2)])
    assert saved.updated and saved.appended == 1
    assert store.load("s").messages[1].value == before | after
    assert stats_of(store) == store.recount("s")
    assert saved.kept == (f"{OURS}/originals/s.replaced",)
    assert content(store, saved.kept[0]) == line(before)
    assert store.fs.names(f"{OURS}/originals") == ["s.replaced"]


@pytest.mark.mission("M3")
def test_members_of_the_last_message_can_be_put_right() -> None:
    """The whole list need not be passed, and without a change nothing is written."""
    store = begun(folder())
    store.save("s", [asked(0), told(1)])
    assert store.update_last("s", {"toolCount": 3, "durationMs": 40}).updated
    assert store.load("s").messages[1].tool_count == 3
    assert not store.update_last("s", {"toolCount": 3}).updated
    assert stats_of(store) == store.recount("s")


@pytest.mark.mission("M3")
def test_what_another_appends_while_a_row_is_replaced_is_carried_over() -> None:
    """A row appended to the old file between the copy and the rename is kept."""
    inner = MemoryFilesystem()
    begun(folder(inner)).save("s", [asked(0), told(1, tokens=1)])

    def another() -> None:
        folder(inner).append("s", [asked(2)])

    faulty = FaultyFilesystem(inner, plan=[Meddle(another, at=1, on={"link"})], without={"lock"})
    store = folder(faulty)  # without our lock, which other programs do not know
    store.update_last("s", {"toolCount": 1})
    assert faulty.struck
    assert ids(store) == ["0", "1", "2"] and store.load("s").messages[1].tool_count == 1


@pytest.mark.mission("M3")
def test_rows_written_into_a_file_that_was_just_replaced_are_written_again() -> None:
    """Another program replaced the file at that moment."""
    inner = MemoryFilesystem()
    begun(folder(inner)).save("s", [asked(0)])
    faulty = FaultyFilesystem(
        inner, plan=[Meddle(lambda: put(inner, FILE, line(asked(0)) + line(told(1))), on={"write"})]
    )
    folder(faulty).append("s", [asked(2)])
    assert ids(folder(inner)) == ["0", "1", "2"]


@pytest.mark.mission("M3")
def test_a_deleted_session_is_not_brought_back_by_an_append() -> None:
    """Without a row and a file there is nothing to append to; a file without a row is appended to."""
    store = begun(folder())
    store.save("s", [asked(0)])
    store.delete("s")
    with pytest.raises(SessionNotFound):
        store.append("s", [asked(1)])
    assert store.fs.names(f"{ROOT}/sessions") == []
    put(store.fs, f"{ROOT}/sessions/orphan.jsonl", line(asked(0)))
    assert store.append("orphan", [told(1)]).pending is None
    assert ids(store, "orphan") == ["0", "1"]


@pytest.mark.mission("M3")
def test_a_session_deleted_during_the_append_stays_deleted() -> None:
    """The message is in the trash with the rest of it."""
    inner = MemoryFilesystem()
    store = begun(folder(inner))
    store.save("s", [asked(0)])
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: store.delete("s"), on={"write"})])
    with pytest.raises(SessionNotFound):
        folder(faulty).append("s", [asked(1)])
    assert inner.names(f"{ROOT}/sessions") == []
    store.undo("stamp1")
    assert ids(store) == ["0", "1"]


@pytest.mark.mission("M8")
@pytest.mark.parametrize("session_id", ["../../evil", "", "a/b", "x" * 100, "."])
def test_no_verb_takes_an_id_that_breaks_the_rule(session_id: str) -> None:
    """Nothing is written anywhere."""
    store = folder()
    attempts = (
        lambda: store.create(session_id, "/w"),
        lambda: store.get(session_id),
        lambda: store.load(session_id),
        lambda: store.save(session_id, [asked(0)]),
        lambda: store.append(session_id, [asked(0)]),
        lambda: store.update_last(session_id, {}),
        lambda: store.update(session_id, "0", {}),
        lambda: store.record_run(session_id, "x"),
        lambda: store.files.count(session_id),
        lambda: adopt(store, session_id, "/w"),
        lambda: Archive(store).pack(session_id),
        lambda: Archive(store).unpack(session_id),
        lambda: joined(store, "/projects", session_id),
        lambda: Switcher(store, STEPS).switch(session_id),
        lambda: store.attachments.size(f"{session_id}/a.png"),
        lambda: store.rename(session_id, "x"),
        lambda: store.title_from(session_id, "x"),
        lambda: store.delete(session_id),
        lambda: store.recount(session_id),
        lambda: store.repair_stats(session_id),
        lambda: store.writer(session_id),
        lambda: store.attachments.save(session_id, "a", "n", "image/png", b""),
        lambda: store.attachments.read(f"{session_id}/a.png"),
    )
    for attempt in attempts:
        with pytest.raises(InvalidId):
            attempt()
    assert store.fs.names("/") == []


# -- statistics


@pytest.mark.mission("M4")
def test_statistics_grow_with_the_messages_and_equal_a_recount() -> None:
    """Questions are counted, tokens are added, and the time of activity is updated."""
    time = Time()
    store = begun(folder(time=time))
    time.nanoseconds += 5_000_000_000
    store.append("s", [asked(0), told(1), asked(2)])
    assert (
        stats_of(store)
        == store.recount("s")
        == {
            "messageCount": 2,
            "totalInputTokens": 10,
            "totalOutputTokens": 1,
            "totalCacheReadTokens": 2,
        }
    )
    known = store.get("s")
    assert known is not None and known.last_active_at == "2026-02-16T10:20:35.000Z"


@pytest.mark.mission("M2")
def test_an_old_session_counts_from_its_next_message() -> None:
    """Earlier messages are unknown until a recount."""
    fs = MemoryFilesystem()
    put_index(fs, row("s"))
    put(fs, FILE, line(asked(0)) + line(asked(1)))
    store = folder(fs)
    assert stats_of(store) is None
    store.append("s", [asked(2)])
    assert stats_of(store) == {"messageCount": 1, "totalInputTokens": 0, "totalOutputTokens": 0}
    store.repair_stats("s")
    assert stats_of(store) == {"messageCount": 3, "totalInputTokens": 0, "totalOutputTokens": 0}


@pytest.mark.mission("M4")
@pytest.mark.mission("M5")
def test_a_busy_index_neither_delays_nor_loses_a_message_and_the_statistics_catch_up() -> None:
    """It waits at most 30 ms; the next write brings the statistics up to date."""
    time = Time()
    store = begun(folder(time=time))
    store.fs.mkdir(LOCK)
    saved = store.save("s", [asked(0), told(1)])
    assert saved.appended == 2 and isinstance(saved.pending, SessionBusy) and sum(time.pauses) <= 0.031
    assert ids(store) == ["0", "1"] and stats_of(store) is None and store.pending() == ["s"]
    store.fs.rmdir(LOCK)
    assert store.append("s", [asked(2)]).pending is None
    assert stats_of(store) == store.recount("s") and store.pending() == []


@pytest.mark.mission("M4")
def test_another_process_settles_what_one_that_ended_could_not_write() -> None:
    """The note is in our folder."""
    store = begun(folder())
    store.fs.mkdir(LOCK)
    store.append("s", [asked(0), told(1)])
    store.fs.rmdir(LOCK)
    later = folder(store.fs)
    assert later.settle() == ["s"]
    assert stats_of(later) == later.recount("s") and later.pending() == []


@pytest.mark.mission("M4")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_index_that_cannot_be_written_does_not_make_a_stored_message_look_lost(code: int) -> None:
    """The message is stored, and the reason is returned."""
    inner = MemoryFilesystem()
    begun(folder(inner))
    faulty = FaultyFilesystem(inner, plan=[Fail(code, on={"rename"}, forever=True)])
    saved = folder(faulty).append("s", [asked(0)])
    assert isinstance(saved.pending, SessileError) and saved.appended == 1
    assert ids(folder(inner)) == ["0"]


# -- reading


@pytest.mark.mission("M6")
def test_reading_writes_nothing() -> None:
    """No byte, time or file changes, whatever the state of the folder."""
    time = Time()
    fs = MemoryFilesystem(clock=time)
    put_index(fs, row("s"), row("old"))
    put(fs, FILE, line(asked(0)) + b"{torn")
    put(fs, f"{ROOT}/sessions/old.json", json.dumps({"messages": [asked(0)]}).encode())
    before = everything(fs, "/")
    time.nanoseconds += 10**12
    store = folder(fs, time)
    for session_id in ("s", "old", "missing"):
        store.load(session_id)
        store.recount(session_id)
    store.list_sessions()
    store.pending()
    assert everything(fs, "/") == before


# -- attachments


@pytest.mark.mission("M8")
def test_an_attachment_is_stored_under_checked_names() -> None:
    """The extension comes from a table, the content is read back, and its size is known."""
    store = folder()
    said = store.attachments.save("s", "img_1-a", "x.png", "image/png; q=1", b"data")
    assert said == {"id": "img_1-a", "name": "x.png", "mimeType": "image/png; q=1", "path": "s/img_1-a.png"}
    assert store.attachments.read(said["path"]) == b"data" and store.attachments.size(said["path"]) == 4
    assert store.attachments.size("s/none.png") is None
    with pytest.raises(NotFound):
        store.attachments.read("s/none.png")
    with pytest.raises(Conflict):
        store.attachments.save("s", "img_1-a", "x.png", "image/png", b"other")


@pytest.mark.mission("M8")
@pytest.mark.parametrize("mime", ["image/svg+xml", "text/html", "image/../../evil", "", "x/y"])
def test_a_type_that_is_not_in_the_table_gets_a_plain_extension(mime: str) -> None:
    """What a browser would execute is stored with another extension."""
    assert folder().attachments.save("s", "a", "n", mime, b"")["path"] == "s/a.bin"


@pytest.mark.mission("M8")
@pytest.mark.parametrize("path", ["../x/a.png", "s/../../a", "s/", "s/.hidden", "/etc/passwd", "s/a/b", "s/a\0"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    """A path in a message cannot lead out of the folder."""
    with pytest.raises(InvalidId):
        folder().attachments.read(path)
    with pytest.raises(InvalidId):
        folder().attachments.save("s", path, "n", "image/png", b"")


# -- deletions


@pytest.mark.mission("M1")
def test_a_deleted_session_goes_to_our_trash_with_its_attachments_and_comes_back() -> None:
    """Every byte of it, and its row."""
    store = begun(folder(), pinnedAt="x")
    begun(store, "t")
    store.save("s", [asked(0), told(1)])
    store.attachments.save("s", "a", "x.png", "image/png", b"data")
    before = everything(store.fs, ROOT)
    deletion = store.delete("s")
    assert [each.id for each in store.list_sessions()] == ["t"]
    assert sorted(everything(store.fs, ROOT)) == [f"{ROOT}/sessions.json"]
    assert not atomic.exists(store.fs, f"{ROOT}/attachments/s")
    assert store.trash.list() == (deletion,)
    store.undo(deletion.token)
    after = everything(store.fs, ROOT)
    assert {path: data for path, (data, _) in after.items() if "sessions.json" not in path} == {
        path: data for path, (data, _) in before.items() if "sessions.json" not in path
    }
    known = store.get("s")
    assert known is not None and known.value["pinnedAt"] == "x" and known.stats == store.recount("s")
    assert store.trash.list() == ()


@pytest.mark.mission("M1")
def test_undo_does_not_overwrite_what_has_the_name_now() -> None:
    """It raises, and can be repeated."""
    store = begun(folder())
    store.save("s", [asked(0)])
    token = store.delete("s").token
    put(store.fs, FILE, b"other")
    with pytest.raises(Conflict):
        store.undo(token)
    assert content(store, FILE) == b"other"
    store.fs.unlink(FILE)
    store.undo(token)
    assert ids(store) == ["0"]


@pytest.mark.mission("M1")
def test_a_deletion_that_cannot_have_the_lock_leaves_the_session() -> None:
    """It waits five seconds, since a user would rather wait than be refused."""
    time = Time()
    store = begun(folder(time=time, alive=lambda pid: True))
    store.save("s", [asked(0)])
    store.fs.mkdir(LOCK)
    put(store.fs, f"{LOCK}/owner", b"node:7:1")
    with pytest.raises(SessionBusy):
        store.delete("s")
    assert 4.9 < sum(time.pauses) < 5.1
    assert ids(store) == ["0"] and store.get("s") is not None


def test_deleting_what_is_not_there_says_so() -> None:
    """A missing session is an error."""
    store = folder()
    with pytest.raises(SessionNotFound):
        store.delete("s")
    with pytest.raises(NotFound):
        store.undo("none")
    with pytest.raises(NotFound):
        store.undo("../x")


# -- later versions


@pytest.mark.mission("M5")
def test_where_later_versions_are_at_home_their_session_lock_is_taken_for_a_rewrite() -> None:
    """An append does not wait for it."""
    time = Time()
    inner = MemoryFilesystem(clock=time)
    atomic.make_folders(inner, f"{ROOT}/session-locks")
    store = begun(folder(inner, time, alive=lambda pid: True))
    store.save("s", [asked(0), told(1)])
    lock = f"{ROOT}/session-locks/s.jsonl.lock"
    put(inner, f"{lock}/owner", b"node:7:1")
    store.append("s", [asked(2)])
    assert time.pauses == []
    with pytest.raises(SessionBusy):
        store.update_last("s", {"x": 1})
    inner.unlink(f"{lock}/owner")
    inner.rmdir(lock)
    store.update_last("s", {"x": 1})
    assert inner.names(f"{ROOT}/session-locks") == []


@pytest.mark.mission("M1")
def test_a_transcript_of_later_versions_is_not_written() -> None:
    """The hint says what can be done instead."""
    store = begun(folder())
    put(store.fs, f"{ROOT}/sessions-v2/s.jsonl", b"{}\n")
    with pytest.raises(Unsupported):
        store.append("s", [asked(0)])


@pytest.mark.mission("M1")
def test_a_deletion_keeps_the_row_as_it_was_at_the_last_moment() -> None:
    """Another program may have renamed the session since it was read."""
    inner = MemoryFilesystem()
    begun(folder(inner)).save("s", [asked(0)])
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: folder(inner).rename("s", "new"), on={"link"})])
    deletion = folder(faulty).delete("s")
    assert deletion.row is not None and deletion.row["title"] == "new"
    folder(inner).undo(deletion.token)
    assert [each.title for each in folder(inner).list_sessions()] == ["new"]


@pytest.mark.mission("M1")
def test_where_no_link_can_reach_copies_go_to_the_trash_and_come_back() -> None:
    """Files on another disk are copied; a file that grew after it was copied stays."""
    inner = MemoryFilesystem()
    begun(folder(inner)).save("s", [asked(0), told(1)])
    before = atomic.read_all(inner, FILE)
    faulty = FaultyFilesystem(inner, plan=[Fail(errno.EXDEV, on={"link"}, forever=True)])
    store = folder(faulty)
    store.undo(store.delete("s").token)
    assert atomic.read_all(inner, FILE) == before
    store.update_last("s", {"toolCount": 1})
    assert store.load("s").messages[1].tool_count == 1
    slow = FaultyFilesystem(faulty, plan=[Meddle(lambda: folder(inner).append("s", [asked(2)]), on={"mkdir"}, at=2)])
    with pytest.raises(LeafMoved):
        folder(slow, stamp=lambda: "again").delete("s")
    assert slow.struck and ids(folder(inner)) == ["0", "1", "2"]


@pytest.mark.mission("M8")
@pytest.mark.parametrize(
    ("session_id", "path"),
    [
        ("s", "../outside"),
        ("s", "sessions.json"),
        ("s", "sessions/../../x"),
        ("s", "attachments/other/a.png"),
        ("../s", "attachments/../s/a.png"),
    ],
)
def test_undo_puts_nothing_where_no_file_of_the_session_can_be(session_id: str, path: str) -> None:
    """A manifest that another program changed cannot lead elsewhere."""
    store = begun(folder())
    store.save("s", [asked(0)])
    note = {"token": "t", "session_id": session_id, "row": None, "paths": [path]}
    put(store.fs, f"{OURS}/trash/t/manifest.json", json.dumps(note).encode())
    put(store.fs, f"{OURS}/trash/t/0", b"evil")
    before = everything(store.fs, "/")
    with pytest.raises((UnsafePath, InvalidId)):
        store.undo("t")
    assert everything(store.fs, "/") == before
