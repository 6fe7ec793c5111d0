"""Every store keeps the numbered behaviours of `StoreContract`: in a folder and in memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sessile import Store
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.store_contract import OpenStore, StoreContract

pytestmark = [pytest.mark.mission("X14"), pytest.mark.mission("B8")]


class TestFolder(StoreContract):
    """A store in a folder."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: Store(tmp_path / "store", durability="process", patience=2.0)

    @pytest.fixture
    def outside(self, tmp_path: Path) -> str:
        return str(tmp_path / "outside")


class TestMemory(StoreContract):
    """A store in memory, shared through its file system."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        fs = MemoryFilesystem(clock=time.time_ns)
        return lambda: Store("/store", fs=fs, durability="process", patience=2.0)

    @pytest.fixture
    def outside(self) -> str:
        return "/outside"
