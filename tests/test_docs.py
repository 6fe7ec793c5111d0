"""The documents: examples run, links lead somewhere, lists and tests agree."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference import pages
from sessile.cli.app import run

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = [page for page in PAGES if "```python" in page.read_text()]
COMMANDS = [page for page in PAGES if "```console" in page.read_text()]
PROMISE = re.compile(r"^\| (P\d+) \|.*\| ([^|]*) \|$", re.M)
MISSION = re.compile(r"^\| ([XCMYB]\d+) \| ([^|]*) \| ([^|]*) \|", re.M)


def marks(kind: str) -> dict[str, set[str]]:
    """Every id that a test is marked with, and the files of these tests."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == kind:
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        name = str(path.relative_to(ROOT / "tests"))
                        found.setdefault(str(argument.value), set()).add(name)
    return found


def named_in(cell: str) -> Iterator[str]:
    return iter(re.findall(r"`([\w/]+\.py)`", cell))


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page, one after the other, in an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_on_the_demo(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each prints the lines that the page shows, where … stands for anything, and ends with the code that it says, or 0."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SESSILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    for command, lines, code in commands(page):
        capsys.readouterr()
        assert run(shlex.split(command)[1:]) == code, command
        printed = capsys.readouterr()
        for line in lines:
            pattern = ".*".join(map(re.escape, line.split("…")))
            assert re.search(f"^{pattern}$", printed.out + printed.err, re.M), (command, line, printed)


def commands(page: Path) -> Iterator[tuple[str, list[str], int]]:
    """The commands of a page, what each prints, and its exit code."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.S):
        for part in block.split("$ ")[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            codes = [int(line.removeprefix("# exit ")) for line in lines if line.startswith("# exit ")]
            yield command, [line for line in lines if not line.startswith("# exit ")], codes[0] if codes else 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every relative link names a file or folder of the repository."""
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_reference_is_up_to_date() -> None:
    """`python tests/reference.py` would change nothing."""
    for path, text in pages().items():
        assert path.read_text() == text, path.name


def test_every_promise_has_a_test_and_every_marked_test_a_promise() -> None:
    """docs/explanation/promises.md and the marks in the tests say the same."""
    marked = marks("promise")
    listed = dict(PROMISE.findall((ROOT / "docs/explanation/promises.md").read_text()))
    assert set(marked) == set(listed)
    for promise, cell in listed.items():
        assert set(named_in(cell)) <= marked[promise], promise


def test_every_line_of_the_mission_that_is_done_has_a_test() -> None:
    """docs/mission.md lists all ids; those that are called done name tests that are marked with them."""
    marked = marks("mission")
    rows = MISSION.findall((ROOT / "docs/mission.md").read_text())
    assert len(rows) == len({row[0] for row in rows}) == 72
    for mission, state, cell in rows:
        if state.strip() == "done":
            named = set(named_in(cell))
            assert named and named <= marked.get(mission, set()), mission
        else:
            assert state.strip() in ("open", "begun"), mission
    assert set(marked) <= {row[0] for row in rows}
