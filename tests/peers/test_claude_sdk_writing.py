"""Files that Sessile writes for Claude Code mean the same to its SDKs, and changes by both are equal."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claude_rows import OTHER, SESSION, STAMP, Json, assistant, boundary, progress, system, uid, user
from claude_trees import SESSION as TREE_SESSION
from claude_trees import Tree, lines
from peers.claude_sdk import ClaudeSdk
from peers.peers import PeerError
from sessile.agents.claude.mutations import Mutations
from sessile.agents.claude.paths import Current
from sessile.agents.claude.transcript import Transcript
from sessile.storage.filesystem import PosixFilesystem

pytestmark = pytest.mark.peers

Ask = Callable[..., Any]

FIXTURES = Path(__file__).parents[1] / "fixtures" / "claude-writing"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return an empty Claude Code configuration folder."""
    folder = tmp_path / "claude"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def running() -> Iterator[ClaudeSdk]:
    """Start the SDK once, because it starts slowly."""
    with closing(ClaudeSdk.python()) as process:
        yield process


@pytest.fixture
def sdk(running: ClaudeSdk, config: Path) -> Ask:
    """Return the SDK on that folder."""
    return partial(running.ask, config)


@pytest.fixture
def writer(config: Path) -> Transcript:
    """Return our transcript writer in that folder."""
    current = Current(SESSION, STAMP.cwd)
    return Transcript(PosixFilesystem(), str(config), f"{config}-ours", current, stamp=STAMP, power=False)


@pytest.fixture
def change(config: Path) -> Mutations:
    """Return our functions that change sessions in that folder."""
    return Mutations(PosixFilesystem(), str(config), f"{config}-ours", new_id=lambda: OTHER)


def said(messages: list[Json]) -> list[str]:
    """Return the texts of messages from the SDK."""
    contents = [message["message"]["content"] for message in messages]
    return [
        content if isinstance(content, str) else "|".join(b.get("text", "") for b in content) for content in contents
    ]


@pytest.mark.mission("C4")
def test_a_recorded_conversation_is_read_as_it_was_said(sdk: Ask, writer: Transcript) -> None:
    """Title, tag, branch and prompt are found, and only messages are returned, in order."""
    writer.set_title("Grüße 😀")
    messages = [user("A", "first prompt"), progress("P"), assistant("B"), system("S"), user("C", "second\u2028line")]
    writer.record_transcript(messages)
    writer.insert_queue_operation("enqueue", "x")
    writer.set_tag("work")
    writer.close()
    (listed,) = sdk("list_sessions")
    assert listed == sdk("get_session_info", SESSION)
    assert {key: listed[key] for key in ("session_id", "custom_title", "first_prompt", "tag", "git_branch", "cwd")} == {
        "session_id": SESSION,
        "custom_title": "Grüße 😀",
        "first_prompt": "first prompt",
        "tag": "work",
        "git_branch": "main",
        "cwd": STAMP.cwd,
    }
    assert said(sdk("get_session_messages", SESSION)) == ["first prompt", "B", "second\u2028line"]


@pytest.mark.mission("C8")
def test_metadata_alone_is_no_session_to_it(sdk: Ask, writer: Transcript) -> None:
    """A session without messages is not listed."""
    writer.set_title("T")
    writer.close()
    assert sdk("list_sessions") == []


@pytest.mark.mission("C8")
def test_a_long_session_keeps_its_title_and_tag(sdk: Ask, writer: Transcript) -> None:
    """The SDK finds both in the part of the file that it reads, however many messages follow."""
    writer.record_transcript([user("A", "begin")])
    writer.set_title("Mine")
    writer.set_tag("work")
    parent: str | None = uid("A")
    for number in range(60):
        parent = writer.record_transcript([user(f"u{number}", "x" * 4000)], starting_parent_hint=parent)
    info = sdk("get_session_info", SESSION)
    assert (info["custom_title"], info["tag"]) == ("Mine", "work")
    assert len(sdk("get_session_messages", SESSION)) == 61


@pytest.mark.mission("C4")
def test_after_a_compaction_the_summary_and_what_follows_are_read(sdk: Ask, writer: Transcript) -> None:
    """Messages after a compaction never lead back before it, even if the kept ones are repeated."""
    old = [user("A"), assistant("B")]
    last = writer.record_transcript(old)
    compacted = [boundary("CB"), user("SUM", isCompactSummary=True), *old]
    writer.record_transcript(compacted, starting_parent_hint=last)
    writer.record_transcript([*compacted, user("N")])
    writer.record_transcript([*compacted, user("N"), assistant("M")])
    assert said(sdk("get_session_messages", SESSION)) == ["SUM", "N", "M"]


@pytest.mark.mission("C5")
def test_an_agent_is_listed_and_read(sdk: Ask, writer: Transcript) -> None:
    """Its messages are separate, although some share uuids with its parent's."""
    writer.record_transcript([user("A"), assistant("B")])
    writer.write_agent_metadata("a1", "explorer", description="looks around")
    writer.record_sidechain_transcript([user("A"), assistant("S")], "a1")
    writer.set_agent_subdir("a2", "workflows/r1")
    writer.record_sidechain_transcript([user("T")], "a2")
    assert sorted(sdk("list_subagents", SESSION)) == ["a1", "a2"]
    assert said(sdk("get_subagent_messages", SESSION, "a1")) == ["A", "S"]
    assert said(sdk("get_session_messages", SESSION)) == ["A", "B"]


