"""`sessile import` and `convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessile import Store

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
    """A label has no counterpart: a note says so, and a file with all branches still has it."""
    done = sessile("convert", "6513270e", "--to", "claude", "--whole", "-o", str(tmp_path / "x.jsonl"))
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


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that are started instead of the agents."""
    commands: list[list[str]] = []

    def start(program: str, command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr("os.execv", start)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("claude", "codex", "pi", "omp", "xcsh"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))
    return commands


PLACES = {
    "codex": (".codex/sessions/2026/05/01/rollout-2026-05-01T10-00-00-{}.jsonl", ["codex", "resume", "{}"]),
    "pi": (".pi/agent/sessions/--work--/2026-05-01T10-00-00-000Z_{}.jsonl", ["pi", "--session", "PATH"]),
    "omp": (".omp/agent/sessions/--work--/2026-05-01T10-00-00-000Z_{}.jsonl", ["omp", "--resume", "PATH"]),
    "xcsh": (".xcsh/agent/sessions/--work--/2026-05-01T10-00-00-000Z_{}.jsonl", ["xcsh", "--resume", "PATH"]),
}


@pytest.mark.mission("N3")
@pytest.mark.parametrize("agent", PLACES)
def test_another_agent_resumes_a_clean_copy_where_it_looks(
    sessile: Command, claude: Path, home: Path, agent: str, started: list[list[str]]
) -> None:
    """The copy is private and complete, the original stays as it is, and resuming again takes the same copy."""
    before = claude.read_bytes()
    assert sessile("resume", SESSION, "--json").json["argv"] == ["claude", "--resume", SESSION]
    done = sessile("resume", SESSION, "--in", agent)
    assert done.code == 0 and f"placed for {agent}" in done.err
    pattern, command = PLACES[agent]
    (path,) = home.glob(pattern.format("*"))
    copied = path.stem.removesuffix(".jsonl")[-36:]
    wanted = [part.format(copied).replace("PATH", str(path)) for part in command]
    assert started == [wanted]
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    content = path.read_bytes()
    assert b"sessile." not in content and b"blob:" not in content
    assert [m["role"] for m in sessile("context", str(path), "--json").json["messages"]] == ["user", "assistant"]
    path.write_bytes(content + b"\n")  # the agent went on
    again = sessile("resume", SESSION, "--in", agent)
    assert "nothing has changed" in again.err and started == [wanted, wanted]
    assert path.read_bytes() == content + b"\n" and claude.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.mission("N3")
def test_print_shows_what_would_be_placed_and_a_line_that_does_it(
    sessile: Command, claude: Path, home: Path, started: list[list[str]]
) -> None:
    """Nothing is written; the printed line converts, then starts the agent; `convert` places the same file."""
    done = sessile("resume", SESSION, "--in", "codex", "--print")
    assert "a copy is placed for codex first: ~/.codex/sessions/2026/05/01/rollout-" in done.err
    convert, resume = done.out.strip().split(" && ")[-2:]
    assert convert == f"sessile convert {SESSION} --to codex"
    assert not (home / ".codex").exists()
    document = sessile("resume", SESSION, "--in", "codex", "--json").json
    assert document["argv"] == ["sessile", "resume", SESSION, "--in", "codex"]
    path = Path(sessile(*convert.split()[1:]).out.strip())
    assert path == Path(document["place"]) and path.is_file()
    assert resume == f"codex resume {path.stem[-36:]}"
    assert sessile("resume", SESSION, "--in", "codex", "--print").out.endswith(f"{resume}\n")
    assert sessile("convert", SESSION, "--to", "codex", "-o", "-").out.encode() == path.read_bytes()
    assert sessile("convert", SESSION, "--to", "native").code == 2 and not started


@pytest.mark.mission("N3")
def test_an_imported_session_goes_back_to_its_agent(
    sessile: Command, claude: Path, home: Path, started: list[list[str]]
) -> None:
    """The original is resumed as long as nothing was added here; then Claude Code gets a copy with what was added."""
    sessile("import", str(claude))
    (copy,) = (home / ".sessile").rglob("*.jsonl")
    assert sessile("resume", str(copy)).code == 0
    assert started == [["claude", "--resume", SESSION]]
    with Store(home / ".sessile").open(str(copy)) as session:
        session.append_message({"role": "user", "content": "added here"})
    assert sessile("resume", str(copy)).code == 0
    ((_, option, placed),) = started[1:]
    assert option == "--resume" and placed != SESSION
    rows = (home / ".claude" / "projects" / "-work" / f"{placed}.jsonl").read_text().splitlines()
    assert [json.loads(row)["message"]["content"] for row in rows][-1] == [{"type": "text", "text": "added here"}]
    assert {json.loads(row)["sessionId"] for row in rows} == {placed}


@pytest.mark.mission("N3")
def test_a_copy_ends_at_the_entry_that_is_named(sessile: Command, claude: Path, home: Path) -> None:
    """`SESSION#ENTRY` places only the path to that entry, also for the session's own agent."""
    path = Path(sessile("convert", f"{SESSION}#u1", "--to", "claude").out.strip())
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    assert [row["type"] for row in rows] == ["user"] and path.parent == claude.parent
    assert sessile("resume", f"{SESSION}#u1", "--print").out.endswith(f"claude --resume {path.stem}\n")


def test_nothing_is_placed_for_an_empty_conversation(sessile: Command, home: Path) -> None:
    """The error says so, and no file is made."""
    with Store(home / ".sessile").create("/work", publish=True) as session:
        pass
    done = sessile("resume", session.id, "--in", "claude")
    assert done.code == 2 and "conversation is empty" in done.err and not (home / ".claude").exists()
