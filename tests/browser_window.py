"""A window of a browser that shows an exported session, and notes everything that a page must not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from sessile.core.transcript import Transcript
from sessile.render.page import WHOLE, html_page

# Runs before everything else in a page, and is not bound by its policy.
WATCH = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


class Opened:
    """A page in the browser, and what it did that it should not."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.path = path
        self.problems: list[str] = []
        page.add_init_script(WATCH)
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self._request(request.url))

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        if url.split("#")[0] != self.url and not url.startswith("data:"):
            self.problems.append(f"request: {url}")

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def show(self, transcript: Transcript, whole: int = WHOLE, anchor: str = "", **options: Any) -> Page:
        """Export a session and open the file."""
        with self.path.open("w", encoding="utf-8") as file:
            file.writelines(html_page(transcript, whole=whole))
        self.page.goto("about:blank")  # so that an address that differs only in its anchor is loaded anew
        self.page.goto(f"{self.url}{anchor}", **options)
        return self.page

    def found(self) -> list[str]:
        """Everything that the page did and should not have done, until now."""
        return [*self.problems, *(f"policy: {one}" for one in self.page.evaluate("window.violations"))]


Open = Callable[..., Opened]
"""Opens a window; the arguments are options of a browser context."""
