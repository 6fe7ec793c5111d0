"""A separate home for every server."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder with its own cache and a clean environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("XDG_DATA_HOME", "PI_CODING_AGENT_DIR", "PI_CONFIG_DIR", "SESSILE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SESSILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file for a server's stderr."""
    return tmp_path / "stderr"
