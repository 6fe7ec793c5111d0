"""Presence of gateways on a database: any number may run, and each is found while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from sessile import Store
from sessile.gateway.conversations.presence import Presence

pytestmark = pytest.mark.mission("B8")


def test_many_are_there_at_once_and_each_takes_only_its_own_note_away(postgres_url: str) -> None:
    """No gateway is refused, a lookup finds a running one, and each removes only its own note."""
    store = Store(postgres_url)
    one, two = Presence(store), Presence(Store(postgres_url))
    assert one.look() is None and not one.is_held()
    with one.held(), one.announced("http://127.0.0.1:7", "/t") as first:
        with two.held(), two.announced("http://127.0.0.1:8", "/t") as second:
            assert Presence(store).running() in (first, second)
        assert Presence(store).running() == first
    assert one.look() is None and not two.is_held()
    assert [name for name in store.fs.names(store.layout.root) if name.startswith("gateway")] == []


def test_one_of_this_machine_is_found_before_those_of_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway on this machine is preferred, because addresses of other machines may not be reachable here."""
    store = Store(postgres_url)
    gateways = [Presence(store) for _ in range(3)]
    with ExitStack() as stack:
        for number, gateway in enumerate(gateways):
            monkeypatch.setattr("sessile.storage.locks.own_host", lambda number=number: f"host{number}")
            stack.enter_context(gateway.held())
            stack.enter_context(gateway.announced(f"http://host{number}", "/t"))
        monkeypatch.setattr("sessile.storage.locks.own_host", lambda: "host1")
        running = Presence(store).running()
        assert running is not None and running.url == "http://host1"


def test_what_a_dead_one_left_is_not_believed_and_taken_away_by_the_next(postgres_url: str) -> None:
    """A note whose lease has expired is ignored, and the next gateway removes it."""
    store, other = Store(postgres_url), Store(postgres_url)
    dead = Presence(other)
    left = [dead.held(), dead.announced("http://127.0.0.1:7", "/t")]
    for one in left:
        one.__enter__()  # never exited
    assert Presence(store).running() is not None
    assert other.database is not None
    other.database.query("UPDATE lease SET until = clock_timestamp() - interval '1 minute'")
    noted = Presence(store).look()
    assert noted is not None and not noted.alive and Presence(store).running() is None
    living = Presence(store)
    with living.held():
        assert living.look() is None and living.is_held()


@contextmanager
def serving(url: str, home: Path) -> Iterator[str]:
    """Run `sessile serve` on a database in its own process. Return its address."""
    program = [sys.executable, "-m", "sessile", "--root", url, "--json", "serve", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={"HOME": str(home), "PATH": ""}) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def test_two_commands_serve_one_database(postgres_url: str, tmp_path: Path) -> None:
    """A conversation continues at the other gateway, with the same token."""
    with serving(postgres_url, tmp_path) as one, serving(postgres_url, tmp_path) as two:
        (token,) = tmp_path.rglob("gateway.token")
        bearer = {"Authorization": f"Bearer {token.read_text().strip()}"}
        told = []
        for number, address in enumerate((one, two, one)):
            body = {"key": "main", "message": f"message {number}", "wait": True}
            response = httpx.post(f"{address}/v1/chat/send", json=body, headers=bearer, timeout=20)
            assert response.status_code == 200, response.text
            told.append(response.json())
        assert len({one["sessionId"] for one in told}) == 1
        history = httpx.get(f"{two}/v1/session/history", params={"key": "main"}, headers=bearer).json()
        messages = [entry["message"] for entry in history["entries"] if "message" in entry]
        said = [message["content"][0]["text"] for message in messages if message["role"] == "user"]
        assert said == ["message 0", "message 1", "message 2"]
