"""On thousands of generated transcripts, both views give the same results as the Claude Agent SDKs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from claude_trees import SESSION, Tree, lines
from claude_wild import Wild
from peers.claude_sdk import ClaudeSdk
from peers.peers import PeerError
from sessile.agents.claude.listing import SessionInfo
from sessile.agents.claude.rows import View
from sessile.agents.claude.sdk import ClaudeSessions, SessionMessage
from sessile.storage.filesystem import PosixFilesystem

pytestmark = [pytest.mark.peers, pytest.mark.mission("C10"), pytest.mark.mission("C11")]

Json = dict[str, Any]

LONG = os.environ.get("SESSILE_LONG") == "1"
TREES = 10_000 if LONG else 2_000
WILD = 10_000 if LONG else 1_000
TS_NAMES = {
    "sessionId": "session_id",
    "lastModified": "last_modified",
    "fileSize": "file_size",
    "customTitle": "custom_title",
    "firstPrompt": "first_prompt",
    "gitBranch": "git_branch",
    "createdAt": "created_at",
    "isCompactSummary": "is_compact_summary",
    "isQueuedCommand": "is_queued_command",
}
NOT_TOLD = ("interruptedByShutdown", "tool_result_meta", "isCompletedLocalCommand")
OURS_ONLY = ("is_programmatic", "begun_in", "continued_in")


@pytest.fixture(scope="module")
def python_sdk() -> Iterator[ClaudeSdk]:
    """Start the Python SDK once, because it starts slowly."""
    with closing(ClaudeSdk.python()) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def ts_sdk() -> Iterator[ClaudeSdk]:
    """Start the TypeScript SDK."""
    with closing(ClaudeSdk.typescript()) as sdk:
        yield sdk


def uuids(home: Path, view: View, *, subagent: bool = False) -> list[str]:
    sessions = ClaudeSessions(PosixFilesystem(), str(home))
    if subagent:
        return [message.uuid for message in sessions.get_subagent_messages(SESSION, "x", view=view)]
    return [message.uuid for message in sessions.get_session_messages(SESSION, view=view)]


def write(home: Path, tree: Tree) -> None:
    """Write the tree as a session and as its sub-agent."""
    folder = home / "projects" / "-w"
    agents = folder / SESSION / "subagents"
    agents.mkdir(parents=True, exist_ok=True)
    (folder / f"{SESSION}.jsonl").write_bytes(lines(tree.rows))
    (agents / "agent-x.jsonl").write_bytes(lines(tree.rows))


def write_wild(home: Path, wild: Wild, seed: int) -> None:
    """Replace the session with a new one with agents and sidecars, modified at an odd nanosecond."""
    folder = home / "projects" / "-w"
    shutil.rmtree(folder, ignore_errors=True)
    files = {f"{SESSION}.jsonl": wild.data}
    files |= {f"{SESSION}/subagents/{name}.jsonl": data for name, data in wild.agents.items()}
    files |= {f"{SESSION}/subagents/{name}.meta.json": data for name, data in wild.sidecars.items()}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    moment = 1_780_000_000_000_000_000 + seed * 1_234_567
    os.utime(folder / f"{SESSION}.jsonl", ns=(moment, moment))


def told(answer: SessionInfo | SessionMessage | Json | None) -> Json | None:
    """Return an info or a message with our member names, without members that only one side has."""
    if answer is None:
        return None
    members = json.loads(json.dumps(answer if isinstance(answer, dict) else asdict(answer)))
    named = {TS_NAMES.get(name, name): value for name, value in members.items()}
    unknown = (*NOT_TOLD, *OURS_ONLY)
    return {name: value for name, value in named.items() if value not in (None, False) and name not in unknown}


def test_the_python_view_is_the_python_sdk(python_sdk: ClaudeSdk, tmp_path: Path) -> None:
    """Messages of sessions and sub-agents are the same for every tree."""
    for seed in range(TREES):
        write(tmp_path, Tree(seed))
        expected = python_sdk.ask(tmp_path, "get_session_messages", SESSION)
        assert uuids(tmp_path, "python-sdk") == [each["uuid"] for each in expected], seed
        expected = python_sdk.ask(tmp_path, "get_subagent_messages", SESSION, "x")
        assert uuids(tmp_path, "python-sdk", subagent=True) == [each["uuid"] for each in expected], seed


def test_the_default_view_is_the_typescript_sdk(ts_sdk: ClaudeSdk, tmp_path: Path) -> None:
    """Messages of sessions and sub-agents are the same for every tree."""
    for seed in range(TREES):
        write(tmp_path, Tree(seed))
        expected = ts_sdk.ask(tmp_path, "getSubagentMessages", SESSION, "x")
        assert uuids(tmp_path, "ts", subagent=True) == [each["uuid"] for each in expected], seed
        expected = ts_sdk.ask(tmp_path, "getSessionMessages", SESSION)
        assert uuids(tmp_path, "ts") == [each["uuid"] for each in expected], seed


@pytest.mark.parametrize("view", ["python-sdk", "ts"])
def test_a_wild_disk_reads_as_in_the_sdk(request: pytest.FixtureRequest, tmp_path: Path, view: View) -> None:
    """Infos, listings, messages, sub-agents and their messages are the same, however odd the rows are.

    Where the SDK itself raises an error, ours must only return a result.
    """
    sdk: ClaudeSdk = request.getfixturevalue("python_sdk" if view == "python-sdk" else "ts_sdk")
    names = ("get_session_info", "list_sessions", "get_session_messages", "list_subagents", "get_subagent_messages")
    info, listing, messages, subagents, of_subagent = (
        names if view == "python-sdk" else [_camel(name) for name in names]
    )
    compared = 0
    for seed in range(WILD):
        wild = Wild(seed)
        write_wild(tmp_path, wild, seed)
        ours = ClaudeSessions(PosixFilesystem(), str(tmp_path))
        agents = sorted({name.rpartition("agent-")[2] for name in wild.agents})
        asked: list[tuple[Any, tuple[Any, ...]]] = [
            ([ours.get_session_info(SESSION, view=view)], (info, SESSION)),
            (ours.list_sessions(view=view), (listing,)),
            (ours.get_session_messages(SESSION, view=view), (messages, SESSION)),
            *(
                (ours.get_subagent_messages(SESSION, agent, view=view), (of_subagent, SESSION, agent))
                for agent in agents
            ),
        ]
        for mine, question in asked:
            try:
                expected = sdk.ask(tmp_path, *question)
            except PeerError:
                continue
            expected = expected if isinstance(expected, list) else [expected]
            assert [told(each) for each in mine] == [told(each) for each in expected], (seed, question)
            compared += 1
        assert ours.list_subagents(SESSION, view=view) == sdk.ask(tmp_path, subagents, SESSION), seed
    assert compared > WILD * 3


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
