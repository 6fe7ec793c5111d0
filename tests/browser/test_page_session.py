"""The session page in a browser: branches, links, search, the model's view, live entries, size and print."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser_payloads import PAYLOADS, poisoned_entries
from browser_window import Windows
from builders import Json, entry, said, user
from http_rig import TOKEN, served
from page_rig import Visitor
from sessile import Store
from transcripts import called, resulted

USAGE = {"input": 30_000, "output": 100, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 30_100, "cost": {"total": 0.1}}
STORY: list[Json] = [
    said("ask", None, "Add retries. " + "很长的一段话。" * 40),
    called("look", "ask", "I look.", ("c1", "bash", {"command": "rg retry"}), usage=USAGE),
    resulted("saw", "look", "c1", "\n".join(f"output line {n}" for n in range(300))),
    called("two", "saw", "Two ways:\n\n| a | b |\n|---|--:|\n| loop | 30 |", usage=USAGE),
    said("tryA", "two", "Approach A"),
    called("didA", "tryA", "Done A.", ("c2", "bash", {"command": "pytest -q", "timeout": 9})),
    resulted("failA", "didA", "c2", "\x1b[31m2 failed\x1b[0m\nneedle of A", failed=True),
    entry("branch_summary", "left", "two", summary="A was left.", fromId="failA"),
    said("tryB", "left", "Approach B"),
    called("didB", "tryB", "Done B.", ("c3", "bash", {"command": "pytest -q"})),
    resulted("saw3", "didB", "c3", "8 passed"),
    entry("compaction", "comp", "saw3", summary="## Goal\nretries", tokensBefore=48200, firstKeptEntryId="didB"),
    said("more", "comp", "And now?"),
    called("end", "more", "All is done.", usage=USAGE),
]
ON_A = ["ask", "look", "saw", "two", "tryA", "didA", "failA"]
ON_B = ["ask", "look", "saw", "two", "left", "tryB", "didB", "saw3", "comp", "more", "end"]
COMPARED = "/s/{}?branch=end&vs=failA"


def rows(many: int) -> Iterator[Json]:
    """Generate a long session of prompts, replies and tool results, with abandoned branches."""
    parent = None
    for n in range(many):
        name = f"{n:08x}"
        if n % 10 == 0:
            yield said(name, parent, f"Prompt {n}: please go on " + "word " * (n % 60))
        elif n % 10 in (2, 4, 6):
            yield resulted(name, parent, f"c{n - 1}", "\n".join(f"line {k} of {n}" for k in range(n % 40)))
        else:
            calls = [(f"c{n}", "bash", {"command": f"make {n}"})] if n % 10 in (1, 3, 5) else []
            yield called(name, parent, f"Answer {n}. " + "Some **words** more. " * (n % 30), *calls, usage=USAGE)
        parent = f"{n - 20:08x}" if n % 1000 == 998 else name


class House:
    """A gateway, and a store that is written to directly."""

    def __init__(self, root: Path, address: str) -> None:
        self.store = Store(root, durability="process")
        self.address = address
        self.count = 0

    def write(self, entries: Iterable[Json], title: str | None = None) -> str:
        """Write an old session file and return its id."""
        self.count += 1
        session_id = f"5e551011-0000-4000-8000-{self.count:012d}"
        folder = Path(self.store.layout.folder("/work/app"))
        folder.mkdir(parents=True, exist_ok=True)
        stamp = "2026-01-01T00:00:00.000Z"
        head = {
            "type": "session",
            "version": 3,
            "id": session_id,
            "timestamp": stamp,
            "cwd": "/work/app",
            "title": title,
        }
        path = folder / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in (head, *entries):
                file.write(json.dumps(row) + "\n")
        os.utime(path, (1_767_000_000, 1_767_000_000))
        return session_id

    def append(self, session_id: str, *texts: str) -> None:
        """Append user messages to a session."""
        with self.store.open(session_id) as session:
            for text in texts:
                session.append_message(user(text))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    root = tmp_path_factory.mktemp("house")
    with served(root) as (address, _):
        yield House(root, address)


class Window(Visitor):
    """A window that shows sessions and already has the token."""

    has_token = False

    def may_ask(self, url: str) -> bool:
        """Allow no request with the token in its URL."""
        return super().may_ask(url) and self.token not in url.split("#")[0]

    def open(self, path: str, anchor: str = "") -> Page:
        """Open a page with the token already stored."""
        if self.page.url != "about:blank":
            self.page.goto("about:blank")
        if not self.has_token:
            self.page.add_init_script(
                f"if (location.protocol === 'http:') sessionStorage.setItem('sessile.token', '{TOKEN}')"
            )
            self.has_token = True
        self.page.goto(f"{self.address}{path}{anchor}")
        return self.page

    def session(self, session_id: str, anchor: str = "") -> Page:
        """Open a session and wait until it is loaded completely."""
        page = self.open(f"/s/{session_id}", anchor)
        page.wait_for_selector("#entries article")
        expect(page.locator("select[aria-label='Entries to show in the tree'] option[value=all]")).to_have_text(
            re.compile(r"\("), timeout=90_000
        )
        return page


@pytest.fixture
def window(windows: Windows, house: House, request: pytest.FixtureRequest) -> Iterator[Window]:
    options: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]} | getattr(request, "param", {})
    with windows.window(Window, house.address, **options) as window:
        yield window


@pytest.fixture
def own_window(browser: Browser, house: House) -> Iterator[Window]:
    """Return a window with a context that no other test uses."""
    context = browser.new_context()
    yield Window(context, house.address)
    context.close()


def ids(page: Page) -> list[str]:
    """Return the ids of the entries in the page, from top to bottom."""
    found = page.eval_on_selector_all("#entries > article", "all => all.map(e => e.id)")
    return [str(key).removeprefix("e-") for key in found]


def chosen(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.entry.at')?.id ?? ''")).removeprefix("e-")


def hits(page: Page) -> Locator:
    return page.locator(".find output")


def nodes(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def top_of(page: Page, key: str) -> float:
    box = page.locator(f"#e-{key}").bounding_box()
    assert box
    return box["y"]


# -- the token and the address


@pytest.mark.promise("P35")
def test_the_token_leaves_the_address_and_no_parameter_changes_whom_the_page_asks(
    house: House, own_window: Window
) -> None:
    """The token is removed from the URL, unknown parameters are dropped, and a new window asks for the token."""
    session_id = house.write(STORY)
    page = own_window.page
    page.goto(f"{house.address}/s/{session_id}?gatewayUrl=https://evil.example&api=//evil.example#token={TOKEN}")
    page.wait_for_selector("#entries article")
    assert page.url == f"{house.address}/s/{session_id}"
    page.reload()
    page.wait_for_selector("#entries article")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    page.get_by_label("Address or token").fill(f"{house.address}/#token={TOKEN}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#entries article")
    assert own_window.found() == []


# -- reading


def test_a_session_opens_with_its_branch_its_tree_and_how_full_the_context_was(house: House, window: Window) -> None:
    """A session opens with its branch, tree and context meters, makes no foreign requests and logs nothing."""
    page = window.session(house.write(STORY, "Retries"))
    assert page.inner_text("h1") == "Retries"
    assert ids(page) == ON_B
    assert page.locator("#e-comp").get_by_text("Compacted").is_visible()
    meter = page.locator("#e-look .meter")
    expect(meter).to_have_text("30.1k")
    expect(page.locator("[role=tree] [role=treeitem]").first).to_be_visible()
    for key in ("t", "t", "o", "i", "?"):
        page.keyboard.press(key)
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    assert window.found() == []


def test_the_switcher_at_a_fork_shows_the_other_branch_and_stays_in_its_place(house: House, window: Window) -> None:
    """The branch switcher and its keys show the other branch without moving the message on the screen."""
    page = window.session(house.write(STORY))
    page.set_viewport_size({"width": 1280, "height": 500})
    expect(page.locator("#e-left .switch")).to_have_text("‹2/2›")
    page.locator("#e-left").scroll_into_view_if_needed()
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(200)
    before = top_of(page, "left")
    page.locator("#e-left").get_by_label("Previous branch").click()
    expect(page.locator("#e-tryA .switch")).to_have_text("‹1/2›")
    assert abs(top_of(page, "tryA") - before) < 3
    assert ids(page) == ON_A
    page.keyboard.press("]")
    expect(page.locator("#e-left")).to_be_visible()
    assert ids(page) == ON_B


def test_a_link_to_an_entry_opens_its_branch_and_its_fold(house: House, window: Window) -> None:
    """A link to an entry opens its branch and fold, and the page copies the same link."""
    session_id = house.write(STORY)
    page = window.session(session_id, "#e-failA")
    expect(page.locator("#e-failA pre")).to_be_in_viewport()
    assert ids(page) == ON_A
    page.evaluate("location.hash = '#e-saw'")
    expect(page.get_by_text("output line 3", exact=False).first).to_be_visible()
    page.locator("#e-saw .permalink").click()
    expect(page.locator(".toast")).to_have_text("Link copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{house.address}/s/{session_id}#e-saw"
    page = window.session(session_id, "#e-nowhere")
    expect(page.locator(".toast")).to_have_text("This session has no such entry.")
    assert window.found() == []


def test_the_depth_hides_and_says_so_and_a_link_raises_it(house: House, window: Window) -> None:
    """The depth setting hides entries and says so, and a link to a hidden entry raises it."""
    session_id = house.write(STORY)
    page = window.session(session_id)
    page.keyboard.press("1")
    expect(page.locator("#e-look")).to_have_count(0)
    expect(page.locator(".bar .gone")).to_have_text(re.compile(r"\d+ of 11 entries hidden"))
    page.evaluate("location.hash = '#e-saw3'")
    expect(page.locator("#e-saw3")).to_be_visible()
    expect(page.get_by_role("radio", name="tools")).to_be_checked()


def test_find_looks_into_all_branches_and_opens_folds(house: House, window: Window) -> None:
    """Find counts matching entries on all branches and unfolds each match."""
    page = window.session(house.write(STORY))
    page.keyboard.press("/")
    page.keyboard.type("output line 150")
    expect(hits(page)).to_have_text("1/1")
    expect(page.locator("#e-saw .long details")).to_have_attribute("open", "")
    page.wait_for_timeout(100)
    assert page.evaluate("CSS.highlights.get('hit').size") == 1
    field = page.get_by_label("Find in all branches")
    field.fill("NEEDLE of a")
    expect(page.locator("#e-failA pre")).to_be_visible()
    assert ids(page) == ON_A[2:]  # entries far above are not rendered
    field.fill("done")
    expect(hits(page)).to_have_text(re.compile(r"\d/3"))
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert chosen(page) in {"didA", "didB", "end"}
    field.fill("nowhere at all")
    expect(hits(page)).to_have_text("0/0")
    assert window.found() == []


def test_the_tree_is_walked_with_arrows_and_opens_with_enter(house: House, window: Window) -> None:
    """The tree has one tab stop, moves and folds with the arrow keys, opens with Enter, and can be filtered."""
    page = window.session(house.write(STORY))
    items = page.locator("[role=treeitem]")
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1
    items.first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.getAttribute('aria-posinset')") == "1"
    row = items.filter(has_text="Approach A")
    while page.evaluate("document.activeElement.textContent").find("Approach A") < 0:
        page.keyboard.press("ArrowDown")
    expect(row).to_have_attribute("aria-expanded", "true")
    many = items.count()
    page.keyboard.press("ArrowLeft")
    expect(row).to_have_attribute("aria-expanded", "false")
    assert items.count() < many
    page.keyboard.press("ArrowRight")
    expect(items).to_have_count(many)
    page.keyboard.press("Enter")
    expect(page.locator("#e-tryA")).to_be_in_viewport()
    assert page.evaluate("document.activeElement.textContent").find("Approach A") >= 0
    page.get_by_label("Entries to show in the tree").select_option("prompts")
    expect(items).to_have_count(4)
    page.get_by_label("Filter the tree").fill("approach")
    expect(items).to_have_count(2)


# -- the model's view


def test_any_turn_shows_what_the_model_saw(house: House, window: Window) -> None:
    """At any turn, entries are marked as in the context, removed with a reason, or later."""
    page = window.session(house.write(STORY))
    page.keyboard.press("G")
    page.keyboard.press("s")
    slider = page.get_by_role("slider", name="Turn")
    expect(page.locator(".saw strong")).to_have_text("Turn 4 of 4")
    expect(page.locator("#e-end")).to_have_class(re.compile("saw-at"))
    expect(page.locator("#e-more")).to_have_class(re.compile("saw-in"))
    expect(page.locator("#e-ask")).to_have_class(re.compile("saw-gone"))
    expect(page.locator("#e-ask")).to_have_attribute("title", re.compile("compacted"))
    assert page.locator(".row.saw-gone").count() > 2
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator("#e-look")).to_have_class(re.compile("saw-at"))
    expect(page.locator("#e-ask")).to_have_class(re.compile("saw-in"))
    expect(page.locator("#e-two")).to_have_class(re.compile("saw-later"))
    page.get_by_role("button", name="Show everything again").click()
    assert page.locator(".saw-in, .saw-gone, .saw-later").count() == 0
    page.locator("#e-two .meter").click()
    expect(page.locator("#e-two")).to_have_class(re.compile("saw-at"))
    assert window.found() == []


# -- changing


def test_labels_and_branches_are_made_where_one_reads(house: House, window: Window) -> None:
    """Labels and branches made in the page are stored and shown at once."""
    session_id = house.write(STORY)
    page = window.session(session_id)
    page.locator("#e-tryB").hover()
    page.locator("#e-tryB .more-button").click()
    page.get_by_role("menuitem", name="Label").click()
    page.get_by_label("Label of this entry").fill("the better way")
    page.keyboard.press("Enter")
    expect(page.locator("#e-tryB .label")).to_have_text("the better way")
    expect(page.locator(".row .label")).to_have_text("the better way")
    with house.store.open(session_id) as session:
        assert session.get_label("tryB") == "the better way"
    page.locator("#e-two .more-button").click()
    page.get_by_role("menuitem", name="Branch here").click()
    expect(page.locator(".toast")).to_have_text("The session now continues from this entry.")
    expect(page.locator("#entries article")).to_have_count(4)
    with house.store.open(session_id) as session:
        assert session.leaf_id == "two"


def test_the_drawer_tells_all_of_an_entry(house: House, window: Window) -> None:
    """The drawer shows the session's facts and the JSON of the current entry."""
    page = window.session(house.write(STORY), "#e-didB")
    page.keyboard.press("i")
    expect(page.locator(".drawer pre")).to_contain_text('"id": "didB"')
    page.keyboard.press("k")
    expect(page.locator(".drawer pre")).to_contain_text('"id": "tryB"')
    expect(page.locator(".drawer")).to_contain_text("/work/app")


