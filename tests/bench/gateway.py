"""S12: a turn of the gateway over HTTP (echo, power durability), against a bare handler with as many syncs.

Servers and clients run in their own processes. Both servers use uvicorn with the same settings. The bare handler uses a
thread twice and syncs twice, because a turn does: the user's message is durable before the model is called, and the
reply before it is delivered. Each round uses new conversations, so that all rounds have the same length.

    python -m tests.bench.gateway ROOT        serves a store, prints its port, and ends with SIGTERM

The gateway is imported late, because other subjects, whose memory is measured, import this module.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sessile import Store

from .measure import Row, interleaved, median, ratio
from .scale import ROOT, Scale

if TYPE_CHECKING:
    from sessile.config import Config

_LEAST = 0.5  # of the turns of the bare handler
_LEAST_WHEN_FULL = 0.9  # of the turns with few keys
_PER_SECOND = 200  # turns of the steady load
_MOST_MS = 25
_STEADY_ROUNDS = 3
_ON_TIME = 0.005  # seconds; maximum delay of the clients themselves (99th percentile)
_PATIENCE = 3  # attempts of a steady load with clients on time
_AGENT = "main"

TOKEN = "bench-0123456789abcdefghijklmnopqrstuvwxyz-ABCDEF"


class Order(msgspec.Struct, frozen=True):
    """The task of the clients: run for some seconds, at an optional rate; with 0 seconds each key has one turn."""

    port: int
    keys: list[str]
    seconds: float
    rate: float | None = None
    clients: int | None = None  # default: one per key; fewer only where each key has one turn


class Seen(msgspec.Struct, frozen=True):
    """The number of turns, the total seconds, the latencies, and the delays of the clients themselves."""

    turns: int
    seconds: float
    latencies: list[float]
    late: list[float] = []


# -- the servers and the clients


def main(root: str) -> None:
    """Serve a store until the process is ended."""
    from sessile.gateway.http.server import listen

    with listen("127.0.0.1", 0) as sock:
        serve_store(root, sock, lambda: print(sock.getsockname()[1], flush=True))


def serve_store(root: str, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve a store as `sessile serve` does."""
    from sessile.core.secret import Secret
    from sessile.gateway.http.asgi import make_app
    from sessile.gateway.http.server import serve
    from sessile.gateway.service import make_gateway

    config = _config()
    app = make_app(make_gateway(Store(root, durability="power"), config), Secret(TOKEN))
    serve(app, sock, config.limits, ready)


def _config() -> Config:
    """Return the default configuration without daily resets, which could fall into a run."""
    from sessile.config import load_config

    return load_config(b'{"session": {"reset": {"mode": "none"}}}', "config.json").config


@contextmanager
def _running(*command: str) -> Iterator[int]:
    """Run a server as a process and yield its port."""
    with subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def load(order: Order) -> Seen:
    """Run the clients in their own process."""
    command = [sys.executable, "-m", "tests.bench.gateway_load"]
    done = subprocess.run(command, cwd=ROOT, input=msgspec.json.encode(order), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Seen)


# -- stores


def make_store(root: Path, count: int) -> list[str]:
    """Create a store with empty conversations and return their keys."""
    from sessile.agents.openclaw.entries import SessionEntry
    from sessile.gateway.service import make_gateway

    shutil.rmtree(root, ignore_errors=True)
    store = Store(root, durability="process")
    conversations = make_gateway(store, _config()).conversations
    keys = [f"agent:{_AGENT}:bench-{number:05d}" for number in range(count)]
    now = store.now()
    entries = {
        key: SessionEntry(
            {"sessionId": conversations.internals.sessions.begin(_AGENT, now, None).session_id, "updatedAt": now}
        )
        for key in keys
    }
    conversations.internals.agents.of(_AGENT).change(lambda there: entries, now)
    conversations.close()
    return keys


