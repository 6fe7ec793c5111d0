"""The status of the gateway and of a conversation."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from builders import Json, assistant
from gateways import Clock, gateway_in, running
from sessile import __version__
from sessile.core.resets import ResetPolicy
from sessile.errors import NotFound, SessionNotFound
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.http.state import status_of
from sessile.gateway.service import Gateway
from sessile.gateway.turns.commands import chat_status
from sessile.gateway.turns.turn import Message
from sessile.render.status import Queue, status_lines
from sessions import answer, say

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y12")]

KEY = "agent:main:main"
SLOW = "agent:slow:main"
GROUP = "agent:main:telegram:group:-100"
CONFIG = """
    [session]
    idleMinutes = 90
    [session.reset]
    mode = "daily"
    atHour = 5
    [session.sendPolicy]
    rules = [{action = "deny", match = {keyPrefix = "telegram:"}}]
    [agents.defaults]
    model = "anthropic/claude-sonnet-4"
    [models.providers.anthropic]
    apiKey = "sk-secret-0123456789"
    models = [{id = "claude-sonnet-4", contextWindow = 200000}]
    [models.providers.local]
    api = "openai"
    apiKeyEnv = "LOCAL_KEY"
    baseUrl = "http://127.0.0.1:1/v1"
    models = [{id = "qwen", contextWindow = 8000}]
    [[agents.list]]
    id = "main"
    [[agents.list]]
    id = "slow"
    runner = "command"
    command = ["sleep", "600"]
    [limits]
    queuedTurns = 7
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Rig(NamedTuple):
    """A running gateway and its clock."""

    gateway: Gateway
    clock: Clock


@asynccontextmanager
async def rigged(root: Path, config: str = "") -> AsyncIterator[Rig]:
    clock = Clock()
    gateway = gateway_in(root, tomllib.loads(config), clock=clock, durability="process")
    async with running(gateway):
        yield Rig(gateway, clock)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path, CONFIG) as one:
        yield one


def talk(rig: Rig, key: str = KEY, usage: Json | None = None) -> Bound:
    """Append a message and a reply, and return the binding."""
    bound = rig.gateway.conversations.resolve(key)
    with rig.gateway.opened(bound.path) as session:
        say(session, "x" * 400)
        if usage is None:
            answer(session, "y" * 40)
        else:
            session.append_message(assistant("y" * 40) | {"usage": usage, "stopReason": "stop"})
    return bound


async def test_a_status_holds_everything_that_is_known(rig: Rig) -> None:
    """The status has the model, key, counters, reported context, settings, queue, resets and delivery."""
    bound = talk(rig, usage={"input": 40_000, "output": 8_200, "totalTokens": 48_200})
    counters = {"inputTokens": 12_345, "outputTokens": 940, "estimatedCostUsd": 0.5, "compactionCount": 2}
    rig.gateway.conversations.count(KEY, bound.session_id, members=counters)
    rig.gateway.conversations.patch(KEY, {"thinkingLevel": "high", "verboseLevel": "on", "queueMode": "interrupt"})
    rig.clock.now += 300
    status = await chat_status(rig.gateway, bound)
    assert (status.version, status.key, status.now) == (__version__, KEY, rig.gateway.store.now())
    assert (status.model, status.auth, status.runtime) == ("anthropic/claude-sonnet-4", "api-key", "anthropic")
    assert (status.input_tokens, status.output_tokens, status.cost) == (12_345, 940, 0.5)
    assert (status.context_tokens, status.context_estimated, status.context_window) == (48_200, False, 200_000)
    assert (status.compactions, status.thinking, status.verbose, status.reasoning) == (2, "high", "on", "off")
    assert status.queue == Queue("interrupt", depth=0, cap=7)
    assert status.resets == ResetPolicy(at_hour=5, idle_minutes=90)
    assert status.sending
    lines = status_lines(status)
    assert "📚 Context: 48.2k/200.0k (24%) · 🧹 Compactions: 2" in lines
    assert "🪢 Queue: interrupt (depth 0, cap 7)" in lines
    assert f"🧵 Session: {KEY} • updated 5 min ago" in lines
    assert "secret" not in "\n".join(lines)


async def test_a_context_that_no_provider_reported_is_estimated(rig: Rig) -> None:
    """Without reported usage, the context size is estimated and marked as such."""
    bound = talk(rig)
    status = await chat_status(rig.gateway, bound)
    assert (status.context_tokens, status.context_estimated) == (110, True)
    assert "📚 Context: ~110/200.0k (0%) · 🧹 Compactions: 0" in status_lines(status)


async def test_what_nobody_knows_is_unknown_and_never_zero(tmp_path: Path) -> None:
    """Missing values are reported as unknown, never as zero."""
    async with rigged(tmp_path) as rig:
        conversation = rig.gateway.conversations.patch(KEY, {"thinkingLevel": "low"})
        status = await chat_status(rig.gateway, conversation)
    nothing = (status.model, status.auth, status.input_tokens, status.output_tokens, status.cost)
    assert nothing == (None, None, None, None, None)
    assert (status.context_tokens, status.context_window, status.compactions) == (None, None, None)
    assert "📚 Context: unknown · 🧹 Compactions: unknown" in status_lines(status)