# -- live


def test_new_entries_follow_at_the_end_and_never_move_a_reader(house: House, window: Window) -> None:
    """New entries are followed at the end; elsewhere a button appears, and position and focus are kept."""
    session_id = house.write(rows(60))
    page = window.session(session_id)
    page.keyboard.press("G")
    page.wait_for_timeout(300)
    begun = time.monotonic()
    house.append(session_id, "news at the end")
    expect(page.get_by_text("news at the end").last).to_be_in_viewport(timeout=10_000)
    print(f"shown at the end after {time.monotonic() - begun:.2f} s")
    expect(page.locator("#status")).to_have_text("1 new entry", timeout=10_000)
    page.keyboard.press("g")
    page.wait_for_timeout(300)
    page.locator("#e-00000000 .permalink").focus()
    before = page.evaluate("scrollY")
    house.append(session_id, *(f"news {n}" for n in range(7)))
    pill = page.get_by_role("button", name=re.compile("7 new"))
    expect(pill).to_be_visible(timeout=10_000)
    assert page.evaluate("scrollY") == before
    assert page.evaluate("document.activeElement.closest('.entry')?.id") == "e-00000000"
    expect(page.locator("#status")).to_have_text("7 new entries", timeout=10_000)
    pill.click()
    expect(page.get_by_text("news 6", exact=True).last).to_be_in_viewport()
    expect(pill).to_be_hidden()
    expect(page.locator(".first-fresh")).to_have_count(1)
    assert window.found() == []


