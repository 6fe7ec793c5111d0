"""`sessile sync`: to a folder and back, what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Command

pytestmark = pytest.mark.mission("B8")


def test_sync_names_what_it_brings_and_is_quiet_the_next_time(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The paths in the target are on stdout; how many there are is told beside it."""
    backup = tmp_path / "backup"
    seen = sessile("sync", str(backup), "--dry-run")
    assert seen.code == 0 and "would be brought to" in seen.err and not backup.exists()
    done = sessile("sync", str(backup))
    assert done.out == seen.out and len(done.out.splitlines()) > 30
    assert all(Path(path).is_file() for path in done.out.splitlines())
    assert sessile("sync", str(backup)) == (0, "", f"nothing is missing in {backup}\n")


def test_sync_brings_back_what_is_missing_here(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A store that was lost comes back from its copy."""
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    sessile("sync", backup)
    done = sessile("--root", restored, "sync", "--from", backup)
    assert done.code == 0 and "new sessions" in done.err
    assert len(sessile("--root", restored, "ls").out.splitlines()) == len(sessile("ls").out.splitlines())


@pytest.mark.parametrize("arguments", [(), ("--from", "X", "X")])
def test_sync_needs_two_stores(sessile: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Which is said before anything is looked at."""
    done = sessile("sync", *(str(tmp_path / name) if name == "X" else name for name in arguments))
    assert done.code == 2 and done.out == "" and "hint: " in done.err


def test_the_password_of_a_database_is_never_shown(sessile: Command) -> None:
    """Nor when it cannot be reached."""
    done = sessile("sync", "postgresql://me:hunter2@127.0.0.1:1/x?connect_timeout=1")
    assert done.code not in (0, 1) and "127.0.0.1:1/x" in done.err
    assert "hunter2" not in done.err + done.out
