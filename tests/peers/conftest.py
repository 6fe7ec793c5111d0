"""Fixtures of the peer tests: one running peer per package, one empty store per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sessile
from peers.peers import PACKAGES, Peer


@pytest.fixture(scope="session", params=PACKAGES, ids=str)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """Run a pi package that answers questions about files."""
    with Peer(request.param) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> sessile.Store:
    """Return a native store in its own folder."""
    return sessile.Store(str(tmp_path / "root"))
