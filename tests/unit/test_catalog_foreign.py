"""Sessions of other agents in the catalog are listed, counted, searched and followed like native ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from builders import answered, entry, said
from sessile import Filter, Library, Store
from sessile.storage.catch_up import Depth, Progress
from sessile.storage.layout import Source
from sessile.storage.search import Needle
from sessions import header

from .test_foreign import CODEX, SESSION, call, result, row


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with sessions of Claude Code and one of its sub-agents, and a session of Codex."""
    project = tmp_path / "claude" / "projects" / "-work-app"
    agents = project / SESSION / "subagents"
    dated = tmp_path / "codex" / "sessions" / "2026" / "05" / "01"
    for folder in (agents, dated):
        folder.mkdir(parents=True)
    _write(
        project / f"{SESSION}.jsonl",
        [
            row("user", "u1", None, "find the webhook"),
            call("c1", "u1", "m", "t1"),
            call("c2", "c1", "m", "t2"),
            result("r1", "c1", "t1"),
            result("r2", "c2", "t2"),
            {"type": "custom-title", "customTitle": "Webhooks", "sessionId": SESSION},
        ],
    )
    _write(agents / "agent-1.jsonl", [row("user", "x1", None, "look around", isSidechain=True)])
    _write(dated / f"rollout-2026-05-01T10-00-00-{SESSION}.jsonl", CODEX)
    return tmp_path


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def library(home: Path, cache: str = "cache") -> Library:
    sources = [
        Source("claude", str(home / "claude"), str(home / "claude" / "projects")),
        Source("codex", str(home / "codex"), str(home / "codex" / "sessions")),
    ]
    return Library(Store(home / "own"), sources, cache=str(home / cache))


@pytest.mark.mission("B1")
def test_sessions_of_all_agents_are_one_list(home: Path) -> None:
    """Title, first prompt, folder and counts come from the agents' files, and nothing is written to their folders."""
    before = {path: path.stat().st_mtime_ns for name in ("claude", "codex") for path in (home / name).rglob("*")}
    with library(home) as all_of_them:
        all_of_them.catch_up("count")
        listing = all_of_them.list()
        rows = {row.format: row for row in listing.rows}
        claude, codex = rows["claude"], rows["codex"]
        assert listing.hidden == {"sub_agent": 1}
        assert (claude.title, claude.first_text, claude.cwd) == ("Webhooks", "find the webhook", "/work/app")
        assert (codex.first_text, codex.cwd, codex.id) == ("list", "/work/app", SESSION)
        assert claude.counts is not None and codex.counts is not None
        assert (claude.counts.messages, claude.counts.branches, claude.counts.tool_calls) == (5, 1, 2)
        assert claude.counts.total_tokens == 7  # both rows of the answer have its total usage
        assert (codex.counts.compactions, codex.counts.messages) == (1, 5)
        assert all_of_them.agent_of(claude.path) == "claude"
    assert {
        path: path.stat().st_mtime_ns for name in ("claude", "codex") for path in (home / name).rglob("*")
    } == before


def test_their_words_are_found_with_the_ids_that_they_have_here(home: Path) -> None:
    """The index and a scan, also of tool output, return ids of entries that can be opened."""
    with library(home) as all_of_them:
        all_of_them.catch_up("index")
        (hit,) = all_of_them.search("webhook").hits
        assert hit.entry_id == "u1"
        with all_of_them.store.open(hit.path, readonly=True) as session:
            assert session.get_entry(hit.entry_id) is not None
        notices: list[str] = []
        found = list(all_of_them.scan(Needle("two files"), notices=notices))
        assert [each.row.format for each in found] == ["codex"] and not notices
        with all_of_them.store.open(found[0].row.path, readonly=True) as session:
            assert session.get_entry(str(found[0].match.entry_id)) is not None
        assert [each.match.entry_id for each in all_of_them.scan(Needle("t1 done"), notices=notices)] == ["r1"]


def test_a_session_that_grows_is_counted_on_from_where_it_was_left(home: Path) -> None:
    """Counting continues in the middle of an answer and returns the same as a full count."""
    path = home / "claude" / "projects" / "-work-app" / f"{SESSION}.jsonl"
    more = [
        call("c3", "r2", "m2", "t3"),
        call("c4", "c3", "m2", "t4"),
        result("r3", "c3", "t3"),
        result("r4", "c4", "t4"),
    ]
    with library(home) as all_of_them:
        all_of_them.catch_up("index")
        for each in more:
            with path.open("a") as file:
                file.write(json.dumps(each) + "\n")
            all_of_them.catch_up("index")
        grown = all_of_them.list(Filter(named=True)).rows[0]
        with library(home, "fresh") as again:
            again.catch_up("index")
            assert again.list(Filter(named=True)).rows[0].counts == grown.counts
            assert len(again.search("run").hits) == len(all_of_them.search("run").hits) == 5


