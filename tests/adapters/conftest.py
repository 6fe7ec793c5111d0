"""The stores that every adapter is tested on, and a function that runs the command on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessile import Store
from sessile.cli.command import run

Look = Callable[..., str]


@pytest.fixture(params=["folder", "memory", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return an empty store of each kind."""
    if request.param == "memory":
        yield Store.in_memory()
    elif request.param == "folder":
        yield Store(tmp_path / "root", durability="process")
    else:
        with Store(request.getfixturevalue("postgres_url"), durability="process") as store:
            yield store


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    """Return an empty store in a folder, for tests that need files, other processes or the command."""
    return Store(tmp_path / "root", durability="process")


@pytest.fixture
def look(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Look:
    """Return a function that runs `sessile` on the store of `folder` and returns its output."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SESSILE_ROOT", folder.layout.root)
    monkeypatch.setenv("SESSILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(home)

    def call(*arguments: str) -> str:
        capsys.readouterr()
        code = run(list(arguments))
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return call
