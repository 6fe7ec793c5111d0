"""Gateways for tests on a real folder, with the echo, a scripted runner or a model server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio

from sessile import Store
from sessile.config import load_config
from sessile.core.codec import encode_plain
from sessile.gateway.service import Gateway, make_gateway
from sessile.gateway.turns.runners import Done, RunRequest, Text
from sessile.gateway.turns.turn import Message, Reply

NOON = 1_771_243_200.0  # 2026-02-16 12:00 UTC


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Scripted:
    """A runner that replies from a script, word by word, and can wait at a gate."""

    name = "echo"

    def __init__(self) -> None:
        self.asked: list[RunRequest] = []
        self.say: Callable[[str], str] = lambda text: f"re: {text}"
        self.gate: anyio.Event | None = None  # awaited after each word
        self.running = 0
        self.most = 0  # maximum number of concurrent runs

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the scripted reply."""
        self.asked.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            said = self.say(request.messages[-1]["content"][0]["text"])
            for number, word in enumerate(said.split(" ")):
                yield Text(word if number == 0 else f" {word}")
                if self.gate is not None:
                    await self.gate.wait()
            content = [{"type": "text", "text": said}]
            usage = {"input": 10, "output": 5, "totalTokens": 15}
            yield Done({"role": "assistant", "content": content, "usage": usage, "stopReason": "stop"})
        finally:
            self.running -= 1


def gateway_in(folder: Path, config: dict[str, Any] | None = None, **options: Any) -> Gateway:
    """Return a gateway on a folder, not started; `config` is as in a file, `sources` are folders of other agents."""
    loaded = load_config(encode_plain(config or {}), "config.json")
    assert loaded.unknown == []
    sources = options.pop("sources", ())
    store = options.pop("store", None) or Store(folder, **options)
    return make_gateway(store, loaded.config, zone=ZoneInfo("UTC"), sources=sources)


def scripted(gateway: Gateway) -> Scripted:
    """Replace the runner of a gateway with a script."""
    runner = Scripted()
    made = gateway.answerers.of

    def of(agent: str, override: str | None) -> Any:
        return made(agent, override)._replace(runner=runner)

    gateway.answerers.of = of  # type: ignore[assignment]
    return runner


@asynccontextmanager
async def running(gateway: Gateway, seconds: float = 30) -> AsyncIterator[Gateway]:
    """Run the gateway for a block of at most some seconds, and stop it as a signal would."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(gateway.run)
        with anyio.fail_after(seconds):
            yield gateway
        tasks.cancel_scope.cancel()


async def ask(gateway: Gateway, text: str, key: str = "main", **how: Any) -> Reply:
    """Send a message and wait for the reply."""
    turn = await gateway.turns.send(Message(text=text, source=key, **how))
    return await turn.wait()


def lines(gateway: Gateway, key: str = "main") -> list[tuple[str, str]]:
    """Return role and text of the messages in the session of a key."""
    path = gateway.conversations.path_of(key)
    assert path is not None
    with gateway.store.open(path, readonly=True) as session:
        messages = [entry.get("message") for entry in session.get_branch()]
        return [
            (message["role"], "".join(block.get("text", "") for block in message["content"]))
            for message in messages
            if message is not None
        ]
