"""A gateway without a configured model connects to no address, even if a message, an image or a setting names one.

The interpreter's audit hook reports every connection, name lookup and started program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from figures import measured
from http_rig import http
from sessile.gateway.http.asgi import all_operations

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P42")]

EVENTS = {
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "urllib.Request", "http.client.connect"),
}
# Internal addresses that no page or message may reach.
INSIDE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/",
    "http://127.0.0.1:22/",
    "http://127.1/",
    "http://0/",
    "http://[::1]:8787/",
    "http://localhost:8787/v1/sessions",
    "http://localtest.me/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "https://evil.example@127.0.0.1/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:25/",
    "ftp://127.0.0.1/",
    "\\\\127.0.0.1\\share",
]


class Watch:
    """Record every connection of this process while listening. An audit hook cannot be removed, so there is one instance."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Any]] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._seen is not None and event in EVENTS:
            self._seen.append((event, arguments[:2]))

    @contextmanager
    def listening(self) -> Iterator[list[tuple[str, Any]]]:
        """Yield the list of events that are recorded during the block."""
        seen: list[tuple[str, Any]] = []
        self._seen = seen
        try:
            yield seen
        finally:
            self._seen = None


WATCH = Watch()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_gateway_without_a_model_connects_to_nobody(tmp_path: Path) -> None:
    """Every operation, and messages with addresses in text, images, files and model names, open no connection."""
    asked = 0
    async with http(tmp_path) as gate:
        with WATCH.listening() as seen:
            for address in INSIDE:
                part: Any = {"type": "image_url", "image_url": {"url": address}}
                text = {"type": "text", "text": f"read {address} ![x]({address})"}
                bodies: list[tuple[str, Any]] = [
                    ("/v1/chat/send", {"message": f"read {address} ![x]({address})", "wait": True}),
                    ("/v1/chat/send", {"message": f"/model openai/{address}", "wait": True}),
                    ("/v1/chat/inject", {"message": address, "key": "main"}),
                    ("/v1/chat/completions", {"model": "x", "messages": [{"role": "user", "content": [text, part]}]}),
                    ("/v1/chat/completions", {"model": address, "messages": [{"role": "user", "content": address}]}),
                ]
                for path, body in bodies:
                    assert (await gate.client.post(path, json=body)).status_code < 500
                    asked += 1
            for operation in all_operations():
                if operation.path == "/v1/events":
                    continue
                query = {"key": "main", "id": INSIDE[0], "q": INSIDE[0], "session": INSIDE[0]}
                await gate.client.request(operation.method, operation.path, params=query)
                asked += 1
            await gate.client.post("/v1/session/compact", json={"key": "main"})
            await gate.client.get("/v1/view/export", params={"id": "main", "form": "html"})
        assert seen == []
    counts = {"requests": asked, "addresses": len(INSIDE), "connections": 0, "programs_started": 0}
    measured("P42", "a gateway without a model", **counts)


async def test_a_connection_would_be_heard() -> None:
    """The watch records a real connection."""
    import socket

    with WATCH.listening() as seen, socket.socket() as sock:
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", 9))
    assert [event for event, _ in seen] == ["socket.connect"]
