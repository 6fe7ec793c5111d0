"""Accessibility of all pages: axe, keyboard only, zoom, narrow screens and reduced motion."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from axe import OF_COLOUR, axe_script, grave_findings
from browser_window import Windows
from page_rig import SESSION, SIGHTS, WEBHOOKS, Visitor

COLOURS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "forced_colors": "none"},
    "dark": {"color_scheme": "dark", "forced_colors": "none"},
    "forced": {"color_scheme": "light", "forced_colors": "active"},
}
ENOUGH = 4.5  # minimum contrast of text
FIRST = "Skip to content"  # the first stop of Tab

# The contrast of chart text, which axe does not check. Colours are given as rgb(…) or color(srgb …).
CHART_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|\\/ 0\\)$|transparent/.test(colour)) return colour;
    }
    return "Canvas";
  };
  return [...document.querySelectorAll("svg.chart text")].map((text) => {
    const [low, high] = [light(getComputedStyle(text).fill), light(behind(text.ownerSVGElement))].sort((a, b) => a - b);
    return [text.textContent, (high + 0.05) / (low + 0.05)];
  });
}"""

TOO_WIDE = """() => {
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth <= clientWidth) return [];
  const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > clientWidth + 1);
  return [`${scrollWidth} > ${clientWidth}`, ...wide.slice(0, 5).map((one) => one.outerHTML.slice(0, 120))];
}"""

MOVING = """() => [...document.querySelectorAll("*")].flatMap((one) => {
  const { animationName, animationDuration, transitionDuration, scrollBehavior } = getComputedStyle(one);
  const lasts = (times) => times.split(",").some((time) => parseFloat(time) > 0.01);
  const plays = animationName !== "none" && lasts(animationDuration);
  return plays || lasts(transitionDuration) || scrollBehavior === "smooth" ? [one.outerHTML.slice(0, 120)] : [];
})"""

FOCUSED = """() => {
  const one = document.activeElement;
  const box = one.getBoundingClientRect();
  const style = getComputedStyle(one);
  const name = one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent || one.title ||
    one.querySelector("img")?.alt || "";
  const entry = one.closest("article")?.id ?? null;
  return { name: name.trim().slice(0, 80), tag: one.localName, role: one.getAttribute("role"), entry,
    seen: one === document.body || (box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight),
    ring: style.outlineStyle !== "none" || style.boxShadow !== "none" };
}"""


# -- axe


@pytest.fixture(scope="module")
def axe() -> str:
    return axe_script()


BESIDE = {"session with all of it", "session with details", "session with a label dialog", "help", "palette"}


@pytest.mark.parametrize(
    "sight", [pytest.param(sight, marks=pytest.mark.long) if sight in BESIDE else sight for sight in SIGHTS]
)
def test_axe_finds_nothing_grave(windows: Windows, demo: str, axe: str, sight: str) -> None:
    """axe reports no serious problem in light, dark and forced colours; other rules are checked once."""
    with windows.window(Visitor, demo, bypass_csp=True) as visitor:
        page = visitor.see(sight)
        part = SIGHTS[sight].part
        found = []
        for name, colours in COLOURS.items():
            page.emulate_media(**colours)
            rules = None if name == "light" else OF_COLOUR
            found += [f"{name}: {one}" for one in grave_findings(page, axe, rules, part)]
        assert found == []


def test_axe_would_find_what_is_wrong(windows: Windows, demo: str, axe: str) -> None:
    """The axe check detects an unlabelled field and low contrast."""
    with windows.window(Visitor, demo, bypass_csp=True) as visitor:
        page = visitor.see("token")
        page.evaluate("document.querySelector('main label').removeAttribute('for')")
        page.evaluate("document.querySelector('main h1').style.color = 'rgb(128 128 128 / 0.5)'")
        for colours in COLOURS.values():
            page.emulate_media(**colours)
            found = {one.split()[0] for one in grave_findings(page, axe, ("label", *OF_COLOUR))}
            assert found == {"label", "color-contrast"}


@pytest.mark.parametrize("sight", ["overview", "stats"])
def test_letters_of_charts_can_be_read(windows: Windows, demo: str, sight: str) -> None:
    """Chart text has enough contrast in every colour scheme."""
    with windows.window(Visitor, demo) as visitor:
        page = visitor.see(sight)
        for name, colours in COLOURS.items():
            page.emulate_media(**colours)
            letters = page.evaluate(CHART_CONTRAST)
            assert len(letters) > 10
            assert [(name, *one) for one in letters if one[1] < ENOUGH] == []


# -- keyboard only


