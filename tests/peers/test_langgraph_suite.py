"""LangGraph's own tests and those of its SQLite saver have the same results with our saver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from peers.peers import CACHE, INSTALL_SECONDS
from peers.sdists import Outcome, run_suite, unpacked

pytestmark = [pytest.mark.peers, pytest.mark.mission("B9")]

LANGGRAPH = "1.2.20"
SQLITE = "3.1.2"
PLUGIN = "langgraph_suite_plugin"

# Requirements of the two suites and of Sessile: they do not run in the environment of our own tests.
PACKAGES = [
    f"langgraph=={LANGGRAPH}",
    "langgraph-checkpoint==4.3.1",
    "langgraph-checkpoint-conformance==0.0.2",
    "langgraph-checkpoint-postgres==3.2.0",
    f"langgraph-checkpoint-sqlite=={SQLITE}",
    *("httpx", "msgspec", "psycopg[binary,pool]", "pycryptodome", "redis", "uvloop==0.22.1", "zstandard"),
    *("pytest", "pytest-asyncio", "pytest-mock", "pytest-repeat", "pytest-retry", "pytest-xdist", "syrupy"),
]

ABOUT_SQL = [
    # expects async calls on the sync saver to fail; ours supports both
    "tests/test_sqlite.py::TestSqliteSaver::test_informative_async_errors",
    # expects unsafe filter names to be refused; ours has no SQL, and such a name matches nothing
    "tests/test_sqlite.py::TestSqliteSaver::test_checkpoint_search_sql_injection_prevention",
    # treats filter names as SQLite JSON paths ("user.level"); in LangGraph they are plain names
    "tests/test_sqlite.py::TestSqliteSaver::test_metadata_filter_keys_with_hyphens_and_digits",
    # inspects SQLite's query plan
    "tests/test_delta_parent_walk.py::test_walk_step_looks_up_the_parent_by_primary_key",
]
SAVER_TESTS = [
    "tests/test_aiosqlite.py",
    "tests/test_conformance_delta.py",
    "tests/test_delta_channel_migration.py",
    "tests/test_delta_parent_walk.py",
    "tests/test_get_delta_channel_history.py",
    "tests/test_sqlite.py",
]


@pytest.fixture(scope="module")
def python() -> str:
    """Return the Python of the suites' environment; skip the test with the reason if it cannot be created."""
    target = CACHE / f"langgraph-{LANGGRAPH}"
    if not (target / "ready").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        run = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
        for command in ([sys.executable, "-m", "venv", "--clear", str(target)], run):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"LangGraph {LANGGRAPH} cannot be installed: {error.stderr.strip()[-500:]}")
            except subprocess.TimeoutExpired:
                pytest.skip(f"installing LangGraph {LANGGRAPH} took more than {INSTALL_SECONDS} s")
        (target / "ready").touch()
    return str(target / "bin" / "python")


def suite_of(name: str, version: str, target: Path) -> Path:
    """Copy the tests of a source distribution without its sources, which would shadow the package."""
    source = unpacked(name, version)
    shutil.copytree(source / "tests", target / "tests")
    shutil.copy(source / "pyproject.toml", target)
    return target


def test_the_tests_of_the_sqlite_saver_end_alike(tmp_path: Path, python: str) -> None:
    """All tests of a saver are run; one fails with both, because the published kit lacks a feature it needs."""
    suite = suite_of("langgraph_checkpoint_sqlite", SQLITE, tmp_path / "suite")
    options = [f"--deselect={name}" for name in ABOUT_SQL]
    theirs, ours = (
        run_suite(suite, SAVER_TESTS, plugin=plugin, options=options, home=tmp_path, python=python)
        for plugin in (None, PLUGIN)
    )
    assert (ours.failed, ours.passed) == (theirs.failed, theirs.passed), ours.text[-3000:]
    assert ours.passed >= 27, ours.text[-3000:]


def test_the_tests_of_langgraph_end_alike(tmp_path: Path, python: str) -> None:
    """More than a thousand tests use a SQLite saver: plain, encrypted and async, with every durability."""
    suite = suite_of("langgraph", LANGGRAPH, tmp_path / "suite")

    def run(plugin: str | None, tests: Sequence[str], *options: str) -> Outcome:
        plain = ["-o", "addopts=", "--snapshot-warn-unused", *options]
        return run_suite(suite, tests, plugin=plugin, options=plain, home=tmp_path, python=python, NO_DOCKER="true")

    theirs, ours = (run(plugin, ["tests"], "-n", "2", "-k", "sqlite") for plugin in (None, PLUGIN))
    assert ours.passed >= 1_000, ours.text[-3000:]
    # Some tests expect tasks that sleep ten milliseconds to end in order, which may need a retry on a busy machine.
    doubtful = [line.split()[1] for line in {*ours.failed} - {*theirs.failed}]
    again = run(PLUGIN, doubtful) if doubtful else None
    assert again is None or not again.failed, again.text[-3000:]
