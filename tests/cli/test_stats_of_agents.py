"""`sessile stats`, `diff`, `ls`, `show` and `tree` on stores that real agents wrote, compared with what they recorded.

The numbers are read from the rows of the stores without our readers: each answer and each result once, although forks copy
them. The names of tools are those that the scripted model called.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_records import requests, unpack
from sessile import Store
from sessile.core import prices
from sessile.core.tools import files
from sessile.render.shown import Diff, show_all

FAMILY = ["pi-0.87.1", "pi-0.73.1", "oh-my-pi-18.2.3", "openclaw-2026.2.3-1"]
AGENTS = [*FAMILY, "claude-code"]

pytestmark = pytest.mark.mission("N6")


class Told(NamedTuple):
    """What the rows of a store say: tokens, calls and failures by tool."""

    input: int
    output: int
    answers: int
    calls: Counter[str]
    failures: Counter[str]


def rows_in(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.rglob("*.jsonl*")):
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def told_by(folder: Path, agent: str) -> Told:
    answers: dict[str, tuple[int, int]] = {}
    calls: dict[str, str] = {}
    failed: set[str] = set()
    for row in rows_in(folder):
        message = row.get("message") if isinstance(row, dict) else None
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") in ("toolCall", "tool_use"):
                calls[block["id"]] = block["name"]
            if block.get("type") == "tool_result" and block.get("is_error") is True:
                failed.add(block["tool_use_id"])
        if message.get("role") == "toolResult" and message.get("isError") is True:
            failed.add(message["toolCallId"])
        usage = message.get("usage") or {}
        if message.get("role") == "assistant" and message.get("model") and message["model"] != "<synthetic>":
            key = message["id"] if agent == "claude-code" else f"{row['id']} {row['timestamp']}"
            used = (
                usage.get("input", usage.get("input_tokens", 0)),
                usage.get("output", usage.get("output_tokens", 0)),
            )
            answers[key] = max(answers.get(key, used), used)  # a fork of Claude Code empties the usage of some
    return Told(
        sum(given for given, _ in answers.values()),
        sum(written for _, written in answers.values()),
        len(answers),
        Counter(calls.values()),
        Counter(calls[call] for call in failed if call in calls),
    )


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> str:
    """Put the home of an agent in the place of the user's home."""
    name = str(request.param)
    record = unpack(name, tmp_path / "record")
    shutil.copytree(record / "home", home, dirs_exist_ok=True)
    return name


def test_numbers_are_those_of_the_rows(agent: str, home: Path, sessile: Any) -> None:
    """Tokens, answers, tool calls and failures of all sessions are those of the stored rows, each once."""
    told = told_by(home, agent)
    total = sessile("stats", "models", "--since", "20y", "--json").json["total"]
    assert (total["input"], total["output"], total["answers"]) == (told.input, told.output, told.answers)
    tools = {row["name"]: row for row in sessile("stats", "tools", "--since", "20y", "--json").json["items"]}
    assert {name: row["calls"] for name, row in tools.items()} == dict(told.calls)
    assert {name: row["failures"] for name, row in tools.items() if row["failures"]} == dict(told.failures)


def test_claude_calls_are_those_that_the_model_made(tmp_path: Path, home: Path, sessile: Any) -> None:
    """The tools in `stats tools` are those in the recorded answers of the model, by name and number."""
    record = unpack("claude-code", tmp_path / "record")
    shutil.copytree(record / "home", home, dirs_exist_ok=True)
    made = Counter(
        block["name"]
        for sent in requests(record)
        for block in (sent.answer if isinstance(sent.answer, list) else ())
        if block.get("k") == "tool"
    )
    tools = sessile("stats", "tools", "--since", "20y", "--json").json["items"]
    assert {row["name"]: row["calls"] for row in tools} == dict(made)


def test_models_are_models_and_prices_have_a_date(tmp_path: Path, home: Path, sessile: Any) -> None:
    """Answers of Claude Code have the price of their model; the sum says of when, and no placeholder is a model."""
    shutil.copytree(unpack("claude-code", tmp_path / "record") / "home", home, dirs_exist_ok=True)
    found = sessile("stats", "models", "--since", "20y", "--json").json
    rows = {row["name"]: row for row in found["items"]}
    assert not any("synthetic" in name for name in rows)
    opus = rows["anthropic/claude-opus-5-5"]
    assert opus["cost"] > 0 and opus["unpriced"] == 0 and opus["listed"] == opus["answers"]
    assert found["prices"]["date"] == prices.DATE
    assert f"prices of {prices.DATE}" in sessile("stats", "models", "--since", "20y").err


