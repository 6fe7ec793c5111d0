"""Modules import only lower layers, and only the storage layer touches the machine."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sessile"
MODULES = sorted(SOURCE.rglob("*.py"))

# Each layer may import itself and the ones before it.
LAYERS = ["errors", "core", "render", "vendors", "storage", "agents", "package", "upkeep", "surface"]
SURFACE = {"adapters", "aio", "cli", "gateway", "mcp", "testing", "__main__", "__init__"}

# The standard library modules that a layer may use; `os` in the package is for paths and defaults only.
MACHINE = {"fcntl", "mmap", "os", "pathlib", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile"}
MACHINE |= {"obstore", "psycopg", "psycopg_pool"}
IMPURE = MACHINE | {"asyncio", "logging", "random", "secrets", "threading", "time", "uuid"}
ALLOWED = {"store.py": {"os", "time"}, "discovery.py": {"os", "time"}}


def layer_of(name: str) -> str:
    first = name.removeprefix("sessile").lstrip(".").split(".")[0]
    if first in LAYERS:
        return first
    return "surface" if first in SURFACE or not first else "package"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports at run time, without imports for type checking."""
    nodes = list(ast.walk(parsed(path)))
    for_types = {
        id(node)
        for block in nodes
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: list[str] = []
    for node in nodes:
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def name_of(path: Path) -> str:
    return "sessile." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def where(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_a_module_imports_only_its_own_layer_and_those_below() -> None:
    """errors ← core ← render, vendors, storage ← agents ← the package ← upkeep ← surfaces."""
    above = [
        f"{where(path)} may not import {name}"
        for path in MODULES
        for name in imports(path)
        if name.startswith("sessile.") and LAYERS.index(layer_of(name)) > LAYERS.index(layer_of(name_of(path)))
    ]
    # `Session.in_memory` creates a store, and imports it when called.
    assert above == []


def test_only_storage_touches_the_machine() -> None:
    """core/ is pure; the package accesses files through the storage layer."""
    used = []
    for path in MODULES:
        forbidden = {
            "core": IMPURE,
            "errors": IMPURE,
            "render": IMPURE,
            "agents": MACHINE,
            "upkeep": MACHINE,
            "package": MACHINE - ALLOWED.get(path.name, set()),
        }.get(layer_of(name_of(path)), set())
        taken = {name.split(".")[0] for name in imports(path)} & forbidden
        used += [f"{where(path)} may not import {name}" for name in sorted(taken)]
    assert used == []


def test_a_module_says_what_it_is_for() -> None:
    """Each module starts with a docstring."""
    texts = {where(path): path.read_text() for path in MODULES}
    silent = [where(path) for path in MODULES if texts[where(path)].strip() and not ast.get_docstring(parsed(path))]
    assert silent == []


def test_nothing_is_caught_without_a_name() -> None:
    """There is no bare `except`, and a handler of all exceptions raises again, except the one that isolates turns."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}:{node.lineno}"
                if isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"):
                    if path.relative_to(SOURCE).as_posix() == "gateway/turns/engine.py" and node.type.id == "Exception":
                        continue
                    assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), f"{path}:{node.lineno}"
