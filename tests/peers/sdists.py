"""The peers' own test suites: pinned source distributions, run unmodified with our class in place of theirs.

Rules: packages are fetched by name and version only, and a machine that cannot fetch them skips with the reason. A
suite runs in its own process with an empty home, against the frameworks of this environment; a plugin, which is a
module of this folder, replaces the class before a test is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from peers.peers import CACHE, HERE, INSTALL_SECONDS

SUITE_SECONDS = 1800
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)\b")


class Outcome(NamedTuple):
    """The number of passed tests, the other tests, and the output."""

    passed: int
    failed: list[str]
    text: str


def unpacked(name: str, version: str) -> Path:
    """Return the folder of a source distribution; skip the test with the reason if it cannot be fetched."""
    target = CACHE / f"{name}-{version}-sdist"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".sdist-") as folder:
            fresh = _fetched(f"{name}=={version}", Path(folder))
            if not target.exists():  # otherwise another run was faster
                fresh.rename(target)
    return target


def _fetched(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", requirement]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{requirement} cannot be downloaded: {error.stderr.strip()[-500:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"downloading {requirement} took more than {INSTALL_SECONDS} s")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "in", filter="data")
    (fresh,) = (folder / "in").iterdir()
    return fresh


def run_suite(
    suite: Path,
    tests: Sequence[str],
    *,
    plugin: str | None,
    options: Sequence[str] = (),
    home: Path,
    python: str = sys.executable,
    **environment: str,
) -> Outcome:
    """Run some tests of a suite; `plugin` is a module of this folder, `None` runs them unchanged."""
    paths = os.pathsep.join((str(HERE), str(HERE.parents[1] / "src")))
    plugins = ["-p", "no:cacheprovider", *(() if plugin is None else ("-p", plugin))]
    command = [python, "-m", "pytest", "-q", "-ra", *plugins, *options, *tests]
    done = subprocess.run(
        command,
        cwd=suite,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
    )
    lines = done.stdout.splitlines()
    counts = {what: int(number) for number, what in _COUNT.findall(lines[-1] if lines else "")}
    failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return Outcome(counts.get("passed", 0), failed, done.stdout + done.stderr)
