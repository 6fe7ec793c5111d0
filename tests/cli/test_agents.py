"""Sub-agents in the command line (listing, details, reading) and the worktrees of a project."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sessile import Library, Store
from sessile.core.address import sub_agent
from sessile.errors import Ambiguous, SessionNotFound
from sessile.library import agent_files, sub_agents
from sessile.storage.layout import Source

from .conftest import Command

SESSION = "0f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"

Json = dict[str, Any]


def put(path: Path, name: str, text: str, cwd: str = "/work", **members: Any) -> Path:
    """Write a Claude Code transcript with a question and an answer."""
    base: Json = {"sessionId": SESSION, "cwd": cwd, "timestamp": "2026-05-01T10:00:00.000Z", **members}
    answer = {"role": "assistant", "content": [{"type": "text", "text": f"answer of {name}"}]}
    rows = [
        {"parentUuid": None, "type": "user", "uuid": f"{name}-u", **base, "message": {"role": "user", "content": text}},
        {"parentUuid": f"{name}-u", "type": "assistant", "uuid": f"{name}-a", **base, "message": answer},
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def session(home: Path) -> Path:
    """Return a session with three sub-agents: one with a sidecar, one without, and one in a workflow run."""
    path = put(home / ".claude" / "projects" / "-work" / f"{SESSION}.jsonl", "main", "the question")
    folder = path.with_suffix("") / "subagents"
    put(folder / "agent-abc1.jsonl", "abc1", "explore", isSidechain=True, agentId="abc1")
    told = {"agentType": "Explore", "description": "look\x1b[31m around", "worktreePath": "/work/tree"}
    (folder / "agent-abc1.meta.json").write_text(json.dumps(told))
    put(folder / "agent-abd2.jsonl", "abd2", "do it", isSidechain=True, agentId="abd2")
    run = folder / "workflows" / "run"
    put(run / "agent-wf.jsonl", "wf", "a step", isSidechain=True, agentId="wf")
    (run / "agent-wf.meta.json").write_text("{")
    (run / "journal.jsonl").write_text("{}\n")
    return path


@pytest.mark.mission("C5")
def test_a_session_says_which_sub_agents_it_has(sessile: Command, session: Path) -> None:
    """Name, type, messages and description are shown; values of a missing or broken sidecar are reported as unknown."""
    done = sessile("show", SESSION, "--agents")
    assert done.code == 0
    assert done.out == "agent-abc1\tExplore\t2\tlook\\x1b[31m around\nagent-abd2\t\t2\t\nagent-wf\t\t2\t\n"
    assert "agent-abd2: the agent has no sidecar" in done.err
    assert "agent-wf: the agent's sidecar has no agentType" in done.err
    assert "general-purpose" not in done.out + done.err
    document = sessile("show", SESSION, "--agents", "--json").json
    assert document["schema"] == "sessile.agents/1"
    first, second, _ = document["items"]
    assert (first["agent_type"], first["worktree_path"], first["problem"]) == ("Explore", "/work/tree", None)
    assert (second["agent_type"], second["messages"]) == (None, 2) and "no sidecar" in second["problem"]


@pytest.mark.mission("C5")
def test_a_tree_and_a_transcript_tell_of_sub_agents(sessile: Command, session: Path) -> None:
    """The tree lists sub-agents below the branches; a transcript shows their number and how to list them."""
    done = sessile("tree", SESSION)
    assert done.code == 0
    assert "\n3 sub-agents\n  agent-abc1  Explore  2 messages  look\\x1b[31m around\n" in done.out
    assert "  agent-abd2  type unknown  2 messages\n" in done.out
    assert "agent-abd2: the agent has no sidecar" in done.err
    names = [agent["name"] for agent in sessile("tree", SESSION, "--json").json["agents"]]
    assert names == ["agent-abc1", "agent-abd2", "agent-wf"]
    assert "3 sub-agents. Show: --agents" in sessile("show", SESSION).out


def test_of_many_unknown_sub_agents_the_rest_is_counted(sessile: Command, session: Path) -> None:
    """Three unknown sub-agents are named, the others are counted."""
    for number in range(5):
        put(session.with_suffix("") / "subagents" / f"agent-z{number}.jsonl", f"z{number}", "x")
    done = sessile("show", SESSION, "--agents")
    assert done.err.count("sidecar") == 3 and "4 more sub-agents" in done.err


def test_a_session_without_sub_agents_says_so(sessile: Command, session: Path, home: Path) -> None:
    """Listing them exits with code 1; the tree and the transcript do not mention sub-agents."""
    alone = put(home / ".claude" / "projects" / "-work" / f"1{SESSION[1:]}.jsonl", "alone", "hello")
    done = sessile("show", str(alone), "--agents")
    assert (done.code, done.out) == (1, "") and "no sub-agents" in done.err
    assert "sub-agent" not in sessile("tree", str(alone)).out + sessile("show", str(alone)).out


@pytest.mark.mission("C5")
@pytest.mark.parametrize(
    "name", [f"{SESSION}/agent-abc1", "0f4e8b1c/agent-abc", "@last/agent-abc1", "the question/agent-abc"]
)
def test_a_sub_agent_is_read_by_its_name_behind_that_of_its_session(sessile: Command, session: Path, name: str) -> None:
    """A prefix of the sub-agent's name is enough; entries and branches are addressed as usual."""
    session.touch()
    done = sessile("show", name, "--json")
    assert done.code == 0
    assert [entry["id"] for entry in done.json["items"]] == ["abc1-u", "abc1-a"]
    assert [entry["id"] for entry in sessile("show", f"{name}#abc1-u", "--json").json["items"]] == ["abc1-u"]
    assert [entry["id"] for entry in sessile("show", f"{name}@abc1-u", "--json").json["items"]] == ["abc1-u"]


