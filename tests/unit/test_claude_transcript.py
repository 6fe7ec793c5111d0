"""The transcript writer: one write per call, to the right file, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_rows import (
    CWD,
    FOLDER,
    HOME,
    NOW,
    OTHER,
    PATH,
    SESSION,
    STAMP,
    Json,
    assistant,
    boundary,
    rows_in,
    system,
    transcript,
    uid,
    user,
)
from faults.failing import Fail, FaultyFilesystem, Meddle, ShortWrite
from sessile.agents.claude import transcript_file
from sessile.agents.claude.paths import Current
from sessile.agents.claude.rows import TranscriptState
from sessile.agents.claude.transcript import Diagnostic, Team, Transcript
from sessile.errors import (
    Damaged,
    Invalid,
    InvalidId,
    LeafMoved,
    NotFound,
    SessionBusy,
    StorageFull,
    SyncFailed,
    TooLarge,
    UnsafePath,
)
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.memory import MemoryFilesystem


def content(fs: Filesystem, path: str = PATH) -> bytes:
    return atomic.read_all(fs, path)


def rows(fs: Filesystem, path: str = PATH) -> list[Json]:
    return rows_in(content(fs, path))


def put(fs: Filesystem, data: bytes, path: str = PATH) -> None:
    """Write a file as another program would."""
    atomic.make_folders(fs, path.rpartition("/")[0])
    atomic.replace(fs, path, (data,))


def add(fs: Filesystem, data: bytes, path: str = PATH) -> None:
    """Append as another program would, without a lock."""
    fd = fs.open(path, os.O_WRONLY | os.O_APPEND)
    fs.write(fd, data)
    fs.close(fd)


def line(row: Json) -> bytes:
    return json.dumps(row).encode() + b"\n"


# -- recording


@pytest.mark.mission("C4")
def test_messages_are_recorded_once_and_linked() -> None:
    """A growing conversation is passed again and again; each message is written by the first call that has it."""
    writer = transcript()
    assert writer.record_transcript([user("A")]) == uid("A")
    assert writer.record_transcript([user("A"), assistant("B")]) == uid("B")
    assert writer.record_transcript([user("A"), assistant("B")]) == uid("B")
    assert writer.record_transcript([user("C")], starting_parent_hint=uid("B")) == uid("C")
    assert [(row["uuid"], row["parentUuid"]) for row in rows(writer.fs)] == [
        (uid("A"), None),
        (uid("B"), uid("A")),
        (uid("C"), uid("B")),
    ]
    assert writer.record_transcript([]) is None


@pytest.mark.mission("C4")
def test_what_the_file_holds_is_not_recorded_again() -> None:
    """A new process, or one beside another writer, knows what is in the file."""
    first = transcript()
    first.record_transcript([user("A"), assistant("B")], team=Team("red", "ann"))
    second = transcript(first.fs)
    assert second.record_transcript([user("A"), assistant("B"), user("C")]) == uid("C")
    assert first.record_transcript([user("A"), assistant("B"), user("C"), assistant("D")]) == uid("D")
    assert [row["uuid"] for row in rows(first.fs)] == [uid(name) for name in "ABCD"]


@pytest.mark.mission("C8")
def test_every_call_is_one_write() -> None:
    """All rows of a call are in one write, which is in the file when the call returns."""
    fs = FaultyFilesystem(MemoryFilesystem())
    writer = transcript(fs)
    for number in range(3):
        writes = [call for call in fs.calls if call.method == "write"]
        writer.record_transcript([user(f"u{number}"), assistant(f"a{number}")])
        assert len([call for call in fs.calls if call.method == "write"]) == len(writes) + 1
    writer.insert_queue_operation("enqueue", "later")
    assert len([call for call in fs.calls if call.method == "write"]) == 4


@pytest.mark.mission("C5")
def test_a_sidechain_has_its_own_file_and_its_own_uuids() -> None:
    """An agent that starts with copies of its parent's messages has them in its own file, with the same uuids."""
    writer = transcript()
    writer.record_transcript([user("A"), assistant("B")])
    assert writer.record_sidechain_transcript([user("A"), assistant("B"), user("S")], "a1") == uid("S")
    assert writer.record_sidechain_transcript([user("A"), assistant("B"), user("S")], "a1") == uid("S")
    path = f"{FOLDER}/{SESSION}/subagents/agent-a1.jsonl"
    assert writer.agent_path("a1") == path
    assert [row["uuid"] for row in rows(writer.fs, path)] == [uid(name) for name in "ABS"]
    assert {(row["isSidechain"], row["agentId"], row["sessionId"]) for row in rows(writer.fs, path)} == {
        (True, "a1", SESSION)
    }
    assert len(rows(writer.fs)) == 2
    assert writer.record_sidechain_transcript([user("T")], "a2", starting_parent=uid("S")) == uid("T")
    assert rows(writer.fs, writer.agent_path("a2"))[0]["parentUuid"] == uid("S")


