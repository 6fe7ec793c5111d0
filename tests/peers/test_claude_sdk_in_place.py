"""Rows that Sessile writes into Claude Code's transcripts mean the same to its SDKs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claude_rows import SESSION, STAMP, Json, assistant, uid, user
from peers.claude_sdk import ClaudeSdk
from sessile import Session, Store
from sessile.agents.claude.paths import Current
from sessile.agents.claude.transcript import Transcript
from sessile.storage.filesystem import PosixFilesystem

pytestmark = [pytest.mark.peers, pytest.mark.mission("B1")]

Ask = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a Claude Code configuration folder with one session that has two parallel calls."""
    folder = tmp_path / "claude"
    writer = transcript(folder)
    writer.record_transcript([user("A", "first prompt"), called("B", "t1"), called("C", "t2")])
    for name, tool, parent in (("D", "t1", "B"), ("E", "t2", "C")):
        block = {"type": "tool_result", "tool_use_id": tool, "content": f"{tool} done"}
        row = {**user(name), "message": {"role": "user", "content": [block]}, "sourceToolAssistantUUID": uid(parent)}
        writer.record_transcript([row], starting_parent_hint=uid(parent))
    writer.record_transcript([assistant("F")], starting_parent_hint=uid("E"))
    return folder


def called(name: str, tool: str) -> Json:
    """Return one call of an answer."""
    row = assistant(name)
    use = [{"type": "tool_use", "id": tool, "name": "Bash", "input": {}}]
    return {**row, "message": {**row["message"], "id": "msg_both", "content": use}}


def transcript(config: Path) -> Transcript:
    current = Current(SESSION, STAMP.cwd)
    return Transcript(PosixFilesystem(), str(config), f"{config}-ours", current, stamp=STAMP, power=False)


@pytest.fixture(scope="module")
def running() -> Iterator[ClaudeSdk]:
    """Start the SDK for Python once, because it starts slowly."""
    with closing(ClaudeSdk.python()) as process:
        yield process


@pytest.fixture
def python(running: ClaudeSdk, config: Path) -> Ask:
    """Return the SDK for Python on that folder."""
    return partial(running.ask, config)


@pytest.fixture(scope="module")
def node() -> Iterator[ClaudeSdk]:
    """Start the SDK for TypeScript."""
    with closing(ClaudeSdk.typescript()) as process:
        yield process


@pytest.fixture
def typescript(node: ClaudeSdk, config: Path) -> Ask:
    """Return the SDK for TypeScript on that folder."""
    return partial(node.ask, config)


@pytest.fixture
def session(config: Path, tmp_path: Path) -> Iterator[Session]:
    """Open the session in place."""
    with Store(tmp_path / "store", durability="process").open(
        transcript(config).transcript_path(), in_place=True
    ) as it:
        yield it


def said(messages: list[Json]) -> list[str]:
    """Return the texts of messages of either SDK."""
    contents = [message["message"]["content"] for message in messages]
    return [
        content if isinstance(content, str) else "|".join(b.get("text", b["type"]) for b in content)
        for content in contents
    ]


def ours(session: Session) -> list[str]:
    """Return the texts of our own context."""
    contents: list[Any] = [each.get("content", each.get("summary")) for each in session.context().messages]
    return [each if isinstance(each, str) else "|".join(b.get("text", b["type"]) for b in each) for each in contents]


def say(session: Session, text: str, role: str = "user") -> str:
    block = [{"type": "text", "text": text}]
    return session.append_message({"role": role, "content": text if role == "user" else block}).id


def test_what_was_appended_is_read_by_both(python: Ask, typescript: Ask, session: Session) -> None:
    """Appended messages, calls and results come in order after the existing ones, and their uuids are our entry ids."""
    first = say(session, "go on \u2028 😀")
    session.append_message(
        {
            "role": "assistant",
            "content": [{"type": "toolCall", "id": "t9", "name": "Bash", "arguments": {"command": "ls"}}],
        }
    )
    content = [{"type": "text", "text": "files"}]
    session.append_message({"role": "toolResult", "toolCallId": "t9", "toolName": "Bash", "content": content})
    last = say(session, "done", "assistant")
    for messages in (python("get_session_messages", SESSION), typescript("getSessionMessages", SESSION)):
        assert said(messages)[-5:] == ["F", "go on \u2028 😀", "tool_use", "tool_result", "done"]
        assert (messages[-4]["uuid"], messages[-1]["uuid"]) == (first, last)
        assert [message["type"] for message in messages][-4:] == ["user", "assistant", "user", "assistant"]
        assert messages[-2]["message"]["content"][0]["tool_use_id"] == "t9"


def test_a_branch_is_where_both_go_on(python: Ask, typescript: Ask, session: Session) -> None:
    """The last branch is the conversation, without messages of the other branch."""
    for text in ("left", "right"):
        session.branch(uid("A"))
        say(session, text, "assistant")
    assert said(python("get_session_messages", SESSION)) == ["first prompt", "right"]
    assert said(typescript("getSessionMessages", SESSION)) == ["first prompt", "right"] == ours(session)


@pytest.mark.parametrize(("first", "kept"), [(uid("D"), 3), (uid("F"), 1), (None, 0)])
def test_a_compaction_takes_away_and_keeps_what_it_says(
    python: Ask, typescript: Ask, session: Session, first: str | None, kept: int
) -> None:
    """The TypeScript SDK returns summary, kept and new messages; the Python SDK does not support kept messages."""
    before = ["tool_result", "tool_result", "F"]
    session.append_compaction("the summary", first, 5000)
    say(session, "after")
    assert said(typescript("getSessionMessages", SESSION)) == ["the summary", *before[3 - kept :], "after"]
    assert said(python("get_session_messages", SESSION)) == ["the summary", "after"]


@pytest.mark.mission("C13")
def test_title_and_tag_are_listed(python: Ask, typescript: Ask, session: Session) -> None:
    """They are found even after many more messages."""
    session.set_session_name("Grüße 😀")
    session.set_tag("work")
    for number in range(40):
        say(session, f"{number} " + "x" * 4000)
    (listed,) = python("list_sessions")
    assert (listed["custom_title"], listed["tag"]) == ("Grüße 😀", "work")
    (told,) = typescript("listSessions")
    assert (told["customTitle"], told["tag"]) == ("Grüße 😀", "work")


def test_the_agent_goes_on_from_what_we_wrote(python: Ask, session: Session, config: Path) -> None:
    """Its next message is a child of ours, for the SDK and for us."""
    last = say(session, "from us")
    transcript(config).record_transcript([assistant("Z")], starting_parent_hint=last)
    assert said(python("get_session_messages", SESSION))[-2:] == ["from us", "Z"]
    session.branch(uid("Z"))
    assert session.get_branch()[-2].id == last
    assert session.findings == []
