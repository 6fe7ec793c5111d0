"""The page and other sites: blocked requests, a fixed gateway address, and a token that is not leaked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from builders import user
from cli.gateways import serving
from evil_site import ATTACK, HOST, PAGE, EvilSite, evil_site
from figures import measured
from gateways import Scripted
from http_rig import TOKEN, served
from page_rig import Visitor, visiting, wait_until_indexed
from sessile import Store
from sessile.demo.corpus import bind_demo, make_demo
from sessile.gateway.http.problems import App, Message, Receive, Scope, Send

CANARY = "ca7nary"

# Parameter names that a page could read an address from, and values that would lead it elsewhere.
NAMES = (
    *(
        "gatewayUrl",
        "gateway",
        "gateway_url",
        "GATEWAYURL",
        "gatewayUrl[]",
        "api",
        "apiUrl",
        "api_base",
        "base",
        "baseUrl",
    ),
    *(
        "host",
        "endpoint",
        "server",
        "origin",
        "url",
        "ws",
        "wsUrl",
        "proxy",
        "redirect",
        "next",
        "session",
        "token",
        "config",
    ),
)
ELSEWHERE = ("{0}", "//{1}", "{0}/v1/", "http://127.0.0.1@{1}/", "{0}%23", "\\\\{1}", "%2F%2F{1}")


def addresses(site: EvilSite) -> Iterator[str]:
    """Yield page URLs that name another gateway in the query and the fragment, with some and with all names."""
    there = [form.format(site.origin, site.origin.removeprefix("http://")) for form in ELSEWHERE]
    named = [f"{name}={there[number % len(there)]}" for number, name in enumerate(NAMES)]
    for start in range(0, len(named), 3):
        some = "&".join(named[start : start + 3])
        yield f"/search?{some}#token={TOKEN}&{some}"
    for value in there:
        every = "&".join(f"{name}={value}" for name in NAMES)
        yield f"/search?q=x&{every}#token={TOKEN}&{every}"


TOUR = (
    *("overview", "sessions", "session", "session as the model saw it", "session with details"),
    *("diff", "search", "stats", "share", "gateway", "missing session"),
)


class Ear:
    """Wraps a gateway and records the status of its responses."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def around(self, app: App) -> App:
        """Return the wrapped gateway."""

        async def heard(scope: Scope, receive: Receive, send: Send) -> None:
            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.statuses.append(message["status"])
                await send(message)

            await app(scope, receive, noting)

        return heard


class House:
    """A gateway with a session that contains the canary; `statuses` are those of its responses."""

    def __init__(self, root: Path, address: str, runner: Scripted, statuses: list[int]) -> None:
        self.root = root
        self.address = address
        self.runner = runner
        self.statuses = statuses

    def state(self) -> dict[str, bytes]:
        """Return the contents of all session and conversation files."""
        files = [path for part in ("sessions", "agents") for path in (self.root / part).rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with Store(tmp_path, durability="process").create(f"/work/{CANARY}", publish=True) as session:
        session.set_session_name(CANARY)
        session.append_message(user(CANARY))
    ear = Ear()
    with served(tmp_path, around=ear.around) as (address, runner):
        wait_until_indexed(address)
        yield House(tmp_path, address, runner, ear.statuses)


@pytest.fixture(scope="module")
def worldly(browser: Browser) -> Iterator[Browser]:
    """Return a browser that resolves the other site's name to this machine, as after DNS rebinding."""
    assert browser.browser_type is not None
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--host-resolver-rules=MAP {HOST} 127.0.0.1",
        "--disable-features=LocalNetworkAccessChecks",  # so that the gateway, not the browser, rejects the requests
    ]
    launched = browser.browser_type.launch(executable_path=shutil.which("chromium"), args=arguments)
    yield launched
    launched.close()


@pytest.fixture(scope="module")
def site() -> Iterator[EvilSite]:
    with evil_site() as site:
        yield site


# -- requests of other sites (P34)


@pytest.mark.promise("P34")
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", HOST])
def test_a_page_of_another_site_reads_and_changes_nothing(
    worldly: Browser, house: House, site: EvilSite, name: str
) -> None:
    """Another site cannot read or change anything, with any kind of request, with or without the token."""
    before = house.state()
    context = worldly.new_context()
    page = context.new_page()
    page.goto(f"{site.origin}/games")
    target = house.address.replace("127.0.0.1", name)
    found = page.evaluate(ATTACK, {"target": target, "token": TOKEN, "canary": CANARY, "key": "main"})
    context.close()
    assert found["tried"] > 100
    assert found["reads"] == []
    assert house.statuses.count(403) > 50  # rejected by the gateway: the browser sent the requests
    assert house.state() == before and house.runner.asked == []
    measured("P34", "a page of another site in a browser", requests=found["tried"], read=0, changed=0)


