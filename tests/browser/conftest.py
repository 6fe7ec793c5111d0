"""A browser for tests of pages: Debian's chromium, without network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from browser_window import Open, Opened
from page_rig import served_demo

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # not longer: while it lives, nothing else in this process can run an event loop
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway with the made-up sessions, one for the tests of a module."""
    with served_demo(tmp_path_factory.mktemp("demo")) as address:
        yield address


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a window of its own, with the options of a browser context."""
    contexts = []

    def open_window(**options: Any) -> Opened:
        usual: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "offline": True}
        context = browser.new_context(**usual | options)
        contexts.append(context)
        return Opened(context.new_page(), tmp_path / f"session-{len(contexts)}.html")

    yield open_window
    for context in contexts:
        context.close()
