"""Rig with many gateways on one database: they are killed, paused and restarted while clients talk to all of them.

The parent holds the port of each gateway, so a client that connects while a gateway is down waits for the next one. After a
short timeout it sends the same message to another gateway. Now and then it sends one message to two gateways at once. Nothing
is judged during the run. The laws are checked at the end, against the database and the reports of clients and runners.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from socket import socket
from typing import Any, NamedTuple

import anyio
import httpx

from faults.gateway_rig import ASKED, FAILED, KEYS, STOP, answer_to
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
from sessile.storage.postgres import turn_queue
from sessile.storage.postgres.turn_queue import TurnTable

Json = dict[str, Any]
Weakness = Callable[[], None]

BUSY = "busy."  # prefix of files that exist while a gateway answers
TTL = 0.8  # lifetime of a lease in seconds
CLIENTS = 4
IMPATIENCE = 1.0  # seconds after which a client tries another gateway
PATIENCE = 15.0  # timeout of a client in seconds
LONG_ENOUGH = 0.5  # seconds that all clients continue after the last fault
SETTLED = 5.0  # seconds within which everything must be answered after the last message


class Plan(NamedTuple):
    """The faults of a run."""

    seed: int
    kills: int = 0
    pauses: int = 0
    nodes: int = 2
    waits: bool = True  # whether clients wait for replies


# -- the servers


class Answering:
    """A runner that takes some milliseconds per word, fails now and then, and logs every request.

    While it answers, it holds a lock of the session, which the kernel releases when the process is killed.
    """

    name = "echo"

    def __init__(self, folder: str) -> None:
        self._rng = Random(os.urandom(8))
        self._folder = folder
        self._notes = os.open(f"{folder}/{ASKED}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._busy = Path(folder, f"{BUSY}{os.getpid()}")
        self._answering = 0

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Answer word by word."""
        asked = request.messages[-1]["content"][0]["text"]
        lane = os.open(f"{self._folder}/{request.session_id}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lane, fcntl.LOCK_EX | fcntl.LOCK_NB)
            overlaps = False
        except BlockingIOError:
            overlaps = True
        os.write(self._notes, f"{json.dumps([asked, overlaps])}\n".encode())
        self._answering += 1
        self._busy.touch()
        try:
            said = answer_to(asked)
            for word in said.split(" "):
                await anyio.sleep(self._rng.choice((0, 0.005, 0.02, 0.05)))
                yield Text(word if word == "re:" else f" {word}")
            if self._rng.random() < 0.05:
                raise RunnerFailed(FAILED)
            usage = {"input": 10, "output": 5, "totalTokens": 15}
            content = [{"type": "text", "text": said}]
            yield Done({"role": "assistant", "content": content, "usage": usage, "stopReason": "stop"})
        finally:
            os.close(lane)
            self._answering -= 1
            if not self._answering:
                self._busy.unlink(missing_ok=True)


def serving(folder: str, url: str, sock: socket, weakness: Weakness, tell: Tell) -> None:
    """Run a gateway in its own process until it is killed or stopped."""
    turn_queue.NODE_TTL = TTL
    weakness()
    gateway = gateway_in(Path("/nowhere"), NEVER, store=Store(url, durability="process"))
    runner = Answering(folder)
    made = gateway.answerers.of
    gateway.answerers.of = lambda agent, override: made(agent, override)._replace(runner=runner)  # type: ignore[assignment]
    serve(make_app(gateway, Secret(TOKEN)), sock, gateway.config.limits, ready=lambda: tell("ready"))


# -- clients


def talking(folder: str, addresses: list[str], plan: Plan, tell: Tell) -> None:
    """Run clients until they are stopped, and report every acknowledgement."""
    anyio.run(_talk, folder, addresses, plan, tell)


async def _talk(folder: str, addresses: list[str], plan: Plan, tell: Tell) -> None:
    async with httpx.AsyncClient(headers=BEARER, timeout=IMPATIENCE) as http, anyio.create_task_group() as group:
        for number in range(CLIENTS):
            rng = Random(f"{plan.seed} {number}")
            group.start_soon(_client, Speaker(http, addresses, rng, plan.waits, tell), folder, number)


async def _client(speaker: Speaker, folder: str, number: int) -> None:
    burst = 0
    while not os.path.exists(f"{folder}/{STOP}"):
        async with anyio.create_task_group() as group:
            for one in range(speaker.rng.choice((1, 1, 2, 4))):
                group.start_soon(speaker.say, f"{number}.{burst}.{one}")
        burst += 1


class Speaker(NamedTuple):
    """A client that knows all gateways."""

    http: httpx.AsyncClient
    addresses: list[str]
    rng: Random
    waits: bool
    tell: Tell

    async def say(self, name: str) -> None:
        """Send a message until it is acknowledged; sometimes to several gateways at once."""
        key = self.rng.choice(KEYS)
        async with anyio.create_task_group() as group:
            for _ in range(self.rng.choice((1, 1, 2))):
                group.start_soon(self._send, key, name)

    async def _send(self, key: str, name: str) -> None:
        how = {"wait": True} if self.waits and self.rng.random() < 0.5 else {}
        body = {"key": key, "message": name, "idempotencyKey": name, **how}
        told = (await self._insisted(body)).json()
        self.tell(["acknowledged", key, name, told["turn"]])
        reply = told["reply"]
        if reply is not None and reply["error"] in (None, FAILED, INTERRUPTED):
            self.tell(["answered", name, reply["stop"], reply["text"]])

    async def _insisted(self, body: Json) -> httpx.Response:
        """Repeat a request until a gateway answers it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                response = await self.http.post(f"{self.rng.choice(self.addresses)}/v1/chat/send", json=body)
            except httpx.TransportError:  # including timeouts
                await anyio.sleep(0.003)
                continue
            if response.status_code == 429:
                await anyio.sleep(0.02)
                continue
            assert response.status_code in (200, 202), response.text
            return response
        raise AssertionError(f"nobody answers {body['message']}")


# -- a run


class Acknowledged(NamedTuple):
    """The acknowledgement of a message."""

    key: str
    name: str
    turn: str


class Answered(NamedTuple):
    """A reply as the client received it."""

    name: str
    stop: str
    text: str


class Run(NamedTuple):
    """The result of a run."""

    plan: Plan
    folder: str
    url: str
    sessions: dict[str, str]
    acknowledged: list[Acknowledged]
    answered: list[Answered]
    left: list[str]  # sessions with unfinished turns after all clients had stopped
    seconds: float

    def entries(self, key: str) -> list[Entry]:
        """Return the entries of a key's session in order."""
        with Store(self.url) as store, store.open(self.sessions[key], readonly=True) as session:
            return session.get_entries()

    @property
    def asked(self) -> list[tuple[str, bool]]:
        """Return the requests to the runners, and whether another turn of the same session was being answered."""
        return [tuple(json.loads(line)) for line in Path(self.folder, ASKED).read_text().splitlines()]


def nothing() -> None:
    """Remove no protection."""


def talk(folder: str, url: str, plan: Plan, *, weakness: Weakness = nothing) -> Run:
    """Let clients talk to gateways that are killed and paused, then to all of them."""
    rng, began = Random(plan.seed), time.monotonic()
    sessions = _begin(url)
    with ExitStack() as stack:
        sockets = [stack.enter_context(listen("127.0.0.1", 0)) for _ in range(plan.nodes)]
        addresses = ["http://{}:{}".format(*sock.getsockname()) for sock in sockets]
        starts = [partial(Child, partial(serving, folder, url, sock, weakness)) for sock in sockets]
        servers = [start() for start in starts]
        for server in servers:
            server.wait_for_word()
        clients = Child(partial(talking, folder, addresses, plan))
        clients.wait_for_word()
        try:
            for deed in rng.sample(["kill"] * plan.kills + ["pause"] * plan.pauses, plan.kills + plan.pauses):
                time.sleep(rng.uniform(0.05, 0.6))
                victim = rng.randrange(plan.nodes)
                if deed == "pause" or rng.random() < 0.5:
                    _wait_until_busy(folder, servers[victim].pid)
                if deed == "pause":
                    _pause(servers[victim].pid, TTL + rng.uniform(0.3, 1.2))
                    continue
                servers[victim].kill()
                servers[victim].finish()
                if rng.random() < 0.5:  # otherwise the other gateways must take over
                    time.sleep(rng.uniform(0, 2 * TTL))
                servers[victim] = starts[victim]()
                if rng.random() < 0.8:  # otherwise it may be killed during its start
                    servers[victim].wait_for_word()
            time.sleep(LONG_ENOUGH)
            Path(folder, STOP).touch()
            told = clients.finish()
            left = _left(url)
        finally:
            Path(folder, STOP).touch()
            for server in servers:
                os.kill(server.pid, signal.SIGTERM)
            for server in servers:
                server.finish()
    acknowledged = [Acknowledged(*rest) for kind, *rest in told if kind == "acknowledged"]
    answered = [Answered(*rest) for kind, *rest in told if kind == "answered"]
    return Run(plan, folder, url, sessions, acknowledged, answered, left, time.monotonic() - began)


def _wait_until_busy(folder: str, pid: int) -> None:
    """Wait until a gateway is in the middle of an answer, for at most a second."""
    end = time.monotonic() + 1.0
    while not os.path.exists(f"{folder}/{BUSY}{pid}") and time.monotonic() < end:
        time.sleep(0.001)


def _pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def _begin(url: str) -> dict[str, str]:
    """Create the sessions of all keys in a separate process that ends before the clients start."""

    def make(tell: Tell) -> None:
        with Store(url) as store, Conversations(store, workspace=lambda agent: f"/work/{agent}", hold=None) as all_:
            tell({key: all_.resolve(key).session_id for key in KEYS})

    (made,) = Child(make).finish()
    return dict(made)


def _left(url: str) -> list[str]:
    """Return the sessions that still have unfinished turns after the timeout."""

    def look(tell: Tell) -> None:
        with Store(url) as store:
            assert store.database is not None
            table, end = TurnTable(store.database), time.monotonic() + SETTLED
            while table.sessions() and time.monotonic() < end:
                time.sleep(0.02)
            tell(sorted(table.sessions()))

    (left,) = Child(look).finish()
    return list(left)


# -- the laws


def check(run: Run) -> Counter[str]:
    """Check that no message is lost or duplicated, each has one reply, and turns do not overlap. Return how the turns ended."""
    turns_of: dict[str, list[tuple[str, str]]] = defaultdict(list)  # by name: key and id
    held: dict[str, tuple[str, str]] = {}  # by name: how its reply ends, and its text
    ends: Counter[str] = Counter()
    asked = Counter(name for name, _ in run.asked)
    assert run.left == []
    for key in KEYS:
        entries = [entry for entry in run.entries(key) if entry.type == "message"]
        assert [entry["message"]["role"] for entry in entries] == ["user", "assistant"] * (len(entries) // 2)
        bursts: dict[str, int] = defaultdict(int)
        for said, reply in zip(entries[::2], entries[1::2], strict=True):
            assert reply.parent_id == said.id
            assert reply.id == reply_id(run.sessions[key], said.id)
            name = said["message"]["content"][0]["text"]
            assert said.id == derived_entry_id(run.sessions[key], f"chat:{name}", 0)
            turns_of[name].append((key, said.id))
            held[name] = _reply_of(reply["message"])
            end = _end_of(name, reply["message"])
            assert end == "interrupted" or asked[name], f"{name} has an answer that nobody gave"
            ends[end] += 1
            client, burst, _ = name.split(".")
            assert int(burst) >= bursts[client], "what was said behind an acknowledgement comes behind it"
            bursts[client] = int(burst)
    for key, name, turn in run.acknowledged:
        assert turns_of[name] == [(key, turn)], f"{name} was acknowledged as {turn} in {key}"
    assert set(turns_of) == {name for _, name, _ in run.acknowledged}
    for name, stop, text in run.answered:
        assert held[name] == (stop, text), f"of {name} a client was told something else than the session holds"
    assert [name for name, times in asked.items() if times > 1] == []
    if not run.plan.pauses:  # a paused gateway may hold its lock longer than its lane
        assert not any(overlaps for _, overlaps in run.asked), "two turns of a session were answered at once"
    _check_bindings(run)
    return ends


def _reply_of(message: Json) -> tuple[str, str]:
    return message["stopReason"], "".join(block.get("text", "") for block in message["content"])


def _end_of(name: str, message: Json) -> str:
    """Return how a turn ended. An answer is complete or gives the reason why it is not."""
    stop, text = _reply_of(message)
    if stop == "stop":
        assert text == answer_to(name), f"{name} was answered with {text!r}"
        return "complete"
    if stop == "error":
        assert message["errorMessage"] == FAILED
        return "failed"
    assert (stop, message["errorMessage"], text) == ("aborted", INTERRUPTED, "")
    return "interrupted"


def _check_bindings(run: Run) -> None:
    """Check that each key still has its first session, and that there are no other sessions."""
    with Store(run.url) as store, Conversations(store, workspace=lambda agent: f"/work/{agent}", hold=None) as all_:
        found = {key: all_.get(key) for key in KEYS}
        assert {key: one and one.entry.session_id for key, one in found.items()} == run.sessions
        assert len(store.list_all()) == len(KEYS)