def test_unpriced_answers_are_named(home: Path, sessile: Any) -> None:
    """A model that the table does not know is named with the number of its answers, and is not free."""
    folder = home / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    message: dict[str, Any] = {
        "role": "assistant",
        "model": "claude-unheard-of",
        "content": [],
        "usage": {"input_tokens": 9, "output_tokens": 9},
    }
    rows: list[dict[str, Any]] = [
        {"type": "user", "uuid": "u", "parentUuid": None, "message": {"role": "user", "content": "hi"}},
        *(
            {"type": "assistant", "uuid": f"a{n}", "parentUuid": "u", "message": message | {"id": f"msg_{n}"}}
            for n in range(3)
        ),
    ]
    shared = {"sessionId": "5" * 8, "cwd": "/w", "timestamp": "2026-01-01T00:00:00.000Z", "isSidechain": False}
    (folder / "55555555-0000-4000-8000-000000000000.jsonl").write_text(
        "".join(json.dumps(row | shared) + "\n" for row in rows)
    )
    done = sessile("stats", "models", "--since", "20y")
    assert "3 answers of anthropic/claude-unheard-of have no known price" in done.err
    found = sessile("stats", "models", "--since", "20y", "--json").json
    assert found["unpriced"] == {"anthropic/claude-unheard-of": 3} and found["total"]["cost"] is None


@pytest.mark.parametrize("name", ["pi-0.87.1", "claude-code"])
def test_a_session_has_one_title(name: str, tmp_path: Path, home: Path, sessile: Any) -> None:
    """`ls`, `show`, `tree` and exports call a session by the same name, whether it has a title or not."""
    shutil.copytree(unpack(name, tmp_path / "record") / "home", home, dirs_exist_ok=True)
    listed = sessile("ls", "--json").json["items"]
    assert any(not row["title"] for row in listed)
    for row in listed:
        title = row["title"] or row["first_text"]
        assert sessile("tree", row["path"]).out.splitlines()[0].startswith(title[:40]), row["path"]
        assert f"<title>{title[:20]}" in sessile("export", row["path"], "-t", "html", "-o", "-").out


def test_codex_tokens_are_those_of_its_records(tmp_path: Path, home: Path, sessile: Any) -> None:
    """Each response of Codex counts once, with the usage that its record names; the cache is not part of the input."""
    shutil.copytree(unpack("codex", tmp_path / "record") / "home", home, dirs_exist_ok=True)
    records = [
        row["payload"] for row in rows_in(home) if isinstance(row, dict) and row.get("type") == "token_usage_record"
    ]
    used = {record["response_id"]: record["usage"] for record in records}
    total = sessile("stats", "models", "--since", "20y", "--json").json["total"]
    cached = sum(usage["cached_input_tokens"] for usage in used.values())
    assert total["answers"] == len(used)
    assert total["cache_read"] == cached
    assert total["input"] + cached == sum(usage["input_tokens"] for usage in used.values())
    assert total["output"] == sum(usage["output_tokens"] for usage in used.values())
    tools = {row["name"]: row for row in sessile("stats", "tools", "--since", "20y", "--json").json["items"]}
    assert "unknown" not in tools
    assert tools["exec_command"]["failures"] == 1 and tools["apply_patch"]["calls"] == 2


@pytest.mark.parametrize("name", ["codex", "claude-code", "pi-0.87.1", "oh-my-pi-18.2.3", "openclaw-2026.2.3-1"])
def test_files_are_those_that_the_model_touched(name: str, tmp_path: Path, home: Path, sessile: Any) -> None:
    """The files that sessions read and edited are those of the scripted calls; each edit is shown as a diff."""
    shutil.copytree(unpack(name, tmp_path / "record") / "home", home, dirs_exist_ok=True)
    read: set[str] = set()
    edited: set[str] = set()
    diffs: list[str] = []
    for row in sessile("ls", "-A", "--json").json["items"]:
        with Store(home / ".sessile").open(row["path"], readonly=True) as session:
            entries = session.get_entries()
            touched = files(entries, session.cwd)
            read |= {file.rpartition("/")[2] for file in touched.read}
            edited |= {file.rpartition("/")[2] for file in touched.edited}
            diffs += [part.text for shown in show_all(entries) for part in shown.parts if isinstance(part, Diff)]
    written, picture = (
        ("mock_out.txt", "mock.png") if name in ("codex", "claude-code") else ("notealpha.txt", "pic.png")
    )
    assert written in edited and picture in read
    assert not {file for file in edited | read if "." not in file}
    assert any("+line one" in diff for diff in diffs) and any(
        line[:1] == "-" for diff in diffs for line in diff.split("\n")
    )
