"""Load on a gateway that runs as `sessile serve`: clients of every kind, and measurements of the process.

The load comes in rounds. Between two rounds nothing is running, so that the measurements can be compared: what a round leaves
in the process or on the disk is left for good. At the end the disk is compared with what the gateway acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import httpx

from cli.gateways import Serving, serving
from event_streams import EventSource
from model_server import serving as model_server
from sessile import Store
from sessile.core.ids import derived_entry_id
from sessile.gateway.turns.turn import reply_id

Json = dict[str, Any]

TALKERS = 8
KEYS = 24  # conversations with the echo
OTHERS = 4  # conversations with a program, and as many with a model server
RESET_AFTER = 20  # turns of a conversation; so sessions stay short, and old ones are left behind
COMPACT_AFTER = 8
WORDS = ["harbour", "lantern", "meadow", "quartz", "ribbon", "saddle", "timber", "velvet", "walnut", "zephyr"]

PROGRAM = "read line; sleep 0.05; echo done"

# Runs in the gateway's process: a signal makes it write its numbers to a file.
CENSUS = """
import asyncio, faulthandler, gc, json, os, runpy, signal, sys, threading

def census(*_):
    gc.collect()
    counts = {"tasks": len(asyncio.all_tasks()), "threads": threading.active_count(), "objects": len(gc.get_objects())}
    with open(os.environ["CENSUS"] + ".new", "w") as file:
        json.dump(counts, file)
    os.rename(os.environ["CENSUS"] + ".new", os.environ["CENSUS"])