@pytest.mark.mission("C5")
def test_agents_can_be_grouped_in_a_folder() -> None:
    """A group is set before the agent runs, and ends with the agent or the session."""
    writer = transcript()
    writer.set_agent_subdir("a1", "workflows/run-7")
    grouped = f"{FOLDER}/{SESSION}/subagents/workflows/run-7/agent-a1.jsonl"
    writer.record_sidechain_transcript([user("S")], "a1")
    assert len(rows(writer.fs, grouped)) == 1
    writer.set_agent_subdir("a1", None)
    assert writer.agent_path("a1") == f"{FOLDER}/{SESSION}/subagents/agent-a1.jsonl"


@pytest.mark.mission("C5")
@pytest.mark.parametrize(
    ("agent", "subdir"), [("../x", None), ("", None), ("a\0", None), ("a", ".."), ("a", "x//y"), ("a", "/x")]
)
def test_no_name_of_an_agent_leads_out_of_its_folder(agent: str, subdir: str | None) -> None:
    """Ids and groups become parts of paths, and are refused if they could lead elsewhere."""
    writer = transcript()
    with pytest.raises(InvalidId):
        writer.set_agent_subdir(agent, subdir) if subdir else writer.record_sidechain_transcript([user("S")], agent)


# -- rows beside the conversation


@pytest.mark.mission("C6")
def test_rows_beside_the_conversation_are_recorded_as_documented() -> None:
    """Queue operations, snapshots, attribution and replacements have the documented members and no parent."""
    writer = transcript()
    writer.record_transcript([user("A")])
    writer.insert_queue_operation("enqueue", "later")
    writer.insert_queue_operation("dequeue")
    snapshot = {"messageId": uid("A"), "trackedFileBackups": {}, "timestamp": NOW}
    writer.insert_file_history_snapshot(uid("A"), snapshot, is_update=True)
    writer.insert_attribution_snapshot({"messageId": uid("A"), "type": "?", "surface": "cli", "fileStates": {}})
    replacement = {"kind": "tool-result", "toolUseId": "t", "replacement": "short"}
    writer.insert_content_replacement([replacement])
    queued = {"type": "queue-operation", "operation": "enqueue", "timestamp": NOW, "sessionId": SESSION}
    assert rows(writer.fs)[1:] == [
        queued | {"content": "later"},
        queued | {"operation": "dequeue"},
        {"type": "file-history-snapshot", "messageId": uid("A"), "snapshot": snapshot, "isSnapshotUpdate": True},
        {"type": "attribution-snapshot", "messageId": uid("A"), "surface": "cli", "fileStates": {}},
        {"type": "content-replacement", "sessionId": SESSION, "replacements": [replacement]},
    ]
    assert all(row.startswith(b'{"type":') for row in content(writer.fs).split(b"\n")[1:-1])


@pytest.mark.mission("C6")
def test_what_was_noted_is_read_back_as_state() -> None:
    """The waiting prompt, the snapshot of a message, the last attribution, replacements and values are read back."""
    writer = transcript()
    writer.record_transcript([user("A")])
    for operation, text in (("enqueue", "one"), ("enqueue", "two"), ("dequeue", None)):
        writer.insert_queue_operation(operation, text)
    writer.insert_file_history_snapshot(uid("A"), {"messageId": uid("A"), "trackedFileBackups": {"f": {}}})
    for surface in ("cli", "web"):
        writer.insert_attribution_snapshot({"messageId": uid("A"), "surface": surface})
    writer.insert_content_replacement([{"kind": "tool-result", "toolUseId": "t", "replacement": "short"}])
    writer.set_tag("old")
    writer.set_tag(None)
    writer.set_value("pr-link", {"prNumber": 7, "prUrl": "u"})
    state = TranscriptState()
    for row in rows(writer.fs):
        state.apply(row)
    assert [row["content"] for row in state.queue] == ["two"]
    assert state.snapshots.keys() == {uid("A")}
    assert state.attribution is not None
    assert state.attribution["surface"] == "web"
    assert state.replacement_of("t") == "short"
    assert state.values["tag"] == ""
    assert state.values["pr-link"]["prNumber"] == 7


