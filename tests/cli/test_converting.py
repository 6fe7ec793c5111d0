"""`sessile import` and `convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command

SESSION = "0f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
ROWS: list[dict[str, Any]] = [
    {
        "parentUuid": None,
        "type": "user",
        "uuid": "u1",
        "sessionId": SESSION,
        "cwd": "/work",
        "message": {"content": "hi"},
    },
    {"parentUuid": "u1", "type": "assistant", "uuid": "a1", "sessionId": SESSION, "message": {"content": "hello"}},
]


@pytest.fixture
def claude(home: Path) -> Path:
    """Return a Claude Code session."""
    path = home / ".claude" / "projects" / "-work" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"timestamp": "2026-05-01T10:00:00.000Z", **row}) + "\n" for row in ROWS))
    return path


@pytest.mark.mission("B1")
def test_another_agents_session_is_read_in_place(sessile: Command, claude: Path, home: Path) -> None:
    """`show`, `tree`, `context` and `export` read its file and write nothing beside it."""
    before = claude.read_bytes(), sorted((home / ".claude").rglob("*"))
    assert "hello" in sessile("show", str(claude)).out
    assert "2 entries" in sessile("tree", str(claude)).out
    assert [m["role"] for m in sessile("context", str(claude), "--json").json["messages"]] == ["user", "assistant"]
    assert "hello" in sessile("export", str(claude), "-t", "md", "-o", "-").out
    assert (claude.read_bytes(), sorted((home / ".claude").rglob("*"))) == before


def test_import_copies_it_and_again_adds_nothing(sessile: Command, claude: Path) -> None:
    """The copy is listed and can be continued."""
    (item,) = sessile("import", str(claude), "--json").json["items"]
    assert (item["id"], item["format"], item["rows"], item["added"]) == (SESSION, "claude", 2, 2)
    assert SESSION in sessile("ls").out
    assert sessile("label", f"{SESSION}#a1", "good").code == 0
    assert sessile("import", str(claude), "--json").json["items"][0]["added"] == 0


@pytest.mark.mission("C14")
def test_convert_gives_back_the_bytes(sessile: Command, claude: Path, tmp_path: Path) -> None:
    """Converting an unchanged import restores the original file."""
    sessile("import", str(claude))
    target = tmp_path / "back.jsonl"
    assert sessile("convert", SESSION, "--to", "claude", "-o", str(target)).code == 0
    assert target.read_bytes() == claude.read_bytes()
    assert sessile("convert", SESSION, "--to", "claude", "-o", str(target)).code == 7  # the file exists
    assert sessile("convert", SESSION, "--to", "fax", "-o", "-").code == 2


def test_what_has_no_counterpart_is_said(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A label has no counterpart: a note says so, and the converted file still has it."""
    done = sessile("convert", "6513270e", "--to", "claude", "-o", str(tmp_path / "x.jsonl"))
    assert done.code == 0 and "label: no counterpart" in done.err
    assert "[tests-green]" in sessile("tree", str(tmp_path / "x.jsonl")).out


def test_what_cannot_be_imported_is_said(sessile: Command, home: Path) -> None:
    """A file in an unknown format is counted as failed, and the command exits with code 5."""
    (home / "notes.jsonl").write_text('{"a": 1}\n')
    done = sessile("import", str(home / "notes.jsonl"))
    assert done.code == 5 and "1 failed" in done.err


def test_an_agent_without_sessions_is_said_with_where_to_look(sessile: Command, home: Path) -> None:
    """The error is "not found", and the hint names the verb that lists the searched folders."""
    (home / ".claude" / "projects").mkdir(parents=True)
    done = sessile("import", "claude")
    assert done.code == 3 and "no sessions of agent 'claude'" in done.err and "hint: run `sessile sources`" in done.err


def test_resume_starts_the_agent_that_wrote_it_or_forks_for_another(
    sessile: Command, claude: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude Code resumes its session by id, pi resumes a native fork of it, and codex refuses it."""
    assert sessile("resume", SESSION, "--json").json["argv"] == ["claude", "--resume", SESSION]
    done = sessile("resume", SESSION, "--in", "codex")
    assert done.code == 2 and "can resume only whole sessions of its own" in done.err
    started: list[list[str]] = []

    def start(program: str, command: list[str]) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr("os.execv", start)
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent))
    assert sessile("resume", SESSION, "--in", "pi").code == 0
    ((_, option, path),) = started
    assert option == "--session" and path.startswith(str(home / ".sessile"))
    assert [m["role"] for m in sessile("context", path, "--json").json["messages"]] == ["user", "assistant"]
