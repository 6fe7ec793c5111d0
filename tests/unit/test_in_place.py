"""Other agents' sessions written in place: ordinary rows, nothing else changed, only what the format supports."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.failing import Fail, FaultyFilesystem
from sessile import Session, Store
from sessile.agents.base import read_only
from sessile.agents.claude.mutations import Mutations
from sessile.agents.claude.paths import is_uuid
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.agents.registry import AGENTS
from sessile.core.summaries import Summary
from sessile.errors import LeafMoved, NotASession, SessionNotFound, StorageFailure, Unsupported
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.trash import Deletion
from sessile.upkeep.compactor import Compactor

from .test_foreign import SESSION, call, result, row

Json = dict[str, Any]

ROWS = [
    row("user", "u1", None, "question"),
    call("c1", "u1", "m", "t1"),
    call("c2", "c1", "m", "t2"),
    result("r1", "c1", "t1"),
    result("r2", "c2", "t2"),
    {"type": "custom-title", "customTitle": "Mine", "sessionId": SESSION},
    row("assistant", "a1", "r2", [{"type": "text", "text": "answer"}]),
]
ANSWER = {
    "role": "assistant",
    "content": [{"type": "text", "text": "hello"}],
    "api": "anthropic-messages",
    "provider": "anthropic",
    "model": "claude-x",
    "usage": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0.5}},
    "stopReason": "stop",
    "timestamp": 1_777_629_600_000,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "claude"


@pytest.fixture
def path(config: Path) -> Path:
    """Return a transcript with parallel calls, a title and an answer."""
    file = config / "projects" / "-work-app" / f"{SESSION}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return file


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", durability="process")


def user(text: str) -> Json:
    return {"role": "user", "content": text, "timestamp": 1_777_629_600_000}


def appended(path: Path, before: bytes) -> list[Json]:
    """Return the rows after the existing ones, which did not change."""
    now = path.read_bytes()
    assert now.startswith(before)
    assert now.endswith(b"\n")
    return [json.loads(line) for line in now[len(before) :].splitlines()]


def told(config: Path) -> list[str]:
    """Return the conversation as Claude Code's TypeScript SDK shows it."""
    sessions = ClaudeSessions(PosixFilesystem(), str(config))
    contents = [message.message["content"] for message in sessions.get_session_messages(SESSION)]
    return [each if isinstance(each, str) else "|".join(b.get("text", b["type"]) for b in each) for each in contents]


def texts(session: Session) -> list[str]:
    """Return the conversation as the model sees it."""
    said: list[Any] = [message.get("content", message.get("summary")) for message in session.context().messages]
    return [each if isinstance(each, str) else "|".join(b.get("text", b["type"]) for b in each) for each in said]


# -- the table


def test_the_table_knows_every_format_that_is_read() -> None:
    """Capabilities have one order; an unknown format has none."""
    assert AGENTS.capabilities("codex") == ()
    assert AGENTS.capabilities("claude") == ("append", "branch", "compact", "title", "tag", "archive", "delete")
    assert "label" in AGENTS.capabilities("pi") and "label" in AGENTS.capabilities(None)
    assert AGENTS.capabilities("myagents") == ("append", "title", "delete")


@pytest.mark.parametrize("name", [agent.name for agent in AGENTS])
def test_a_refusal_promises_in_place_only_what_opens(name: str) -> None:
    """Following the hint does not lead to another refusal."""
    agent = AGENTS.get(name)
    assert agent is not None
    hint = str(read_only(agent, "/x").hint)
    assert hint.startswith("fork it")
    assert ("in_place=True" in hint) == bool(agent.capabilities)
    assert ("are read-only" in hint) == (not agent.capabilities)


@pytest.mark.mission("B1")
def test_without_in_place_the_file_stays_as_it_is_and_the_error_says_what_is_possible(path: Path, store: Store) -> None:
    """Even the time of the file stays; the hint names the supported operations and the alternative."""
    before = path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())
    with pytest.raises(Unsupported) as caught:
        store.open(path)
    assert caught.value.hint is not None
    assert "fork it" in caught.value.hint and "in_place=True" in caught.value.hint
    assert "append, branch, compact, title, tag" in caught.value.hint
    with store.open(path, in_place=True) as session:
        session.branch("u1")  # forgotten: the leaf is not stored there
    with store.open(path, readonly=True) as session:
        assert session.leaf_id == "a1"
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())) == before