@pytest.mark.mission("C6")
def test_a_replacement_for_an_agent_goes_to_its_file() -> None:
    """It names the agent and, like other metadata, waits for the agent's first message."""
    writer = transcript()
    writer.record_transcript([user("A")])
    writer.insert_content_replacement([{"toolUseId": "t"}], agent_id="a1")
    assert not atomic.exists(writer.fs, writer.agent_path("a1"))
    writer.record_sidechain_transcript([user("S")], "a1")
    first, second = rows(writer.fs, writer.agent_path("a1"))
    assert (first["type"], first["agentId"], second["uuid"]) == ("content-replacement", "a1", uid("S"))
    assert len(rows(writer.fs)) == 1


# -- lazy creation


@pytest.mark.mission("C8")
def test_no_file_is_made_before_something_is_said() -> None:
    """Metadata, system rows and attachments wait; the first user or assistant row writes them, metadata first."""
    writer = transcript()
    writer.insert_queue_operation("enqueue", "first")
    writer.set_title("Old")
    assert writer.record_transcript([system("S")]) == uid("S")
    writer.set_title(" New ")
    writer.set_value("mode", "plan")
    assert not atomic.exists(writer.fs, FOLDER)
    assert writer.record_transcript([system("S"), user("A")]) == uid("A")
    said = [(row["type"], row.get("customTitle"), row.get("parentUuid")) for row in rows(writer.fs)]
    assert said == [
        ("custom-title", "New", None),
        ("mode", None, None),
        ("queue-operation", None, None),
        ("system", None, None),
        ("user", None, uid("S")),
    ]


@pytest.mark.mission("C8")
def test_an_empty_file_is_none_yet() -> None:
    """A process that died between creating the file and its first row leaves an empty file, which counts as missing."""
    writer = transcript()
    put(writer.fs, b"")
    writer.set_title("T")
    assert content(writer.fs) == b""
    writer.record_transcript([user("A")])
    assert [row["type"] for row in rows(writer.fs)] == ["custom-title", "user"]


@pytest.mark.mission("C8")
def test_a_file_that_was_deleted_is_begun_anew() -> None:
    """The known state belongs to the deleted file: the whole conversation is written again."""
    writer = transcript()
    writer.record_transcript([user("A"), assistant("B")])
    for messages in ([user("A"), assistant("B"), user("C")], [user("A"), assistant("B")]):
        writer.fs.unlink(PATH)
        writer.record_transcript(messages)
        assert [row["uuid"] for row in rows(writer.fs)] == [message["uuid"] for message in messages]


@pytest.mark.mission("C8")
def test_what_another_program_has_cut_off_is_written_again() -> None:
    """A file that has become shorter is read again."""
    writer = transcript()
    writer.record_transcript([user("A"), assistant("B")])
    fd = writer.fs.open(PATH, os.O_RDWR)
    writer.fs.truncate(fd, content(writer.fs).index(b"\n") + 1)
    writer.fs.close(fd)
    writer.record_transcript([user("A"), assistant("B")])
    assert [row["uuid"] for row in rows(writer.fs)] == [uid("A"), uid("B")]


@pytest.mark.mission("C8")
def test_a_file_that_was_replaced_is_read_anew() -> None:
    """Rows that another process removed are forgotten, however long the new file is."""
    writer = transcript()
    writer.record_transcript([user("A"), user("B")])
    other = transcript(writer.fs)
    other.remove_transcript_message(uid("A"))
    other.record_transcript([user("C", "x" * 2000)])
    writer.record_transcript([user("B"), user("A")])
    assert [row["uuid"] for row in rows(writer.fs)] == [uid("B"), uid("C"), uid("A")]


@pytest.mark.mission("C8")
def test_rows_go_into_the_file_that_has_the_name_when_the_lock_is_ours() -> None:
    """If another process replaces the file while we wait, nothing is written to the old one."""
    inner = MemoryFilesystem()
    transcript(inner).record_transcript([user("A"), user("B")])

    def remove() -> None:
        assert transcript(inner).remove_transcript_message(uid("A")) is not None

    writer = transcript(FaultyFilesystem(inner, plan=[Meddle(remove, on={"lock"})]))
    writer.record_transcript([user("B"), user("C")])
    assert [row["uuid"] for row in rows(inner)] == [uid("B"), uid("C")]