@pytest.mark.promise("P34")
def test_a_name_that_suddenly_means_this_machine_opens_nothing(worldly: Browser, house: House) -> None:
    """After DNS rebinding, requests are same-origin for the browser but are rejected by the gateway."""
    before = house.state()
    context = worldly.new_context()
    page = context.new_page()
    target = house.address.replace("127.0.0.1", HOST)
    page.route(f"{target}/games", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.goto(f"{target}/games")
    found = page.evaluate(ATTACK, {"target": target, "token": TOKEN, "canary": CANARY, "key": "main"})
    refused = [one for one in found["reads"] if "forbidden-host" in one]
    assert len(refused) > 50  # the responses are readable, and all are the same refusal
    assert [one for one in found["reads"] if one not in refused] == []
    response = page.goto(f"{target}/#token={TOKEN}")
    assert response is not None and response.status == 403
    assert page.evaluate("sessionStorage.length") == 0
    context.close()
    assert house.state() == before and house.runner.asked == []
    measured("P34", "DNS rebinding", requests=found["tried"], read=0, changed=0)


@pytest.mark.promise("P34")
def test_the_attack_would_be_seen_to_succeed(worldly: Browser, house: House) -> None:
    """The same requests succeed from the page's own origin, so the attack itself works."""
    before = house.state()
    context = worldly.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(f"{house.address}/")
    found = page.evaluate(ATTACK, {"target": house.address, "token": TOKEN, "canary": CANARY, "key": "main"})
    context.close()
    assert any(CANARY in one for one in found["reads"]) and len(found["reads"]) > 30
    assert house.state() != before and house.runner.asked


# -- the token and the gateway address (P35)


@pytest.mark.promise("P35")
def test_a_tour_of_all_pages_asks_nobody_else_and_leaves_no_trace_of_the_token(
    browser: Browser, tmp_path: Path
) -> None:
    """A tour of all pages makes no foreign requests, and the token is in no URL, header, history, file or log."""
    root = tmp_path / "store"
    store = Store(root, durability="process")
    make_demo(store)
    bind_demo(store)
    with serving(root, environment={"HOME": str(tmp_path / "home")}) as gateway:
        token = gateway.token
        wait_until_indexed(gateway.url, token)
        with visiting(browser, gateway.url, token) as visitor:
            for sight in TOUR:
                visitor.see(sight)
                check_traces(visitor, token)
            visitor.page.reload()
            visitor.settled()
            check_traces(visitor, token)
            assert [one for one in visitor.found() if "status of 404" not in one] == []
            check_requests(visitor, token)
            measured("P35", "a tour of all pages", requests=len(visitor.asked), to_others=0, traces_of_the_token=0)
            visitor.page.goto("about:blank")
        code, out, err = gateway.end()
    assert code == 0
    assert token not in json.dumps(gateway.told) + out + err
    holding = [path.name for path in root.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert holding == ["gateway.token"]


def check_traces(visitor: Visitor, token: str) -> None:
    """Check that the page, its URL, its history and its other storage do not contain the token."""
    page = visitor.page
    assert page.url.startswith(visitor.address) and token not in page.url
    history = page.context.new_cdp_session(page).send("Page.getNavigationHistory")
    assert [entry["url"] for entry in history["entries"] if token in entry["url"]] == []
    assert page.evaluate("[document.cookie, JSON.stringify(localStorage), document.referrer, window.name]")[0] == ""
    assert token not in page.evaluate("JSON.stringify(localStorage) + document.referrer + window.name")
    assert token not in page.content()
    assert page.evaluate("JSON.stringify(history.state)").find(token) < 0


def check_requests(visitor: Visitor, token: str) -> None:
    """Check that no URL has the token, and that only requests below /v1 send it, in their header."""
    assert len(visitor.asked) > 100
    paths = [request.url.split("#")[0].removeprefix(visitor.address) for request in visitor.asked]
    assert [path for path in paths if token in path] == []
    by_path = {path.split("?")[0]: request for path, request in zip(paths, visitor.asked, strict=True)}
    for path, request in by_path.items():
        headers = request.all_headers()
        assert not headers.get("referer") and "cookie" not in headers, request.url
        assert (headers.pop("authorization", None) == f"Bearer {token}") == path.startswith("/v1/"), request.url
        assert token not in json.dumps(headers)


@pytest.mark.promise("P35")
def test_no_address_changes_whom_the_page_asks(worldly: Browser, house: House, site: EvilSite) -> None:
    """No URL parameter makes the page contact another gateway."""
    site.told.clear()
    with visiting(worldly, house.address) as visitor:
        for path in addresses(site):
            visitor.page.goto("about:blank")
            visitor.page.goto(f"{house.address}{path}", wait_until="commit")
            visitor.page.wait_for_selector("main h1")
            assert visitor.page.url in (f"{house.address}/search", f"{house.address}/search?q=x"), path
        # Values left in the browser's storage change nothing either.
        visitor.page.evaluate(
            "(there) => { for (const name of ['gatewayUrl', 'sessile.gateway', 'sessile.url', 'apiUrl']) {"
            " localStorage.setItem(name, there); sessionStorage.setItem(name, there); } window.name = there; }",
            site.origin,
        )
        visitor.page.reload()
        visitor.settled()
        assert visitor.found() == []
    assert site.told == []
    measured("P35", "addresses that name another gateway", addresses=len(list(addresses(site))), followed=0)
