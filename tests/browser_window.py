"""Browser windows that record forbidden actions of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request

from sessile.render.page import MAX_PLAIN, html_page
from sessile.render.shown import Transcript

# Runs first in every page and is not restricted by its policy.
WATCH = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

FORGET = "() => { try { localStorage.clear(); sessionStorage.clear(); } catch { /* about:blank has none */ } }"
SIZE = {"width": 1280, "height": 900}
PLAIN = {"color_scheme": "light", "reduced_motion": "no-preference", "forced_colors": "none"}


class Watched:
    """A page in a browser and its forbidden actions; a subclass decides which requests are allowed."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.add_init_script(WATCH)
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def may_ask(self, url: str) -> bool:
        """Return whether the page may request this address."""
        raise NotImplementedError

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not self.may_ask(request.url):
            self.problems.append(f"request: {request.url}")

    def leave(self) -> None:
        """Leave the page and remove its data from the browser."""
        self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        self.problems.clear()

    def found(self) -> list[str]:
        """Return all forbidden actions of the page so far."""
        return [*self.problems, *(f"policy: {one}" for one in self.page.evaluate("window.violations ?? []"))]


W = TypeVar("W", bound=Watched)


class Opened(Watched):
    """An exported session in the browser."""

    path: Path

    def __init__(self, context: BrowserContext) -> None:
        super().__init__(context.new_page())

    def may_ask(self, url: str) -> bool:
        """Allow only the file itself."""
        return url.split("#")[0] == self.url or url.startswith("data:")

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def show(self, transcript: Transcript, whole: int = MAX_PLAIN, anchor: str = "", **options: Any) -> Page:
        """Export a session and open the file."""
        with self.path.open("w", encoding="utf-8") as file:
            file.writelines(html_page(transcript, max_plain=whole))
        if self.page.url != "about:blank":  # an address that differs only in its anchor would not be reloaded
            self.page.goto("about:blank")
        self.page.goto(f"{self.url}{anchor}", **options)
        return self.page


class Windows:
    """Reusable browser windows, because opening one takes longer than most tests.

    There is one for each kind and set of options. A test that changes more than the page, its size, its colours and its
    storage (such as init scripts or routes) needs its own window.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, Any] = {}

    @contextmanager
    def window(self, kind: Callable[..., W], *arguments: Any, **options: Any) -> Iterator[W]:
        """Yield a window in its initial state; the options are those of a browser context."""
        usual: dict[str, Any] = {"viewport": SIZE} | options
        name = f"{kind} {arguments} {sorted(usual.items())}"
        window: W = self._free.pop(name, None) or kind(self._browser.new_context(**usual), *arguments)
        window.page.set_viewport_size(usual["viewport"])
        window.page.emulate_media(**{name: usual.get(name, plain) for name, plain in PLAIN.items()})
        yield window
        window.leave()
        self._free[name] = window

    def close(self) -> None:
        """Close the windows that are not in use."""
        for window in self._free.values():
            window.page.context.close()


Open = Callable[..., Opened]
"""Opens a window; the arguments are options of a browser context."""
