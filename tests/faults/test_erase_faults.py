"""Rig: an erasure that is killed anywhere is finished by the next writer, or has not begun."""

from __future__ import annotations

import os
import shutil
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from erasing import Everything, grep
from faults.failing import FaultyFilesystem, Kill, Killed
from faults.processes import Child, Tell, fast_folder, killed_after
from figures import measured
from sessile import Store
from sessile.erase import pending
from sessile.storage.filesystem import RootedFilesystem
from sessions import CWD

END = "end"
LONGEST = 0.1  # maximum lifetime of a process in seconds, once it has begun


class Stage:
    """A folder with everything, erased again and again."""

    def __init__(self, folder: str) -> None:
        self.base, self.place = f"{folder}/base", Path(f"{folder}/place")
        self.place.mkdir()
        self.everything = Everything(self.place)
        shutil.copytree(self.place, self.base)

    def reset(self) -> None:
        """Put everything back."""
        shutil.rmtree(self.place)
        shutil.copytree(self.base, self.place)

    def erase(self, tell: Tell, *, at: int | None = None) -> None:
        """Erase the session, and die before call number `at`."""
        plan = [] if at is None else [Kill(at=at)]
        root = str(self.everything.root)

        class Telling(RootedFilesystem):
            """Tells when the record is written."""

            def rename(self, source: str, target: str) -> None:  # type: ignore[override]
                super().rename(source, target)
                if target.endswith(".plan"):
                    tell("begun")

        store = Store(root, cache=self.everything.cache, fs=FaultyFilesystem(Telling(root), plan=plan))
        try:
            store.erase(self.everything.id, confirm=True)
            tell(END)
        except Killed:
            os._exit(0)

    def check(self) -> bool:
        """Let the next writer finish. Return whether the erasure had begun."""
        made = self.everything
        begun = (made.root / "erased").exists() and any((made.root / "erased").iterdir())
        if not begun or not any(name.suffix in (".plan", ".json") for name in (made.root / "erased").iterdir()):
            store = Store(made.root, cache=made.cache)
            with store.open(made.path, readonly=True) as session:
                assert len(session.get_entries()) == 4
            assert len(grep(made.root)) > 10
            return False
        next_writer = Store(made.root, cache=made.cache)
        with next_writer.create(CWD, publish=True) as session:
            pass
        assert pending(next_writer) == []
        os.unlink(session.path)
        made.check()
        return True


def check_calls(step: int) -> tuple[int, int]:
    """Kill before calls of an erasure in turn. Return the numbers of kills and of erasures that were finished."""
    kills = finished = 0
    with fast_folder() as folder:
        stage = Stage(folder)
        for number in count(1, step):
            stage.reset()
            told = Child(partial(stage.erase, at=number)).finish()
            try:
                finished += stage.check()
            except BaseException as error:
                raise AssertionError(f"killed before call {number}") from error
            if END in told:
                break
            kills += 1
    measured("P54", "erasures killed before calls", kills=kills, finished=finished, traces=0)
    return kills, finished


@pytest.mark.promise("P54")
def test_an_erasure_killed_before_some_calls_is_finished_by_the_next_writer() -> None:
    """A record is written first, so the next writer knows what is left to do."""
    kills, finished = check_calls(step=97)
    assert kills > 3 and finished > 1


@pytest.mark.promise("P54")
@pytest.mark.long
@pytest.mark.parametrize("step", [3])
def test_an_erasure_killed_before_any_call_is_finished_by_the_next_writer(step: int) -> None:
    """The long form strikes at every third call."""
    kills, finished = check_calls(step)
    assert kills > 50 and finished > 20


def check_random(kills: int, seed: int) -> int:
    """Kill erasures at random moments. Return how many had begun."""
    rng = Random(seed)
    begun = 0
    with fast_folder() as folder:
        stage = Stage(folder)
        for _ in range(kills):
            stage.reset()
            killed_after(rng.uniform(0, LONGEST), stage.erase)  # after the record was written
            begun += stage.check()
    measured("P54", "erasures killed at random", kills=kills, begun=begun, traces=0)
    return begun


@pytest.mark.promise("P54")
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.long)])
def test_erasures_killed_at_random_are_finished(kills: int) -> None:
    """After kill -9, also in the middle of SQLite's work, no trace stays once the next writer is done."""
    assert check_random(kills, seed=kills) == kills
