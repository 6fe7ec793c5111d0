"""Forking, renaming, tagging, archiving and deleting sessions of Claude Code, compared with its SDKs."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from claude_rows import (
    CONFIG,
    CWD,
    FOLDER,
    HOME,
    NOW,
    NOW_SECONDS,
    OTHER,
    PATH,
    PROJECTS,
    SESSION,
    Json,
    assistant,
    progress,
    rows_in,
    transcript,
    uid,
    user,
)
from faults.failing import Fail, FaultyFilesystem
from sessile.agents.claude.mutations import Fork, Mutations, derived_uuid
from sessile.core.text import clean_tag
from sessile.errors import Conflict, EntryNotFound, Invalid, InvalidId, NotFound, SessionExists, SessionNotFound
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem

FIXTURES = Path(__file__).parents[1] / "fixtures" / "claude-writing"


def loaded(name: str) -> Json:
    corpus: Json = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    return corpus


CORPORA = {name: loaded(name) for name in ("branches", "compaction")}
SESSIONS = [(corpus, name) for corpus in CORPORA for name in CORPORA[corpus]["sessions"]]
every_session = pytest.mark.parametrize(("corpus", "name"), SESSIONS)


def mutations(fs: Filesystem, **options: Any) -> Mutations:
    options = {"clock": lambda: NOW_SECONDS, "new_id": lambda: OTHER, **options}
    return Mutations(fs, CONFIG, HOME, **options)


def put(fs: Filesystem, data: bytes, path: str = PATH) -> None:
    atomic.make_folders(fs, path.rpartition("/")[0])
    atomic.replace(fs, path, (data,))


def data(fs: Filesystem, path: str = PATH) -> bytes:
    return atomic.read_all(fs, path)


def conversation(*names: str) -> MemoryFilesystem:
    """Return a file system with one session of these messages."""
    fs = MemoryFilesystem()
    transcript(fs).record_transcript([user(name) for name in names or ("A", "B")])
    return fs


def vector(corpus: str, name: str) -> tuple[MemoryFilesystem, Json, str]:
    """Return the session of a vector on a file system, the vector, and its path."""
    session = CORPORA[corpus]["sessions"][name]
    path = f"{PROJECTS}/{session['file'].removeprefix('projects/')}"
    fs = MemoryFilesystem()
    put(fs, session["content"].encode(), path)
    return fs, session, path


# -- fork


def outline(data: bytes, fork_id: str) -> list[Json]:
    """Return a fork as the vectors describe it: uuids by number."""
    rows = rows_in(data)
    numbers = {uuid: f"N{number}" for number, uuid in enumerate(dict.fromkeys(row["uuid"] for row in rows))}

    def numbered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: numbered(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [numbered(inner) for inner in value]
        return numbers.get(value, value)

    def described(row: Json) -> Json:
        hints = {
            key: row["compactMetadata"][key] for key in row.get("compactMetadata", {}) if key.startswith("preserved")
        }
        return {
            "type": row["type"],
            "subtype": row.get("subtype"),
            "uuid": numbers[row["uuid"]],
            "parent": numbered(row.get("parentUuid")),
            "logical": numbered(row.get("logicalParentUuid")),
            "sid": "FORK" if row["sessionId"] == fork_id else row["sessionId"],
            "from": row.get("forkedFrom", {}).get("messageUuid"),
            "title": row.get("customTitle"),
            "repl": row.get("replacements"),
            "meta": numbered(hints) if "compactMetadata" in row else None,
            "kept_keys": [key for key in ("isMeta", "isCompactSummary", "toolUseResult") if key in row],
        }

    return [described(row) for row in rows]


FORKS = [
    (corpus, name, call)
    for corpus, name in SESSIONS
    for call in ("fork", "fork_up_to", "fork_up_to_boundary", "fork_up_to_summary")
    if call in CORPORA[corpus]["sessions"][name]["ts"]
]


@pytest.mark.mission("C13")
@pytest.mark.parametrize(("corpus", "name", "call"), FORKS)
def test_a_fork_is_what_the_typescript_sdk_makes(corpus: str, name: str, call: str) -> None:
    """Rows, links, compaction metadata, replacements and title are equal, for forks of all or up to some row."""
    fs, session, path = vector(corpus, name)
    expected = session["ts"][call]
    options: Json = {}
    if call == "fork_up_to":
        options = {"up_to": expected["uuid"], "title": "T"}
        expected = expected["result"]
    elif call != "fork":
        options = {"up_to": session["names"]["b" if call == "fork_up_to_boundary" else "sum"]}
    before = data(fs, path)
    if "!error" in expected:
        with pytest.raises(Invalid, match="no messages to fork"):
            mutations(fs).fork(session["session_id"], **options)
        return
    forked = mutations(fs).fork(session["session_id"], **options)
    assert forked.session_id == OTHER
    assert outline(data(fs, forked.path), OTHER) == expected["rows"]
    assert data(fs, path) == before


@pytest.mark.mission("C13")
def test_a_fork_changes_what_it_must_and_keeps_the_rest() -> None:
    """Unknown members and all times but the last stay, and each row names its original."""
    fs = MemoryFilesystem()
    rows = [
        user(
            "A",
            parentUuid=None,
            sessionId=SESSION,
            timestamp="2026-01-01T00:00:00.000Z",
            unknown={"x": [1, None]},
            slug="s",
        ),
        assistant("B", parentUuid=uid("A"), sessionId=SESSION, timestamp="2026-01-01T00:00:01.000Z", teamName="red"),
    ]
    put(fs, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    mutations(fs).fork(SESSION, title="  Copy ")
    first, second, title = rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))
    new = [derived_uuid(OTHER, uid(name)) for name in "AB"]
    assert first == {
        "type": "user",
        "uuid": new[0],
        "message": {"role": "user", "content": "A"},
        "parentUuid": None,
        "sessionId": OTHER,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "unknown": {"x": [1, None]},
        "logicalParentUuid": None,
        "isSidechain": False,
        "forkedFrom": {"sessionId": SESSION, "messageUuid": uid("A")},
    }
    assert (second["parentUuid"], second["timestamp"], "teamName" in second) == (new[0], NOW, False)
    assert {key: title[key] for key in ("type", "customTitle", "sessionId", "timestamp")} == {
        "type": "custom-title",
        "customTitle": "Copy",
        "sessionId": OTHER,
        "timestamp": NOW,
    }


@pytest.mark.mission("C13")
def test_a_fork_maps_every_uuid_that_it_copies_and_brings_the_directory_along() -> None:
    """It maps the uuids of queued prompts and preserved rows, but not those of rows that are left out."""
    metadata = {
        "preservedMessages": {"anchorUuid": uid("S"), "uuids": [uid("A"), uid("P"), "elsewhere"]},
        "runningTurnSends": [uid("A")],
    }
    queued = {"type": "queued_command", "prompt": "q", "source_uuid": uid("A")}
    rows = [
        user("A", sessionKind="daemon", turnAttributionKey="k"),
        progress("P"),
        {"type": "attachment", "uuid": uid("Q"), "parentUuid": uid("P"), "attachment": queued},
        {"type": "system", "subtype": "compact_boundary", "uuid": uid("B"), "compactMetadata": metadata},
        user("S", isCompactSummary=True),
        {"type": "relocated", "relocatedCwd": "/moved", "sessionId": SESSION},
        {"type": "relocated", "relocatedCwd": "/not/mine", "sessionId": OTHER},
    ]
    fs = MemoryFilesystem()
    put(fs, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    forked = rows_in(data(fs, mutations(fs).fork(SESSION).path))
    new = {row["forkedFrom"]["messageUuid"]: row["uuid"] for row in forked if "forkedFrom" in row}
    first, attachment, compaction, _, moved, _ = forked
    assert "sessionKind" not in first and "turnAttributionKey" not in first
    assert attachment["attachment"]["source_uuid"] == new[uid("A")]
    assert compaction["compactMetadata"] == {
        "preservedMessages": {"anchorUuid": new[uid("S")], "uuids": [new[uid("A")], uid("P"), "elsewhere"]}
    }
    assert moved == {"type": "relocated", "sessionId": forked[0]["sessionId"], "relocatedCwd": "/moved"}


@pytest.mark.mission("C13")
def test_a_row_with_a_line_separator_is_forked_whole() -> None:
    """Lines end only at newlines: a text with U+2028, U+0085 or a form feed is one row."""
    text = "a\u2028b\u2029c\x85d\x0be"
    fs = conversation("A")
    transcript(fs).record_transcript([user("B", text)], starting_parent_hint=uid("A"))
    mutations(fs).fork(SESSION)
    assert rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))[1]["message"]["content"] == text


@pytest.mark.mission("C13")
def test_a_fork_takes_what_only_javascript_would_take() -> None:
    """Lone surrogates, huge numbers and deeply nested values are copied."""
    fs = conversation("A")
    odd = (
        b'{"type":"user","uuid":"x","lone":"\\ud800","huge":123456789012345678901234567890,"deep":'
        + b"[" * 300
        + b"]" * 300
    )
    put(fs, data(fs) + odd + b"}\n")
    mutations(fs).fork(SESSION)
    row = rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))[1]
    assert (row["lone"], row["huge"]) == ("\ud800", 123456789012345678901234567890)
    assert json.dumps(row["deep"]) == "[" * 300 + "]" * 300


@pytest.mark.mission("C13")
def test_a_fork_of_a_torn_file_has_every_row_that_can_be_read() -> None:
    """A row after a torn one on the same line, and one after NUL bytes, are in the fork."""
    fs = conversation("A")
    torn = b'{"type":"user","uuid":"to' + data(fs).replace(uid("A").encode(), uid("B").encode())
    put(fs, data(fs) + torn + b"\0\0" + data(fs).replace(uid("A").encode(), uid("C").encode()))
    mutations(fs).fork(SESSION)
    said = [row.get("forkedFrom", {}).get("messageUuid") for row in rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))]
    assert said == [uid("A"), uid("B"), uid("C"), None]


@pytest.mark.mission("C13")
def test_what_cannot_be_forked_is_refused_and_nothing_is_made() -> None:
    """An unknown message, a session without messages, and an existing id are refused."""
    fs = conversation("A")
    with pytest.raises(EntryNotFound):
        mutations(fs).fork(SESSION, up_to=uid("Z"))
    with pytest.raises(SessionExists):
        mutations(fs, new_id=lambda: SESSION).fork(SESSION)
    put(fs, b'{"type":"custom-title","customTitle":"T"}\n')
    with pytest.raises(Invalid, match="no messages"):
        mutations(fs).fork(SESSION)
    assert fs.names(FOLDER) == [f"{SESSION}.jsonl"]


@pytest.mark.mission("C13")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([("ai-title", "aiTitle", "Guess")], "Guess (fork)"),
        ([("custom-title", "customTitle", "Mine"), ("ai-title", "aiTitle", "Guess")], "Mine (fork)"),
        ([("custom-title", "customTitle", "Mine"), ("custom-title", "customTitle", "Later")], "Later (fork)"),
        ([], "A (fork)"),
    ],
)
def test_a_fork_is_named_after_its_source(said: list[tuple[str, str, str]], expected: str) -> None:
    """The name is the last title of the user, else of the model, else the first prompt."""
    fs = conversation("A")
    put(fs, data(fs) + b"".join(json.dumps({"type": t, m: v}).encode() + b"\n" for t, m, v in said))
    mutations(fs).fork(SESSION, title="  ")
    assert rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))[-1]["customTitle"] == expected


@pytest.mark.mission("C13")
def test_a_title_that_a_tool_mentions_is_no_title() -> None:
    """A tool input with a member of that name is not the title of the fork."""
    fs = conversation("A")
    transcript(fs).record_transcript(
        [assistant("B", toolInput={"customTitle": "decoy"})], starting_parent_hint=uid("A")
    )
    mutations(fs).fork(SESSION)
    assert rows_in(data(fs, f"{FOLDER}/{OTHER}.jsonl"))[-1]["customTitle"] == "A (fork)"


@pytest.mark.mission("C3")
def test_progress_in_a_circle_does_not_hang_a_fork() -> None:
    """A child of progress that is its own parent becomes a root."""
    fork = Fork(SESSION, OTHER, now=NOW)
    rows = [progress("P") | {"parentUuid": uid("Q")}, progress("Q") | {"parentUuid": uid("P")}]
    rows.append(user("A", parentUuid=uid("P")))
    for row in rows:
        fork.learn(row)
    fork.check()
    assert [copied["parentUuid"] for row in rows if (copied := fork.copy(row))] == [None]


@pytest.mark.mission("C3")
def test_of_progress_and_a_message_with_one_uuid_the_message_counts() -> None:
    """Children of that uuid are children of the message."""
    fork = Fork(SESSION, OTHER, now=NOW)
    rows = [progress("A"), user("A"), user("B", parentUuid=uid("A"))]
    for row in rows:
        fork.learn(row)
    assert [copied["parentUuid"] for row in rows if (copied := fork.copy(row))] == [None, derived_uuid(OTHER, uid("A"))]


# -- title and tag


@pytest.mark.mission("C13")
@every_session
def test_title_and_tag_are_the_rows_that_the_typescript_sdk_writes(corpus: str, name: str) -> None:
    """The rows are equal byte for byte, after an unchanged conversation."""
    fs, session, path = vector(corpus, name)
    before = data(fs, path)
    change = mutations(fs)
    change.rename(session["session_id"], "  New é 😀 title ")
    change.tag(session["session_id"], "ｖ１\u200bＡ\ue000 ")
    appended = session["ts"]["appended"].replace("SID", session["session_id"]).encode()
    assert data(fs, path) == before + appended


@pytest.mark.mission("C13")
def test_a_title_does_not_join_the_last_row() -> None:
    """If the last row has no line end, both rows are whole afterwards, where the SDKs lose the message."""
    fs = conversation("A", "B")
    put(fs, data(fs)[:-1])
    mutations(fs).rename(SESSION, "T")
    assert [row["type"] for row in rows_in(data(fs))] == ["user", "user", "custom-title"]


@pytest.mark.mission("C13")
def test_a_tag_is_cleared_by_an_empty_one() -> None:
    """None is written as an empty text; an empty text is refused."""
    fs = conversation()
    mutations(fs).tag(SESSION, None)
    assert data(fs).endswith(b'{"type":"tag","tag":"","sessionId":"' + SESSION.encode() + b'"}\n')
    before = data(fs)
    with pytest.raises(Invalid):
        mutations(fs).tag(SESSION, " \u200b")
    with pytest.raises(Invalid):
        mutations(fs).rename(SESSION, " \n")
    assert data(fs) == before


@pytest.mark.mission("C13")
@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("ﬁne", "fine"),
        ("a\u200bb\u202ec", "abc"),
        ("x\U000e0041y", "xy"),
        ("\ufeffｱ\u0378", "ア"),
        (" a b ", "a b"),
        ("é", "é"),
    ],
)
def test_a_tag_is_what_people_can_see(tag: str, expected: str) -> None:
    """Compatible forms are unified; invisible, private and unassigned characters are removed."""
    assert clean_tag(tag) == expected


# -- finding


@pytest.mark.mission("C13")
def test_of_several_files_with_one_id_the_newest_is_meant() -> None:
    """Listings show that one, and an empty file is not a session."""
    fs = MemoryFilesystem()
    for folder, content in (("-a", b"{}\n"), ("-b", b"{}\n"), ("-c", b"")):
        put(fs, content, f"{PROJECTS}/{folder}/{SESSION}.jsonl")
    assert mutations(fs).find(SESSION) == f"{PROJECTS}/-b/{SESSION}.jsonl"


@pytest.mark.mission("C13")
def test_a_working_directory_is_searched_with_its_worktrees() -> None:
    """Its own folder comes first, then those of the worktrees in order; other folders are not searched."""
    fs = MemoryFilesystem()
    change = mutations(fs, worktrees=lambda directory: [CWD, "/w/two", "/w/three"])
    put(fs, b"{}\n", f"{PROJECTS}/-elsewhere/{SESSION}.jsonl")
    with pytest.raises(SessionNotFound, match=CWD):
        change.find(SESSION, CWD)
    for folder in ("-w-three", "-w-two", "-home-dev-project"):
        put(fs, b"{}\n", f"{PROJECTS}/{folder}/{SESSION}.jsonl")
        assert change.find(SESSION, CWD) == f"{PROJECTS}/{folder}/{SESSION}.jsonl"
    put(fs, b"", PATH)
    assert change.find(SESSION, CWD) == f"{PROJECTS}/-w-two/{SESSION}.jsonl"
    assert mutations(fs).find(SESSION, "/w/three") == f"{PROJECTS}/-w-three/{SESSION}.jsonl"


@pytest.mark.mission("C13")
@pytest.mark.parametrize("verb", ["rename", "tag", "delete", "fork", "archive", "unarchive"])
def test_an_unknown_session_and_a_wrong_id_are_different_mistakes(verb: str) -> None:
    """As in the SDKs, one is not found and the other is invalid; nothing is created."""
    for fs in (conversation(), MemoryFilesystem()):
        call = getattr(mutations(fs), verb)
        values = ["x"] if verb in ("rename", "tag") else []
        with pytest.raises(SessionNotFound):
            call("00000000-0000-4000-8000-000000000000", *values)
        with pytest.raises(InvalidId):
            call("not-a-uuid", *values)


# -- delete, archive


@pytest.mark.mission("C13")
@every_session
def test_a_deleted_session_leaves_nothing_and_comes_back_whole(corpus: str, name: str) -> None:
    """The transcript and its folder go to the trash together, and undo restores both."""
    fs, session, path = vector(corpus, name)
    agent = f"{path.removesuffix('.jsonl')}/subagents/agent-a.jsonl"
    put(fs, b"{}\n", agent)
    before = data(fs, path)
    deletion = mutations(fs).delete(session["session_id"])
    assert fs.names(path.rpartition("/")[0]) == session["ts"]["left"]
    with pytest.raises(SessionNotFound):
        mutations(fs).find(session["session_id"])
    mutations(fs).undo(deletion.token)
    assert (data(fs, path), data(fs, agent)) == (before, b"{}\n")
    with pytest.raises(NotFound):
        mutations(fs).undo(deletion.token)


@pytest.mark.mission("C13")
def test_undo_does_not_overwrite_what_has_the_name_now() -> None:
    """A new session with the same id stays, and so does the deleted one."""
    fs = conversation("A")
    old = data(fs)
    deletion = mutations(fs).delete(SESSION)
    put(fs, b'{"type":"user"}\n')
    with pytest.raises(Conflict):
        mutations(fs).undo(deletion.token)
    fs.rename(PATH, f"{FOLDER}/aside")
    mutations(fs).undo(deletion.token)
    assert data(fs) == old


@pytest.mark.mission("C13")
def test_a_session_is_deleted_to_another_device_by_copying() -> None:
    """If a rename is not possible, the copy is complete before the original is removed, and undo works the same way."""
    inner = conversation("A")
    transcript(inner).record_sidechain_transcript([user("S")], "a1")
    old = data(inner)
    modified = inner.lstat(PATH).st_mtime_ns

    class Devices(FaultyFilesystem):
        """Nothing can be renamed from our root to another place."""

        def rename(self, source: str, target: str) -> None:
            if source.startswith(HOME) != target.startswith(HOME):
                Fail(errno.EXDEV).strike(self.inner, self.calls[-1], 0)
            super().rename(source, target)

    fs = Devices(inner)
    deletion = mutations(fs).delete(SESSION)
    assert inner.names(FOLDER) == []
    mutations(fs).undo(deletion.token)
    assert data(inner) == old
    assert inner.lstat(PATH).st_mtime_ns == modified
    assert len(rows_in(data(inner, f"{FOLDER}/{SESSION}/subagents/agent-a1.jsonl"))) == 1


@pytest.mark.mission("C13")
@every_session
def test_the_archive_flag_is_a_note_in_the_folder_of_the_session(corpus: str, name: str) -> None:
    """It is where the SDK puts it and has a time; the conversation does not change."""
    fs, session, path = vector(corpus, name)
    before = data(fs, path)
    note = f"{path.removesuffix('.jsonl')}/archived.json"
    assert session["ts"]["archive_files"][1].replace("SID", session["session_id"]) == note.removeprefix("/claude/")
    mutations(fs).archive(session["session_id"])
    assert json.loads(data(fs, note)) == {"archived": True, "at": NOW, "by": "sdk"}
    mutations(fs).unarchive(session["session_id"])
    assert json.loads(data(fs, note)) == {"archived": False, "at": NOW, "by": "sdk"}
    assert data(fs, path) == before
