"""Rigs on real system calls: strace kills a process, or fails a call, at each system call in turn.

A process is forked and waits until strace is attached. strace counts the calls of each name and strikes at one of them. The
process waits with `readv` and reports with `writev`, which no store uses, so only the work itself is struck. Calls that do not
concern files, such as memory calls, are left out: the disk does not change between two calls on files.
"""

from __future__ import annotations

import copy
import errno
import gc
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from faults.ledger import Ledger, Run, store_on, verify
from faults.playing import END, noted, play, prepared_at
from faults.processes import Child, Tell, fast_folder
from faults.rigs import check_reopening
from faults.scenarios import WITH_UNPROMISED_SYNCS, Act, Scenario, prepared
from sessile.errors import SessileError

CLASSES = "%file,%desc"
OF_THE_RIG = {"readv", "writev", "mmap"}
NEVER_FAILS = {"close", "lseek"}  # Linux always closes, and only a wrong offset makes a seek fail
_CALL = re.compile(r"(?:<\.\.\. )?(\w+)(?:\(| resumed)")
SYNCS = {"fsync", "fdatasync"}
NO_ERROR_OF_SYNCS = {
    errno.EINTR,
    errno.EACCES,
}  # retried, or treated as a folder above the root that we may not open
EXPECTED: dict[int, set[str]] = {
    errno.ENOSPC: {"StorageFull", "SyncFailed"},
    errno.EDQUOT: {"StorageFull", "SyncFailed"},
    errno.EACCES: {
        "PermissionRefused",
        "SyncFailed",
        "SessionNotFound",
    },  # an unreadable file is not listed as a session
    errno.EROFS: {"PermissionRefused", "SyncFailed"},
    errno.EINTR: {"StorageFailure"},  # most interrupted calls are retried without an error
}
REFUSED, NEVER_RETURNED = "(INJECTED)", "= ?"


class SystemCall(NamedTuple):
    """A call: its name, its number among the calls of that name, and the line of strace."""

    name: str
    number: int
    line: str


class Traced(NamedTuple):
    """The reports of a process, its calls, and whether it was struck."""

    told: list[Any]
    calls: list[SystemCall]
    struck: bool


def is_possible() -> bool:
    """Return whether processes can be traced here."""
    if shutil.which("strace") is None:
        return False
    try:
        return [call.name for call in traced(lambda tell: os.stat("/")).calls] == ["newfstatat"]
    except AssertionError:
        return False


def traced(work: Callable[[Tell], object], fault: str | None = None) -> Traced:
    """Run the work of a process under strace, with an optional fault (`write:error=EIO:when=2`)."""
    ready, go = os.pipe()
    gc.collect()  # the process must not close what this one has dropped

    def wait_and_work(tell: Tell) -> None:
        tell("started")
        os.readv(ready, [bytearray(1)])
        work(tell)

    child = Child(wait_and_work)
    child.wait_for_word()  # what a process does before its work must not be traced
    with fast_folder() as folder:
        output = f"{folder}/calls"
        inject = () if fault is None else ("-e", f"inject={fault}")
        command = ["strace", "-s0", "-o", output, "-e", "signal=none", "-e", f"trace={CLASSES}", *inject]
        with subprocess.Popen([*command, "-p", str(child.pid)], stderr=subprocess.PIPE) as strace:
            assert strace.stderr is not None
            heard = strace.stderr.readline()
            if b"attached" not in heard:
                child.kill()
            os.write(go, b"!")
            told = child.finish()[1:]
            strace.stderr.read()
        os.close(ready)
        os.close(go)
        assert b"attached" in heard, f"strace cannot trace: {heard.decode()}"
        with open(output) as file:
            lines = file.read().splitlines()
    calls = list(_parsed(lines))
    return Traced(told, calls, any(line.endswith((REFUSED, NEVER_RETURNED)) for line in lines))