@pytest.mark.mission("C8")
def test_a_note_does_not_make_us_overlook_what_others_wrote() -> None:
    """A row of another process before our note is still read when it matters."""
    writer = transcript()
    writer.record_transcript([user("A")])
    add(writer.fs, line(user("B")))
    writer.set_title("T")
    assert writer.record_transcript([user("A"), user("B")]) == uid("B")
    assert [row.get("uuid") for row in rows(writer.fs)] == [uid("A"), uid("B"), None]


# -- switching


@pytest.mark.mission("C1")
@pytest.mark.mission("C8")
def test_after_a_switch_no_row_lands_in_the_file_of_the_other_session() -> None:
    """Id and folder change together, and so do path, stamps and known rows; switching back finds all again."""
    writer = transcript()
    writer.record_transcript([user("A")])
    before = content(writer.fs)
    current = writer.switch_session(OTHER, "/claude/projects/-elsewhere")
    assert writer.current == current == (OTHER, CWD, "/claude/projects/-elsewhere")
    writer.set_title("waits")
    writer.record_transcript([user("A"), user("B")])
    assert content(writer.fs) == before
    assert writer.transcript_path() == writer.transcript_path(OTHER) == f"/claude/projects/-elsewhere/{OTHER}.jsonl"
    assert [row["sessionId"] for row in rows(writer.fs, writer.transcript_path())] == [OTHER] * 3
    writer.switch_session(SESSION)
    assert writer.record_transcript([user("A"), user("C")]) == uid("C")
    assert [row["uuid"] for row in rows(writer.fs)] == [uid("A"), uid("C")]


@pytest.mark.mission("C1")
def test_a_refused_switch_changes_neither_id_nor_folder() -> None:
    """An id that is not a UUID is refused before anything changes."""
    writer = transcript()
    before = writer.current
    with pytest.raises(InvalidId):
        writer.switch_session("../../etc", "/elsewhere")
    assert writer.current == before


@pytest.mark.mission("C1")
def test_the_folder_is_the_slug_of_the_working_directory_unless_told() -> None:
    """A session that is resumed from elsewhere keeps its own folder."""
    assert transcript().transcript_path() == PATH
    assert transcript(project_dir="/p/x").transcript_path() == f"/p/x/{SESSION}.jsonl"
    payload = transcript(project_dir="/p/x").hook_payload("Stop", stop_hook_active=False)
    assert payload == {
        "session_id": SESSION,
        "transcript_path": f"/p/x/{SESSION}.jsonl",
        "cwd": CWD,
        "hook_event_name": "Stop",
        "stop_hook_active": False,
    }
    assert transcript(project_dir="/p/x").transcript_path(SESSION) == f"/p/x/{SESSION}.jsonl"
    assert transcript(project_dir="/p/x").transcript_path(OTHER) == f"{FOLDER}/{OTHER}.jsonl"
    with pytest.raises(InvalidId):
        transcript(session_id="nonsense")


# -- metadata near the end


@pytest.mark.mission("C8")
def test_title_and_tag_stay_in_the_part_that_listings_read() -> None:
    """The last 64 KB of the file always hold the last title and tag."""
    writer = transcript()
    writer.record_transcript([user("A")])
    writer.set_title("Mine")
    writer.set_tag("work")
    for number in range(40):
        writer.record_transcript([user(f"u{number}", "x" * 5000)])
        tail = content(writer.fs)[-65536:]
        assert b'"customTitle":"Mine"' in tail
        assert b'"tag":"work"' in tail
    titles = content(writer.fs).count(b'"customTitle"')
    assert 5 < titles < 15, "it is written again now and then, not with every row"


@pytest.mark.mission("C8")
def test_the_title_of_another_process_is_adopted() -> None:
    """The title that an SDK process has written is repeated; a cleared tag is not."""
    writer = transcript()
    writer.record_transcript([user("A")])
    writer.set_title("Mine")
    writer.set_tag("old")
    add(writer.fs, line({"type": "custom-title", "customTitle": "Theirs", "sessionId": SESSION}))
    add(writer.fs, line({"type": "tag", "tag": "", "sessionId": SESSION}))
    writer.record_transcript([user("B", "x" * 70_000)])
    writer.close()
    assert [row["type"] for row in rows(writer.fs)[-2:]] == ["user", "custom-title"]
    assert rows(writer.fs)[-1]["customTitle"] == "Theirs"


