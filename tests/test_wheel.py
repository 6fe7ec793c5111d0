"""A wheel built from a clean copy installs, contains everything, and passes the tests without the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SHORT = ("tests/unit/test_leaf.py", "tests/gateway/test_view_pages.py")
LONG = ("tests/unit", "tests/contract", "tests/property", "tests/gateway/test_api_app.py", "tests/cli/test_reading.py")


class Installed(NamedTuple):
    """An environment with the wheel, and a folder with only the tests."""

    wheel: Path
    python: Path
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python outside the source tree."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        return subprocess.run(
            [self.python, *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


def _tracked() -> list[str]:
    """Return the files of a checkout: those that git tracks or would add."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _copied(names: list[str], folder: Path) -> Path:
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build and install the wheel; other packages come from this environment, and nothing is fetched."""
    place = tmp_path_factory.mktemp("wheel")
    names = _tracked()
    checkout = _copied([name for name in names if not name.startswith("tests/")], place / "checkout")
    # Call the backend directly, because pip would fetch it again.
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=checkout, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    shutil.rmtree(checkout)
    environment = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, "--disable-pip-version-check"], check=True, capture_output=True)
    # Add the packages of this environment without its .pth files, which would add the source tree.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tests = [name for name in names if name.startswith("tests/") or name == "pyproject.toml"]
    return Installed(wheel, python, _copied(tests, place / "tests-only"))


def test_the_wheel_holds_every_file_of_the_package(installed: Installed) -> None:
    """It contains the page, its styles and the marker of types, but no tests or caches."""
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "sessile").rglob("*") if path.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    with zipfile.ZipFile(installed.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = {name.rpartition("/")[2] for name in wheel.namelist() if ".dist-info/" in name}
    assert held == source
    assert {"sessile/py.typed", "sessile/web/page/index.html", "sessile/web/style.css"} <= held
    assert {"METADATA", "entry_points.txt", "LICENSE"} <= metadata


def test_the_installed_command_works_without_the_source_tree(installed: Installed, tmp_path: Path) -> None:
    """It finds its version and the data for the demo, the export and the page."""
    told = installed.run("-c", "import sessile; print(sessile.__file__)")
    assert told.stdout.startswith(str(installed.python.parents[1])), told
    command = [str(installed.python.parent / "sessile"), "--demo"]
    environment = {**os.environ, "HOME": str(tmp_path), "SESSILE_CACHE": str(tmp_path / "cache")}
    for words, expected in (("ls -n 1", "6513270e"), ("export 6513 -t html -o -", "<!doctype html>")):
        done = subprocess.run(
            [*command, *words.split()], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and expected in done.stdout, done


def test_some_tests_pass_on_the_wheel(installed: Installed) -> None:
    """These are tests of sessions on disk and of the gateway's page."""
    _pass(installed, *SHORT)


def test_the_description_needs_no_repository_around_it(installed: Installed) -> None:
    """Every link and picture of the README is absolute, for the page of a package index."""
    with zipfile.ZipFile(installed.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        description = wheel.read(name).decode().partition("\n\n")[2]
    targets = re.findall(r"""(?:\]\(|src="|srcset=")([^)"]+)""", description)
    assert len(targets) > 20 and not [target for target in targets if not target.startswith(("https://", "#"))]


@pytest.mark.long
def test_the_suite_passes_on_the_wheel(installed: Installed) -> None:
    """All tests are run, except those that inspect the source."""
    _pass(installed, *LONG, "-n", "2")


def _pass(installed: Installed, *words: str) -> None:
    done = installed.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long and not peers", *words)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