def _parsed(lines: Sequence[str]) -> Iterator[SystemCall]:
    counts: Counter[str] = Counter()
    for line in lines:
        if (match := _CALL.match(line)) is not None and (name := match[1]) not in OF_THE_RIG:
            counts[name] += 1
            yield SystemCall(name, counts[name], line)


class Stage:
    """A folder with a store on which a scenario can be played repeatedly."""

    def __init__(self, folder: str, scenario: Scenario, durability: str = "power") -> None:
        self._root, self._base = f"{folder}/root", f"{folder}/base"
        self._ledger = prepared_at(self._base, scenario)
        self._scenario = scenario
        self._durability = durability
        inner, ledger = prepared(scenario)
        scenario.act(Run(store_on(inner, "/store", 2), ledger))  # so that nothing has to be imported during the run

    def play(self, fault: str | None = None, how: Callable[..., None] = play) -> Traced:
        """Play the scenario once on a fresh copy."""
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(self._base, self._root)
        return traced(
            partial(how, self._root, copy.deepcopy(self._ledger), self._scenario.act, self._durability), fault
        )

    def verify(self, told: list[Any]) -> int:
        """Compare the store with the reports. Return the number of acknowledged entries."""
        ledger = noted(copy.deepcopy(self._ledger), told)
        verify(store_on(None, self._root, 3), ledger)
        return sum(map(len, ledger.texts.values()))


def check_kills(scenario: Scenario, *, step: int = 1, only: Collection[str] = ()) -> tuple[int, int]:
    """Kill before every call in turn. Return the number of kills and of acknowledged entries."""
    kills = acknowledged = 0
    with fast_folder() as folder:
        stage = Stage(folder, scenario)
        for call in [call for call in stage.play().calls if not only or call.name in only][::step]:
            done = stage.play(f"{call.name}:signal={signal.SIGKILL.name}:when={call.number}")
            try:
                assert done.struck, "nobody was killed"
                acknowledged += stage.verify(done.told)
            except Exception as error:
                raise AssertionError(f"{scenario.name}: killed before {call.line}") from error
            kills += 1
    return kills, acknowledged


def play_through(root: str, ledger: Ledger, act: Act, durability: str, tell: Tell) -> None:
    """Play a scenario in which a call fails: our errors are reported, and everything works afterwards."""
    run = Run(store_on(None, root, 2, durability), ledger, tell)
    try:
        act(run)
    except SessileError as error:
        assert error.path is not None, f"{error!r} does not say which file it is about"
        tell(["error", type(error).__name__])
    for session in run.sessions:
        check_reopening(session, store_on(None, root, 5), run)
    tell(END)


def check_errors(
    scenario: Scenario, code: int, *, first: int = 0, step: int = 1, only: Collection[str] = ()
) -> Counter[str]:
    """Fail every call once in turn. Return counts of the calls, the syncs and the names of the errors."""
    counts: Counter[str] = Counter()
    name = errno.errorcode[code]
    with fast_folder() as folder:
        stage = Stage(folder, scenario)
        calls = [call for call in stage.play().calls if call.name not in NEVER_FAILS]
        for call in [call for call in calls if not only or call.name in only][first::step]:
            done = stage.play(f"{call.name}:error={name}:when={call.number}", play_through)
            try:
                assert done.struck and END in done.told, "nothing was refused"
                errors = [event[1] for event in done.told if event[0] == "error"]
                assert set(errors) <= EXPECTED.get(code, set(errors)), f"it was told as {errors}"
                waited = (
                    call.name in SYNCS and code not in NO_ERROR_OF_SYNCS and scenario.name not in WITH_UNPROMISED_SYNCS
                )
                assert errors or not waited, "a failed sync was not told"
                stage.verify([event for event in done.told if event[0] != "error"])
            except Exception as error:
                raise AssertionError(f"{scenario.name}: {name} from {call.line}") from error
            counts.update(["calls", *errors, *(["syncs"] if call.name in SYNCS else [])])
    return counts
