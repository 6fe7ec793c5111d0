"""Sessions of Crush are read from a database that was made after notes on the program; no file of its own was at hand."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from stored_homes import fingerprint, names

TABLES = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT, message_count INTEGER, prompt_tokens INTEGER,
    completion_tokens INTEGER, cost REAL, summary_message_id TEXT, todos TEXT, created_at INTEGER, updated_at INTEGER);
CREATE TABLE messages (id TEXT PRIMARY KEY, session_id TEXT, role TEXT, parts TEXT, model TEXT, provider TEXT,
    is_summary_message INTEGER DEFAULT 0, created_at INTEGER, updated_at INTEGER, finished_at INTEGER);
"""
START = 1794866904  # seconds


def part(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


CALL = part("tool_call", id="call_1", name="bash", input='{"command":"ls"}', finished=True)
THOUGHT = part("reasoning", thinking="which tool fits", signature="c2ln")
TALK = [
    ("m1", "user", [part("text", text="List the walrus files")]),
    ("m2", "assistant", [THOUGHT, part("text", text="Let me look"), CALL, part("finish", reason="tool_use", time=1)]),
    ("m3", "tool", [part("tool_result", tool_call_id="call_1", name="bash", content="walrus.txt", is_error=False)]),
    ("m4", "assistant", [part("text", text="One file."), part("finish", reason="end_turn", time=1)]),
    ("m5", "assistant", [part("text", text="They asked for files."), part("finish", reason="end_turn", time=1)]),
    (
        "m6",
        "user",
        [part("text", text="And the otters?"), part("binary", Path="a.png", MIMEType="image/png", Data="aGk=")],
    ),
    ("m7", "user", [part("shell_command", command="pwd", output="/home", exit_code=0)]),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two sessions: a conversation with a compaction, and a sub-agent."""
    folder = tmp_path / "code" / "zoo" / ".crush"
    folder.mkdir(parents=True)
    database = sqlite3.connect(folder / "crush.db", isolation_level=None)
    database.executescript(TABLES)
    rows = [("s1", None, "Walrus talk", "m5"), ("m2$$call_1", "s1", "Look for files", None)]
    for session, parent, title, summary in rows:
        values = (session, parent, title, 0, 10, 20, 0.5, summary, "[]", START, START + 60)
        database.execute("INSERT INTO sessions VALUES (?,?,?,?,?,?,?,?,?,?,?)", values)
    for number, (message, role, parts) in enumerate(TALK):
        model = ("claude-sonnet", "anthropic") if role == "assistant" else (None, None)
        times = (START + number, START + number, None)
        row = (message, "s1", role, json.dumps(parts), *model, int(message == "m5"), *times)
        database.execute("INSERT INTO messages VALUES (?,?,?,?,?,?,?,?,?,?)", row)
    task = json.dumps([part("text", text="count the files")])
    child = ("n1", "m2$$call_1", "user", task, None, None, 0, START, START, None)
    database.execute("INSERT INTO messages VALUES (?,?,?,?,?,?,?,?,?,?)", child)
    database.close()
    return folder.parent


@pytest.fixture
def crush(project: Path, tmp_path: Path) -> Iterator[Library]:
    with Library(Store(tmp_path / "own"), AGENTS.sources_at(str(project), names)) as made:
        yield made


def test_the_database_of_a_project_is_found(project: Path) -> None:
    """From the project, its folder `.crush`, or the folder with the projects."""
    for folder in (project, project / ".crush", project.parent):
        found = AGENTS.sources_at(str(folder), names)
        assert [(source.agent, source.sessions) for source in found] == [("crush", str(project / ".crush/crush.db"))]
    found = AGENTS.sources(str(project), {}, names)
    assert str(project / ".crush/crush.db") in {source.sessions for source in found if source.agent == "crush"}


def test_sessions_are_listed_and_found(crush: Library, project: Path) -> None:
    """With title, project and times, which are in seconds."""
    rows = {row.id: row for row in crush.list(Filter(hide=()), timeout=None).rows}
    assert {row.sub_agent for row in rows.values()} == {True, False}
    row = rows["s1"]
    assert (row.title, row.cwd, row.created_ms) == ("Walrus talk", str(project), START * 1000)
    assert row.modified_ns == (START + 60) * 10**9 and row.first_text == "List the walrus files"
    assert row.counts is not None and (row.counts.user_messages, row.counts.compactions) == (2, 1)
    assert {hit.session_id for hit in crush.search("otters").hits} == {"s1"}
    (found,) = sub_agents(crush.store, row.path)
    assert found.description == "Look for files"


def test_messages_are_read(crush: Library) -> None:
    """Thoughts, calls, results, images and commands; after a summary the model gets it as a prompt."""
    (row,) = crush.list(timeout=None).rows
    with crush.store.open(row.path, readonly=True) as session:
        assert not session.findings
        bodies = {entry.id: entry.body for entry in session.iter_entries()}
        context = session.context().messages
        with crush.store.fork_from(row.path, session.cwd) as fork:
            assert fork.context().messages == context
    answer = bodies["m2"]["message"]
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "toolCall"]
    assert answer["content"][2]["arguments"] == {"command": "ls"} and answer["stopReason"] == "toolUse"
    assert bodies["m3"]["message"]["toolCallId"] == "call_1"
    assert [message["role"] for message in context] == ["user", "user", "bashExecution"]
    assert context[0]["content"][0]["text"] == "They asked for files."
    assert context[1]["content"][1] == {"type": "image", "mimeType": "image/png", "data": "aGk="}


def test_reading_changes_nothing_and_damage_is_a_finding(project: Path, crush: Library, tmp_path: Path) -> None:
    """A row that is not JSON is named; the rest is read."""
    database = sqlite3.connect(project / ".crush/crush.db", isolation_level=None)
    database.execute("UPDATE messages SET parts = '{oops' WHERE id = 'm4'")
    database.close()
    before = fingerprint(project)
    (row,) = crush.list(timeout=None).rows
    with crush.store.open(row.path, readonly=True) as session:
        assert ["m4" in finding.detail for finding in session.findings] == [True]
        assert len(session.context().messages) == 3
    assert fingerprint(project) == before
