"""Sessions of OpenCode and Kilo, which are in a SQLite database, are read like files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_records import unpack
from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.storage.layout import Source
from sessile.transfer import import_session

DATABASES = {"opencode": ".local/share/opencode/opencode.db", "kilo": ".local/share/kilo/kilo.db"}


@pytest.fixture(scope="module", params=["opencode", "kilo"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The home that a real program left."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, unpack(request.param, folder) / "home"


@pytest.fixture
def library(record: tuple[str, Path], tmp_path: Path) -> Iterator[Library]:
    with Library(Store(tmp_path / "own"), sources(record[1]), cache=str(tmp_path / "cache")) as made:
        yield made


def sources(home: Path) -> list[Source]:
    """Return the sources in a home that exist."""
    found = AGENTS.sources(
        str(home), {}, lambda folder: [p.name for p in Path(folder).iterdir()] if Path(folder).is_dir() else []
    )
    return [source for source in found if Path(source.sessions).exists()]


def texts(home: Path, name: str) -> dict[str, list[str]]:
    """Return the typed prompts of each session, straight from the database."""
    database = sqlite3.connect(f"file:{home / DATABASES[name]}?immutable=1", uri=True)
    found: dict[str, list[str]] = {}
    query = "SELECT m.session_id, m.data, p.data FROM message m JOIN part p ON p.message_id = m.id ORDER BY m.id, p.id"
    for session, message, part in database.execute(query):
        data = json.loads(part)
        if json.loads(message)["role"] == "user" and data["type"] == "text" and not data.get("synthetic"):
            found.setdefault(session, []).append(data["text"])
    database.close()
    return found


@pytest.mark.mission("N4")
def test_every_session_is_listed(library: Library, record: tuple[str, Path]) -> None:
    """With title, project, times and messages, as the program has them."""
    name, home = record
    database = sqlite3.connect(f"file:{home / DATABASES[name]}?immutable=1", uri=True)
    columns = "id, directory, title, time_updated, time_created, parent_id"
    stored = {row[0]: row[1:] for row in database.execute(f"SELECT {columns} FROM session")}
    database.close()
    rows = library.list(Filter(hide=()), timeout=None).rows
    assert {row.id: (row.cwd, row.title, row.modified_ns // 1_000_000, row.created_ms) for row in rows} == {
        each: values[:4] for each, values in stored.items()
    }
    assert {row.id for row in rows if row.sub_agent} == {each for each, values in stored.items() if values[4]}
    prompts = texts(home, name)
    for row in rows:
        assert row.counts is not None and row.id is not None
        assert row.counts.user_messages >= len(prompts[row.id]) - row.counts.compactions
        assert row.first_text == prompts[row.id][0][:240]
        assert row.size and row.format == name and library.agent_of(row.path) == name


def test_every_prompt_is_found(library: Library, record: tuple[str, Path]) -> None:
    """By its words, in the session that has it."""
    name, home = record
    for session, prompts in texts(home, name).items():
        for prompt in prompts:
            words = " ".join(prompt.replace('"', " ").split()[:6])
            hits = library.search(words, limit=100).hits
            assert session in {hit.session_id for hit in hits}, prompt


def test_unchanged_sessions_are_not_read_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second catch-up only asks the tables of sessions."""
    assert library.catch_up("index").changed
    monkeypatch.setattr("sessile.agents.opencode.database.Sessions.render", lambda *given: pytest.fail("it was read"))
    again = library.catch_up("index")
    assert (again.changed, again.uncounted, again.unindexed) == (0, 0, 0)


