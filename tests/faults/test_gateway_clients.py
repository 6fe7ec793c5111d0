"""Many clients at once, hostile clients, and store files that are edited while a gateway runs."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio
import httpx
import pytest

from faults.gateway_rig import ASKED, Weakness, nothing, serving
from faults.processes import Child, Tell, fast_folder
from faults.test_gateway_kills import without_lanes, without_names
from faults.test_teeth import reports_loss
from figures import measured
from gateways import Clock
from http_rig import BEARER, Http, Json, http
from sessile import Store
from sessile.core.ids import derived_entry_id
from sessile.gateway.http.server import Punctual, listen
from sessile.gateway.turns import admission, engine

CLIENTS, KEYS = 20, 50
HOSTILE = 200  # connections
SLOWER = 0.1  # maximum additional delay in seconds


class Server(NamedTuple):
    """A gateway in its own process."""

    place: tuple[str, int]
    process: Child

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.place)


@contextmanager
def server(folder: str, weakness: Weakness = nothing) -> Iterator[Server]:
    """Run a gateway on a free port, and stop it at the end."""
    with listen("127.0.0.1", 0) as sock:
        process = Child(partial(serving, folder, sock, weakness))
        process.wait_for_word()
        try:
            yield Server(sock.getsockname(), process)
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.finish()


# -- many at once


def key_of(number: int) -> str:
    return f"agent:main:hook:h{number}"


def crowd(url: str, each: int, tell: Tell) -> None:
    """Run clients that send to the same conversations at once, and repeat some messages under the same idempotency key."""

    async def client(http: httpx.AsyncClient, number: int) -> None:
        rng = Random(number)
        for key in rng.sample(range(KEYS), each):
            name = f"{number}.{key}"
            body = {"key": key_of(key), "message": name, "idempotencyKey": name, "wait": rng.random() < 0.5}
            sent = [await http.post("/v1/chat/send", json=body) for _ in range(rng.choice((1, 1, 2)))]
            assert {one.status_code for one in sent} <= {200, 202}, sent[0].text
            told = {(one.json()["key"], one.json()["turn"]) for one in sent}
            assert len(told) == 1, f"{name} was taken for two messages"
            tell([name, *told.pop()])

    async def all_clients() -> None:
        async with httpx.AsyncClient(base_url=url, headers=BEARER, timeout=60) as http:
            async with anyio.create_task_group() as group:
                for number in range(CLIENTS):
                    group.start_soon(client, http, number)
            while any((await http.get("/v1/status")).json()["turns"].values()):
                await anyio.sleep(0.01)

    anyio.run(all_clients)


def check_crowd(each: int, weakness: Weakness = nothing) -> int:
    """Run the clients and check that every message is stored and counted once. Return the number of turns."""
    with fast_folder() as folder:
        with server(folder, weakness) as gateway:
            acknowledged = [tuple(told) for told in Child(partial(crowd, gateway.url, each)).finish()]
        stored = json.loads(Path(folder, "root/agents/main/sessions/sessions.json").read_bytes())
        turns = Counter[tuple[str, str, str]]()
        for key, entry in stored.items():
            with Store(f"{folder}/root").open(entry["sessionId"], readonly=True) as session:
                entries = session.get_entries()
            assert [one["message"]["role"] for one in entries] == ["user", "assistant"] * (len(entries) // 2)
            for said in entries[::2]:
                name = said["message"]["content"][0]["text"]
                assert said.id == derived_entry_id(entry["sessionId"], f"chat:{name}", 0)
                turns[name, key, said.id] += 1
            used = [one["message"].get("usage", {}) for one in entries[1::2]]
            assert entry.get("inputTokens", 0) == sum(usage.get("input", 0) for usage in used)
            assert entry.get("outputTokens", 0) == sum(usage.get("output", 0) for usage in used)
        assert turns == Counter(acknowledged) and len(turns) == CLIENTS * each
        asked = [json.loads(line) for line in Path(folder, ASKED).read_text().splitlines()]
        assert not any(overlaps for _, overlaps in asked)
        assert len(asked) == len(turns)
        assert os.listdir(f"{folder}/root/gateway/turns") == []
        return len(turns)


@pytest.mark.mission("Y1", "Y13")
@pytest.mark.promise("P41")
def test_many_clients_in_the_same_conversations_lose_and_double_nothing() -> None:
    """Turns never overlap, each key has one session, and the counters equal the sums of the transcripts."""
    assert check_crowd(12) == CLIENTS * 12


@pytest.mark.mission("Y1", "Y13")
@pytest.mark.promise("P41")
@pytest.mark.long
def test_twenty_clients_in_all_of_fifty_conversations_lose_and_double_nothing() -> None:
    """The long form of the test above."""
    assert check_crowd(KEYS) == CLIENTS * KEYS


@pytest.mark.promise("P41")
@pytest.mark.parametrize("weakness", [without_lanes, without_names])
def test_without_its_protections_the_crowd_reports_it(weakness: Weakness) -> None:
    """The rig reports overlapping turns and unknown message ids."""
    assert reports_loss(lambda: check_crowd(3, weakness))


@pytest.mark.anyio
@pytest.mark.mission("Y13")
@pytest.mark.promise("P41")
async def test_a_message_that_waits_is_known_again_however_many_come_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated message is recognized while it waits; only finished turns are forgotten."""
    monkeypatch.setattr(admission, "_MAX_KNOWN", 2)
    monkeypatch.setattr(engine, "_MAX_KNOWN", 2)
    async with http(tmp_path) as client:
        client.runner.gate = gate = anyio.Event()
        for text in ("one", "two"):
            await client.ask("POST", "/v1/chat/send", body={"message": text, "idempotencyKey": text}, status=202)
        client.runner.gate = None
        for number in range(5):
            await client.say("x", key=f"hook:h{number}", idempotencyKey=f"x{number}")
        again = {"message": "two", "idempotencyKey": "two"}
        told = await client.ask("POST", "/v1/chat/send", body=again, status=202)
        found = await client.get("/v1/chat/turn", key=told["key"], turn=told["turn"])
        assert (told["state"], found["state"]) == ("queued", "queued")
        gate.set()
        while client.gateway.turns.live():
            await anyio.sleep(0.001)
        assert await client.texts() == ["one", "re: one", "two", "re: two"]
        assert len(client.runner.asked) == 7