async def test_a_chosen_model_is_told_with_its_runner_window_and_key(rig: Rig) -> None:
    """The status shows the model, runner, context window and key that the next turn would use."""
    bound = talk(rig)
    rig.gateway.conversations.patch(KEY, {"model": "local/qwen"})
    status = await chat_status(rig.gateway, bound)
    assert (status.model, status.runtime, status.context_window) == ("local/qwen", "openai", 8_000)
    assert status.auth == "api-key (LOCAL_KEY)"


async def test_turns_that_wait_are_the_depth_of_the_queue(rig: Rig) -> None:
    """A conversation reports the depth of its own queue, and the gateway reports all turns."""
    for text in ("one", "two", "three"):
        await rig.gateway.turns.send(Message(text=text, source=SLOW))
    await rig.gateway.turns.send(Message(text="elsewhere", source="agent:slow:other"))
    status = await chat_status(rig.gateway, rig.gateway.conversations.resolve(SLOW))
    assert status.queue == Queue("followup", depth=2, cap=7)
    assert status.runtime == "command"
    assert (await status_of(rig.gateway))["turns"] == {"running": 2, "queued": 2}


@pytest.mark.mission("Y5")
async def test_a_group_tells_its_activation_and_that_it_is_held_back(rig: Rig) -> None:
    """A group shows its activation and a blocked delivery; the setting of the conversation overrides the policy."""
    bound = talk(rig, GROUP)
    rig.gateway.conversations.patch(GROUP, {"groupActivation": "mention"})
    lines = status_lines(await chat_status(rig.gateway, bound))
    assert "👥 Activation: mention" in lines
    assert lines[-1] == "🔇 Delivery: blocked by the send policy"
    rig.gateway.conversations.patch(GROUP, {"sendPolicy": "allow"})
    assert (await chat_status(rig.gateway, bound)).sending
    direct = talk(rig)
    rig.gateway.conversations.patch(KEY, {"groupActivation": "mention"})
    assert (await chat_status(rig.gateway, direct)).activation is None


async def test_a_session_that_is_gone_is_not_called_empty(rig: Rig) -> None:
    """A missing session file raises an error."""
    bound = talk(rig)
    Path(bound.path).unlink()
    with pytest.raises(SessionNotFound):
        await chat_status(rig.gateway, bound)


async def test_the_gateway_tells_its_state(rig: Rig) -> None:
    """The status has the version, uptime, root, agents, conversations, turns and problems."""
    bound = talk(rig, usage={"totalTokens": 48_200})
    talk(rig, GROUP)
    rig.gateway.conversations.count(KEY, bound.session_id, members={"contextTokens": 48_200})
    rig.clock.now += 60
    told = await status_of(rig.gateway)
    assert (told["version"], told["uptimeMs"], told["root"]) == (__version__, 60_000, rig.gateway.store.layout.root)
    assert told["agents"] == [
        {
            "id": "main",
            "model": "anthropic/claude-sonnet-4",
            "contextWindow": 200_000,
            "runner": "anthropic",
            "workspace": rig.gateway.workspace("main"),
            "conversations": 2,
        }
    ]
    assert told["conversations"] == 2
    assert told["turns"] == {"running": 0, "queued": 0}
    assert told["problems"] == []
    assert told["conversation"] is None
    row = next(row for row in told["recent"] if row["key"] == KEY)
    assert (row["contextTokens"], row["contextWindow"], row["compactionCount"]) == (48_200, 200_000, 0)
    assert {row["key"]: row["kind"] for row in told["recent"]} == {KEY: "direct", GROUP: "group"}


async def test_the_state_of_one_conversation_is_told_by_its_key(rig: Rig) -> None:
    """The status of a conversation has its values and the lines of `/status`; an unknown key is not found."""
    bound = talk(rig)
    told = (await status_of(rig.gateway, "main"))["conversation"]
    assert (told["key"], told["contextTokens"], told["contextEstimated"]) == (KEY, 110, True)
    assert told["reset"] == {"atHour": 5, "idleMinutes": 90}
    assert told["queue"] == {"mode": "followup", "depth": 0, "cap": 7}
    assert told["lines"] == status_lines(await chat_status(rig.gateway, bound))
    with pytest.raises(NotFound):
        await status_of(rig.gateway, "agent:main:nobody")


async def test_a_broken_store_is_a_problem_that_is_told_with_its_place(rig: Rig, tmp_path: Path) -> None:
    """A broken store file is reported with its path and line, and the last valid state is used."""
    talk(rig)
    file = tmp_path / "agents/main/sessions/sessions.json"
    file.write_text('{\n  "agent:main:main": }')
    told = await status_of(rig.gateway)
    assert told["conversations"] == 1
    (problem,) = told["problems"]
    assert problem["path"] == str(file)
    assert "line 2" in problem["message"]
    assert problem["hint"]


async def test_a_key_that_somebody_wrote_by_hand_is_shown(rig: Rig, tmp_path: Path) -> None:
    """An invalid key in the store file is listed with the kind "unknown"."""
    file = tmp_path / "agents/main/sessions/sessions.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"agent::": {"sessionId": "s1", "updatedAt": 1}}')
    (row,) = (await status_of(rig.gateway))["recent"]
    assert (row["key"], row["kind"]) == ("agent::", "unknown")