def test_a_format_that_can_take_nothing_is_not_opened_in_place(tmp_path: Path, store: Store) -> None:
    """Codex is read-only, and the hint does not promise more."""
    rollout = tmp_path / "rollout.jsonl"
    meta = {"timestamp": "2026-05-01T10:00:00Z", "type": "session_meta", "payload": {"id": "x", "cwd": "/work"}}
    rollout.write_text(json.dumps(meta) + "\n")
    for in_place in (False, True):
        with pytest.raises(Unsupported, match="codex") as caught:
            store.open(rollout, in_place=in_place)
        assert caught.value.hint is not None
        assert "are read-only" in caught.value.hint and "in_place" not in caught.value.hint
    with pytest.raises(NotASession):
        stray = tmp_path / "stray.jsonl"
        stray.write_text("hello\n")
        store.open(stray, in_place=True)


def test_in_place_makes_no_file(path: Path, store: Store) -> None:
    """A name without a session cannot be written to."""
    for name in ("missing.jsonl", "empty.jsonl"):
        path.with_name("empty.jsonl").write_bytes(b"")
        with pytest.raises(SessionNotFound):
            store.open(path.with_name(name), in_place=True)
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, "empty.jsonl"]
    assert path.with_name("empty.jsonl").read_bytes() == b""


def test_a_session_of_the_family_is_opened_as_ever(tmp_path: Path, store: Store) -> None:
    """It supports everything, including labels."""
    elsewhere = Store(tmp_path / "pi").create("/work", publish=True)
    with elsewhere:
        said = elsewhere.append_message(user("hi")).id
    with store.open(elsewhere.path, in_place=True) as session:
        session.append_label_change(said, "here")
        assert session.get_label(said) == "here"


# -- appending


@pytest.mark.mission("B1", "C14")
def test_what_is_appended_is_an_ordinary_row_and_comes_back_as_the_same_entry(
    path: Path, config: Path, store: Store
) -> None:
    """Its uuid is the entry's id and its parent is the row of the leaf; both readers return the same conversation."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        assert not session.readonly
        first, second = session.append_many(
            [{"type": "message", "message": user("go on")}, {"type": "message", "message": ANSWER}], key="once"
        )
        assert session.append_many([{"type": "message", "message": user("go on")}], key="once")[0].repeated
        live = session.get_entries()
        seen = texts(session)
    rows = appended(path, before)
    assert [(each["type"], each["uuid"], each["parentUuid"]) for each in rows] == [
        ("user", first.id, "a1"),
        ("assistant", second.id, first.id),
    ]
    assert all(is_uuid(each["uuid"]) and each["sessionId"] == SESSION and each["cwd"] == "/work/app" for each in rows)
    assert rows[1]["message"]["content"] == ANSWER["content"] and rows[1]["message"]["model"] == "claude-x"
    with store.open(path, readonly=True) as session:
        assert session.get_entries() == live
        assert session.leaf_id == second.id
        message = session.get_entry(second.id)
        assert message is not None and message["message"] == ANSWER
        assert texts(session) == seen
        assert session.findings == []
    assert told(config)[-3:] == ["answer", "go on", "hello"]


@pytest.mark.mission("B1")
def test_what_the_other_agent_hangs_from_our_row_hangs_from_our_entry(path: Path, store: Store) -> None:
    """It continues from what it reads; there are no orphans, in the open session and after reopening."""
    with store.open(path, in_place=True) as session:
        said = session.append_message(user("ours")).id
        with path.open("a") as file:
            file.write(json.dumps(row("assistant", "a2", said, [{"type": "text", "text": "theirs"}])) + "\n")
        receipt = session.append_many([{"type": "message", "message": user("more")}], on_leaf_moved="follow")[0]
        assert receipt.parent_id == "a2"
        assert texts(session)[-3:] == ["ours", "theirs", "more"]
        assert session.findings == []


@pytest.mark.mission("B4")
def test_two_that_go_on_from_one_entry_are_two_branches(path: Path, store: Store) -> None:
    """The second one gets `diverged` and may refuse it, and nothing is lost."""
    with store.open(path, in_place=True) as one, store.open(path, in_place=True) as other:
        first = one.append_message(user("one"))
        with pytest.raises(LeafMoved):
            other.append_many([{"type": "message", "message": user("no")}], on_leaf_moved="fail")
        second = other.append_message(user("other"))
        assert (first.diverged, second.diverged) == (False, True)
        assert first.parent_id == second.parent_id == "a1"
        assert {entry.id for entry in one.get_heads()} == {first.id, second.id}


def test_a_branch_hangs_from_the_row_of_an_earlier_entry(path: Path, config: Path, store: Store) -> None:
    """The other agent continues there, because it is the last message."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        session.branch("u1")
        session.append_message(ANSWER)
        with pytest.raises(Unsupported):
            session.branch("a1", durable=True)
        session.branch("a1")
    (written,) = appended(path, before)
    assert written["parentUuid"] == "u1"
    assert told(config) == ["question", "hello"]
    with store.open(path, in_place=True) as session:
        session.reset_leaf()
        session.append_message(user("anew"))
    assert told(config) == ["anew"]


