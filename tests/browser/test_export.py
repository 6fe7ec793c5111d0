"""The exported file in a browser: branches, links, search, keys, size, print, and no stored text can run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser_payloads import PAYLOADS, poisoned_entries, poisoned_head
from browser_window import Open, Opened
from builders import Json, entry, said
from sessile.render.shown import Gap, Transcript
from transcripts import called, resulted, transcript

PLAIN, CHUNKED = 8000, 3
forms = pytest.mark.parametrize("whole", [PLAIN, CHUNKED], ids=["plain", "chunked"])

STORY: list[Json] = [
    said("ask", None, "Add retries. " + "很长的一段话。" * 40),
    called(
        "look",
        "ask",
        "I look.\n\n```python\ndef send(event): return client.post(event.url)\n```",
        ("c1", "bash", {"command": "rg retry"}),
    ),
    resulted("saw", "look", "c1", "\n".join(f"output line {n}" for n in range(300))),
    called("two", "saw", "Two ways:\n\n| a | b |\n|---|--:|\n| loop | 30 |\n\n[docs](https://docs.example/)"),
    said("tryA", "two", "Approach A"),
    called("didA", "tryA", "Done A.", ("c2", "bash", {"command": "pytest -q", "timeout": 9})),
    resulted("failA", "didA", "c2", "\x1b[31m2 failed\x1b[0m\nneedle of A", failed=True),
    entry("branch_summary", "left", "two", summary="A was left.", fromId="failA"),
    said("tryB", "left", "Approach B"),
    called("didB", "tryB", "Done B.", ("c3", "bash", {"command": "pytest -q"})),
    resulted("saw3", "didB", "c3", "8 passed"),
    entry("compaction", "comp", "saw3", summary="## Goal\nretries", tokensBefore=48200, tokensAfter=6100),
    said("end", "comp", "Thanks"),
]
ON_A = ["ask", "look", "saw", "two", "tryA", "didA", "failA"]
ON_B = ["ask", "look", "saw", "two", "left", "tryB", "didB", "saw3", "comp", "end"]


def story(**members: Any) -> Transcript:
    usual: Json = {"leaf": "end", "labels": {"didB": "green"}, "gaps": [Gap("saw3", "87 bytes")], "notes": ["1 secret"]}
    return transcript(STORY, **usual | members)


def ids(page: Page) -> list[str]:
    """Return the ids of the entries in the page, from top to bottom."""
    return [
        str(key).removeprefix("e-")
        for key in page.eval_on_selector_all("#entries > .entry", "all => all.map(e => e.id)")
    ]


def chosen(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.entry.at')?.id ?? ''")).removeprefix("e-")


@forms
@pytest.mark.promise("P36")
def test_the_file_opens_offline_without_a_request_or_a_word_in_the_console(opened: Open, whole: int) -> None:
    """The exported page makes no requests, logs nothing, and its own script is allowed."""
    window = opened()
    page = window.show(story(depth="all"), whole)
    assert ids(page) == ON_B
    page.keyboard.press("t")
    page.keyboard.press("o")
    page.get_by_text("dark", exact=True).click()
    assert window.found() == []


def test_without_script_the_whole_branch_can_be_read(opened: Open) -> None:
    """Without JavaScript, the whole branch is readable, and depth and theme still work."""
    page = opened(java_script_enabled=False).show(story(depth="all"))
    for key in ON_B:
        expect(page.locator(f"#e-{key}")).to_be_visible()
    page.get_by_text("prompts", exact=True).click()
    expect(page.locator("#e-look")).to_be_hidden()
    expect(page.locator("#e-ask")).to_be_visible()


@forms
def test_the_switcher_at_a_fork_shows_the_other_branch_and_stays_in_its_place(opened: Open, whole: int) -> None:
    """The branch switcher shows the other branch without moving the message on the screen."""
    page = opened(viewport={"width": 1280, "height": 500}).show(story(), whole)
    fork = page.locator("#e-left .switch")
    expect(fork).to_have_text("‹2/2›")
    page.evaluate("document.getElementById('e-left').scrollIntoView({block: 'center'})")
    before = page.locator("#e-left").bounding_box()
    fork.get_by_label("Previous branch").click()
    assert ids(page) == ON_A
    after = page.locator("#e-tryA").bounding_box()
    assert before and after
    assert abs(before["y"] - after["y"]) < 3
    page.locator("#e-tryA").get_by_label("Next branch").click()
    assert ids(page) == ON_B


@forms
def test_a_link_to_an_entry_opens_its_branch_and_its_fold(opened: Open, whole: int) -> None:
    """A link to an entry opens its branch and unfolds it."""
    window = opened()
    page = window.show(story(), whole, "#e-failA")
    assert ids(page) == ON_A
    expect(page.locator("#e-failA pre")).to_be_in_viewport()
    page = window.show(story(), whole, "#e-saw")
    expect(page.get_by_text("output line 3", exact=False).first).to_be_visible()
    page.evaluate("location.hash = '#e-didA'")
    expect(page.locator("#e-didA")).to_be_in_viewport()
    assert ids(page) == ON_A
    assert window.found() == []


@forms
def test_a_link_to_an_entry_that_the_depth_hides_raises_the_depth(opened: Open, whole: int) -> None:
    """A link to an entry hidden by the depth setting raises the depth."""
    page = opened().show(story(depth="prompts"), whole, "#e-saw3")
    expect(page.locator("#e-saw3")).to_be_visible()
    expect(page.locator("#depth-tools")).to_be_checked()


@forms
def test_search_finds_in_all_branches_and_opens_folds(opened: Open, whole: int) -> None:
    """Search counts matching entries on all branches and unfolds each match."""
    page = opened().show(story(), whole)
    page.keyboard.press("/")
    page.keyboard.type("output line 150")
    expect(page.locator("#hits")).to_have_text("1/1")
    expect(page.locator("#e-saw .long details")).to_have_attribute("open", "")
    assert page.evaluate("CSS.highlights.get('hit').size") == 1
    page.locator("#query").fill("NEEDLE of a")
    expect(page.locator("#e-failA pre")).to_be_visible()
    expect(page.locator("#hits")).to_have_text("1/1")
    assert ids(page) == ON_A
    page.locator("#query").fill("done")
    expect(page.locator("#hits")).to_have_text("1/2")
    page.keyboard.press("Enter")
    expect(page.locator("#hits")).to_have_text("2/2")
    assert {"didA", "didB"} > {chosen(page)}
    page.locator("#query").fill("thought of look")
    expect(page.locator("#e-look .thinking .prose")).to_be_visible()
    page.locator("#query").fill("nowhere at all")
    expect(page.locator("#hits")).to_have_text("0/0")


@forms
def test_the_depth_shows_more_or_less_and_says_how_much_is_hidden(opened: Open, whole: int) -> None:
    """The depth setting hides entries and shows how many are hidden."""
    page = opened().show(story(depth="all"), whole)
    expect(page.locator("#gone")).to_have_text("")
    page.get_by_text("prompts", exact=True).click()
    expect(page.locator("#gone")).to_have_text("5 of 10 entries hidden")
    expect(page.locator("#e-tryB")).to_be_visible()
    expect(page.locator("#e-look")).to_be_hidden()
    page.get_by_text("tools", exact=True).click()
    expect(page.locator("#e-saw3")).to_be_visible()


@forms
def test_keys_move_by_entry_by_prompt_and_by_fork(opened: Open, whole: int) -> None:
    """Keys move by entry, prompt and fork, and the help dialog has a button for each key."""
    page = opened().show(story(), whole)
    moves = [
        ("g", "ask"),
        ("j", "look"),
        ("j", "saw"),
        ("J", "tryB"),
        ("K", "ask"),
        ("}", "left"),
        ("[", "tryA"),
        ("]", "left"),
    ]
    for key, goal in [*moves, ("G", "end"), ("k", "comp"), ("{", "left")]:
        page.keyboard.press(key)
        assert chosen(page) == goal, key
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="first entry", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert chosen(page) == "ask"


def test_the_tree_shows_branches_folds_and_filters(opened: Open) -> None:
    """The tree has roving focus, folds with the arrow keys, opens with Enter, and can be filtered."""
    page = opened().show(story())
    rows = page.get_by_role("treeitem")
    lines = rows.all_inner_texts()
    assert [line for line in lines if "entries" in line] == ["~ 2 entries · 1 tool"]
    page.get_by_role("treeitem", name="Approach A").click()
    assert ids(page) == ON_A
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("treeitem", name="Approach A")).to_have_attribute("aria-expanded", "false")
    assert rows.count() == len(lines) - 2
    page.keyboard.press("ArrowRight")
    assert rows.count() == len(lines)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert ids(page) == ON_B
    assert page.evaluate("document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1
    for name, count in (("failures", 1), ("labels", 1), ("heads", 2), ("prompts", 4), ("all", 13)):
        page.locator("#filter").select_option(name)
        assert rows.count() == count, name


def test_the_script_draws_the_rows_of_the_outline(opened: Open) -> None:
    """The script draws the same tree rows as the static file."""
    branches = [*STORY, said("again", None, "Another start"), called("more", "again", "More"), *many(40, "more")]
    for made in (story(), transcript(branches, leaf="didB", labels={"look": "here"})):
        window = opened(java_script_enabled=False)
        written = window.show(made).eval_on_selector_all(".row", ROWS)
        drawn = opened().show(made).eval_on_selector_all(".row", ROWS)
        assert drawn == written and len(drawn) >= 10


ROWS = """all => all.map((row) => [row.innerText.replace(/^[▾▸]/, "").replaceAll("\\n", " ").trim(), row.ariaLevel,
  row.className.replace(/ (at|bad)\\b/g, ""), row.ariaCurrent])"""


def many(count: int, parent: str | None = None) -> Iterator[Json]:
    """Generate a long session of prompts, calls and results, with an abandoned branch every thousand entries."""
    for n in range(count):
        if n % 4 == 0:
            made = said(f"n{n}", parent, f"prompt {n}")
        elif n % 2:
            made = called(f"n{n}", parent, f"answer {n}", (f"c{n}", "bash", {"command": f"echo {n}"}))
        else:
            made = resulted(f"n{n}", parent, f"c{n - 1}", f"result {n}\n" * 12)
        yield made
        parent = f"n{n - 2}" if n % 1000 == 999 else f"n{n}"


@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_many_entries_open_at_once_and_stay_light(opened: Open, count: int) -> None:
    """The first entry is shown early, and the page never has more than 3,000 elements."""
    window = opened()
    page = window.show(transcript(list(many(count))), wait_until="commit")
    page.wait_for_selector("#e-n0")
    page.wait_for_selector("html.js")

    def elements() -> int:
        return int(page.evaluate("document.querySelectorAll('*').length"))

    assert elements() <= 3000
    page.keyboard.press("G")
    expect(page.locator(f"#e-n{count - 1}")).to_be_in_viewport()
    assert elements() <= 3000
    for _ in range(10):
        page.mouse.wheel(0, -1500)
        page.wait_for_timeout(30)
    seen = "e => { const box = e.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; }"
    assert page.evaluate(f"[...document.querySelectorAll('#entries > .entry')].filter({seen}).length") > 3
    page.locator("#query").fill(f"result {count // 2 + 2}")
    expect(page.locator("#hits")).to_have_text("1/1", timeout=20_000)
    expect(page.locator(f"#e-n{count // 2 + 2}")).to_be_in_viewport()
    assert elements() <= 3000
    assert window.found() == []


@forms
def test_nothing_scrolls_sideways_on_a_small_phone(opened: Open, whole: int) -> None:
    """At a width of 320 pixels, only code blocks scroll sideways."""
    wide = [*STORY, said("w" * 90, "end", "x" * 3000), resulted("long", "w" * 90, "c9", "y" * 3000, failed=True)]
    names = transcript(wide, depth="all", title="t" * 300, cwd="/" + "d" * 300, labels={"long": "l" * 200})
    page = opened(viewport={"width": 320, "height": 640}).show(names, whole)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    for key in ("g", "G"):
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def paper(page: Page, path: Path) -> str:
    program = shutil.which("pdftotext")
    if program is None:
        pytest.skip("needs pdftotext: apt-get install poppler-utils")
    page.pdf(path=path)
    return subprocess.run([program, str(path), "-"], capture_output=True, text=True, check=True).stdout


@forms
def test_paper_holds_all_of_the_branch_unfolded_with_ids_and_addresses(
    opened: Open, whole: int, tmp_path: Path
) -> None:
    """The printout has the whole branch unfolded, without controls, and leaves the page unchanged."""
    page = opened().show(story(), whole)
    folded = page.locator("#entries details:not([open])").count()
    text = paper(page, tmp_path / "page.pdf")
    for key in ON_B:
        assert f"#{key}" in text
    for words in (
        "output line 150",
        "(https://docs.example/)",
        "48.2k → 6.1k tokens",
        "87 bytes",
        "Approach B",
        "1 secret",
    ):
        assert words in text
    assert "Approach A" not in text
    assert "unfold" not in text
    assert page.locator("#entries details:not([open])").count() == folded


READABLE = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = (value) => value / 255 <= .03928 ? value / 255 / 12.92 : ((value / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b) + .05;
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.nodeValue.trim() || !e.checkVisibility()) continue;
    if (e.closest("script, [aria-hidden], .unseen, .skip, option")) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    if (a / b < 4.5) bad.add(`${e.tagName}.${e.className} ${(a / b).toFixed(2)}`);
  }
  return [...bad];
}"""

