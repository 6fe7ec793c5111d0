"""Run a gateway in its own process with `sessile serve`."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Serving(NamedTuple):
    """A running gateway and its startup message."""

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
        """Return status and body of an unauthenticated GET request."""
        connection = http.client.HTTPConnection(*self.place, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal and return the exit code and the remaining output."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, err


@contextmanager
def serving(
    root: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "sessile.cli.main"),
) -> Iterator[Serving]:
    """Run a gateway on a free port; it is always ended with the test."""
    command = [
        *program,
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
    """Restore the default handling of Ctrl-C, which a test run in the background ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
