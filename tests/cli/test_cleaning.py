"""`sessile du`, `prune`, `trash`, `undo`, `check`, `repair`, `doctor`."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sessile import Store, check
from sessile.errors import StorageFailure
from sessile.upkeep.check import Report
from sessions import plant

from .conftest import Command, at_a_terminal

WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"
DAMAGED = "00cc10cc-5ab0-489f-af4d-84a229bf234e"


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.jsonl"))}


@pytest.mark.mission("B6")
def test_prune_shows_first_and_undo_brings_back(sessile: Command, demo: Path) -> None:
    """Nothing moves without --apply; pruned sessions go to the trash and are restored unchanged."""
    before = _files(demo)
    shown = sessile("prune", "--older-than", "40d")
    assert shown.code == 0 and "--apply" in shown.err and _files(demo) == before
    done = sessile("prune", "--older-than", "40d", "--apply", "--json").json
    assert done["applied"] and len(done["tokens"]) == len(done["items"]) > 2
    assert len(_files(demo / "sessions")) < len(before)
    listed = sessile("trash", "--json").json["items"]
    assert {item["token"] for item in listed} == set(done["tokens"])
    assert sessile("undo").code == 0
    assert len(_files(demo)) < len(before)
    again = sessile("undo", "-n", str(len(done["tokens"])))
    assert again.code == 0 and f"only {len(done['tokens']) - 1} deletions" in again.err
    assert _files(demo) == before
    assert sessile("undo").code == 3


def test_what_check_could_not_read_is_in_its_code_and_its_document(
    sessile: Command, demo: Path, tmp_path: Path
) -> None:
    """Sound sessions exit with 0 and list no failures; damaged and unreadable ones exit with 5."""
    good = next(path for path in demo.rglob(f"*{WEBHOOK}.jsonl"))
    done = sessile("check", WEBHOOK, str(good), "--json")
    assert done.code == 0 and done.json["failed"] == [] and len(done.json["items"]) == 2
    (tmp_path / "no.jsonl").write_bytes(b"")
    assert sessile("check", str(tmp_path / "no.jsonl"), WEBHOOK).code == 5
    assert sessile("secrets", DAMAGED).code == 5


@pytest.mark.parametrize("names", [(WEBHOOK, DAMAGED), (DAMAGED, WEBHOOK)])
def test_the_worst_that_check_met_is_its_code_in_whatever_order(
    sessile: Command, demo: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """A disk failure ranks above a damaged session."""

    def checked(store: Store, path: str, **options: Any) -> Report:
        if WEBHOOK in path:
            raise StorageFailure("the disk has failed", path=path)
        return check(store, path, **options)

    monkeypatch.setattr("sessile.cli.health.check", checked)
    assert sessile("check", *names).code == StorageFailure.exit_code != sessile("check", DAMAGED).code


@pytest.mark.promise("P45")
def test_check_names_a_wrong_cache_and_removes_it(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The session counts as sound, and the next list is right."""
    time.sleep(0.1)  # files that have just changed are read again the next time
    before = sessile("ls", "--json").json["items"]
    plant(tmp_path / "cache", "UPDATE sessions SET title = 'planted'")
    assert "planted" in sessile("ls").out
    done = sessile("check", "--all")
    assert "the catalog did not match the file, and was removed (title: 'planted' instead of" in done.out
    assert "wrong caches removed" in done.err
    assert sessile("ls", "--json").json["items"] == before
    assert "did not match" not in sessile("check", "--all").out


