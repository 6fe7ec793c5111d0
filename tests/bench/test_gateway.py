"""The benchmark of the gateway compares equal work: the same syncs and bytes on both sides, and correct clocks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bench import gateway_bare
from bench.gateway import Order, line_sizes, make_store
from bench.gateway_load import load
from faults.failing import FaultyFilesystem
from gateways import ask, gateway_in, running
from http_rig import NEVER
from sessile import Store
from sessile.storage.filesystem import PosixFilesystem


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio, as the server and the clients of the benchmark do."""
    return "asyncio"


class Syncing(FaultyFilesystem):
    """Records which files are synced."""

    def __init__(self) -> None:
        super().__init__(PosixFilesystem())
        self.synced: list[str] = []
        self._paths: dict[int, str] = {}
        self._noting = threading.Lock()

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        with self._noting:
            self._paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:
        super().sync(fd)
        with self._noting:
            self.synced.append(self._paths[fd])


@pytest.mark.anyio
async def test_a_turn_syncs_its_session_twice_and_nothing_else_but_the_counters(tmp_path: Path) -> None:
    """The bare handler syncs twice because a turn does; besides the session, only counters may be synced."""
    fs = Syncing()
    gateway = gateway_in(tmp_path, NEVER, store=Store(tmp_path.resolve(), fs=fs, durability="power"))
    async with running(gateway):
        await ask(gateway, "the first turn begins the session")
        fs.synced.clear()
        await ask(gateway, "the second is like all others")
        synced = list(fs.synced)
        session = gateway.conversations.path_of("main")
    assert synced.count(str(session)) == 2
    counters = [path for path in synced if path != session]
    assert all("sessions.json" in path for path in counters), counters


def test_the_sizes_are_those_of_a_message_and_its_reply(tmp_path: Path) -> None:
    """The bare handler writes as many bytes as a session grows by in a turn."""
    (tmp_path / "empty.jsonl").write_bytes(b'{"type":"session"}\n')
    (tmp_path / "spoken.jsonl").write_bytes(b'{"type":"session"}\n{"first":1}\n{"last":22}\n')
    assert line_sizes(tmp_path) == [12, 12]


@pytest.mark.anyio
async def test_the_bare_handler_syncs_each_size_into_the_file_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline must do all of its declared work."""
    synced: list[int] = []
    kind = "fdatasync" if hasattr(os, "fdatasync") else "fsync"
    sync = getattr(os, kind)

    def noting(fd: int) -> None:
        sync(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, kind, noting)
    transport = httpx.ASGITransport(gateway_bare.bare_app(str(tmp_path), [100, 300]))
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
        for key in ("a", "b", "a"):
            answer = await client.post("/v1/chat/send", json={"key": key, "message": "hello", "wait": True})
            assert answer.status_code == 200 and answer.json()["reply"]["text"] == "hello"
    assert synced == [100, 400, 100, 400, 500, 800]
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [400, 800]


def test_every_key_of_a_made_store_has_a_session_of_its_own(tmp_path: Path) -> None:
    """A turn does not have to create a session, which would cost more than the turn."""
    keys = make_store(tmp_path / "root", 20)
    conversations = gateway_in(tmp_path / "root", NEVER).conversations
    bound = [conversations.resolve(key) for key in keys]
    conversations.close()
    assert not any(one.is_new for one in bound)
    assert len({one.path for one in bound}) == len(keys) == 20


# -- the clients


@asynccontextmanager
async def answering(answer: bytes, seconds: float = 0.0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that gives every request the same delayed answer; yield its port and the received bodies."""
    bodies: list[bytes] = []
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                bodies.append(await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r")[0])))
                await asyncio.sleep(seconds)
                writer.write(answer[:20])
                await asyncio.sleep(0)
                writer.write(answer[20:])
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], bodies
    finally:
        for connection in connections:
            connection.close()
        server.close()


def answer_of(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


DONE = answer_of("200 OK", b'{"state":"done"}')


@pytest.mark.anyio
async def test_clients_keep_asking_until_the_time_is_over() -> None:
    """All turns except the first of each client are counted, and each client uses its own key."""
    async with answering(DONE, 0.01) as (port, bodies):
        seen = await load(Order(port, ["a", "b", "c"], 0.2))
    assert seen.turns == len(seen.latencies) == len(bodies) - 3
    assert 3 <= seen.turns <= 63 and seen.seconds >= 0.2 and min(seen.latencies) >= 0.01
    assert {body[:10] for body in bodies} == {b'{"key":"a"', b'{"key":"b"', b'{"key":"c"'}


@pytest.mark.anyio
async def test_a_turn_that_was_due_has_waited_since_then() -> None:
    """A slow server must not slow down the clock of its clients."""
    async with answering(DONE, 0.05) as (port, _):
        seen = await load(Order(port, ["a"], 0.2, rate=100))
    assert seen.turns == 20
    assert max(seen.latencies) >= 20 * 0.05 - 0.2


@pytest.mark.anyio
async def test_every_key_can_have_one_turn_with_fewer_clients() -> None:
    """A few dozen clients touch all keys."""
    async with answering(DONE) as (port, bodies):
        seen = await load(Order(port, [f"key-{number}" for number in range(30)], 0, clients=4))
    assert seen.turns == 30 == len(set(bodies))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [answer_of("429 Too Many Requests", b"{}"), answer_of("200 OK", b'{"state":"running"}')],
    ids=["refused", "not done"],
)
async def test_an_answer_that_is_none_ends_everything(answer: bytes) -> None:
    """A refusal is faster than a turn and must not count as one."""
    async with answering(answer) as (port, _):
        with pytest.raises(RuntimeError, match=r"HTTP/1\.1"):
            await load(Order(port, ["a"], 0.2))


@pytest.mark.anyio
async def test_clients_that_wait_for_a_slow_server_are_not_late_themselves() -> None:
    """Only delays with a free connection show that the machine was too busy to measure."""
    async with answering(DONE, 0.05) as (port, _):
        seen = await load(Order(port, ["a"], 0.2, rate=100))
    assert len(seen.late) == seen.turns == 20
    assert sum(seen.late) < sum(seen.latencies) / 4