@pytest.mark.mission("C8")
def test_closing_an_unbegun_session_makes_no_file() -> None:
    """There is nothing to repeat."""
    writer = transcript()
    writer.set_title("T")
    writer.close()
    assert not atomic.exists(writer.fs, PATH)


@pytest.mark.mission("C13")
@pytest.mark.parametrize("value", ["", "  ", "\u200b\ue000 "])
def test_an_empty_title_or_tag_is_refused(value: str) -> None:
    """Nothing is written."""
    writer = transcript()
    writer.record_transcript([user("A")])
    with pytest.raises(Invalid):
        writer.set_tag(value)
    with pytest.raises(Invalid):
        writer.set_title(value.strip("\u200b\ue000"))
    with pytest.raises(Invalid):
        writer.set_value("nonsense", 1)
    assert len(rows(writer.fs)) == 1


# -- appends among others


@pytest.mark.mission("C8")
@pytest.mark.parametrize("tail", [b'{"type":"user","uuid":"torn', b'{"type":"user","uuid":"whole"}', b"\0\0\0\0"])
def test_a_row_never_joins_what_stands_without_a_line_end(tail: bytes) -> None:
    """After a torn or unfinished last row the next one starts on its own line; nothing before it changes."""
    writer = transcript()
    put(writer.fs, line(user("A")) + tail)
    writer.record_transcript([user("N")], starting_parent_hint=uid("A"))
    before, _, last = content(writer.fs)[:-1].rpartition(b"\n")
    assert before == line(user("A")) + tail
    assert json.loads(last)["uuid"] == uid("N")


@pytest.mark.mission("C8")
def test_a_row_that_was_half_there_is_known_when_it_is_whole() -> None:
    """If another process completes its row after we read it, the row is not recorded twice."""
    writer = transcript()
    writer.record_transcript([user("A")])
    half = line(user("B"))
    add(writer.fs, half[:20])
    assert writer.record_transcript([]) is None
    add(writer.fs, half[20:])
    assert writer.record_transcript([user("A"), user("B")]) == uid("B")
    assert len(rows(writer.fs)) == 2


@pytest.mark.mission("C8")
@pytest.mark.parametrize("theirs", [b'{"type":"user"}\n', b'{"type":"torn'])
def test_a_writer_without_lock_does_not_spoil_ours(theirs: bytes) -> None:
    """Rows written between our check of the end and our write stay whole, and so do ours."""
    inner = MemoryFilesystem()
    transcript(inner).record_transcript([user("A")])
    fs = FaultyFilesystem(inner, plan=[Meddle(lambda: add(inner, theirs), on={"write"})])
    writer = transcript(fs)
    writer.record_transcript([user("A"), user("B")])
    writer.record_transcript([user("A"), user("B"), user("C")])
    lines = content(inner).split(b"\n")
    assert theirs.rstrip(b"\n") in content(inner)
    assert [json.loads(row)["uuid"] for row in lines[-3:-1]] == [uid("B"), uid("C")]


@pytest.mark.mission("C8")
def test_a_full_disk_takes_nothing_and_the_next_call_works() -> None:
    """A write that does not fit is undone; once there is room the same call succeeds."""
    inner = MemoryFilesystem()
    transcript(inner).record_transcript([user("A")])
    before = content(inner)
    fs = FaultyFilesystem(inner, plan=[ShortWrite(written=7)])
    writer = transcript(fs)
    with pytest.raises(StorageFull):
        writer.record_transcript([user("A"), user("B")])
    assert content(inner) == before
    assert writer.record_transcript([user("A"), user("B")]) == uid("B")
    assert len(rows(inner)) == 2


@pytest.mark.mission("C8")
def test_a_failed_sync_is_not_forgotten() -> None:
    """The content of the disk is unknown: later calls raise again until the file is reopened."""
    fs = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, on={"sync"})])
    writer = transcript(fs)
    for _ in range(2):
        with pytest.raises(SyncFailed):
            writer.record_transcript([user("A")])
    with pytest.raises(SyncFailed):
        writer.flush()
    writer.reset_session_file_pointer()
    assert writer.record_transcript([user("A"), user("B")]) == uid("B")
    assert [row["uuid"] for row in rows(fs.inner)] == [uid("A"), uid("B")]


