"""Resuming sub-agents, and agents that run remotely."""

from __future__ import annotations

import pytest

from claude_rows import CONFIG, FOLDER, SESSION, transcript, user
from sessile.agents.claude.paths import remote_task_of
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.agents.claude.transcript import Transcript
from sessile.errors import Damaged, NotFound
from sessile.storage import atomic

pytestmark = pytest.mark.mission("C5")


def with_agents() -> Transcript:
    writer = transcript()
    writer.record_transcript([user("A")])
    writer.set_agent_subdir("a1", "workflows/r1")
    writer.write_agent_metadata("a1", "explorer", worktree_path="/wt/a1", description="looks around")
    writer.record_sidechain_transcript([user("S")], "a1")
    writer.record_sidechain_transcript([user("T")], "a2")
    return writer


def test_an_agent_goes_on_as_what_it_was() -> None:
    """Its type, worktree and description are returned by the writer, and by readers that do not know its sub-folder."""
    writer = with_agents()
    agent = writer.resume_agent("a1")
    assert (agent.agent_type, agent.worktree_path, agent.description) == ("explorer", "/wt/a1", "looks around")
    assert agent.transcript == f"{FOLDER}/{SESSION}/subagents/workflows/r1/agent-a1.jsonl"
    assert ClaudeSessions(writer.fs, CONFIG).resume_agent(SESSION, "a1") == agent


def test_an_agent_without_a_sidecar_is_told_and_not_made_up() -> None:
    """A special agent is never resumed as a general one."""
    writer = with_agents()
    with pytest.raises(NotFound, match="no sidecar") as caught:
        writer.resume_agent("a2")
    with pytest.raises(NotFound, match="no sidecar") as of_reader:
        ClaudeSessions(writer.fs, CONFIG).resume_agent(SESSION, "a2")
    assert caught.value.path == of_reader.value.path == f"{FOLDER}/{SESSION}/subagents/agent-a2.meta.json"
    assert caught.value.hint
    atomic.replace(writer.fs, f"{FOLDER}/{SESSION}/subagents/agent-a2.meta.json", (b'{"description":"x"}',))
    with pytest.raises(Damaged):
        writer.resume_agent("a2")
    with pytest.raises(NotFound, match=r"agent not found in session .*: 'a3'"):
        ClaudeSessions(writer.fs, CONFIG).resume_agent(SESSION, "a3")


def test_agents_that_run_elsewhere_are_listed() -> None:
    """Only their identities are stored here; other files in the folder are ignored."""
    writer = with_agents()
    sessions = ClaudeSessions(writer.fs, CONFIG)
    assert sessions.list_remote_agents(SESSION) == []
    folder = f"{FOLDER}/{SESSION}/remote-agents"
    atomic.make_folders(writer.fs, folder)
    for name in ("remote-agent-t1.meta.json", "remote-agent-t2.meta.json", "remote-agent-.meta.json", "notes.txt"):
        atomic.replace(writer.fs, f"{folder}/{name}", (b"{}",))
    assert sessions.list_remote_agents(SESSION) == ["t1", "t2"]
    assert sessions.list_remote_agents("00000000-0000-4000-8000-000000000000") == []
    assert remote_task_of("remote-agent-x.jsonl") is None
