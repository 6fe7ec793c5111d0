"""Every file system keeps the numbered behaviours of `FilesystemContract`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crashing import CrashableFilesystem
from faults.failing import FaultyFilesystem
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem, RootedFilesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import FilesystemContract


class TestPosixFilesystem(FilesystemContract):
    """The files of this machine."""

    @pytest.fixture
    def filesystem(self) -> Filesystem:
        return PosixFilesystem()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestRootedFilesystem(FilesystemContract):
    """The files of a store: below its root, in an existing folder."""

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> Filesystem:
        return RootedFilesystem(str(tmp_path))

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        (tmp_path / "some" / "folder").mkdir(parents=True)
        return str(tmp_path / "some" / "folder")


class TestMemoryFilesystem(FilesystemContract):
    """The files of an in-memory session."""

    @pytest.fixture
    def filesystem(self) -> Filesystem:
        return MemoryFilesystem()

    @pytest.fixture
    def root(self, filesystem: Filesystem) -> str:
        filesystem.mkdir("/root")
        return "/root"


class TestCrashableFilesystem(TestMemoryFilesystem):
    """The files of a crash test."""

    @pytest.fixture
    def filesystem(self) -> Filesystem:
        return CrashableFilesystem()


class TestFaultyFilesystemWithoutFaults(TestMemoryFilesystem):
    """A fault injector with an empty plan behaves like its inner file system."""

    @pytest.fixture
    def filesystem(self) -> Filesystem:
        return FaultyFilesystem(MemoryFilesystem())
