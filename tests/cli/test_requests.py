"""`sessile context`: the request of the session's agent, of another agent, or for a provider only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agent_records
from sessile.agents.pi import facts_in
from sessile.discovery import get_recent_sessions
from sessile.storage.filesystem import PosixFilesystem

from .conftest import Command

pytestmark = pytest.mark.mission("N2")


def _home(name: str, home: Path, tmp_path: Path) -> None:
    """Put what an agent left into the user's home."""
    record = agent_records.unpack(name, tmp_path / "record")
    shutil.copytree(record / "home", home, dirs_exist_ok=True)


def _session(home: Path, words: str) -> Path:
    return next(path for path in sorted(home.rglob("*.jsonl")) if words in path.read_text())


@pytest.fixture
def pi(home: Path, tmp_path: Path) -> Path:
    """Return the main session of pi 0.87.1."""
    _home("pi-0.87.1", home, tmp_path)
    return _session(home, "after the compaction")


def test_the_default_is_the_request_of_the_session_s_agent(sessile: Command, pi: Path) -> None:
    """Ids of calls stay as pi sends them; nothing that is sent is missing."""
    document = sessile("context", f"{pi}#e4caa44b", "--provider", "openai").json
    assert (document["agent"], document["gaps"]) == ("pi", [])
    calls = [call["id"] for message in document["messages"] for call in message.get("tool_calls", ())]
    assert calls and all(call.startswith("toolu_") for call in calls)
    assert [message["reasoning_content"] for message in document["messages"] if "reasoning_content" in message]


def test_as_selects_another_agent_or_none(sessile: Command, pi: Path) -> None:
    """Each agent has its own names, words and gaps; `none` has only the provider's rules."""
    names = {}
    for agent in ("pi", "omp", "none"):
        document = sessile("context", f"{pi}#8d6130fe", "--as", agent).json
        assert document["schema"] == "sessile.context.anthropic/2"
        names[agent] = [block for message in document["messages"] for block in _calls(message)]
    assert names == {
        "pi": [("bash", "toolu_035a8944bda4b547e0")],
        "omp": [("_bash", "toolu_035a8944bda4b547e0")],
        "none": [("bash", "toolu035a8944bda4b547e0")],
    }
    refused = sessile("context", str(pi), "--as", "nobody")
    assert refused.code == 2 and "agent 'nobody': use one of pi, omp," in refused.err


def _calls(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(block["name"], block["id"]) for block in message["content"] if block["type"] == "tool_use"]


def test_the_api_is_the_one_that_answered_last(sessile: Command, pi: Path) -> None:
    """Without a provider, the request goes where the last one went."""
    assert sessile("context", f"{pi}#2d46fed1", "--as", "pi").json["schema"] == "sessile.context.openai/2"
    assert sessile("context", str(pi), "--as", "pi").json["schema"] == "sessile.context.anthropic/2"


def test_system_prompt_and_tools_are_shown_also_after_a_compaction(sessile: Command, pi: Path) -> None:
    """They are part of the context at any entry."""
    for at in ("00509db8", "d271597a"):
        shown = sessile("context", f"{pi}#{at}").out
        assert "system prompt of 2,627 characters · 4 tools: read, bash, edit, write" in shown
        document = sessile("context", f"{pi}#{at}", "--json").json
        assert document["system"].endswith("</cwd>")
        assert [tool["name"] for tool in document["tools"]] == ["read", "bash", "edit", "write"]


def test_a_system_prompt_is_found_and_exported(sessile: Command, pi: Path) -> None:
    """Search and exports know its sections and the descriptions of tools."""
    words = "optional, no default timeout"
    assert "2e97d8f4" in sessile("search", words).out
    assert words in sessile("export", str(pi), "--to", "md", "--depth", "all", "-o", "-").out


def test_what_is_not_stored_is_named(sessile: Command, home: Path, tmp_path: Path) -> None:
    """Both views name it."""
    _home("pi-0.73.1", home, tmp_path)
    path = _session(home, "after the compaction")
    gap = "system prompt: this version of pi does not store it"
    assert f"not shown: {gap}" in sessile("context", str(path)).out
    assert gap in sessile("context", str(path), "--provider", "anthropic").json["gaps"]


def test_the_prompt_of_a_sub_agent_is_its_system_prompt(sessile: Command, home: Path, tmp_path: Path) -> None:
    """oh-my-pi stores it once, at the start of the sub-agent's file."""
    _home("oh-my-pi-18.2.3", home, tmp_path)
    path = next(home.rglob("CountThings.jsonl"))
    document = sessile("context", str(path), "--provider", "anthropic").json
    assert (document["agent"], len(document["system"][0]["text"])) == ("omp", 18399)
    assert not any(gap.startswith("system prompt") for gap in document["gaps"])


def test_a_session_behind_a_long_system_message_has_a_name(sessile: Command, home: Path) -> None:
    """The first prompt is looked for after the system prompt, however long that is."""
    folder = home / ".pi" / "agent" / "sessions" / "--x--"
    folder.mkdir(parents=True)
    system = {"role": "system", "content": "", "sections": {"a": "x" * 200_000}}
    rows: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "01a1e65d-6647-763b-883a-048d31a15197", "cwd": "/x"},
        {"type": "message", "id": "a", "parentId": None, "message": system},
        {"type": "model_change", "id": "b", "parentId": "a", "provider": "p", "modelId": "m"},
        {"type": "message", "id": "c", "parentId": "b", "message": {"role": "user", "content": "late question"}},
        {"type": "message", "id": "d", "parentId": "c", "message": {"role": "assistant", "content": []}},
    ]
    stamped = [{**row, "timestamp": "2026-11-16T21:57:23.143Z"} for row in rows]
    path = folder / "2026-11-16T21-57-23-143Z_01a1e65d-6647-763b-883a-048d31a15197.jsonl"
    path.write_text("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in stamped))
    assert [session.name for session in get_recent_sessions(folder)] == ["late question"]
    assert "late question" in sessile("ls", "-A").out


@pytest.mark.parametrize(
    "text",
    [
        '{"providers": {"p": {"models": [{"id": "m", "input": ["text"], "reasoning": false}]}}}',
        "providers:\n  p:\n    models:\n      - id: other\n        input: [text, image]\n"
        "      - id: m\n        reasoning: false\n        input: [text]\n",
        "providers:\n  p:\n    models:\n      - id: 'm'\n        input:\n          - text\n        reasoning: false\n",
    ],
    ids=["json", "inline", "block"],
)
def test_what_a_model_accepts_is_read_from_the_agent_s_settings(tmp_path: Path, text: str) -> None:
    """JSON and the plain YAML that oh-my-pi's users write."""
    path = tmp_path / "models.yml"
    path.write_text(text)
    facts = facts_in(PosixFilesystem(), str(path), "p", "m")
    assert (facts["input"], facts["reasoning"]) == (["text"], False)
    assert not facts_in(PosixFilesystem(), str(path), "p", "unknown")
    assert not facts_in(PosixFilesystem(), str(tmp_path / "missing"), "p", "m")
