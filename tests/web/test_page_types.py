"""The page's modules: type checks, one function that parses HTML, and one that sends requests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "sessile" / "web" / "page"
CACHE = ROOT / ".cache" / "typescript"
COMPILER = Path("node_modules", "typescript", "bin", "tsc")
OPTIONS = (
    *("--checkJs", "--allowJs", "--noEmit", "--strict", "--target", "es2023", "--module", "esnext"),
    *("--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable,dom.asynciterable"),
)
# Ways to turn a string into elements, styles or code.
DOORS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|srcdoc|DOMParser|\beval\b|new Function"
    r"|setHTML|EventSource|\.cssText|javascript:"
)


EXPORT = PAGE.parent / "export.js"


def modules() -> list[Path]:
    return sorted(PAGE.rglob("*.js"))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the TypeScript compiler, installed once into the repository's cache."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("THE TYPES OF THE PAGE ARE NOT CHECKED: needs node and npm")
    if not (CACHE / COMPILER).exists():
        made = tmp_path_factory.mktemp("typescript")
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(made), "typescript@5"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            pytest.skip("THE TYPES OF THE PAGE ARE NOT CHECKED: npm cannot install typescript")
        CACHE.parent.mkdir(exist_ok=True)
        shutil.copytree(made, CACHE, dirs_exist_ok=True)
    return CACHE / COMPILER


def test_the_types_of_the_page_hold(compiler: Path) -> None:
    """All modules pass TypeScript's strict checks."""
    files = [str(path) for path in (*modules(), EXPORT)]
    assert len(files) > 15
    checked = subprocess.run(["node", str(compiler), *OPTIONS, *files], capture_output=True, text=True, timeout=120)
    assert checked.stdout == "" and checked.returncode == 0


@pytest.mark.promise("P36")
def test_one_function_makes_elements_of_a_string() -> None:
    """Only `fragment` in dom.js turns a string into elements, and no module runs a string as code."""
    found = [
        (path.name, line.strip())
        for path in modules()
        for line in path.read_text("utf-8").splitlines()
        if DOORS.search(line) and "srcdoc$" not in line
    ]
    assert found == [("dom.js", found[0][1])] and "DOMParser" in found[0][1]


@pytest.mark.promise("P35")
def test_only_one_module_asks_anything_and_only_the_gateway() -> None:
    """Only api.js sends requests, and no module contains another address."""
    texts = {path.name: path.read_text("utf-8") for path in modules()}
    asking = [name for name, text in texts.items() if re.search(r"\bfetch\(|XMLHttpRequest|sendBeacon|WebSocket", text)]
    assert asking == ["api.js"]
    assert not [name for name, text in texts.items() if re.search(r"""["'`](https?:)?//""", text)]
