"""Run the tests of a module against its mutants, and find the mutants that no test notices.

The tests are collected and run once, to record which functions each test calls. Then each mutant runs in a forked child, where
its code replaces that of its function. The tests that call the function run, the fastest first and for a few seconds, until one
fails. Faults outside functions are applied when the module is imported. A child that takes far too much time or memory has
noticed its fault.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

import pytest
from _pytest.main import pytest_runtestloop as run_tests

from mutation.mutants import Mutant

_LONGEST = 300  # seconds of wall-clock time: a fault may block forever
_CPU = 120  # seconds of CPU time in total
_MOST_WORK = 5.0  # seconds that the tests of one mutant may take without a fault
_CPU_OF_A_TEST = 4  # seconds of CPU time beyond twice the time of a test without a fault
_MEMORY = 4 * 2**30
_NOTICED = 1
_UNNOTICED = 0
_NO_FAULT = ("", "", "")

_OPTIONS = ["-o", "addopts=--import-mode=importlib", "-x", "-s", "-p", "no:terminal", "-p", "no:xdist"]
_OPTIONS += ["-p", "no:cacheprovider", "-m", "not long and not peers"]


def survivors(module: str, source: str, mutants: Sequence[Mutant], tests: Sequence[str], workers: int) -> list[Mutant]:
    """Return the mutants that no test notices."""
    outside = [mutant for mutant in mutants if not mutant.runs]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        answer = _inside(module, [mutant for mutant in mutants if mutant.runs], tests, workers, folder)
        nursery = _Nursery(workers)
        for number, mutant in enumerate(outside and [Mutant("", False, "", "", source), *outside]):
            nursery.bear(
                mutant, partial(_run_imported, module, mutant, [f"--basetemp={folder}/{number}", *answer.quick])
            )
        found = nursery.survivors()
    if outside and not any(mutant.name == _NO_FAULT for mutant in found):
        raise SystemExit(f"the tests of {module} fail without a fault")
    return [*(mutant for mutant in found if mutant.name != _NO_FAULT), *answer.alive]


class _Answer(NamedTuple):
    """The unnoticed faults in functions, and the fast tests."""

    alive: list[Mutant]
    quick: list[str]


def _inside(module: str, mutants: Sequence[Mutant], tests: Sequence[str], workers: int, folder: str) -> _Answer:
    """Test the faults in functions, in a child, so that this process never imports the tested module."""
    told = f"{folder}/answer"
    if not (pid := os.fork()):
        try:
            plugin = _Session(module, mutants, workers)
            if not pytest.main([*_OPTIONS, f"--basetemp={folder}/inside", *tests], plugins=[plugin]):
                answer = [[mutants.index(mutant) for mutant in plugin.alive], plugin.quick()]
                Path(told).write_text(json.dumps(answer))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not Path(told).exists():
        raise SystemExit(f"the tests of {module} fail without a fault")
    numbers, quick = json.loads(Path(told).read_text())
    return _Answer([mutants[number] for number in numbers], quick)


class _Nursery:
    """Children with one mutant each, a few at a time."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._living: dict[int, Mutant] = {}
        self._survivors: list[Mutant] = []

    def bear(self, mutant: Mutant, life: Callable[[], int]) -> None:
        """Start a child whose exit status shows whether it noticed its fault."""
        while len(self._living) >= self._workers:
            self._bury()
        sys.stdout.flush()
        if pid := os.fork():
            self._living[pid] = mutant
            return
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        signal.alarm(_LONGEST)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        code = _NOTICED
        try:
            code = life()
        finally:
            os._exit(code)

    def _bury(self) -> None:
        pid, status = os.wait()
        if (mutant := self._living.pop(pid, None)) and os.WIFEXITED(status) and os.WEXITSTATUS(status) == _UNNOTICED:
            self._survivors.append(mutant)

    def survivors(self) -> list[Mutant]:
        """Wait for all children and return the unnoticed mutants."""
        while self._living:
            self._bury()
        return self._survivors


# -- faults in functions


class _Session:
    """A pytest plugin that runs the tests once unchanged, and then in a child per mutant."""

    def __init__(self, module: str, mutants: Sequence[Mutant], workers: int) -> None:
        self._module = module
        self._mutants = mutants
        self._workers = workers
        self._comes_to: dict[str, set[str]] = {}
        self._seconds: dict[str, float] = {}
        self.alive: list[Mutant] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record which functions a test calls, and how long it takes."""
        path = sys.modules[self._module].__file__
        seen: set[str] = set()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename == path:
                seen.add(frame.f_code.co_qualname)

        _forget_answers(sys.modules[self._module])
        began = time.process_time()
        sys.setprofile(note)
        yield
        sys.setprofile(None)
        self._seconds[item.nodeid] = time.process_time() - began
        for name in seen:
            self._comes_to.setdefault(name.split(".<locals>")[0], set()).add(item.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, then the relevant ones for each mutant."""
        run_tests(session)
        items = {item.nodeid: item for item in session.items}
        nursery = _Nursery(self._workers)
        for mutant in self._mutants:
            names = self.quick(self._comes_to.get(mutant.function, ()))
            nursery.bear(mutant, partial(self._run, session, mutant, [items[name] for name in names]))
        self.alive = nursery.survivors()
        return True

    def quick(self, names: Iterable[str] | None = None) -> list[str]:
        """Return the fastest of these tests, or of all, as many as may run for one mutant."""
        chosen, work = [], 0.0
        for name in sorted(self._seconds if names is None else names, key=lambda name: (self._seconds[name], name)):
            work += self._seconds[name]
            if work > _MOST_WORK:
                break
            chosen.append(name)
        return chosen

    def _run(self, session: pytest.Session, mutant: Mutant, items: list[pytest.Item]) -> int:
        plugins = session.config.pluginmanager
        plugins.unregister(self)
        plugins.register(_Clock(self._seconds))
        _patch(sys.modules[self._module], mutant)
        session.items = items
        try:
            run_tests(session)
        except session.Failed:
            return _NOTICED
        return _NOTICED if session.testsfailed else _UNNOTICED


class _Clock:
    """End a process in which a test takes far more CPU time than it should."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Restart the timer."""
        signal.setitimer(signal.ITIMER_PROF, _CPU_OF_A_TEST + 2 * self._seconds[item.nodeid])


def _patch(module: ModuleType, mutant: Mutant) -> None:
    """Replace the code of a function by that of its mutant, wherever it is referenced."""
    assert module.__file__ is not None
    code = compile(mutant.source, module.__file__, "exec", dont_inherit=True)
    wanted = {part.co_qualname: part for part in _codes(code)}
    gc.unfreeze()  # otherwise functions that were frozen before the tests are missing from the objects
    found = False
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == module.__file__:
            new = wanted.get(thing.__code__.co_qualname)
            if new is not None and new.co_freevars == thing.__code__.co_freevars:
                thing.__code__, found = new, True
    assert found, "a mutant that is put nowhere cannot be noticed"
    _forget_answers(module)


def _forget_answers(module: ModuleType) -> None:
    """Clear the caches of cached functions."""
    for thing in vars(module).values():
        if isinstance(thing, functools._lru_cache_wrapper):
            thing.cache_clear()


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


# -- faults outside functions


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, mutant: Mutant) -> None:
        self._module = module
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        return importlib.util.spec_from_loader(fullname, _Loader(fullname, spec.origin, self._mutant))


def _run_imported(module: str, mutant: Mutant, tests: Sequence[str]) -> int:
    sys.meta_path.insert(0, _Finder(module, mutant))
    return _NOTICED if pytest.main([*_OPTIONS, *tests]) else _UNNOTICED