def test_answers_on_two_branches_are_not_taken_for_one(path: Path, config: Path, store: Store) -> None:
    """An answer without a response id gets its own: the agent merges rows that share one."""
    with store.open(path, in_place=True) as session:
        for text in ("left", "right"):
            session.branch("u1")
            session.append_message({**ANSWER, "content": [{"type": "text", "text": text}]})
    assert told(config) == ["question", "right"]


@pytest.mark.mission("Y9")
def test_an_overflow_is_recovered_from_where_nothing_can_be_taken_out(path: Path, store: Store) -> None:
    """Claude Code has no edits: the conversation continues before the failed answer, which stays in the file."""
    with store.open(path, in_place=True) as session:
        for _ in range(8):
            session.append_message(user("x" * 800))
        failed = session.append_message({**ANSWER, "content": [], "stopReason": "error"}).id
        outcome = Compactor(session, lambda request: Summary("short"), window=1000).recover("prompt is too long")
        assert outcome.status == "compacted" and outcome.retry
        assert failed not in [entry.id for entry in session.get_branch()] and session.get_entry(failed) is not None
    with store.open(path, in_place=True) as session:
        again = Compactor(session, lambda request: Summary("short"), window=1000)
        assert again.recover("prompt is too long").status == "given_up" and texts(session)[0] == "short"


@pytest.mark.mission("C14")
@pytest.mark.parametrize("first", ["r1", "a1", "u1", None, "nobody"])
def test_a_compaction_keeps_what_it_says(path: Path, config: Path, store: Store, first: str | None) -> None:
    """Both readers continue with the summary and the kept entries; parallel results do not lead to what was summarized."""
    kept = {"r1": 3, "a1": 1, "u1": 6}.get(first or "", 0)
    with store.open(path, in_place=True) as session:
        whole = texts(session)
        before = told(config)
        compaction = session.append_compaction("the summary", first, 1000)
        session.append_message(user("after"))
        assert texts(session) == ["the summary", *whole[len(whole) - kept :], "after"]
        live = session.get_entries()
    assert told(config) == ["the summary", *before[len(before) - kept :], "after"]
    with store.open(path, readonly=True) as session:
        assert session.get_entries() == live
        entry = session.get_entry(compaction.id)
        assert entry is not None and (entry["summary"], entry.parent_id) == ("the summary", "a1")
        assert session.findings == []


def test_a_compaction_may_keep_what_was_appended_with_it(path: Path, config: Path, store: Store) -> None:
    """The first kept entry is in the same call."""
    with store.open(path, in_place=True) as session:
        said = session.append_message(user("kept one")).id
        session.append_many(
            [
                {"type": "message", "message": ANSWER},
                {"type": "compaction", "summary": "short", "firstKeptEntryId": said, "tokensBefore": 5},
            ]
        )
        assert texts(session) == ["short", "kept one", "hello"]
    assert told(config) == ["short", "kept one", "hello"]


def test_large_content_stays_in_the_file(path: Path, store: Store) -> None:
    """We would store it in a blob, which the other agent cannot read."""
    picture = {"type": "image", "data": "QUJD" * 1000, "mimeType": "image/png"}
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        said = session.append_message(
            {"role": "user", "content": [picture, {"type": "text", "text": "x" * 600_000}]}
        ).id
        entry = session.get_entry(said)
        assert entry is not None and entry["message"]["content"][0] == picture
    written, title = appended(path, before)
    assert title["type"] == "custom-title", "it has left the part that listings read"
    assert written["message"]["content"][0]["source"]["data"] == picture["data"]
    assert not Path(store.layout.blobs).exists()


