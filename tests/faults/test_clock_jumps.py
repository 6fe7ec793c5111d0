"""The clock of a gateway and of other writers jumps by hours and years while they work. Only times change.

A library that is loaded before all others moves the clock of a process; times of files come from the system, and stay right.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx
import pytest

from cli.gateways import Serving, serving
from faults.gateway_load import loaded
from faults.processes import fast_folder
from figures import measured
from sessile import Store

pytestmark = [
    pytest.mark.promise("P27"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

HOUR, DAY = 3_600, 86_400
SOURCE = Path(__file__).with_name("jumping_clock.c")


class Clock:
    """The clock of other processes, moved by some seconds."""

    def __init__(self, folder: Path) -> None:
        self.jumps = 0
        self._path = folder / "clock"
        self._path.write_bytes(struct.pack("=q", 0))
        self._library = folder / "jumping_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE)], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that has this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET": str(self._path)}

    def move(self, seconds: int) -> None:
        """Set the clock to a time that is `seconds` from now."""
        with open(self._path, "r+b") as file:
            file.write(struct.pack("=q", seconds))
        self.jumps += 1

    @contextmanager
    def jumping(self, pause: float) -> Iterator[None]:
        """Let the clock jump for a block: by an hour, by a day, to 1970 and to 2038."""
        over = threading.Event()
        rng = Random(1)

        def jump() -> None:
            while not over.wait(rng.uniform(pause / 2, pause)):
                now = int(time.time())
                self.move(rng.choice((0, HOUR, -HOUR, DAY, -DAY, 1 - now, 2**31 - 1 - now, 2**31 + 10 - now)))

        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.move(0)


WRITER = """
import sys, time
from sessile import Store
from builders import user, assistant
root, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
number = 0
with Store(root, durability="process") as store:
    while time.monotonic() < until:
        with store.create("/work/jumps", publish=True) as session:
            for _ in range(40):
                receipt = session.append_message((user if number % 2 == 0 else assistant)(f"text {number}"))
                print(session.id, receipt.id, number, flush=True)
                number += 1
        assert any(info.id == session.id for info in store.list_all())
"""


def check_jumps(rounds: int, seconds: float) -> dict[str, int]:
    """Run a gateway under load and a writer while the clock jumps. Check that nothing is lost or out of order."""
    with fast_folder() as name:
        folder = Path(name)
        clock = Clock(folder)

        async def run(load: Any) -> None:
            for _ in range(rounds):
                await load.round(seconds)

        with loaded(folder, rounds, keys=8, **clock.environment) as load, clock.jumping(0.1):
            variables = {**os.environ, **clock.environment, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
            command = [sys.executable, "-c", WRITER, str(folder / "other"), str(rounds * seconds)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as writer:
                anyio.run(run, load)
                told = writer.communicate(timeout=60)[0].splitlines()
            assert writer.returncode == 0
        turns = load.check_turns()
        written = check_written(folder / "other", told)
        years = {entry[:4] for entry in timestamps(folder / "root")}
        assert {"1970", "2038"} <= years, f"the clock did not jump while entries were written: {years}"
    return {"jumps": clock.jumps, "acknowledged": turns + written, "lost": 0}


def timestamps(root: Path) -> Iterator[str]:
    for path in root.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            yield str(json.loads(line).get("timestamp", ""))


def check_written(root: Path, told: list[str]) -> int:
    """Check that a writer's sessions hold what it was told, in order. Return the number of entries."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for session_id, entry_id, number in (line.split() for line in told):
        wanted.setdefault(session_id, []).append((entry_id, f"text {number}"))
    with Store(root) as store:
        assert {info.id for info in store.list_all()} == set(wanted)
        for session_id, entries in wanted.items():
            with store.open(session_id, readonly=True) as session:
                assert not session.findings
                found = [(entry.id, entry["message"]["content"]) for entry in session.get_branch()]
            texts = [(at, said if isinstance(said, str) else said[0]["text"]) for at, said in found]
            assert texts == entries
    return len(told)


def test_a_clock_that_jumps_under_load_loses_nothing() -> None:
    """Every acknowledged turn and entry is there once and in order, and no request fails."""
    measured("P27", "clock jumps under load", **check_jumps(3, 0.7))


@pytest.mark.long
def test_a_clock_that_jumps_for_minutes_loses_nothing() -> None:
    """The long form of the test above."""
    measured("P27", "clock jumps under load", **check_jumps(12, 15))


# -- timers

