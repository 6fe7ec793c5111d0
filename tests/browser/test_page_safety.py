"""Stored text never runs in a page: payloads in every field of every kind, on every page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from figures import measured
from http_rig import served
from page_rig import Visitor, visiting, wait_until_indexed
from poisoned_home import CORPUS, PoisonedHome
from poisoned_rows import NEEDLE

pytestmark = pytest.mark.promise("P36")

SHARE = [0]  # the variants in `make test`; each has every payload somewhere
JSON_OF = 4  # entries of each session whose JSON is opened
SHOWN_AT_LEAST = 0.6  # of what is stored; the rest is not shown on any page
STUB_PRINT = """window.print = () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  document.documentElement.dataset.printed = "";
};"""

# Find everything in the document that no page creates, and trigger the listeners of injected elements.
AUDIT = r"""() => {
  const TAGS = new Set(`html head meta title link script body a header nav div main h1 h2 h3 h4 h5 h6 p span section ul ol li
    button select option input label form details summary article aside time pre code em strong b i s del ins mark sub sup br hr
    blockquote table thead tbody tr th td dl dt dd kbd output figure figcaption img textarea dialog noscript fieldset legend
    svg g rect path line polyline circle text desc tspan optgroup u small`.split(/\s+/));
  const found = [];
  const own = (url) => url.origin === location.origin || url.protocol === "blob:" || url.protocol === "data:";
  for (const one of document.querySelectorAll("*")) {
    const told = () => one.outerHTML.slice(0, 300);
    if (!TAGS.has(one.localName)) found.push(`element: ${told()}`);
    for (const { name, value } of one.attributes) {
      if (!/^[a-z][a-z0-9-]*$/i.test(name) || /^on|^srcdoc$|^ping$|^formaction$/i.test(name)) {
        found.push(`attribute ${name}: ${told()}`);
      }
      if (name === "style" && /url|import|expression/i.test(value)) found.push(`style: ${told()}`);
      if (["src", "srcset", "data", "poster", "action", "background"].includes(name) && !own(new URL(value, location.href))) {
        found.push(`${name}: ${told()}`);
      }
      if (name === "href" && one.localName !== "link") {
        const url = new URL(value, location.href);
        const isFile = url.protocol === "blob:" && one.hasAttribute("download");
        if (!["http:", "https:"].includes(url.protocol) && !isFile) found.push(`link: ${told()}`);
        if (url.origin !== location.origin && !/noopener|noreferrer/.test(one.rel)) found.push(`link with opener: ${told()}`);
      }
    }
    if (one.closest("main, dialog")) {
      for (const kind of ["mouseover", "mouseenter", "focusin", "toggle", "animationstart"]) one.dispatchEvent(new Event(kind));
    }
  }
  if (document.scripts.length !== 1) found.push(`${document.scripts.length} scripts`);
  if (document.querySelectorAll("base, meta[http-equiv], main link, main style, main meta").length) found.push("head");
  if (window.pwned !== undefined) found.push(`ran: ${window.pwned}`);
  return [...new Set(found)].slice(0, 20);
}"""
# The numbers of the payloads in a part of the document.
SEEN = r"""(place) => {
  const seen = document.querySelector(place).outerHTML.matchAll(/pwned=(\d+)|x(\d+)\.example/g);
  return [...new Set([...seen].map((one) => Number(one[1] ?? one[2])))];
}"""


def quoted(text: str) -> str:
    return quote(text.encode("utf-8", "replace"), safe="")


class Tour:
    """Visits the pages of a poisoned home and records the payloads that were shown."""

    def __init__(self, visitor: Visitor, home: PoisonedHome | None = None) -> None:
        self.visitor = visitor
        self.home = home
        self.page = visitor.page
        self.seen: set[int] = set()
        self.page.add_init_script(STUB_PRINT)

    def look(self) -> None:
        """Check that the document contains nothing created by a payload."""
        found = self.page.evaluate(AUDIT)
        assert found == [], self.where(found)
        self.seen.update(self.page.evaluate(SEEN, "html"))

    def where(self, found: list[str]) -> list[object]:
        """Return the fields of the payloads that had an effect."""
        numbers = map(int, re.findall(r"pwned=(\d+)", "".join(found)))
        return [self.home.pairs.get(number) for number in numbers] if self.home else []

    def lists(self) -> None:
        """Visit the lists of sessions, the statistics and the conversations."""
        for path in (
            "/",
            "/sessions?all=true",
            f"/search?q={NEEDLE}&limit=200&in=all",
            "/stats?since=2020-01-01",
            "/gateway",
        ):
            self.visitor.open(path)
            self.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true;")
            self.look()

    def addresses(self, payloads: Iterable[str]) -> None:
        """Visit URLs with payloads as filters, searches, sessions and conversations."""
        for payload in payloads:
            said, name = quoted(payload), quoted(payload.replace("/", "∕"))  # a slash would change the path
            for path in (
                f"/sessions?q={said}&agent={said}",
                f"/search?q={said}&project={said}",
                f"/gateway?key={said}",
                f"/s/{name}",
            ):
                self.visitor.open(path)
                self.look()

    def session(self, session_id: str) -> None:
        """Visit a session: all entries, every tree filter, search, the model's view and the JSON of entries."""
        page = self.visitor.open(f"/s/{session_id}")
        self.look()
        page.keyboard.press("4")
        page.keyboard.press("i")
        self.print_all(page)
        self.look()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        for name in ("all", "labels", "forks"):
            page.get_by_label("Entries to show in the tree").select_option(name)
            self.look()
        field = page.get_by_label("Find in all branches")
        field.fill(NEEDLE)
        expect(page.locator(".find output")).to_have_text(re.compile(r"\d+/\d+"))
        field.press("Escape")
        for key in "gjjsG[":
            page.keyboard.press(key)
        page.keyboard.press("g")
        for _ in range(JSON_OF):
            page.keyboard.press("j")
            page.wait_for_timeout(200)  # the drawer loads with a delay
            self.seen.update(page.evaluate(SEEN, ".drawer"))
        page.keyboard.press("m")
        self.look()

    def print_all(self, page: Page) -> None:
        """Make the page render the whole branch with everything open."""
        page.get_by_role("button", name="Print this branch").click()
        page.wait_for_selector("html[data-printed]", timeout=60_000)

    def others(self, session_id: str, branches: Iterable[tuple[str, str]]) -> None:
        """Visit the share page of a session and comparisons of its branches."""
        self.visitor.open(f"/share/{session_id}?personal=true")
        self.look()
        for left, right in branches:
            self.visitor.open(f"/s/{session_id}?branch={quoted(left)}&vs={quoted(right)}")
            self.look()