# -- size


@pytest.mark.parametrize("many", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_a_session_of_many_entries_is_light(house: House, window: Window, many: int) -> None:
    """A large session has few elements, reaches every entry, and scrolls without jumps; the times are printed."""
    session_id = house.write(rows(many))
    page = window.open(f"/s/{session_id}")
    page.wait_for_selector("#entries article", timeout=60_000)  # the first visit builds the index
    begun = time.monotonic()
    window.open(f"/s/{session_id}")
    page.wait_for_selector("#entries article")
    first = time.monotonic() - begun
    window.session(session_id)
    whole = time.monotonic() - begun
    most = nodes(page)
    jumps = []
    for n in (many - 2_999, 123, many // 2, many - 100, many // 10 + 1):
        page.evaluate("location.hash = ''")
        jumps.append(page.evaluate(JUMP, f"e-{n:08x}"))
        most = max(most, nodes(page))
    steps = [page.evaluate(SCROLL, step) for step in [-150] * 25 + [170] * 25]
    most = max(most, nodes(page))
    begun = time.monotonic()
    page.keyboard.press("/")
    prompt = many * 4 // 5 + 30
    page.keyboard.type(f"Prompt {prompt}:")
    expect(hits(page)).to_have_text("1/1", timeout=20_000)
    found = time.monotonic() - begun
    expect(page.locator(f"#e-{prompt:08x}")).to_be_in_viewport()
    begun = time.monotonic()
    house.append(session_id, "one more")
    expect(page.locator(".pill")).to_have_text("1 new ↓", timeout=20_000)
    live = time.monotonic() - begun
    print(
        f"first {first:.2f} s, whole {whole:.1f} s, {most} nodes, jumps {jumps} ms, find {found:.2f} s, live {live:.2f} s"
    )
    assert most <= 3_000
    assert max(jumps) < NEVER
    assert all(moved is not None and abs(moved) < 2 for moved in steps), steps
    assert window.found() == []


NEVER = 60_000  # milliseconds
JUMP = """async (anchor) => {
  const begun = performance.now();
  location.hash = "#" + anchor;
  for (;;) {
    const box = document.getElementById(anchor)?.getBoundingClientRect();
    if (box && box.height && box.top >= 0 && box.top < innerHeight) return Math.round(performance.now() - begun);
    if (performance.now() - begun > 60000) return 60000;
    await new Promise((resolve) => setTimeout(resolve, 4));
  }
}"""
"""Return the milliseconds until an entry is on the screen."""

SCROLL = """async (step) => {
  const seen = (one) => one.getBoundingClientRect().top > 220 && one.getBoundingClientRect().top < 680;
  const held = [...document.querySelectorAll("#entries article")].find(seen);
  if (!held) return null;
  const before = held.getBoundingClientRect().top;
  scrollBy(0, step);
  const off = () => held.isConnected ? held.getBoundingClientRect().top - before + step : null;
  for (let waited = 0; waited < 1000; waited += 60) {
    await new Promise((resolve) => setTimeout(resolve, 60));
    if (Math.abs(off()) < 2) break;
  }
  return off();
}"""
"""Return how far an entry is from its expected position after a scroll step, allowing for some frames."""


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/stats", "/s/{}"),
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in ("/sessions", "/search?q=retries", "/gateway", "/share/{}", COMPARED)
        ),
    ],
)
def test_a_page_loads_little_script(house: House, own_window: Window, path: str) -> None:
    """The modules of a page are small in total; rarely used ones are loaded on demand."""
    session_id = house.write(STORY)
    sizes: dict[str, int] = {}
    own_window.page.on(
        "response", lambda got: sizes.update({got.url: len(got.body())}) if got.url.endswith(".js") else None
    )
    page = own_window.open(path.format(session_id))
    page.wait_for_selector("main h1")
    page.wait_for_timeout(500)
    print(f"{path}: {sum(sizes.values())} bytes of script")
    assert 30_000 < sum(sizes.values()) <= 120_000


