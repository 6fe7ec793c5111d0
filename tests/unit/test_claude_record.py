"""What real Claude Code left in its home: titles, tools, models, large outputs, rows beside the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_records
from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.core.statistics import by_model, by_tool
from sessile.next_request import next_request
from sessile.storage.layout import Source

BASE = "aaaaaaaa-0001-4000-8000-000000000001"
FAILED = "aaaaaaaa-0004-4000-8000-000000000014"


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the projects folder of the record."""
    folder = agent_records.unpack("claude-code", tmp_path_factory.mktemp("record"))
    return folder / "home" / ".claude" / "projects"


@pytest.fixture(scope="module")
def library(projects: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """Return a library of the record."""
    folder = tmp_path_factory.mktemp("library")
    sources = [Source("claude", str(projects.parent), str(projects))]
    with Library(Store(folder / "own"), sources, cache=str(folder / "cache")) as opened:
        yield opened


def test_titles_are_those_of_the_last_rename(projects: Path, library: Library) -> None:
    """The session, the list of sessions and the file that Claude Code keeps beside a transcript say the same."""
    listed = {row.path: row.title for row in library.list().rows}
    renamed = sorted(projects.glob("*/*/custom-title.json"))
    assert len(renamed) == 4
    for told in renamed:
        path = f"{told.parent}.jsonl"
        title = json.loads(told.read_text())["customTitle"]
        with library.store.open(path, readonly=True) as session:
            assert (session.title, listed[path]) == (title, title)


def test_every_result_knows_its_tool(library: Library) -> None:
    """Calls and failures are counted by the name of the tool, also failures, which only the results tell; copies count once."""
    table = {row.name: (row.calls, row.failures) for row in by_tool(library.usage()).rows}
    assert table["Bash"] == (12, 3)
    assert table["no_such_tool"] == (1, 1)
    assert "unknown" not in table


def test_texts_of_the_program_are_no_answers(library: Library) -> None:
    """Only models have answers: a text that Claude Code writes in place of one is neither a model nor an answer."""
    assert {row.name for row in by_model(library.usage()).rows} == {
        "anthropic/claude-opus-5-5",
        "anthropic/claude-haiku-4-5",
    }
    row = next(row for row in library.list(Filter(hide=())).rows if row.id == FAILED)
    assert row.counts is not None
    assert (row.counts.errors, row.counts.models) == (1, {"anthropic/claude-opus-5-5": 3})


def test_usage_counts_once_per_answer(projects: Path, library: Library) -> None:
    """An answer in several rows has its usage in each of them, and counts once."""
    row = next(row for row in library.list(Filter(hide=())).rows if row.id == BASE)
    usages = {}
    for line in (projects / row.path).read_text().splitlines():
        row_of_file = json.loads(line)
        if row_of_file["type"] == "assistant":
            usages[row_of_file["message"]["id"]] = row_of_file["message"]["usage"]["output_tokens"]
    assert row.counts is not None
    assert row.counts.output_tokens == sum(usages.values())


def test_large_outputs_are_searched_to_their_end(projects: Path, library: Library) -> None:
    """A result whose output is in a file of its own is found by words that only the file has; the result names the file."""
    hits = library.search("59987").hits
    assert [(hit.path, hit.field) for hit in hits] == [(str(next(projects.glob(f"*/{BASE}.jsonl"))), "tool_result")]
    with library.store.open(hits[0].path, readonly=True) as session:
        entry = session.get_entry(str(hits[0].entry_id))
        assert entry is not None
        name = entry.body["message"]["details"]["fullOutput"]
        assert (Path(session.artifacts) / name).read_text().splitlines()[-1] == "60000"
        assert "59987" not in json.dumps(session.context(entry.id).messages)


def test_rows_beside_the_conversation_are_named(projects: Path, library: Library, tmp_path: Path) -> None:
    """A check counts every sort of row, known or not."""
    path = next(projects.glob(f"*/{BASE}.jsonl"))
    copy = tmp_path / path.parent.name / path.name
    copy.parent.mkdir()
    new = ("derived-from", "session-owner", "ended-by-model")
    rows = "".join(json.dumps({"type": kind, "sessionId": BASE, "value": 1}) + "\n" for kind in new)
    copy.write_text(path.read_text() + rows)
    agent = AGENTS.get("claude")
    assert agent is not None
    checked = agent.check(library.store.fs, str(copy))
    assert checked is not None
    beside = {"api-request": 39, "cost-state": 27, "tools-used": 11, "atis-latch": 11, "mode": 9} | dict.fromkeys(
        new, 1
    )
    assert {name: checked[1].get(name) for name in beside} == beside
    with (
        library.store.open(str(copy), readonly=True) as changed,
        library.store.open(str(path), readonly=True) as before,
    ):
        assert changed.context().messages == before.context().messages
        assert sum(1 for _ in changed.iter_rows()) == sum(1 for _ in before.iter_rows()) + len(new)


def test_each_attempt_of_a_failed_request_can_be_asked_for(projects: Path, library: Library) -> None:
    """The rows that record requests are entries: one attempt had other tools than the one before."""
    path = next(projects.glob(f"*/{FAILED}.jsonl"))
    offsets, at = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        if line.startswith(b'{"type":"api-request",'):
            offsets.append(f"@{at:x}")
        at += len(line)
    with library.store.open(str(path), readonly=True) as session:
        agent = AGENTS.get("claude")
        counts = [len(next_request(session, at=offset, agent=agent)[1]["tools"]) for offset in offsets]
    assert counts == [12, 12, 12, 12, 21, 21, 21, 12, 12]


def test_sub_agents_have_requests_of_their_own(projects: Path, library: Library) -> None:
    """The transcript of a sub-agent gives its own prompt and tools."""
    path = next(projects.glob("*/*/subagents/agent-*.jsonl"))
    with library.store.open(str(path), readonly=True) as session:
        api, request = next_request(session, agent=AGENTS.get("claude"))
    assert (api, len(request["tools"]), request["messages"][-1]["role"]) == ("anthropic", 8, "assistant")
