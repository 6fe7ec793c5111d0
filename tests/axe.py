"""axe-core for tests of pages, fetched once from the npm registry into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

VERSION = "4.14.0"
FOLDER = Path(__file__).parent.parent / ".cache" / "axe"
GRAVE = ("serious", "critical")
OF_COLOUR = ("color-contrast", "link-in-text-block")  # rules whose result depends on colours

RUN = """async ([rules, part]) => {
  const chosen = rules && { runOnly: { type: "rule", values: rules } };
  const { violations } = await axe.run(part ?? document, { resultTypes: ["violations"], ...chosen });
  return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) =>
    `${node.target.join(" ")} · ${[...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ")}`) }));
}"""


def axe_script() -> str:
    """Return the source of axe-core; without npm or its registry the test is skipped with the reason."""
    path = FOLDER / f"axe-{VERSION}.min.js"
    if not path.exists():
        _fetch(path)
    return path.read_text(encoding="utf-8")


def _fetch(path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("ACCESSIBILITY IS NOT CHECKED: axe-core comes from npm, and there is no npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        command = [npm, "pack", "--silent", "--pack-destination", folder, f"axe-core@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
        if done.returncode != 0:
            pytest.skip(f"ACCESSIBILITY IS NOT CHECKED: axe-core cannot be fetched: {done.stderr.strip()[-300:]}")
        with tarfile.open(Path(folder) / f"axe-core-{VERSION}.tgz") as package:
            member = package.extractfile("package/axe.min.js")
            assert member is not None
            written = Path(folder) / path.name
            written.write_bytes(member.read())
        os.replace(written, path)  # another process may fetch it at the same time


def grave_findings(page: Page, script: str, rules: tuple[str, ...] | None = None, part: str | None = None) -> list[str]:
    """Return serious and critical findings of axe on a page or a part of it, with their places.

    The default rules are used unless `rules` is given.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(script)
    found: list[dict[str, Any]] = page.evaluate(RUN, [rules, part])
    return [
        f"{one['id']} ({one['impact']}): {node}" for one in found if one["impact"] in GRAVE for node in one["nodes"]
    ]