SMALL = """() => [...document.querySelectorAll("button, summary, select, a, .choice label, .row, input[type=search]")]
  .filter((e) => e.checkVisibility() && !e.closest(".prose, .notes, .skip, .row a"))
  .map((e) => [e, e.getBoundingClientRect()]).filter(([e, box]) => box.width < 24 || box.height < 23.9)
  .map(([e, box]) => `${e.outerHTML.slice(0, 60)} ${box.width}x${box.height}`)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_and_targets_be_hit(opened: Open, scheme: str) -> None:
    """Text contrast is at least 4.5, targets have at least 24 pixels, and headings and landmarks are present."""
    window = opened(color_scheme=scheme)
    page = window.show(story(depth="all", leaf="failA"))
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert page.evaluate(READABLE) == []
    assert page.evaluate(SMALL) == []
    assert page.locator("h1").count() == 1
    assert page.locator("article").count() == page.locator("article h3").count() == len(ON_A)
    for role in ("banner", "main", "navigation", "search", "tree"):
        expect(page.get_by_role(role)).to_have_count(1)


# -- stored text cannot run

STRANGE = """() => {
  const roots = [document, document.getElementById("others")?.content].filter(Boolean);
  const ours = document.scripts[document.scripts.length - 1];
  const tags = ["IFRAME", "OBJECT", "EMBED", "FORM", "SVG", "MATH", "BASE", "VIDEO", "AUDIO"];
  const address = /^(#|https?:|data:image\\/(png|gif|jpeg|webp);|data:,$)/;
  const odd = [];
  for (const e of roots.flatMap((root) => [...root.querySelectorAll("*")])) {
    if (tags.includes(e.tagName.toUpperCase()) && e.role !== "search") odd.push(e.tagName);
    if (e.tagName === "SCRIPT" && e.type !== "application/json" && e !== ours) odd.push("script");
    for (const { name, value } of e.attributes) {
      if (name.startsWith("on") || (name === "style" && e.closest("article")) || name === "srcdoc") odd.push(name);
      if (["href", "src", "action"].includes(name) && !address.test(value)) odd.push(value);
    }
  }
  return odd;
}"""


def assert_harmless(window: Opened) -> None:
    assert window.page.evaluate("typeof window.pwned") == "undefined"
    assert window.page.evaluate(STRANGE) == []
    assert window.found() == []


@forms
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.promise("P36")
def test_no_payload_in_any_field_of_an_entry_runs_loads_or_breaks_the_policy(
    opened: Open, whole: int, step: int
) -> None:
    """Payloads in every field do nothing when entries are expanded, searched and visited."""
    assert len(PAYLOADS) >= 60
    payloads = PAYLOADS[::step]
    window = opened()
    page = window.show(poisoned_entries(payloads), whole)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # renders and opens everything
    assert page.locator("#entries > .entry").count() > 20 * len(payloads)
    assert_harmless(window)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    for payload in payloads[::8]:
        page.locator("#query").fill(payload)
        page.keyboard.press("Enter")
        expect(page.locator("#hits")).to_have_text(re.compile(r"\d/\d"))
    page.keyboard.press("Escape")
    for name in ("all", "labels", "forks", "outline"):
        page.locator("#filter").select_option(name)
    for key in "gG{[]}jko":
        page.keyboard.press(key)
    assert_harmless(window)


@pytest.mark.promise("P36")
@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.long) for start in range(1, 7))])
def test_no_payload_in_what_is_told_of_a_session_runs_loads_or_breaks_the_policy(opened: Open, start: int) -> None:
    """Payloads in the title, id, project, notes, labels, gaps and entry id do nothing."""
    window = opened()
    for number, payload in enumerate(PAYLOADS[start::7]):
        page = window.show(poisoned_head(payload), (PLAIN, 0)[number % 2])
        assert page.locator("article").count() == 1, payload
        assert_harmless(window)


def test_the_watch_sees_what_a_page_must_not_do(opened: Open) -> None:
    """The checks of this module detect violations."""
    window = opened()
    page = window.show(story())
    page.evaluate(
        """() => {
          new Image().src = "https://x.example/y.png";
          const style = document.createElement("style");
          style.textContent = "b { color: red }";
          document.head.append(style);
          for (const act of [() => document.body.innerHTML = "<b>", () => document.body.setAttribute("onclick", "pwned = 1")])
            try { act(); } catch { /* Trusted Types */ }
        }"""
    )
    page.wait_for_timeout(100)
    found = " ".join(window.found())
    for words in ("img-src https://x.example/y.png", "style-src-elem inline", "require-trusted-types-for"):
        assert words in found