def line_sizes(root: Path) -> list[int]:
    """Return the line lengths of a turn's message and reply in a session of the store."""
    for path in sorted(root.rglob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        if len(lines) > 2:
            return [len(line) for line in lines[-2:]]
    raise AssertionError("nobody has spoken in any session")


# -- the subject


class _Server:
    """A server and the keys of its store; each round uses conversations without messages."""

    def __init__(self, port: int, keys: Sequence[str]) -> None:
        self.keys = keys
        self._port = port
        self._fresh = iter(keys)

    def round(self, scale: Scale, rate: float | None = None) -> Seen:
        """Return the figures of clients that send one message after the other, or at a fixed rate."""
        keys = [*islice(self._fresh, scale.clients)]
        return load(Order(self._port, keys, scale.load_seconds if rate is None else scale.steady_seconds, rate=rate))


def taking_turns(scale: Scale) -> list[Row]:
    """S12: maximum throughput, a store with many keys, and a steady load."""
    scratch = scale.scratch()
    steady_rounds = min(_STEADY_ROUNDS, scale.heavy_rounds)
    needed = scale.clients * (1 + scale.heavy_rounds + steady_rounds * _PATIENCE)
    few = make_store(scratch / "gateway-few", needed)
    many = make_store(scratch / "gateway-many", max(scale.keys, needed))
    with (
        _running("tests.bench.gateway", str(scratch / "gateway-few")) as our_port,
        _running("tests.bench.gateway", str(scratch / "gateway-many")) as full_port,
    ):
        ours, full = _Server(our_port, few), _Server(full_port, many)
        ours.round(scale)
        sizes = [str(size) for size in line_sizes(scratch / "gateway-few")]
        with _running("tests.bench.gateway_bare", str(scratch / "gateway-bare"), *sizes) as bare_port:
            bare = _Server(bare_port, few)
            return [*_as_fast_as_they_go(scale, ours, full, bare), _steadily(scale, steady_rounds, ours, bare)]


def _as_fast_as_they_go(scale: Scale, ours: _Server, full: _Server, bare: _Server) -> list[Row]:
    def taken(server: _Server) -> float:
        seen = server.round(scale)
        return seen.seconds / seen.turns

    times = interleaved(
        scale.heavy_rounds, ours=lambda: taken(ours), bare=lambda: taken(bare), full=lambda: taken(full)
    )
    speeds = {name: 1 / median(each) for name, each in times.items()}
    return [
        Row(
            "S12",
            f"durable turns of {scale.clients} clients",
            speeds["ours"],
            "/s",
            "bare Starlette",
            speeds["bare"],
            ratio(times["bare"], times["ours"]),
            "≥",
            _LEAST,
        ),
        Row(
            "S12",
            f"… with {len(full.keys):,} keys",
            speeds["full"],
            "/s",
            f"with {len(ours.keys)}",
            speeds["ours"],
            ratio(times["ours"], times["full"]),
            "≥",
            _LEAST_WHEN_FULL,
        ),
    ]


def _steadily(scale: Scale, rounds: int, ours: _Server, bare: _Server) -> Row:
    """Return the 99th percentile of the latency at a steady rate."""

    work = f"p99 of {_PER_SECOND} turns/s, ms"
    on_time: list[bool] = []

    def slow(server: _Server) -> float:
        seen = server.round(scale, _PER_SECOND)
        on_time.append(p99(seen.late) < _ON_TIME)
        return p99(seen.latencies)

    for _ in range(_PATIENCE):
        on_time.clear()
        times = interleaved(rounds, ours=lambda: slow(ours), bare=lambda: slow(bare))
        if all(on_time):
            break
    else:
        return Row("S12", work, skipped="the machine is too busy: the clients themselves were late")
    took = median(times["ours"])
    return Row(
        "S12",
        work,
        took,
        baseline="bare Starlette",
        baseline_median=median(times["bare"]),
        ratio=took * 1000,
        limit=_MOST_MS,
    )


def p99(times: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(times)[int(len(times) * 0.99)]


def touch_every_key_once(scale: Scale) -> None:
    """Serve a store in this process and take a turn for every key, to measure the memory."""
    from sessile.gateway.http.server import listen

    root = scale.scratch() / "gateway-touched"
    keys = make_store(root, scale.keys)
    seen: list[Seen] = []
    with listen("127.0.0.1", 0) as sock:
        order = Order(sock.getsockname()[1], keys, 0, clients=scale.clients)

        def clients() -> None:
            try:
                seen.append(load(order))
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        asking = threading.Thread(target=clients)
        serve_store(str(root), sock, asking.start)
        asking.join()
    assert seen[0].turns == scale.keys


if __name__ == "__main__":
    main(*sys.argv[1:])