def test_a_name_of_no_or_of_several_sub_agents_is_an_error(sessile: Command, session: Path) -> None:
    """Unknown and missing names are not found; an ambiguous name lists the candidates."""
    done = sessile("show", f"{SESSION}/agent-x")
    assert done.code == 3 and "--agents" in done.err
    done = sessile("show", f"{SESSION}/agent-ab")
    assert done.code == Ambiguous.exit_code
    assert "agent-abc1" in done.err and "agent-abd2" in done.err
    assert sessile("show", "nobody/agent-x").code == 3
    done = sessile("show", f"{session.parent}/missing/agent-x.jsonl")
    assert done.code == 3 and "file not found" in done.err


def test_a_file_that_is_there_is_meant(sessile: Command, session: Path) -> None:
    """The path of an existing file is used as a file, even if it looks like the address of a sub-agent."""
    path = session.with_suffix("") / "subagents" / "agent-abc1.jsonl"
    assert [entry["id"] for entry in sessile("show", str(path), "--json").json["items"]] == ["abc1-u", "abc1-a"]


@pytest.mark.mission("C5")
def test_a_listing_nests_sub_agents_below_their_session(sessile: Command, session: Path) -> None:
    """Sub-agents follow their session with --tree; without it they are counted as hidden."""
    rows = [line.split("\t")[0] for line in sessile("ls", "--tree").out.splitlines()]
    assert rows[0] == SESSION and set(rows[1:]) >= {"agent-abc1", "agent-abd2"}
    done = sessile("ls")
    assert "agent-abc1" not in done.out and "sub-agent" in done.err