def test_pinned_and_recent_sessions_are_always_spared(sessile: Command, demo: Path) -> None:
    """They are spared by every rule, and the reason is printed."""
    sessile("pin", WEBHOOK)
    plan = sessile("prune", "--older-than", "1d", "--json").json
    assert WEBHOOK not in [item["id"] for item in plan["items"]]
    assert {"why": "pinned"}.items() <= next(item for item in plan["spared"] if item["id"] == WEBHOOK).items()
    with Store(demo).create("/work/new", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
        fresh = session.id
    done = sessile("rm", fresh, "--apply", "--json").json
    assert done["items"] == [] and done["spared"][0]["why"] in ("recent", "open")
    assert sessile("show", fresh).code == 0


def test_a_session_that_was_just_used_goes_if_it_is_named_with_recent(sessile: Command, demo: Path) -> None:
    """A recent session is skipped with a hint to --recent, which works for named sessions only."""
    name = sessile("fork", WEBHOOK, "--json").json["id"]
    spared = sessile("rm", name, "--apply")
    assert "skipped: 1 used within the last day; pass --recent to include them" in spared.err and spared.code == 1
    assert sessile("rm", name, "--recent", "--apply", "--json").json["items"][0]["id"] == name
    assert sessile("undo").code == 0 and sessile("show", name).code == 0
    assert "name the sessions to prune" in sessile("prune", "--empty", "--recent").err


def test_a_session_is_removed_by_name_and_restored_by_token(sessile: Command, demo: Path) -> None:
    """`rm` changes nothing without --apply, and the end of the token is enough to restore."""
    before = _files(demo)
    assert sessile("rm", "terraform drift").code == 0
    assert _files(demo) == before
    (token,) = sessile("rm", "terraform drift", "--apply", "--json").json["tokens"]
    assert sessile("show", "terraform drift").code == 3
    assert sessile("trash", "restore", token[-12:]).code == 0
    assert _files(demo) == before


def test_emptying_the_trash_shows_first(sessile: Command, demo: Path) -> None:
    """Nothing is deleted without --apply, and --older-than spares recent deletions."""
    sessile("rm", "terraform drift", "--apply")
    assert sessile("trash", "empty").code == 0
    assert len(sessile("trash", "--json").json["items"]) == 1
    assert sessile("trash", "empty", "--older-than", "30d", "--apply").code == 1  # too recent
    assert sessile("trash", "empty", "--apply").code == 0
    assert sessile("trash").code == 1


@pytest.mark.promise("P54")
def test_erasing_shows_its_plan_and_asks(sessile: Command, demo: Path) -> None:
    """Without a terminal or --yes nothing is erased; at a terminal the answer counts; afterwards nothing is left."""
    name = sessile("show", "terraform drift", "--json").json["id"]
    refused = sessile("erase", name)
    assert refused.code == 7 and name in refused.out and "--yes" in refused.err
    assert sessile("erase", name, "--json").json["erased"] is False
    assert "nothing was erased" in at_a_terminal(["erase", name], {}, "n\n")
    assert sessile("show", name).code == 0
    assert "erased:" in at_a_terminal(["erase", name], {}, "y\n")
    assert sessile("show", name).code == 3 and sessile("undo").code == 3
    assert not [path for path in demo.rglob("*") if name in path.name]
    assert sessile("erase", name, "--yes").code == 3


@pytest.mark.promise("P47")
def test_originals_are_proposed_by_age_and_number(sessile: Command, demo: Path) -> None:
    """The limits come from the configuration; nothing moves without --apply."""
    folder = demo / "originals"
    folder.mkdir()
    for number in range(12):
        (folder / f"x.jsonl.{int(time.time() * 1000) + number}-abcdef").write_text("x" * number)
    assert len(sessile("prune", "--originals", "--json").json["items"]) == 2
    (demo / "config.toml").write_text("[originals]\nmaxCopies = 5\n")
    assert len(sessile("prune", "--originals", "--json").json["items"]) == 7
    assert len(list(folder.iterdir())) == 12
    assert sessile("prune", "--originals", "--apply").code == 0 and len(list(folder.iterdir())) == 5
    assert sessile("undo").code == 0 and len(list(folder.iterdir())) == 12


def test_other_agents_sessions_are_not_pruned_by_the_way(sessile: Command, home: Path) -> None:
    """A rule applies to the native store; sessions of other agents must be named."""
    with Store(home / ".pi" / "agent", clock=lambda: 1e9).create("/x", title="Theirs", publish=True) as session:
        path = Path(session.path)
    os.utime(path, (1e9, 1e9))
    assert sessile("prune", "--older-than", "1d", "--apply").code == 1
    assert path.exists()


def test_disk_use(sessile: Command, demo: Path) -> None:
    """The JSON has the bytes of the store and the sessions, largest first."""
    document = sessile("du", "--json").json
    assert document["store"]["session_bytes"] > 0 and document["total"] >= document["store"]["session_bytes"]
    sizes = [item["size"] for item in document["items"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sessile("du", "--orphans").code == 0


def test_unnamed_blobs_are_swept_to_the_trash(sessile: Command, demo: Path) -> None:
    """An unreferenced blob is shown first and goes to the trash with --apply; without any, the exit code is 1."""
    assert sessile("prune", "--blobs").code == 1
    content = b"no session refers to this" * 100
    orphan = demo / "blobs" / hashlib.sha256(content).hexdigest()
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(content)
    os.utime(orphan, (0, 0))  # long ago: a new blob may belong to an entry that is being written
    assert sessile("prune", "--blobs").code == 0 and orphan.exists()
    assert sessile("prune", "--blobs", "--apply").code == 0 and not orphan.exists()
    assert sessile("undo").code == 0 and orphan.read_bytes() == content


def test_check_says_what_is_wrong_and_changes_nothing(sessile: Command, demo: Path) -> None:
    """Damage exits with code 5 and shows its line; a sound session exits with 0."""
    before = _files(demo)
    done = sessile("check", DAMAGED, "--json")
    assert done.code == 5
    (report,) = done.json["items"]
    (problem,) = [problem for problem in report["problems"] if problem["severity"] == "damage"]
    assert report["bytes_accounted"] == report["size"] and problem["line"] == 8
    assert sessile("check", WEBHOOK).code == 0
    assert sessile("check", "--all").code == 5
    assert _files(demo) == before


def test_repair_shows_first_and_keeps_the_file_as_it_was(sessile: Command, demo: Path) -> None:
    """After the repair there is no damage, and the original bytes are in the reported backup."""
    (path,) = demo.rglob(f"*{DAMAGED}*.jsonl")
    before = path.read_bytes()
    assert sessile("repair", DAMAGED).code == 0 and path.read_bytes() == before
    document = sessile("repair", DAMAGED, "--apply", "--json").json
    assert Path(document["original"]).read_bytes() == before
    assert sessile("check", DAMAGED).code == 0
    assert sessile("repair", DAMAGED, "--apply").code == 0  # nothing left to do


def test_repair_of_another_agents_file_needs_to_be_said(sessile: Command, demo: Path, home: Path) -> None:
    """Without --in-place it exits with code 7."""
    (path,) = demo.rglob(f"*{DAMAGED}*.jsonl")
    foreign = home / "copy.jsonl"
    shutil.copy(path, foreign)
    before = foreign.read_bytes()
    assert sessile("repair", str(foreign), "--apply").code == 7 and foreign.read_bytes() == before
    assert sessile("repair", str(foreign), "--apply", "--in-place").code == 0
    assert sessile("check", str(foreign)).code == 0


def test_doctor_finds_damaged_sessions_and_says_what_to_do(sessile: Command, demo: Path) -> None:
    """Each finding has the command that repairs it."""
    done = sessile("doctor")
    assert done.code == 5
    assert f"sessile repair {DAMAGED}" in done.out and "unreadable line" in done.out
    assert sessile("doctor", WEBHOOK).code == 0


def test_an_unreadable_file_and_folder_are_reported(sessile: Command, demo: Path) -> None:
    """The listing counts an unreadable file, and the doctor names it."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    path.write_bytes(b"\x00" * 100)
    listing = sessile("ls")
    assert "1 unreadable" in listing.err and WEBHOOK not in listing.out
    assert sessile("show", str(path)).code == 5
    assert str(path) in sessile("doctor").out
