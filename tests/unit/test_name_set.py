"""Lists of names in small files, such as pins."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sessile.errors import Damaged
from sessile.storage.atomic import NameSet
from sessile.storage.filesystem import PosixFilesystem


@pytest.fixture
def pins(tmp_path: Path) -> NameSet:
    return NameSet(PosixFilesystem(), str(tmp_path / "root" / "pins.json"))


def test_names_are_kept_in_order_and_once(pins: NameSet) -> None:
    """`add` and `remove` return whether anything changed."""
    assert pins.names() == []
    assert pins.add("b") and pins.add("a")
    assert not pins.add("b")
    assert pins.names() == ["b", "a"]
    assert pins.remove("b") and not pins.remove("b")
    assert pins.names() == ["a"]


def test_many_names_are_added_at_once(pins: NameSet) -> None:
    """Each name is added once, after the existing ones."""
    pins.add("b")
    assert pins.add("a", "b", "c", "a")
    assert pins.names() == ["b", "a", "c"]
    assert not pins.add("c", "b")


@pytest.mark.promise("P28")
def test_the_file_is_nobody_elses_business(pins: NameSet, tmp_path: Path) -> None:
    """The folder has mode 0700 and the file 0600, whatever the umask."""
    before = os.umask(0)
    try:
        pins.add("a")
    finally:
        os.umask(before)
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "root" / "pins.json").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_read_is_reported_and_never_overwritten(pins: NameSet, tmp_path: Path) -> None:
    """The user has made a mistake while editing it."""
    pins.add("a")
    path = tmp_path / "root" / "pins.json"
    path.write_text('["a", oops')
    with pytest.raises(Damaged, match="not a JSON array"):
        pins.add("b")
    assert path.read_text() == '["a", oops'


def test_two_at_a_time_lose_nothing(pins: NameSet) -> None:
    """The list is read and replaced under a lock."""
    threads = [threading.Thread(target=lambda who=who: [pins.add(f"{who}{n}") for n in range(20)]) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pins.names()) == 40