def test_reading_sub_agents_changes_nothing(sessile: Command, session: Path, home: Path) -> None:
    """No file, content or modification time changes."""

    def files() -> dict[str, tuple[bytes, int]]:
        found = (path for path in (home / ".claude").rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    before = files()
    for verb in (["show", SESSION, "--agents"], ["tree", SESSION], ["show", f"{SESSION}/agent-abc1"]):
        assert sessile(*verb).code == 0
    assert files() == before


def test_a_program_finds_sub_agents_too(session: Path, home: Path, tmp_path: Path) -> None:
    """The library resolves the same names; sub-agents of native sessions have no sidecars, which is not a problem."""
    store = Store(tmp_path / "store")
    projects = str(home / ".claude" / "projects")
    with Library(store, [Source("claude", f"{home}/.claude", projects)]) as library:
        path = library.find(f"{SESSION}/agent-wf")
        assert path in list(agent_files(store, str(session)))
        with pytest.raises(Ambiguous):
            library.find(f"{SESSION}/agent-ab")
        with pytest.raises(SessionNotFound):
            library.find(f"{SESSION}/agent-nobody")
    with store.create("/work", publish=True) as own:
        own.append_message({"role": "user", "content": "hi"})
    spilled = Path(own.artifacts)
    spilled.mkdir()
    (spilled / "0-task.jsonl").write_bytes(Path(own.path).read_bytes())
    (spilled / "1-broken.jsonl").write_text("hello\n")
    task, broken = sub_agents(store, own.path)
    assert (task.name, task.messages, task.problem, task.agent_type) == ("0-task", 1, None, None)
    assert broken.messages is None and broken.problem is not None


def test_addresses_of_sub_agents() -> None:
    """An address is a session, a slash and the name of a sub-agent; the path of a file is not an address."""
    assert sub_agent("webhook retries/agent-a1") == ("webhook retries", "agent-a1")
    assert sub_agent("/x/y.jsonl/agent-a") == ("/x/y.jsonl", "agent-a")
    for other in ("webhook", "x/y", "/agent-a", "x/agent-a.jsonl", "agent-a"):
        assert sub_agent(other) is None


# -- worktrees


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(home: Path, tmp_path: Path) -> Path:
    """Return a repository with a worktree, with sessions in both, in a subfolder of each, and elsewhere."""
    main, other = tmp_path / "repo", tmp_path / "other tree"
    main.mkdir()
    git(main, "init")
    git(main, "commit", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", "-b", "side", str(other))
    places = [main, other, main / "sub", other / "sub", tmp_path / "repo-elsewhere"]
    for number, cwd in enumerate(places):
        cwd.mkdir(exist_ok=True)
        file = home / ".claude" / "projects" / f"p{number}" / f"{number}{SESSION[1:]}.jsonl"
        put(file, f"n{number}", f"in place {number}", str(cwd))
    return main


def numbers(sessile: Command, *arguments: str) -> set[str]:
    return {item["id"][0] for item in sessile("ls", "--json", *arguments).json["items"]}


@pytest.mark.mission("C11")
def test_the_sessions_of_a_repository_are_those_of_its_worktrees_too(
    sessile: Command, repository: Path, tmp_path: Path
) -> None:
    """A worktree lists the sessions of all worktrees, and a subfolder those of the same subfolder in each."""
    assert numbers(sessile, "-p", str(repository)) == {"0", "1", "2", "3"}
    assert numbers(sessile, "-p", str(tmp_path / "other tree")) == {"0", "1", "2", "3"}
    assert numbers(sessile, "-p", str(repository / "sub")) == {"2", "3"}
    assert numbers(sessile, "-p", str(tmp_path / "repo-elsewhere")) == {"4"}
    assert numbers(sessile, "-p", "repo-elsewhere") == {"4"}


def test_sessions_of_a_worktree_that_is_gone_are_listed_as_long_as_git_knows_it(
    sessile: Command, repository: Path, tmp_path: Path
) -> None:
    """The worktree's folder may be removed before its sessions are."""
    (tmp_path / "other tree" / "sub").rmdir()
    (tmp_path / "other tree").rename(tmp_path / "moved")
    assert numbers(sessile, "-p", str(repository)) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("trouble", ["missing", "slow", "failing"])
def test_a_git_that_does_not_answer_is_told(
    sessile: Command, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The failure is reported, and the sessions of the folder itself are listed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    if trouble != "missing":
        does = {"slow": "exec /bin/sleep 60", "failing": "echo 'fatal: odd' >&2; exit 1"}[trouble]
        (programs / "git").write_text(f"#!/bin/sh\n{does}\n")
        (programs / "git").chmod(0o700)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr("sessile.cli.arguments._GIT_TIMEOUT", 0.2)
    done = sessile("ls", "-p", str(repository), "--json")
    assert {item["id"][0] for item in done.json["items"]} == {"0", "2"}
    assert "worktrees are not included" in done.err


def test_outside_of_a_repository_no_git_is_run(
    sessile: Command, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git is not even looked up."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = sessile("ls", "-p", "/work")
    assert done.code == 0 and SESSION in done.out and "git" not in done.err