BLOCK = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}),
    st.fixed_dictionaries(
        {"type": st.just("thinking"), "thinking": st.text()}, optional={"thinkingSignature": st.text()}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("toolCall"),
            "id": st.text(),
            "name": st.text(),
            "arguments": st.dictionaries(st.text(), st.text()),
        }
    ),
    st.fixed_dictionaries({"type": st.just("image"), "data": st.text("QUJD"), "mimeType": st.just("image/png")}),
    st.fixed_dictionaries({"type": st.sampled_from(["tool_result", "tool_use", "odd"]), "content": st.text()}),
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.text() | st.lists(BLOCK, max_size=3)}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.lists(BLOCK, max_size=3)},
        optional={"model": st.text(), "responseId": st.text(), "odd": st.integers(), "usage": st.just({"input": 3})},
    ),
    st.fixed_dictionaries(
        {"role": st.just("toolResult"), "toolCallId": st.text(), "content": st.lists(BLOCK, max_size=3)},
        optional={"isError": st.booleans(), "toolName": st.text(), "details": st.dictionaries(st.text(), st.none())},
    ),
)


@pytest.mark.mission("C14")
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_whatever_is_appended_is_read_as_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Json]
) -> None:
    """In the open session and after reopening, entries have the same order and all members."""
    folder = tmp_path_factory.mktemp("any")
    file = folder / f"{SESSION}.jsonl"
    file.write_text(json.dumps(ROWS[0]) + "\n")
    store = Store(folder / "store", durability="process")
    with store.open(file, in_place=True) as session:
        for message in messages:
            session.append_entry({"type": "message", "message": message})
        live = [entry.body for entry in session.get_entries()]
    with store.open(file, readonly=True) as session:
        assert [entry.body for entry in session.get_entries()] == live
        assert [entry["message"] for entry in session.get_entries()][1:] == messages
        assert [entry.id for entry in session.get_branch()] == [entry["id"] for entry in live]


# -- unsupported operations


@pytest.mark.mission("B1")
def test_what_has_no_counterpart_is_refused_and_nothing_is_written(path: Path, store: Store) -> None:
    """Each error has a hint, and the leaf does not move."""
    before = path.read_bytes(), path.stat().st_mtime_ns
    with store.open(path, in_place=True) as session:
        refused: list[Callable[[], object]] = [
            lambda: session.append_label_change("u1", "here"),
            lambda: session.append_mode_change("plan"),
            lambda: session.append_model_change("a/b"),
            lambda: session.append_thinking_level_change("high"),
            lambda: session.append_custom_entry("mine", {}),
            lambda: session.append_custom_message_entry("mine", "text"),
            lambda: session.append_context_edit("u1", None),
            lambda: session.append_message({"role": "bashExecution", "command": "ls"}),
            lambda: session.append_many([{"type": "message", "message": user("a")}, {"type": "odd"}]),
            lambda: session.branch_with_summary("u1", "learned"),
            lambda: session.rewrite_entries(lambda entry: None),
            lambda: session.move_to("/elsewhere"),
            lambda: session.set_session_file(str(path)),
        ]
        for attempt in refused:
            with pytest.raises(Unsupported) as caught:
                attempt()
            assert caught.value.hint and caught.value.path == str(path)
            assert session.leaf_id == "a1"
        with pytest.raises(Unsupported) as caught:
            session.append_label_change("u1", "here")
        assert str(caught.value.hint).startswith("fork it (sessile fork) and label the copy")
        with session.fork() as fork:
            fork.append_label_change("u1", "here")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_the_transcript_of_a_sub_agent_is_not_written(path: Path, store: Store) -> None:
    """It belongs to its session, and its rows would need another id."""
    agent = path.with_name("agent-1.jsonl")
    agent.write_bytes(path.read_bytes())
    with pytest.raises(Unsupported):
        store.open(agent, in_place=True)


def test_a_copy_that_was_kept_is_not_written(path: Path, store: Store) -> None:
    """It stands for the original, byte for byte."""
    copy = Path(store.layout.kept) / "claude" / path.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    with pytest.raises(Unsupported):
        store.open(copy, in_place=True)


# -- names