def gone_through(browser: Browser, root: Path, variants: Iterable[int]) -> int:
    """Create a poisoned home, visit all its pages, and return the number of its payloads."""
    home = PoisonedHome(root, variants)
    with served(root / "own", sources=home.sources) as (address, _), visiting(browser, address) as visitor:
        wait_until_indexed(address)
        tour = Tour(visitor, home)
        tour.lists()
        for session_id in home.sessions:
            tour.session(session_id)
            tour.others(session_id, home.branches.get(session_id, ()))
        assert visitor.found() == []
        assert len(home.numbered & tour.seen) > SHOWN_AT_LEAST * len(home.numbered)
    measured("P36", "payloads in the page", fields_and_payloads=len(home.pairs), ran=0)
    return len(home.pairs)


def test_no_payload_in_any_field_runs_loads_or_breaks_the_policy(browser: Browser, tmp_path: Path) -> None:
    """One variant of the payloads in every field does nothing."""
    assert gone_through(browser, tmp_path, SHARE) >= 500


def test_no_payload_in_an_address_does_anything(browser: Browser, demo: str) -> None:
    """Payloads in a URL do nothing; the page only reports that nothing was found."""
    with visiting(browser, demo) as visitor:
        tour = Tour(visitor)
        tour.addresses(CORPUS[3::70])
        assert [one for one in visitor.found() if "the server responded with a status of 4" not in one] == []


@pytest.mark.long
def test_every_payload_in_every_field_does_nothing(browser: Browser, tmp_path: Path) -> None:
    """All variants of the payloads in every field do nothing."""
    pairs = [gone_through(browser, tmp_path / str(n), range(n, len(CORPUS), 13)) for n in range(13)]
    assert sum(pairs) >= 10_000


def test_what_a_payload_would_do_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """With the policy off, injected markup runs, and every check detects it."""
    with served(tmp_path) as (address, _), visiting(browser, address, bypass_csp=True) as visitor:
        page = visitor.open("/search")
        assert page.evaluate(AUDIT) == [] and visitor.found() == []
        page.evaluate(
            """() => document.querySelector("main").append(document.createRange().createContextualFragment(`
              <img src=x onerror="window.pwned=1; alert(1)"><img src="https://x.example/i.png">
              <a href="javascript:window.pwned=1">x</a><script>window.ran=1</script><style>*{}</style>`))"""
        )
        page.wait_for_timeout(300)
        told = " ".join(page.evaluate(AUDIT))
        for words in (
            "ran: 1",
            "2 scripts",
            "link: <a",
            "attribute onerror",
            "src: <img",
            "element: <style",
            "head",
        ):
            assert words in told
        noticed = " ".join(visitor.found())
        assert "dialog: 1" in noticed and "request: https://x.example/i.png" in noticed
    with served(tmp_path) as (address, _), visiting(browser, address) as visitor:
        page = visitor.open("/search")
        with pytest.raises(Error, match="TrustedScript"):
            page.evaluate("() => { document.createElement('script').textContent = '1'; }")
        assert "policy: require-trusted-types-for" in " ".join(visitor.found())
