"""A home of its own for every server."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an own cache, a plain environment."""
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
    """Where a server's stderr goes."""
    return tmp_path / "stderr"