@pytest.mark.mission("C13")
def test_title_and_tag_are_rows_of_their_own(path: Path, config: Path, store: Store) -> None:
    """The rows are those of the agent; an automatic title does not replace a title, and an empty name is refused."""
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        assert session.title == "Mine"
        assert not session.set_session_name("automatic", "auto")
        assert not session.set_session_name("  ")
        assert session.set_session_name("Ours")
        assert session.set_tag(" wo\u200brk") == "work"
        assert (session.title, session.tag, session.leaf_id) == ("Ours", "work", "a1")
    assert appended(path, before) == [
        {"type": "custom-title", "customTitle": "Ours", "sessionId": SESSION},
        {"type": "tag", "tag": "work", "sessionId": SESSION},
    ]
    info = ClaudeSessions(PosixFilesystem(), str(config)).get_session_info(SESSION)
    assert info is not None and (info.custom_title, info.tag) == ("Ours", "work")
    with store.open(path, in_place=True) as session:
        assert session.set_tag(None) is None
        assert session.tag is None


def test_an_automatic_title_is_written_where_there_is_none(path: Path, store: Store) -> None:
    """The row is that of a generated title, which the user's title overrides."""
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS if "customTitle" not in each))
    with store.open(path, in_place=True) as session:
        assert session.set_session_name("guessed", "auto")
        assert session.title == "guessed"
    assert json.loads(path.read_text().splitlines()[-1])["type"] == "ai-title"


@pytest.mark.parametrize("before", [0, 100_000])
@pytest.mark.parametrize("since", [0, 20_000])
def test_a_title_stays_where_listings_look(path: Path, config: Path, store: Store, before: int, since: int) -> None:
    """The title is found for any size of the file before and after it."""
    rows = [*ROWS[:5], *filler(before, "b"), *ROWS[5:], *filler(since, "s")]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert (path.stat().st_size > 65_536) == (before > 0)
    with store.open(path, in_place=True) as session:
        for number in range(40):
            session.append_message(user(f"{number} " + "x" * 4000))
        assert session.title == "Mine"
        assert session.leaf_id == session.get_entries()[-1].id
    info = ClaudeSessions(PosixFilesystem(), str(config)).get_session_info(SESSION)
    assert info is not None and info.custom_title == "Mine"


