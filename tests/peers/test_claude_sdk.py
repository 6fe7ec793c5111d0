"""On thousands of made-up transcripts the two views answer as the two Claude Agent SDKs themselves do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_trees import SESSION, Tree, lines
from peers.peers import CACHE, HERE, INSTALL_SECONDS, Package
from sessile.formats.claude.heads import View
from sessile.storage.filesystem import PosixFilesystem
from sessile.stores.claude.reading import ClaudeSessions

pytestmark = [pytest.mark.peers, pytest.mark.mission("C10")]

PYTHON_SDK = "claude-agent-sdk==0.2.182"
TS_SDK = Package("@anthropic-ai/claude-agent-sdk", "0.3.325")
TREES = 10_000 if os.environ.get("SESSILE_LONG") == "1" else 2_000


class Sdk:
    """One process that answers for one SDK."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env={"PATH": os.environ["PATH"]}
        )

    def ask(self, home: Path, function: str, *arguments: Any) -> Any:
        """What a function of the SDK answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"home": str(home), "function": function, "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def python_with_sdk() -> str:
    """The interpreter of an environment with the Python SDK; skips, saying why, when it cannot be had."""
    target = CACHE / PYTHON_SDK
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".install-") as folder:
            fresh = Path(folder) / "fresh"
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(fresh), PYTHON_SDK]
            done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            if done.returncode:
                pytest.skip(f"pip install {PYTHON_SDK} failed: {done.stderr.strip()[-500:]}")
            if not target.exists():  # else another run was faster
                fresh.rename(target)
    return str(target)


@pytest.fixture(scope="module")
def python_sdk() -> Iterator[Sdk]:
    """The Python SDK, in a process that sees its packages only."""
    start = f"import sys, runpy; sys.path.insert(0, {python_with_sdk()!r}); runpy.run_path({str(HERE / 'claude_oracle.py')!r})"
    sdk = Sdk([sys.executable, "-I", "-c", start])
    yield sdk
    sdk.close()


@pytest.fixture(scope="module")
def ts_sdk() -> Iterator[Sdk]:
    """The TypeScript SDK."""
    sdk = Sdk(["node", str(HERE / "claude_oracle.mjs"), str(TS_SDK.install())])
    yield sdk
    sdk.close()


def uuids(home: Path, view: View, *, subagent: bool = False) -> list[str]:
    sessions = ClaudeSessions(PosixFilesystem(), str(home))
    if subagent:
        return [message.uuid for message in sessions.get_subagent_messages(SESSION, "x", view=view)]
    return [message.uuid for message in sessions.get_session_messages(SESSION, view=view)]


def write(home: Path, tree: Tree) -> None:
    """The tree as a session, and once more as its sub-agent."""
    folder = home / "projects" / "-w"
    agents = folder / SESSION / "subagents"
    agents.mkdir(parents=True, exist_ok=True)
    (folder / f"{SESSION}.jsonl").write_bytes(lines(tree.rows))
    (agents / "agent-x.jsonl").write_bytes(lines(tree.rows))


def is_queued_and_repeated(tree: Tree) -> bool:
    """Whether a queued prompt stands beside a repeated uuid: there the SDK shows rows that others have replaced."""
    names = [each["uuid"] for each in tree.rows if "uuid" in each]
    queued = any(each.get("attachment", {}).get("type") == "queued_command" for each in tree.rows)
    return queued and len(names) > len(set(names))


def test_the_python_view_is_the_python_sdk(python_sdk: Sdk, tmp_path: Path) -> None:
    """Messages of sessions and of sub-agents are the same for every tree."""
    for seed in range(TREES):
        write(tmp_path, Tree(seed))
        expected = python_sdk.ask(tmp_path, "get_session_messages", SESSION)
        assert uuids(tmp_path, "python-sdk") == [each["uuid"] for each in expected], seed
        expected = python_sdk.ask(tmp_path, "get_subagent_messages", SESSION, "x")
        assert uuids(tmp_path, "python-sdk", subagent=True) == [each["uuid"] for each in expected], seed


def test_the_default_view_is_the_typescript_sdk(ts_sdk: Sdk, tmp_path: Path) -> None:
    """Messages of sessions and of sub-agents are the same for every tree."""
    for seed in range(TREES):
        tree = Tree(seed)
        write(tmp_path, tree)
        expected = ts_sdk.ask(tmp_path, "getSubagentMessages", SESSION, "x", {})
        assert uuids(tmp_path, "ts", subagent=True) == [each["uuid"] for each in expected], seed
        if not is_queued_and_repeated(tree):
            expected = ts_sdk.ask(tmp_path, "getSessionMessages", SESSION, {})
            assert uuids(tmp_path, "ts") == [each["uuid"] for each in expected], seed
