"""The real Claude Agent SDKs for Python and TypeScript as oracles, one process each.

Rules: packages are fetched by name and version only; a machine that cannot install them skips with the reason; the SDKs
see a configuration folder of the test, never the user's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from peers.peers import ANSWER_SECONDS, CACHE, HERE, INSTALL_SECONDS, Package, PeerError

PACKAGE = "claude-agent-sdk"
VERSION = "0.2.182"
TS_SDK = Package("@anthropic-ai/claude-agent-sdk", "0.3.325")


def installed() -> Path:
    """Return the Python of an environment with the package; skip the test with the reason if it cannot be installed."""
    target = CACHE / f"{PACKAGE}-{VERSION}"
    if not (target / "ready").exists():
        _install(target)
    return target / "bin" / "python"


def _install(target: Path) -> None:
    """Create the environment in place, because it cannot be renamed, and mark it when it is complete."""
    CACHE.mkdir(parents=True, exist_ok=True)
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(target)],
        [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{PACKAGE}=={VERSION}"],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{PACKAGE} {VERSION} cannot be installed: {error.stderr.strip()[-500:]}")
        except subprocess.TimeoutExpired:
            pytest.skip(f"installing {PACKAGE} {VERSION} took more than {INSTALL_SECONDS} s")
    (target / "ready").touch()


class ClaudeSdk:
    """A process that answers requests about any configuration folder."""

    def __init__(self, command: list[str]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="sessile-peer-")
        with tempfile.TemporaryFile() as complaints:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                encoding="utf-8",
                cwd=self._home.name,
                env={"PATH": os.environ["PATH"], "HOME": self._home.name},
            )

    @classmethod
    def python(cls) -> ClaudeSdk:
        """Start the SDK for Python."""
        return cls([str(installed()), str(HERE / "claude_oracle.py")])

    @classmethod
    def typescript(cls) -> ClaudeSdk:
        """Start the SDK for TypeScript, whose functions take their options as the last argument."""
        return cls(["node", str(HERE / "claude_oracle.mjs"), str(TS_SDK.install())])

    def ask(self, config: Path, call: str, *args: Any, **options: Any) -> Any:
        """Return the result of a public function on a configuration folder."""
        assert self._process.stdin is not None and self._process.stdout is not None
        overdue = threading.Timer(ANSWER_SECONDS, self._process.kill)
        overdue.start()
        try:
            request = {"home": str(config), "function": call, "arguments": args, "options": options}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            overdue.cancel()
        if not line:
            raise PeerError(f"the SDK gave no answer to {call}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process and remove its home."""
        self._process.kill()
        self._process.communicate()
        self._home.cleanup()
