"""Fixtures of the peer tests: one running peer a package, one empty store a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sessile
from peers.peers import PACKAGES, Peer


@pytest.fixture(scope="session", params=PACKAGES, ids=str)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A pi package that answers questions about files."""
    with Peer(request.param) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> sessile.Store:
    """A store of ours in a folder of its own."""
    return sessile.Store(str(tmp_path / "root"))
