"""Mutants against tests: which of them does no test notice?

The tests of a module are collected and run once, and it is noted which of them come into which function. Then each mutant
lives in a forked child, where the code of its function is put in the place of the right one and the tests that come there
are run, the quickest ones first and for a few seconds, until one fails. Faults outside of functions are put in when the
module is imported. A child that takes far too long, or too much memory, has noticed its fault.
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

_LONGEST = 300  # seconds of the clock: a fault may wait for ever
_CPU = 120  # seconds of work in all
_MOST_WORK = 5.0  # seconds that the tests of one mutant may take without a fault
_CPU_OF_A_TEST = 4  # seconds of work beyond twice of what a test takes without a fault
_MEMORY = 4 * 2**30
_NOTICED = 1
_UNNOTICED = 0
_NO_FAULT = ("", "", "")

_OPTIONS = ["-o", "addopts=--import-mode=importlib", "-x", "-s", "-p", "no:terminal", "-p", "no:xdist"]
_OPTIONS += ["-p", "no:cacheprovider", "-m", "not long and not peers"]


def survivors(module: str, source: str, mutants: Sequence[Mutant], tests: Sequence[str], workers: int) -> list[Mutant]:
    """The mutants that no test notices."""
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
    """What is known when the faults in functions were tried: those that nobody noticed, and which tests are quick."""

    alive: list[Mutant]
    quick: list[str]


def _inside(module: str, mutants: Sequence[Mutant], tests: Sequence[str], workers: int, folder: str) -> _Answer:
    """Try the faults in functions; in a child, so that this process never imports what is tested."""
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
    """Children that have a mutant each, a few at a time."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._living: dict[int, Mutant] = {}
        self._survivors: list[Mutant] = []

    def bear(self, mutant: Mutant, life: Callable[[], int]) -> None:
        """Start a child that ends with whether it noticed its fault."""
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
        """Those that nobody noticed, when all are done."""
        while self._living:
            self._bury()
        return self._survivors


# -- faults in functions


class _Session:
    """The pytest session that runs the tests once as they are, and then in a child per mutant."""

    def __init__(self, module: str, mutants: Sequence[Mutant], workers: int) -> None:
        self._module = module
        self._mutants = mutants
        self._workers = workers
        self._comes_to: dict[str, set[str]] = {}
        self._seconds: dict[str, float] = {}
        self.alive: list[Mutant] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note which functions a test comes into, and how long it takes."""
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
        """All tests once, then the right ones for each mutant."""
        run_tests(session)
        items = {item.nodeid: item for item in session.items}
        nursery = _Nursery(self._workers)
        for mutant in self._mutants:
            names = self.quick(self._comes_to.get(mutant.function, ()))
            nursery.bear(mutant, partial(self._run, session, mutant, [items[name] for name in names]))
        self.alive = nursery.survivors()
        return True

    def quick(self, names: Iterable[str] | None = None) -> list[str]:
        """Of these tests, or of all, the quickest first, as many as may run for one mutant."""
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
    """Ends a process in which a test does far more work than it should."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Wind it up anew."""
        signal.setitimer(signal.ITIMER_PROF, _CPU_OF_A_TEST + 2 * self._seconds[item.nodeid])


def _patch(module: ModuleType, mutant: Mutant) -> None:
    """Give a function the code of its mutant, wherever it is held already."""
    assert module.__file__ is not None
    code = compile(mutant.source, module.__file__, "exec", dont_inherit=True)
    wanted = {part.co_qualname: part for part in _codes(code)}
    gc.unfreeze()  # else functions that are known since before the tests are not among the objects
    found = False
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == module.__file__:
            new = wanted.get(thing.__code__.co_qualname)
            if new is not None and new.co_freevars == thing.__code__.co_freevars:
                thing.__code__, found = new, True
    assert found, "a mutant that is put nowhere cannot be noticed"
    _forget_answers(module)


def _forget_answers(module: ModuleType) -> None:
    """Make cached functions run again."""
    for thing in vars(module).values():
        if isinstance(thing, functools._lru_cache_wrapper):
            thing.cache_clear()


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


# -- faults outside of functions


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
