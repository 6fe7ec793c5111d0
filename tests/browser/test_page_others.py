"""The other pages in a browser: overview, sessions, search, stats, sharing, comparison and the gateway."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Download, expect

from browser_payloads import PAYLOADS
from browser_window import Windows
from builders import assistant, user
from http_rig import BEARER, TOKEN, served
from page_rig import WEBHOOKS, Visitor
from sessile import Store

SECRET = "ghp_N0tARealKeyN0tARealKeyN0tARealKeyN0t"  # in the session "Deploy script prints too much"
COMPARED = f"/s/{WEBHOOKS}?branch=deadbee1&vs=9f31c2a0"
PAGES = (
    "/",
    "/sessions",
    "/search?q=retry",
    "/stats?since=90d",
    f"/share/{WEBHOOKS}?personal=true",
    COMPARED,
    "/gateway",
)
STORABLE = [payload for payload in PAYLOADS if not any("\ud800" <= letter <= "\udfff" for letter in payload)]

# Controls without a name, and controls that are too small unless they are inline.
WRONG = """[...document.querySelectorAll("main :is(a, button, select, summary, textarea):not(.entry *)")].filter((one) => {
  const { width, height } = one.getBoundingClientRect();
  const isInLine = getComputedStyle(one).display === "inline";
  const name = one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length;
  return one.checkVisibility() && (!name || (!isInLine && (width < 24 || height < 23.5)));
}).map((one) => one.outerHTML.slice(0, 200))"""


@pytest.fixture
def window(windows: Windows, demo: str) -> Iterator[Visitor]:
    with windows.window(Visitor, demo, permissions=["clipboard-read", "clipboard-write"]) as visitor:
        yield visitor


def saved(download: Download) -> str:
    return Path(download.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_quiet_asks_nobody_else_names_its_controls_and_fits_on_a_narrow_screen(
    window: Visitor, path: str
) -> None:
    """A page logs nothing, violates no policy, names its controls, and does not scroll sideways at 320 pixels."""
    page = window.open(path)
    expect(page.locator("main .loading")).to_have_count(0)
    page.wait_for_load_state("networkidle" if path != "/gateway" else "load")
    assert TOKEN not in page.url
    assert page.evaluate(WRONG) == []
    for width in (1280, 320):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
    assert window.found() == []


# -- overview


def test_the_overview_leads_on(window: Visitor) -> None:
    """The overview links to sessions, a search and warnings, and copies the resume command."""
    page = window.open("/")
    expect(page.locator(".cards > li")).to_have_count(5)
    page.locator(".card", has_text="Webhook retries").filter(has_text="3 branches").get_by_role("button").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"sessile resume {WEBHOOKS}"
    page.get_by_role("link", name="Show").click()
    expect(page).to_have_url(re.compile(r"/sessions\?has=finding$"))
    page.go_back()
    page.get_by_role("searchbox").fill("tenacity")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/search\?q=tenacity$"))
    assert window.found() == []


# -- sessions


def test_a_filter_is_in_the_address_and_going_back_takes_it_away(window: Visitor) -> None:
    """A filter is part of the URL, keeps the keyboard focus, and is undone by going back."""
    page = window.open("/sessions")
    total = page.locator(".cards > li").count()
    choice = page.get_by_role("complementary").get_by_role("link", name="shop-frontend")
    choice.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?project=%2Fhome%2Fana%2Fshop-frontend$"))
    expect(page.get_by_role("link", name="Remove the filter shop-frontend")).to_be_focused()
    rows = page.locator(".cards > li")
    assert 0 < rows.count() == page.locator(".facts-line", has_text="shop-frontend").count() < total
    page.go_back()
    expect(rows).to_have_count(total)
    page.go_forward()
    page.get_by_role("link", name="Clear filters").click()
    expect(rows).to_have_count(total)
    assert window.found() == []


def test_words_narrow_the_list_while_somebody_types(window: Visitor) -> None:
    """The list is filtered while typing, and an empty result offers to clear the filters."""
    page = window.open("/sessions")
    page.keyboard.press("/")
    page.keyboard.type("webhook retries")
    expect(page.locator(".cards > li")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"\?q=webhook\+retries$"))
    page.keyboard.type(" xyzzy")
    expect(page.get_by_role("heading", name="No matching sessions.")).to_be_visible()
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator(".cards > li").first).to_be_visible()
    expect(page).to_have_url(re.compile(r"/sessions$"))
    assert window.found() == []


def test_what_the_list_hides_is_told_and_shown_on_demand(window: Visitor) -> None:
    """The number of hidden sessions is shown, and a link lists them."""
    page = window.open("/sessions")
    told = page.locator(".page-head")
    expect(told).to_contain_text("hidden: 1 empty, 1 by sub-agents")
    before = page.locator(".cards > li").count()
    told.get_by_role("link", name="Show").click()
    expect(page.locator(".cards > li")).to_have_count(before + 2)
    assert window.found() == []


def test_a_session_is_pinned_and_renamed_in_its_row(window: Visitor) -> None:
    """Pinning and renaming a session in the list are persistent."""
    page = window.open("/sessions?q=flaky")
    row = page.locator(".card", has_text="Flaky test in CI")
    row.get_by_role("button", name="Pin").click()
    expect(row.get_by_role("button", name="Pin")).to_have_attribute("aria-pressed", "true")
    row.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Name of the session").fill("Flaky <b>test</b>")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Flaky <b>test</b>")).to_be_focused()
    page.reload()
    row = page.locator(".card", has_text="Flaky <b>test</b>")
    expect(row.get_by_role("button", name="Pin")).to_have_attribute("aria-pressed", "true")
    assert window.found() == []


# -- search


def test_a_hit_leads_to_its_entry(window: Visitor) -> None:
    """A hit marks the words and links to its entry, also on an abandoned branch."""
    page = window.open("/search?q=TransientError")
    assert {text.lower() for text in page.locator("mark").all_inner_texts()} == {"transienterror"}
    page.locator(".hit", has_text="on an abandoned branch").filter(has_text="Two tests fail").click()
    expect(page).to_have_url(f"{window.address}/s/{WEBHOOKS}#e-deadbee1")
    expect(page.locator("#e-deadbee1")).to_be_in_viewport()
    assert window.found() == []


def test_fields_that_were_not_searched_show_what_is_in_them(window: Visitor) -> None:
    """Fields that were not searched show their number of hits and can be added."""
    page = window.open("/search?q=FAILED")
    chip = page.get_by_role("navigation", name="Where").get_by_role("link", name="tool output")
    expect(chip).to_contain_text(re.compile(r"\+[1-9]"))
    chip.click()
    expect(page).to_have_url(re.compile(r"in=text%2Cthinking%2Ctool_input%2Ctool_result$"))
    expect(page.locator(".hit", has_text="tool output").first).to_be_visible()
    assert window.found() == []


def test_a_search_without_hits_says_how_words_are_found(window: Visitor) -> None:
    """A search without hits links to the fields that have some."""
    page = window.open("/search?q=FAILED&in=thinking")
    expect(page.get_by_text("No results.")).to_be_visible()
    page.get_by_role("link", name=re.compile(r"^\d+ in tool output$")).click()
    expect(page.locator(".hit").first).to_be_visible()


# -- stats


def test_every_chart_has_a_table_and_the_table_is_a_file(window: Visitor) -> None:
    """Every chart has a table, and its CSV file has the same rows."""
    page = window.open("/stats?since=90d")
    figures = page.locator("figure")
    assert figures.count() == page.locator("figure svg").count() == page.locator("figure table").count() == 7
    figure = figures.filter(has=page.get_by_role("heading", name="Models by cost"))
    figure.locator("summary").click()
    with page.expect_download() as waiting:
        figure.get_by_role("link", name="CSV").click()
    assert waiting.value.suggested_filename == "sessile-models.csv"
    written = list(csv.reader(saved(waiting.value).splitlines()))
    cells = [row.locator("th, td").all_inner_texts() for row in figure.locator("tr").all()]
    assert [row[0] for row in written] == [row[0] for row in cells] and len(written) > 3
    page.get_by_role("link", name="by week").click()
    expect(page.get_by_role("heading", name="Cost per week, by model")).to_be_visible()
    assert window.found() == []


# -- sharing


def test_a_shared_file_has_secrets_replaced_unless_they_are_kept(window: Visitor) -> None:
    """A shared file has its secrets redacted unless they are kept, and the page never contains them."""
    page = window.open("/sessions?q=deploy+script")
    address = page.get_by_role("link", name="Deploy script prints too much").get_attribute("href")
    assert address is not None
    page = window.open(address.replace("/s/", "/share/"))
    assert SECRET not in page.content()
    page.get_by_role("radio", name="Markdown").check()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    assert waiting.value.suggested_filename.endswith(".md")
    text = saved(waiting.value)
    assert SECRET not in text and "[REDACTED:github-token#1]" in text
    page.get_by_role("group", name="github-token").get_by_text("keep").click()
    expect(page.get_by_text("1 finding will be readable")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    text = saved(waiting.value)
    assert SECRET in text and "[REDACTED:anthropic-key#1]" in text
    assert window.found() == []


# -- two branches


def test_branches_stand_beside_each_other(window: Visitor) -> None:
    """The comparison shows the common entries, the outcome of each branch, and the difference of the answers."""
    page = window.open(COMPARED)
    expect(page.get_by_text("7 entries in common")).to_be_visible()
    assert page.locator(".outcome tr", has_text="failures").locator("td").all_inner_texts() == ["1", "0", "-1"]
    expect(page.locator(".words ins", has_text="All 8")).to_be_visible()
    left, right = page.locator(".turn").nth(2), page.locator(".turn").nth(3)
    expect(left).to_contain_text("Let's try approach A")
    expect(right).to_contain_text("Actually, use tenacity after all")
    tops = [side.locator(".message.user").bounding_box() for side in (left, right)]
    assert tops[0] is not None and tops[1] is not None and tops[0]["y"] == tops[1]["y"]
    page.get_by_role("link", name="Swap").click()
    expect(page.locator(".side-name").first).to_have_text("A · 9f31c2a0")
    page.locator(".turn .permalink").first.click()
    expect(page).to_have_url(re.compile(rf"/s/{WEBHOOKS}#e-\w+$"))
    assert window.found() == []


def test_branches_that_are_not_there_are_said_to_be_missing(window: Visitor) -> None:
    """An unknown branch shows an error."""
    page = window.open(f"/s/{WEBHOOKS}?branch=deadbee1&vs=nobody")
    expect(page.get_by_role("alert")).to_contain_text("not in this session")


# -- the gateway


def test_the_chat_box_gets_an_answer_and_takes_commands(window: Visitor) -> None:
    """The chat box shows replies, command output and the start of a new session."""
    page = window.open("/gateway?key=dashboard:chat")
    field = page.get_by_role("textbox", name="Message")
    log = page.get_by_role("log")
    field.fill("good *morning* <b>you</b>")
    page.keyboard.press("Enter")
    expect(log.locator(".message.assistant .prose em")).to_have_text("morning")
    expect(log.locator("article[id^='e-']")).to_have_count(2)
    expect(log).to_contain_text("<b>you</b>")
    expect(page.locator(".keys-list [aria-current]")).to_contain_text("agent:main:dashboard:chat")
    field.fill("/help")
    page.get_by_role("button", name="Send").click()
    expect(log).to_contain_text("/compact [instructions]")
    field.fill("/new")
    page.keyboard.press("Enter")
    expect(log).to_contain_text("New session")
    expect(page.locator(".about-key summary")).to_have_text("1 earlier session")
    page.reload()
    expect(page.locator(".about-key summary")).to_have_text("1 earlier session")
    assert window.found() == []


def test_what_others_say_in_a_conversation_shows_up(window: Visitor) -> None:
    """Messages of other clients appear in the conversation and in the list."""
    page = window.open("/gateway?key=dashboard:shared")
    with httpx.Client(base_url=window.address, headers=BEARER) as client:
        for key in ("dashboard:shared", "dashboard:aside"):
            sent = {"message": f"said in {key}", "key": key, "wait": True}
            client.post("/v1/chat/send", json=sent).raise_for_status()
    expect(page.get_by_role("log").locator("article")).to_have_count(2)
    expect(page.locator(".keys-list a").first).to_contain_text("dashboard:aside")
    assert window.found() == []


def test_words_are_seen_as_they_come_and_can_be_stopped(browser: Browser, tmp_path: Path) -> None:
    """A reply is shown while it is streamed, and keeps its text when it is stopped."""
    import anyio

    with served(tmp_path) as (address, runner):
        runner.gate = anyio.Event()
        context = browser.new_context()
        window = Visitor(context, address)
        page = window.open("/gateway")
        page.get_by_role("textbox", name="Message").fill("slowly")
        page.keyboard.press("Enter")
        log = page.get_by_role("log")
        expect(log.locator(".message.assistant")).to_contain_text("re:")
        expect(page.locator(".keys-list .live")).to_have_text("● 1 turn")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        page.get_by_role("button", name="Stop").click()
        expect(log).to_contain_text("Stopped.")
        expect(log.locator(".message.assistant")).to_contain_text("re:")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        assert window.found() == []
        context.close()


# -- empty stores and hostile content


def test_pages_of_an_empty_store_say_what_to_do(browser: Browser, tmp_path: Path) -> None:
    """Pages of an empty store say what to do, and log nothing."""
    with served(tmp_path, echo=True) as (address, _):
        context = browser.new_context()
        window = Visitor(context, address)
        for path in ("/", "/sessions"):
            page = window.open(path)
            expect(page.get_by_role("heading", name="No sessions yet")).to_be_visible()
            expect(page.get_by_text("sessile --demo serve")).to_be_visible()
        page = window.open("/search?q=anything")
        expect(page.get_by_text("No results.")).to_be_visible()
        page = window.open("/stats")
        expect(page.get_by_text("No usage in this period.").first).to_be_visible()
        page = window.open("/gateway")
        expect(page.get_by_text("No messages yet.")).to_be_visible()
        page.get_by_role("textbox", name="Message").fill("hello")
        page.keyboard.press("Enter")
        expect(page.locator(".keys-list [aria-current]")).to_contain_text("agent:main:main")
        assert window.found() == []
        context.close()


@pytest.mark.promise("P36")
@pytest.mark.long
def test_nothing_that_is_stored_runs_in_these_pages(browser: Browser, tmp_path: Path) -> None:
    """Payloads in titles, messages and keys do nothing on any of these pages."""
    store = Store(tmp_path, durability="process")
    ids = []
    for number, payload in enumerate(STORABLE):
        with store.create(f"/work/{payload.replace('/', '')[:40]}", publish=True) as session:
            session.append_message(user(f"needle {payload} password={SECRET}"))
            session.append_message(assistant(f"needle {payload}", "anthropic", payload[:80]))
            if number % 2:
                session.set_session_name(payload)
            ids.append(session.id)
    with served(tmp_path) as (address, _), httpx.Client(base_url=address, headers=BEARER) as client:
        for number, payload in enumerate(STORABLE[:40]):
            sent = {"message": payload, "key": f"hook:{number}:{payload[:100]}", "wait": True}
            client.post("/v1/chat/send", json=sent).raise_for_status()
        context = browser.new_context()
        window = Visitor(context, address)
        shared = [f"/share/{one}" for one in ids[:3]]
        for path in ("/", "/sessions", "/search?q=needle&limit=200", "/stats", *shared, "/gateway"):
            page = window.open(path)
            expect(page.locator("main .loading")).to_have_count(0)
            assert page.evaluate("window.pwned") is None
            assert (
                page.locator("main :is(script, iframe, object, embed, style, link, form form, img[src^=http])").count()
                == 0
            )
        assert window.found() == []
        context.close()