# -- a store file that is edited


class Edited(NamedTuple):
    """A gateway over HTTP, and its store file."""

    http: Http
    file: Path

    async def stored(self) -> Json:
        """Return the entries on disk, after all counters were written."""
        await self.http.gateway.call(self.http.gateway.conversations.flush)
        found: Json = json.loads(self.file.read_bytes())
        return found

    async def problems(self) -> list[str]:
        """Return the problems with store files in the status."""
        return [problem["message"] for problem in (await self.http.get("/v1/status"))["problems"]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def store_file(root: Path) -> Path:
    return root / "agents/main/sessions/sessions.json"


@pytest.mark.anyio
@pytest.mark.mission("Y2")
async def test_a_good_edit_is_picked_up_by_the_next_turn(tmp_path: Path) -> None:
    """An edit during a turn takes effect in the next turn, and counters written later do not undo it."""
    async with http(tmp_path) as client:
        edited = Edited(client, store_file(tmp_path))
        await client.say("one")
        client.runner.gate = gate = anyio.Event()
        turn = await client.ask("POST", "/v1/chat/send", body={"message": "two", "key": "main"}, status=202)
        entries = await edited.stored()
        entries["agent:main:main"] |= {"thinkingLevel": "high", "ofSomebodyElse": [1]}
        edited.file.write_text(json.dumps(entries, indent=1))
        gate.set()
        client.runner.gate = None
        await client.say("three")
        assert client.runner.asked[-1].thinking == "high"
        entry = (await edited.stored())["agent:main:main"]
        assert entry["sessionId"] == turn["sessionId"] and entry["ofSomebodyElse"] == [1]
        assert (entry["inputTokens"], entry["thinkingLevel"]) == (30, "high")
        assert await edited.problems() == []


@pytest.mark.anyio
@pytest.mark.mission("Y2")
async def test_an_entry_that_somebody_deletes_begins_a_new_session_and_keeps_the_old_transcript(tmp_path: Path) -> None:
    """A deleted entry does not come back through pending counters; the old transcript stays unchanged."""
    async with http(tmp_path) as client:
        edited = Edited(client, store_file(tmp_path))
        old = (await client.say("before"))["sessionId"]
        await client.say("other", key="hook:other")
        path = client.gateway.conversations.path_of("main")
        assert path is not None
        transcript = Path(path).read_bytes()
        entries = await edited.stored()
        await client.say("counted later", key="hook:other")
        del entries["agent:main:main"]
        edited.file.write_text(json.dumps(entries))
        assert list(await edited.stored()) == ["agent:main:hook:other"]
        new = (await client.say("after"))["sessionId"]
        assert new != old and Path(path).read_bytes() == transcript
        assert await client.texts() == ["after", "re: after"]
        assert sorted(await edited.stored()) == ["agent:main:hook:other", "agent:main:main"]


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _comma(text: str) -> str:
    return text.replace('"sessionId"', ',"sessionId"', 1)


BREAKS: list[Callable[[str], str]] = [_cut, _comma, lambda text: f"{text}]", lambda text: f"\n\n\n{text} x"]


@pytest.mark.anyio
@pytest.mark.mission("Y2")
@pytest.mark.parametrize("spoil", BREAKS, ids=["cut", "comma", "bracket", "word"])
async def test_a_broken_edit_leaves_the_last_good_copy_in_force_until_it_is_mended(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    """Known conversations continue, new ones are refused with the reason, and the edited file is not overwritten."""
    async with http(tmp_path) as client:
        edited = Edited(client, store_file(tmp_path))
        session = (await client.say("one"))["sessionId"]
        good = json.dumps(await edited.stored(), indent=1)
        broken = spoil(good)
        edited.file.write_text(broken)
        (problem,) = await edited.problems()
        assert "line " in problem
        assert (await client.say("two"))["sessionId"] == session
        status, detail = await client.refusal("POST", "/v1/chat/send", body={"message": "x", "key": "hook:new"})
        assert (status, detail) == (422, problem)
        assert edited.file.read_text() == broken
        edited.file.write_text(good)
        assert await edited.problems() == []
        assert (await client.say("x", key="hook:new"))["reply"]["text"] == "re: x"
        entry = (await edited.stored())["agent:main:main"]
        assert (entry["sessionId"], entry["inputTokens"]) == (session, 20)


@pytest.mark.anyio
@pytest.mark.mission("Y2", "Y13")
@pytest.mark.promise("P41")
async def test_a_gateway_that_starts_with_a_broken_file_answers_what_waited(tmp_path: Path) -> None:
    """A gateway that starts with a broken store file uses the last good copy to answer waiting messages."""
    clock = Clock()
    async with http(tmp_path, clock=clock) as client:
        await client.say("one")
        client.runner.gate = anyio.Event()
        for text in ("two", "three"):
            await client.ask("POST", "/v1/chat/send", body={"message": text, "key": "main"}, status=202)
    file = store_file(tmp_path)
    good = file.read_text()
    file.write_text(good[:-20])
    async with http(tmp_path, clock=clock) as client:
        while client.gateway.turns.live():
            await anyio.sleep(0.001)
        assert [request.messages[-1]["content"][0]["text"] for request in client.runner.asked] == ["three"]
        assert (await client.texts())[-2:] == ["three", "re: three"]
        file.write_text(good)


# -- clients that hold connections


def dribble(place: tuple[str, int], tell: Tell) -> None:
    """Hold connections that send headers or bodies byte by byte, and reconnect when closed, until killed."""
    head = b"POST /v1/chat/send HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    beginnings = (head + b"X-Slow: ", head + b"Content-Length: 4000\r\n\r\n")
    open_ones: dict[int, socket.socket] = {}
    for round_ in count():
        for number in range(HOSTILE):
            try:
                if number not in open_ones:
                    open_ones[number] = socket.create_connection(place)
                    open_ones[number].sendall(beginnings[number % 2])
                open_ones[number].sendall(b"x")
            except OSError:
                open_ones.pop(number).close()
        if round_ == 0:
            tell("there")
        time.sleep(0.1)


def occupy(place: tuple[str, int], connections: int, tell: Tell) -> None:
    """Hold `connections` connections, every other one with half a request, and reconnect when closed, until killed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else min(hard, connections * 2), hard)
    )
    held = [_half_a_request(place, number) for number in range(connections)]
    tell(len(held))
    while True:
        for number, sock in enumerate(held):
            try:
                if sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                    continue
            except BlockingIOError:
                continue  # still open, no data
            except OSError:
                pass
            sock.close()
            held[number] = _half_a_request(place, number)


def _half_a_request(place: tuple[str, int], number: int) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(30)
    try:
        sock.connect(place)
        if number % 2:
            sock.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    except OSError:
        pass  # closed at once: there is no room
    return sock


def say_until_heard(url: str, name: str) -> int:
    """Send a message on a new connection until it is acknowledged. Return the number of attempts."""
    body = {"key": key_of(len(name) % 10), "message": name, "idempotencyKey": name}
    for attempt in range(1, 100):
        try:
            with httpx.Client(base_url=url, headers=BEARER, timeout=60) as fresh:
                assert fresh.post("/v1/chat/send", json=body).status_code in (200, 202)
            return attempt
        except httpx.TransportError:
            time.sleep(0.01)
    raise AssertionError(f"{name} was never heard")


def check_crowded(connections: int, times: int) -> None:
    """Send messages while more connections are open than allowed: all are acknowledged and memory stays small."""
    with (
        fast_folder() as folder,
        server(folder) as gateway,
        httpx.Client(base_url=gateway.url, headers=BEARER, timeout=60) as client,
    ):
        usual_wait(client, "warming up", times)
        hostile = Child(partial(occupy, gateway.place, connections))
        hostile.wait_for_word()
        try:
            tries = sum(say_until_heard(gateway.url, f"crowded {number}") for number in range(times))
            memory = memory_of(gateway.process.pid)
        finally:
            hostile.kill()
            hostile.finish()
        assert memory is None or memory < 300 << 20
    taken = 0 if memory is None else memory >> 20
    counts = {"connections": connections, "acknowledged": times, "sent_again": tries - times, "megabytes": taken}
    measured("P39", "idle connections", **counts, lost=0)


def usual_wait(client: httpx.Client, name: str, times: int) -> float:
    """Return the median time until an acknowledgement, which ignores short loads of the machine."""
    waited = []
    for number in range(times):
        began = time.perf_counter()
        response = client.post("/v1/chat/send", json={"key": key_of(number % 10), "message": f"{name} {number}"})
        waited.append(time.perf_counter() - began)
        assert response.status_code == 202, response.text
    return sorted(waited)[len(waited) // 2]


def memory_of(pid: int) -> int | None:
    """Return the resident memory of a process in bytes, or None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def check_disturbed(times: int, attempts: int, weakness: Weakness = nothing) -> None:
    """Compare the delay without and with hostile clients. One attempt with a small difference is enough."""
    with (
        fast_folder() as folder,
        server(folder, weakness) as gateway,
        httpx.Client(base_url=gateway.url, headers=BEARER, timeout=30) as client,
    ):
        usual_wait(client, "warming up", times)
        before = memory_of(gateway.process.pid)
        later = []
        for attempt in range(attempts):
            alone = usual_wait(client, f"alone {attempt}", times)
            hostile = Child(partial(dribble, gateway.place))
            hostile.wait_for_word()
            later.append(usual_wait(client, f"disturbed {attempt}", times) - alone)
            bearable = max(SLOWER, alone)  # on a busy machine everything is slower
            after = memory_of(gateway.process.pid)
            hostile.kill()
            hostile.finish()
            if later[-1] < bearable:
                break
        assert later[-1] < bearable
        assert before is None or after is None or after - before < 64 << 20
    if weakness is nothing:
        measured("P39", "requests sent byte by byte", connections=HOSTILE, acknowledged=times, refused=0)


def with_a_slow_look() -> None:
    """Make the server slow at receiving data."""
    received = Punctual.data_received

    def slowly(self: Punctual, data: bytes) -> None:
        time.sleep(0.003)
        received(self, data)

    Punctual.data_received = slowly  # type: ignore[method-assign]


@pytest.mark.promise("P39")
def test_hundreds_who_send_byte_by_byte_do_not_slow_down_who_talks() -> None:
    """Clients that send byte by byte do not delay other messages, and do not make memory grow."""
    check_disturbed(50, attempts=3)  # another load of the machine may disturb an attempt


@pytest.mark.promise("P39")
@pytest.mark.long
def test_ten_thousand_connections_stop_nobody_who_talks() -> None:
    """Every message on a new connection is acknowledged in the end, and the gateway stays below 300 MiB."""
    check_crowded(10_000, 100)


@pytest.mark.promise("P39")
@pytest.mark.long
def test_a_server_that_is_slow_to_look_at_bytes_is_noticed() -> None:
    """The rig reports a server that takes a few milliseconds for each received byte."""
    assert reports_loss(lambda: check_disturbed(3, 1, with_a_slow_look))
