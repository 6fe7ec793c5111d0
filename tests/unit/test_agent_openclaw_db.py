"""Sessions of OpenClaw since 2026.7, which are in a SQLite database for each of its agents, are read like files."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent_records import requests, unpack
from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.storage.layout import Source
from stored_homes import fingerprint, library, names, sources

DATABASE = "agent/openclaw-agent.sqlite"
RECORD = "openclaw-2026.9.6"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a real OpenClaw left."""
    return unpack(RECORD, tmp_path_factory.mktemp("openclaw"))


@pytest.fixture
def home(record: Path) -> Path:
    return record / "home"


@pytest.fixture
def openclaw(home: Path, tmp_path: Path) -> Iterator[Library]:
    with library(home, tmp_path) as made:
        yield made


def decoded(record: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each session, as the makers of the record unpacked them."""
    found = {}
    for path in sorted((record / "decoded").rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
        found[rows[0]["id"]] = rows
    return found


def test_every_session_of_every_agent_is_listed(openclaw: Library, record: Path) -> None:
    """With label, folder, times and prompts; a key with two sessions has both; an archive is one too."""
    stored = decoded(record)
    rows = {row.id: row for row in openclaw.list(Filter(hide=()), timeout=None).rows}
    archived = rows.keys() - stored.keys()
    assert rows.keys() >= stored.keys() and [rows[each].path.endswith(".zst") for each in archived] == [True]
    for session_id, events in stored.items():
        row = rows[session_id]
        assert row.cwd == events[0]["cwd"] and row.format == "openclaw-db" and row.counts is not None
        roles = [event["message"]["role"] for event in events if event["type"] == "message"]
        assert row.counts.user_messages == roles.count("user")
        assert row.counts.compactions == sum(event["type"] == "compaction" for event in events)
        assert abs(row.modified_ns // 1_000_000 - _last(events)) < 1000
    titles = {row.title for row in rows.values()}
    assert {"Research 研究", "child 33", "boss", "long"} <= titles
    assert [row.title for row in rows.values() if row.sub_agent] == ["child 33"]


def _last(events: list[dict[str, Any]]) -> int:
    """The time of the last row; in a fork that has only copies, that of the fork."""
    return max(int(datetime.fromisoformat(event["timestamp"]).timestamp() * 1000) for event in events)


def test_the_home_may_be_elsewhere(home: Path, tmp_path: Path) -> None:
    """OPENCLAW_STATE_DIR moves it; a copied home, its state folder and a single database are found."""
    found = [source.sessions for source in sources(home) if source.agent == "openclaw-db"]
    assert [path.split("/agents/")[1].split("/")[0] for path in found] == ["main", "small", "work"]
    moved = sources(tmp_path, {"OPENCLAW_STATE_DIR": str(home / ".openclaw")})
    assert [source.sessions for source in moved if source.agent == "openclaw-db"] == found
    for folder in (home, home / ".openclaw"):
        assert {*found} <= {source.sessions for source in AGENTS.sources_at(str(folder), names)}
    (alone,) = AGENTS.sources_at(str(home / ".openclaw/agents/work/agent"), names)
    assert alone.agent == "openclaw-db"


def test_every_row_is_an_entry(openclaw: Library, record: Path) -> None:
    """Also packed ones; nothing is lost, and parents are as stored but for what is put between."""
    rows = {row.id: row for row in openclaw.list(Filter(hide=()), timeout=None).rows}
    for session_id, events in decoded(record).items():
        with openclaw.store.open(rows[session_id].path, readonly=True) as session:
            assert not session.findings
            entries = {entry.id: entry.body for entry in session.iter_entries()}
        assert entries.keys() >= {event["id"] for event in events[1:]}
        for event in events[1:]:
            message = event.get("message")
            if message and not message.get("__openclaw", {}).get("media"):
                assert entries[event["id"]]["message"]["content"] == message["content"]


def test_every_prompt_is_found(openclaw: Library, record: Path) -> None:
    """Each text that was sent as a prompt, also those that the program made itself."""
    said = set()
    for sent in requests(record):
        if sent.body.get("tools"):
            for message in sent.body["messages"][-2:]:
                for text in [message["content"]] if isinstance(message["content"], str) else _texts(message["content"]):
                    said.add(re.sub(r"^\[[^]]* UTC\] ", "", text))
    said = {text for text in said if not text.startswith(("<<<BEGIN_OPENCLAW", "Pre-compaction memory flush."))}
    assert len(said) > 40
    for prompt in said:
        words = " ".join(re.sub(r"[^\w\s]", " ", prompt).split()[:6])
        assert openclaw.search(words, limit=100).hits, prompt


def _texts(content: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in content if part["type"] == "text"]


def test_a_fork_and_a_rewind_name_their_source(openclaw: Library) -> None:
    """So that their shared history is known as such."""
    rows = {row.id: row for row in openclaw.list(Filter(hide=()), timeout=None).rows}
    source = rows["b10786de-f8d0-4979-877c-5ebc3854964e"].path
    for copy in ("82684b74-a4b8-4961-a64a-bf0a0a516c33", "242e41fe-2dfe-4441-a356-30503a79cec1"):
        with openclaw.store.open(rows[copy].path, readonly=True) as session:
            assert session.header["parentSession"] == source
            copied = {entry.id for entry in session.iter_entries()}
        with openclaw.store.open(source, readonly=True) as session:
            assert {entry.id for entry in session.iter_entries()} <= copied


def test_a_reset_a_rewind_and_commands_leave_the_context(openclaw: Library) -> None:
    """What the model does not see stays readable."""
    rows = {row.title: row for row in openclaw.list(timeout=None).rows}

    def context(path: str) -> list[str]:
        with openclaw.store.open(path, readonly=True) as session:
            return [str(message.get("content")) for message in session.context().messages]

    assert context(rows["scratch"].path)[0] == "and begin with this"
    (rewound,) = [row for row in openclaw.list(timeout=None).rows if str(row.id).startswith("242e41fe")]
    assert not any("TOOL question two" in text for text in context(rewound.path))
    (main,) = [row for row in openclaw.list(timeout=None).rows if str(row.id).startswith("aa31094b")]
    with openclaw.store.open(main.path, readonly=True) as session:
        left_out = [message for message in session.context().messages if message.get("excludeFromContext")]
        assert [message["role"] for message in left_out] == ["user", "assistant"]
        assert left_out[1]["model"] == "gateway-injected"
        images = [part for message in session.context().messages for part in _images(message)]
        assert {image["mimeType"] for image in images} == {"image/png"} and len(images) == 2


def _images(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in content if part.get("type") == "image"] if isinstance(content, list) else []


def test_a_session_that_ends_with_a_leaf_continues_at_its_target(home: Path, tmp_path: Path) -> None:
    """The branch that was left is not in the context."""
    path = _copied(home, tmp_path)
    session_id = "242e41fe-2dfe-4441-a356-30503a79cec1"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA ignore_check_constraints = ON")
    query = "SELECT seq FROM transcript_events WHERE session_id = ? AND event_json LIKE '%\"leaf\"%targetId%'"
    (seq,) = database.execute(query, (session_id,)).fetchone()
    database.execute("DROP TABLE session_transcript_active_events")
    database.execute("DELETE FROM transcript_events WHERE session_id = ? AND seq > ?", (session_id, seq))
    database.close()
    with _opened(path, tmp_path) as made:
        (row,) = [row for row in made.list(timeout=None).rows if row.id == session_id]
        with made.store.open(row.path, readonly=True) as session:
            texts = [str(message["content"]) for message in session.context().messages]
    assert texts[0] == "research question one" and len(texts) == 2


def test_sessions_are_forked(openclaw: Library) -> None:
    """A fork has the same context, with images."""
    for row in openclaw.list(Filter(hide=()), timeout=None).rows:
        with openclaw.store.open(row.path, readonly=True) as session:
            ids = [entry.id for entry in session.iter_entries()]
            assert len(ids) == len(set(ids)) and session.id == row.id
            messages = session.context().messages
            with openclaw.store.fork_from(row.path, session.cwd) as fork:
                assert fork.context().messages == messages


def test_sub_agents_belong_to_their_session(openclaw: Library) -> None:
    """They are below the session that spawned them, with their label."""
    (row,) = [row for row in openclaw.list(Filter(hide=()), timeout=None).rows if row.sub_agent]
    parent = row.path.rpartition("/subagents/")[0] + ".jsonl"
    (found,) = sub_agents(openclaw.store, parent)
    assert found.description == "child 33" and found.agent_type == "orchestrator"


def test_reading_changes_nothing(home: Path, tmp_path: Path) -> None:
    """Neither a byte nor a time of any file, and nothing is created."""
    before = fingerprint(home)
    with library(home, tmp_path) as made:
        made.catch_up("index")
        for row in made.list(Filter(hide=()), timeout=None).rows:
            with made.store.open(row.path, readonly=True) as session:
                list(session.iter_entries())
    assert fingerprint(home) == before


def test_damage_a_missing_image_and_newer_tables_are_findings(home: Path, tmp_path: Path) -> None:
    """A packed row that is broken is named, as are an image that is gone and tables of a later version."""
    path = _copied(home, tmp_path)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA user_version = 99")
    database.execute("PRAGMA ignore_check_constraints = ON")
    broken = "WHERE session_id LIKE 'aa31094b%' AND event_zstd IS NOT NULL"
    database.execute(f"UPDATE transcript_events SET event_zstd = x'28b52ffd00' {broken}")
    database.close()
    with _opened(path, tmp_path) as made:
        (row,) = [row for row in made.list(timeout=None).rows if str(row.id).startswith("aa31094b")]
        with made.store.open(row.path, readonly=True) as session:
            found = " ".join(finding.detail for finding in session.findings)
            assert session.context().messages
    assert "version 99" in found and "cannot be unpacked" in found and "media/inbound" in found


def _copied(home: Path, tmp_path: Path) -> Path:
    path = tmp_path / "state/agents/main" / DATABASE
    path.parent.mkdir(parents=True)
    shutil.copyfile(home / ".openclaw/agents/main" / DATABASE, path)
    return path


def _opened(path: Path, tmp_path: Path) -> Library:
    return Library(Store(tmp_path / "own"), [Source("openclaw-db", str(path.parent), str(path))])