def test_a_file_of_nobody_is_unreadable(home: Path) -> None:
    """A file that is not a session is counted as hidden."""
    (home / "claude" / "projects" / "-work-app" / "notes.jsonl").write_text('{"a": 1}\n')
    with library(home) as all_of_them:
        all_of_them.catch_up()
        assert all_of_them.list().hidden["unreadable"] == 1


@pytest.mark.parametrize("depth", ["count", "index"])
def test_progress_never_passes_its_total(home: Path, monkeypatch: pytest.MonkeyPatch, depth: Depth) -> None:
    """Progress counts the bytes of files, also of packed ones, whose rows are a thousand times larger."""
    monkeypatch.setattr("sessile.storage.catch_up._BATCH", -1.0)  # every step is reported
    packed = home / "codex" / "sessions" / "2026" / "05" / "02" / f"rollout-2026-05-02T10-00-00-{SESSION}.jsonl.zst"
    packed.parent.mkdir()
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "again " * 50_000}]}
    rows = [
        *CODEX,
        *({"type": "response_item", "timestamp": "2026-05-02T10:00:00Z", "payload": said} for _ in range(40)),
    ]
    packed.write_bytes(zstd.compress("".join(json.dumps(each) + "\n" for each in rows).encode()))
    steps: list[Progress] = []
    with library(home) as all_of_them:
        all_of_them.catch_up(depth, progress=steps.append)
    assert len([step for step in steps if step.doing == depth]) > 5
    assert all(0 <= step.done <= step.total for step in steps)
    for doing in {step.doing for step in steps}:
        done = [step.done for step in steps if step.doing == doing]
        assert done == sorted(done)


@pytest.mark.promise("P45")
def test_what_an_agents_list_no_longer_says_is_forgotten(tmp_path: Path) -> None:
    """A title from a list is replaced, withdrawn and found again, also if the list keeps its size and time or is deleted."""
    folder = tmp_path / "claw" / "sessions"
    folder.mkdir(parents=True)
    _write(folder / "s1.jsonl", [header("s1", title="Own name"), said("u1", None), answered("a1", "u1")])
    listed = folder / "sessions.json"

    def write(**names: str) -> None:
        entries = {f"agent:main:{key}": {"sessionId": key, "displayName": name} for key, name in names.items()}
        listed.write_text(json.dumps(entries))
        os.utime(listed, ns=(5, 5))

    sources = [Source("openclaw", str(tmp_path / "claw"), str(folder))]
    with Library(Store(tmp_path / "own"), sources, cache=str(tmp_path / "cache")) as found:

        def titled() -> tuple[str | None, list[list[str]]]:
            hits = [found.search(name).titles for name in ("Apple", "Grape", "Own")]
            return found.list().rows[0].title, [["here"] if paths else [] for paths in hits]

        assert titled() == ("Own name", [[], [], ["here"]])
        write(s1="Apple")
        assert titled() == ("Apple", [["here"], [], []])
        write(s1="Grape")
        assert titled() == ("Grape", [[], ["here"], []])
        write(s2="Grape")
        assert titled() == ("Own name", [[], [], ["here"]])
        write(s1="Apple")
        assert titled() == ("Apple", [["here"], [], []])
        listed.unlink()
        assert titled() == ("Own name", [[], [], ["here"]])


def test_a_name_that_an_entry_gave_counts_more_than_a_list(tmp_path: Path) -> None:
    """Also if it is the name in the header, and the list comes later."""
    folder = tmp_path / "claw" / "sessions"
    folder.mkdir(parents=True)
    named = entry("session_info", "i1", "u1", name="Own name")
    _write(folder / "s1.jsonl", [header("s1", title="Own name"), said("u1", None), named, answered("a1", "i1")])
    sources = [Source("openclaw", str(tmp_path / "claw"), str(folder))]
    with Library(Store(tmp_path / "own"), sources, cache=str(tmp_path / "cache")) as found:
        assert found.list().rows[0].title == "Own name"
        (folder / "sessions.json").write_text(json.dumps({"agent:main:x": {"sessionId": "s1", "displayName": "Apple"}}))
        assert found.list().rows[0].title == "Own name"
