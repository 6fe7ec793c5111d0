"""The command as its user runs it: in this process for speed, with a home of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessile import Store, make_demo
from sessile.cli.app import run

NOW = 1_763_200_000.0  # seconds; the demo's sessions lie before it


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its document."""
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an own cache, a plain environment."""
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
    """Runs the command with some arguments."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, written once."""
    root = tmp_path_factory.mktemp("demo") / "root"
    make_demo(Store(root, clock=lambda: NOW))
    return root


@pytest.fixture
def demo(home: Path, demo_root: Path) -> Path:
    """The demo as one's own store, to change at will; without the one of 20,000 entries."""
    root = home / ".sessile"
    shutil.copytree(demo_root, root, ignore=_large)
    return root


def _large(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_file() and (Path(folder) / name).stat().st_size > 2**20]
