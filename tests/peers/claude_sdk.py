"""The real claude-agent-sdk as an oracle: installed once below `.cache/peers` in an environment of its own.

Rules: as for the other peers. It is fetched by name and version only, a machine that cannot have it skips with the reason, and it
sees a configuration folder of the test, never the user's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from peers.peers import ANSWER_SECONDS, CACHE, INSTALL_SECONDS, PeerError

HERE = Path(__file__).parent
PACKAGE = "claude-agent-sdk"
VERSION = "0.2.182"


def installed() -> Path:
    """The Python of an environment that has the package; skips the test, saying why, when it cannot be had."""
    target = CACHE / f"{PACKAGE}-{VERSION}"
    if not (target / "ready").exists():
        _install(target)
    return target / "bin" / "python"


def _install(target: Path) -> None:
    """An environment does not work under another name, so it is made in place and marked when it is ready."""
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
    """One process that answers for whatever configuration folder it is asked about."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="sessile-peer-")
        with tempfile.TemporaryFile() as complaints:
            self._process = subprocess.Popen(
                [str(installed()), str(HERE / "claude_oracle.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                encoding="utf-8",
                cwd=self._home.name,
                env={"PATH": os.environ["PATH"], "HOME": self._home.name},
            )

    def ask(self, config: Path, call: str, *args: Any, **options: Any) -> Any:
        """The result of one public function on a configuration folder."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"config": str(config), "call": call, "args": args, "options": options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{PACKAGE} gave no answer to {call}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process and remove its home."""
        self._process.communicate(timeout=ANSWER_SECONDS)
        self._home.cleanup()
