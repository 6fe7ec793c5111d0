"""A gateway with its HTTP interface, called without a network or through a real server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gateways import Scripted, gateway_in, running, scripted
from sessile.core.secret import Secret
from sessile.gateway.http.asgi import make_app
from sessile.gateway.http.problems import App
from sessile.gateway.service import Gateway

TOKEN = "canary-Abcdefghijklmnopqrstuvwxyz0123456789_-Z"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8787"
NEVER = {"session": {"reset": {"mode": "none"}}}  # a daily reset could fall into a test

Json = dict[str, Any]


class Http:
    """A client of a gateway in the same event loop; `runner` replies."""

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient, runner: Scripted) -> None:
        self.gateway = gateway
        self.client = client
        self.runner = runner

    async def ask(
        self, method: str, path: str, query: Json | None = None, *, body: Any = None, status: int = 200
    ) -> Json:
        """Return the response to a request, which must have this status."""
        response = await self.client.request(method, path, params=query, json=body)
        assert response.status_code == status, response.text
        if status >= 400:
            check_problem(response)
        found: Json = response.json()
        return found

    async def get(self, path: str, **query: Any) -> Json:
        """Return the response to a GET request."""
        return await self.ask("GET", path, query)

    async def post(self, path: str, **body: Any) -> Json:
        """Return the response to a POST request."""
        return await self.ask("POST", path, body=body)

    async def say(self, message: str, key: str = "main", **body: Any) -> Json:
        """Send a message and wait for the reply."""
        return await self.post("/v1/chat/send", message=message, key=key, wait=True, **body)

    async def refusal(self, method: str, path: str, query: Json | None = None, *, body: Any = None) -> tuple[int, str]:
        """Return status and detail of a refused request."""
        response = await self.client.request(method, path, params=query, json=body)
        check_problem(response)
        return response.status_code, response.json()["detail"]

    async def texts(self, key: str = "main") -> list[str]:
        """Return the texts in the history of a conversation, with silent answers as "…"."""
        entries = (await self.get("/v1/session/history", key=key))["entries"]
        return [
            "…" if entry.get("silent") else "".join(block.get("text", "") for block in entry["message"]["content"])
            for entry in entries
            if "message" in entry
        ]


def check_problem(response: httpx.Response) -> None:
    """Assert that an error is a problem document without tracebacks or local paths."""
    assert response.status_code >= 400, response.text
    assert response.headers["content-type"] == "application/problem+json", response.text
    told = response.json()
    assert sorted(told) == ["detail", "hint", "status", "title", "type"]
    assert told["status"] == response.status_code
    assert "Traceback" not in response.text and TOKEN not in response.text
    assert "/tmp/" not in response.text and "/dev/shm/" not in response.text


@asynccontextmanager
async def http(folder: Path, config: Json | None = None, *, seconds: float = 30, **options: Any) -> AsyncIterator[Http]:
    """Run a gateway for at most some seconds and yield a client with its token."""
    usual: Json = {"durability": "process", "patience": 2.0}
    gateway = gateway_in(folder, NEVER | (config or {}), **usual | options)
    runner = scripted(gateway)
    transport = httpx.ASGITransport(make_app(gateway, Secret(TOKEN)))
    async with (
        running(gateway, seconds),
        httpx.AsyncClient(transport=transport, base_url=BASE, headers=BEARER, timeout=20) as client,
    ):
        yield Http(gateway, client, runner)


@contextmanager
def served(
    folder: Path,
    config: Json | None = None,
    *,
    echo: bool = False,
    around: Callable[[App], App] = lambda app: app,
    **options: Any,
) -> Iterator[tuple[str, Scripted]]:
    """Run a gateway behind a real server in a thread; yield its address and the runner.

    `around` may wrap the application.
    """
    usual: Json = {"durability": "process", "patience": 2.0}
    gateway = gateway_in(folder, NEVER | (config or {}), **usual | options)
    runner = Scripted() if echo else scripted(gateway)
    settings = uvicorn.Config(
        around(make_app(gateway, Secret(TOKEN))),
        port=0,
        log_config=None,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", runner
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