QUICK = """
import runpy
from sessile.gateway.conversations import maintenance
from sessile.gateway.http import streams
maintenance._INTERVAL = 0.1
streams.EventStream.__init__.__kwdefaults__["keep_alive"] = 0.25
runpy.run_module("sessile.cli.main", run_name="__main__", alter_sys=True)
"""


@contextmanager
def timed(folder: Path, clock: Clock) -> Iterator[tuple[Serving, httpx.Client]]:
    """Run a gateway with short timers, which archives old conversations and resets idle ones."""
    config = {
        "session": {
            "reset": {"mode": "idle", "idleMinutes": 60},
            "maintenance": {"mode": "enforce", "pruneAfter": "30d"},
        },
        "limits": {"headerSeconds": 1.0},
    }
    (folder / "config.json").write_text(json.dumps(config))
    options = ("--config", str(folder / "config.json"))
    program = (sys.executable, "-c", QUICK)
    with serving(folder / "root", *options, environment=clock.environment, program=program) as gateway:
        headers = {"Authorization": f"Bearer {gateway.token}"}
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=20, verify=False) as client:
            yield gateway, client


def say(client: httpx.Client, text: str, key: str = "main") -> str:
    """Send a message. Return the id of its session."""
    response = client.post("/v1/chat/send", json={"key": key, "message": text, "wait": True})
    assert response.status_code == 200, response.text
    return str(response.json()["sessionId"])


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_timers_follow_the_time_that_passes_and_not_the_clock(tmp_path: Path) -> None:
    """Keep-alive comments, idle connections, pauses after wrong tokens and maintenance neither rush nor stop."""
    clock = Clock(tmp_path)
    with timed(tmp_path, clock) as (_, client):
        say(client, "hello", "hook:other")
    with timed(tmp_path, clock) as (gateway, client):  # which has no file of the other conversation open
        session_id = say(client, "hello")
        for number in range(16):
            gateway.get("/v1/status", f"wrong-{number}")
        stream = http.client.HTTPConnection(*gateway.place, timeout=5)
        stream.request("GET", "/v1/events", headers={"Authorization": f"Bearer {gateway.token}"})
        response = stream.getresponse()
        used = processor_seconds(gateway.process.pid)
        with clock.jumping(0.02), socket.create_connection(gateway.place) as idle:
            began = time.monotonic()
            idle.settimeout(10)
            assert idle.recv(1) == b""
            closed = time.monotonic() - began
            while time.monotonic() - began < 3:
                assert gateway.get("/v1/status", "wrong")[0] == 429
                assert gateway.get("/v1/status", gateway.token)[0] == 200
                time.sleep(0.2)
            seconds = time.monotonic() - began
        used = processor_seconds(gateway.process.pid) - used
        stream.sock.settimeout(0.2)
        comments = received(stream.sock, response).count(b":")
        stream.close()
        assert 0.5 < closed < 3
        assert seconds < comments * 1.0 and comments < seconds * 8, f"{comments} comments in {seconds:.1f} s"
        assert used < 0.5 * seconds, f"{used:.1f} of {seconds:.1f} s were spent"
        assert clock.jumps > 20
        say(client, "still there")
        with Store(tmp_path / "root") as store, store.open(session_id, readonly=True) as session:
            assert session.get_entries()
        kept = client.get("/v1/sessions").json()["sessions"]
        assert {one["key"] for one in kept} == {"agent:main:main", "agent:main:hook:other"}, "maintenance was misled"


def received(sock: socket.socket, response: http.client.HTTPResponse) -> bytes:
    """Return what has arrived of a stream."""
    found = b""
    try:
        while piece := response.read1(65536):
            found += piece
    except TimeoutError:
        pass
    return found


def test_idle_conversations_are_reset_by_a_clock_that_is_right_again(tmp_path: Path) -> None:
    """A jump forward resets once, a jump back never does, and afterwards resets are neither early nor missing."""
    clock = Clock(tmp_path)
    with timed(tmp_path, clock) as (_, client):
        first = say(client, "one")
        clock.move(2 * HOUR)
        second = say(client, "two")
        assert second != first and say(client, "three") == second
        for back in (0, 1 - int(time.time()), 0, -DAY):
            clock.move(back)
            assert say(client, f"at {back}") == second
        clock.move(2**31 + 10 - int(time.time()))
        third = say(client, "far away")
        assert third != second
        clock.move(0)
        assert [say(client, "back"), say(client, "and again")] == [third] * 2
        clock.move(2 * HOUR)
        assert say(client, "later") != third