def press_until(page: Page, key: str, wanted: Callable[[dict[str, Any]], bool], most: int = 60) -> dict[str, Any]:
    """Press a key until the wanted element has the focus; every stop must be visible with a focus ring."""
    passed = []
    for _ in range(most):
        page.keyboard.press(key)
        focused: dict[str, Any] = page.evaluate(FOCUSED)
        assert focused["seen"] and (focused["tag"] == "body" or focused["ring"]), focused
        if wanted(focused):
            return focused
        passed.append(focused["name"])
    raise AssertionError(f"{key} leads to {passed}")


def named(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda focused: name in focused["name"]


def focused_on(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(FOCUSED)
    return found


def test_everything_is_reached_with_the_keyboard_alone(windows: Windows, demo: str) -> None:
    """The overview, a session, its tree, another branch and the search are reachable by keyboard."""
    with windows.window(Visitor, demo) as visitor:
        page = visitor.see("overview")
        page.keyboard.press("Tab")
        assert focused_on(page)["name"] == FIRST
        press_until(page, "Tab", named("Sessions"))
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/sessions$"))
        visitor.settled()
        press_until(page, "Tab", lambda focused: focused["tag"] == "input")
        page.keyboard.type("webhook")
        expect(page).to_have_url(re.compile(r"q=webhook$"))
        expect(page.locator(".cards > li", has_text="Webhook retries").first).to_be_visible()
        press_until(
            page, "Tab", lambda one: one["tag"] == "a" and page.evaluate("document.activeElement.pathname") == SESSION
        )
        page.keyboard.press("Enter")
        visitor.settled()

        press_until(page, "Tab", lambda focused: focused["role"] == "treeitem")
        page.keyboard.press("End")
        page.keyboard.press("Home")
        press_until(page, "ArrowDown", named("approach A"))
        page.keyboard.press("Enter")
        expect(page.locator("#entries article.at")).to_contain_text("approach A")
        expect(page.locator("#entries article.at")).to_be_in_viewport()
        assert focused_on(page)["role"] == "treeitem"  # opening an entry keeps the focus in the tree
        press_until(page, "Tab", lambda focused: focused["entry"] is not None)

        page.keyboard.press("]")
        expect(page.locator("#entries article", has_text="use tenacity after all").first).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("tenacity")
        expect(page.locator(".find output")).to_have_text(re.compile(r"^\d+/\d+$"))
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        page.keyboard.press("n")
        page.keyboard.press("s")
        expect(page.get_by_role("slider", name="Turn")).to_be_visible()
        page.keyboard.press("s")
        expect(page.get_by_role("slider", name="Turn")).to_be_hidden()
        assert visitor.found() == []


def test_a_dialog_closes_with_escape_and_gives_the_focus_back(windows: Windows, demo: str) -> None:
    """Dialogs and menus keep the focus inside, close with Escape, and return the focus."""
    with windows.window(Visitor, demo) as visitor:
        page = visitor.see("session")
        link = page.locator("#entries article .permalink").nth(1)
        link.focus()
        here = page.evaluate("document.activeElement.closest('article').id")
        for key in ("?", "Control+k", "m"):
            page.keyboard.press(key)
            expect(page.locator("dialog[open]")).to_be_visible()
            for _ in range(4):
                page.keyboard.press("Tab")
                assert page.evaluate(
                    "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
                )
            page.keyboard.press("Escape")
            expect(page.locator("dialog")).to_have_count(0)
            page.wait_for_function("here => document.activeElement.closest('article')?.id === here", arg=here)
            link.focus()
        menu = page.locator(f"#{here} .more-button")
        menu.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("menuitem").first).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("menuitem").nth(1)).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("menu")).to_have_count(0)
        expect(menu).to_be_focused()
        page.get_by_role("button", name="Help and keyboard shortcuts").focus()
        page.keyboard.press("Enter")
        expect(page.locator("dialog[open]")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Help and keyboard shortcuts")).to_be_focused()
        assert visitor.found() == []


@pytest.mark.parametrize(
    "path",
    [
        *("/", SESSION, "/gateway"),
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in ("/sessions?q=webhook", "/search?q=tenacity", f"/share/{WEBHOOKS}")
        ),
    ],
)
def test_tab_is_never_caught(windows: Windows, demo: str, path: str) -> None:
    """Tab and Shift+Tab go round the whole page, and every stop is visible and has a name."""
    with windows.window(Visitor, demo) as visitor:
        page = visitor.open(path)
        page.evaluate(
            f"() => {{ window.went = []; addEventListener('focusin', () => window.went.push(({FOCUSED})())); }}"
        )
        stops = page.locator(":is(a[href], button, input, select, textarea, summary, [tabindex='0'])").count()
        for key in ("Tab", "Shift+Tab"):
            page.locator(".skip").focus()
            page.evaluate("() => { window.went = []; }")
            for pressed in range(2 * stops + 20):  # a session renders more elements while Tab moves through it
                page.keyboard.press(key)
                if pressed % 8 == 7 and page.evaluate(f"window.went.some((one) => one.name === '{FIRST}')"):
                    break
            names = [one["name"] for one in page.evaluate("window.went")]
            assert FIRST in names, f"{key} never comes round: {names[-5:]}"
            went = page.evaluate("window.went")[: names.index(FIRST)]
            assert len(went) > 10
            assert [one for one in went if not (one["seen"] and one["ring"] and one["name"])] == []