@pytest.mark.mission("C8")
def test_flush_makes_durable_what_was_only_written() -> None:
    """Without `power` a call does not wait for the disk; `flush` does, once."""
    fs = FaultyFilesystem(MemoryFilesystem())
    writer = transcript(fs, power=False)
    writer.record_transcript([user("A")])
    writer.record_sidechain_transcript([user("S")], "a1")
    assert not [call for call in fs.calls if call.method == "sync"]
    writer.flush()
    writer.flush()
    assert len([call for call in fs.calls if call.method == "sync"]) == 2


@pytest.mark.mission("C8")
def test_a_held_file_is_waited_for_and_then_named() -> None:
    """If the lock is held for too long, the session is busy and nothing is written."""
    writer = transcript(patience=0.01)
    writer.record_transcript([user("A")])
    fd = writer.fs.open(PATH, os.O_RDONLY)
    assert writer.fs.lock(fd)
    with pytest.raises(SessionBusy):
        writer.record_transcript([user("B")])
    writer.fs.unlock(fd)
    assert len(rows(writer.fs)) == 1


@pytest.mark.mission("C8")
def test_a_note_does_not_read_a_large_file() -> None:
    """A title is added to a file of any size with a few small reads."""
    inner = MemoryFilesystem()
    put(inner, line(user("A", "x" * 3_000_000)))
    fs = FaultyFilesystem(inner)
    writer = transcript(fs)
    writer.set_title("T")
    writer.close()
    assert len([call for call in fs.calls if call.method == "read"]) == 1
    writer = transcript(fs)
    writer.set_title("U")
    assert writer.record_transcript([user("A"), user("B")]) == uid("B")
    assert [row.get("customTitle") for row in rows(inner)] == [None, "T", "U", None]


@pytest.mark.mission("C1")
def test_files_and_folders_are_private(tmp_path: Path) -> None:
    """Folders have mode 0700 and files 0600."""
    current = Current(SESSION, CWD)
    writer = Transcript(PosixFilesystem(), str(tmp_path), str(tmp_path / "ours"), current, stamp=STAMP)
    writer.record_transcript([user("A")])
    writer.write_agent_metadata("a1", "explorer")
    for path in (tmp_path / "projects").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.mission("C1")
