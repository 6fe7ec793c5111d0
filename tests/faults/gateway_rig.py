"""Rig that kills gateways: servers run on one port one after the other, while other processes send messages and listen.

The parent holds the port, so a client that connects while no server is running waits for the next one. A client that loses its
connection repeats the request. Nothing is judged during the run, except that an undocumented refusal ends it. The laws are
checked at the end, against the disk and the reports of clients and runners.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import httpx

from event_streams import EventSource, Received
from faults.processes import Child, Tell
from gateways import gateway_in
from http_rig import BEARER, NEVER, TOKEN
from sessile import Entry, Store
from sessile.core.ids import derived_entry_id
from sessile.core.secret import Secret
from sessile.errors import RunnerFailed
from sessile.gateway.conversations.registry import Conversations
from sessile.gateway.http.asgi import make_app
from sessile.gateway.http.server import listen, serve
from sessile.gateway.turns.replies import INTERRUPTED
from sessile.gateway.turns.runners import Done, RunRequest, Text
from sessile.gateway.turns.turn import reply_id
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.turn_log import TurnLog

Json = dict[str, Any]
Weakness = Callable[[], None]

KEYS = [f"agent:main:hook:h{number}" for number in range(3)]
CLIENTS = 4
LISTENERS = 2  # per key
LONGEST = 0.2  # maximum lifetime of a gateway in seconds, once it is ready
PATIENCE = 30.0  # timeout of a client in seconds
SOON = 5.0  # seconds within which the last entry must be received
FAILED = "no answer today"

ASKED, STOP, LAST = "asked", "stop", "last"  # files in the folder of a run


# -- the server


class Slow:
    """A runner that takes some milliseconds per word, fails now and then, and logs every request."""

    name = "echo"

    def __init__(self, folder: str) -> None:
        self._rng = Random(os.urandom(8))
        self._notes = os.open(f"{folder}/{ASKED}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._busy: set[str] = set()

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Answer word by word."""
        asked = request.messages[-1]["content"][0]["text"]
        overlaps = request.session_id in self._busy
        os.write(self._notes, f"{json.dumps([asked, overlaps])}\n".encode())
        self._busy.add(request.session_id)
        try:
            said = answer_to(asked)
            for word in said.split(" "):
                await anyio.sleep(self._rng.choice((0, 0, 0.001, 0.005, 0.02)))
                yield Text(word if word == "re:" else f" {word}")
            if self._rng.random() < 0.05:
                raise RunnerFailed(FAILED)
            usage = {"input": 10, "output": 5, "totalTokens": 15}
            content = [{"type": "text", "text": said}]
            yield Done({"role": "assistant", "content": content, "usage": usage, "stopReason": "stop"})
        finally:
            self._busy.discard(request.session_id)


def answer_to(text: str) -> str:
    """Return the runner's complete answer."""
    return f"re: {text} and so on"


def serving(folder: str, sock: socket.socket, weakness: Weakness, tell: Tell) -> None:
    """Run a gateway in its own process until it is killed or stopped."""
    weakness()
    gateway = gateway_in(Path(folder, "root"), NEVER, durability="process")
    runner = Slow(folder)
    made = gateway.answerers.of
    gateway.answerers.of = lambda agent, override: made(agent, override)._replace(runner=runner)  # type: ignore[assignment]
    serve(make_app(gateway, Secret(TOKEN)), sock, gateway.config.limits, ready=lambda: tell("ready"))


# -- clients


def talking(folder: str, address: str, seed: int, tell: Tell) -> None:
    """Run clients until they are stopped, and report every acknowledgement."""
    anyio.run(_talk, folder, address, seed, tell)


async def _talk(folder: str, address: str, seed: int, tell: Tell) -> None:
    async with httpx.AsyncClient(base_url=address, headers=BEARER, timeout=PATIENCE) as http:
        async with anyio.create_task_group() as group:
            for number in range(CLIENTS):
                group.start_soon(_client, http, folder, Random(f"{seed} {number}"), number, tell)
        while any((await _asked(http, "GET", "/v1/status"))["turns"].values()):
            await anyio.sleep(0.01)


async def _client(http: httpx.AsyncClient, folder: str, rng: Random, number: int, tell: Tell) -> None:
    burst = 0
    while not os.path.exists(f"{folder}/{STOP}"):
        async with anyio.create_task_group() as group:
            for one in range(rng.choice((1, 1, 2, 4))):
                group.start_soon(_say, http, rng, f"{number}.{burst}.{one}", tell)
        burst += 1