# -- other screens, print


@pytest.mark.parametrize("window", [{"viewport": {"width": 320, "height": 640}}], indirect=True)
def test_nothing_is_wider_than_a_narrow_screen(house: House, window: Window) -> None:
    """Nothing scrolls sideways at 320 pixels, which also stands for 400 % zoom."""
    page = window.session(house.write(STORY, "A title that is longer than a narrow screen can hold in one line"))
    for key in ("G", "s", "g", "t"):
        page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), key
    page.locator("[role=treeitem]").filter(has_text="Approach A").click()
    expect(page.locator("#e-tryA")).to_be_in_viewport()
    assert window.found() == []


def test_print_loads_the_whole_branch_first(house: House, own_window: Window) -> None:
    """Printing renders the whole branch first and restores the page afterwards."""
    session_id = house.write(rows(400))
    own_window.page.add_init_script(
        "window.print = () => { window.printed = document.querySelectorAll('#entries > article').length;"
        " dispatchEvent(new Event('afterprint')); };"
    )
    page = own_window.session(session_id)
    few = page.locator("#entries > article").count()
    page.keyboard.press("Control+p")
    for _ in range(100):
        if page.evaluate("window.printed"):
            break
        page.wait_for_timeout(100)
    assert page.evaluate("window.printed") == 400 > few
    assert page.locator("#entries > article").count() < 100
    assert page.evaluate("scrollY") == 0


