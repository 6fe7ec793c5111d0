"""Fixtures that run the command in this process, or in its own, with an isolated home."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessile import Store
from sessile.cli.command import run
from sessile.demo.corpus import make_demo

NOW = 1_763_200_000.0  # seconds; the sessions of the demo are older


class Done(NamedTuple):
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the parsed JSON document from stdout."""
        return json.loads(self.out)


Command = Callable[..., Done]

# Runs the command in its own process with a limit on the file size, and records its peak memory.
_APART = """
import resource, sys
from pathlib import Path
limit, report = int(sys.argv[1]), Path(sys.argv[2])
if limit >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = ["sessile", *sys.argv[3:]]
from sessile.cli.main import main
code = main()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
status = Path("/proc/self/status")
if status.exists():  # what getrusage says counts the process that started this one, too
    peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
if limit < 0:
    report.write_text(str(peak))
sys.exit(code)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home with its own cache and a plain environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in (
        "XDG_DATA_HOME",
        "PI_CODING_AGENT_DIR",
        "PI_CONFIG_DIR",
        "FORCE_COLOR",
        "SESSILE_PLAIN",
        "SESSILE_ROOT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SESSILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sessile(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command with the given arguments."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the demo store once per session and return its root."""
    root = tmp_path_factory.mktemp("demo") / "root"
    make_demo(Store(root, clock=lambda: NOW))
    return root


@pytest.fixture
def demo(home: Path, demo_root: Path) -> Path:
    """Return a writable copy of the demo store, without the session of 20,000 entries."""
    root = home / ".sessile"
    shutil.copytree(demo_root, root, ignore=_large)
    return root


def _large(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_file() and (Path(folder) / name).stat().st_size > 2**20]


class Apart(NamedTuple):
    """The output, exit code and peak memory in megabytes of a process; memory is `None` if it was not recorded."""

    code: int
    out: str
    err: str
    megabytes: float | None


def apart(
    report: Path, *arguments: str, environment: Mapping[str, str] | None = None, limit: int = -1, stdin: str = ""
) -> Apart:
    """Run the command in its own process; `limit` is the maximum file size."""
    command = [sys.executable, "-c", _APART, str(limit), str(report), *arguments]
    done = subprocess.run(
        command, input=stdin.encode(), capture_output=True, env={**os.environ, **(environment or {})}, timeout=100
    )
    megabytes = int(report.read_text()) / 1024 if report.exists() else None
    return Apart(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode(), megabytes)


def at_a_terminal(arguments: list[str], environment: Mapping[str, str], typed: str = "", *, notes: bool = True) -> str:
    """Return what the command prints to an interactive terminal; without `notes`, only stdout."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sessile.cli.main", *arguments]
    with subprocess.Popen(
        command,
        stdout=theirs,
        stderr=theirs if notes else subprocess.DEVNULL,
        stdin=theirs,
        env={**os.environ, **environment},
    ) as run:
        os.close(theirs)
        os.write(ours, typed.encode())
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        os.close(ours)
        run.wait(20)
    return b"".join(pieces).decode()


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in its own process so that a test can interrupt it; it is always ended with the test."""
    command = [sys.executable, "-m", "sessile.cli.main", *arguments]
    # A test run in the background ignores Ctrl-C, and its child processes would inherit that.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
