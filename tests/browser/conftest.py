"""A browser for tests of pages: Debian's chromium, without network."""

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

expect.set_options(timeout=30_000)  # others may use the machine; it is waited for no longer than needed

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
def windows(browser: Browser) -> Iterator[Windows]:
    """Windows that the tests of a module use one after the other."""
    made = Windows(browser)
    yield made
    made.close()


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway with the made-up sessions, one for all tests here; what they change disturbs no other."""
    with served_demo(tmp_path_factory.mktemp("demo")) as address:
        yield address


@pytest.fixture
def opened(windows: Windows, tmp_path: Path) -> Iterator[Open]:
    """Opens a window without network, with the options of a browser context."""
    with ExitStack() as stack:
        numbers = count(1)

        def open_window(**options: Any) -> Opened:
            window = stack.enter_context(windows.window(Opened, **{"offline": True} | options))
            window.path = tmp_path / f"session-{next(numbers)}.html"
            return window

        yield open_window