# -- stored text cannot run


@pytest.mark.promise("P36")
@pytest.mark.long
def test_no_payload_in_any_field_runs_loads_or_breaks_the_policy(house: House, own_window: Window) -> None:
    """Payloads in every field do nothing when entries are visited, opened, labelled, searched and shown as JSON."""
    poisoned = poisoned_entries()
    entries = [dict(made) for made in poisoned.entries]
    labels = [
        entry("label", f"label{n}", entries[-1]["id"], targetId=made["id"], label=PAYLOADS[n % len(PAYLOADS)])
        for n, made in enumerate(entries[:200])
    ]
    session_id = house.write([*entries, *labels], PAYLOADS[0])
    own_window.page.add_init_script(
        "window.print = () => { for (const fold of document.querySelectorAll('details')) fold.open = true; window.printed = 1; };"
    )
    page = own_window.session(session_id)
    page.keyboard.press("4")
    page.keyboard.press("i")
    page.get_by_role("button", name="Print this branch").click()  # renders everything
    for _ in range(300):
        if page.evaluate("window.printed"):
            break
        page.wait_for_timeout(100)
    assert page.locator("#entries > article").count() > 20 * len(PAYLOADS)
    assert page.evaluate("window.pwned") is None
    assert page.locator("#entries :is(script, iframe, object, [onerror])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    field = page.get_by_label("Find in all branches")
    for payload in PAYLOADS[::16]:
        field.fill(payload)
        field.press("Enter")
        expect(hits(page)).to_have_text(re.compile(r"\d/\d"))
    field.press("Escape")
    for name in ("all", "labels", "forks", "outline"):
        page.get_by_label("Entries to show in the tree").select_option(name)
    for key in "sgG{[]}jko":
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
    assert page.locator("#entries :is(script, iframe, object, [onerror])").count() == 0
    assert own_window.found() == []