async def _say(http: httpx.AsyncClient, rng: Random, name: str, tell: Tell) -> None:
    """Send a message until it is acknowledged; sometimes send it twice."""
    key = rng.choice(KEYS)
    for _ in range(rng.choice((1, 1, 2))):
        how = rng.choice(({}, {"wait": True}, {"stream": True}))
        body = {"key": key, "message": name, "idempotencyKey": name, **how}
        response = await _insisted(http, "POST", "/v1/chat/send", json=body)
        told = json.loads(response.text.split("data: ", 1)[1].split("\n")[0]) if "stream" in how else response.json()
        tell(["acknowledged", key, name, told["turn"]])


async def _asked(http: httpx.AsyncClient, method: str, path: str, **what: Any) -> Json:
    found: Json = (await _insisted(http, method, path, **what)).json()
    return found


async def _insisted(http: httpx.AsyncClient, method: str, path: str, **what: Any) -> httpx.Response:
    """Repeat a request until a server answers it."""
    while True:
        try:
            response = await http.request(method, path, **what)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            await anyio.sleep(0.003)
            continue
        if response.status_code == 429:
            await anyio.sleep(0.02)
            continue
        assert response.status_code in (200, 202), response.text
        return response


# -- listeners


def listening(folder: str, address: str, sessions: dict[str, str], tell: Tell) -> None:
    """Run listeners that receive every entry of their sessions up to the last one."""
    anyio.run(_listen_to_all, folder, address, sessions, tell)


async def _listen_to_all(folder: str, address: str, sessions: dict[str, str], tell: Tell) -> None:
    async with (
        httpx.AsyncClient(base_url=address, headers=BEARER, timeout=PATIENCE) as http,
        anyio.create_task_group() as group,
    ):
        for session_id in sessions.values():
            for _ in range(LISTENERS):
                group.start_soon(_listen, http, folder, session_id, tell)


async def _listen(http: httpx.AsyncClient, folder: str, session_id: str, tell: Tell) -> None:
    ear = Ear(f"{session_id}:0")
    async with anyio.create_task_group() as group:
        group.start_soon(_hear_for_ever, http, session_id, ear)
        while not os.path.exists(f"{folder}/{LAST}"):
            await anyio.sleep(0.02)
        last = json.loads(Path(folder, LAST).read_bytes())[session_id]
        with anyio.move_on_after(SOON):
            while ear.ids[-1:] != [last]:
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    tell(["heard", session_id, ear.connections, ear.ids])


class Ear:
    """The entries that one listener received, and the id of its last event."""

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self.ids: list[str] = []
        self.connections = 0

    def hear(self, event: Received) -> None:
        """Record a complete event."""
        if event.kind == "entry":
            self.ids.append(json.loads(event.data)["data"]["id"])
        self.last_id = event.last_id


async def _hear_for_ever(http: httpx.AsyncClient, session_id: str, ear: Ear) -> None:
    while True:
        source = EventSource()
        source.last_id = source._id_buffer = ear.last_id
        try:
            query, headers = {"session": session_id}, {"Last-Event-ID": ear.last_id}
            async with http.stream("GET", "/v1/events", params=query, headers=headers) as stream:
                assert stream.status_code == 200, await stream.aread()
                ear.connections += 1
                async for piece in stream.aiter_raw():
                    for event in source.feed(piece):
                        ear.hear(event)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            await anyio.sleep(0.003)


# -- a run


class Acknowledged(NamedTuple):
    """The acknowledgement of a message."""

    key: str
    name: str
    turn: str


class Heard(NamedTuple):
    """The entries that a listener received, and its number of connections."""

    session_id: str
    connections: int
    ids: list[str]


class Talk(NamedTuple):
    """The result of a run: the folder, the session of each key, and all reports."""

    folder: str
    sessions: dict[str, str]
    acknowledged: list[Acknowledged]
    heard: list[Heard]
    left: list[str]  # sessions with unfinished turns after all clients had stopped

    def entries(self, key: str) -> list[Entry]:
        """Return the entries of a key's session in order."""
        with Store(f"{self.folder}/root").open(self.sessions[key], readonly=True) as session:
            return session.get_entries()

    @property
    def asked(self) -> list[tuple[str, bool]]:
        """Return the requests to the runners, and whether another turn of the same session was still running."""
        return [tuple(json.loads(line)) for line in Path(self.folder, ASKED).read_text().splitlines()]


def nothing() -> None:
    """Remove no protection."""


