"""`sessile sync`: copying to a folder and back, its output, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile import Store

from .conftest import Command

pytestmark = pytest.mark.mission("B8")

WEBHOOK = "6513270e"


def test_sync_names_what_it_brings_and_is_quiet_the_next_time(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The copied paths are on stdout; a dry run lists the same, and a second run copies nothing."""
    backup = tmp_path / "backup"
    seen = sessile("sync", str(backup), "--dry-run")
    assert seen.code == 0 and "would be copied to" in seen.err and not backup.exists()
    done = sessile("sync", str(backup))
    assert done.out == seen.out and len(done.out.splitlines()) > 30
    assert all(Path(path).is_file() for path in done.out.splitlines())
    assert sessile("sync", str(backup)) == (0, "", f"{backup} is up to date\n")


def test_a_folder_that_is_not_there_has_nothing_to_bring(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A missing source folder is an error, so that a mistyped backup is not taken for a restored one."""
    for arguments in (
        ("--from", str(tmp_path / "nowhere")),
        (str(tmp_path / "a"), "--from", str(tmp_path / "nowhere")),
    ):
        done = sessile("sync", *arguments)
        assert done.code == 3 and "store not found" in done.err and "up to date" not in done.err
    assert not (tmp_path / "nowhere").exists() and not (tmp_path / "a").exists()


def test_sync_never_says_that_nothing_is_missing_where_it_failed(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A rewritten copy is an error, and the failures are counted whether or not others were copied."""
    backup = tmp_path / "backup"
    sessile("sync", str(backup))
    (copy,) = backup.rglob(f"*{WEBHOOK}*.jsonl")
    copy.write_bytes(copy.read_bytes().replace(b'"role":"user"', b'"role":"user","mine":true', 1))
    failed = f"1 session could not be copied to {backup}\n"
    for options in ((), ("--dry-run",)):
        done = sessile("sync", str(backup), *options)
        assert done.code == 6 and "rewritten" in done.err
        assert "up to date" not in done.err and done.err.endswith(failed)
    with Store(demo).create("/work/new", publish=True):
        pass
    done = sessile("sync", str(backup))
    assert done.code == 6 and "1 new session" in done.err and done.err.endswith(failed)


def test_sync_brings_back_what_is_missing_here(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A lost store is restored from its copy."""
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    sessile("sync", backup)
    done = sessile("--root", restored, "sync", "--from", backup)
    assert done.code == 0 and "new sessions" in done.err
    assert len(sessile("--root", restored, "ls").out.splitlines()) == len(sessile("ls").out.splitlines())


@pytest.mark.parametrize("arguments", [(), ("--from", "X", "X")])
def test_sync_needs_two_stores(sessile: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """The command exits with code 2 and a hint."""
    (tmp_path / "X").mkdir()
    done = sessile("sync", *(str(tmp_path / name) if name == "X" else name for name in arguments))
    assert done.code == 2 and done.out == "" and "hint: " in done.err


def test_the_password_of_a_database_is_never_shown(sessile: Command) -> None:
    """The error of an unreachable database shows its address without the password."""
    done = sessile("sync", "postgresql://me:hunter2@127.0.0.1:1/x?connect_timeout=1")
    assert done.code not in (0, 1) and "127.0.0.1:1/x" in done.err
    assert "hunter2" not in done.err + done.out
