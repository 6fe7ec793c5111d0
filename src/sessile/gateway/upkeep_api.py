"""Maintenance over HTTP: what would go, let it go, take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sessile import undo_maintenance
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from sessile import MaintenancePlan
    from sessile.gateway.service import Gateway

AgentText = Annotated[str, Meta(min_length=1, max_length=200)]
Token = Annotated[str, Meta(min_length=1, max_length=200)]


class Agent(Taken, frozen=True):
    """Whose conversations are looked after."""

    agent: AgentText | None = None  # the default one


class Leaving(Told, frozen=True):
    """A conversation that would go, and why."""

    key: str
    session_id: str | None
    updated_at: int | None
    why: str


class Planned(Told, frozen=True):
    """What maintenance would do."""

    agent: str
    mode: str
    going: tuple[Leaving, ...]
    staying: int
    told: tuple[str, ...]


class Tidied(Told, frozen=True):
    """What maintenance did; the token takes it back."""

    agent: str
    mode: str
    removed: tuple[str, ...]
    refused: dict[str, str]
    told: tuple[str, ...]
    token: str | None


class UndoBody(Taken, frozen=True):
    """Which maintenance is taken back."""

    token: Token


class Restored(Told, frozen=True):
    """The conversations that are back, and those whose key has a newer one by now."""

    keys: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


async def plan(gateway: Gateway, query: Agent) -> Planned:
    """What would go; nothing is changed."""
    found = await gateway.call(gateway.upkeep.plan, _agent(gateway, query))
    going = tuple(Leaving(key=e.key, session_id=e.session_id, updated_at=e.updated_at, why=e.why) for e in found.going)
    return Planned(agent=found.agent, mode=found.mode, going=going, staying=len(found.staying), told=found.told)


async def tidy(gateway: Gateway, body: Agent) -> Tidied:
    """Archive and remove what maintenance says, if its mode is `enforce`."""
    found: MaintenancePlan = await gateway.call(gateway.upkeep.plan, _agent(gateway, body))
    done = await gateway.call(gateway.upkeep.apply, found)
    if done.failure is not None:
        raise done.failure
    return Tidied(
        agent=found.agent,
        mode=found.mode,
        removed=done.removed,
        refused=dict(done.refused),
        told=done.told,
        token=done.token,
    )


async def undo(gateway: Gateway, body: UndoBody) -> Restored:
    """Bring back what maintenance has removed."""
    done = await gateway.call(undo_maintenance, gateway.conversations, body.token)
    return Restored(keys=done.keys, refused=done.refused, missing=done.missing)


def _agent(gateway: Gateway, asked: Agent) -> str:
    return asked.agent or gateway.config.agents.default_id