def talk(folder: str, seed: int, kills: int, *, listeners: bool = False, weakness: Weakness = nothing) -> Talk:
    """Let clients talk to gateways that are killed `kills` times, then to one that is not."""
    rng = Random(seed)
    sessions = _begin(folder)
    with listen("127.0.0.1", 0) as sock:
        address = "http://{}:{}".format(*sock.getsockname())
        clients = [Child(partial(talking, folder, address, seed))]
        if listeners:
            clients.append(Child(partial(listening, folder, address, sessions)))
        start = partial(serving, folder, sock, weakness)
        for _ in range(kills):
            server = Child(start)
            if rng.random() < 0.8:  # otherwise it is killed during its start
                server.wait_for_word()
            time.sleep(rng.uniform(0, LONGEST))
            server.kill()
            server.finish()
        Path(folder, STOP).touch()
        server = Child(start)
        told = clients[0].finish()
        left = [each.session_id for each in TurnLog(PosixFilesystem(), f"{folder}/root").left()]
        if listeners:
            _say_what_is_last(folder, sessions)
            told += clients[1].finish()
        os.kill(server.pid, signal.SIGTERM)
        server.finish()
    acknowledged = [Acknowledged(*rest) for kind, *rest in told if kind == "acknowledged"]
    return Talk(folder, sessions, acknowledged, [Heard(*rest) for kind, *rest in told if kind == "heard"], left)


def _begin(folder: str) -> dict[str, str]:
    """Create the sessions of all keys in a separate process that ends before the clients start."""

    def make(tell: Tell) -> None:
        with Conversations(Store(f"{folder}/root"), workspace=lambda agent: f"/work/{agent}", hold=None) as all_:
            tell({key: all_.resolve(key).session_id for key in KEYS})

    (made,) = Child(make).finish()
    return dict(made)


def _say_what_is_last(folder: str, sessions: dict[str, str]) -> None:
    store = Store(f"{folder}/root")
    last = {}
    for session_id in sessions.values():
        with store.open(session_id, readonly=True) as session:
            last[session_id] = session.get_entries()[-1].id
    Path(folder, "new").write_text(json.dumps(last))
    os.rename(f"{folder}/new", f"{folder}/{LAST}")


# -- the laws


def check_turns(run: Talk) -> Counter[str]:
    """Check that no message is lost or duplicated, each has one reply, and turns do not overlap. Return how the turns ended."""
    turns: dict[str, list[tuple[str, str]]] = defaultdict(list)  # by name: key and id
    ends: Counter[str] = Counter()
    asked = Counter(name for name, _ in run.asked)
    for key in KEYS:
        entries = [entry for entry in run.entries(key) if entry.type == "message"]
        assert [entry["message"]["role"] for entry in entries] == ["user", "assistant"] * (len(entries) // 2)
        bursts: dict[str, int] = defaultdict(int)
        for said, reply in zip(entries[::2], entries[1::2], strict=True):
            assert reply.parent_id == said.id
            assert reply.id == reply_id(run.sessions[key], said.id)
            name = said["message"]["content"][0]["text"]
            assert said.id == derived_entry_id(run.sessions[key], f"chat:{name}", 0)
            turns[name].append((key, said.id))
            end = _end_of(name, reply["message"])
            assert end == "interrupted" or asked[name], f"{name} has an answer that nobody gave"
            ends[end] += 1
            client, burst, _ = name.split(".")
            assert int(burst) >= bursts[client], "what was said behind an acknowledgement comes behind it"
            bursts[client] = int(burst)
    for key, name, turn in run.acknowledged:
        assert turns[name] == [(key, turn)], f"{name} was acknowledged as {turn} in {key}"
    assert set(turns) == {name for _, name, _ in run.acknowledged}
    assert [name for name, times in asked.items() if times > 1] == []
    assert not any(overlaps for _, overlaps in run.asked)
    assert run.left == []
    check_bindings(run)
    return ends


def _end_of(name: str, message: Json) -> str:
    """Return how a turn ended. An answer is complete or gives the reason why it is not."""
    text = "".join(block.get("text", "") for block in message["content"])
    if message["stopReason"] == "stop":
        assert text == answer_to(name)
        return "complete"
    if message["stopReason"] == "error":
        assert message["errorMessage"] == FAILED
        return "failed"
    assert (message["stopReason"], message["errorMessage"], text) == ("aborted", INTERRUPTED, "")
    return "interrupted"


def check_bindings(run: Talk) -> None:
    """Check that the store file is valid and binds each key to its first session."""
    stored = json.loads(Path(run.folder, "root/agents/main/sessions/sessions.json").read_bytes())
    assert {key: entry["sessionId"] for key, entry in stored.items()} == run.sessions


def check_heard(run: Talk) -> int:
    """Check that every listener received every entry once and in order. Return the number of connections."""
    assert len(run.heard) == LISTENERS * len(KEYS)
    written = {run.sessions[key]: [entry.id for entry in run.entries(key)] for key in KEYS}
    for session_id, _, ids in run.heard:
        assert ids == written[session_id]
    return sum(heard.connections for heard in run.heard)
