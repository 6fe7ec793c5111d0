"""Windows of a browser that note everything that a page must not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Dialog, Page, Request

from sessile.core.transcript import Transcript
from sessile.render.page import WHOLE, html_page

# Runs before everything else in a page, and is not bound by its policy.
WATCH = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


class Watched:
    """A page in a browser, and everything that it did and must not do. Whom it may ask is what a subclass says."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.add_init_script(WATCH)
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def may_ask(self, url: str) -> bool:
        """Whether the page may ask for this address."""
        raise NotImplementedError

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not self.may_ask(request.url):
            self.problems.append(f"request: {request.url}")

    def found(self) -> list[str]:
        """Everything that the page did and should not have done, until now."""
        return [*self.problems, *(f"policy: {one}" for one in self.page.evaluate("window.violations ?? []"))]


class Opened(Watched):
    """An exported session in the browser."""

    def __init__(self, page: Page, path: Path) -> None:
        super().__init__(page)
        self.path = path

    def may_ask(self, url: str) -> bool:
        """Only itself."""
        return url.split("#")[0] == self.url or url.startswith("data:")

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


Open = Callable[..., Opened]
"""Opens a window; the arguments are options of a browser context."""
