"""MyAgents' sessions written in place: rows after theirs, a correct index, only what the format supports."""

from __future__ import annotations

import errno
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.failing import FaultyFilesystem
from myagents_folder import asked, told
from sessile import Library, Session, Store, converted, import_session
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import LeafMoved, NotASession, SessionNotFound, StorageFailure, UnsafePath, Unsupported
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import Source
from sessile.upkeep.prune import PruneRule, apply_prune, plan_prune

from .test_in_place import ANSWER, MESSAGES, user

Json = dict[str, Any]

SESSION = "3f6c0001-aaaa"
OTHER = "3f6c0002-bbbb"
CALL = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "let me see"},
        {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "x"}},
    ],
    "timestamp": 1_777_629_600_000,
}
RESULT = {
    "role": "toolResult",
    "toolCallId": "t1",
    "toolName": "read",
    "content": [{"type": "text", "text": "found"}],
    "isError": False,
    "timestamp": 1_777_629_600_000,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return MyAgents' folder with two sessions; one has an attachment."""
    home = tmp_path / ".myagents"
    theirs = MyAgentsStore(PosixFilesystem(), str(home), str(tmp_path / "theirs"))
    for session_id in (SESSION, OTHER):
        theirs.create(session_id, "/work/app")
        theirs.append(session_id, [asked(0, "question"), told(1, text="answer")])
    theirs.attachments.save(SESSION, "a", "a.png", "image/png", b"picture")
    return home


@pytest.fixture
def path(home: Path) -> Path:
    return home / "sessions" / f"{SESSION}.jsonl"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", durability="process")


def theirs(home: Path, store: Store) -> MyAgentsStore:
    """Return the agent's own store."""
    return MyAgentsStore(PosixFilesystem(), str(home), store.layout.root)


def listed(home: Path, session_id: str = SESSION) -> Json:
    """Return the row of a session in MyAgents' index."""
    rows = json.loads((home / "sessions.json").read_text())
    return next(row for row in rows if row["id"] == session_id)


def texts(session: Session) -> list[str]:
    """Return the conversation as the model sees it."""
    said: list[Any] = [message["content"] for message in session.context().messages]
    return [each if isinstance(each, str) else "|".join(b.get("text", b["type"]) for b in each) for each in said]


def appended(path: Path, before: bytes) -> list[Json]:
    """Return the rows after the existing ones, which did not change."""
    now = path.read_bytes()
    assert now.startswith(before) and now.endswith(b"\n")
    return [json.loads(line) for line in now[len(before) :].splitlines()]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below a folder, with its bytes and time."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def message(value: Json) -> Json:
    return {"type": "message", "message": value}


# -- appending


@pytest.mark.mission("B1", "M1")
def test_messages_appended_one_by_one_are_ordinary_rows_and_the_same_entries_again(
    path: Path, home: Path, store: Store
) -> None:
    """Ids continue theirs; both readers return the same conversation, and the index counts it."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        assert not session.readonly and session.cwd == "/work/app"
        first = session.append_message(user("go on"))
        second = session.append_message(ANSWER)
        assert second.parent_id == first.id
        live, seen = session.get_entries(), texts(session)
        assert session.notices == []
    rows = appended(path, before)
    assert [(row["id"], row["role"], row["content"]) for row in rows] == [
        ("2", "user", "go on"),
        ("3", "assistant", "hello"),
    ]
    assert rows[1]["usage"] == {
        "inputTokens": 1,
        "outputTokens": 2,
        "cacheReadTokens": 0,
        "cacheCreationTokens": 0,
        "model": "claude-x",
        "providerId": "anthropic",
    }
    with store.open(path, readonly=True) as session:
        assert session.get_entries() == live and texts(session) == seen
        assert session.leaf_id == second.id
        entry = session.get_entry(second.id)
        assert entry is not None and entry["message"] == ANSWER
        assert session.findings == []
    agent = theirs(home, store)
    assert [said.text for said in agent.load(SESSION).messages] == ["question", "answer", "go on", "hello"]
    assert listed(home)["stats"] == agent.recount(SESSION)
    assert agent.pending() == []


@pytest.mark.mission("B1")
def test_results_appended_with_their_calls_become_part_of_the_row(path: Path, home: Path, store: Store) -> None:
    """The row is as MyAgents writes it, and is read as separate messages again."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        session.append_many([message(user("look")), message(CALL), message(RESULT), message(ANSWER)])
        live = [entry.body for entry in session.get_entries()]
    look, call, answer = appended(path, before)
    assert [row["id"] for row in (look, call, answer)] == ["2", "3", "4"]
    tool = json.loads(call["content"])[1]["tool"]
    assert (tool["id"], tool["input"], tool["result"], tool["isError"]) == ("t1", {"path": "x"}, "found", False)
    with store.open(path, readonly=True) as session:
        assert [entry.body for entry in session.get_entries()] == live
        assert [entry["message"] for entry in session.get_branch()][-3:] == [CALL, RESULT, ANSWER]


@pytest.mark.mission("B1")
def test_a_result_that_comes_alone_is_refused(path: Path, store: Store) -> None:
    """The row of its call is already written; nothing is lost, and the hint has the solution."""
    with store.open(path, in_place=True) as session:
        session.append_message(CALL)
        before = path.read_bytes()
        for batch in ([RESULT], [RESULT, ANSWER], [ANSWER, RESULT]):
            with pytest.raises(Unsupported) as caught:
                session.append_many([message(each) for each in batch])
            assert "append_many" in str(caught.value.hint) and caught.value.path == str(path)
    assert path.read_bytes() == before


def test_a_call_with_a_key_can_be_repeated(path: Path, store: Store) -> None:
    """In the open session and after reopening, nothing is written twice."""
    batch = [message(user("once")), message(CALL), message(RESULT)]
    with store.open(path, in_place=True) as session:
        first = session.append_many(batch, key="k")
        before = path.read_bytes()
        assert [receipt.id for receipt in session.append_many(batch, key="k")] == [receipt.id for receipt in first]
    with store.open(path, in_place=True) as session, store.open(path, in_place=True) as other:
        assert all(receipt.repeated for receipt in session.append_many(batch, key="k"))
        assert not other.append_many([message(user("new"))], key="n")[0].repeated
        assert session.append_many([message(user("new"))], key="n")[0].repeated
    assert len(appended(path, before)) == 1


def test_large_content_stays_in_the_file(path: Path, store: Store) -> None:
    """We would store it in a blob, which the other agent cannot read."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        session.append_message(user("x" * 600_000))
    assert appended(path, before)[0]["content"] == "x" * 600_000
    assert not Path(store.layout.blobs).exists()


TALK = MESSAGES.filter(lambda said: said["role"] != "toolResult")


@pytest.mark.mission("B1")
@given(messages=st.lists(TALK, min_size=1, max_size=4), together=st.booleans())
def test_whatever_is_appended_is_read_as_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Json], together: bool
) -> None:
    """In the open session and after reopening, entries have the same order and all members."""
    file = tmp_path_factory.mktemp("any") / "sessions" / "s.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps(asked(0)) + "\n")
    store = Store(file.parent / "store", durability="process")
    with store.open(file, in_place=True) as session:
        if together:
            session.append_many([message(each) for each in messages])
        else:
            for each in messages:
                session.append_entry(message(each))
        live = [entry.body for entry in session.get_entries()]
    with store.open(file, readonly=True) as session:
        assert [entry.body for entry in session.get_entries()] == live
        assert [entry["message"] for entry in session.get_entries()][1:] == messages
        assert [entry.id for entry in session.get_branch()] == [entry["id"] for entry in live]


@given(results=st.lists(st.sampled_from(["t1", "t2", "t3"]), max_size=4), texts_=st.lists(st.text(), min_size=4))
def test_whatever_results_a_call_gets_are_read_as_they_were_given(
    tmp_path_factory: pytest.TempPathFactory, results: list[str], texts_: list[str]
) -> None:
    """Results may come in any order, twice, or not at all."""
    calls: list[Json] = [{"type": "toolCall", "id": name, "name": "n", "arguments": {}} for name in ("t1", "t2", "t3")]
    answers = [
        {"role": "toolResult", "toolCallId": name, "content": [{"type": "text", "text": text}]}
        for name, text in zip(results, texts_, strict=False)
    ]
    batch: list[Json] = [{"role": "assistant", "content": calls}, *answers]
    file = tmp_path_factory.mktemp("any") / "sessions" / "s.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps(asked(0)) + "\n")
    store = Store(file.parent / "store", durability="process")
    with store.open(file, in_place=True) as session:
        session.append_many([message(each) for each in batch])
    with store.open(file, readonly=True) as session:
        assert [entry["message"] for entry in session.get_branch()][1:] == batch


@pytest.mark.mission("B1")
def test_what_was_written_in_place_is_found_imported_and_converted_back(path: Path, store: Store) -> None:
    """The tree and the bytes are the same."""
    with store.open(path, in_place=True) as session:
        session.append_many([message(user("zanzibar")), message(CALL), message(RESULT)])
        live = [(entry.id, entry.parent_id) for entry in session.get_entries()]
    with Library(store, [Source("myagents", str(path.parent.parent), str(path.parent))]) as library:
        library.catch_up("index")
        assert [hit.entry_id for hit in library.search("zanzibar").hits] == [live[2][0]]
    done = import_session(store, str(path))
    with store.open(done.path) as session:
        assert [(entry.id, entry.parent_id) for entry in session.get_entries()][: len(live)] == live
        assert b"".join(converted(session, "myagents", {})) == path.read_bytes()


# -- unsupported operations


@pytest.mark.mission("B1")
def test_what_has_no_counterpart_is_refused_and_nothing_is_written(path: Path, home: Path, store: Store) -> None:
    """Each error has a hint, and the leaf does not move."""
    before = snapshot(home)
    with store.open(path, in_place=True) as session:
        leaf = session.leaf_id
        first = session.get_entries()[0].id
        refused: list[Callable[[], object]] = [
            lambda: session.branch(first),
            lambda: session.reset_leaf(),
            lambda: session.branch_with_summary(first, "learned"),
            lambda: session.append_label_change(first, "here"),
            lambda: session.append_compaction("sum", first, 10),
            lambda: session.append_custom_entry("mine", {}),
            lambda: session.append_message({"role": "bashExecution", "command": "ls"}),
            lambda: session.append_many([message(user("a")), {"type": "odd"}]),
            lambda: session.set_tag("work"),
            lambda: session.rewrite_entries(lambda entry: None),
            lambda: session.move_to("/elsewhere"),
            lambda: session.set_session_file(str(path)),
        ]
        for attempt in refused:
            with pytest.raises(Unsupported) as caught:
                attempt()
            assert caught.value.hint and caught.value.path == str(path)
            assert session.leaf_id == leaf
        session.branch(str(leaf))
        with session.fork() as fork:
            fork.branch(first)
            fork.append_message(user("another way"))
    assert snapshot(home) == before


@pytest.mark.mission("B1")
def test_without_in_place_the_file_stays_as_it_is(path: Path, home: Path, store: Store) -> None:
    """Reading does not change anything either."""
    before = snapshot(home)
    with pytest.raises(Unsupported) as caught:
        store.open(path)
    assert "in_place=True" in str(caught.value.hint) and "append, title, delete" in str(caught.value.hint)
    store.open(path, readonly=True).close()
    store.open(path, in_place=True).close()
    assert snapshot(home) == before


def test_a_file_elsewhere_is_not_written(path: Path, tmp_path: Path, store: Store) -> None:
    """It has no index, and none is created."""
    stray = tmp_path / "elsewhere" / path.name
    stray.parent.mkdir()
    stray.write_bytes(path.read_bytes())
    odd = path.with_name(f"{SESSION}.jsonl.reset.1")
    odd.write_bytes(path.read_bytes())
    for each in (stray, odd):
        with pytest.raises(Unsupported):
            store.open(each, in_place=True)
    with pytest.raises(SessionNotFound):
        store.open(path.with_name("missing.jsonl"), in_place=True)
    assert not path.with_name("missing.jsonl").exists()


# -- other forms


@pytest.mark.mission("M6")
def test_the_form_before_jsonl_is_brought_up_to_date_first(home: Path, store: Store) -> None:
    """The file is migrated as by MyAgents' first write, and the path of the original is reported."""
    legacy = home / "sessions" / "old.json"
    legacy.write_text(json.dumps({"messages": [asked(0), told(1)]}))
    as_it_was = legacy.read_bytes()
    with store.open(legacy, in_place=True) as session:
        (notice,) = session.notices
        session.append_message(user("on"))
        assert session.path == str(legacy.with_suffix(".jsonl"))
    assert not legacy.exists()
    assert Path(notice.rpartition(" ")[2]).read_bytes() == as_it_was
    rows = [json.loads(line) for line in legacy.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2"]


@pytest.mark.mission("M10")
def test_archives_and_later_transcripts_are_not_written(path: Path, home: Path, store: Store) -> None:
    """Each is refused with a hint, and not changed."""
    archive = home / "sessions" / "packed.jsonl.gz"
    archive.write_bytes(gzip.compress(path.read_bytes()))
    later = home / "sessions-v2" / f"{OTHER}.jsonl"
    later.parent.mkdir()
    later.write_text("{}\n")
    before = snapshot(home)
    for each in (archive, path.with_name(f"{OTHER}.jsonl")):
        with pytest.raises(Unsupported) as caught:
            store.open(each, in_place=True)
        assert caught.value.hint
    assert snapshot(home) == before


# -- names


@pytest.mark.mission("B1")
def test_the_title_stands_in_their_list(path: Path, home: Path, store: Store) -> None:
    """The user's title replaces any other, an automatic one only the default; the file does not change."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        assert session.set_session_name("guessed", "auto")
        assert (session.title, listed(home)["titleSource"]) == ("guessed", "auto")
        assert session.set_session_name("Webhook\nretries")
        assert not session.set_session_name("guessed again", "auto")
        assert not session.set_session_name("  ")
        assert session.title == "Webhook retries"
    assert (listed(home)["title"], listed(home)["titleSource"]) == ("Webhook retries", "user")
    assert listed(home, OTHER)["title"] == "New Chat"
    assert path.read_bytes() == before
    with store.open(path, readonly=True) as session:
        assert session.title == "Webhook retries"


def test_a_file_that_is_in_no_list_has_no_title_to_change(home: Path, store: Store) -> None:
    """It can be appended to, as MyAgents does."""
    orphan = home / "sessions" / "orphan.jsonl"
    orphan.write_text(json.dumps(asked(0)) + "\n")
    with store.open(orphan, in_place=True) as session:
        session.append_message(user("still"))
        with pytest.raises(SessionNotFound):
            session.set_session_name("x")
    assert len(orphan.read_text().splitlines()) == 2
    assert "orphan" not in (home / "sessions.json").read_text()


# -- concurrent changes


@pytest.mark.mission("B4")
def test_what_the_agent_has_written_meanwhile_is_followed(path: Path, home: Path, store: Store) -> None:
    """Rows form one chain: ours are children of theirs; a caller who requires the old leaf gets an error."""
    with store.open(path, in_place=True) as session:
        theirs(home, store).append(SESSION, [asked(2, "theirs")])
        with pytest.raises(LeafMoved):
            session.append_many([message(user("alone"))], on_leaf_moved="fail")
        receipt = session.append_message(user("ours"))
        branch = session.get_branch()
        assert receipt.parent_id == branch[-2].id
        assert texts(session) == ["question", "answer", "theirs", "ours"]
        assert len(session.get_heads()) == 1
    assert [row["id"] for row in map(json.loads, path.read_text().splitlines())] == ["0", "1", "2", "3"]


def test_a_row_that_comes_between_the_look_and_the_write_becomes_no_branch(path: Path, store: Store) -> None:
    """MyAgents does not lock files: our row is a child of whatever is before it."""

    class Between(FaultyFilesystem):
        """A disk on which another program writes just before we do."""

        def write(self, fd: int, data: Any) -> int:
            if b"ours" in bytes(data):
                with path.open("ab") as file:
                    file.write(json.dumps(asked(7, "theirs")).encode() + b"\n")
            return super().write(fd, data)

    racing = Store(store.layout.root, durability="process", fs=Between(PosixFilesystem()))
    with racing.open(path, in_place=True) as session:
        session.append_message(user("ours"))
    with store.open(path, readonly=True) as session:
        assert texts(session) == ["question", "answer", "theirs", "ours"]
        assert len(session.get_heads()) == 1


def test_a_row_that_was_put_right_is_gone_on_from(path: Path, home: Path, store: Store) -> None:
    """Late usage creates a new file; the session continues there if it has the leaf, else it raises."""
    with store.open(path, in_place=True) as session:
        ours = session.append_message(user("ours"))
        theirs(home, store).update(SESSION, "1", {"durationMs": 12345})
        assert session.append_message(user("more")).parent_id == ours.id
    with store.open(path, in_place=True) as session:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
        with pytest.raises(LeafMoved):
            session.append_message(user("below nothing"))
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_session_that_is_gone_is_not_begun_again(path: Path, home: Path, store: Store, how: str) -> None:
    """An append must not bring back a deleted session."""
    with store.open(path, in_place=True) as session:
        if how == "deleted":
            theirs(home, store).delete(SESSION)
        else:
            path.write_bytes(b"")
        with pytest.raises((SessionNotFound, LeafMoved)):
            session.append_message(user("x"))
    assert not path.exists() if how == "deleted" else path.read_bytes() == b""


@pytest.mark.mission("M4", "M5")
def test_a_busy_list_delays_no_message_and_is_told(path: Path, home: Path, store: Store) -> None:
    """The next write counts what the index is missing."""
    lock = home / "sessions.lock"
    with store.open(path, in_place=True) as session:
        lock.mkdir()
        session.append_message(user("while it is busy"))
        assert any("not counted" in notice for notice in session.notices)
        lock.rmdir()
        session.append_message(user("later"))
    agent = theirs(home, store)
    assert listed(home)["stats"] == agent.recount(SESSION)
    assert agent.pending() == []


def test_a_torn_row_is_left_alone(path: Path, store: Store) -> None:
    """Our row starts on its own line, and the torn one is a finding."""
    with path.open("ab") as file:
        file.write(b'{"id":"2","role":"us')
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        session.append_message(user("behind it"))
        assert [finding.code for finding in session.findings] == ["not_json"]
    assert path.read_bytes().startswith(before + b"\n{")


def test_threads_and_sessions_lose_nothing_and_share_no_id(path: Path, store: Store) -> None:
    """One file, two open sessions, many threads: one chain of rows with unique ids."""
    with store.open(path, in_place=True) as one, store.open(path, in_place=True) as other:

        def talk(session: Session, number: int) -> None:
            for turn in range(10):
                session.append_message(user(f"{number} {turn}"))

        threads = [threading.Thread(target=talk, args=((one, other)[n % 2], n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one.get_heads()) == 1
        assert one.get_entries() == other.get_entries()
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert ids == [str(number) for number in range(42)]


def test_a_failure_is_latched_until_the_session_is_reopened(path: Path, tmp_path: Path) -> None:
    """The failed call and later ones raise; the state in memory does not run ahead of the file."""

    class Full(FaultyFilesystem):
        """A disk without room for one message."""

        def write(self, fd: int, data: Any) -> int:
            if b"lost" in bytes(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(fd, data)

    store = Store(tmp_path / "store", fs=Full(PosixFilesystem()), cache=os.devnull)
    before = path.read_bytes()
    session = store.open(path, in_place=True)
    leaf = session.leaf_id
    with pytest.raises(StorageFailure):
        session.append_message(user("lost"))
    with pytest.raises(StorageFailure):
        session.append_message(user("too"))
    assert path.read_bytes() == before and session.leaf_id == leaf
    session.reopen()
    session.append_message(user("works"))
    session.close()
    assert b"works" in path.read_bytes() and b"lost" not in path.read_bytes()


# -- the trash


@pytest.mark.mission("B6", "M1")
def test_a_deleted_session_is_in_our_trash_and_comes_back_with_its_row(path: Path, home: Path, store: Store) -> None:
    """Attachments, bytes, times and the row in the index are restored; the other session does not change."""
    folder = str(path.parent)
    files, row = snapshot(home), listed(home)
    deletion = store.delete(path, below=folder)
    assert not path.exists() and not (home / "attachments" / SESSION).exists()
    assert [each["id"] for each in json.loads((home / "sessions.json").read_text())] == [OTHER]
    (found,) = store.deletions()
    assert found == deletion and deletion.paths[0] == str(path) and deletion.root == str(home)
    with pytest.raises(UnsafePath):
        store.undo(deletion.token)
    with pytest.raises(UnsafePath):
        store.undo(deletion.token, roots=[str(home)])
    store.undo(deletion.token, roots=[folder])
    now = snapshot(home)
    index = str(home / "sessions.json")
    assert {name: file for name, file in now.items() if name != index} == {
        name: file for name, file in files.items() if name != index
    }
    assert listed(home) == row
    assert store.deletions() == ()


def old(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


@pytest.mark.mission("B6")
def test_prune_takes_what_is_old_and_spares_what_the_list_says(path: Path, home: Path, store: Store) -> None:
    """Pinned and scheduled ones stay; all forms of a session are deleted together; the plan has titles and projects."""
    agent = theirs(home, store)
    for session_id, members in (("pinned", {"pinnedAt": 1}), ("planned", {"cronTaskId": "c"}), ("packed", {})):
        agent.create(session_id, "/work/app", title=session_id, **members)
        agent.append(session_id, [asked(0)])
    packed = home / "sessions" / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress((home / "sessions" / "packed.jsonl").read_bytes()))
    (home / "sessions" / "packed.jsonl").unlink()
    for file in [*(home / "sessions").iterdir(), *home.glob("attachments/*/*")]:
        old(file)
    (home / "sessions" / f"{OTHER}.jsonl").touch()
    sources = [Source("myagents", str(home), str(home / "sessions"))]
    rule = PruneRule(older_than=86_400.0, project="/work")
    plan = plan_prune(store, rule, sources=sources)
    assert {(item.id, item.title) for item in plan.candidates} == {(SESSION, "New Chat"), ("packed", "packed")}
    assert {(item.id, item.why) for item in plan.spared} == {("pinned", "pinned"), ("planned", "scheduled")}
    done = apply_prune(store, plan)
    assert (len(done.deletions), done.refused, done.failure) == (2, (), None)
    assert set(agent.index.rows()) == {OTHER, "pinned", "planned"}
    for deletion in done.deletions:
        store.undo(deletion.token, roots=[str(home / "sessions")])
    assert packed.exists() and path.exists()
    assert set(agent.index.rows()) == {OTHER, "pinned", "planned", "packed", SESSION}


def test_a_session_that_was_pinned_since_the_plan_stays(path: Path, home: Path, store: Store) -> None:
    """The index is read again."""
    for file in [path, *home.glob("attachments/*/*")]:
        old(file)
    sources = [Source("myagents", str(home), str(home / "sessions"))]
    plan = plan_prune(store, PruneRule(named=[str(path)]), sources=sources)
    assert [item.id for item in plan.candidates] == [SESSION]
    theirs(home, store).index.update(SESSION, lambda row: row.changed(pinnedAt=1))
    done = apply_prune(store, plan)
    assert done.deletions == () and done.refused == ((str(path), "it is pinned"),)
    assert path.exists()


def test_what_is_no_session_is_not_opened(home: Path, store: Store) -> None:
    """A file with other content in that folder is refused."""
    stray = home / "sessions" / "stray.jsonl"
    stray.write_text("hello\n")
    with pytest.raises(NotASession):
        store.open(stray, in_place=True)
    assert stray.read_text() == "hello\n"
