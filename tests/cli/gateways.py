"""A gateway in a process of its own, as `sessile serve` starts it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Serving(NamedTuple):
    """A gateway that runs, and what it told when it began."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.told["url"])

    @property
    def place(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    @property
    def token(self) -> str:
        return Path(self.told["tokenFile"]).read_text().strip()

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Status and body of a path, asked as anybody could."""
        connection = http.client.HTTPConnection(*self.place, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """End it by a signal: its exit code, and what else it printed."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, err


@contextmanager
def serving(root: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """A gateway on a free port; it ends with the test, whatever happens."""
    command = [
        sys.executable,
        "-m",
        "sessile.cli.main",
        "--root",
        str(root),
        "--json",
        "serve",
        "--port",
        "0",
        *arguments,
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        preexec_fn=_interruptible,
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Serving(process, json.loads(line))
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=15)


def _interruptible() -> None:
    """A test run in the background ignores Ctrl-C, and what it starts would do so, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
