"""Measure the code base: `python tests/house.py`, or `make house`.

Prints modules, lines, repeated names, modules with one importer, public names, late imports, and the number of source
files that common operations use. Each operation runs in a new process under a profiler. `tests/test_house.py` checks
the limits.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "sessile"
UNLIMITED = ("agents", "adapters", "tui")  # packages with one folder or file for each supported thing

# Prelude of the traced operations: a profiler that records every source file whose functions are called.
_TRACE = """
import os, sys, threading
ours, passed = os.path.join("src", "sessile") + os.sep, set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and ours in code.co_filename and code.co_flags & 1:  # not the body of a module or class
        passed.add(code.co_filename.partition(ours)[2])
def start():
    threading.setprofile(note); sys.setprofile(note)
def stop():
    sys.setprofile(None); threading.setprofile(None); print(*sorted(passed))
"""
_SESSION = """
from sessile import Store
store = Store(sys.argv[1])
session = store.create("/work")
for number in range(20):
    session.append_message({"role": "user", "content": f"question {number}"})
    session.append_message({"role": "assistant", "content": [{"type": "text", "text": "answer"}]})
"""
_OPERATIONS = {
    "append": _SESSION
    + """
start()
session.append_message({"role": "user", "content": "one more"})
stop()
""",
    "context": _SESSION
    + """
start()
session.context()
stop()
""",
    "ls": """
from sessile.cli.main import main
sys.argv = ["sessile", "ls"]
start()
try:
    main()
except SystemExit:
    pass
sys.stdout = sys.__stdout__
stop()
""",
    "search": """
from sessile.cli.main import main
sys.argv = ["sessile", "search", "question"]
start()
try:
    main()
except SystemExit:
    pass
sys.stdout = sys.__stdout__
stop()
""",
    "turn": """
import anyio
from zoneinfo import ZoneInfo
from sessile import Store
from sessile.config import load_config
from sessile.gateway.service import make_gateway
from sessile.gateway.turns.turn import Message
async def talk():
    gateway = make_gateway(Store(sys.argv[1]), load_config(b"{}", "config.json").config, zone=ZoneInfo("UTC"), sources=())
    async with anyio.create_task_group() as tasks:
        await tasks.start(gateway.run)
        await (await gateway.turns.send(Message(text="hello", source="main"))).wait()
        passed.clear()
        await (await gateway.turns.send(Message(text="again", source="main"))).wait()
        stop()
        tasks.cancel_scope.cancel()
start()  # before the threads of the gateway
anyio.run(talk)
""",
}


class House(NamedTuple):
    """The measured figures."""

    modules: int
    limited: int
    lines: int
    repeated: dict[str, int]
    single: list[str]
    public: int
    late: list[str]
    passed: dict[str, list[str]]
    loaded: list[str]

    @property
    def of_gateway(self) -> list[str]:
        """Return the gateway's files that a turn uses; the rest is an append and a context."""
        return [name for name in self.passed["turn"] if name.startswith("gateway/")]


def measure() -> House:
    """Measure everything."""
    files = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    trees = {path: ast.parse(path.read_text()) for path in [*files, *PACKAGE.rglob("__init__.py")]}
    names = Counter(path.stem for path in files if "agents" not in path.relative_to(PACKAGE).parts)
    with tempfile.TemporaryDirectory() as folder:
        passed = {name: _passed(name, code, folder) for name, code in _OPERATIONS.items()}
        loaded = _loaded(folder)
    return House(
        modules=len(files),
        limited=sum(path.relative_to(PACKAGE).parts[0] not in UNLIMITED for path in files),
        lines=sum(path.read_text().count("\n") for path in trees),
        repeated={name: count for name, count in sorted(names.items()) if count > 1},
        single=_single(files, trees),
        public=_public(),
        late=_late(trees),
        passed=passed,
        loaded=loaded,
    )


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def _single(files: list[Path], trees: dict[Path, ast.Module]) -> list[str]:
    """Return modules that are imported only by one module of their own package."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    importers[target].add(_name(path))
    found = []
    for path in files:
        name = _name(path)
        users = importers[name] - {name}
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]:
            found.append(f"{name} ({next(iter(users))})")
    return found


def _late(trees: dict[Path, ast.Module]) -> list[str]:
    """Return imports inside functions. Agents and adapters are loaded on demand, so theirs do not count."""
    found = set()
    for path, tree in trees.items():
        if path.relative_to(PACKAGE).parts[0] in UNLIMITED:
            continue
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found |= {
                    f"{path.relative_to(PACKAGE)}:{node.lineno}"
                    for node in ast.walk(function)
                    if isinstance(node, (ast.Import, ast.ImportFrom))
                }
    return sorted(found)


def _public() -> int:
    code = "import sessile; print(len(sessile.__all__))"
    return int(_run(code, environment=dict(os.environ)))


def _run(code: str, *arguments: str, environment: dict[str, str]) -> str:
    environment = {**environment, "PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if run.returncode:
        raise RuntimeError(run.stderr)
    return run.stdout


def _environment(folder: str) -> dict[str, str]:
    home = os.path.join(folder, "home")
    return {**os.environ, "HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "SESSILE_ROOT": f"{home}/.sessile"}


def _passed(name: str, code: str, folder: str) -> list[str]:
    environment = _environment(folder)
    root = environment["SESSILE_ROOT"] if name in ("ls", "search") else os.path.join(folder, name)
    if name in ("ls", "search"):  # warm: the catalog is up to date
        _run("import sys" + _SESSION, root, environment=environment)
        _run(_TRACE + code, root, environment=environment)
    return _run(_TRACE + code, root, environment=environment).splitlines()[-1].split()


def _loaded(folder: str) -> list[str]:
    """Return the modules that a warm `sessile ls` loads in addition to a bare interpreter."""
    shown = "print(*sorted(sys.modules), file=sys.__stdout__)"
    bare = _run(f"import atexit, sys; {shown}", environment=_environment(folder))
    code = f"import sys, atexit\natexit.register(lambda: {shown})\n" + _OPERATIONS["ls"].replace("start()", "").replace(
        "stop()", ""
    )
    full = _run(code, environment=_environment(folder))
    return sorted(set(full.splitlines()[-1].split()) - set(bare.split()))


def report(house: House) -> Iterator[str]:
    """Yield the figures as lines of text."""
    yield f"{house.modules} modules, {house.limited} of them outside of {', '.join(UNLIMITED)}; {house.lines} lines"
    yield f"{len(house.repeated)} repeated names outside of agents/: " + ", ".join(
        f"{name} ({count})" for name, count in house.repeated.items()
    )
    yield f"{len(house.single)} modules with one importer, in their own package:"
    yield from (f"    {name}" for name in house.single)
    yield f"{house.public} public names"
    yield f"{len(house.late)} late imports"
    for name, files in house.passed.items():
        yield f"{name} passes through {len(files)} files: {' '.join(files)}"
    yield f"a turn passes through {len(house.of_gateway)} files of the gateway"
    ours = sum(name.startswith("sessile") for name in house.loaded)
    yield f"a warm `sessile ls` loads {len(house.loaded)} modules, {ours} of them ours"


if __name__ == "__main__":
    print("\n".join(report(measure())))