def filler(size: int, name: str) -> list[Json]:
    """Return rows of about this many bytes."""
    return [row("assistant", f"{name}{number}", "u1", "y" * 1000) for number in range(size // 1000)]


def test_a_session_of_another_program_gets_nothing_of_ours(store: Store, tmp_path: Path) -> None:
    """Writing needs `in_place`; images and long texts stay in the lines, and there are no tags and no marks of the leaf."""
    image = {"type": "image", "data": "QUJD" * 1000, "mimeType": "image/png"}
    pi = Store(tmp_path / ".pi" / "agent")
    with pi.create("/work", publish=True) as begun:
        said = begun.append_message({"role": "user", "content": [image]}).id
        begun.append_message(ANSWER)
        begun.branch(said)
    with pytest.raises(Unsupported, match="another program") as refused:
        store.open(begun.path)
    assert "in_place=True" in str(refused.value.hint)
    with store.open(begun.path, in_place=True) as session:
        session.append_message(user("x" * 600_000))
        session.branch(said)
        with pytest.raises(Unsupported, match="tags"):
            session.set_tag("work")
    text = Path(begun.path).read_text()
    assert "blob:" not in text and "sessile." not in text and "x" * 600_000 in text and str(image["data"]) in text
    assert not (tmp_path / ".pi" / "agent" / "blobs").exists()


def test_a_session_of_ours_has_its_tag_in_an_entry(store: Store) -> None:
    """The last one counts, on any branch; `None` removes it; it is not part of the context."""
    with store.create("/work", publish=True) as begun:
        said = begun.append_message(user("hi")).id
    with store.open(begun.path, in_place=True) as session:
        assert session.tag is None
        session.set_tag(" wo\u200brk ")
        session.branch(said)
        assert session.tag == "work"
        session.append_message(ANSWER)
    with store.open(begun.path, readonly=True) as session:
        assert session.tag == "work"
        assert len(session.context().messages) == 2
    with store.open(begun.path, in_place=True) as session:
        session.set_tag(None)
        assert session.tag is None


# -- concurrent changes


def test_a_file_that_others_replace_is_gone_on_with(path: Path, tmp_path: Path, store: Store) -> None:
    """Removing a row creates a new file; the open session continues in that one."""
    with store.open(path, in_place=True) as session:
        lines = path.read_bytes().splitlines(keepends=True)
        new = path.with_name("new")
        new.write_bytes(b"".join(lines[:4] + lines[5:]))
        os.rename(new, path)
        said = session.append_message(user("still here"))
        assert said.id in {entry.id for entry in session.get_entries()}
    assert json.loads(path.read_bytes().splitlines()[-1])["uuid"] == said.id


def test_what_the_leaf_was_taken_out_of_is_not_gone_on_with(path: Path, store: Store) -> None:
    """A row whose parent is missing would be invisible to every reader."""
    with store.open(path, in_place=True) as session:
        new = path.with_name("new")
        new.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        os.rename(new, path)
        before = path.read_bytes()
        with pytest.raises(LeafMoved):
            session.append_message(user("below nothing"))
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_session_that_is_gone_is_not_begun_again(path: Path, store: Store, how: str) -> None:
    """Neither a message nor a title creates the file again."""
    with store.open(path, in_place=True) as session:
        path.unlink() if how == "deleted" else path.write_bytes(b"")
        for attempt in (lambda: session.append_message(user("x")), lambda: session.set_session_name("x")):
            with pytest.raises((SessionNotFound, LeafMoved)):
                attempt()
    assert not path.exists() if how == "deleted" else path.read_bytes() == b""


def test_a_torn_row_is_left_alone(path: Path, store: Store) -> None:
    """Our row starts on its own line, and the torn one is a finding."""
    with path.open("ab") as file:
        file.write(b'{"type":"user","uuid":"to')
    before = path.read_bytes()
    with store.open(path, in_place=True) as session:
        session.append_message(user("behind it"))
        assert [finding.code for finding in session.findings] == ["not_json"]
    assert path.read_bytes().startswith(before + b"\n{")


def test_threads_lose_nothing(path: Path, store: Store) -> None:
    """One session used from many threads is one chain."""
    with store.open(path, in_place=True) as session:

        def talk(number: int) -> None:
            for turn in range(10):
                session.append_message(user(f"{number} {turn}"))

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(session.get_heads()) == 1
        assert len(session.get_entries()) == len(ROWS) - 1 + 40


def test_a_failure_is_latched_until_the_session_is_reopened(path: Path, tmp_path: Path) -> None:
    """The failed call and later ones raise; the state in memory does not run ahead of the file."""
    fs = FaultyFilesystem(
        PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={"truncate"}), Fail(errno.ENOSPC, on={"write"})]
    )
    store = Store(tmp_path / "store", fs=fs, cache=os.devnull)
    before = path.read_bytes()
    session = store.open(path, in_place=True)
    assert not fs.struck
    with pytest.raises(StorageFailure):
        session.append_message(user("lost"))
    with pytest.raises(StorageFailure):
        session.append_message(user("too"))
    assert path.read_bytes() == before and session.leaf_id == "a1"
    session.reopen()
    session.append_message(user("works"))
    session.close()
    assert b"works" in path.read_bytes() and b"lost" not in path.read_bytes()


# -- the trash


@pytest.mark.mission("C13", "B6")
def test_a_deleted_transcript_is_in_our_trash_and_comes_back_as_it_was(path: Path, config: Path, store: Store) -> None:
    """Folder, bytes and time are restored by one undo, however the transcript was deleted."""
    below = str(config / "projects")
    agent = path.with_suffix("") / "subagents" / "agent-1.jsonl"
    agent.parent.mkdir(parents=True)
    agent.write_text("{}\n")
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    before = path.read_bytes(), path.stat().st_mtime_ns, agent.read_bytes(), agent.stat().st_mtime_ns
    mutations = Mutations(PosixFilesystem(), str(config), store.layout.root)
    doors: list[Callable[[], Deletion]] = [
        lambda: store.delete(path, below=below),
        lambda: mutations.delete(SESSION),
    ]
    for delete in doors:
        deletion = delete()
        assert list(path.parent.iterdir()) == []
        assert deletion.root == below
        (listed,) = store.deletions()
        assert listed.paths == (str(path), str(path.with_suffix("")))
        store.undo(deletion.token, roots=[below])
        assert (path.read_bytes(), path.stat().st_mtime_ns, agent.read_bytes(), agent.stat().st_mtime_ns) == before
        assert store.deletions() == ()