signal.signal(signal.SIGUSR1, census)
faulthandler.register(signal.SIGUSR2, open(os.environ["CENSUS"] + ".stacks", "w"))
"""
RUN = '\nrunpy.run_module("sessile.cli.main", run_name="__main__", alter_sys=True)\n'

PATIENCE = 120.0  # seconds for an answer: the numbers must stay flat, but other work may share the machine


class Census(NamedTuple):
    """The numbers of a gateway between two rounds."""

    memory: int  # bytes
    objects: int  # that the garbage collector knows
    descriptors: int
    threads: int
    tasks: int
    files: int  # below the root, without the journals of sessions
    sessions: int  # journals


class Load:
    """Clients of one gateway, and what they were told."""

    def __init__(self, gateway: Serving, folder: Path, seed: int, keys: int = KEYS) -> None:
        self.gateway = gateway
        self.acknowledged: dict[str, tuple[str, str, str]] = {}  # by text: key, session, turn
        self.cut: set[str] = set()  # messages whose request was cut before it was answered
        self.aborted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._rng = Random(seed)
        self._bearer = {"Authorization": f"Bearer {gateway.token}"}
        self._echo = [f"agent:main:hook:h{number}" for number in range(keys)]
        self._others = [f"agent:{agent}:hook:h{number}" for agent in ("program", "model") for number in range(OTHERS)]
        self._sessions: dict[str, str] = {}  # by key
        self._turns: Counter[str] = Counter()  # by key, since the last reset
        self._number = 0
        self._until = 0.0

    # -- rounds

    async def round(self, seconds: float) -> Census:
        """Run all clients for some seconds. Return the numbers after the last one has ended."""
        self._until = time.monotonic() + seconds
        async with self._client() as http:
            async with anyio.create_task_group() as group:
                for number in range(TALKERS):
                    group.start_soon(self._again, http, self._talk, 0.01, number)
                group.start_soon(self._again, http, self._talk_to_others, 0.1)
                for _ in range(2):
                    group.start_soon(self._again, None, self._listen, 0.2)
                    group.start_soon(self._again, http, self._read, 0.01)
                    group.start_soon(self._again, http, self._cut_short, 0.05)
                group.start_soon(self._again, http, self._look_at_all, 0.2)
                group.start_soon(self._again, http, self._search, 0.1)
                group.start_soon(self._again, http, self._be_refused, 0.1)
            while any((await self._get(http, "/v1/status"))["turns"].values()):
                await anyio.sleep(0.02)
        return await self._census()

    async def _again(
        self, http: httpx.AsyncClient | None, do: Callable[..., Awaitable[None]], pause: float, *arguments: int
    ) -> None:
        rng = self._rng
        while time.monotonic() < self._until:
            await do(http, *arguments)
            await anyio.sleep(rng.uniform(0, 2 * pause))

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(
            base_url=self.gateway.url, headers=self._bearer, timeout=PATIENCE, verify=False
        ) as http:
            yield http

    async def _ask(self, http: httpx.AsyncClient, method: str, path: str, *wanted: int, **what: Any) -> httpx.Response:
        try:
            response = await http.request(method, path, **what)
        except httpx.TimeoutException as error:
            raise AssertionError(f"{method} {path} {what} was not answered:\n{self._stacks()}") from error
        self.counts["requests"] += 1
        assert response.status_code in (wanted or (200,)), f"{method} {path}: {response.status_code} {response.text}"
        return response

    async def _get(self, http: httpx.AsyncClient, path: str, **query: Any) -> Json:
        found: Json = (await self._ask(http, "GET", path, params=query)).json()
        return found

    # -- clients that write

    async def _talk(self, http: httpx.AsyncClient, number: int) -> None:
        """Send a message in one of three ways, sometimes twice; compact and reset conversations that have become long."""
        rng = self._rng
        key = rng.choice(self._echo[number::TALKERS])  # of this client only, so that a reset meets no turn
        name = self._name()
        how = rng.choice(({}, {"wait": True}, {"stream": True}))
        body = {"key": key, "message": name, "idempotencyKey": name, **how}
        for _ in range(rng.choice((1, 1, 1, 2))):
            response = await self._ask(http, "POST", "/v1/chat/send", 200, 202, json=body)
            self._note(name, first_data(response.text) if "stream" in how else response.json())
        self._turns[key] += 1
        if self._turns[key] % COMPACT_AFTER == 0:
            await self._settle(http, "/v1/session/compact", key)
            self.counts["compactions"] += 1
        await self._reset_if_long(http, key)

    async def _reset_if_long(self, http: httpx.AsyncClient, key: str) -> None:
        """Start a new session of a conversation after some turns: what a gateway keeps of it may grow with its length."""
        if self._turns[key] >= RESET_AFTER:
            self._turns[key] = 0
            self._sessions[key] = (await self._settle(http, "/v1/session/reset", key))["sessionId"]
            self.counts["resets"] += 1

    async def _settle(self, http: httpx.AsyncClient, path: str, key: str) -> Json:
        """Compact or reset a conversation, as soon as no turn runs."""
        while True:
            response = await self._ask(http, "POST", path, 200, 409, json={"key": key})
            if response.status_code == 200:
                found: Json = response.json()
                return found
            await anyio.sleep(0.01)

    async def _talk_to_others(self, http: httpx.AsyncClient) -> None:
        """Send a message to a program or a model server; abort every other turn."""
        key, name = self._rng.choice(self._others), self._name()
        body = {"key": key, "message": name, "idempotencyKey": name}
        told = (await self._ask(http, "POST", "/v1/chat/send", 200, 202, json=body)).json()
        self._note(name, told)
        self.aborted.add(name)  # the answer is that of a program, whole or not
        if self._rng.random() < 0.5:
            await anyio.sleep(self._rng.uniform(0, 0.05))
            await self._ask(http, "POST", "/v1/chat/abort", json={"key": key})
            self.counts["aborts"] += 1
        self._turns[key] += 1
        await self._reset_if_long(http, key)

    async def _cut_short(self, http: httpx.AsyncClient) -> None:
        """Leave in the middle of a request: of its headers, its body, the wait for an answer, or a stream."""
        name, rng = self._name(), self._rng
        self.cut.add(name)
        key = rng.choice(self._others + self._echo[:2])
        body = json.dumps({"key": key, "message": name, "idempotencyKey": name, "stream": rng.random() < 0.5}).encode()
        head = (
            f"POST /v1/chat/send HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {self._bearer['Authorization']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        request = head + body
        sent = rng.choice((len(head) // 2, len(head) + len(body) // 2, len(request), len(request)))
        async with await anyio.connect_tcp(*self.gateway.place) as stream:
            await stream.send(request[:sent])
            if sent == len(request) and rng.random() < 0.5:
                await stream.receive()
            else:
                await anyio.sleep(rng.uniform(0, 0.02))
        self.counts["cut requests"] += 1

    def _name(self) -> str:
        self._number += 1
        return f"{self._rng.choice(WORDS)} {self._rng.choice(WORDS)} {self._number}"

    def _note(self, name: str, told: Json) -> None:
        found = (told["key"], told["sessionId"], told["turn"])
        assert self.acknowledged.setdefault(name, found) == found, f"{name} was taken for two messages"
        self._sessions[told["key"]] = told["sessionId"]

    # -- clients that read

    async def _listen(self, nothing: None) -> None:
        """Follow a session, or all of them, for a while and over some connections. Entries come once and in order."""
        session_id = self._any_session()
        if session_id is None:
            return
        everything = self._rng.random() < 0.2
        last_id, numbers = f"{session_id}:0", [0]
        for _ in range(3):
            source = EventSource()
            source.last_id = source._id_buffer = last_id
            query, headers = ({}, {}) if everything else ({"session": session_id}, {"Last-Event-ID": last_id})
            # A client of its own: a shared one may leave the connection of a cancelled request open.
            async with self._client() as http:
                with anyio.move_on_after(self._rng.uniform(0.05, 0.6)):
                    async with http.stream("GET", "/v1/events", params=query, headers=headers) as stream:
                        assert stream.status_code == 200, f"{await stream.aread()!r}\n{self._stacks()}"
                        self.counts["streams"] += 1
                        async for piece in stream.aiter_raw():
                            for event in source.feed(piece):
                                if event.kind == "entry" and not everything:
                                    numbers.append(int(event.last_id.rpartition(":")[2]))
                                    last_id = event.last_id
        assert numbers == sorted(set(numbers)), f"an event stream of {session_id} repeats entries: {numbers}"
        self.counts["events"] += len(numbers) - 1

    async def _read(self, http: httpx.AsyncClient) -> None:
        """Make one request of a page, or of a client that shows a conversation."""
        session_id = self._any_session()
        if session_id is None:
            return
        key = self._rng.choice(list(self._sessions))
        path, query = self._rng.choice(
            (
                ("/v1/session/history", {"key": key}),
                ("/v1/session/context", {"key": key}),
                ("/v1/session", {"key": key}),
                ("/v1/sessions", {"limit": 20}),
                ("/v1/view/session", {"id": session_id}),
                ("/v1/view/outline", {"id": session_id}),
                ("/v1/view/entries", {"id": session_id, "from": 0, "to": 10}),
                ("/v1/view/saw", {"id": session_id, "at": 0}),
                ("/v1/view/find", {"id": session_id, "q": self._rng.choice(WORDS)}),
                ("/v1/view/share", {"id": session_id}),
            )
        )
        await self._ask(http, "GET", path, 200, 404 if "at" in query else 200, params=query)  # a new session is empty

    async def _look_at_all(self, http: httpx.AsyncClient) -> None:
        """Make one request of a page about all sessions, or download one."""
        session_id = self._any_session()
        if session_id is None:
            return
        path, query = self._rng.choice(
            (
                ("/", {}),
                ("/v1/view/overview", {}),
                ("/v1/view/sessions", {}),
                ("/v1/view/stats", {}),
                ("/v1/usage", {}),
                ("/v1/status", {}),
                ("/v1/view/export", {"id": session_id, "form": "html"}),
                ("/v1/view/export", {"id": session_id, "form": "md"}),
            )
        )
        await self._ask(http, "GET", path, params=query)

    async def _search(self, http: httpx.AsyncClient) -> None:
        path = self._rng.choice(("/v1/search", "/v1/view/search"))
        await self._get(http, path, q=self._rng.choice(WORDS))
        self.counts["searches"] += 1

    async def _be_refused(self, http: httpx.AsyncClient) -> None:
        """Make a request that is refused, each with its own status."""
        how = self._rng.randrange(4)
        if how == 0:
            await self._ask(http, "GET", "/v1/sessions", 401, 429, headers={"Authorization": "Bearer wrong"})
        elif how == 1:
            await self._ask(http, "GET", "/v1/view/session", 404, params={"id": "no-such-session"})
        elif how == 2:
            await self._ask(http, "POST", "/v1/chat/send", 422, 400, json={"no": "message"})
        else:
            await self._ask(http, "GET", f"/v1/no-such-path/{self._number}", 404)
        self.counts["refused"] += 1

    def _any_session(self) -> str | None:
        """Return a current session, or one of the past."""
        if not self.acknowledged:
            return None
        if self._rng.random() < 0.8:
            return self._rng.choice(list(self._sessions.values()))
        number = self._rng.randrange(len(self.acknowledged))
        return list(self.acknowledged.values())[number][1]

    # -- numbers

    async def _census(self) -> Census:
        """Return the numbers of the process, as soon as they have stopped falling."""
        found = self._count()
        for _ in range(10):
            await anyio.sleep(0.1)
            again = self._count()
            if (again.tasks, again.descriptors) >= (found.tasks, found.descriptors):
                return again
            found = again
        return found

    def _count(self) -> Census:
        pid = self.gateway.process.pid
        path = self._folder / "census"
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + 10
        while not path.exists():
            assert self.gateway.process.poll() is None and time.monotonic() < until, "the gateway does not count"
            time.sleep(0.01)
        told = json.loads(path.read_text())
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        below = [name for _, _, names in os.walk(self._folder / "root") for name in names]
        sessions = sum(name.endswith(".jsonl") for name in below)
        return Census(
            memory=int(status["VmRSS"].split()[0]) << 10,
            objects=told["objects"],
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(status["Threads"]),
            tasks=told["tasks"],
            files=len(below) - sessions,
            sessions=sessions,
        )

    def _stacks(self) -> str:
        """Return what the threads of the gateway are doing."""
        os.kill(self.gateway.process.pid, signal.SIGUSR2)
        time.sleep(0.5)
        return (self._folder / "census.stacks").read_text()

    # -- the laws

    def check_turns(self) -> int:
        """Check that every acknowledged message is stored once, in its place, with one reply. Return their number."""
        stored: Counter[str] = Counter()
        with Store(self._folder / "root") as store:
            for session_id in {session for _, session, _ in self.acknowledged.values()}:
                with store.open(session_id, readonly=True) as session:
                    assert not session.findings, session.findings
                    entries = session.get_entries()
                stored += self._check_session(session_id, entries)
        missing = [name for name in self.acknowledged if stored[name] != 1]
        assert not missing, f"{len(missing)} acknowledged messages are missing or doubled: {missing[:5]}"
        assert set(stored) <= set(self.acknowledged) | self.cut
        return len(self.acknowledged)

    def _check_session(self, session_id: str, entries: list[Any]) -> Counter[str]:
        """Check the turns of one session. Return their names."""
        messages = [entry for entry in entries if entry.type == "message"]
        replies = {entry.id: entry for entry in messages if entry["message"]["role"] == "assistant"}
        names: Counter[str] = Counter()
        last: dict[str, int] = {}
        for said in messages:
            if said["message"]["role"] != "user":
                continue
            name = said["message"]["content"][0]["text"]
            names[name] += 1
            assert said.id == derived_entry_id(session_id, f"chat:{name}", 0)
            if name not in self.acknowledged:
                continue
            key, *place = self.acknowledged[name]
            assert place == [session_id, said.id], f"{name} was acknowledged as {place}"
            reply = replies[reply_id(session_id, said.id)]
            if name not in self.aborted:
                text = "".join(block.get("text", "") for block in reply["message"]["content"])
                assert text == name, f"{name} was answered with {text!r}"
                number = int(name.rpartition(" ")[2])
                assert number > last.get(key, -1), f"{name} is out of order"
                last[key] = number
        return names


def first_data(text: str) -> Json:
    """Return the first event of a stream."""
    found: Json = json.loads(text.split("data: ", 1)[1].split("\n")[0])
    return found


@contextmanager
def loaded(folder: Path, seed: int, weakness: str = "", keys: int = KEYS, **environment: str) -> Iterator[Load]:
    """Run a gateway with an echo, a program and a model server. `weakness` is run in its process before it starts."""
    with model_server() as model:
        model.say("an answer of the model", pause=0.005)
        config = {
            "session": {"reset": {"mode": "none"}},
            "agents": {
                "list": [
                    {"id": "main", "default": True},
                    {"id": "program", "runner": "command", "command": ["sh", "-c", PROGRAM]},
                    {"id": "model", "model": "local/m"},
                ]
            },
            "models": {
                "providers": {"local": {"baseUrl": f"{model.url}/v1", "api": "openai", "models": [{"id": "m"}]}}
            },
        }
        (folder / "config.json").write_text(json.dumps(config))
        program = (sys.executable, "-c", CENSUS + weakness + RUN)
        variables = {"CENSUS": str(folder / "census"), **environment}
        options = ("--config", str(folder / "config.json"))
        with serving(folder / "root", *options, environment=variables, program=program) as gateway:
            yield Load(gateway, folder, seed, keys)
            code, _, err = gateway.end()
            assert (code, err.split()) == (0, ["gateway", "stopped"]), err