def test_a_projects_folder_that_is_a_link_is_written_through(tmp_path: Path) -> None:
    """Users link the projects folder to another place; a transcript that is a link itself is refused."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "projects").symlink_to(tmp_path / "elsewhere")
    writer = Transcript(PosixFilesystem(), str(tmp_path), str(tmp_path / "ours"), Current(SESSION, CWD), stamp=STAMP)
    writer.record_transcript([user("A")])
    writer.record_sidechain_transcript([user("S")], "a1")
    assert len(list((tmp_path / "elsewhere").rglob("*.jsonl"))) == 2
    writer.switch_session(OTHER)
    Path(writer.transcript_path()).symlink_to(writer.transcript_path(SESSION))
    with pytest.raises(UnsafePath):
        writer.record_transcript([user("B")])


# -- tombstones


def big(name: str, size: int) -> Json:
    return user(name, "x" * size)


def tombstoned(
    data: list[Json], name: str, *, ending: bytes = b"\n"
) -> tuple[Transcript, transcript_file.Tombstone | None]:
    writer = transcript()
    put(writer.fs, b"".join(map(line, data))[:-1] + ending)
    return writer, writer.remove_transcript_message(uid(name))


@pytest.mark.mission("C7")
@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("name", "ABC")
@pytest.mark.parametrize("size", [10, 40_000, 70_000])
def test_a_row_is_removed_wherever_it_lies_and_kept_first(name: str, size: int, ending: bytes) -> None:
    """First, middle or last, inside the last 64 KB, across their start or before: all other rows stay byte for byte."""
    data = [big("A", size), big("B", size), big("C", size)]
    writer, tombstone = tombstoned(data, name, ending=ending)
    assert tombstone is not None
    removed = line(data["ABC".index(name)])
    left = b"".join(line(row) for row in data if row["uuid"] != uid(name))
    assert content(writer.fs) == (left if name == "C" else left[:-1] + ending)
    assert tombstone.kept.startswith(f"{HOME}/tombstones/{SESSION}/")
    note, row, _ = content(writer.fs, tombstone.kept).split(b"\n")
    assert row + b"\n" == removed
    assert json.loads(note) == {"path": PATH, "uuid": uid(name), "offset": (b"".join(map(line, data))).index(removed)}


@pytest.mark.mission("C7")
def test_a_uuid_that_is_only_mentioned_is_not_the_row() -> None:
    """Parent links and quotations do not match; only the row with this uuid is removed."""
    quoted = user("B", f'"uuid":"{uid("A")}"', parentUuid=uid("A"), nested={"uuid": uid("A")})
    writer, tombstone = tombstoned([user("A"), quoted], "A")
    assert tombstone is not None
    assert content(writer.fs) == line(quoted)
    assert writer.remove_transcript_message(uid("A")) is None
    assert content(writer.fs) == line(quoted)


@pytest.mark.mission("C7")
def test_a_row_behind_a_torn_one_is_removed_without_joining_its_neighbours() -> None:
    """The fragment stays on its line, and the next row on its own."""
    writer = transcript()
    torn, last = b'{"type":"user","uuid":"to', line(user("C"))
    target = line(user("B", parentUuid=None, timestamp=NOW))
    put(writer.fs, torn + target + last)
    assert writer.remove_transcript_message(uid("B")) is not None
    assert content(writer.fs) == torn + b"\n" + last


@pytest.mark.mission("C7")
def test_what_is_not_there_is_not_removed() -> None:
    """An unknown uuid, and a session without a file, change nothing."""
    writer, tombstone = tombstoned([user("A")], "Z")
    assert tombstone is None
    assert content(writer.fs) == line(user("A"))
    assert transcript().remove_transcript_message(uid("A")) is None


@pytest.mark.mission("C7")
def test_a_removed_message_can_be_recorded_again() -> None:
    """A new attempt may reuse the uuid of a discarded one; rows of other processes are known too."""
    writer = transcript()
    for name in "ABC":
        writer.record_transcript([user(name)], starting_parent_hint=uid("A") if name != "A" else None)
    for name, rest in (("B", "AC"), ("C", "A")):
        assert writer.remove_transcript_message(uid(name)) is not None
        assert [row["uuid"] for row in rows(writer.fs)] == [uid(other) for other in rest]
    add(writer.fs, line(user("D", "x" * 1000)))
    assert writer.record_transcript([user("A"), user("B"), user("D")]) == uid("B")
    assert [row["uuid"] for row in rows(writer.fs)] == [uid(name) for name in "ADB"]


@pytest.mark.mission("C7")
def test_the_whole_file_is_only_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit a row before the tail is not removed and the call raises; one in the tail always is."""
    data = [user("A"), big("B", 70_000), user("C"), user("D")]
    size = len(b"".join(map(line, data)))
    monkeypatch.setattr(transcript_file, "MAX_TOMBSTONE_REWRITE_BYTES", size)
    writer, tombstone = tombstoned(data, "A")
    assert tombstone is not None
    monkeypatch.setattr(transcript_file, "MAX_TOMBSTONE_REWRITE_BYTES", size - 1)
    with pytest.raises(TooLarge):
        tombstoned(data, "A")
    writer, tombstone = tombstoned(data, "C")
    assert tombstone is not None
    assert [row["uuid"] for row in rows(writer.fs)] == [uid(name) for name in "ABD"]


def test_the_limit_is_the_documented_one() -> None:
    """Fifty megabytes, and a tail of sixty-four kilobytes."""
    assert (transcript_file.MAX_TOMBSTONE_REWRITE_BYTES, transcript_file.TAIL) == (52_428_800, 65_536)


def meddled(action: Callable[[Filesystem], None], on: str, at: int = 1) -> tuple[MemoryFilesystem, Transcript]:
    """Return a session with three messages, and a writer with another program acting between its calls."""
    inner = MemoryFilesystem()
    put(inner, b"".join(map(line, [user("A"), user("B"), user("C")])))
    return inner, transcript(FaultyFilesystem(inner, plan=[Meddle(lambda: action(inner), on={on}, at=at)]))


@pytest.mark.mission("C7")
@pytest.mark.parametrize(("on", "at"), [("lock", 2), ("rename", 2)])
def test_a_row_that_somebody_adds_meanwhile_comes_along(on: str, at: int) -> None:
    """A writer without a lock that still has the old file open loses nothing."""
    inner, writer = meddled(lambda fs: add(fs, line(user("X"))), on, at)
    assert writer.remove_transcript_message(uid("B")) is not None
    assert [row["uuid"] for row in rows(inner)] == [uid(name) for name in "ACX"]


@pytest.mark.mission("C7")
def test_nothing_is_cut_off_behind_somebody_elses_row() -> None:
    """The row is no longer the last one: the call raises and changes nothing."""
    inner, writer = meddled(lambda fs: add(fs, line(user("X"))), "rename")
    with pytest.raises(LeafMoved):
        writer.remove_transcript_message(uid("C"))
    assert [row["uuid"] for row in rows(inner)] == [uid(name) for name in "ABCX"]


