"""A browser for page tests: Debian's chromium, without network access."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from browser_window import Open, Opened, Windows
from page_rig import served_demo

expect.set_options(timeout=30_000)  # generous for a busy machine; a passing check does not wait

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # no wider scope: while it is open, no other event loop can run in this process
def browser() -> Iterator[Browser]:
    """Return one browser for the tests of a module."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def windows(browser: Browser) -> Iterator[Windows]:
    """Return windows that the tests of a module reuse."""
    made = Windows(browser)
    yield made
    made.close()


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a gateway with the demo sessions, shared by all tests here."""
    with served_demo(tmp_path_factory.mktemp("demo")) as address:
        yield address


@pytest.fixture
def opened(windows: Windows, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens an offline window with the options of a browser context."""
    with ExitStack() as stack:
        numbers = count(1)

        def open_window(**options: Any) -> Opened:
            window = stack.enter_context(windows.window(Opened, **{"offline": True} | options))
            window.path = tmp_path / f"session-{next(numbers)}.html"
            return window

        yield open_window
