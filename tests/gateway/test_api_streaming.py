"""Streamed and delayed responses: keep-alive comments, disconnected clients and slow clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from asgi_driver import deliver, scope_of
from http_rig import BEARER, TOKEN, Json, http
from sessile.core.secret import Secret
from sessile.errors import Conflict
from sessile.gateway.http.asgi import make_app
from sessile.gateway.http.problems import App, Message
from sessile.gateway.http.streams import Stream, Waiting, comment
from sessile.gateway.http.wire import Response

pytestmark = pytest.mark.anyio

SCOPE: dict[str, Any] = {"type": "http", "method": "POST"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Client:
    """A client that disconnects when `gone` is set and stops reading when `stuck` is set."""

    def __init__(self) -> None:
        self.gone = anyio.Event()
        self.stuck = anyio.Event()
        self.failing = False
        self.taken: list[bytes] = []
        self.statuses: list[int] = []
        self.ended = False

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
            return
        if self.failing:
            raise OSError("the connection was lost")
        if self.stuck.is_set():
            await anyio.sleep_forever()
        self.taken.append(message["body"])
        self.ended = not message.get("more_body", False)


class Source:
    """A source whose second piece waits for `go`; `closed` is set when the stream ends."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.closed = False

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await self.go.wait()
            yield b"two"
        finally:
            self.closed = True


async def test_pieces_are_sent_as_they_come_and_silence_is_broken() -> None:
    """Pieces are sent as they arrive, and comments keep an idle stream alive."""
    source, client = Source(), Client()
    stream = Stream(source.pieces, [(b"x-extra", b"1")], keep_alive=0.01)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, SCOPE, client.receive, client.send)
            while client.taken.count(comment()) < 3:
                await anyio.sleep(0.005)
            source.go.set()
    assert [piece for piece in client.taken if piece != comment()] == [b"one", b"two", b""]
    assert client.ended and source.closed and client.statuses == [200]


@pytest.mark.parametrize("how", ["gone", "stuck", "lost"])
async def test_a_client_that_is_not_there_ends_only_its_own_stream(how: str) -> None:
    """A client that disconnects, stops reading or loses its connection ends its stream and closes the source."""
    source, client = Source(), Client()
    stream = Stream(source.pieces, keep_alive=0.01, timeout=0.05)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, SCOPE, client.receive, client.send)
            while not client.taken:
                await anyio.sleep(0.001)
            client.failing = how == "lost"
            {"gone": client.gone, "stuck": client.stuck, "lost": anyio.Event()}[how].set()
    assert source.closed and client.taken[0] == b"one" and not client.ended


async def test_an_answer_is_waited_for_as_long_as_somebody_is_there() -> None:
    """A disconnected client gets no response, and errors are raised unchanged."""
    known = anyio.Event()

    async def answer() -> Response:
        await known.wait()
        return Response(200, b"{}")

    async def fail() -> Response:
        raise Conflict("somebody was faster")

    with anyio.fail_after(5):
        client = Client()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Waiting(answer), SCOPE, client.receive, client.send)
            await anyio.sleep(0.01)
            client.gone.set()
        assert client.statuses == []
        known.set()
        client = Client()
        await Waiting(answer)(SCOPE, client.receive, client.send)
        assert client.statuses == [200] and client.taken == [b"{}"]
        with pytest.raises(Conflict):
            await Waiting(fail)(SCOPE, client.receive, client.send)


async def test_an_answer_that_a_slow_client_takes_late_is_sent_once() -> None:
    """A response is sent once, even if the client takes it slowly."""

    async def answer() -> Response:
        return Response(200, b"{}")

    client = Client()

    async def slowly(message: Message) -> None:
        await anyio.sleep(0.06)  # longer than the time within which a quick response is expected
        await client.send(message)

    with anyio.fail_after(5):
        await Waiting(answer)(SCOPE, client.receive, slowly)
    assert client.statuses == [200] and client.taken == [b"{}"]


async def test_a_listener_that_leaves_before_its_stream_begins_takes_no_place(tmp_path: Path) -> None:
    """Clients that give up and come again while subscribing is slow are not counted again and again."""
    async with http(tmp_path) as client:
        told = await client.say("one")
        hub = client.gateway.hub
        app = make_app(client.gateway, Secret(TOKEN))
        scope = scope_of("GET", f"/v1/events?session={told['sessionId']}", [("Host", "127.0.0.1"), *BEARER.items()])
        busy = [object() for _ in range(int(hub._threads.total_tokens))]
        for one in busy:
            await hub._threads.acquire_on_behalf_of(one)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(_left, app, scope)
            await anyio.sleep(0.5)
            assert len(hub._clients) == 20
            with anyio.fail_after(10):
                while hub._clients:
                    await anyio.sleep(0.05)
        for one in busy:
            hub._threads.release_on_behalf_of(one)


async def _left(app: App, scope: Json) -> None:
    """Ask, and leave after a second."""
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await anyio.sleep(1)
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    await deliver(app, scope, [], receive)
