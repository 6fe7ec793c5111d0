"""The log of turns: waiting turns are durable, running ones are noted, and finished ones leave no file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.failing import FaultyFilesystem, ShortWrite
from sessile.errors import InvalidId, StorageFull, UnsafePath
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.turn_log import TurnLog

pytestmark = [pytest.mark.mission("Y13"), pytest.mark.promise("P41")]

ONE, OTHER, THIRD = (f"0198c0de-0000-7000-8000-00000000000{number}" for number in (1, 2, 3))


def log_in(root: Path) -> TurnLog:
    return TurnLog(PosixFilesystem(), str(root))


def file_of(root: Path, session_id: str = ONE) -> Path:
    return root / "gateway" / "turns" / f"{session_id}.jsonl"


def begun_in(root: Path) -> Path:
    return root / "gateway" / "turns" / "begun.log"


def test_nothing_is_left_where_nobody_ever_spoke(tmp_path: Path) -> None:
    """Neither reading nor opening creates a folder."""
    assert log_in(tmp_path).left() == []
    assert list(tmp_path.iterdir()) == []


def test_what_was_noted_and_kept_is_found_by_the_next_one_in_its_order(tmp_path: Path) -> None:
    """Turns are returned in order for each session, with any text."""
    log = log_in(tmp_path)
    log.note(ONE, {"name": "a"})
    log.keep(OTHER, {"name": "x", "text": "line\nbreak\u2028 and 🦔"})
    log.keep(ONE, {"name": "b", "text": "later"})
    assert log_in(tmp_path).left() == [
        (ONE, [{"name": "a"}, {"name": "b", "text": "later"}]),
        (OTHER, [{"name": "x", "text": "line\nbreak\u2028 and 🦔"}]),
    ]


def test_only_what_waits_is_synced(tmp_path: Path) -> None:
    """Waiting turns sync the file and its name; a running turn syncs only the new folder."""
    fs = FaultyFilesystem(PosixFilesystem())
    log = TurnLog(fs, str(tmp_path))
    log.note(ONE, {"name": "a"})

    def synced_by(act: Callable[[], None]) -> list[str]:
        fs.calls.clear()
        act()
        return [call.method for call in fs.calls if call.method.startswith("sync")]

    assert synced_by(lambda: log.note(ONE, {"name": "b"})) == []
    assert synced_by(lambda: log.keep(ONE, {"name": "c", "text": ""})) == ["sync", "sync_directory"]


def test_the_file_goes_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    """The file stays if another turn is waiting; a missing file is not an error."""
    log = log_in(tmp_path)
    log.keep(ONE, {"name": "a", "text": ""})
    log.forget(ONE, unless=lambda: True)
    assert file_of(tmp_path).exists()
    log.forget(ONE)
    assert not file_of(tmp_path).exists() and log.left() == []
    log.forget(ONE)
    log.keep(ONE, {"name": "b", "text": ""})
    assert [turn["name"] for _, turns in log.left() for turn in turns] == ["b"]


def test_a_turn_costs_one_write_which_also_tells_which_others_have_ended(tmp_path: Path) -> None:
    """While other turns run, a turn needs no open, create or delete."""
    fs = FaultyFilesystem(PosixFilesystem())
    log = TurnLog(fs, str(tmp_path))
    log.note(OTHER, {"name": "x"})
    fs.calls.clear()
    log.note(ONE, {"name": "a"})
    log.forget(ONE)
    assert [call.method for call in fs.calls] == ["write"]
    log.note(THIRD, {"name": "b"})
    assert [call.method for call in fs.calls] == ["write", "write"]
    assert log_in(tmp_path).left() == [(OTHER, [{"name": "x"}]), (THIRD, [{"name": "b"}])]
    log.forget(THIRD)
    log.forget(OTHER)
    assert log_in(tmp_path).left() == [] and begun_in(tmp_path).read_bytes() == b""


def test_the_file_of_turns_that_begin_does_not_grow_for_ever(tmp_path: Path) -> None:
    """The file is rewritten with the running turns, even if turns never stop."""
    log = log_in(tmp_path)
    log.note(OTHER, {"name": "long"})
    for number in range(3_000):
        log.note(ONE, {"name": f"turn {number}"})
        log.forget(ONE)
    assert begun_in(tmp_path).stat().st_size < 200_000
    log.note(ONE, {"name": "last"})
    assert log_in(tmp_path).left() == [(ONE, [{"name": "last"}]), (OTHER, [{"name": "long"}])]


def test_a_log_that_is_closed_leaves_a_file_only_if_something_is_under_way(tmp_path: Path) -> None:
    """A running turn stays in the file after closing, and the next log can finish it."""
    log = log_in(tmp_path)
    log.close()
    log.note(ONE, {"name": "a"})
    log.close()
    again = log_in(tmp_path)
    assert again.left() == [(ONE, [{"name": "a"}])]
    again.forget(ONE)
    assert log_in(tmp_path).left() == []
    again.close()
    assert os.listdir(tmp_path / "gateway" / "turns") == []


@pytest.mark.parametrize(
    "torn", [b'\n{"session": "', b"\0\0\0", b'\n{"session": 7, "turn": {}}', b'\n{"turn": {"name": 1}}']
)
def test_a_torn_note_is_passed_over(tmp_path: Path, torn: bytes) -> None:
    """The turns before and after it are returned."""
    log = log_in(tmp_path)
    log.note(ONE, {"name": "a"})
    with begun_in(tmp_path).open("ab") as file:
        file.write(torn)
    log.note(OTHER, {"name": "x"})
    assert [session_id for session_id, _ in log_in(tmp_path).left()] == [ONE, OTHER]


def test_whoever_comes_while_the_file_goes_has_a_new_one(tmp_path: Path) -> None:
    """Checking for waiting turns and removing the file is atomic."""
    log = log_in(tmp_path)
    log.note(ONE, {"name": "a"})
    come = threading.Thread(target=log.keep, args=(ONE, {"name": "b", "text": ""}))

    def nobody_yet() -> bool:
        come.start()
        come.join(0.05)
        return False

    log.forget(ONE, unless=nobody_yet)
    come.join()
    assert log.left() == [(ONE, [{"name": "b", "text": ""}])]


@pytest.mark.parametrize(
    "torn",
    [b'\n{"name": "b", "te', b"\n\0\0\0\0", b"\0\0\0\0", b"}", b"\n[1]", b"\n7", b"\n\xff\xfe", b"\n{}x", b"[" * 9999],
)
def test_a_torn_line_is_passed_over_and_the_next_stands_on_its_own(tmp_path: Path, torn: bytes) -> None:
    """The torn turn was never acknowledged; the turns before and after it are returned."""
    log = log_in(tmp_path)
    log.keep(ONE, {"name": "a", "text": ""})
    with file_of(tmp_path).open("ab") as file:
        file.write(torn)
    log.keep(ONE, {"name": "c", "text": ""})
    ((_, turns),) = log_in(tmp_path).left()
    assert [turn["name"] for turn in turns] == ["a", "c"]


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    """Other names in the folder are ignored."""
    log = log_in(tmp_path)
    log.note(ONE, {"name": "a"})
    for name in ("..jsonl", "a b.jsonl", f"{ONE}.jsonl.bak", "notes.txt"):
        (tmp_path / "gateway" / "turns" / name).write_text('{"name": "x"}')
    before = sorted(os.listdir(tmp_path / "gateway" / "turns"))
    assert [session_id for session_id, _ in log.left()] == [ONE]
    assert sorted(os.listdir(tmp_path / "gateway" / "turns")) == before


def test_a_session_that_is_none_has_no_file(tmp_path: Path) -> None:
    """An id is part of a path, so it is validated."""
    for bad in ("../up", "", "a/b"):
        with pytest.raises(InvalidId):
            log_in(tmp_path).note(bad, {"name": "a"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("written", [0, 1, 12])
def test_what_could_not_be_kept_is_not_in_the_file(tmp_path: Path, written: int) -> None:
    """A refused turn must not run after a restart; other turns in the file stay."""
    log_in(tmp_path).keep(ONE, {"name": "a", "text": ""})
    before = file_of(tmp_path).read_bytes()
    disk = FaultyFilesystem(PosixFilesystem(), plan=[ShortWrite(written=written)])
    full = TurnLog(disk, str(tmp_path))
    with pytest.raises(StorageFull) as refused:
        full.keep(ONE, {"name": "b", "text": "much"})
    assert refused.value.path == str(file_of(tmp_path))
    assert file_of(tmp_path).read_bytes() == before
    disk.heal()
    full.keep(ONE, {"name": "b", "text": "much"})
    ((_, turns),) = log_in(tmp_path).left()
    assert [turn["name"] for turn in turns] == ["a", "b"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """The error has the path."""
    (tmp_path / "gateway").write_text("in the way")
    with pytest.raises(UnsafePath) as told:
        log_in(tmp_path).note(ONE, {"name": "a"})
    assert told.value.path == str(tmp_path / "gateway")
