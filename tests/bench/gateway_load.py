"""Clients of a gateway, in a process of their own, so that what they cost is not the server's.

    echo '{"port": 8787, "keys": ["a", "b"], "seconds": 2}' | python -m tests.bench.gateway_load        prints what was seen

Rules: every client has one connection and keeps it, and one key. Without a rate each asks again as soon as it was answered.
With a rate, turns are due at fixed times whatever the server does, and a turn that is late because all connections are busy has
waited since it was due. How late the clients are through no fault of the server is told apart: if they were not on time
themselves, what they saw says nothing. What comes before the clock is not counted: each client says something first. An answer
that is no answer ends everything.

The client is written by hand: of HTTP it knows just as much as it needs, and costs a tenth of what a library does.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from .gateway import TOKEN, Order, Seen

_TEXT = "What does the gateway do with a message of the usual length, which is some two hundred letters? " * 2
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Client(asyncio.Protocol):
    """One connection, and one request at a time on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._end: int | None = None  # of the response, as soon as its head is there
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._end is None:
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._received, 0, head)
            assert length is not None, self._received
            self._end = head + 4 + int(length[1])
        if len(self._received) < self._end:
            return
        response, self._received, self._end = self._received, b"", None
        assert self._answer is not None
        if response.startswith(b"HTTP/1.1 200 ") and b'"state":"done"' in response:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(RuntimeError(response.decode("utf-8", "replace")))

    async def turn(self, request: bytes) -> None:
        """Ask, and wait for the answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def request_of(port: int, key: str) -> bytes:
    """A turn as it goes over the wire."""
    body = msgspec.json.encode({"key": key, "message": _TEXT, "wait": True})
    head = (
        f"POST /v1/chat/send HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(order: Order) -> Seen:
    """Let the clients ask."""
    loop = asyncio.get_running_loop()
    count = order.clients or len(order.keys)
    clients = [(await loop.create_connection(_Client, "127.0.0.1", order.port))[1] for _ in range(count)]
    requests = [request_of(order.port, key) for key in order.keys]
    if order.seconds == 0:
        seen = await _each_once(clients, requests)
    else:
        await asyncio.gather(*map(_Client.turn, clients, requests))
        seen = await (
            _closed(clients, requests, order.seconds) if order.rate is None else _open(clients, requests, order)
        )
    for client in clients:
        client.close()
    return seen


async def _closed(clients: Sequence[_Client], requests: Sequence[bytes], seconds: float) -> Seen:
    latencies: list[float] = []
    start = time.perf_counter()

    async def ask(client: _Client, request: bytes) -> None:
        now = time.perf_counter()
        while now < start + seconds:
            before = now
            await client.turn(request)
            now = time.perf_counter()
            latencies.append(now - before)

    await asyncio.gather(*map(ask, clients, requests))
    return Seen(len(latencies), time.perf_counter() - start, latencies)


async def _open(clients: Sequence[_Client], requests: Sequence[bytes], order: Order) -> Seen:
    assert order.rate is not None
    latencies, late = list[float](), list[float]()
    idle: asyncio.Queue[int] = asyncio.Queue()
    for number in range(len(clients)):
        idle.put_nowait(number)

    async def ask(number: int, due: float) -> None:
        await clients[number].turn(requests[number])
        latencies.append(time.perf_counter() - due)
        idle.put_nowait(number)

    start = free = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for turn in range(int(order.rate * order.seconds)):
            due = start + turn / order.rate
            await asyncio.sleep(due - time.perf_counter())
            late.append(time.perf_counter() - max(due, free))
            group.create_task(ask(await idle.get(), due))
            free = time.perf_counter()  # until then the server had all connections
    return Seen(len(latencies), time.perf_counter() - start, latencies, late)


async def _each_once(clients: Sequence[_Client], requests: Sequence[bytes]) -> Seen:
    left, latencies = deque(requests), list[float]()
    start = time.perf_counter()

    async def ask(client: _Client) -> None:
        while left:
            before = time.perf_counter()
            await client.turn(left.popleft())
            latencies.append(time.perf_counter() - before)

    await asyncio.gather(*map(ask, clients))
    return Seen(len(latencies), time.perf_counter() - start, latencies)


def main() -> None:
    """Do what stdin says, and print what was seen."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(load(order))))


if __name__ == "__main__":
    main()
