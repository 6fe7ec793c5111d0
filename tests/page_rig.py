"""The pages of a gateway in a browser: the demo behind a real server, and windows that record forbidden actions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from browser_window import SIZE, Watched
from http_rig import BEARER, TOKEN, served
from sessile import Store
from sessile.demo.corpus import bind_demo, make_demo

WEBHOOKS = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"  # a session of the demo: three branches, a compaction, an image


class Sight(NamedTuple):
    """A view: a page, the keys to press after it has loaded, and the part that they open, if any."""

    path: str
    keys: tuple[str, ...] = ()
    part: str | None = None


SESSION = f"/s/{WEBHOOKS}"
SIGHTS = {
    "overview": Sight("/"),
    "sessions": Sight("/sessions"),
    "session": Sight(SESSION),
    "session with all of it": Sight(SESSION, ("4", "o")),
    "session as the model saw it": Sight(SESSION, ("G", "s")),
    "session with details": Sight(SESSION, ("i",), ".drawer"),
    "session with a label dialog": Sight(SESSION, ("m",), "dialog"),
    "help": Sight(SESSION, ("?",), "dialog"),
    "palette": Sight("/", ("Control+k",), "dialog"),
    "diff": Sight(f"{SESSION}?branch=deadbee1&vs=9f31c2a0"),
    "search": Sight("/search?q=retry"),
    "stats": Sight("/stats?since=90d"),
    "share": Sight(f"/share/{WEBHOOKS}?personal=true"),
    "gateway": Sight("/gateway"),
    "missing session": Sight("/s/nowhere"),
    "token": Sight("/"),  # opened without it
}


class Visitor(Watched):
    """A window on the pages of one gateway."""

    def __init__(self, context: BrowserContext, address: str, token: str = TOKEN) -> None:
        super().__init__(context.new_page())
        self.address = address
        self.token = token
        self.asked: list[Request] = []
        context.on("page", lambda page: self.problems.append(f"window: {page.url}"))
        context.on("request", lambda request: self.asked.append(request))

    def may_ask(self, url: str) -> bool:
        """Allow only the gateway itself."""
        return url.startswith((f"{self.address}/", f"blob:{self.address}/", "data:"))

    def open(self, path: str) -> Page:
        """Open a page and wait until its first content is complete."""
        if self.page.url != "about:blank":  # an address that differs only in its anchor would not be reloaded
            self.page.goto("about:blank")
        path, _, anchor = path.partition("#")
        self.page.goto(f"{self.address}{path}#token={self.token}")
        if anchor:
            self.page.wait_for_selector("main h1")
            self.page.evaluate("(anchor) => { location.hash = anchor; }", anchor)
        return self.settled()

    def see(self, name: str) -> Page:
        """Show one of the `SIGHTS`."""
        sight = SIGHTS[name]
        if name == "token":
            self.page.goto(self.address)
            return self.settled()
        self.open(sight.path)
        for key in sight.keys:
            self.page.keyboard.press(key)
            self.page.wait_for_timeout(100)
        if sight.keys:
            self.page.wait_for_timeout(250)  # drawers and sliders send their requests a little later
        return self.settled()

    def leave(self) -> None:
        """Leave the page and remove its data from the browser."""
        super().leave()
        self.asked.clear()

    def settled(self) -> Page:
        """Return the page once it shows the content of its address."""
        expect(self.page.locator("main h1")).to_have_count(1)
        expect(self.page.locator("main .loading")).to_have_count(0)
        if self.page.locator("main.session-page").count():
            expect(self.page.locator("#entries article").first).to_be_visible()
            counted = self.page.locator("main .tree-box option[value=all]", has_text="(")
            expect(counted).to_have_count(1, timeout=30_000)  # the outline is complete
        return self.page


@contextmanager
def visiting(browser: Browser, address: str, token: str = TOKEN, **options: Any) -> Iterator[Visitor]:
    """Open a separate window; the options are those of a browser context."""
    context = browser.new_context(**{"viewport": SIZE} | options)
    yield Visitor(context, address, token)
    context.close()


@contextmanager
def served_demo(root: Path) -> Iterator[str]:
    """Yield the address of a gateway with the indexed demo sessions and the echo."""
    store = Store(root, durability="process")
    make_demo(store)
    bind_demo(store)
    with served(root, echo=True) as (address, _):
        wait_until_indexed(address)
        yield address


def wait_until_indexed(address: str, token: str = TOKEN) -> None:
    """Repeat a search until no session is waiting to be indexed."""
    headers = BEARER | {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        while client.get("/v1/view/search", params={"q": "retry"}).raise_for_status().json()["pending"]:
            time.sleep(0.05)
