"""Sessions of Goose, which are in a SQLite database, are read like files."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_records import requests, unpack
from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.storage.layout import Source
from stored_homes import fingerprint, library, names, sources

DATABASE = ".local/share/goose/sessions/sessions.db"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a real Goose left."""
    return unpack("goose", tmp_path_factory.mktemp("goose"))


@pytest.fixture
def home(record: Path) -> Path:
    return record / "home"


@pytest.fixture
def goose(home: Path, tmp_path: Path) -> Iterator[Library]:
    with library(home, tmp_path) as made:
        yield made


def test_every_session_is_listed(goose: Library, home: Path) -> None:
    """With name, folder, times and first prompt, as the program has them."""
    database = sqlite3.connect(f"file:{home / DATABASE}?immutable=1", uri=True)
    columns = (
        "id, working_dir, name, strftime('%s', updated_at) * 1000, strftime('%s', created_at) * 1000, session_type"
    )
    stored = {row[0]: row[1:] for row in database.execute(f"SELECT {columns} FROM sessions")}
    query = (
        "SELECT session_id, count(*) FROM messages WHERE role = 'user' AND content_json LIKE '[{\"type\":\"text\"%' "
    )
    query += "AND metadata_json LIKE '{\"userVisible\":true%' GROUP BY session_id"
    prompts = dict(database.execute(query))
    database.close()
    rows = goose.list(Filter(hide=()), timeout=None).rows
    assert {row.id: (row.cwd, row.title, row.modified_ns // 1_000_000, row.created_ms) for row in rows} == {
        each: values[:4] for each, values in stored.items()
    }
    assert {row.id for row in rows if row.sub_agent} == {
        each for each, values in stored.items() if values[4] == "sub_agent"
    }
    for row in rows:
        assert row.counts is not None and row.counts.user_messages == prompts[row.id]
        assert row.format == "goose" and goose.agent_of(row.path) == "goose"


def test_the_home_may_be_elsewhere(home: Path, tmp_path: Path) -> None:
    """XDG_DATA_HOME moves it, and a copy of the database alone is found too."""
    moved = {"XDG_DATA_HOME": str(home / ".local/share")}
    assert [source.agent for source in sources(tmp_path, moved)] == ["goose"]
    found = [source.sessions for source in AGENTS.sources_at(str(home / "imported"), names)]
    assert found == [str(home / "imported/sessions.db")]


def test_every_prompt_is_found(goose: Library, record: Path) -> None:
    """Each text that a user sent to the model, in the session that has it."""
    said = set()
    for sent in requests(record):
        last = sent.body["messages"][-1]
        if last["role"] == "user" and sent.body.get("tools"):
            content = last["content"]
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            said |= {text.split("<turn-context>")[0].strip() for text in texts}
    said -= {"", "A third plain question, number 3307. (imported)"}  # that one is in another home
    assert len(said) > 20
    for prompt in said:
        words = " ".join(prompt.replace('"', " ").split()[:6])
        assert goose.search(words, limit=100).hits, prompt


def test_a_compaction_keeps_the_history_out_of_the_context(goose: Library) -> None:
    """What was compacted stays readable; the model gets the summary, the note of the program and what came after."""
    (row,) = [row for row in goose.list(timeout=None).rows if row.counts and row.counts.compactions]
    with goose.store.open(row.path, readonly=True) as session:
        first, second, third, *_ = session.context().messages
        commands = [
            entry.body["message"]
            for entry in session.iter_entries()
            if entry.body["type"] == "message" and entry.body["message"].get("excludeFromContext")
        ]
    assert first["role"] == "user" and first["content"][0]["text"] == "mock answer 104"
    assert second["role"] == "assistant" and "compacted" in second["content"][0]["text"]
    assert third.get("excludeFromContext")
    assert [command["content"][0]["text"] for command in commands] == ["/compact", "Compaction complete"]


def test_sessions_are_shown_forked_and_resumed(goose: Library) -> None:
    """Ids occur once, a fork has the same context, and the command has the id."""
    for row in goose.list(Filter(hide=()), timeout=None).rows:
        with goose.store.open(row.path, readonly=True) as session:
            assert not session.findings and session.id == row.id and session.title == row.title
            ids = [entry.id for entry in session.iter_entries()]
            assert len(ids) == len(set(ids))
            messages = session.context().messages
            with goose.store.fork_from(row.path, session.cwd) as fork:
                assert fork.context().messages == messages
    agent = AGENTS.get("goose")
    assert agent is not None and agent.command == ("goose", "session", "--resume", "--session-id")


def test_sub_agents_belong_to_their_session(goose: Library) -> None:
    """They are below the session that started them, with their task."""
    (row,) = [row for row in goose.list(Filter(hide=()), timeout=None).rows if row.sub_agent]
    parent = row.path.rpartition("/subagents/")[0] + ".jsonl"
    (found,) = sub_agents(goose.store, parent)
    assert found.description == "sub prompt: count things" and found.agent_type == "sub_agent"


def test_usage_has_no_token_twice(goose: Library) -> None:
    """The program counts cached tokens as input; the total stays the same."""
    for row in goose.list(Filter(hide=()), timeout=None).rows:
        with goose.store.open(row.path, readonly=True) as session:
            for entry in session.iter_entries():
                usage = entry.body.get("message", {}).get("usage")
                if usage:
                    parts = [usage.get(name, 0) for name in ("input", "output", "cacheRead", "cacheWrite")]
                    assert sum(parts) == usage["totalTokens"]


def test_reading_changes_nothing(home: Path, tmp_path: Path) -> None:
    """Neither a byte nor a time of any file, and nothing is created."""
    before = fingerprint(home)
    with library(home, tmp_path) as made:
        made.catch_up("index")
        for row in made.list(Filter(hide=()), timeout=None).rows:
            with made.store.open(row.path, readonly=True) as session:
                list(session.iter_entries())
    assert fingerprint(home) == before


def test_damage_and_newer_tables_are_findings(home: Path, tmp_path: Path) -> None:
    """A row that is not JSON, and tables of a later version, are named; the rest is read."""
    path = tmp_path / "sessions.db"
    shutil.copyfile(home / DATABASE, path)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("INSERT INTO schema_version (version) VALUES (99)")
    database.execute("UPDATE messages SET content_json = '{oops' WHERE session_id = '20261116_4' AND id = 203")
    database.close()
    with Library(Store(tmp_path / "own"), [Source("goose", str(tmp_path), str(path))]) as made:
        (row,) = [row for row in made.list(timeout=None).rows if row.id == "20261116_4"]
        with made.store.open(row.path, readonly=True) as session:
            texts = [finding.detail for finding in session.findings]
            assert sum(entry.body["type"] == "message" for entry in session.iter_entries()) == 5
    assert any("version 99" in text for text in texts) and any("not a list" in text for text in texts)
    path.write_bytes((home / DATABASE).read_bytes()[:4096])
    with Library(Store(tmp_path / "other"), [Source("goose", str(tmp_path), str(path))]) as made:
        made.list(timeout=None)
        assert made.notices


def test_a_command_of_an_earlier_compaction_stays_out_of_the_context(home: Path, tmp_path: Path) -> None:
    """After a second compaction, contexts between both are as they were."""
    path = tmp_path / "sessions.db"
    shutil.copyfile(home / DATABASE, path)
    database = sqlite3.connect(path, isolation_level=None)
    hidden = "json_set(metadata_json, '$.agentVisible', json('false'))"
    database.execute(f"UPDATE messages SET metadata_json = {hidden} WHERE session_id = '20261116_1'")
    agent_only = json.dumps({"userVisible": False, "agentVisible": True})
    for number, (role, text) in enumerate([("user", "second summary"), ("assistant", "go on")]):
        content = json.dumps([{"type": "text", "text": text}])
        values = (f"msg_{number}", role, content, 1794900000, agent_only)
        columns = "message_id, session_id, role, content_json, created_timestamp, metadata_json"
        query = f"INSERT INTO messages ({columns}) VALUES (?, '20261116_1', ?, ?, ?, ?)"
        database.execute(query, values)
    database.close()
    with Library(Store(tmp_path / "own"), [Source("goose", str(tmp_path), str(path))]) as made:
        (row,) = [row for row in made.list(timeout=None).rows if row.id == "20261116_1"]
        assert row.counts is not None and row.counts.compactions == 2
        with made.store.open(row.path, readonly=True) as session:
            texts = [message["content"][0]["text"] for message in session.context().messages]
            commands = [
                entry.body["message"]["content"][0]["text"]
                for entry in session.iter_entries()
                if entry.body.get("message", {}).get("excludeFromContext")
            ]
    assert texts == ["second summary", "go on"] and commands == ["/compact", "Compaction complete"]
