"""Run the blocks of a page in order, as a reader would.

    ```python              is run; names last until the end of the page
    ```output              the output of the block before it, line by line
    ```toml config.toml    a block with a file name is written to that file
    ```console             `$ sessile …` is run; the lines below must be in its output; `# exit 5` is the exit code if it is not 0

In output, … matches any text. A command that ends in & runs until the end of the page. The port 8787 is replaced by a free one.
Blocks in other languages (`text`, `json`) are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sessile import __version__
from sessile.agents.registry import AGENTS
from sessile.cli.command import run

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.S | re.M)
_SHELL = re.compile(r"[|<>;&$`*]")
_PORT = "8787"
_PATIENCE = 60.0  # seconds for a program to start; a busy machine is slow


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    name: str
    text: str


class Command(NamedTuple):
    """One command of a console block, the output lines that the page shows, and its exit code."""

    words: str
    lines: list[str]
    code: int


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that are run, written or compared."""
    found = [Block(language, name, text) for language, name, text in _BLOCK.findall(page.read_text())]
    return [block for block in found if block.name or block.language in ("python", "output", "console")]


def commands_of(block: str) -> Iterator[Command]:
    """Yield the commands of a console block."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        words, *lines = part.rstrip("\n").split("\n")
        codes = [int(line.removeprefix("# exit ")) for line in lines if line.startswith("# exit ")]
        yield Command(words, [line for line in lines if not line.startswith("# exit ")], codes[0] if codes else 0)


class Reader:
    """Runs the blocks of a page in an empty home folder; `demo` is a prepared store with the demo sessions."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, demo: Path | None = None) -> None:
        self._home = home
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._printed = ""
        self._running: list[subprocess.Popen[str]] = []
        for name in [name for name in os.environ if name.startswith(("SESSILE_", "PI_", "CLAUDE_", "CODEX_"))]:
            monkeypatch.delenv(name)
        for name, value in (("HOME", home), ("TMPDIR", home), ("SESSILE_CACHE", home / "cache"), ("NO_COLOR", 1)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if demo is not None:
            shutil.copytree(demo, home / "cache" / f"demo-{__version__}")
        monkeypatch.setattr("tempfile.tempdir", str(home))
        monkeypatch.syspath_prepend(home)
        monkeypatch.chdir(home)

    def follow(self, blocks: list[Block]) -> None:
        """Run the blocks in order."""
        port = _free_port()
        try:
            for block in blocks:
                self._do(block._replace(text=block.text.replace(_PORT, port)))
        finally:
            for process in self._running:
                process.terminate()
                process.wait()
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).startswith(f"{self._home}/"):
                    del sys.modules[name]  # the next page may have a file of that name

    def _do(self, block: Block) -> None:
        if block.name:
            self._write(block.name, block.text)
        elif block.language == "python":
            with _captured() as captured:
                exec(compile(block.text, "<page>", "exec"), self._names)
            self._printed = captured[0]
        elif block.language == "output":
            shown, printed = block.text.splitlines(), self._printed.splitlines()
            assert len(shown) == len(printed) and all(map(_is_shown, shown, printed)), (block.text, self._printed)
        else:
            for command in commands_of(block.text):
                self._run(command)

    def _write(self, name: str, text: str) -> None:
        path = self._home / name.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.name == "pyproject.toml":
            self._install(tomllib.loads(text)["project"])

    def _install(self, project: dict[str, dict[str, dict[str, str]]]) -> None:
        """Write what `pip install -e .` leaves behind: the metadata of the package with its entry points."""
        info = self._home / f"{project['name']}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
        sections = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project.get("entry-points", {}).items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        AGENTS.__dict__.pop("installed", None)

    def _run(self, command: Command) -> None:
        if command.words.endswith("&"):
            self._start(command)
            return
        if command.words.startswith("sessile ") and not _SHELL.search(_unquoted(command.words)):
            with _captured() as captured:
                code = run(shlex.split(command.words)[1:])
            printed = "".join(captured)
        else:
            done = subprocess.run(["sh", "-c", command.words], capture_output=True, text=True, timeout=_PATIENCE)
            code, printed = done.returncode, done.stdout + done.stderr
        assert code == command.code, (command.words, code, printed)
        _compare(command, printed)

    def _start(self, command: Command) -> None:
        log = self._home / f"program-{len(self._running)}.log"
        with open(log, "w") as file:
            words = shlex.split(command.words.removesuffix("&"))
            process = subprocess.Popen(words, stdout=file, stderr=file, text=True)
        self._running.append(process)
        until = time.monotonic() + _PATIENCE
        while missing_lines(command.lines, log.read_text()) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        _compare(command, log.read_text())


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Capture stdout and stderr, in that order. Programs may also write bytes."""
    captured: list[str] = []
    files = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(files[0]), contextlib.redirect_stderr(files[1]):
        yield captured
    captured.extend(file.buffer.getvalue().decode() for file in files)


def _compare(command: Command, printed: str) -> None:
    missing = missing_lines(command.lines, printed)
    assert not missing, (command.words, missing, printed)


def missing_lines(shown: list[str], printed: str) -> list[str]:
    """Return the lines of a page that a program did not print."""
    return [line for line in shown if not any(_is_shown(line, other) for other in printed.splitlines())]


def _is_shown(shown: str, printed: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed) is not None


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def _unquoted(words: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", words)