@pytest.mark.mission("C7")
def test_a_removed_message_is_gone_for_it(sdk: Ask, writer: Transcript) -> None:
    """The discarded attempt is not read, and its replacement is."""
    writer.record_transcript([user("A"), assistant("B")])
    assert writer.remove_transcript_message(uid("B")) is not None
    writer.record_transcript([user("A"), assistant("C")])
    assert said(sdk("get_session_messages", SESSION)) == ["A", "C"]


@pytest.mark.mission("C13")
def test_each_sees_the_changes_of_the_other(sdk: Ask, writer: Transcript, change: Mutations) -> None:
    """The last title and tag of either side win, and our writer repeats a title of the SDK."""
    writer.record_transcript([user("A")])
    change.rename(SESSION, "Ours")
    change.tag(SESSION, "ours")
    assert {key: sdk("get_session_info", SESSION)[key] for key in ("custom_title", "tag")} == {
        "custom_title": "Ours",
        "tag": "ours",
    }
    sdk("rename_session", SESSION, "Theirs é")
    sdk("tag_session", SESSION, None)
    writer.record_transcript([user("A"), user("B", "x" * 70_000)])
    info = sdk("get_session_info", SESSION)
    assert (info["custom_title"], info["tag"]) == ("Theirs é", None)
    deletion = change.delete(SESSION)
    assert sdk("list_sessions") == []
    change.undo(deletion.token)
    assert len(sdk("list_sessions")) == 1


def vectors() -> Iterator[Any]:
    for path in sorted(FIXTURES.glob("*.json.gz")):
        corpus = json.loads(gzip.decompress(path.read_bytes()))
        for name, session in corpus["sessions"].items():
            yield pytest.param(session, id=f"{path.name.partition('.')[0]}-{name}")


def comparable(path: Path, fork_id: str) -> list[Json]:
    """Return a fork without values that differ in every fork, and without hints that only one side translates."""
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    numbers = {row["uuid"]: number for number, row in enumerate(rows)}
    for row in rows:
        for member in ("uuid", "parentUuid", "logicalParentUuid"):
            if member in row:
                row[member] = numbers.get(row[member], row[member])
        assert row["sessionId"] == fork_id
        row.pop("sessionId")
        for hint in ("preservedSegment", "preservedMessages"):
            row.get("compactMetadata", {}).pop(hint, None)
    for row in (row for row in rows if row["type"] not in ("user", "assistant", "system", "attachment")):
        row.pop("timestamp")
    messages = [row for row in rows if "timestamp" in row]
    messages[-1].pop("timestamp")
    return rows


@pytest.mark.mission("C13")
@pytest.mark.parametrize("session", list(vectors()))
def test_forks_of_both_are_equal(sdk: Ask, change: Mutations, config: Path, session: Json) -> None:
    """All rows are equal, except for uuids, the time of the fork, and hints that the SDK leaves unchanged."""
    path = config / session["file"]
    path.parent.mkdir(parents=True)
    path.write_bytes(session["content"].encode())
    if "!error" in session["python"]["fork"]:
        pytest.skip("there is nothing to fork")
    theirs = sdk("fork_session", session["session_id"])["session_id"]
    change.fork(session["session_id"])
    assert comparable(path.with_name(f"{OTHER}.jsonl"), OTHER) == comparable(path.with_name(f"{theirs}.jsonl"), theirs)
    read = [sdk("get_session_messages", fork) for fork in (OTHER, theirs)]
    assert said(read[0]) == said(read[1])


@pytest.fixture(scope="module")
def ts_running() -> Iterator[ClaudeSdk]:
    """Start the SDK for TypeScript."""
    with closing(ClaudeSdk.typescript()) as process:
        yield process


def numbered(path: Path, fork_id: str) -> list[Json]:
    """Return a fork with numbered uuids, without values that differ in every fork and without null members."""
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    numbers = {row["uuid"]: f"#{number}" for number, row in enumerate(rows) if "uuid" in row} | {fork_id: "fork"}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if each is not None}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    copied = [row for row in rows if "forkedFrom" in row]
    for row in (row for row in rows if row not in copied[:-1]):
        row.pop("timestamp", None)
    return [plain(row) for row in rows]


@pytest.mark.mission("C13")
def test_forks_of_made_up_trees_are_those_of_the_typescript_sdk(
    ts_running: ClaudeSdk, change: Mutations, config: Path
) -> None:
    """All rows are equal, including hints of compactions and uuids of queued prompts."""
    path = config / "projects" / "-w" / f"{TREE_SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    compared = 0
    for seed in range(300):
        tree = Tree(seed)
        names = [each["uuid"] for each in tree.rows if "uuid" in each]
        if len(names) > len(set(names)):
            continue  # rows with the same uuid get the same new uuid, in an order that differs
        path.write_bytes(lines(tree.rows))
        try:
            theirs = ts_running.ask(config, "forkSession", TREE_SESSION)["sessionId"]
        except PeerError:
            continue  # there is nothing to fork
        change.fork(TREE_SESSION)
        ours = path.with_name(f"{OTHER}.jsonl")
        assert numbered(ours, OTHER) == numbered(path.with_name(f"{theirs}.jsonl"), theirs), seed
        ours.unlink()
        compared += 1
    assert compared > 200
