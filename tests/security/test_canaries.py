"""Stored secrets appear in no export, error, log, API document or file of the page.

A client with the token sees sessions unredacted. These tests check what leaves for other readers, and unrequested output.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest

from figures import measured
from http_rig import BASE, TOKEN, http
from mcp_server.test_mcp_secrets import PLACES, canary, leaks, poisoned_store
from sessile.core.secret import Secret
from sessile.gateway.http.asgi import all_operations, make_app

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P29")]

FORMS = ("html", "md", "txt", "jsonl")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_no_secret_leaves_in_an_export_an_error_or_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets are in no form of an export, open path, error of any operation, or log record."""
    store = poisoned_store(tmp_path)
    ids = [info.id for info in store.list_all()]
    plain = [name for name in ids if not leaks(name)]  # an error repeats the id that the request names
    exports, errors, opened = [], [], []
    with caplog.at_level(logging.DEBUG):
        async with http(tmp_path) as gate:
            for name in ids:
                for form in FORMS:
                    response = await gate.client.get("/v1/view/export", params={"id": name, "form": form})
                    assert response.status_code == 200, response.text[:200]
                    exports.append(response.text)
            transport = httpx.ASGITransport(make_app(gate.gateway, Secret(TOKEN)))
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as anybody:
                for operation in all_operations():
                    if operation.is_open:
                        opened.append((await anybody.get(operation.path.replace("{id}", plain[0]))).text)
            opened.append((await gate.client.get("/v1/openapi.json")).text)
            for operation in all_operations():
                for query in wrong(plain):
                    if operation.path == "/v1/events":
                        continue
                    response = await gate.client.request(operation.method, operation.path, params=query, json=query)
                    if response.status_code >= 400:
                        errors.append(response.text)
    assert len(exports) == len(ids) * len(FORMS) and "[REDACTED:" in exports[0]
    # An id identifies the session and is not redacted: ids are not made from secrets.
    assert {place for text in exports for place in leaks(text)} <= {"session"}
    assert len(errors) > 100 and [text for text in errors if leaks(text)] == []
    assert [leaks(text) for text in opened if leaks(text)] == []
    logged = "".join(record.getMessage() for record in caplog.records if not record.name.startswith("httpx"))
    assert leaks(logged) == []
    counts = {"places": len(PLACES) - 1, "exports": len(exports), "errors": len(errors), "open_paths": len(opened)}
    measured("P29", "canaries in the output of a gateway", **counts, log_characters=len(logged), leaks=0)


def wrong(ids: list[str]) -> list[dict[str, str]]:
    """Return requests with a session that holds secrets and parameters that do not exist."""
    return [
        {"id": ids[0], "entry": "nothing", "branch": "nothing", "number": "99999"},
        {"id": ids[-1], "sessionId": ids[-1], "key": "nothing", "turn": "nothing", "form": "nothing"},
        {"key": "main", "sessionId": "nothing", "q": "", "to": "nothing", "limit": "-1"},
    ]


async def test_the_canaries_would_be_seen(tmp_path: Path) -> None:
    """An export without redaction contains every canary, except in a file name and an unreadable line."""
    store = poisoned_store(tmp_path)
    seen: set[str] = set()
    async with http(tmp_path) as gate:
        for info in store.list_all():
            asked = {"id": info.id, "form": "jsonl", "redact": "off"}
            seen |= set(leaks((await gate.client.get("/v1/view/export", params=asked)).text))
    assert set(PLACES) - seen <= {"file", "damage"} and leaks(json.dumps(canary("prompt"))) == ["prompt"]