@pytest.mark.mission("C7")
def test_what_somebody_else_has_removed_does_not_come_back() -> None:
    """A file that became shorter while it was copied is not replaced."""

    def cut(fs: Filesystem) -> None:
        fd = fs.open(PATH, os.O_RDWR)
        fs.truncate(fd, content(fs).rindex(line(user("C"))))
        fs.close(fd)

    inner, writer = meddled(cut, "lock", 2)
    with pytest.raises(LeafMoved):
        writer.remove_transcript_message(uid("A"))
    assert [row["uuid"] for row in rows(inner)] == [uid("A"), uid("B")]
    assert inner.names(FOLDER) == [f"{SESSION}.jsonl"]


# -- agents


@pytest.mark.mission("C5")
def test_the_sidecar_of_an_agent_says_what_it_is() -> None:
    """Type, worktree and description are read back; unknown members stay."""
    writer = transcript()
    writer.write_agent_metadata("a1", "explorer", worktree_path="/w", description="looks around")
    path = f"{FOLDER}/{SESSION}/subagents/agent-a1.meta.json"
    said = {"agentType": "explorer", "worktreePath": "/w", "description": "looks around"}
    assert json.loads(content(writer.fs, path)) == writer.read_agent_metadata("a1") == said
    put(writer.fs, json.dumps(said | {"toolUseId": "t"}).encode(), path)
    writer.write_agent_metadata("a1", "planner")
    assert writer.read_agent_metadata("a1") == {"toolUseId": "t", "agentType": "planner"}
    with pytest.raises(Invalid):
        writer.write_agent_metadata("a1", "")


@pytest.mark.mission("C5")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"agentType":5}'])
def test_a_missing_or_broken_sidecar_is_told(data: bytes) -> None:
    """A sub-agent is never resumed as a general one because its sidecar could not be read."""
    writer = transcript()
    with pytest.raises(NotFound, match="no sidecar"):
        writer.read_agent_metadata("a1")
    put(writer.fs, data, f"{FOLDER}/{SESSION}/subagents/agent-a1.meta.json")
    with pytest.raises(Damaged):
        writer.read_agent_metadata("a1")


# -- the mirror


@pytest.mark.mission("C9")
def test_rows_go_to_the_mirror_after_they_are_on_the_disk() -> None:
    """The mirror gets the lines of the file, with their session and agent."""
    writer = transcript()
    sent: list[tuple[str, str | None, list[bytes], bool]] = []
    writer.mirror_to(lambda sid, agent, lines: sent.append((sid, agent, list(lines), lines[0] in on_disk(agent))))

    def on_disk(agent: str | None) -> bytes:
        return content(writer.fs, writer.transcript_path() if agent is None else writer.agent_path(agent))

    writer.set_title("waits")
    assert sent == []
    writer.record_transcript([user("A")])
    writer.record_sidechain_transcript([user("S")], "a1")
    assert [(sid, agent, len(lines), there) for sid, agent, lines, there in sent] == [
        (SESSION, None, 2, True),
        (SESSION, "a1", 1, True),
    ]
    assert b"\n".join(sent[0][2]) + b"\n" == content(writer.fs)


@pytest.mark.mission("C9")
def test_a_mirror_that_fails_stops_nobody_and_tells_no_content() -> None:
    """The row is written; the problem is reported as a code, a number and the class of the error."""
    writer = transcript()

    def fail(*_: object) -> None:
        raise RuntimeError("the secret text of a row")

    writer.mirror_to(fail)
    assert writer.record_transcript([user("A")]) == uid("A")
    assert writer.diagnostics == [Diagnostic("mirror_failed", 1, "RuntimeError")]


def test_a_compaction_is_recorded_behind_what_it_sums_up() -> None:
    """The boundary and its summary are written once, and the summary is the parent of the next message."""
    writer = transcript()
    writer.record_transcript([user("A"), assistant("B")])
    compacted = [boundary("CB"), user("SUM"), user("A"), assistant("B")]
    assert writer.record_transcript(compacted, starting_parent_hint=uid("B")) == uid("SUM")
    assert writer.record_transcript([*compacted, user("N")]) == uid("N")
    assert [row["parentUuid"] for row in rows(writer.fs)[2:]] == [None, uid("CB"), uid("SUM")]