def test_a_changed_session_is_read_again_and_no_other(record: tuple[str, Path], tmp_path: Path) -> None:
    """A new row, or another title, changes the mark of its session only."""
    name, _ = record
    home = unpack(name, tmp_path) / "home"
    path = home / DATABASES[name]
    for folder in (path.parent, path):
        folder.chmod(0o755)
    with Library(Store(tmp_path / "own"), sources(home), cache=str(tmp_path / "cache")) as library:
        library.catch_up("index")
        database = sqlite3.connect(path, isolation_level=None)
        (session,) = database.execute("SELECT id FROM session ORDER BY id LIMIT 1").fetchone()
        data = json.dumps({"role": "user", "time": {"created": 1}, "agent": "build"})
        database.execute("INSERT INTO message VALUES ('msg_zzz', ?, 1, 1, ?)", (session, data))
        text = json.dumps({"type": "text", "text": "a very new walrus"})
        database.execute("INSERT INTO part VALUES ('prt_zzz', 'msg_zzz', ?, 1, 1, ?)", (session, text))
        assert library.catch_up("index").changed == 1
        assert [hit.session_id for hit in library.search("walrus").hits] == [session]
        database.execute("UPDATE session SET title = 'Otters' WHERE id = ?", (session,))
        assert library.catch_up("index").changed == 1
        assert library.find("Otters").endswith(f"{session}.jsonl")
        database.execute("DELETE FROM part WHERE session_id = ?", (session,))
        database.execute("DELETE FROM message WHERE session_id = ?", (session,))
        database.execute("DELETE FROM session WHERE id = ?", (session,))
        assert library.catch_up("index").removed == 1
        database.close()


def test_a_session_is_opened_forked_and_imported(library: Library, record: tuple[str, Path]) -> None:
    """The copy has the same conversation, and the time of the original."""
    rows = library.list(timeout=None).rows
    for row in rows:
        with library.store.open(row.path, readonly=True) as session:
            assert session.id == row.id and session.title == row.title and not session.findings
            ids = [entry.id for entry in session.iter_entries()]
            assert len(ids) == len(set(ids)) and row.counts is not None and len(ids) == row.counts.entries
            messages = session.context().messages
            with library.store.fork_from(row.path, session.cwd) as fork:
                assert fork.context().messages == messages
        done = import_session(library.store, row.path)
        with library.store.open(done.path, readonly=True) as copy:
            assert copy.context().messages == messages
        assert Path(done.path).stat().st_mtime_ns == row.modified_ns
        assert import_session(library.store, row.path).added == 0


def test_sub_agents_belong_to_their_session(library: Library, record: tuple[str, Path]) -> None:
    """They are hidden in listings, and named with their kind and task."""
    rows = library.list(Filter(hide=()), timeout=None).rows
    parents = {row.path.rpartition("/subagents/")[0] + ".jsonl" for row in rows if row.sub_agent}
    assert parents < {row.path for row in rows}
    for parent in parents:
        found = list(sub_agents(library.store, parent))
        assert [agent.agent_type for agent in found] == ["general"]
        assert found[0].description == "count things (@general subagent)"
        assert library.count_agents(parent) == 1


def test_a_spilled_output_is_found_whole(library: Library, record: tuple[str, Path]) -> None:
    """The result has a part of it; the file beside the database has the rest."""
    name, home = record
    (file,) = (home / DATABASES[name]).parent.glob("tool-output/*")
    first = file.read_text().split("\n")[0]
    hits = library.search(f'"{first}"', fields=["tool_result", "other"], limit=50).hits
    assert hits, first


def test_a_compaction_is_sent_as_the_program_does(library: Library) -> None:
    """A question, the summary, then what was kept, and what came after."""
    (row,) = [row for row in library.list(timeout=None).rows if row.counts and row.counts.compactions]
    with library.store.open(row.path, readonly=True) as session:
        first, second, *_ = session.context().messages
    assert first["content"][0]["text"] == "What did we do so far?"
    assert second["role"] == "assistant" and second["content"][0]["text"].startswith("mock summary")


def test_a_damaged_database_says_what_cannot_be_read(record: tuple[str, Path], tmp_path: Path) -> None:
    """Sessions that can be listed are; the folder that cannot be read is a notice."""
    name, home = record
    data = (home / DATABASES[name]).read_bytes()
    path = tmp_path / f"{name}.db"
    for cut in (0, 100, 4096, len(data) // 2, len(data) - 4096):
        path.write_bytes(data[:cut])
        with Library(Store(tmp_path / "own"), [Source(name, str(tmp_path), str(path))]) as library:
            rows = library.list(Filter(hide=()), timeout=None).rows
            findings = 0
            for row in rows:
                if row.format is not None:
                    with library.store.open(row.path, readonly=True) as session:
                        findings += len(session.findings)
            assert rows or library.notices or cut == 0
            assert not rows or findings or library.notices or any(row.problem for row in rows)
