"""The ASGI application: authentication of every route, unknown paths and methods, the OpenAPI document and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from figures import measured
from gateways import gateway_in
from http_rig import BASE, BEARER, TOKEN, Json, check_problem, http
from sessile.core.secret import Secret
from sessile.gateway.http.asgi import _documented, all_operations, make_app
from sessile.gateway.http.problems import Message
from sessile.gateway.http.wire import Operation, ResponseModel, as_json

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y1")]

EVERY = all_operations()
GUARDED = [operation for operation in EVERY if not operation.is_open]
OPEN = [operation for operation in EVERY if operation.is_open]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def name(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


# -- the token


@pytest.mark.promise("P33")
@pytest.mark.parametrize("operation", GUARDED, ids=name)
async def test_no_route_answers_without_the_token(tmp_path: Path, operation: Operation) -> None:
    """A guarded route answers 401 to a missing, wrong, shortened, extended, misplaced or differently cased token."""
    async with http(tmp_path) as gate:
        app = make_app(gate.gateway, Secret(TOKEN))
        attempts: list[tuple[Json, Json]] = [
            ({}, {}),
            ({"Authorization": "Bearer wrong"}, {}),
            ({"Authorization": f"Bearer {TOKEN[:-1]}"}, {}),
            ({"Authorization": f"Bearer {TOKEN}x"}, {}),
            ({"Authorization": f"Bearer {TOKEN.swapcase()}"}, {}),
            ({"Authorization": f"Basic {TOKEN}"}, {}),
            ({"X-Token": TOKEN}, {}),
            ({"Cookie": f"token={TOKEN}; Authorization=Bearer {TOKEN}"}, {}),
            ({}, {"token": TOKEN, "access_token": TOKEN}),
        ]
        for number, (headers, query) in enumerate(attempts):
            # From an address of its own: the answers to one that sends wrong tokens take longer and longer.
            transport = httpx.ASGITransport(app, client=(f"10.0.0.{number}", 1))
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                for method in (operation.method, "HEAD", "OPTIONS"):
                    response = await client.request(
                        method, operation.path, headers=headers, params=query, json={"token": TOKEN}
                    )
                    assert response.status_code == 401, (method, headers, query)
                    assert response.headers["www-authenticate"] == "Bearer" and TOKEN not in response.text
                    measured("P33", "routes without the token", requests=1, let_in=0, leaks=0)
        assert (await gate.get("/v1/sessions"))["count"] == 0


@pytest.mark.promise("P33")
async def test_only_the_page_and_the_check_of_health_are_open(tmp_path: Path) -> None:
    """Only GET routes outside /v1 are open, and they expose no session content or local paths."""
    assert not [operation.path for operation in OPEN if operation.path.startswith("/v1") or operation.method != "GET"]
    async with http(tmp_path) as gate:
        session = (await gate.say("canary-words"))["sessionId"]
        transport = httpx.ASGITransport(make_app(gate.gateway, Secret(TOKEN)))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            for path in (operation.path.replace("{id}", session) for operation in OPEN):
                response = await client.get(path)
                assert response.status_code == 200, path
                assert "canary" not in response.text and str(tmp_path) not in response.text
                assert (await client.post(path, json={})).status_code == 401
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            for path in ("/static/", "/static/../x", "/static/nothing.js", "/v1", "/healthz/"):
                assert (await client.get(path)).status_code in (401, 404), path


# -- paths and methods


@pytest.mark.promise("P40")
async def test_a_path_that_is_none_is_told(tmp_path: Path) -> None:
    """An unknown path returns a 404 problem, not a redirect."""
    async with http(tmp_path) as gate:
        for path in ("/nope", "/v1/sessions/", "/v1/session/nope", "/v1", "/%00", "/v1/%2e%2e/x"):
            response = await gate.client.get(path)
            check_problem(response)
            assert response.status_code == 404, path
            assert response.json()["hint"] == "GET /v1/openapi.json lists all paths"


@pytest.mark.promise("P40")
@pytest.mark.parametrize("operation", EVERY, ids=name)
async def test_a_method_that_a_path_does_not_have_is_told_with_those_that_it_has(
    tmp_path: Path, operation: Operation
) -> None:
    """A method that a path does not support returns 405 with an Allow header."""
    has = {one.method for one in EVERY if one.path == operation.path}
    if "GET" in has and not operation.streams:
        has.add("HEAD")
    async with http(tmp_path) as gate:
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} - has:
            response = await gate.client.request(method, operation.path)
            assert response.status_code == 405, method
            assert set(response.headers["allow"].split(", ")) == has
            if method != "HEAD":
                check_problem(response)


async def test_head_is_get_without_the_body(tmp_path: Path) -> None:
    """HEAD returns the same headers as GET and an empty body."""
    async with http(tmp_path) as gate:
        for path in ("/", "/healthz", "/v1/models", "/v1/openapi.json"):
            get, head = await gate.client.get(path), await gate.client.head(path)
            assert head.status_code == 200 and head.content == b""
            assert dict(head.headers) == dict(get.headers)


# -- undocumented input


@pytest.mark.promise("P40")
@pytest.mark.parametrize("operation", GUARDED, ids=name)
async def test_a_name_that_is_not_documented_is_refused_by_name(tmp_path: Path, operation: Operation) -> None:
    """Undocumented query parameters and body members are rejected by name; the OpenAI body accepts unknown members."""
    async with http(tmp_path) as gate:
        response = await gate.client.request(operation.method, operation.path, params={"gatewayUrl": "x"}, json={})
        assert response.status_code == 400, response.text
        if operation.query is not None:
            assert "gatewayUrl" in response.text
        if operation.body is not None and operation.failure is None:
            needed = {"key": "main"} if operation.query is not None else {}
            response = await gate.client.request(
                operation.method, operation.path, params=needed, json={"gatewayUrl": 1}
            )
            check_problem(response)
            assert response.status_code == 400 and "gatewayUrl" in response.json()["detail"]


@pytest.mark.promise("P40")
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b'{"message":"\xff"}', b'{"message":"\\ud800"}', b"[" * 100_000, b'{"message":1e999}'],
)
async def test_a_body_that_is_no_object_is_refused(tmp_path: Path, body: bytes) -> None:
    """An empty, malformed, too deeply nested or non-object body returns 400."""
    async with http(tmp_path) as gate:
        headers = {"Content-Type": "application/json"}
        for path in ("/v1/chat/send", "/v1/session/fork"):
            response = await gate.client.post(path, content=body, headers=headers)
            check_problem(response)
            assert response.status_code == 400


@pytest.mark.promise("P40")
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=",
        "limit=1&limit=2",
        "offset=-1",
        "active=0",
        "active=nan",
        "active=null",
        "includeGlobal=perhaps",
        "search=%ff",
        "%ff=1",
        "&".join(["a=1"] * 200),
        "label=" + "x" * 2_000,
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused(tmp_path: Path, query: str) -> None:
    """Query values that are invalid, out of range, repeated or not UTF-8 return 400."""
    async with http(tmp_path) as gate:
        request = gate.client.build_request("GET", "/v1/sessions")
        request.url = request.url.copy_with(raw_path=b"/v1/sessions?" + query.encode("latin-1"))
        response = await gate.client.send(request)
        check_problem(response)
        assert response.status_code == 400


def test_what_json_cannot_hold_is_told_as_javascript_would() -> None:
    """Lone surrogates are escaped and infinite numbers become null."""

    class Value(ResponseModel, frozen=True):
        some_thing: Any

    assert as_json(Value(some_thing="\ud83d")) == b'{"someThing":"\\ud83d"}'
    assert json.loads(as_json(Value(some_thing=["\ud83d", float("inf"), 2**70]))) == {
        "someThing": ["\ud83d", None, 2**70]
    }


# -- the OpenAPI document


async def test_the_document_has_every_operation_and_only_those(tmp_path: Path) -> None:
    """The document lists every operation once, with its parameters, request body and responses."""
    async with http(tmp_path) as gate:
        document = await gate.get("/v1/openapi.json")
    assert document["openapi"] == "3.1.0" and document["security"] == [{"token": []}]
    told = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert told == {
        name(operation) for operation in all_operations() if operation.path.startswith(("/v1/", "/healthz"))
    }
    identifiers = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(identifiers)) == len(identifiers)
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            assert one["summary"] and "200" in one["responses"], (path, method)
            assert {"400", "401", "403", "429"} <= set(one["responses"])
            assert ("requestBody" in one) == (method in ("post", "patch"))
    assert document["paths"]["/healthz"]["get"]["security"] == []
    limit = next(p for p in document["paths"]["/v1/sessions"]["get"]["parameters"] if p["name"] == "limit")
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}


async def test_every_reference_of_the_document_leads_somewhere(tmp_path: Path) -> None:
    """Every schema reference resolves, and every schema is used."""
    async with http(tmp_path) as gate:
        document = await gate.get("/v1/openapi.json")
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named == set(document["components"]["schemas"])


def test_every_part_of_the_interface_says_what_it_is_for() -> None:
    """Every request and response model has a docstring, which becomes its description."""
    for operation in _documented():
        for kind in (operation.query, operation.headers, operation.body, *operation.answers.values()):
            assert kind is None or kind.__doc__, name(operation)


# -- the page


async def test_the_page_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """The page loads only existing static files, has no inline script or style, and ignores its query string."""
    async with http(tmp_path) as gate:
        page = await gate.client.get("/?gatewayUrl=https://evil.example")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.text == (await gate.client.get("/")).text
        linked = re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="([^"]+)"', page.text)
        named = [path for path in linked if not path.startswith("data:")]
        assert len(named) >= 2
        for path in named:
            assert path.startswith("/static/") and (await gate.client.get(path)).status_code == 200, path
        assert not re.search(r"<script>|\bstyle=|\bon\w+=", page.text)


async def test_the_application_starts_and_ends_its_gateway(tmp_path: Path) -> None:
    """ASGI lifespan events start and stop the gateway; token counts are written at shutdown."""
    app = make_app(gateway_in(tmp_path, durability="process"), Secret(TOKEN))
    told: list[str] = []
    started, over = anyio.Event(), anyio.Event()

    async def receive() -> Message:
        if started.is_set():
            await over.wait()
            return {"type": "lifespan.shutdown"}
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        told.append(message["type"])
        started.set()

    async def live() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await started.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=BEARER) as client:
            answer = await client.post("/v1/chat/send", json={"message": "hello", "wait": True})
            assert answer.json()["reply"]["text"] == "hello"
        over.set()
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    (entry,) = json.loads((tmp_path / "agents/main/sessions/sessions.json").read_bytes()).values()
    assert entry["outputTokens"] > 0
