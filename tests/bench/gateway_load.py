"""Clients of a gateway in their own process, so that their cost is not part of the server's.

    echo '{"port": 8787, "keys": ["a", "b"], "seconds": 2}' | python -m tests.bench.gateway_load        prints the figures

Rules:
- Every client keeps one connection and one key.
- Without a rate, a client sends the next request as soon as it has the reply.
- With a rate, turns are due at fixed times. A turn that is late because all connections are busy counts from when it
  was due.
- Delays of the clients themselves are reported separately: if the clients were late, their figures are useless.
- Each client takes a first turn that is not counted.
- An unexpected response ends the run.

The client is written by hand: it supports only as much HTTP as it needs, and costs a tenth of a library.
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
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._end: int | None = None  # of the response, once its header is complete
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
        """Send a request and wait for the response."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def request_of(port: int, key: str) -> bytes:
    """Return the bytes of the HTTP request for a turn."""
    body = msgspec.json.encode({"key": key, "message": _TEXT, "wait": True})
    head = (
        f"POST /v1/chat/send HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(order: Order) -> Seen:
    """Run the clients and return the figures."""
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
            free = time.perf_counter()  # all connections were busy until then
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
    """Read the order from stdin and print the figures."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(load(order))))


if __name__ == "__main__":
    main()