def test_the_tree_tells_what_a_tree_tells(windows: Windows, demo: str) -> None:
    """Tree rows have the correct level, position and expanded state, and one row is a tab stop."""
    with windows.window(Visitor, demo) as visitor:
        page = visitor.see("session")
        page.get_by_label("Entries to show in the tree").select_option("all")
        page.set_viewport_size({"width": 1280, "height": 2400})
        page.wait_for_timeout(200)
        tree = page.get_by_role("tree")
        assert tree.get_attribute("aria-label")
        rows = page.evaluate(
            """[...document.querySelectorAll("[role=tree] > *")].map((one) => ({ role: one.getAttribute("role"),
              level: Number(one.getAttribute("aria-level")), place: Number(one.getAttribute("aria-posinset")),
              of: Number(one.getAttribute("aria-setsize")), open: one.getAttribute("aria-expanded"), tab: one.tabIndex,
              inside: one.querySelectorAll("a[href], button, [tabindex]").length }))"""
        )
        assert len(rows) > 30 and {row["role"] for row in rows} == {"treeitem"}
        assert [row["tab"] for row in rows].count(0) == 1
        assert sum(row["inside"] for row in rows) == 0  # a row is one tab stop
        assert rows[0]["level"] == 1
        for one, other in pairwise(rows):
            assert other["level"] <= one["level"] + 1
            assert one["open"] is None or (one["open"] == "true") == (other["level"] > one["level"]), (one, other)
        assert {row["open"] for row in rows} == {None, "true"}
        assert [(row["place"], row["of"]) for row in rows] == siblings([row["level"] for row in rows])


def siblings(levels: list[int]) -> list[tuple[int, int]]:
    """Return the position of each row among its siblings, and the number of siblings."""
    groups: list[list[int]] = []
    above: list[list[int]] = []
    for index, level in enumerate(levels):
        del above[level:]
        if len(above) < level:
            above.append([])
            groups.append(above[-1])
        above[level - 1].append(index)
    found = {index: (place + 1, len(group)) for group in groups for place, index in enumerate(group)}
    return [found[index] for index in range(len(levels))]


# -- zoom, narrow screens, reduced motion


PLAIN = [sight for sight in SIGHTS if " with " not in sight]
FEW = ("overview", "session", "session as the model saw it", "gateway", "token")  # others are checked elsewhere


@pytest.mark.parametrize(
    "sight", [sight if sight in FEW else pytest.param(sight, marks=pytest.mark.long) for sight in PLAIN]
)
def test_nothing_is_scrolled_sideways_nor_moves_by_itself(windows: Windows, demo: str, sight: str) -> None:
    """At 320 pixels and at 400 % zoom, nothing scrolls sideways, and reduced motion is respected."""
    with windows.window(Visitor, demo, viewport={"width": 320, "height": 640}, reduced_motion="reduce") as visitor:
        page = visitor.see(sight)
        assert page.evaluate(TOO_WIDE) == []
        page.set_viewport_size({"width": 320, "height": 256})
        assert page.evaluate(TOO_WIDE) == []
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(100)
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(MOVING) == []
        assert visitor.found() == [] or sight == "missing session"


def test_a_page_at_400_percent_can_still_be_worked_with(windows: Windows, demo: str) -> None:
    """At 400 % zoom, sticky elements leave enough room for the content."""
    with windows.window(Visitor, demo, viewport={"width": 320, "height": 256}) as visitor:
        page = visitor.open(f"/s/{WEBHOOKS}")
        page.keyboard.press("G")
        page.wait_for_timeout(200)
        free = page.evaluate(
            """[...Array(innerHeight / 4).keys()].filter((n) =>
              document.elementFromPoint(innerWidth / 2, 4 * n)?.closest("#entries, .transcript")).length * 4"""
        )
        assert free > 100
