"""Limits of the gateway, as a page sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cli.gateways import serving

SEND = """async ([token, size]) => {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const response = await fetch("/v1/chat/send", { method: "POST", headers, body: "x".repeat(size) });
  return [response.status, response.headers.get("content-type"), (await response.json()).status];
}"""


@pytest.mark.promise("P39")
def test_a_page_sees_that_its_body_is_too_large(browser: Browser, tmp_path: Path) -> None:
    """A body of nine megabytes is answered with a problem document, not with a network error."""
    with serving(tmp_path / "root") as gateway:
        page = browser.new_page()
        page.goto(f"{gateway.url}/")
        for _ in range(3):
            told = page.evaluate(SEND, [gateway.token, 9 << 20])
            assert told == [413, "application/problem+json", 413]
        page.close()
